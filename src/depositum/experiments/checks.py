"""Checks on results: each can fail, and gives the numbers that decide it.

A check is written `{ name = { argument = … } }`; `measure` is a column of the history (or `consensus_trace`), `at` a
statistic of `results.STATISTICS`. Means are over seeds; deviations are sample standard deviations.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from scipy.stats import kendalltau

from depositum.errors import ConfigError
from depositum.experiments.definition import Where
from depositum.experiments.results import HasDivergedError, NotRunError, Outcome, Results, Values, title
from depositum.experiments.sweep import Labels
from depositum.registry import Registry


@dataclass(frozen=True)
class Finding:
    """Whether a check holds, and the numbers that say so."""

    holds: bool
    numbers: str


#: Factories of `(results, …) -> Finding`.
CHECKS = Registry[Finding]("check", supplied=1)
At = str | dict[str, Any]


def moments(values: Values) -> tuple[float, float]:
    """Mean and sample standard deviation (0 of one value)."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _said(value: float) -> str:
    return f"{value:.4g}"


# Order along an axis


@CHECKS.register("ordered")
def ordered(
    results: Results,
    measure: str,
    axis: str,
    direction: Literal["increasing", "decreasing"],
    at: At = "final",
    apart: Annotated[float, Field(ge=0)] = 0.0,
    exceptions: Annotated[int, Field(ge=0)] = 0,
) -> Finding:
    """Means along an axis go up (or down) from each value to the next, but for some `exceptions`.

    Neighbours must be `apart` by so many combined standard deviations, which one seed does not have. With exceptions,
    the last must still lie on the right side of the first.
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
        f"{cell.labels[axis]}: {_said(m)} ± {_said(s)}" for cell, (m, s) in zip(cells, found, strict=True)
    )
    return Finding(wrong <= exceptions and (ends or len(found) < 2), f"{means} ({wrong} out of order)")


@CHECKS.register("not-ordered")
def not_ordered(
    results: Results,
    measure: str,
    axis: str,
    at: At = "final",
    tau: Annotated[float, Field(ge=0, le=1)] = 0.8,
    apart: Annotated[float, Field(ge=0)] = 1.0,
) -> Finding:
    """Means along an axis have no clear order: Kendall's |τ| is at most `tau` (1 would be a monotone order).

    Nor is an order clear whose ends are no more than `apart` combined standard deviations from each other.
    """
    cells = results.along(axis)
    found_moments = [moments(cell.values(measure, at)) for cell in cells]
    means = [m for m, _ in found_moments]
    (first, s), (last, r) = found_moments[0], found_moments[-1]
    small = abs(last - first) <= apart * float(np.hypot(s, r))
    found = abs(float(kendalltau(range(len(means)), means).statistic)) if len(set(means)) > 1 else 0.0
    listed = ", ".join(f"{cell.labels[axis]}: {_said(m)}" for cell, m in zip(cells, means, strict=True))
    ends = "within" if small else "beyond"
    said = f"{listed} (|τ| = {found:.2f}, ends {ends} {apart:g} combined standard deviations)"
    return Finding(small or found <= tau + 1e-12, said)


# One against another


@CHECKS.register("lower")
def lower(
    results: Results,
    measure: str,
    cell: Where,
    than: Labels,
    at: At = "final",
    by: float = 0.0,
    factor: Annotated[float, Field(gt=0)] = 1.0,
    share: Annotated[float, Field(ge=0, le=1)] = 1.0,
    partial: bool = False,
) -> Finding:
    """The mean of `cell` lies below `factor` times that of `than`, less `by`, in a `share` of all such pairs.

    With `partial`, pairs that were not run, or of which one diverged, are left out and counted.
    """
    return _compared(results, measure, cell, than, at, by, factor, share, partial, sign=1)


@CHECKS.register("higher")
def higher(
    results: Results,
    measure: str,
    cell: Where,
    than: Labels,
    at: At = "final",
    by: float = 0.0,
    factor: Annotated[float, Field(gt=0)] = 1.0,
    share: Annotated[float, Field(ge=0, le=1)] = 1.0,
    partial: bool = False,
) -> Finding:
    """The mean of `cell` lies above `factor` times that of `than`, plus `by`, in a `share` of all such pairs.

    With `partial`, pairs that were not run, or of which one diverged, are left out and counted.
    """
    return _compared(results, measure, cell, than, at, by, factor, share, partial, sign=-1)


def _compared(
    results: Results,
    measure: str,
    cell: Where,
    than: Labels,
    at: At,
    by: float,
    factor: float,
    share: float,
    partial: bool,
    sign: int,
) -> Finding:
    said, right, skipped = [], 0, 0
    for one, other in _pairs(results, cell, than):
        try:
            a, b = moments(one.values(measure, at))[0], moments(other.values(measure, at))[0]
        except (NotRunError, HasDivergedError):
            if not partial:
                raise
            skipped += 1
            continue
        right += sign * a < sign * factor * b - by
        said.append(f"{one.name}: {_said(a)}; {other.name}: {_said(b)}")
    if not said:
        raise NotRunError("no pair of cells is complete")
    left_out = f", {skipped} not run or diverged" if skipped else ""
    return Finding(right >= share * len(said), f"{_listed(said)} ({right} of {len(said)}{left_out})")


def _pairs(results: Results, cell: Where, than: Labels) -> list[tuple[Outcome, Outcome]]:
    """Cells with the labels `cell`, each with the one that has the labels `than` instead."""
    found = []
    for one in results.where(cell):
        other = results.find({**one.labels, **than})
        if other is not None:
            found.append((one, other))
    if not found:
        raise ConfigError("than", f"{than} given, but no cell {cell} has one with these labels instead")
    return found


def _listed(said: Sequence[str], most: int = 6) -> str:
    return " | ".join(said[:most]) + (f" | … {len(said) - most} more" if len(said) > most else "")


@CHECKS.register("below-throughout")
def below_throughout(
    results: Results,
    measure: str,
    cell: Where,
    than: Labels,
    start: Annotated[float, Field(ge=0, le=1)] = 0.0,
    share: Annotated[float, Field(ge=0, le=1)] = 0.9,
) -> Finding:
    """From a share `start` of the run on, the mean curve of `cell` is below that of `than` at most evaluations."""
    said, holds = [], True
    for one, other in _pairs(results, cell, than):
        a, b = (_mean_curve(own, measure, start) for own in (one, other))
        below = float(np.mean(a < b))
        holds &= below >= share
        said.append(f"{one.name} below {other.name} at {below:.0%}")
    return Finding(holds, _listed(said, most=8))


def _mean_curve(outcome: Outcome, measure: str, start: float) -> Values:
    series = outcome.series(measure)
    mean: Values = np.mean([own.y[own.t >= start * own.steps] for own in series], axis=0)
    return mean


@CHECKS.register("ratio")
def ratio(
    results: Results,
    measure: str,
    cell: Where,
    than: Labels,
    value: float,
    within: Annotated[float, Field(ge=0)],
    at: At = "final",
) -> Finding:
    """The mean of `cell` is `value` times that of `than`, give or take `within`."""
    said, holds = [], True
    for one, other in _pairs(results, cell, than):
        a, b = moments(one.values(measure, at))[0], moments(other.values(measure, at))[0]
        found = a / b if b else float("nan")
        holds &= abs(found - value) <= within
        said.append(f"{one.name}: {_said(a)}; {other.name}: {_said(b)}; ratio {_said(found)}")
    return Finding(holds, _listed(said))


# Numbers


@CHECKS.register("number")
def number(
    results: Results,
    measure: str,
    cell: Labels,
    value: float,
    within: Annotated[float, Field(ge=0)],
    less_than: Labels | None = None,
    at: At = "final",
) -> Finding:
    """The mean of `cell` (or how much less it is than another's, seed by seed) is `value`, give or take `within`."""
    m, s = moments(difference(results, measure, cell, less_than, at))
    return Finding(abs(m - value) <= within, f"{m:.3f} ± {s:.3f}, the paper's {value:g} (allowed: ± {within:g})")


def difference(results: Results, measure: str, cell: Labels, less_than: Labels | None, at: At = "final") -> Values:
    """A statistic of a cell per seed `[S]`; with `less_than`, how much less it is than the cell with those labels."""
    one = results.one(cell)
    if less_than is None:
        return one.values(measure, at)
    other = results.one({**one.labels, **less_than})
    difference: Values = other.values(measure, at) - _of_same_seeds(one, other).values(measure, at)
    return difference


def _of_same_seeds(one: Outcome, other: Outcome) -> Outcome:
    """The first, if seeds of the one stand beside the same seeds of the other."""
    if one.kept and other.kept and sorted(one.kept.seeds) != sorted(other.kept.seeds):
        raise NotRunError(f"{one.name} and {other.name} have other seeds")
    return one


@CHECKS.register("bounded")
def bounded(
    results: Results, measure: str, at: At = "final", most: float | None = None, least: float | None = None
) -> Finding:
    """Every seed of every cell lies within bounds."""
    if most is None and least is None:
        raise ConfigError("check.bounded", "says neither most nor least")
    if not results.outcomes:
        raise NotRunError("no cells")
    values = np.concatenate([cell.values(measure, at) for cell in results])
    low, high = float(values.min()), float(values.max())
    holds = (most is None or high <= most) and (least is None or low >= least)
    bounds = " and ".join(
        text
        for text in (f"≥ {least:g}" if least is not None else "", f"≤ {most:g}" if most is not None else "")
        if text
    )
    return Finding(holds, f"from {_said(low)} to {_said(high)} (asked: {bounds})")


# Differences among cells


@CHECKS.register("similar")
def similar(results: Results, measure: str, within: Annotated[float, Field(ge=0)], at: At = "final") -> Finding:
    """The means of all cells lie within a range."""
    found, said = _spread(results, measure, at)
    return Finding(found <= within, f"{said}; range {_said(found)} (allowed: {within:g})")


@CHECKS.register("closer")
def closer(results: Results, measure: str, early: At, late: At, ratio: Annotated[float, Field(gt=0)] = 0.5) -> Finding:
    """The range of the cells' means shrinks to at most `ratio` of what it was."""
    before, after = _spread(results, measure, early)[0], _spread(results, measure, late)[0]
    return Finding(
        after <= ratio * before, f"range {_said(before)} early, {_said(after)} late (asked: ≤ {ratio:g} of it)"
    )


def _spread(results: Results, measure: str, at: At) -> tuple[float, str]:
    means = {cell.name: moments(cell.values(measure, at))[0] for cell in results}
    if not means:
        raise NotRunError("no cells")
    return max(means.values()) - min(means.values()), ", ".join(f"{name}: {_said(m)}" for name, m in means.items())


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

    Settings of which a cell was not run, or diverged, are left out; with none left the check is not run.
    """
    others = [name for name in results.order if name != axis]
    settings: dict[tuple[str, ...], list[Outcome]] = {}
    for outcome in results:
        settings.setdefault(tuple(outcome.labels[name] for name in others), []).append(outcome)
    won, lost, skipped = 0, [], 0
    for labels, cells in settings.items():
        try:
            means = {cell.labels[axis]: moments(cell.values(measure, at))[0] for cell in cells}
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
    said = f"highest in {won} of {decided} settings (asked: more than {share:.0%})"
    said += f", {skipped} not run or diverged" if skipped else ""
    return Finding(won > share * decided, said + (f"; not in {_listed(lost)}" if lost else ""))


@CHECKS.register("lowest")
def lowest(results: Results, measures: list[str], axis: str, winners: list[str], at: At = "final") -> Finding:
    """Of every measure, the lowest mean along an axis is one of the winners'."""
    cells = results.along(axis)
    lost = []
    for measure in measures:
        means = {cell.labels[axis]: moments(cell.values(measure, at))[0] for cell in cells}
        best = min(means, key=lambda label: means[label])
        if best not in winners:
            mine = min((means[label] for label in winners if label in means), default=float("nan"))
            lost.append(f"{title(measure)}: {best} {_said(means[best])}, against {_said(mine)}")
    said = f"lowest in {len(measures) - len(lost)} of {len(measures)}"
    return Finding(not lost, said + (f"; not in {_listed(lost, len(lost))}" if lost else ""))
