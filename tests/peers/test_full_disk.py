"""A full disk ends one member's run with one line; the others wait until it is started again."""

import errno
import os
from io import FileIO
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from depositum.errors import RunError
from depositum.federation.member_folder import MemberFolder
from depositum.federation.status import Status
from depositum.peers import run_member, verify
from depositum.peers.account import Account
from depositum.runs.execution import RunResult
from tests.support.peer_federations import (
    dirichlet_problem,
    make_agreement,
    run_all,
    run_config,
    run_threads,
    write_folders,
)
from tests.support.peer_processes import Ending


class FullDisk:
    """A file on a disk with room for so many bytes more."""

    def __init__(self, file: FileIO, room: int) -> None:
        self._file, self._room = file, room

    def write(self, content: bytes) -> int:
        if not self._room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self._file.write(content[: self._room])
        self._room -= written
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_line_that_does_not_fit_leaves_a_whole_account(tmp_path: Path) -> None:
    """Breaks if a line in part is left behind, or if the chain continues from a line that is not there."""
    account = Account(tmp_path / "sent.csv")
    account.add("b", 0, "x", 0, 100, "0" * 64)
    account._file = FullDisk(account._file, 50)  # type: ignore[assignment]
    for _ in range(2):
        with pytest.raises(RunError, match=r"sent.csv: cannot be written \(No space left on device\)"):
            account.add("b", 0, "y", 1, 100, "1" * 64)
    account._file._room = 10_000  # type: ignore[attr-defined]
    account.add("b", 0, "y", 1, 100, "1" * 64)
    account.close()
    assert verify(tmp_path / "sent.csv") == 2
    assert account.bytes == {"b": 200}
    assert "again" not in (tmp_path / "sent.csv").read_text().split("\n", 1)[1]


@pytest.mark.parametrize("file", ["sent.csv", "received.csv"])
def test_one_member_with_a_full_disk_starts_again_alone(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing leaves without a line in the account; the end has the bytes of a run on a large disk.

    Breaks if the error is lost in a thread, if it ends the run of the others, or if the account is damaged by it.
    """
    problem, agreement = dirichlet_problem(3), make_agreement(nx.path_graph(3), run_config())
    undisturbed = write_folders(tmp_path / "undisturbed", make_agreement(nx.path_graph(3), run_config()))
    run_all(undisturbed, problem)
    folders = write_folders(tmp_path / "full", agreement)
    full = folders[1].runs / file
    create = Account.__init__

    def on_a_small_disk(self: Account, path: Path) -> None:
        first = path == full and not path.exists()
        create(self, path)
        if first:
            self._file = FullDisk(self._file, 2000)  # type: ignore[assignment]

    monkeypatch.setattr(Account, "__init__", on_a_small_disk)

    def work(folder: MemberFolder) -> RunResult:
        if folder.name == "m1":
            with pytest.raises(RunError, match=rf"{file}: cannot be written \(No space left on device\)"):
                run_member(folder, data=problem)
            status = Status.read(folder.runs)
            assert status is not None
            assert status.state == "failed"
            assert verify(full) > 0
        return run_member(folder, data=problem)

    for outcome in run_threads(folders, work):
        assert not isinstance(outcome, BaseException), outcome
    assert [Ending.of(folder) for folder in folders] == [Ending.of(folder) for folder in undisturbed]
    for folder in folders:
        assert verify(folder.runs / file) > 0


def test_a_status_that_cannot_be_written_does_not_hide_why_a_run_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = write_folders(tmp_path, make_agreement(nx.path_graph(2), run_config()))

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Status, "write", fail)
    results = run_all(folders, dirichlet_problem(2))
    assert all(result.finished for result in results)
