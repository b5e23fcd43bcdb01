"""The paper's sentences, decided by checks: whether each holds, and the numbers that say so."""

import itertools
from dataclasses import dataclass
from typing import Literal

from depositum.errors import ConfigError
from depositum.experiments.checks import CHECKS
from depositum.experiments.definition import Claim, Experiment
from depositum.experiments.results import TRACE, HasDivergedError, NotRunError, Results, check_measure, check_statistic
from depositum.experiments.sweep import check_axis, check_where

Verdict = Literal["holds", "does not hold", "diverged", "not run"]
VERDICTS: tuple[Verdict, ...] = ("holds", "does not hold", "diverged", "not run")
#: By what decides a claim of several parts: one that fails does, whatever came of the others.
_DECIDES: tuple[Verdict, ...] = ("holds", "diverged", "not run", "does not hold")


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict; one line of numbers for each part."""

    claim: Claim
    verdict: Verdict
    numbers: list[str]


def judge(claim: Claim, results: Results, key: str = "claim") -> Judged:
    """Decide a claim: it holds where its check does for every combination of its `each` axes."""
    check = CHECKS.parse(claim.check, f"{key}.check")
    inside = results.where(claim.where)
    parts: list[tuple[Verdict, str]] = []
    for labels in itertools.product(*(inside.labels(axis) for axis in claim.each)):
        view = inside.where(dict(zip(claim.each, labels, strict=True)))
        verdict: Verdict
        try:
            finding = check.make(view)
            verdict, said = ("holds" if finding.holds else "does not hold"), finding.numbers
        except NotRunError as error:
            verdict, said = "not run", str(error)
        except HasDivergedError as error:
            verdict, said = "diverged", str(error)
        parts.append((verdict, f"{', '.join(labels)}: {said}" if labels else said))
    verdicts = (verdict for verdict, _ in parts)
    return Judged(claim, max(verdicts, key=_DECIDES.index, default="not run"), [said for _, said in parts])


def check_claim(claim: Claim, experiment: Experiment, key: str) -> None:
    """Refuse a claim that cannot be decided, before any work."""
    check_where(claim.where, experiment, f"{key}.where")
    for axis in claim.each:
        check_axis(axis, experiment, f"{key}.each")
    choice = CHECKS.parse(claim.check, f"{experiment.id}: {key}.check")
    arguments, where = choice.arguments, f"{key}.check.{choice.name}"
    if "measure" in arguments:
        check_measure(arguments["measure"], f"{experiment.id}: {where}.measure")
        if arguments["measure"] == TRACE and not experiment.trace:
            raise ConfigError(
                f"{experiment.id}: {where}.measure", f"{TRACE!r} given; it needs trace = true in the file"
            )
    for measure in arguments.get("measures", ()):
        check_measure(measure, f"{experiment.id}: {where}.measures")
    for name in ("at", "early", "late"):
        if name in arguments:
            check_statistic(arguments[name], f"{experiment.id}: {where}.{name}")
    for name in ("cell", "than", "less_than"):
        if name in arguments:
            check_where(arguments[name], experiment, f"{where}.{name}")
    if "axis" in arguments:
        check_axis(arguments["axis"], experiment, f"{where}.axis")
    if "winners" in arguments:
        check_where({arguments["axis"]: arguments["winners"]}, experiment, where)
