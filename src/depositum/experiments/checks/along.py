"""Checks along an axis: the order of its values, and which of them is the best."""

import itertools
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from scipy.stats import kendalltau

from depositum.experiments.checks.finding import CHECKS, At, Finding, joined, moments, short
from depositum.experiments.results import HasDivergedError, NotRunError, Outcome, Results, title


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
        f"{cell.labels[axis]}: {short(m)} ± {short(s)}" for cell, (m, s) in zip(cells, found, strict=True)
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
    listed = ", ".join(f"{cell.labels[axis]}: {short(m)}" for cell, m in zip(cells, means, strict=True))
    ends = "within" if small else "beyond"
    said = f"{listed} (|τ| = {found:.2f}, ends {ends} {apart:g} combined standard deviations)"
    return Finding(small or found <= tau + 1e-12, said)


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
    return Finding(won > share * decided, said + (f"; not in {joined(lost)}" if lost else ""))


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
            lost.append(f"{title(measure)}: {best} {short(means[best])}, against {short(mine)}")
    said = f"lowest in {len(measures) - len(lost)} of {len(measures)}"
    return Finding(not lost, said + (f"; not in {joined(lost, len(lost))}" if lost else ""))
