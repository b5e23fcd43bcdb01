"""The loop: running to an iteration before the end, and resuming from a snapshot."""

from typing import Any

import pytest
import torch

import depositum as dp
from depositum.engines import Callback, EngineSettings, Loop, Simulator, Snapshot
from depositum.metrics import History, MetricSettings
from tests.support.seeded_problems import N, seeded_problem

STEPS = 20


class Recorder(Callback):
    """Records which callback methods are called at which iterations."""

    def __init__(self) -> None:
        self.evaluated: list[int] = []
        self.saved: list[int] = []
        self.ended: list[int] = []

    def on_evaluation(self, loop: Loop, records: list[dict[str, object]]) -> None:
        self.evaluated.append(loop.t)

    def on_checkpoint(self, loop: Loop) -> None:
        assert loop.snapshot.t == loop.t
        self.saved.append(loop.t)

    def on_end(self, loop: Loop) -> None:
        self.ended.append(loop.t)


def make_loop(*callbacks: Callback, snapshot: Snapshot | None = None, history: History | None = None) -> Loop:
    engine = Simulator(
        seeded_problem((0, 3)),
        dp.ring(N),
        dp.Depositum(0.1, 0.5),
        period=3,
        batch_size=4,
        settings=EngineSettings("cpu", "float64", backend="vmap", compile="never"),
    )
    return Loop(
        engine,
        STEPS,
        evaluate_every=4,
        checkpoint_every=6,
        metrics=MetricSettings(costly_every=8),
        callbacks=callbacks,
        snapshot=snapshot,
        history=history,
    )


def without_seconds(history: History) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key != "seconds"} for record in history.records]


@pytest.mark.parametrize(
    ("until", "evaluated", "saved"),
    [(0, [0], [0]), (7, [0, 4], [6, 7]), (12, [0, 4, 8, 12], [6, 12]), (50, [0, 4, 8, 12, 16, 20], [6, 12, 18, 20])],
)
def test_a_loop_runs_until_an_iteration_and_saves_there(until: int, evaluated: list[int], saved: list[int]) -> None:
    """The last of these iterations is saved, but it is not the last of the run: it has no evaluation of its own."""
    recorder = Recorder()
    snapshot = make_loop(recorder).run(until)
    end = min(until, STEPS)
    assert snapshot.t == end
    assert (recorder.evaluated, recorder.saved, recorder.ended) == (evaluated, saved, [end])


@pytest.mark.parametrize("stops", [(0,), (7,), (6, 12), (3, 4, 19)])
def test_a_run_in_parts_equals_an_uninterrupted_one(stops: tuple[int, ...]) -> None:
    """Each part is a new loop with a new engine, from the snapshot and the history of the one before."""
    expected = make_loop()
    final = expected.run()
    snapshot: Snapshot | None = None
    history: History | None = None
    for until in (*stops, None):
        loop = make_loop(snapshot=snapshot, history=history)
        snapshot, history = loop.run(until), loop.history
    assert snapshot is not None
    assert history is not None
    assert (snapshot.seeds, snapshot.t, snapshot.costs) == (final.seeds, STEPS, final.costs)
    assert snapshot.tensors.keys() == final.tensors.keys()
    assert all(torch.equal(snapshot.tensors[name], tensor) for name, tensor in final.tensors.items())
    assert without_seconds(history) == without_seconds(expected.history)


def test_a_request_to_stop_takes_effect_before_until() -> None:
    """The iteration at which the loop stops is saved."""
    recorder = Recorder()

    class Stop(Callback):
        def on_step(self, loop: Loop) -> None:
            loop.stop_requested = loop.t == 5

    assert make_loop(recorder, Stop()).run(10).t == 5
    assert recorder.saved == [5]
