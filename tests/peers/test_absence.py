"""Going on without a neighbour: exchanges take place at both ends or at neither, and J y = J ν over all members."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import networkx as nx
import pytest
import torch
from torch import Tensor

import depositum as dp
from depositum.engines import Callback, Loop
from depositum.engines.distributed import Subject
from depositum.federation.member_folder import MemberFolder
from depositum.peers import run_member
from depositum.peers.droppable import DroppableExchange
from depositum.peers.journal import Journal, Outcome
from depositum.runs.folder import read_history
from tests.support.peer_federations import (
    dirichlet_problem,
    make_agreement,
    run_all,
    run_config,
    run_threads,
    write_folders,
)
from tests.support.peer_processes import Slow


def config(**run: Any) -> dict[str, Any]:
    table = run_config(checkpoint_every=3, **run)
    table["algorithm"]["start"] = "local"
    return table


class Saved(Callback):
    """The trackers and momentum of a member at each of its checkpoints."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[Tensor, Tensor]] = {}

    def on_checkpoint(self, loop: Loop) -> None:
        tensors = loop.snapshot.tensors
        self.rows[loop.t] = tensors["y"].clone(), tensors["nu"].clone()


def check_invariant(saved: list[Saved]) -> int:
    """J y = J ν at every iteration that all members have saved; how many these are."""
    common = set.intersection(*(set(one.rows) for one in saved))
    for t in common:
        y, nu = (torch.stack([one.rows[t][k] for one in saved]).sum(0) for k in (0, 1))
        assert (y - nu).abs().max() <= 1e-12 * max(1.0, float(nu.abs().max())), t
    return len(common)


def outcomes(folder: MemberFolder) -> dict[str, dict[int, Outcome]]:
    journal = Journal(folder.runs, folder.agreement.neighbours(folder.name))
    journal.close()
    return journal._outcomes


def check_both_or_neither(folders: list[MemberFolder]) -> int:
    """Every exchange took place at both ends of its edge or at neither; how many were dropped."""
    by_name = {folder.name: outcomes(folder) for folder in folders}
    dropped = 0
    for a, b in folders[0].agreement.edges:
        decider, other = by_name[a][b], by_name[b][a]
        for number in decider.keys() | other.keys():
            took_place = decider.get(number) is Outcome.COMMITTED
            assert took_place == (other.get(number) is Outcome.SENT), (a, b, number)
            dropped += not took_place
    return dropped


def test_with_everyone_present_nothing_is_dropped(tmp_path: Path) -> None:
    """The trajectory is that of waiting, to the bit; each member has a history of its own model on its own data."""
    problem = dirichlet_problem(4)
    wait = make_agreement(nx.cycle_graph(4), config(), evaluate="none")
    drop = make_agreement(nx.cycle_graph(4), config(), evaluate="none", absent="drop", patience=60.0)
    waited = run_all(write_folders(tmp_path / "wait", wait), problem)
    folders = write_folders(tmp_path / "drop", drop)
    dropped = run_all(folders, problem)
    for one, other in zip(waited, dropped, strict=True):
        assert torch.equal(one.snapshot.tensors["x"], other.snapshot.tensors["x"])
    assert check_both_or_neither(folders) == 0
    for client, (folder, result) in enumerate(zip(folders, dropped, strict=True)):
        samples = problem.train.take(problem.trials[0].parts[client])
        model = problem.averaged_model(result.snapshot.tensors["x"][0], {})
        outputs = model(samples.inputs)
        loss = torch.nn.functional.cross_entropy(outputs, samples.targets).item()
        accuracy = (outputs.argmax(1) == samples.targets).double().mean().item()
        history = read_history(folder.runs)
        assert history["iteration"].tolist() == [0, 6, 12]
        assert history["own_loss"].iloc[-1] == pytest.approx(loss, abs=1e-12)
        assert history["own_accuracy"].iloc[-1] == accuracy
        assert history["train_loss"].isna().all()


@dataclass
class QuietEdge:
    """An edge whose neighbour has not said anything yet."""

    connected: bool
    lost: float = 0.0
    progress: float = 0.0


@pytest.mark.parametrize(
    ("edge", "alone", "late"),
    [
        (QuietEdge(connected=True), False, 110.0),  # since this exchange began
        (QuietEdge(connected=True, progress=104.0), False, 114.0),  # a piece of a long row is something
        (QuietEdge(connected=False, lost=95.0), False, 105.0),  # it has been away since before this phase
        (QuietEdge(connected=False, lost=20.0), False, 100.0),  # and was waited for in an earlier one
        (QuietEdge(connected=False, lost=20.0), True, 110.0),  # this member may be the one that is cut off
    ],
)
def test_a_neighbour_that_has_gone_is_waited_for_once(
    edge: QuietEdge, alone: bool, late: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of patience runs since it was lost, for an exchange that begins at 100 s."""
    absent: Any = None
    exchange = DroppableExchange(
        cast(Any, edge), absent, absent, absent, Subject(0, "x"), 0, True, 10.0, lambda: alone, began=100.0
    )
    clock = 100.0
    monkeypatch.setattr("depositum.peers.droppable.time.monotonic", lambda: clock)
    while not exchange._is_late():
        clock += 0.5
    assert clock == late + 0.5 * (late > 100.0)  # it must be longer than that


class StopAt(Slow):
    def __init__(self, t: int) -> None:
        super().__init__(0.0)
        self.t = t

    def on_step(self, loop: Loop) -> None:
        if loop.t == self.t:
            loop.stop_requested = True


def test_a_member_that_was_away_stands_still_and_returns(tmp_path: Path) -> None:
    """The others continue without it after their patience; it finds the phase they have come to, and returns."""
    problem = dirichlet_problem(3)
    agreement = make_agreement(nx.path_graph(3), config(steps=60), evaluate="none", absent="drop", patience=0.6)
    folders = write_folders(tmp_path, agreement)
    saved = {folder.name: Saved() for folder in folders}

    def work(folder: MemberFolder):  # type: ignore[no-untyped-def]
        own = saved[folder.name]
        if folder.name == "m1":
            first = run_member(folder, data=problem, callbacks=[StopAt(16), own])
            assert first.snapshot.t == 16
            time.sleep(3.0)
        return run_member(folder, data=problem, callbacks=[Slow(0.02), own])

    for outcome in run_threads(folders, work):
        assert not isinstance(outcome, BaseException), outcome
        assert outcome.finished
    assert check_both_or_neither(folders) >= 4
    assert check_invariant(list(saved.values())) >= 15
    taken = [n for n, outcome in outcomes(folders[1])["m0"].items() if outcome is Outcome.SENT]
    assert max(taken) >= 36, "it takes part again after its return"


@pytest.mark.parametrize(
    ("settings", "channel", "message"),
    [
        ({}, "exact", "sums of measures need all members"),
        ({"evaluate": "none"}, "sparse", "through the channel sparse"),
    ],
)
def test_what_cannot_be_dropped_is_refused(
    settings: dict[str, Any], channel: str, message: str, tmp_path: Path
) -> None:
    agreement = make_agreement(
        nx.path_graph(2), config() | {"network": {"channel": channel}}, absent="drop", patience=1.0, **settings
    )
    folder = write_folders(tmp_path, agreement)[0]
    with pytest.raises(dp.ConfigError, match=message):
        run_member(folder, data=dirichlet_problem(2))
