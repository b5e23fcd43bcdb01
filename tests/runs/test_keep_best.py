"""The averaged model of the best evaluation: in memory, in a run's folder, after a resumption."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import depositum as dp
from depositum.engines import Callback, EngineSettings, Loop, Simulator, Snapshot
from depositum.errors import RunError
from depositum.metrics import History, MetricSettings
from tests.support.seeded_problems import CLASSES, D_IN, N, seeded_problem

STEPS = 24


def small_model() -> nn.Module:
    """A model with buffers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(D_IN, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, CLASSES))


def make_loop(
    *callbacks: Callback,
    folder: Path | None = None,
    seeds: tuple[int, ...] = (0, 3),
    snapshot: Snapshot | None = None,
    history: History | None = None,
    functions: Any = None,
) -> Loop:
    engine = Simulator(
        seeded_problem(seeds, model=small_model()),
        dp.ring(N),
        dp.Depositum(0.1, 0.5),
        batch_size=4,
        settings=EngineSettings("cpu", "float32", backend="loop", compile="never"),
    )
    return Loop(
        engine,
        STEPS,
        evaluate_every=4,
        checkpoint_every=8,
        metrics=MetricSettings(functions=functions or {}),
        callbacks=callbacks,
        snapshot=snapshot,
        history=history,
        folder=folder,
    )


class Averages(Callback):
    """Keeps every averaged model, by trial and iteration."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], torch.Tensor] = {}
        self.buffers: dict[tuple[int, int], dict[str, torch.Tensor]] = {}

    def on_evaluation(self, loop: Loop, records: list[dict[str, Any]]) -> None:
        for k, record in enumerate(records):
            key = record["trial"], loop.t
            self.rows[key] = loop.average.x[k].clone()
            self.buffers[key] = {name: buffer[k].clone() for name, buffer in loop.average.buffers.items()}


@pytest.mark.parametrize("monitor", ["test_loss", "test_accuracy", "train_loss"])
def test_each_seed_has_the_model_of_its_own_best_evaluation(monitor: str, tmp_path: Path) -> None:
    """In memory and in the files; of equal values, the first."""
    keep, averages = dp.KeepBest(monitor), Averages()
    loop = make_loop(keep, averages, folder=tmp_path)
    loop.run()
    for seed in (0, 3):
        frame = loop.history.frame.query("seed == @seed").set_index("iteration")[monitor]
        t = int(frame.idxmax() if monitor == "test_accuracy" else frame.idxmin())
        best = keep.best[seed]
        assert (best.iteration, best.value) == (t, frame[t])
        assert torch.equal(best.row, averages.rows[seed, t])
        model, written = keep.model(seed), load_file(tmp_path / f"best{'.seed-3' if seed else ''}.safetensors")
        assert not model.training
        assert written.keys() == model.state_dict().keys()
        assert all(torch.equal(written[name], tensor) for name, tensor in model.state_dict().items())
        assert torch.equal(model[1].running_mean, averages.buffers[seed, t]["1.running_mean"])  # type: ignore[index]
    assert torch.equal(next(keep.model().parameters()), next(keep.model(0).parameters()))


def falling(*values: float) -> Any:
    """A measure with prescribed values; the first call is the dry run."""
    remaining = iter([0.0, *values])
    return lambda outputs, targets: next(remaining)


def test_the_best_model_survives_a_resumption(tmp_path: Path) -> None:
    """Its evaluation is before the interruption: the resumed run neither loses it nor replaces it by a worse one."""
    first = make_loop(
        dp.KeepBest("score", mode="max"), folder=tmp_path, seeds=(0,), functions={"score": falling(1, 5, 2, 9)}
    )
    snapshot = first.run(8)
    before = (tmp_path / "best.safetensors").read_bytes()
    keep = dp.KeepBest("score", mode="max")
    second = make_loop(
        keep,
        folder=tmp_path,
        seeds=(0,),
        snapshot=snapshot,
        history=first.history,
        functions={"score": falling(3, 4, 4, 4)},
    )
    second.run()
    assert (keep.best[0].iteration, keep.best[0].value) == (4, 5.0)
    assert (tmp_path / "best.safetensors").read_bytes() == before
    written = load_file(tmp_path / "best.safetensors")
    assert all(torch.equal(written[name], tensor) for name, tensor in keep.model().state_dict().items())


def test_a_file_by_another_criterion_is_not_overwritten(tmp_path: Path) -> None:
    make_loop(dp.KeepBest("train_loss"), folder=tmp_path).run(4)
    before = (tmp_path / "best.safetensors").read_bytes()
    with pytest.raises(RunError, match="holds the best model by 'train_loss', not by 'test_loss'; move it away"):
        make_loop(dp.KeepBest("test_loss"), folder=tmp_path).run(4)
    assert (tmp_path / "best.safetensors").read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "])
def test_a_damaged_file_is_reported_in_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "best.safetensors").write_bytes(content)
    with pytest.raises(RunError, match="does not hold a best model of this run") as error:
        make_loop(dp.KeepBest("test_loss"), folder=tmp_path).run(4)
    assert "\n" not in str(error.value)
    assert (tmp_path / "best.safetensors").read_bytes() == content


def test_a_seed_that_was_not_kept_is_refused() -> None:
    keep = dp.KeepBest("test_loss")
    with pytest.raises(dp.ConfigError, match="seed: None given, but no evaluation"):
        keep.model()
    make_loop(keep).run(4)
    with pytest.raises(dp.ConfigError, match="seed: 7 given, but no evaluation of this seed was kept; .* of 0, 3"):
        keep.model(7)
