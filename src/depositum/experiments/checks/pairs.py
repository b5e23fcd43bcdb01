"""Checks of one cell against another, or against a number of the paper."""

from typing import Annotated

import numpy as np
from pydantic import Field

from depositum.errors import ConfigError
from depositum.experiments.checks.finding import CHECKS, At, Finding, joined, moments, short
from depositum.experiments.definition import Where
from depositum.experiments.results import HasDivergedError, NotRunError, Outcome, Results, Values
from depositum.experiments.sweep import Labels


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
        said.append(f"{one.name}: {short(a)}; {other.name}: {short(b)}")
    if not said:
        raise NotRunError("no pair of cells is complete")
    left_out = f", {skipped} not run or diverged" if skipped else ""
    return Finding(right >= share * len(said), f"{joined(said)} ({right} of {len(said)}{left_out})")


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
    return Finding(holds, joined(said, most=8))


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
        said.append(f"{one.name}: {short(a)}; {other.name}: {short(b)}; ratio {short(found)}")
    return Finding(holds, joined(said))


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
