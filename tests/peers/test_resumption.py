"""Where members that restart continue: the newest choice from which nothing is missing and nothing is sent twice."""

import itertools
import random
from pathlib import Path

import networkx as nx
import pytest

from depositum.engines import Loop
from depositum.errors import RunError
from depositum.peers import run_member
from depositum.peers.member_run import LEFT
from depositum.peers.resumption import START, Candidate, Position, Starting, choose, possible
from tests.benchmarks.test_peers import BENCHMARKS, load
from tests.support.peer_federations import (
    dirichlet_problem,
    make_agreement,
    run_all,
    run_config,
    run_threads,
    write_folders,
)
from tests.support.peer_processes import Ending, Slow


def at(t: int, neighbours: str) -> Candidate:
    """A checkpoint after t iterations, each of which exchanges one message on every edge."""
    counts = dict.fromkeys(neighbours, max(t, 0))
    return Candidate(t, counts, counts)


def test_a_member_goes_back_as_far_as_its_running_neighbours_could_need() -> None:
    """So that a neighbour that loses its newest checkpoint later can still be served; otherwise as far as they do."""
    candidates = [at(20, "b"), at(10, "b"), at(START, "b")]
    assert possible(candidates, {"b": Position(needs=25, first=10, covered=10)}) == candidates[1:2]
    assert possible(candidates, {"b": Position(needs=25, first=15, covered=10)}) == candidates[:1]
    assert possible(candidates, {"b": Position(needs=25, first=0, covered=0)}) == candidates[2:]
    assert possible(candidates, {"b": Position(needs=15, first=15, covered=10)}) == []


def test_members_that_restart_agree_on_the_newest_consistent_checkpoints() -> None:
    """By brute force over all choices: consistent, the same for all who ask, and the newest such."""
    rng = random.Random(0)
    for _ in range(300):
        names = "abcd"[: rng.randint(2, 4)]
        edges = [(names[i], names[i + 1]) for i in range(len(names) - 1)]
        links = {n: "".join(y if x == n else x for x, y in edges if n in (x, y)) for n in names}
        known = {}
        for name in names:
            times = sorted(rng.sample([10, 20, 30], rng.randint(0, 2)), reverse=True)
            known[name] = Starting(1, tuple(at(t, links[name]) for t in [*times, START]), tuple(links[name]))
        consistent = [
            choice
            for choice in itertools.product(*(known[name].candidates for name in names))
            if all(
                choice[names.index(x)].sent[y] <= choice[names.index(y)].received[x]
                and choice[names.index(y)].sent[x] <= choice[names.index(x)].received[y]
                for x, y in edges
            )
        ]
        newest = [max(choice[k].t for choice in consistent) for k in range(len(names))]
        chosen = [choose(name, known) for name in names]
        assert [candidate.t for candidate in chosen if candidate] == newest


def test_what_could_matter_must_be_known_first() -> None:
    """A member with one candidate cannot be made to go back, so that what lies behind it does not matter."""
    a, start = Starting(1, (at(10, "b"), at(START, "b")), ("b",)), at(START, "ac")
    assert choose("a", {"a": a}) is None
    assert choose("a", {"a": a, "b": Starting(1, (at(10, "ac"), start), ("a", "c"))}) is None
    chosen = choose("a", {"a": a, "b": Starting(1, (start,), ("a", "c"))})
    assert chosen is not None
    assert chosen.t == START


def test_inconsistent_checkpoints_are_refused_with_what_to_restore() -> None:
    known = {"a": Starting(1, (at(10, "b"),), ("b",)), "b": Starting(1, (at(START, "a"),), ("a",))}
    with pytest.raises(RunError, match="'a' would have to go back further.*restore clients"):
        choose("a", known)


class StopAt(Slow):
    """Stops one member, as Ctrl-C does, at an iteration that is on nobody's schedule."""

    def __init__(self, t: int) -> None:
        super().__init__(0.0)
        self.t = t

    def on_step(self, loop: Loop) -> None:
        if loop.t == self.t:
            loop.stop_requested = True


def test_one_member_stops_and_continues_alone(tmp_path: Path) -> None:
    """The others wait; the end has the bytes of a run in which nobody stopped, in every member's folder."""
    agreement = make_agreement(nx.path_graph(3), run_config())
    problem = dirichlet_problem(3)
    undisturbed = write_folders(tmp_path / "undisturbed", make_agreement(nx.path_graph(3), run_config()))
    run_all(undisturbed, problem)
    folders = write_folders(tmp_path / "stopped", agreement)

    def work(folder):  # type: ignore[no-untyped-def]
        if folder.name == "m1":
            first = run_member(folder, data=problem, callbacks=[StopAt(5)])
            assert not first.finished
            assert first.snapshot.t == 5
            second = run_member(folder, data=problem, callbacks=[StopAt(9)])
            assert second.snapshot.t == 9
        return run_member(folder, data=problem)

    for outcome in run_threads(folders, work):
        assert not isinstance(outcome, BaseException), outcome
    assert [Ending.of(f) for f in folders] == [Ending.of(f) for f in undisturbed]
    assert all((folder.runs / LEFT).exists() for folder in folders)
    again = run_member(folders[1], data=problem)  # alone: nothing is left to do
    assert again.finished


@pytest.mark.slow
def test_members_that_are_killed_end_in_the_same_bytes(tmp_path: Path) -> None:
    """A slice of `benchmarks/peer_restarts.py`: real processes, SIGKILL, lost and truncated checkpoints."""
    benchmark = load(BENCHMARKS / "peer_restarts.py", "peer_restarts")
    setting = benchmark.Setting(tmp_path, members=3, steps=36, seed=5)
    found = benchmark.disturb(setting, benchmark.undisturbed(setting), kills=2, number=1)
    assert not found.failure
    assert found.kills == 2
