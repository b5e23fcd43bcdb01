"""Checks on results: each can fail, and reports the numbers that decide it.

A check is written `{ name = { argument = … } }`. `measure` is a column of the history (or `consensus_trace`), `at` is
one of `results.STATISTICS`. Means are over seeds; deviations are sample standard deviations.
"""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from depositum.errors import ConfigError
from depositum.experiments.definition import Where
from depositum.experiments.results import (
    CellResult,
    HasDivergedError,
    NotRunError,
    Results,
    Share,
    Values,
    measure_title,
)
from depositum.experiments.sweep import Labels
from depositum.registry import Registry


@dataclass(frozen=True)
class Finding:
    """Whether a check holds, and the numbers that decide it."""

    holds: bool
    numbers: str


#: Factories of `(results, …) -> Finding`.
CHECKS = Registry[Finding]("check", supplied=1)
At = str | dict[str, Any]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


def moments(values: Values) -> tuple[float, float]:
    """Mean and sample standard deviation of values `[S]` (the deviation of one value is 0)."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _mean(cell: CellResult, measure: str, at: At) -> float:
    return moments(cell.values(measure, at))[0]


def _short(value: float) -> str:
    """A number with four significant digits."""
    return f"{value:.4g}"


def _join(texts: Sequence[str], limit: int = 6) -> str:
    """The first texts in one line, and how many more there are."""
    return " | ".join(texts[:limit]) + (f" | … {len(texts) - limit} more" if len(texts) > limit else "")


# Along an axis: the order of its labels, and which of them is best


@CHECKS.register("ordered")
def ordered(
    results: Results,
    measure: str,
    axis: str,
    direction: Literal["increasing", "decreasing"],
    at: At = "final",
    apart: NonNegative = 0.0,
    exceptions: Annotated[int, Field(ge=0)] = 0,
) -> Finding:
    """Means along an axis increase (or decrease) from each label to the next, with at most `exceptions` exceptions.

    Neighbours must differ by at least `apart` combined standard deviations, which need two seeds. With exceptions, the
    last mean must still be on the right side of the first.
    """
    cells = results.along(axis)
    values = [cell.values(measure, at) for cell in cells]
    if apart > 0 and min(map(len, values), default=0) < 2:
        raise NotRunError("a standard deviation needs two seeds")
    found = list(map(moments, values))
    sign = 1 if direction == "increasing" else -1
    wrong = sum(not sign * (b[0] - a[0]) > apart * np.hypot(a[1], b[1]) for a, b in itertools.pairwise(found))
    ends = sign * (found[-1][0] - found[0][0]) > 0
    means = ", ".join(
        f"{cell.labels[axis]}: {_short(m)} ± {_short(s)}" for cell, (m, s) in zip(cells, found, strict=True)
    )
    return Finding(wrong <= exceptions and (ends or len(found) < 2), f"{means} ({wrong} out of order)")


@CHECKS.register("not-ordered")
def not_ordered(
    results: Results, measure: str, axis: str, at: At = "final", tau: Share = 0.8, apart: NonNegative = 1.0
) -> Finding:
    """Means along an axis have no clear order: Kendall's |τ| is at most `tau` (1 would be a monotone order).

    An order is not clear either if its ends are at most `apart` combined standard deviations from each other.
    """
    from scipy.stats import kendalltau  # slow to import

    cells = results.along(axis)
    found_moments = [moments(cell.values(measure, at)) for cell in cells]
    means = [m for m, _ in found_moments]
    (first, s), (last, r) = found_moments[0], found_moments[-1]
    small = abs(last - first) <= apart * float(np.hypot(s, r))
    found = abs(float(kendalltau(range(len(means)), means).statistic)) if len(set(means)) > 1 else 0.0
    listed = ", ".join(f"{cell.labels[axis]}: {_short(m)}" for cell, m in zip(cells, means, strict=True))
    ends = "within" if small else "beyond"
    numbers = f"{listed} (|τ| = {found:.2f}, ends {ends} {apart:g} combined standard deviations)"
    return Finding(small or found <= tau + 1e-12, numbers)


@CHECKS.register("highest")
def highest(
    results: Results,
    measure: str,
    axis: str,
    winners: list[str],
    share: Annotated[float, Field(gt=0, le=1)],
    at: At = "final",
) -> Finding:
    """In more than a `share` of the settings (the other axes), the highest mean along `axis` is one of the winners'.

    Settings with a cell that was not run, or that diverged, are left out; if none is left, the check is not run.
    """
    others = [name for name in results.order if name != axis]
    settings: dict[tuple[str, ...], list[CellResult]] = {}
    for cell in results:
        settings.setdefault(tuple(cell.labels[name] for name in others), []).append(cell)
    won, lost, skipped = 0, [], 0
    for labels, cells in settings.items():
        try:
            means = {cell.labels[axis]: _mean(cell, measure, at) for cell in cells}
        except (NotRunError, HasDivergedError):
            skipped += 1
            continue
        best = max(means, key=lambda label: means[label])
        if best in winners:
            won += 1
        else:
            lost.append(f"{', '.join(labels)}: {best} {means[best]:.2f}")
    decided = won + len(lost)
    if not decided:
        raise NotRunError("no setting is complete")
    numbers = f"highest in {won} of {decided} settings (asked: more than {share:.0%})"
    numbers += f", {skipped} not run or diverged" if skipped else ""
    return Finding(won > share * decided, numbers + (f"; not in {_join(lost)}" if lost else ""))


@CHECKS.register("lowest")
def lowest(results: Results, measures: list[str], axis: str, winners: list[str], at: At = "final") -> Finding:
    """For every measure, the lowest mean along an axis is one of the winners'."""
    cells = results.along(axis)
    lost = []
    for measure in measures:
        means = {cell.labels[axis]: _mean(cell, measure, at) for cell in cells}
        best = min(means, key=lambda label: means[label])
        if best not in winners:
            best_winner = min((means[label] for label in winners if label in means), default=float("nan"))
            lost.append(f"{measure_title(measure)}: {best} {_short(means[best])}, against {_short(best_winner)}")
    numbers = f"lowest in {len(measures) - len(lost)} of {len(measures)}"
    return Finding(not lost, numbers + (f"; not in {_join(lost, len(lost))}" if lost else ""))


# One cell against another, or against a number of the paper


def _compare_pairs(
    sign: int,
    results: Results,
    measure: str,
    cell: Where,
    than: Labels,
    at: At = "final",
    by: float = 0.0,
    factor: Positive = 1.0,
    share: Share = 1.0,
    partial: bool = False,
) -> Finding:
    """The mean of `cell` is below `factor` times that of `than`, minus `by`, in a `share` of all such pairs (sign 1).

    With sign −1: above `factor` times that of `than`, plus `by`. With `partial`, pairs with a cell that was not run, or
    that diverged, are left out and counted.
    """
    compared, right, skipped = [], 0, 0
    for one, other in _pairs(results, cell, than):
        try:
            a, b = _mean(one, measure, at), _mean(other, measure, at)
        except (NotRunError, HasDivergedError):
            if not partial:
                raise
            skipped += 1
            continue
        right += sign * a < sign * factor * b - by
        compared.append(f"{one.name}: {_short(a)}; {other.name}: {_short(b)}")
    if not compared:
        raise NotRunError("no pair of cells is complete")
    left_out = f", {skipped} not run or diverged" if skipped else ""
    return Finding(right >= share * len(compared), f"{_join(compared)} ({right} of {len(compared)}{left_out})")


CHECKS.register("lower")(functools.partial(_compare_pairs, 1))
CHECKS.register("higher")(functools.partial(_compare_pairs, -1))


def _pairs(results: Results, cell: Where, than: Labels) -> list[tuple[CellResult, CellResult]]:
    """The cells with the labels `cell`, each with the cell that has the labels `than` instead."""
    found = []
    for one in results.where(cell):
        other = results.find({**one.labels, **than})
        if other is not None:
            found.append((one, other))
    if not found:
        raise ConfigError("than", f"{than} given, but no cell {cell} has a counterpart with these labels")
    return found


@CHECKS.register("below-throughout")
def below_throughout(
    results: Results, measure: str, cell: Where, than: Labels, start: Share = 0.0, share: Share = 0.9
) -> Finding:
    """After a share `start` of the run, the mean curve of `cell` is below that of `than` in a `share` of points."""
    compared, holds = [], True
    for one, other in _pairs(results, cell, than):
        a, b = (_mean_curve(each, measure, start) for each in (one, other))
        below = float(np.mean(a < b))
        holds &= below >= share
        compared.append(f"{one.name} below {other.name} at {below:.0%}")
    return Finding(holds, _join(compared, limit=8))


def _mean_curve(cell: CellResult, measure: str, start: float) -> Values:
    """The mean over seeds at each evaluation after a share of the run, `[points]`."""
    mean: Values = np.mean([one.y[one.t >= start * one.steps] for one in cell.series(measure)], axis=0)
    return mean


@CHECKS.register("ratio")
def ratio(
    results: Results, measure: str, cell: Where, than: Labels, value: float, within: NonNegative, at: At = "final"
) -> Finding:
    """The mean of `cell` is `value` times that of `than`, up to `within`."""
    compared, holds = [], True
    for one, other in _pairs(results, cell, than):
        a, b = _mean(one, measure, at), _mean(other, measure, at)
        found = a / b if b else float("nan")
        holds &= abs(found - value) <= within
        compared.append(f"{one.name}: {_short(a)}; {other.name}: {_short(b)}; ratio {_short(found)}")
    return Finding(holds, _join(compared))


@CHECKS.register("number")
def number(
    results: Results,
    measure: str,
    cell: Labels,
    value: float,
    within: NonNegative,
    less_than: Labels | None = None,
    at: At = "final",
) -> Finding:
    """The mean of `cell` (or by how much it is less than another cell's, per seed) is `value`, up to `within`."""
    m, s = moments(difference(results, measure, cell, less_than, at))
    return Finding(abs(m - value) <= within, f"{m:.3f} ± {s:.3f}, the paper's {value:g} (allowed: ± {within:g})")


def difference(results: Results, measure: str, cell: Labels, less_than: Labels | None, at: At = "final") -> Values:
    """A statistic of a cell per seed `[S]`; with `less_than`, by how much it is less than that of the other cell."""
    one = results.single(cell)
    if less_than is None:
        return one.values(measure, at)
    other = results.single({**one.labels, **less_than})
    larger = other.values(measure, at)
    if one.cached and other.cached and sorted(one.cached.seeds) != sorted(other.cached.seeds):
        raise NotRunError(f"{one.name} and {other.name} have different seeds")
    return np.asarray(larger - one.values(measure, at))


# All cells: the range of their values


@CHECKS.register("bounded")
def bounded(
    results: Results, measure: str, at: At = "final", most: float | None = None, least: float | None = None
) -> Finding:
    """Every seed of every cell is within bounds."""
    if most is None and least is None:
        raise ConfigError("check.bounded", "has neither most nor least")
    if not results.cells:
        raise NotRunError("no cells")
    values = np.concatenate([cell.values(measure, at) for cell in results])
    low, high = float(values.min()), float(values.max())
    holds = (most is None or high <= most) and (least is None or low >= least)
    bounds = [f"≥ {least:g}" if least is not None else "", f"≤ {most:g}" if most is not None else ""]
    return Finding(holds, f"from {_short(low)} to {_short(high)} (asked: {' and '.join(filter(None, bounds))})")


@CHECKS.register("similar")
def similar(results: Results, measure: str, within: NonNegative, at: At = "final") -> Finding:
    """The range of the means of all cells is at most `within`."""
    found, means = _range_of_means(results, measure, at)
    return Finding(found <= within, f"{means}; range {_short(found)} (allowed: {within:g})")


@CHECKS.register("closer")
def closer(results: Results, measure: str, early: At, late: At, ratio: Positive = 0.5) -> Finding:
    """The range of the cells' means shrinks to at most `ratio` of what it was."""
    before, after = _range_of_means(results, measure, early)[0], _range_of_means(results, measure, late)[0]
    return Finding(
        after <= ratio * before, f"range {_short(before)} early, {_short(after)} late (asked: ≤ {ratio:g} of it)"
    )


def _range_of_means(results: Results, measure: str, at: At) -> tuple[float, str]:
    means = {cell.name: _mean(cell, measure, at) for cell in results}
    if not means:
        raise NotRunError("no cells")
    return max(means.values()) - min(means.values()), ", ".join(f"{name}: {_short(m)}" for name, m in means.items())
