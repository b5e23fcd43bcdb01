"""What `depositum peer` says of mistakes: what the user typed, and what to do."""

import fcntl
import os
import socket
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from depositum.federation.member_folder import MemberFolder
from tests.support.peer_federations import Authority, make_agreement, run_config, write_folder, write_folders
from tests.support.small_runs import cli


def refused(folder: MemberFolder, data: Path) -> str:
    """The one line with which the command ends, after the line that says who this is."""
    done = cli("peer", str(folder.path), "--data", str(data))
    assert done.code == 2
    _, line = done.err.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    """A member's data."""
    np.savez(tmp_path / "mine.npz", x=np.eye(6), y=np.arange(6) % 3)
    return tmp_path / "mine.npz"


def test_data_is_named_by_the_option(tmp_path: Path, arrays: Path) -> None:
    folder = write_folders(tmp_path / "f", make_agreement(nx.path_graph(2), run_config()))[0]
    assert refused(folder, tmp_path / "nothing.npz") == f"--data: {tmp_path / 'nothing.npz'}: no such file or folder"
    np.savez(arrays, x=np.full((6, 2), np.nan), y=np.arange(6) % 3)
    assert refused(folder, arrays).startswith(f"--data: {arrays}: x has a value that is not finite")


def test_a_run_of_another_agreement_is_kept(tmp_path: Path, arrays: Path) -> None:
    """The command has no option for another folder, so the error does not mention one."""
    authority = Authority("test")
    agreement = make_agreement(nx.path_graph(2), run_config())
    folder = write_folder(tmp_path / "f", agreement, "m0", authority)
    folder.runs.mkdir()
    config = run_config(period=4)
    other = write_folder(tmp_path / "g", make_agreement(nx.path_graph(2), config), "m0", authority)
    with_config(other, arrays)
    (folder.runs / "config.toml").write_bytes((other.runs / "config.toml").read_bytes())
    reason = "holds another run (run.period is 4 there and 3 here)"
    assert refused(folder, arrays) == f"{folder.runs}: {reason}; move it away to begin anew, as all members must"


def with_config(folder: MemberFolder, arrays: Path) -> None:
    """Begin a run, which ends at once: its own port is in use."""
    address = folder.agreement.member(folder.name).address or ""
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        assert "address already in use" in refused(folder, arrays)


def test_two_processes_of_one_member(tmp_path: Path, arrays: Path) -> None:
    folder = write_folders(tmp_path / "f", make_agreement(nx.path_graph(2), run_config()))[0]
    folder.runs.mkdir()
    descriptor = os.open(folder.runs, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        assert refused(folder, arrays) == f"{folder.runs}: another process is using this folder; wait for it"
    finally:
        os.close(descriptor)
