"""Whether a run ended worse than it began, which a table of final measures alone does not show."""

from math import isnan
from typing import TYPE_CHECKING, NamedTuple

from depositum.metrics.measures import OVERALL, PERPLEXITY

if TYPE_CHECKING:
    import pandas as pd

#: What a run minimises: φ, or the loss where φ was not recorded. With a large β, the loss rises while φ falls.
_OBJECTIVES = {"phi": "φ", "train_loss": "train loss"}
#: What it is judged by, on data that it was not trained on.
_TESTS = {PERPLEXITY + OVERALL: "perplexity", "test_loss": "test loss"}
#: The relative increase up to which a value counts as unchanged; evaluations in float32 round at 1e-6.
TOLERANCE = 1e-4


class _Change(NamedTuple):
    """A measure of one seed, at its first and its last evaluation."""

    seed: int
    first: float
    last: float

    @property
    def worse(self) -> bool:
        return isnan(self.last) or self.last > self.first + TOLERANCE * abs(self.first)

    @property
    def size(self) -> float:
        """For sorting: infinite for a value that is not a number."""
        return float("inf") if isnan(self.last) else self.last - self.first

    def __str__(self) -> str:
        return "is not a number" if isnan(self.last) else f"rose from {self.first:.4g} to {self.last:.4g}"


def ended_worse(history: "pd.DataFrame", remedy: str = "a smaller alpha, or dp.tune") -> str | None:
    """Return one line about a run whose loss is higher at its end than at its start; None for any other run.

    The objective φ is compared (the training loss where φ was not recorded), then the test loss or perplexity, at the
    first and the last evaluation of every seed.

    Parameters
    ----------
    history
        One row per seed and evaluated iteration.
    remedy
        What to try if the objective rose, for the end of the line.

    >>> import pandas as pd
    >>> ended_worse(pd.DataFrame({"seed": 0, "iteration": [0, 10], "phi": [2.3, 5.7]}))
    'ended worse than it began: φ rose from 2.3 to 5.7; try a smaller alpha, or dp.tune'
    """
    objective = next((column for column in _OBJECTIVES if _recorded(history, column)), None)
    if objective is not None and (line := _describe(history, objective, _OBJECTIVES[objective])):
        return f"{line}; try {remedy}"
    test = next((column for column in _TESTS if _recorded(history, column)), None)
    if test is not None and (line := _describe(history, test, _TESTS[test])):
        if objective is None:
            return f"{line}; try {remedy}"
        return f"{line}, although {_OBJECTIVES[objective]} did not; try fewer steps, or another regularizer or beta"
    return None


def _describe(history: "pd.DataFrame", column: str, name: str) -> str | None:
    changes = _changes(history, column)
    worse = [change for change in changes if change.worse]
    if not worse:
        return None
    largest = max(worse, key=lambda change: change.size)
    several = f" in seed {largest.seed} ({len(worse)} of {len(changes)} seeds)" if len(changes) > 1 else ""
    return f"ended worse than it began: {name} {largest}{several}"


def _recorded(history: "pd.DataFrame", column: str) -> bool:
    return column in history and bool(history[column].notna().any())


def _changes(history: "pd.DataFrame", column: str) -> list[_Change]:
    out = []
    for seed, rows in history.sort_values("iteration").groupby("seed"):
        values = rows[column]
        # The training loss may have its own stride. A gap at the end of an otherwise complete column is a value that
        # could not be computed.
        complete = len(values) > 2 and bool(values.iloc[:-1].notna().all())
        found = values if complete else values.dropna()
        if len(found) > 1:
            out.append(_Change(int(seed), float(found.iloc[0]), float(found.iloc[-1])))  # type: ignore[arg-type]
    return out
