"""Stopping early: when it happens, that it does not depend on interruptions, and which measures are refused."""

from typing import Any

import pytest
import torch

import depositum as dp
from depositum.engines import Callback, Criterion, EngineSettings, Loop, Simulator, Snapshot
from depositum.metrics import History, MetricSettings
from tests.support.seeded_problems import N, seeded_problem

STEPS = 40


class Scripted:
    """A user-defined measure with prescribed values, one per evaluation of a trial."""

    def __init__(self, *values: float) -> None:
        self.values = list(values)
        self.calls = -1  # the dry run

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> float:
        self.calls += 1
        return self.values[max(self.calls - 1, 0)] if self.calls else self.values[0]


def make_loop(
    *callbacks: Callback,
    function: Any = None,
    seeds: tuple[int, ...] = (0,),
    snapshot: Snapshot | None = None,
    history: History | None = None,
    **settings: Any,
) -> Loop:
    engine = Simulator(
        seeded_problem(seeds),
        dp.ring(N),
        dp.Depositum(0.1, 0.5),
        batch_size=4,
        settings=EngineSettings("cpu", "float64", backend="vmap", compile="never"),
    )
    metrics = MetricSettings(functions={"score": function} if function else {}, **settings)
    return Loop(
        engine,
        STEPS,
        evaluate_every=4,
        checkpoint_every=6,
        metrics=metrics,
        callbacks=callbacks,
        snapshot=snapshot,
        history=history,
    )


def test_a_run_stops_after_evaluations_without_improvement() -> None:
    """The best at t = 8, two evaluations without a better one, and a final snapshot at the iteration of the second."""
    stopping = dp.EarlyStopping("score", patience=2, mode="max")
    loop = make_loop(stopping, function=Scripted(0.1, 0.2, 0.5, 0.4, 0.5, 0.9))
    snapshot = loop.run()
    assert (stopping.best, stopping.best_iteration, stopping.stopped_at) == (0.5, 8, 16)
    assert snapshot.t == loop.t == 16
    assert [record["iteration"] for record in loop.history.records] == [0, 4, 8, 12, 16]
    assert loop.stop_reason == "score has not improved since iteration 8 (0.5) in 2 evaluations"


def test_an_improvement_must_exceed_min_delta() -> None:
    stopping = dp.EarlyStopping("score", patience=2, min_delta=0.15, mode="min")
    make_loop(stopping, function=Scripted(1.0, 0.9, 0.8, 0.7, 0.68, 0.5)).run()
    assert (stopping.best, stopping.best_iteration, stopping.stopped_at) == (0.8, 8, 16)


def test_the_mean_over_seeds_decides_for_all() -> None:
    """Values alternate between the two seeds: one improves throughout, their mean does not."""
    stopping = dp.EarlyStopping("score", patience=2, mode="max")
    loop = make_loop(stopping, function=Scripted(1.0, 1.0, 1.1, 0.8, 1.2, 0.7, 9.0, 9.0), seeds=(0, 3))
    assert loop.run().t == 8
    assert (stopping.best, stopping.stopped_at) == (1.0, 8)


def test_a_measure_with_its_own_stride_counts_its_own_evaluations() -> None:
    """Costly measures are at every second evaluation: patience 1 ends at t = 8 at the earliest, not at 4."""
    stopping = dp.EarlyStopping("zeta2", patience=1, min_delta=1e9, mode="min")
    loop = make_loop(stopping, costly_every=8)
    assert loop.run().t == 8


@pytest.mark.parametrize("interrupted_at", [3, 8, 14, 20])
def test_an_interrupted_run_stops_at_the_same_iteration(interrupted_at: int) -> None:
    """Patience is counted from the history, not from the resumption."""

    def stopping() -> dp.EarlyStopping:
        return dp.EarlyStopping("train_loss", patience=3, min_delta=0.09)

    expected = make_loop(stopping())
    final = expected.run()
    assert final.t == 24
    first = make_loop(stopping())
    snapshot = first.run(interrupted_at)
    second = make_loop(again := stopping(), snapshot=snapshot, history=first.history)
    assert second.run().t == final.t == again.stopped_at
    assert torch.equal(second.snapshot.tensors["x"], final.tensors["x"])


def test_a_stopped_run_stays_stopped_and_continues_with_more_patience() -> None:
    """Resumed with the same criterion it takes no further iteration."""
    first = make_loop(dp.EarlyStopping("train_loss", patience=2, min_delta=1.0))
    snapshot = first.run()
    assert snapshot.t == 8
    again = make_loop(
        dp.EarlyStopping("train_loss", patience=2, min_delta=1.0), snapshot=snapshot, history=first.history
    )
    assert again.run().t == 8
    assert len(again.history.records) == 3
    longer = make_loop(
        dp.EarlyStopping("train_loss", patience=5, min_delta=1.0), snapshot=snapshot, history=first.history
    )
    assert longer.run().t == 20


def test_values_that_are_not_defined_are_no_improvement() -> None:
    """NaN at t = 0 neither becomes the best value nor ends the run with an error."""
    nan = float("nan")
    stopping = dp.EarlyStopping("score", patience=2, mode="min")
    with pytest.warns(RuntimeWarning, match="not finite"):
        make_loop(stopping, function=Scripted(nan, 3.0, 2.0, nan, 2.5, 2.5)).run()
    # An evaluation without a value does not count.
    assert (stopping.best, stopping.best_iteration, stopping.stopped_at) == (2.0, 8, 20)


@pytest.mark.parametrize("kind", [dp.EarlyStopping, dp.KeepBest])
@pytest.mark.parametrize(
    ("monitor", "settings", "message"),
    [
        ("tset_loss", {}, "monitor: 'tset_loss' given; no measure has this name; did you mean 'test_loss'"),
        ("scroe", {}, "monitor: 'scroe' given; no measure has this name; did you mean 'score'"),
        ("iteration", {}, "monitor: 'iteration' given; no measure has this name"),
        ("stationarity", {}, "monitor: 'stationarity' given, but costly_every = 0: it is never evaluated"),
        ("gradient_error_mean", {}, "monitor: 'gradient_error_mean' given, but costly_every = 0"),
        ("train_loss", {"train_every": 0}, "monitor: 'train_loss' given, but train_every = 0"),
        ("score", {}, "mode: 'auto' given, but 'score' is user-defined; it must be 'min' or 'max'"),
    ],
)
def test_a_measure_that_is_not_evaluated_is_refused_at_start(
    kind: Any, monitor: str, settings: dict[str, Any], message: str
) -> None:
    """When the loop is made, before an iteration is run or a folder is written to."""
    with pytest.raises(dp.ConfigError, match=message):
        make_loop(kind(monitor), function=Scripted(0.0), **settings)


@pytest.mark.parametrize("kind", [dp.EarlyStopping, dp.KeepBest])
def test_a_measure_without_data_or_method_for_it_is_refused(kind: Any) -> None:
    """Without test data; and of a method without a tracker, at the first evaluation."""
    pairs = [(torch.randn(8, 2), torch.randn(8, 1)) for _ in range(3)]
    settings: dict[str, Any] = {"steps": 4, "progress": False, "device": "cpu"}
    with pytest.raises(dp.ConfigError, match="monitor: 'test_loss' given, but there is no test data; use 'train_loss'"):
        dp.fit(torch.nn.Linear(2, 1), pairs, callbacks=[kind()], **settings)
    with pytest.raises(dp.ConfigError, match="the loss 'mse' does not define an accuracy"):
        dp.fit(torch.nn.Linear(2, 1), pairs, test=pairs[0], callbacks=[kind("test_accuracy")], **settings)
    method = dp.algorithm("d-psgd")
    with pytest.raises(dp.ConfigError, match="monitor: 'consensus_y' given, but it is not defined for this method"):
        dp.fit(torch.nn.Linear(2, 1), pairs, algorithm=method, callbacks=[kind("consensus_y")], **settings)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"patience": 0}, "patience: 0 given; it must be a whole number ≥ 1"),
        ({"patience": 2.5}, "patience: 2.5 given"),
        ({"patience": True}, "patience: True given"),
        ({"min_delta": -1.0}, "min_delta: -1.0 given; it must be a number ≥ 0"),
        ({"min_delta": "small"}, "min_delta: 'small' given"),
        ({"mode": "lowest"}, "mode: 'lowest' given; it can be 'auto', 'min' or 'max'"),
        ({"monitor": None}, "monitor: None given; it must be the name of a column"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(dp.ConfigError, match=message):
        dp.EarlyStopping(**arguments)


def test_auto_mode_knows_accuracies_from_losses() -> None:
    assert Criterion("test_accuracy", "auto").better(0.9, 0.8)
    assert Criterion("test_loss", "auto").better(0.8, 0.9)
    assert not Criterion("test_loss", "auto").better(float("nan"), None)
