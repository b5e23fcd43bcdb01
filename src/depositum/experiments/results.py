"""Results of the cells of an experiment: series of a measure per seed, and statistics of a series."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from depositum.errors import ConfigError, listing, nearest
from depositum.experiments.bounds import BOUNDS, bound_values, check_bound
from depositum.experiments.cache import CachedCell
from depositum.experiments.definition import Experiment
from depositum.experiments.paper_number import PaperNumber
from depositum.experiments.sweep import Labels, matches
from depositum.metrics import COLUMNS, PERPLEXITY
from depositum.registry import Registry, Spec
from depositum.runs.config import Config

Values = NDArray[np.float64]

#: The consensus error after every iteration: a measure that is not a column of the history.
TRACE = "consensus_trace"
#: Measures in [0, 1] that are shown and compared in percent.
PERCENT = ("test_accuracy", "sparsity", "client_accuracy_mean", "client_accuracy_worst")
#: A seed has collapsed if its loss fell by less than this share of what it fell by for the best seed of the cell …
COLLAPSED_SHARE = 0.1
#: … in cells where the best seed's loss fell by at least this share of its start.
LEARNED_SHARE = 0.01
#: Suffix of measures that are divided by the number of clients: `"stationarity/n"`.
PER_CLIENT = "/n"
#: Suffix of measures that are multiplied by it: `"iteration*n"`, the iterations of all clients.
TIMES_CLIENTS = "*n"
#: The running mean of s, over the iterations at which it was evaluated.
S_MEAN = "s_mean"
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
    "s_mean/n": "(1/n) s, running mean",
    "theorem1": "bound of Theorem 1",
    "corollary1": "bound of Corollary 1",
    "iteration*n": "n · iteration t",
    "phases": "communication phases",
    "bytes_sent": "bytes sent per client",
    "iteration": "iteration t",
}


class NotRunError(Exception):
    """A required cell, or part of it, has not been run."""


class TooFewSeedsError(NotRunError):
    """A test needs more seeds than were run, or are left."""


class HasDivergedError(Exception):
    """No seed is left of a required cell: they diverged or collapsed."""


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
    """One cell: its labels, its configuration, and its cached run (None: it was not run).

    `variance` is the σ² of the experiment, which bounds need.
    """

    labels: Labels
    config: Config
    cached: CachedCell | None
    history: pd.DataFrame | None = None
    trace: pd.DataFrame | None = None
    variance: float | None = None

    @property
    def name(self) -> str:
        return ", ".join(self.labels.values())

    @property
    def diverged(self) -> list[str]:
        return self.cached.diverged if self.cached else []

    @cached_property
    def lost(self) -> dict[int, str]:
        """Why seeds are not averaged, by seed: `diverged at iteration 424`, or `collapsed`."""
        found = {int(text.split()[1]): _shorten_divergence(text) for text in self.diverged}  # "seed 3 diverged: …"
        return found | dict.fromkeys(self._collapsed(set(found)), "collapsed")

    def _collapsed(self, diverged: set[int]) -> list[int]:
        """The seeds that ended where they began, although others of the cell learned."""
        assert self.history is not None
        for measure in ("train_loss", "test_loss"):
            if measure not in self.history or self.cached is None:
                continue
            losses = {seed: one.y for seed, one in self._series(measure).items() if seed not in diverged}
            if len(losses) < 2:
                continue
            fallen = {seed: y[0] - y[-1] for seed, y in losses.items()}
            best = max(fallen, key=lambda seed: fallen[seed])
            if fallen[best] < LEARNED_SHARE * losses[best][0]:
                return []
            return [seed for seed, y in fallen.items() if not y >= COLLAPSED_SHARE * fallen[best]]
        return []

    @property
    def losses(self) -> str:
        """How many seeds are not averaged: `diverged 1 of 5, collapsed 1 of 5`, or ""."""
        if self.cached is None or self.history is None:
            return ""
        count, seeds = Counter(reason.split()[0] for reason in self.lost.values()), len(self.cached.seeds)
        return ", ".join(f"{reason} {count[reason]} of {seeds}" for reason in sorted(count, reverse=True))

    def series(self, measure: str) -> dict[int, Series]:
        """A measure of every seed that is not lost, by seed; raises if the cell was not run, or if none is left."""
        if self.cached is None or self.history is None:
            raise NotRunError(self.name)
        found = self._series(measure)
        if not found:
            raise NotRunError(f"{self.name} has no {measure}")
        left = {seed: series for seed, series in found.items() if seed not in self.lost}
        if not left:
            raise HasDivergedError(f"{self.name}: {self.losses}")
        return left

    def _series(self, measure: str) -> dict[int, Series]:
        run = self.config.run
        table, found = self.frame(measure), {}
        for seed in sorted({int(seed) for seed in table["seed"]}):
            frame = table[table["seed"] == seed]
            t, phases, y = (frame[name].to_numpy(dtype=float) for name in ("t", "phases", "y"))
            found[seed] = Series(t, phases, y, run.steps, run.period)
        return found

    def frame(self, measure: str) -> pd.DataFrame:
        """A measure with columns seed, t, phases and y, in percent if it is a share; includes seeds that diverged."""
        if measure == TRACE:
            assert self.trace is not None
            table = pd.DataFrame({"seed": self.trace["seed"], "t": self.trace["iteration"].astype(float)})
            return table.assign(phases=np.nan, y=self.trace["consensus_x"])
        assert self.history is not None
        history, column, clients = self.history, column_of(measure), self.config.problem.clients
        y = self._column(column) * (100.0 if column in PERCENT else 1.0)
        if measure.endswith(PER_CLIENT):
            y = y / clients
        elif measure.endswith(TIMES_CLIENTS):
            y = y * clients
        table = pd.DataFrame({"seed": history["seed"], "t": history["iteration"].astype(float)})
        return table.assign(phases=history["phases"].astype(float), y=y.astype(float)).dropna(subset="y")

    def _column(self, name: str) -> "pd.Series[float]":
        """A column of the history, or what is computed from it."""
        history = self.history
        assert history is not None
        if name in BOUNDS and self.variance is not None:
            return bound_values(name, self.config, self.variance, history)
        if name == S_MEAN and "s" in history:
            means: pd.Series[float] = history.groupby("seed")["s"].expanding().mean().droplevel(0)
            return means.reindex(history.index)
        if name not in history:
            raise NotRunError(f"{self.name} has no {name}")
        return history[name]

    def values(self, measure: str, at: Spec = "final") -> Values:
        """A statistic of a measure, one number per seed that is not lost `[S]`."""
        return np.array(list(self.by_seed(measure, at).values()))

    def by_seed(self, measure: str, at: Spec = "final", *, collapsed: bool = False) -> dict[int, float]:
        """The same by seed; with `collapsed`, of seeds that collapsed too (there may be none)."""
        statistic = STATISTICS.parse(at, "at")
        if collapsed and self.history is not None:
            every = self._series(measure)
            series = {seed: one for seed, one in every.items() if self.lost.get(seed, "collapsed") == "collapsed"}
        else:
            series = self.series(measure)
        return {seed: statistic.make(one) for seed, one in series.items()}


def _shorten_divergence(text: str) -> str:
    """`diverged at iteration 424` of `seed 2 diverged: y of client 0 is not finite at iteration 424`."""
    at = text.rpartition(" at iteration ")[2]
    return f"diverged at iteration {at}" if at.isdigit() else "diverged"


@dataclass(frozen=True)
class Results:
    """The cells of an experiment, or some of them, and the order of the labels of each axis.

    `printed` has the numbers that the paper prints for cells, by measure and name of the cell.
    """

    cells: Sequence[CellResult]
    order: Mapping[str, list[str]]
    printed: Mapping[tuple[str, str], PaperNumber] = field(default_factory=dict)

    def __iter__(self) -> Iterator[CellResult]:
        return iter(self.cells)

    def where(self, where: Mapping[str, str | Sequence[str]]) -> "Results":
        """The cells with these labels."""
        return Results([cell for cell in self.cells if matches(cell.labels, where)], self.order, self.printed)

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


def column_of(measure: str) -> str:
    """The measure without its suffix.

    >>> column_of("stationarity/n"), column_of("iteration*n")
    ('stationarity', 'iteration')
    """
    return measure.removesuffix(PER_CLIENT).removesuffix(TIMES_CLIENTS)


def check_measure(measure: str, experiment: Experiment, key: str) -> None:
    """Raise if there is no such measure, or if the experiment does not give what it needs."""
    column, key = column_of(measure), f"{experiment.id}: {key}"
    check_bound(column, experiment.variance, key)
    if column not in (*COLUMNS, S_MEAN, *BOUNDS) and measure != TRACE and not measure.startswith(PERPLEXITY):
        known = [*COLUMNS, S_MEAN, *BOUNDS, TRACE]
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
