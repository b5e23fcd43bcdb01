"""Results of the cells of an experiment: series of a measure per seed, and statistics of a series."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from depositum.errors import ConfigError, listing, nearest
from depositum.experiments.cache import CachedCell
from depositum.experiments.sweep import Labels, matches
from depositum.metrics import COLUMNS, PERPLEXITY
from depositum.registry import Registry, Spec
from depositum.runs.config import Config

Values = NDArray[np.float64]

#: The consensus error after every iteration: a measure that is not a column of the history.
TRACE = "consensus_trace"
#: Measures in [0, 1] that are shown and compared in percent.
PERCENT = ("test_accuracy", "sparsity", "client_accuracy_mean", "client_accuracy_worst")
#: Suffix of measures that are divided by the number of clients: `"stationarity/n"`.
PER_CLIENT = "/n"
#: Names of measures on axes and in tables.
MEASURE_TITLES = {
    "train_loss": "training loss",
    "phi": "φ",
    "test_loss": "test loss",
    "test_accuracy": "test accuracy (%)",
    "consensus_x": "consensus error",
    "sparsity": "sparsity (%)",
    "stationarity": "‖Gᵅ(x)‖²",
    "gradient_error": "gradient-estimation error",
    "gradient_error_mean": "gradient-estimation error, running mean",
    "stationarity_mean": "‖Gᵅ(x)‖², running mean",
    "stationarity_mean/n": "(1/n)‖Gᵅ(x)‖², running mean",
    "phases": "communication phases",
    "iteration": "iteration t",
}


class NotRunError(Exception):
    """A required cell, or part of it, has not been run."""


class HasDivergedError(Exception):
    """A required cell has diverged."""


@dataclass(frozen=True)
class Series:
    """The values of a measure for one seed: `t`, `phases`, `y`, each `[points]`, and the run's `steps` and `period`."""

    t: Values
    phases: Values
    y: Values
    steps: int
    period: int

    def between(self, start: float, end: float) -> Values:
        """The finite values from share `start` to share `end` of the run."""
        inside = (self.t >= start * self.steps) & (self.t <= end * self.steps) & np.isfinite(self.y)
        return self.select(inside, f"between {start:.0%} and {end:.0%} of the run")

    def select(self, mask: NDArray[np.bool_], when: str) -> Values:
        """The values where `mask` `[points]` is true; raises if it is true nowhere."""
        if not mask.any():
            raise NotRunError(f"nothing was evaluated {when}")
        return self.y[mask]


@dataclass(frozen=True)
class CellResult:
    """One cell: its labels, its configuration, and its cached run (None: it was not run)."""

    labels: Labels
    config: Config
    cached: CachedCell | None
    history: pd.DataFrame | None = None
    trace: pd.DataFrame | None = None

    @property
    def name(self) -> str:
        return ", ".join(self.labels.values())

    @property
    def diverged(self) -> list[str]:
        return self.cached.diverged if self.cached else []

    def series(self, measure: str) -> list[Series]:
        """A measure of every seed; raises if the cell has not been run, or if a seed diverged."""
        if self.cached is None or self.history is None:
            raise NotRunError(self.name)
        if self.cached.diverged:
            raise HasDivergedError(f"{self.name}: {self.cached.diverged[0]}")
        found = self._series(measure)
        if not found:
            raise NotRunError(f"{self.name} has no {measure}")
        return found

    def _series(self, measure: str) -> list[Series]:
        run = self.config.run
        return [
            Series(frame["t"].to_numpy(), frame["phases"].to_numpy(), frame["y"].to_numpy(), run.steps, run.period)
            for _, frame in self.frame(measure).groupby("seed")
        ]

    def frame(self, measure: str) -> pd.DataFrame:
        """A measure with columns seed, t, phases and y, in percent if it is a share; includes seeds that diverged."""
        if measure == TRACE:
            assert self.trace is not None
            table = pd.DataFrame({"seed": self.trace["seed"], "t": self.trace["iteration"].astype(float)})
            return table.assign(phases=np.nan, y=self.trace["consensus_x"])
        assert self.history is not None
        history, column = self.history, measure.removesuffix(PER_CLIENT)
        if column not in history:
            raise NotRunError(f"{self.name} has no {measure}")
        y = history[column] * (100.0 if column in PERCENT else 1.0)
        if measure.endswith(PER_CLIENT):
            y = y / self.config.problem.clients
        table = pd.DataFrame({"seed": history["seed"], "t": history["iteration"].astype(float)})
        return table.assign(phases=history["phases"].astype(float), y=y.astype(float)).dropna(subset="y")

    def values(self, measure: str, at: Spec = "final") -> Values:
        """A statistic of a measure, one number per seed `[S]`."""
        statistic = STATISTICS.parse(at, "at")
        return np.array([statistic.make(series) for series in self.series(measure)])

    def values_of_survivors(self, measure: str, at: Spec = "final") -> Values:
        """The same for a cell that diverged, over the seeds that did not `[at most S]`."""
        statistic = STATISTICS.parse(at, "at")
        complete = [one for one in self._series(measure) if one.t[-1] == one.steps and np.isfinite(one.y).all()]
        return np.array([statistic.make(series) for series in complete])


@dataclass(frozen=True)
class Results:
    """The cells of an experiment, or some of them, and the order of the labels of each axis."""

    cells: Sequence[CellResult]
    order: Mapping[str, list[str]]

    def __iter__(self) -> Iterator[CellResult]:
        return iter(self.cells)

    def where(self, where: Mapping[str, str | Sequence[str]]) -> "Results":
        """The cells with these labels."""
        return Results([cell for cell in self.cells if matches(cell.labels, where)], self.order)

    def single(self, where: Mapping[str, str | Sequence[str]]) -> CellResult:
        """The cell with these labels; raises unless there is exactly one."""
        found = self.where(where).cells
        if len(found) != 1:
            raise ConfigError("cell", f"{dict(where)} given; it must be one cell, and {len(found)} have these labels")
        return found[0]

    def find(self, labels: Mapping[str, str]) -> CellResult | None:
        """The cell with exactly these labels, or None."""
        return next((cell for cell in self.cells if cell.labels == labels), None)

    def along(self, axis: str) -> list[CellResult]:
        """The cells in the order of an axis; raises if they differ in another axis too."""
        if len({cell.labels[axis] for cell in self.cells}) < len(self.cells):
            raise ConfigError("axis", f"{axis!r} given, but the cells differ in another axis too; add where or each")
        return sorted(self.cells, key=lambda cell: self.order[axis].index(cell.labels[axis]))

    def labels(self, axis: str) -> list[str]:
        """The labels of an axis that occur, in order."""
        present = {cell.labels[axis] for cell in self.cells}
        return [label for label in self.order[axis] if label in present]


def check_measure(measure: str, key: str) -> None:
    """Raise if there is no such measure."""
    column = measure.removesuffix(PER_CLIENT)
    if column not in COLUMNS and measure != TRACE and not measure.startswith(PERPLEXITY):
        known = [*COLUMNS, TRACE]
        raise ConfigError(key, f"{measure!r} is not a measure; it can be {listing(known)}{nearest(column, known)}")


def measure_title(measure: str) -> str:
    """The name of a measure on axes and in tables."""
    return MEASURE_TITLES.get(measure, measure.removeprefix(PERPLEXITY).replace("_", " "))


#: Statistics of one seed's series: `"final"`, `{ mean = { start = 0.5, end = 1.0 } }` (shares of the run), …
STATISTICS = Registry[float]("statistic", supplied=1)
Share = Annotated[float, Field(ge=0, le=1)]


def check_statistic(at: Any, key: str) -> None:
    """Raise if there is no such statistic."""
    STATISTICS.parse(at, key)


@STATISTICS.register("final")
def final(series: Series) -> float:
    """The last value."""
    return float(series.y[-1])


@STATISTICS.register("at")
def at(series: Series, share: Share) -> float:
    """The value after a share of the run, interpolated linearly between evaluations."""
    return float(np.interp(share * series.steps, series.t, series.y))


@STATISTICS.register("phases")
def after_phases(series: Series, count: Annotated[float, Field(ge=0)]) -> float:
    """The value after a number of communication phases, interpolated linearly between evaluations."""
    if count > series.phases[-1]:
        raise NotRunError(f"the run has {series.phases[-1]:g} communication phases, not {count:g}")
    last = np.append(series.phases[1:] > series.phases[:-1], True)  # the last of several evaluations in one phase
    return float(np.interp(count, series.phases[last], series.y[last]))


@STATISTICS.register("gain")
def gain(series: Series) -> float:
    """By how much the last value is below the first."""
    return float(series.y[0] - series.y[-1])


@STATISTICS.register("mean")
def mean(series: Series, start: Share = 0.0, end: Share = 1.0) -> float:
    """The mean over the evaluations from one share of the run to another."""
    return float(np.mean(series.between(start, end)))


@STATISTICS.register("max")
def largest(series: Series, start: Share = 0.0, end: Share = 1.0) -> float:
    """The largest value from one share of the run to another."""
    return float(np.max(series.between(start, end)))


@STATISTICS.register("roughness")
def roughness(series: Series, start: Share = 0.0, end: Share = 1.0) -> float:
    """How rough a series is: the standard deviation of the differences of log₁₀ y between successive evaluations."""
    y = series.between(start, end)
    steps = np.diff(np.log10(y[y > 0]))
    if len(steps) < 2:
        raise NotRunError(f"too few evaluations between {start:.0%} and {end:.0%} of the run")
    return float(np.std(steps, ddof=1))


@STATISTICS.register("after-exchange")
def after_exchange(series: Series) -> float:
    """The largest value right after an exchange; for the trace, since an exchange at t shows at t + 1."""
    return float(np.max(series.select((series.t - 1) % series.period == 0, "right after an exchange")))


@STATISTICS.register("before-exchange")
def before_exchange(series: Series, start: Share = 0.0, end: Share = 1.0) -> float:
    """The mean value right before an exchange; for the trace."""
    inside = (series.t >= start * series.steps) & (series.t <= end * series.steps)
    return float(np.mean(series.select(inside & (series.t % series.period == 0), "right before an exchange")))
