"""The paper's claims, decided by checks: whether each holds, and the numbers that decide it."""

import itertools
from dataclasses import dataclass
from typing import Literal

from depositum.errors import ConfigError, renamed_keys
from depositum.experiments.checks import CHECKS
from depositum.experiments.definition import Claim, Experiment
from depositum.experiments.results import TRACE, HasDivergedError, NotRunError, Results, check_measure, check_statistic

Verdict = Literal["holds", "does not hold", "diverged", "not run"]
VERDICTS: tuple[Verdict, ...] = ("holds", "does not hold", "diverged", "not run")
#: Which part decides a claim of several parts: the last in this order. One part that fails decides it.
_PRECEDENCE: tuple[Verdict, ...] = ("holds", "diverged", "not run", "does not hold")


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with its verdict; one line of numbers for each part."""

    claim: Claim
    verdict: Verdict
    numbers: list[str]


def judge(claim: Claim, results: Results, key: str = "claim") -> JudgedClaim:
    """Decide a claim: it holds if its check holds for every combination of its `each` axes."""
    check = CHECKS.parse(claim.check, f"{key}.check")
    cells = results.where(claim.where)
    parts: list[tuple[Verdict, str]] = []
    for labels in itertools.product(*(cells.labels(axis) for axis in claim.each)):
        view = cells.where(dict(zip(claim.each, labels, strict=True)))
        verdict: Verdict
        try:
            with renamed_keys(lambda path: path.removeprefix(f"{key}.check.{check.name}.")):  # callers name the claim
                finding = check.make(view)
            verdict, numbers = ("holds" if finding.holds else "does not hold"), finding.numbers
        except NotRunError as error:
            verdict, numbers = "not run", str(error)
        except HasDivergedError as error:
            verdict, numbers = "diverged", str(error)
        parts.append((verdict, f"{', '.join(labels)}: {numbers}" if labels else numbers))
    verdicts = (verdict for verdict, _ in parts)
    return JudgedClaim(
        claim, max(verdicts, key=_PRECEDENCE.index, default="not run"), [numbers for _, numbers in parts]
    )


def check_claim(claim: Claim, experiment: Experiment, key: str) -> None:
    """Raise, before any work, if a claim cannot be decided."""
    experiment.check_where(claim.where, f"{key}.where")
    for axis in claim.each:
        experiment.check_axis(axis, f"{key}.each")
    choice = CHECKS.parse(claim.check, f"{experiment.id}: {key}.check")
    arguments, path = choice.arguments, f"{key}.check.{choice.name}"
    if "measure" in arguments:
        check_measure(arguments["measure"], f"{experiment.id}: {path}.measure")
        if arguments["measure"] == TRACE and not experiment.trace:
            raise ConfigError(f"{experiment.id}: {path}.measure", f"{TRACE!r} given; it needs trace = true in the file")
    for measure in arguments.get("measures", ()):
        check_measure(measure, f"{experiment.id}: {path}.measures")
    for name in ("at", "early", "late"):
        if name in arguments:
            check_statistic(arguments[name], f"{experiment.id}: {path}.{name}")
    for name in ("cell", "than", "less_than"):
        if name in arguments:
            experiment.check_where(arguments[name], f"{path}.{name}")
    if "axis" in arguments:
        experiment.check_axis(arguments["axis"], f"{path}.axis")
    if "winners" in arguments:
        experiment.check_where({arguments["axis"]: arguments["winners"]}, path)
