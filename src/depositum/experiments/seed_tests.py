"""Decisions from a few seeds: intervals of a mean, and what they say about a claim.

A claim compares cells that share their seeds (the same partition, initial model and mini-batches), so what is tested is
a number per seed, such as the difference of two cells. Its mean has a 90 % t-interval: each end is a one-sided test at
5 %.
"""

import math
from dataclasses import dataclass

import numpy as np

from depositum.experiments.results import NotRunError, TooFewSeedsError, Values

#: The error of each one-sided test.
LEVEL = 0.05
#: How many runs the paper's means are of.
PAPER_SEEDS = 5
#: A printed mean agrees within this many standard errors of the difference.
STANDARD_ERRORS = 2.0


@dataclass(frozen=True)
class Interval:
    """The mean of a number over `count` seeds, and its 90 % t-interval."""

    mean: float
    low: float
    high: float
    count: int

    def inside(self, least: float = -math.inf, most: float = math.inf) -> bool | None:
        """True if the mean is above `least` and at most `most`, False if it is not, None if the seeds cannot tell.

        The interval decides: all of it is inside, all of it is on one side, or it contains a bound.
        """
        if self.low > least and self.high <= most:
            return True
        return False if self.high <= least or self.low > most else None

    def __str__(self) -> str:
        return f"{short(self.mean)} [{short(self.low)}, {short(self.high)}]"


def interval(values: Values) -> Interval:
    """The interval of the mean of values `[S]`, one per seed; raises for a single seed."""
    from scipy.stats import t  # slow to import

    values = np.asarray(values, dtype=float)
    if len(values) < 2:
        raise TooFewSeedsError("a test needs two seeds")
    mean, error = float(np.mean(values)), standard_error(values)
    if not math.isfinite(mean):
        raise NotRunError("values are not finite")
    half = float(t.ppf(1 - LEVEL, len(values) - 1)) * error
    return Interval(mean, mean - half, mean + half, len(values))


def standard_error(values: Values) -> float:
    """The standard error of the mean of values `[S]`, S ≥ 2."""
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))


@dataclass(frozen=True)
class Agreement:
    """Our mean and a printed one: their difference, its standard error, and how often chance exceeds two of it."""

    difference: float
    error: float
    chance: float

    @property
    def agrees(self) -> bool:
        return abs(self.difference) <= STANDARD_ERRORS * self.error

    def __str__(self) -> str:
        return f"{self.difference:+.3f}, standard error {self.error:.3f}"


def agreement(values: Values, printed: float, printed_std: float | None) -> Agreement:
    """Compare our values `[S]` with a printed mean of five runs, whose deviation counts where it is printed.

    `chance` is that of a difference of more than two standard errors between two means of one distribution: by
    Student's t, with Welch's degrees of freedom.
    """
    from scipy.stats import t

    if len(values) < 2:
        raise TooFewSeedsError("a standard error needs two seeds")
    ours = standard_error(values) ** 2
    theirs = (printed_std or 0.0) ** 2 / PAPER_SEEDS
    freedom = len(values) - 1.0
    if ours > 0 and theirs > 0:
        freedom = (ours + theirs) ** 2 / (ours**2 / (len(values) - 1) + theirs**2 / (PAPER_SEEDS - 1))
    chance = 2 * float(t.sf(STANDARD_ERRORS, freedom))
    return Agreement(float(np.mean(values)) - printed, math.sqrt(ours + theirs), chance)


def chance_of_at_least(count: int, chances: list[float]) -> float:
    """The probability that at least `count` of independent events with these probabilities happen."""
    exactly = np.ones(1)
    for p in chances:
        exactly = np.convolve(exactly, [1 - p, p])
    return float(exactly[count:].sum())


def short(value: float) -> str:
    """A number with four significant digits."""
    return f"{value:.4g}"
