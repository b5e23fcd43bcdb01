"""Keeping the averaged model of the best evaluation, besides that of the last iteration."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from depositum.engines import Callback, Criterion, Engine, Loop, Mode
from depositum.errors import ConfigError, RunError
from depositum.layout import Layout
from depositum.metrics import MetricSettings
from depositum.models import ExportableModel
from depositum.problem import Problem
from depositum.runs import tensor_file
from depositum.runs.folder import seed_file_name

#: The file of the best model of the first seed, in a run's folder.
BEST = "best.safetensors"


@dataclass(frozen=True)
class Best:
    """The averaged model of an evaluation: x̄ `[d]` and its buffers, on the host; and by which criterion it is best."""

    iteration: int
    value: float
    row: Tensor
    buffers: dict[str, Tensor]
    monitor: str
    mode: Mode


class KeepBest(Callback):
    """Keeps the averaged model of the best evaluation so far, of each seed by its own values.

    In a run with a folder it is also written there whenever it improves, by parameter name like `model.safetensors`: to
    `best.safetensors`, and `best.seed-N.safetensors` for other seeds than the first. A resumed run compares with what
    the file holds. Among processes every rank keeps it, and those that write the run's folder write it.

    Parameters
    ----------
    monitor
        The measure: a column of the history, such as `"test_loss"`, `"test_accuracy"`, or a user-defined one.
    mode
        `"min"` or `"max"`; `"auto"` knows it for the measures of the package, but not for user-defined ones.

    Attributes
    ----------
    best
        The best evaluation so far, by seed: its `iteration` and `value`, and the model as a row.

    >>> import torch, depositum as dp
    >>> data = [(torch.randn(50, 4), torch.randint(0, 2, (50,))) for _ in range(3)]
    >>> keep = dp.KeepBest("train_loss")
    >>> result = dp.fit(torch.nn.Linear(4, 2), data, steps=20, callbacks=[keep], progress=False)
    >>> bool(keep.best[0].value == result.history["train_loss"].min())
    True
    >>> keep.model()
    Linear(in_features=4, out_features=2, bias=True)
    """

    def __init__(self, monitor: str = "test_loss", *, mode: Mode = "auto") -> None:
        self._criterion = Criterion(monitor, mode)
        self.monitor, self.mode = monitor, mode
        self.best: dict[int, Best] = {}
        self._problem: Problem | None = None

    def model(self, seed: int | None = None) -> nn.Module:
        """The best averaged model of a seed (default: the first), in evaluation mode, on the CPU."""
        chosen = next(iter(self.best), None) if seed is None else seed
        if self._problem is None or chosen is None or chosen not in self.best:
            known = f"; there is one of {', '.join(map(str, self.best))}" if self.best else ""
            raise ConfigError("seed", f"{chosen!r} given, but no evaluation of this seed was kept{known}")
        best = self.best[chosen]
        return self._problem.averaged_model(best.row, best.buffers).eval()

    def check(self, engine: Engine, metrics: MetricSettings) -> None:
        self._criterion.check(engine, metrics)

    def on_start(self, loop: Loop) -> None:
        self._problem = loop.engine.problem
        for seed in loop.snapshot.seeds:
            if loop.t == 0:  # not a later part of a run
                self.best.pop(seed, None)
            if loop.folder is not None and (path := self._path(loop, seed)).exists():
                self.best[seed] = self._read(path, self._problem)

    def on_evaluation(self, loop: Loop, records: list[dict[str, Any]]) -> None:
        self._criterion.check_evaluated(loop, records)
        for index, record in enumerate(records):
            label, value = record["trial"], record.get(self.monitor)
            known = self.best.get(label)
            if value is None or not self._criterion.better(value, known.value if known else None):
                continue
            buffers = {name: buffer[index].to("cpu", copy=True) for name, buffer in loop.average.buffers.items()}
            row = loop.average.x[index].to("cpu", copy=True)
            self.best[label] = Best(loop.t, float(value), row, buffers, self.monitor, self.mode)
            if loop.folder is not None:
                self._write(self._path(loop, label), self.best[label], loop.engine.problem)

    def _path(self, loop: Loop, seed: int) -> Path:
        assert loop.folder is not None
        return loop.folder / seed_file_name(BEST, seed, first=seed == loop.first_seed)

    def _write(self, path: Path, best: Best, problem: Problem) -> None:
        if isinstance(problem.model, ExportableModel):  # of a pretrained model, what is trained
            tensors = problem.layout.views(best.row)
        else:
            tensors = problem.averaged_model(best.row, best.buffers).state_dict()
        tensors = {name: z.detach().clone().contiguous() for name, z in {**tensors, **best.buffers}.items()}
        about = {"iteration": best.iteration, "value": best.value, "monitor": self.monitor, "mode": self.mode}
        tensor_file.write_part(path, tensors, about).replace(path)

    def _read(self, path: Path, problem: Problem) -> Best:
        """The best model of earlier sessions."""
        best = read_best(path, problem.model)
        if (best.monitor, best.mode) != (self.monitor, self.mode):
            raise RunError(f"{path}: holds the best model by {best.monitor!r}, not by {self.monitor!r}; move it away")
        return best


def read_best(path: Path, model: nn.Module) -> Best:
    """The best evaluation that a file holds, of a model of this architecture."""
    try:
        tensors, about = tensor_file.read(path)
        row, buffers = Layout.of(model).row(tensors), {name: tensors[name] for name, _ in model.named_buffers()}
        return Best(about["iteration"], about["value"], row, buffers, about["monitor"], about["mode"])
    except (RunError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise RunError(f"{path}: does not hold a best model of this run ({error}); move it away") from None
