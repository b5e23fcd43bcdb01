"""Judging a run by one measure of its history: the better of two values, and when to stop."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from depositum.engines.engine import Engine
from depositum.engines.loop import Callback, Loop
from depositum.errors import ConfigError, check_choice, is_integer, is_number, nearest, short_repr
from depositum.metrics import CHEAP, COSTLY, PERPLEXITY, TRAINING, MetricSettings
from depositum.metrics.history import AVERAGED

Mode = Literal["auto", "min", "max"]
#: Measures that are better when larger, and all others of the package, which are better when smaller.
_LARGER = ("test_accuracy", "client_accuracy_mean", "client_accuracy_worst", "sparsity")
_MEASURES = (*CHEAP, *COSTLY, *(f"{name}_mean" for name in AVERAGED))


class Criterion:
    """A measure of the history, and which of two values of it is better.

    Parameters
    ----------
    monitor
        The name of the measure: a column of the history.
    mode
        `"min"` or `"max"`; `"auto"` knows it for the measures of the package, but not for user-defined ones.
    """

    def __init__(self, monitor: str, mode: Mode) -> None:
        if not isinstance(monitor, str):
            raise ConfigError("monitor", f"{short_repr(monitor)} given; it must be the name of a column of the history")
        check_choice("mode", mode, get_args(Mode))
        self.monitor, self.mode = monitor, mode

    @property
    def larger_is_better(self) -> bool:
        return self.mode == "max" or (self.mode == "auto" and self.monitor in _LARGER)

    def check(self, engine: Engine, metrics: MetricSettings) -> None:
        """Refuse a measure that this run does not evaluate."""
        name, known = self.monitor, (*_MEASURES, *metrics.functions)
        if name not in known and not name.startswith(PERPLEXITY):
            raise ConfigError("monitor", f"{short_repr(name)} given; no measure has this name{nearest(name, known)}")
        reason = self._missing(engine, metrics)
        if reason:
            raise ConfigError("monitor", f"{name!r} given, but {reason}")
        if self.mode == "auto" and name in metrics.functions:
            raise ConfigError("mode", f"'auto' given, but {name!r} is user-defined; it must be 'min' or 'max'")

    def _missing(self, engine: Engine, metrics: MetricSettings) -> str:
        """Why the measure is not evaluated in this run; "" if it is, or if only its first evaluation can tell."""
        name, problem = self.monitor, engine.problem
        if engine.sharing == "none":
            return "with evaluate = 'none' processes share no measures"
        if name in TRAINING and metrics.train_every == 0:
            return "train_every = 0: the training loss is never evaluated"
        if name.startswith(("test_", "client_accuracy")) and problem.test is None:
            return "there is no test data; use 'train_loss'"
        if "accuracy" in name and problem.loss.correct is None:
            return f"the loss {problem.loss.name!r} does not define an accuracy"
        if name.removesuffix("_mean") in COSTLY or name in COSTLY:
            return "" if metrics.costly_every else "costly_every = 0: it is never evaluated"
        return ""

    def check_evaluated(self, loop: Loop, records: Sequence[Mapping[str, Any]]) -> None:
        """Refuse, at the first evaluation, a measure that this method or model does not have."""
        if loop.t == 0 and self.monitor not in loop.metrics.functions and self.mean(records) is None:
            raise ConfigError("monitor", f"{self.monitor!r} given, but it is not defined for this method and model")

    def better(self, value: float, best: float | None, min_delta: float = 0.0) -> bool:
        """Whether a value is better than the best so far by more than `min_delta`; NaN never is."""
        if best is None or math.isnan(value):
            return not math.isnan(value)
        return value > best + min_delta if self.larger_is_better else value < best - min_delta

    def mean(self, records: Sequence[Mapping[str, Any]]) -> float | None:
        """The mean of the measure over records of several trials; None if it was not evaluated."""
        values = [float(record[self.monitor]) for record in records if record.get(self.monitor) is not None]
        return sum(values) / len(values) if values else None


class EarlyStopping(Callback):
    """Stops a run when a measure has not improved for some time.

    With several seeds, the mean over the seeds that have not diverged decides, for all of them. A run that was stopped
    is complete up to there, and its folder can be resumed: called with the same criterion it stops at the same
    iteration, with a larger patience it continues. Among processes, rank 0 decides for all.

    Parameters
    ----------
    monitor
        The measure: a column of the history, such as `"test_loss"`, `"train_loss"`, `"phi"`, or a user-defined one.
    patience
        Evaluations of the measure without an improvement after which the run stops.
    min_delta
        What counts as an improvement: a difference to the best value so far of more than this.
    mode
        `"min"` or `"max"`; `"auto"` knows it for the measures of the package, but not for user-defined ones.

    Attributes
    ----------
    best, best_iteration
        The best value so far, and its iteration; None before the first evaluation.
    stopped_at
        The iteration at which the run was stopped; None if it was not.

    >>> import torch, depositum as dp
    >>> data = [(torch.randn(50, 4), torch.randint(0, 2, (50,))) for _ in range(3)]
    >>> stopping = dp.EarlyStopping(monitor="train_loss", patience=2, min_delta=1.0)
    >>> result = dp.fit(torch.nn.Linear(4, 2), data, steps=500, callbacks=[stopping], progress=False)
    >>> stopping.best_iteration, stopping.stopped_at
    (0, 20)
    """

    def __init__(
        self, monitor: str = "test_loss", *, patience: int = 10, min_delta: float = 0.0, mode: Mode = "auto"
    ) -> None:
        self._criterion = Criterion(monitor, mode)
        if not is_integer(patience) or isinstance(patience, bool) or patience < 1:
            raise ConfigError("patience", f"{short_repr(patience)} given; it must be a whole number ≥ 1")
        if not is_number(min_delta) or isinstance(min_delta, bool) or not 0 <= min_delta < math.inf:
            raise ConfigError("min_delta", f"{short_repr(min_delta)} given; it must be a number ≥ 0")
        self.monitor, self.mode, self.patience, self.min_delta = monitor, mode, patience, min_delta
        self._reset()

    def _reset(self) -> None:
        self.best: float | None = None
        self.best_iteration: int | None = None
        self.stopped_at: int | None = None
        self._without_improvement = 0

    def check(self, engine: Engine, metrics: MetricSettings) -> None:
        self._criterion.check(engine, metrics)

    def on_start(self, loop: Loop) -> None:
        """Judge the evaluations of earlier sessions again."""
        self._reset()
        by_iteration: dict[int, list[dict[str, Any]]] = {}
        for record in loop.history.records:
            by_iteration.setdefault(record["iteration"], []).append(record)
        for iteration in sorted(by_iteration):
            self._judge(loop, iteration, by_iteration[iteration])

    def on_evaluation(self, loop: Loop, records: list[dict[str, object]]) -> None:
        self._criterion.check_evaluated(loop, records)
        self._judge(loop, loop.t, records)

    def _judge(self, loop: Loop, iteration: int, records: Sequence[Mapping[str, Any]]) -> None:
        value = self._criterion.mean(records)
        if value is None or self.stopped_at is not None:
            return
        if self._criterion.better(value, self.best, self.min_delta):
            self.best, self.best_iteration, self._without_improvement = value, iteration, 0
            return
        self._without_improvement += 1
        if self._without_improvement >= self.patience:
            self.stopped_at = iteration
            if loop.engine.reduction.rank == 0 and iteration < loop.steps:
                best = "" if self.best is None else f" since iteration {self.best_iteration} ({self.best:.6g})"
                loop.stop(f"{self.monitor} has not improved{best} in {self.patience} evaluations")
