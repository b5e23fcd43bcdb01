"""Every host of a run gets the history, the models and the curves; hosts that share a folder write them once."""

from pathlib import Path

import pytest

from depositum.runs.folder import RunFolder
from depositum.runs.folder_writers import is_writer
from tests.support.rank_processes import launch
from tests.support.rank_runs import run_on_own_host
from tests.support.small_runs import CommandResult, files, outcome, write_config
from tests.support.thread_communicator import ThreadCommunicator, run_threads

ONCE = {"config.toml", "history.csv", "model.safetensors", "curves.png"}


def run_hosts(config: Path, outs: list[Path], *more: str) -> list[CommandResult]:
    """Run two hosts with one process each, which have these folders."""
    own = [["--out", str(out), *more] for out in outs]
    results: list[CommandResult] = launch(run_on_own_host, 2, [str(config)], per_rank=own)
    assert [result.code for result in results] == [0, 0], results
    return results


def common(folder: Path) -> dict[str, object]:
    """What all hosts have: models, and the history without wall time."""
    return {name: content for name, content in outcome(folder).items() if not name.startswith("clients/")}


@pytest.mark.slow
def test_every_host_has_history_models_and_curves(tmp_path: Path) -> None:
    """The same on all of them. Fails if only rank 0's host has the result, or if a host's history has gaps."""
    config = write_config(tmp_path / "c.toml", processes={"timeout": 20.0})
    outs = [tmp_path / "a", tmp_path / "b"]
    run_hosts(config, outs, "--set", "run.steps=9")
    for out in outs:
        assert set(files(out)) >= ONCE
    assert common(outs[0]) == common(outs[1])
    # A host that has lost its history gets that of rank 0's.
    (outs[1] / "history.csv").unlink()
    run_hosts(config, outs)
    assert common(outs[0]) == common(outs[1])
    assert {name for name in files(outs[1]) if name.startswith("clients/")} == {
        f"clients/{name}" for name in ("2.safetensors", "2.previous.safetensors", "3.safetensors")
    } | {"clients/3.previous.safetensors", "clients/saved-by-all"}
    # The same run by hosts that share one folder has the same result, once.
    shared = tmp_path / "shared"
    run_hosts(config, [shared, shared])
    found = common(shared)
    assert found.pop("state.safetensors")
    assert found == common(outs[0])
    assert not any(name.startswith(".writer") for name in files(shared))


@pytest.mark.parametrize(
    ("folders", "writers"),
    [
        (["a", "b", "c", "d"], [0, 1, 2, 3]),
        (["a", "a", "a", "a"], [0]),
        (["a", "b", "a", "b"], [0, 1]),  # two network file systems
        (["a", "b", "b", "b"], [0, 1]),  # rank 0 alone has a folder of its own
    ],
)
def test_one_process_writes_each_folder(tmp_path: Path, folders: list[str], writers: list[int]) -> None:
    """Fails if a folder has no writer, or two that would write the same file at the same time."""

    def one(communicator: ThreadCommunicator) -> bool:
        communicator.first_of_host = True
        return is_writer(communicator, RunFolder(tmp_path / folders[communicator.rank]))

    assert [rank for rank, writes in enumerate(run_threads(4, one)) if writes] == writers
    assert files(tmp_path) == {}


def test_only_the_first_process_of_a_host_writes(tmp_path: Path) -> None:
    def one(communicator: ThreadCommunicator) -> bool:
        communicator.first_of_host = communicator.rank % 2 == 0
        return is_writer(communicator, RunFolder(tmp_path / str(communicator.rank // 2)))

    assert run_threads(4, one) == [True, False, True, False]
