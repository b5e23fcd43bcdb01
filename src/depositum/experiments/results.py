"""What the cells of an experiment gave: series of a measure per seed, and statistics of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from depositum.errors import ConfigError, listing, nearest
from depositum.experiments.cache import Kept
from depositum.experiments.sweep import Labels, matches
from depositum.metrics import COLUMNS, PERPLEXITY
from depositum.registry import Registry, Spec
from depositum.runs.config import Config

Values = NDArray[np.float64]

#: The consensus error after every iteration, beside the columns of a history.
TRACE = "consensus_trace"
#: Measures that are shares, shown and compared in percent.
PERCENT = ("test_accuracy", "sparsity", "client_accuracy_mean", "client_accuracy_worst")
#: What is divided by the number of clients: `"stationarity/n"`.
PER_CLIENT = "/n"
#: How measures are written on axes and in tables.
NAMES = {
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
    """A cell that is needed has not been run."""


class HasDivergedError(Exception):
    """A cell that is needed has diverged."""


@dataclass(frozen=True)
class Series:
    """One seed's values of a measure: `t`, `phases`, `y`, each `[points]`; `steps` and `period` are the run's."""

    t: Values
    phases: Values
    y: Values
    steps: int
    period: int

    def between(self, start: float, end: float) -> Values:
        """The finite values at shares `start` to `end` of the run."""
        inside = (self.t >= start * self.steps) & (self.t <= end * self.steps) & np.isfinite(self.y)
        return self.chosen(inside, f"between {start:.0%} and {end:.0%} of the run")

    def chosen(self, places: NDArray[np.bool_], when: str) -> Values:
        """The values at these places, of which there must be some."""
        if not places.any():
            raise NotRunError(f"nothing was evaluated {when}")
        return self.y[places]


@dataclass(frozen=True)
class Outcome:
    """One cell: its labels, its configuration, and what is kept of it (nothing: it was not run)."""

    labels: Labels
    config: Config
    kept: Kept | None
    history: pd.DataFrame | None = None
    trace: pd.DataFrame | None = None

    @property
    def name(self) -> str:
        return ", ".join(self.labels.values())

    @property
    def diverged(self) -> list[str]:
        return self.kept.diverged if self.kept else []

    def series(self, measure: str) -> list[Series]:
        """A measure of every seed; refused for a cell that has not been run, or of which a seed diverged."""
        if self.kept is None or self.history is None:
            raise NotRunError(self.name)
        if self.kept.diverged:
            raise HasDivergedError(f"{self.name}: {self.kept.diverged[0]}")
        found = self._series(measure)
        if not found:
            raise NotRunError(f"{self.name} has no {measure}")
        return found

    def _series(self, measure: str) -> list[Series]:
        run = self.config.run
        return [
            Series(own["t"].to_numpy(), own["phases"].to_numpy(), own["y"].to_numpy(), run.steps, run.period)
            for _, own in self.frame(measure).groupby("seed")
        ]

    def frame(self, measure: str) -> pd.DataFrame:
        """A measure with columns seed, t, phases and y, in percent where it is a share; also of what diverged."""
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

    def survived(self, measure: str, at: Spec = "final") -> Values:
        """The same, of the seeds that came to the end of a cell of which others diverged."""
        statistic = STATISTICS.parse(at, "at")
        to_the_end = [own for own in self._series(measure) if own.t[-1] == own.steps and np.isfinite(own.y).all()]
        return np.array([statistic.make(own) for own in to_the_end])


@dataclass(frozen=True)
class Results:
    """The cells of an experiment, or some of them, with the order of its labels."""

    outcomes: Sequence[Outcome]
    order: Mapping[str, list[str]]

    def __iter__(self) -> Iterator[Outcome]:
        return iter(self.outcomes)

    def where(self, where: Mapping[str, str | Sequence[str]]) -> "Results":
        """The cells with these labels."""
        return Results([own for own in self.outcomes if matches(own.labels, where)], self.order)

    def one(self, where: Mapping[str, str | Sequence[str]]) -> Outcome:
        """The only cell with these labels."""
        found = self.where(where).outcomes
        if len(found) != 1:
            raise ConfigError("cell", f"{dict(where)} given; it must be one cell, and {len(found)} have these labels")
        return found[0]

    def find(self, labels: Mapping[str, str]) -> Outcome | None:
        """The cell with exactly these labels."""
        return next((own for own in self.outcomes if own.labels == labels), None)

    def along(self, axis: str) -> list[Outcome]:
        """The cells in the order of an axis, which must be all that tells them apart."""
        if len({own.labels[axis] for own in self.outcomes}) < len(self.outcomes):
            raise ConfigError("axis", f"{axis!r} given, but the cells differ in another one too; say where or each")
        return sorted(self.outcomes, key=lambda own: self.order[axis].index(own.labels[axis]))

    def labels(self, axis: str) -> list[str]:
        """The labels of an axis that occur, in order."""
        here = {own.labels[axis] for own in self.outcomes}
        return [label for label in self.order[axis] if label in here]


def check_measure(measure: str, key: str) -> None:
    """Refuse what no history has."""
    column = measure.removesuffix(PER_CLIENT)
    if column not in COLUMNS and measure != TRACE and not measure.startswith(PERPLEXITY):
        known = [*COLUMNS, TRACE]
        raise ConfigError(key, f"{measure!r} is no measure; it can be {listing(known)}{nearest(column, known)}")


def title(measure: str) -> str:
    """A measure as it is written for a reader."""
    return NAMES.get(measure, measure.removeprefix(PERPLEXITY).replace("_", " "))


#: What is taken of one seed's series: `"final"`, `{ mean = { start = 0.5, end = 1.0 } }` (shares of the run), …
STATISTICS = Registry[float]("statistic", supplied=1)
Share = Annotated[float, Field(ge=0, le=1)]


def check_statistic(at: Any, key: str) -> None:
    """Refuse a statistic that there is none of."""
    STATISTICS.parse(at, key)


@STATISTICS.register("final")
def final(series: Series) -> float:
    """The last value."""
    return float(series.y[-1])


@STATISTICS.register("at")
def at(series: Series, share: Share) -> float:
    """The value after a share of the run, along straight lines between evaluations."""
    return float(np.interp(share * series.steps, series.t, series.y))


@STATISTICS.register("phases")
def after_phases(series: Series, count: Annotated[float, Field(ge=0)]) -> float:
    """The value after so many communication phases, along straight lines between evaluations."""
    if count > series.phases[-1]:
        raise NotRunError(f"the run has {series.phases[-1]:g} communication phases, and not {count:g}")
    last = np.append(series.phases[1:] > series.phases[:-1], True)  # of several evaluations in one phase
    return float(np.interp(count, series.phases[last], series.y[last]))


@STATISTICS.register("gain")
def gain(series: Series) -> float:
    """How much the last value lies below the first."""
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
    """How much a series jumps: the standard deviation of the steps of log₁₀ y from one evaluation to the next."""
    y = series.between(start, end)
    steps = np.diff(np.log10(y[y > 0]))
    if len(steps) < 2:
        raise NotRunError(f"too few evaluations between {start:.0%} and {end:.0%} of the run")
    return float(np.std(steps, ddof=1))


@STATISTICS.register("after-exchange")
def after_exchange(series: Series) -> float:
    """The largest value right after an exchange; for the trace, since an exchange at t shows at t + 1."""
    return float(np.max(series.chosen((series.t - 1) % series.period == 0, "right after an exchange")))


@STATISTICS.register("before-exchange")
def before_exchange(series: Series, start: Share = 0.0, end: Share = 1.0) -> float:
    """The mean value right before an exchange; for the trace."""
    inside = (series.t >= start * series.steps) & (series.t <= end * series.steps)
    return float(np.mean(series.chosen(inside & (series.t % series.period == 0), "right before an exchange")))
