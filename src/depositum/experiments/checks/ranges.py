"""Checks of all cells together: the range that they lie in."""

from typing import Annotated

import numpy as np
from pydantic import Field

from depositum.errors import ConfigError
from depositum.experiments.checks.finding import CHECKS, At, Finding, moments, short
from depositum.experiments.results import NotRunError, Results


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
    return Finding(holds, f"from {short(low)} to {short(high)} (asked: {bounds})")


@CHECKS.register("similar")
def similar(results: Results, measure: str, within: Annotated[float, Field(ge=0)], at: At = "final") -> Finding:
    """The means of all cells lie within a range."""
    found, said = _spread(results, measure, at)
    return Finding(found <= within, f"{said}; range {short(found)} (allowed: {within:g})")


@CHECKS.register("closer")
def closer(results: Results, measure: str, early: At, late: At, ratio: Annotated[float, Field(gt=0)] = 0.5) -> Finding:
    """The range of the cells' means shrinks to at most `ratio` of what it was."""
    before, after = _spread(results, measure, early)[0], _spread(results, measure, late)[0]
    return Finding(
        after <= ratio * before, f"range {short(before)} early, {short(after)} late (asked: ≤ {ratio:g} of it)"
    )


def _spread(results: Results, measure: str, at: At) -> tuple[float, str]:
    means = {cell.name: moments(cell.values(measure, at))[0] for cell in results}
    if not means:
        raise NotRunError("no cells")
    return max(means.values()) - min(means.values()), ", ".join(f"{name}: {short(m)}" for name, m in means.items())
