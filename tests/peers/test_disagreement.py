"""Members that have not agreed on the same thing: nobody trains, and nobody waits for ever. Versions and clocks."""

import time
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from depositum.errors import DepositumError
from depositum.federation.member_folder import MemberFolder
from depositum.peers import frames, hello, run_member
from depositum.peers.frames import PROTOCOLS
from depositum.peers.hello import Introduction
from depositum.runs.execution import RunResult
from tests.support.peer_federations import (
    Authority,
    dirichlet_problem,
    free_ports,
    make_agreement,
    run_config,
    run_threads,
    write_folder,
)


def test_all_members_learn_that_two_of_them_disagree(tmp_path: Path) -> None:
    """On a path of four, the last member has accepted another agreement than its neighbour: each ends with one line.

    Also the first one, which has begun by then, as far as one can without the others.
    """
    ports, authority = free_ports(4), Authority("test")
    agreement = make_agreement(nx.path_graph(4), run_config(), ports)
    other = make_agreement(nx.path_graph(4), run_config(steps=13), ports)
    folders = [write_folder(tmp_path / f"m{i}", agreement, f"m{i}", authority) for i in range(3)]
    folders.append(write_folder(tmp_path / "m3", other, "m3", authority))
    problem = dirichlet_problem(4)

    def connected(folder: MemberFolder, neighbour: str) -> bool:
        log = folder.runs / "logs" / f"{folder.name}.log"
        return log.exists() and f"connected with {neighbour}" in log.read_text()

    def work(folder: MemberFolder) -> RunResult:
        while folder.name == "m3" and not (connected(folders[0], "m1") and connected(folders[1], "m2")):
            time.sleep(0.02)
        return run_member(folder, data=problem)

    errors = run_threads(folders, work)
    assert all(isinstance(error, DepositumError) for error in errors), errors
    reason = "run.steps differ from the agreement of"
    assert [reason in str(error) for error in errors] == [True] * 4
    assert str(errors[0]) == str(errors[1])
    assert str(errors[0]).startswith("m2 stopped: run.steps: ")
    assert not any((folder.runs / "history.csv").exists() for folder in folders[1:])


class Told:
    """Two introductions of one agreement, and what each end logs."""

    def __init__(self) -> None:
        self.agreement = make_agreement(nx.path_graph(2), run_config(), [10_001, 10_002])
        self.lines: list[str] = []
        self.here = Introduction(self.agreement, "m0", self.lines.append)
        self.there = Introduction(self.agreement, "m1", lambda _: None)

    def check(self, **changes: Any) -> None:
        self.here.check("m1", {**self.there.own(), **changes}, fatal=True)


def test_releases_speak_the_highest_protocol_that_both_know(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    told.check(protocols=[*PROTOCOLS, 7, 8])
    assert told.here.protocol == {"m1": max(PROTOCOLS)}
    monkeypatch.setattr(hello, "PROTOCOLS", (1, 2, 3))
    told.check(protocols=[2, 3, 4])
    assert told.here.protocol == {"m1": 3}
    for protocols in ([4, 5], [], "1", None):
        with pytest.raises(frames.Refused, match=r"protocol: m1 speaks .*, and this release \[1, 2, 3\]; update one"):
            told.check(protocols=protocols)


def test_a_wrong_clock_and_other_versions_are_reported() -> None:
    """By how much, and at which end it is ahead; a few seconds are not."""
    told = Told()
    now = told.there.own()["time"]
    told.check(time=now + 5)
    assert told.lines == []
    told.check(time=now - 3600)
    told.check(time=now + 7200)
    told.check(versions={"depositum": "9.9", "torch": told.there.own()["versions"]["torch"]})
    behind, ahead, version = told.lines
    assert "the clock of m1 is 3600 s behind the clock here" in behind
    assert "the clock of m1 is 7200 s ahead of the clock here" in ahead
    assert version.startswith("m1 runs depositum 9.9, this member ")
