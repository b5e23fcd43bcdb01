"""Where processes resume: at an iteration that all of them have, or nowhere if files were lost."""

import shutil
from pathlib import Path

import pytest
import torch

from depositum.engines import Costs, Snapshot
from depositum.errors import RunError
from depositum.runs import checkpoint, client_checkpoints
from depositum.runs.checkpoint import Latest
from depositum.runs.common_checkpoint import find_common_checkpoint
from tests.support.small_runs import files
from tests.support.thread_communicator import ThreadCommunicator, run_threads

SIZE = 3


def snapshot(t: int, value: float, rows: int = 1) -> Snapshot:
    return Snapshot((0,), t, Costs(t), {"x": torch.full((rows, 2), value)})


def hosts(tmp_path: Path, *iterations: int, complete: bool = True) -> list[Path]:
    """A folder per rank with one client each and checkpoints of these iterations; all ranks completed the last."""
    folders = [tmp_path / f"host-{rank}" for rank in range(SIZE)]
    for rank, folder in enumerate(folders):
        folder.mkdir()
        for t in iterations:
            client_checkpoints.write(folder, snapshot(t, 10.0 * t + rank), [rank])
        if complete and iterations:
            client_checkpoints.mark_saved_by_all(folder)
    return folders


def find(folders: list[Path]) -> list[Latest | None]:
    """What each rank finds."""

    def one(communicator: ThreadCommunicator) -> Latest | None:
        return find_common_checkpoint(communicator, folders[communicator.rank], SIZE, [communicator.rank])

    return run_threads(SIZE, one)


def errors(folders: list[Path]) -> list[str]:
    """The error of each rank; nothing is changed in any folder."""
    before = [files(folder) for folder in folders]

    def one(communicator: ThreadCommunicator) -> str:
        with pytest.raises(RunError) as refused:
            find_common_checkpoint(communicator, folders[communicator.rank], SIZE, [communicator.rank])
        return str(refused.value)

    found = run_threads(SIZE, one)
    assert [files(folder) for folder in folders] == before
    assert all("\n" not in error for error in found)
    return found


def test_a_folder_without_checkpoints_begins(tmp_path: Path) -> None:
    assert find(hosts(tmp_path)) == [None] * SIZE


def test_all_ranks_resume_from_the_newest_common_iteration(tmp_path: Path) -> None:
    found = find(hosts(tmp_path, 6, 12))
    for rank, latest in enumerate(found):
        assert latest is not None
        assert (latest.snapshot.t, latest.problem) == (12, None)
        assert latest.snapshot.tensors["x"].tolist() == [[120.0 + rank] * 2]


@pytest.mark.parametrize("iterations", [(6,), (6, 12)])
def test_lost_checkpoints_of_one_rank_are_refused_by_all(tmp_path: Path, iterations: tuple[int, ...]) -> None:
    """Fails if all ranks begin again at 0 and replace the checkpoints that are left, be they one or two."""
    folders = hosts(tmp_path, *iterations)
    shutil.rmtree(folders[1] / "clients")
    for folder, error in zip(folders, errors(folders), strict=True):
        lost = f"rank 1 (thread) has no checkpoint of iteration {iterations[-1]}, which rank 0 (thread) has"
        assert error == f"--out {folder}: {lost}; restore the files clients/N.safetensors, or choose another folder"


def test_a_backup_that_is_too_old_is_refused(tmp_path: Path) -> None:
    """Rank 2 has iteration 6 only, the others 12 and 18: no iteration is common."""
    folders = hosts(tmp_path, 6)
    for rank in (0, 1):
        for t in (12, 18):
            client_checkpoints.write(folders[rank], snapshot(t, 0.0), [rank])
    assert all("rank 2 (thread) has no checkpoint of iteration 18" in error for error in errors(folders))


def test_a_kill_during_the_first_checkpoint_begins_again(tmp_path: Path) -> None:
    """Some ranks have written it and others have not: nothing is lost but iterations."""
    folders = hosts(tmp_path, 6, complete=False)
    (folders[2] / "clients" / "2.safetensors").unlink()
    assert find(folders) == [None] * SIZE


def test_a_fallback_to_an_older_checkpoint_is_reported(tmp_path: Path) -> None:
    """Rank 1 was killed before it had written iteration 12. Fails if nobody is told which rank set the run back."""
    folders = hosts(tmp_path, 6)
    for rank in (0, 2):
        client_checkpoints.write(folders[rank], snapshot(12, 0.0), [rank])
    for latest in find(folders):
        assert latest is not None
        assert latest.snapshot.t == 6
        assert latest.problem == "rank 1 (thread) has no checkpoint of iteration 12"


@pytest.mark.parametrize("content", [b"cut off", b""])
def test_a_damaged_checkpoint_counts_as_absent_and_is_reported(tmp_path: Path, content: bytes) -> None:
    folders = hosts(tmp_path, 6, 12)
    damaged = folders[1] / "clients" / "1.safetensors"
    damaged.write_bytes(content)
    for latest in find(folders):
        assert latest is not None
        assert latest.snapshot.t == 6
        assert (latest.problem or "").startswith(f"rank 1 (thread): {damaged}: is not a complete checkpoint")


def test_damage_that_only_reading_shows_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has a complete header; its content is found to be wrong when it is read."""
    folders = hosts(tmp_path, 6, 12)
    read = checkpoint.read

    def checking(path: Path) -> Snapshot:
        if path == folders[2] / "clients" / "2.safetensors":
            raise RunError(f"{path}: is damaged")
        return read(path)

    monkeypatch.setattr(checkpoint, "read", checking)
    for latest in find(folders):
        assert latest is not None
        assert latest.snapshot.t == 6
        assert latest.problem == f"rank 2 (thread): {folders[2] / 'clients' / '2.safetensors'}: is damaged"


def test_damage_of_all_checkpoints_is_refused(tmp_path: Path) -> None:
    """As the simulator does. Fails if the run begins again at 0."""
    folders = hosts(tmp_path, 6)
    for rank, folder in enumerate(folders):
        (folder / "clients" / f"{rank}.safetensors").write_bytes(b"cut off")
    assert all("no rank has a complete checkpoint (" in error for error in errors(folders))


def test_a_simulators_checkpoint_that_only_one_host_has_is_refused(tmp_path: Path) -> None:
    folders = hosts(tmp_path)
    checkpoint.write(folders[0] / checkpoint.CURRENT, snapshot(6, 1.0, rows=SIZE))
    message = "rank 1 (thread), rank 2 (thread) have no checkpoint of iteration 6, which rank 0 (thread) has"
    assert all(message in error for error in errors(folders))
