"""Checks on results: each can fail, and reports the test and the numbers that decide it.

A check is written `{ name = { argument = … } }`. `measure` is a column of the history (or `consensus_trace`), `at` is
one of `results.STATISTICS`. Cells are compared seed by seed (`seed_tests`): a check holds if the 90 % interval of the
mean over seeds is on the right side, does not hold if it is on the wrong side, and is undecided if it contains the
bound. Seeds that diverged or collapsed are left out, and named.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
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
    TooFewSeedsError,
    Values,
    measure_title,
)
from depositum.experiments.seed_tests import Interval, agreement, chance_of_at_least, interval, short
from depositum.experiments.sweep import Labels
from depositum.registry import Registry


@dataclass(frozen=True)
class Finding:
    """Whether a check holds (None: the seeds cannot tell), the test that decides it, and its numbers."""

    holds: bool | None
    test: str
    numbers: str


#: Factories of `(results, …) -> Finding`.
CHECKS = Registry[Finding]("check", supplied=1)
At = str | dict[str, Any]
BySeed = dict[int, float]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
PAIRED = "paired t-test over seeds, 5 % each way"


def moments(values: Values) -> tuple[float, float]:
    """Mean and sample standard deviation of values `[S]` (the deviation of one value is 0)."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _mean(cell: CellResult, measure: str, at: At) -> float:
    return moments(cell.values(measure, at))[0]


def _join(texts: Sequence[str], limit: int = 6) -> str:
    """The first texts in one line, and how many more there are."""
    return " | ".join(texts[:limit]) + (f" | … {len(texts) - limit} more" if len(texts) > limit else "")


def _paired(one: BySeed, other: BySeed, combine: Any = lambda a, b: a - b) -> Values:
    """A number for each seed that both cells have, `[S]`; raises if that are fewer than two."""
    common = [seed for seed in one if seed in other]
    if len(common) < 2:
        raise TooFewSeedsError("a test needs two seeds that both cells have")
    return np.array([combine(one[seed], other[seed]) for seed in common])


def _all(verdicts: Sequence[bool | None]) -> bool | None:
    """Whether all parts hold: one that does not decides, then one that is undecided."""
    if any(verdict is False for verdict in verdicts):
        return False
    return None if any(verdict is None for verdict in verdicts) else True


def _most(verdicts: Sequence[bool | None], share: float) -> bool | None:
    """Whether at least a share of the parts hold, whatever the undecided ones are."""
    sure, possible = verdicts.count(True), len(verdicts) - verdicts.count(False)
    if sure >= share * len(verdicts):
        return True
    return None if possible >= share * len(verdicts) else False


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

    Each pair of neighbours is tested. With `apart`, their means must also differ by as many combined standard
    deviations. With exceptions, the last must still be on the right side of the first.
    """
    cells = results.along(axis)
    values = [cell.by_seed(measure, at) for cell in cells]
    sign = 1 if direction == "increasing" else -1
    pairs = [_step(a, b, sign, apart) for a, b in itertools.pairwise(values)]
    wrong, unsure = (sum(verdict is kind for verdict, _ in pairs) for kind in (False, None))
    if wrong > exceptions:
        holds: bool | None = False
    else:
        holds = True if wrong + unsure <= exceptions else None
    if exceptions and len(values) > 2:
        holds = _all([holds, _step(values[0], values[-1], sign, 0.0)[0]])
    means = ", ".join(
        f"{cell.labels[axis]}: {short(m)} ± {short(s)}"
        for cell, (m, s) in zip(cells, (moments(np.array(list(v.values()))) for v in values), strict=True)
    )
    steps = ", ".join(str(found) for _, found in pairs)
    count = f"{len(pairs) - wrong - unsure} of {len(pairs)} steps {direction}, {wrong} the other way"
    test = f"{PAIRED}, for each step" + (f" and {apart:g} combined deviations" if apart else "")
    test += f"; {exceptions} exception{'s' * (exceptions > 1)} allowed" if exceptions else ""
    return Finding(holds, test, f"{means}; steps {steps} ({count}{f', {unsure} undecided' if unsure else ''})")


def _step(a: BySeed, b: BySeed, sign: int, apart: float) -> tuple[bool | None, Interval]:
    """Whether b is above a (sign 1) or below it, and by how much."""
    found = interval(_paired(b, a))
    verdict = found.inside(least=0) if sign > 0 else _negated(found).inside(least=0)
    if verdict and apart:
        deviations = [moments(np.array(list(values.values())))[1] for values in (a, b)]
        verdict = abs(found.mean) > apart * math.hypot(*deviations)
    return verdict, found


def _negated(found: Interval) -> Interval:
    return Interval(-found.mean, -found.high, -found.low, found.count)


@CHECKS.register("not-ordered")
def not_ordered(results: Results, measure: str, axis: str, at: At = "final") -> Finding:
    """Means along an axis have no clear order: they increase from one label to the next, and decrease elsewhere.

    It does not hold if every step is in the same direction, and is undecided if steps are too small to tell.
    """
    cells = results.along(axis)
    values = [cell.by_seed(measure, at) for cell in cells]
    steps = [_step(a, b, 1, 0.0) for a, b in itertools.pairwise(values)]
    up, down = (sum(verdict is kind for verdict, _ in steps) for kind in (True, False))
    listed = ", ".join(f"{cell.labels[axis]}: {short(_mean(cell, measure, at))}" for cell in cells)
    holds = True if up and down else (False if len(steps) in (up, down) else None)
    numbers = f"{listed}; steps {', '.join(str(found) for _, found in steps)} ({up} up, {down} down)"
    return Finding(holds, f"{PAIRED}, for each step", numbers)


@CHECKS.register("highest")
def highest(
    results: Results,
    measure: str,
    axis: str,
    winners: list[str],
    share: Annotated[float, Field(gt=0, le=1)],
    at: At = "final",
) -> Finding:
    """In more than a `share` of the settings (the other axes), the highest along `axis` is one of the winners.

    In each setting the winner with the highest mean is tested against the best of the others. Methods without a seed
    that is left, and settings that cannot be tested, are named; if no setting is left, the check is not run.
    """
    others = [name for name in results.order if name != axis]
    settings: dict[tuple[str, ...], list[CellResult]] = {}
    for cell in results:
        settings.setdefault(tuple(cell.labels[name] for name in others), []).append(cell)
    verdicts: list[bool | None] = []
    lost: list[str] = []
    unsure: list[str] = []
    skipped, without = [], []
    for labels, cells in settings.items():
        name = ", ".join(labels)
        values = {}
        for cell in cells:
            try:
                values[cell.labels[axis]] = cell.by_seed(measure, at)
            except HasDivergedError:
                without.append(cell.name)
            except NotRunError:
                pass
        try:
            verdict, found, best, rival = _best_of(values, winners)
        except NotRunError as error:
            skipped.append(f"{name}: {error}")
            continue
        verdicts.append(verdict)
        if verdict is not True:
            (lost if verdict is False else unsure).append(f"{name}: {best} minus {rival} {found}")
    if not verdicts:
        raise NotRunError("no setting can be tested")
    won = verdicts.count(True)
    possible = won + verdicts.count(None)
    holds = True if won > share * len(verdicts) else (None if possible > share * len(verdicts) else False)
    numbers = f"highest in {won} of {len(verdicts)} settings (asked: more than {share:.0%})"
    for title, texts in (("not in", lost), ("undecided", unsure), ("not tested", skipped), ("without", without)):
        numbers += f"; {title} {_join(texts)}" if texts else ""
    return Finding(holds, f"{PAIRED}, in each setting against the best other method", numbers)


def _best_of(values: Mapping[str, BySeed], winners: Sequence[str]) -> tuple[bool | None, Interval, str, str]:
    """Whether the best winner is above the best other label, by how much, and their names."""
    means = {label: float(np.mean(list(each.values()))) for label, each in values.items()}
    own = [label for label in means if label in winners]
    rest = [label for label in means if label not in winners]
    if not own or not rest:
        raise NotRunError("nothing to compare")
    best, rival = (max(labels, key=means.__getitem__) for labels in (own, rest))
    found = interval(_paired(values[best], values[rival]))
    return found.inside(least=0), found, best, rival


@CHECKS.register("lowest")
def lowest(results: Results, measures: list[str], axis: str, winners: list[str], at: At = "final") -> Finding:
    """For every measure, the lowest along an axis is one of the winners'; the others' best is tested against it."""
    cells = results.along(axis)
    verdicts, texts = [], []
    for measure in measures:
        values = {
            cell.labels[axis]: {seed: -value for seed, value in cell.by_seed(measure, at).items()} for cell in cells
        }
        verdict, found, best, rival = _best_of(values, winners)
        verdicts.append(verdict)
        texts.append(f"{measure_title(measure)}: {rival} minus {best} {found}")
    numbers = (
        f"lowest in {verdicts.count(True)} of {len(measures)}, {verdicts.count(None)} undecided; {_join(texts, 9)}"
    )
    return Finding(_all(verdicts), f"{PAIRED}, for each measure against the best other method", numbers)


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
) -> Finding:
    """`cell` is below `factor` times `than`, minus `by`, in a `share` of all such pairs (sign 1).

    With sign −1: above `factor` times that of `than`, plus `by`. With a factor alone, logarithms are compared. A pair
    with a cell of which no seed is left (all diverged or collapsed), or with fewer than two seeds in common, is left
    out and named.
    """

    def margin_of(a: float, b: float) -> float:
        return sign * math.log(factor * b / a) if in_logarithms else sign * (factor * b - a) - by

    in_logarithms = factor != 1 and by == 0
    verdicts: list[bool | None] = []
    compared, skipped = [], []
    for one, other in _pairs(results, cell, than):
        try:
            pair = (one.by_seed(measure, at), other.by_seed(measure, at))
            margin = interval(_paired(*pair, margin_of))
        except (HasDivergedError, TooFewSeedsError) as error:
            skipped.append(f"{one.name} and {other.name}: {error}")
            continue
        verdicts.append(margin.inside(least=0))
        a, b = (short(float(np.mean(list(values.values())))) for values in pair)
        compared.append(f"{one.name}: {a}; {other.name}: {b}; margin {margin}")
    if not compared:
        raise TooFewSeedsError(_join(skipped))
    numbers = f"{_join(compared)} ({verdicts.count(True)} of {len(compared)}"
    numbers += f", {verdicts.count(None)} undecided)" if None in verdicts else ")"
    numbers += f"; left out: {_join(skipped)}" if skipped else ""
    test = PAIRED + (f", of logarithms (factor {factor:g})" if in_logarithms else "")
    test += f"; in {share:.0%} of pairs" if share < 1 else ""
    return Finding(_most(verdicts, share), test, numbers)


@CHECKS.register("lower")
def lower(
    results: Results,
    measure: str,
    cell: Where,
    than: Labels,
    at: At = "final",
    by: float = 0.0,
    factor: Positive = 1.0,
    share: Share = 1.0,
) -> Finding:
    """Cells are below their counterparts: see `_compare_pairs`."""
    return _compare_pairs(1, results, measure, cell, than, at, by, factor, share)


@CHECKS.register("higher")
def higher(
    results: Results,
    measure: str,
    cell: Where,
    than: Labels,
    at: At = "final",
    by: float = 0.0,
    factor: Positive = 1.0,
    share: Share = 1.0,
) -> Finding:
    """Cells are above their counterparts: see `_compare_pairs`."""
    return _compare_pairs(-1, results, measure, cell, than, at, by, factor, share)


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
    """After a share `start` of the run, the curve of `cell` is below that of `than` in at least a `share` of points.

    What is tested is that share, a number per seed.
    """
    verdicts, compared = [], []
    for one, other in _pairs(results, cell, than):
        below = {}
        curves = [cell.series(measure) for cell in (one, other)]
        for seed in curves[0]:
            if seed in curves[1]:
                a, b = (each[seed].y[each[seed].t >= start * each[seed].steps] for each in curves)
                below[seed] = float(np.mean(a < b))
        found = interval(_paired(below, below, lambda a, _: a))
        # At least: a share that is reached exactly by every seed is enough.
        verdicts.append(found.inside(least=share - 1e-12))
        compared.append(f"{one.name} below {other.name} at {found.mean:.0%} [{found.low:.0%}, {found.high:.0%}]")
    return Finding(
        _all(verdicts), f"t-test over seeds of the share of evaluations, against {share:.0%}", _join(compared, 8)
    )


@CHECKS.register("ratio")
def ratio(
    results: Results, measure: str, cell: Where, than: Labels, value: float, within: NonNegative, at: At = "final"
) -> Finding:
    """`cell` is `value` times `than`, up to `within`: the interval of the mean ratio is in that range."""
    verdicts, compared = [], []
    for one, other in _pairs(results, cell, than):
        pair = one.by_seed(measure, at), other.by_seed(measure, at)
        found = interval(_paired(*pair, lambda a, b: a / b if b else math.inf))
        verdicts.append(found.inside(value - within - 1e-12, value + within + 1e-12))
        compared.append(f"{one.name} / {other.name}: {found}")
    test = f"90 % interval of the ratio per seed, within {value:g} ± {within:g}"
    return Finding(_all(verdicts), test, _join(compared))


AGREEMENT = "difference of means within two standard errors (ours, and the paper's where it prints a deviation)"


@CHECKS.register("number")
def number(
    results: Results,
    measure: str,
    cell: Labels,
    value: float,
    less_than: Labels | None = None,
    std: NonNegative | None = None,
    at: At = "final",
) -> Finding:
    """The mean of `cell` (or by how much it is less than another cell's, per seed) agrees with a printed number.

    `value` and, if it is printed, `std` are the paper's mean and deviation over its five runs.
    """
    values = difference(results, measure, cell, less_than, at)
    found = agreement(values, value, std)
    m, s = moments(values)
    return Finding(found.agrees, AGREEMENT, f"{m:.3f} ± {s:.3f}, the paper's {value:g}: {found} ({len(values)} seeds)")


@CHECKS.register("agrees")
def agrees(results: Results, measure: str, at: At = "final", axis: str | None = None) -> Finding:
    """All cells for which a table of the paper prints a number agree with it, but for as many as chance would explain.

    A difference of more than two standard errors is expected in a few of many cells that do agree. It holds if at least
    as many happen by chance with a probability of 5 % or more, taking cells as independent. With `axis`, it holds if
    the cells of one of its labels agree so.
    """
    if axis is not None:
        return _agrees_at_some_label(results, measure, at, axis)
    outside, chances, skipped = [], [], []
    for cell in results:
        printed = results.printed.get((measure, cell.name))
        if printed is None:
            continue
        try:
            values = cell.values(measure, at)
            found = agreement(values, printed.mean, printed.std)
        except (NotRunError, HasDivergedError) as error:
            skipped.append(str(error) if cell.name in str(error) else f"{cell.name}: {error}")
            continue
        chances.append(found.chance)
        if not found.agrees:
            outside.append(f"{cell.name}: {np.mean(values):.2f}, printed {printed} ({found})")
    if not chances:
        raise NotRunError("no cell has a printed number and two seeds")
    by_chance = chance_of_at_least(len(outside), chances)
    numbers = (
        f"{len(chances) - len(outside)} of {len(chances)} agree; {sum(chances):.1f} expected to differ by chance, "
    )
    numbers += f"this many with probability {by_chance:.2g}"
    numbers += f"; not {_join(outside, 12)}" if outside else ""
    numbers += f"; not tested: {_join(skipped)}" if skipped else ""
    test = f"{AGREEMENT}; more that differ than chance explains (5 %)"
    return Finding(by_chance >= 0.05, test, numbers)


def _agrees_at_some_label(results: Results, measure: str, at: At, axis: str) -> Finding:
    """Whether the cells of one label of an axis agree with the printed numbers."""
    findings, missing = {}, []
    for label in results.labels(axis):
        try:
            findings[label] = agrees(results.where({axis: label}), measure, at)
        except NotRunError as error:
            missing.append(f"{label}: {error}")
    if not findings:
        raise NotRunError(_join(missing))
    found = [label for label, finding in findings.items() if finding.holds]
    numbers = f"at {', '.join(found)}; " if found else "at none; "
    numbers += " | ".join(f"{label}: {finding.numbers.partition('; not ')[0]}" for label, finding in findings.items())
    numbers += f"; not tested: {_join(missing)}" if missing else ""
    return Finding(bool(found), f"{AGREEMENT}, at one label of {axis!r}", numbers)


def difference(results: Results, measure: str, cell: Labels, less_than: Labels | None, at: At = "final") -> Values:
    """A statistic of a cell per seed `[S]`; with `less_than`, by how much it is less than that of the other cell."""
    one = results.single(cell)
    if less_than is None:
        return one.values(measure, at)
    other = results.single({**one.labels, **less_than})
    larger = other.by_seed(measure, at)
    if one.cached and other.cached and sorted(one.cached.seeds) != sorted(other.cached.seeds):
        raise NotRunError(f"{one.name} and {other.name} have different seeds")
    return _paired(larger, one.by_seed(measure, at))


# Every cell: its values


@CHECKS.register("below-bound")
def below_bound(results: Results, measure: str, bound: str) -> Finding:
    """The mean over seeds is at most the bound at every evaluation, in every cell.

    What is tested is a number per seed: the largest ratio of measure and bound over the run.
    """
    verdicts, texts = [], []
    for cell in results:
        curves, limits = cell.series(measure), cell.series(bound)
        largest = {}
        for seed in curves:
            _, ours, theirs = np.intersect1d(curves[seed].t, limits[seed].t, return_indices=True)
            largest[seed] = float(np.max(curves[seed].y[ours] / limits[seed].y[theirs]))
        found = interval(np.array(list(largest.values())))
        verdicts.append(found.inside(most=1))
        texts.append(f"{cell.name}: {found}")
    if not verdicts:
        raise NotRunError("no cells")
    numbers = f"largest ratio to the bound: {_join(texts, 12)} ({verdicts.count(True)} of {len(verdicts)})"
    return Finding(_all(verdicts), "t-test over seeds of the largest ratio, at most 1", numbers)


# All cells: the range of their values


@CHECKS.register("bounded")
def bounded(
    results: Results, measure: str, at: At = "final", most: float | None = None, least: float | None = None
) -> Finding:
    """Every seed of every cell is within bounds; one that diverged is not, and one that collapsed counts."""
    if most is None and least is None:
        raise ConfigError("check.bounded", "has neither most nor least")
    if not results.cells:
        raise NotRunError("no cells")
    values = np.concatenate([list(cell.by_seed(measure, at, collapsed=True).values()) for cell in results])
    if not len(values):
        raise HasDivergedError(_join([f"{cell.name}: {cell.losses}" for cell in results]))
    low, high = float(values.min()), float(values.max())
    diverged = [f"{cell.name}: {text}" for cell in results for text in cell.diverged]
    holds = (most is None or high <= most) and (least is None or low >= least) and not diverged
    bounds = [f"≥ {least:g}" if least is not None else "", f"≤ {most:g}" if most is not None else ""]
    numbers = f"from {short(low)} to {short(high)}, {len(values)} seeds"
    numbers += f"; {_join(diverged)}" if diverged else ""
    return Finding(holds, f"every seed {' and '.join(filter(None, bounds))}", numbers)


@CHECKS.register("never-reaches")
def never_reaches(results: Results, measure: str, value: float, at: At = "final") -> Finding:
    """No seed of any cell gets a `measure` of `value` or more: each diverges, collapses, or ends below."""
    if not results.cells:
        raise NotRunError("no cells")
    highest, texts = -math.inf, []
    for cell in results:
        found = cell.by_seed(measure, at, collapsed=True)
        highest = max([highest, *found.values()])
        most = f"at most {short(max(found.values()))}" if found else ""
        texts.append(f"{cell.name}: {', '.join(filter(None, [most, cell.losses]))}")
    return Finding(highest < value, f"every seed diverged or < {value:g}", _join(texts))


@CHECKS.register("similar")
def similar(results: Results, measure: str, within: NonNegative, at: At = "final") -> Finding:
    """The range of the means of all cells is at most `within`: the interval of highest minus lowest is."""
    values = {cell.name: cell.by_seed(measure, at) for cell in results}
    found = interval(_range(values))
    means = ", ".join(f"{name}: {short(float(np.mean(list(each.values()))))}" for name, each in values.items())
    test = f"90 % interval of the range per seed, at most {within:g}"
    return Finding(found.inside(most=within), test, f"{means}; range {found}")


@CHECKS.register("closer")
def closer(results: Results, measure: str, early: At, late: At, ratio: Positive = 0.5) -> Finding:
    """The range of the cells' means shrinks to at most `ratio` of what it was."""
    before, after = (_range({cell.name: cell.by_seed(measure, at) for cell in results}) for at in (early, late))
    if len(before) != len(after):
        raise NotRunError("the ranges have different seeds")
    found = interval(ratio * before - after)
    numbers = f"range {short(float(before.mean()))} early, {short(float(after.mean()))} late; margin {found}"
    return Finding(found.inside(least=0), f"{PAIRED}: late range at most {ratio:g} of the early one", numbers)


def _range(values: Mapping[str, BySeed]) -> Values:
    """The cell with the highest mean minus the one with the lowest, per seed `[S]`."""
    if not values:
        raise NotRunError("no cells")
    means = {name: float(np.mean(list(each.values()))) for name, each in values.items()}
    return _paired(values[max(means, key=means.__getitem__)], values[min(means, key=means.__getitem__)])
