"""What a neighbour sends that must not be used is refused by name and logged; the state is what it was before."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

from depositum.engines.distributed import Subject
from depositum.federation.member_folder import MemberFolder
from depositum.peers import run_member
from depositum.peers.frames import HEAD, Kind, frame
from tests.support.peer_federations import (
    Outcome,
    dirichlet_problem,
    make_agreement,
    run_all,
    run_config,
    run_threads,
    write_folders,
)
from tests.support.peer_processes import Ending
from tests.support.peer_strangers import Neighbour, place_of

N = 3
#: What members compare of their code.
CODE = "compare model and network"
D = dirichlet_problem(N).layout.size
X0 = Subject(0, "x")


def folders_of(root: Path) -> list[MemberFolder]:
    """Three members on a path, whose first message is a row: they start locally and share no measures."""
    config = run_config()
    config["algorithm"]["start"] = "local"
    return write_folders(root, make_agreement(nx.path_graph(N), config, evaluate="none"))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Ending]:
    folders = folders_of(tmp_path_factory.mktemp("undisturbed"))
    run_all(folders, dirichlet_problem(N))
    return [Ending.of(folder) for folder in folders]


@contextmanager
def waiting_for_m2(folders: list[MemberFolder]) -> Iterator[None]:
    """Members 0 and 1 train and wait for member 2, which comes at the end; all must end well."""
    problem, outcomes = dirichlet_problem(N), dict[str, list[Outcome]]()

    def train(some: list[MemberFolder]) -> None:
        for one, outcome in zip(some, run_threads(some, lambda f: run_member(f, data=problem)), strict=True):
            outcomes[one.name] = [outcome]

    thread = threading.Thread(target=train, args=(folders[:2],), daemon=True)
    thread.start()
    yield
    train(folders[2:])
    thread.join(60)
    for name in ("m0", "m1", "m2"):
        assert not isinstance(outcomes[name][0], BaseException), outcomes[name]


def row(**changes: float) -> bytes:
    values = np.linspace(-1, 1, D)
    for key, value in changes.items():
        values[int(key[1:])] = value
    return values.tobytes()


def starting(neighbours: list[str] | None = None, **counts: dict[str, int]) -> dict[str, Any]:
    """What a member that starts tells of its checkpoints, with changes."""
    candidate = {"t": 0, "sent": {"m1": 0}, "received": {"m1": 0}, **counts}
    return {"version": 1 << 61, "candidates": [candidate], "neighbours": neighbours or []}


Act = Callable[[Neighbour], None]
CASES: dict[str, tuple[Act, str]] = {
    "NaN": (lambda n: n.send(0, row(_3=float("nan")), X0), "x has values that are not finite"),
    "infinity": (lambda n: n.send(0, row(_0=float("inf")), X0), "x has values that are not finite"),
    "too short": (lambda n: n.send(0, row()[:-8], X0), f"it has {8 * D - 8} bytes; {8 * D} are agreed"),
    "too long": (lambda n: n.send(0, row() + bytes(8), X0), f"it has {8 * D + 8} bytes; {8 * D} are agreed"),
    "far too large": (lambda n: n.send(0, b"", X0, size=1 << 40), r"has 1099511627776 bytes"),
    "out of turn": (lambda n: n.send(5, row(), X0), "sent message 5 out of turn; message 0 is the next one"),
    "repeated": (
        lambda n: (n.send(0, row(), X0), n.send(0, row(), X0))[0],
        "sent message 0 repeated; message 1 is the next one",
    ),
    "another variable": (lambda n: n.send(0, row(), Subject(0, "y")), "it is y of phase 0, not x of phase 0"),
    "another phase": (lambda n: n.send(0, row(), Subject(3, "x")), "it is x of phase 3, not x of phase 0"),
    "unknown frame": (lambda n: n.socket.sendall(HEAD.pack(77, 0)), "unknown kind"),
    "a frame without end": (lambda n: n.socket.sendall(HEAD.pack(Kind.COVERED, 1 << 31)), "at most 4096 are allowed"),
    "not JSON": (lambda n: n.socket.sendall(HEAD.pack(Kind.COVERED, 3) + b"[[["), "not JSON"),
    "not a number": (lambda n: n.say(Kind.COVERED, {"before": "1e9"}), "not a whole number"),
    "covers what was not sent": (lambda n: n.say(Kind.COVERED, {"before": 10**9}), "were not sent"),
    "covers what it needs": (
        lambda n: n.say(Kind.POSITION, {"needs": 0, "first": 0, "covered": 1, "done": False}),
        "whose covered messages it still needs",
    ),
    "checkpoints of nobody": (
        lambda n: n.say(Kind.CHECKPOINTS, {"m0": starting(sent={}, received={})}),
        "with a candidate that is not one",
    ),
    "checkpoints of strangers": (
        lambda n: n.say(Kind.CHECKPOINTS, {"m0": starting(neighbours=["m7"])}),
        "with neighbours that were not agreed",
    ),
    "a second hello": (lambda n: n.introduce(), "a second HELLO"),
}


def test_bad_messages_are_refused_and_leave_the_state_untouched(tmp_path: Path, expected: list[Ending]) -> None:
    """Each case of PEERS 5 in turn, then the real member: the end has the bytes of a run without any of it.

    Breaks if a bad message is counted or used, if what follows one is, or if a refusal ends the run.
    """
    folders = folders_of(tmp_path)
    with waiting_for_m2(folders):
        for name, (act, reason) in CASES.items():
            if name == "repeated":
                continue  # its first message is good, and would be used
            neighbour = _running(folders)
            act(neighbour)
            assert reason in neighbour.refused(), name
            neighbour.close()
    log = (folders[1].runs / "logs" / "m1.log").read_text()
    for name, (_, reason) in CASES.items():
        assert reason in log or name == "repeated", name
    assert [Ending.of(folder) for folder in folders] == expected


def test_a_repeated_message_is_refused(tmp_path: Path) -> None:
    """Once it was used, it is not used again; its receiver then ends the run of those who wait."""
    folders = folders_of(tmp_path)
    problem, outcomes = dirichlet_problem(N), list[Outcome]()

    def train() -> None:
        outcomes.extend(run_threads(folders[:2], lambda f: run_member(f, data=problem)))

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    neighbour = _running(folders)
    act, reason = CASES["repeated"]
    act(neighbour)
    assert reason in neighbour.refused()
    neighbour.close()
    neighbour = _running(folders)
    neighbour.say(Kind.STOPPED, {"reason": "m2 stopped: enough"})
    thread.join(60)
    assert [str(outcome) for outcome in outcomes] == ["m2 stopped: enough"] * 2
    neighbour.close()


def test_a_neighbour_with_other_code_or_another_agreement_is_named(tmp_path: Path, expected: list[Ending]) -> None:
    """What differs is named by key; the members that wait for it go on waiting, and train with the right one.

    Breaks if what cannot be compared ends their run, or if what a neighbour says makes a long line, or several.
    """
    folders = folders_of(tmp_path)
    with waiting_for_m2(folders):
        _running(folders).close()
        neighbour = _connect(folders)
        facts = neighbour.hello["facts"]
        code = {**facts, CODE: {**facts[CODE], "outputs": [0.0] * 6}}
        other = {**neighbour.hello["agreement"]}
        other["run"] = {**other["run"], "steps": 99}
        for changes, reason in (
            ({"facts": code}, "outputs on the same numbers differ between m1 and m2"),
            ({"digest": "0" * 64, "agreement": other}, "run.steps differ from the agreement of m2 (12 here, 99 there)"),
            ({"protocols": [99]}, "speaks [99], and this release [1]"),
            ({"facts": "none"}, "does not say what it has"),
            ({"facts": {**facts, "data": {}}}, "sent a HELLO that cannot be compared"),
            ({"time": 10**400}, "cannot be compared"),
            ({"digest": "0" * 64, "agreement": {**other, "run": nested(700)}}, ""),  # for some reason
            ({"digest": "0" * 64, "agreement": {"run\n" * 10_000: 1}}, "differ from the agreement of m2"),
            ({"protocols": ["1" * 100_000]}, "and this release [1]"),
        ):
            neighbour.introduce(**changes)
            assert reason in neighbour.refused()
            neighbour.close()
            neighbour = _connect(folders)
        neighbour.close()
    lines = (folders[1].runs / "logs" / "m1.log").read_text().splitlines()
    assert all(len(line) < 1200 and line[:4].isdigit() for line in lines)
    assert [Ending.of(folder) for folder in folders] == expected


def test_messages_that_have_not_left_cannot_be_covered(tmp_path: Path, expected: list[Ending]) -> None:
    """Breaks if a neighbour makes a member forget what it has not sent, or end its run."""
    folders = folders_of(tmp_path)
    with waiting_for_m2(folders):
        neighbour = _running(folders)
        while ",m2," not in (folders[1].runs / "sent.csv").read_text():
            time.sleep(0.01)
        neighbour.close()
        neighbour = _connect(folders)
        neighbour.introduce()
        position = {"needs": 0, "first": 0, "covered": 0, "done": False}
        neighbour.socket.sendall(frame(Kind.POSITION, position) + frame(Kind.COVERED, {"before": 1}))
        assert "sent a COVERED of messages that were not sent" in neighbour.refused()
        neighbour.close()
    assert [Ending.of(folder) for folder in folders] == expected


def nested(depth: int) -> Any:
    """Lists in lists, so deep that they can be read, but hardly compared."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def _running(folders: list[MemberFolder]) -> Neighbour:
    """As member 2, when member 1 has begun to train with it and waits for its first row."""
    neighbour = _connect(folders)
    neighbour.introduce()
    neighbour.position()
    neighbour.receive(Kind.POSITION)
    return neighbour


def _connect(folders: list[MemberFolder]) -> Neighbour:
    """As member 2, as soon as member 1 listens."""
    while True:
        try:
            return Neighbour(folders[2], place_of(folders[1]))
        except ConnectionRefusedError:
            continue
