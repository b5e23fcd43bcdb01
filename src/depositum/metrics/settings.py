"""When measures are evaluated, and which of the costly ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from depositum.errors import ConfigError, is_integer, is_number, short_repr
from depositum.metrics.functions import MetricFunction, check_functions
from depositum.metrics.history import COLUMNS
from depositum.problem import Oracle, constants

#: Why L cannot be measured by one of several processes.
NOT_AMONG_PROCESSES = "'measure' given, but no process has all the data to measure it on; give a number"


@dataclass(frozen=True)
class Evaluations:
    """Which iterations are evaluated: t = 0, every `every` iterations from `start` on, and the last.

    Attributes
    ----------
    every
        Iterations between evaluations.
    start
        The first evaluation after t = 0 (0: after `every` iterations). With 1, and a stride that is a multiple of the
        period, evaluations come right after an exchange.
    """

    every: int = 10
    start: int = 0

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ConfigError("evaluate_every", f"{short_repr(self.every)} given; it must be a whole number ≥ 1")
        if not 0 <= self.start < self.every:
            allowed = f"a whole number from 0 to evaluate_every − 1 = {self.every - 1}"
            problem = f"{short_repr(self.start)} given; it must be {allowed}"
            raise ConfigError("evaluate_from", problem, mentions=("evaluate_every",))

    def due(self, t: int, every: int | None = None) -> bool:
        """Whether t is evaluated even if it is not the last; `every` is the stride of a measure with its own."""
        return t == 0 or (t - self.start) % (self.every if every is None else every) == 0

    def left(self, t: int) -> int:
        """Iterations from t to the next evaluation after it."""
        return self.every - (t - self.start) % self.every


@dataclass(frozen=True)
class MetricSettings:
    """Which measures are evaluated, and how often.

    Attributes
    ----------
    costly_every
        Iterations between evaluations of the costly measures (each needs gradients over all data); 0 is never.
    alpha
        The α of G^α; None is the algorithm's own.
    smoothness
        L, for the stationarity measure s of Definition 3; `"measure"` measures it on the data first; None leaves s out.
    train_every
        Iterations between evaluations of the training loss, which reads all the training data; None is at every
        evaluation, 0 never.
    functions
        User-defined measures by name: functions of (outputs, targets), each `[N, ...]` on the host, that return one
        number. They are evaluated at every evaluation, for the averaged model on all test samples (without test data,
        on all training samples).

    >>> MetricSettings(functions={"error": lambda outputs, targets: (outputs - targets).abs().mean()}).functions.keys()
    dict_keys(['error'])
    """

    costly_every: int = 0
    alpha: float | None = None
    smoothness: float | Literal["measure"] | None = None
    train_every: int | None = None
    functions: Mapping[str, MetricFunction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, every in self._strides:
            if not is_integer(every) or every < 0:
                raise ConfigError(key, f"{short_repr(every)} given; it must be a whole number ≥ 0 (0: never)")
        for key, value, other in (("alpha", self.alpha, ""), ("smoothness", self.smoothness, " or 'measure'")):
            if value is None or (other and isinstance(value, str) and value == "measure"):
                continue
            if isinstance(value, str) or not (is_number(value) and value > 0):
                raise ConfigError(key, f"{short_repr(value)} given; it must be a number > 0{other}")
        check_functions(self.functions, (*COLUMNS, "trial"))

    @property
    def _strides(self) -> list[tuple[str, int]]:
        """The strides that are set, by name."""
        strides = {"costly_every": self.costly_every, "train_every": self.train_every}
        return [(key, every) for key, every in strides.items() if every is not None]

    def check(self, evaluations: Evaluations) -> None:
        """Refuse strides at which there is not always an evaluation."""
        for key, every in self._strides:
            if every % evaluations.every:
                multiple = f"a multiple of evaluate_every = {evaluations.every} (0: never)"
                problem = f"{short_repr(every)} given; it must be {multiple}"
                raise ConfigError(key, problem, mentions=("evaluate_every",))

    def smoothness_of(self, oracle: Oracle) -> dict[int, float]:
        """L of each trial, by its label: as given, or measured on the data of all its clients; empty if not set."""
        labels = oracle.problem.labels
        if self.smoothness is None:
            return {}
        if self.smoothness != "measure":
            return dict.fromkeys(labels, self.smoothness)
        if len(oracle.clients) < oracle.problem.n:
            raise ConfigError("smoothness", NOT_AMONG_PROCESSES)
        return dict(zip(labels, constants.smoothness_of_trials(oracle), strict=True))

    def costly_at(self, t: int, last: bool, evaluations: Evaluations) -> bool:
        """Whether an evaluation at t includes the costly measures."""
        return self.costly_every > 0 and (last or evaluations.due(t, self.costly_every))

    def train_at(self, t: int, last: bool, evaluations: Evaluations) -> bool:
        """Whether an evaluation at t includes the training loss."""
        every = self.train_every
        return every is None or (every > 0 and (last or evaluations.due(t, every)))
