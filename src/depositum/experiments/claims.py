"""The paper's claims, decided by checks: whether each holds, by which test, and the numbers that decide it."""

import itertools
from dataclasses import dataclass
from typing import Literal

from depositum.errors import ConfigError, renamed_keys
from depositum.experiments.checks import CHECKS
from depositum.experiments.definition import Claim, Experiment
from depositum.experiments.results import (
    TRACE,
    HasDivergedError,
    NotRunError,
    Results,
    TooFewSeedsError,
    check_measure,
    check_statistic,
)

Verdict = Literal["holds", "does not hold", "undecided", "diverged", "not run"]
VERDICTS: tuple[Verdict, ...] = ("holds", "does not hold", "undecided", "diverged", "not run")
#: Which part decides a claim of several parts: the last in this order. One part that fails decides it, and a part of
#: which no seed is left is named, but leaves the decision to the others.
_PRECEDENCE: tuple[Verdict, ...] = ("diverged", "holds", "undecided", "not run", "does not hold")
_DECISIONS: dict[bool | None, Verdict] = {True: "holds", False: "does not hold", None: "undecided"}


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with its verdict, the test that decides it, and one line of numbers for each part.

    `left_out` names the seeds of its cells that diverged or collapsed.
    """

    claim: Claim
    verdict: Verdict
    test: str
    numbers: list[str]
    left_out: list[str]

    @property
    def reason(self) -> str:
        """Why it does not hold, or is not decided."""
        if self.verdict == "holds":
            return ""
        if self.claim.reason:
            return self.claim.reason
        return "The seeds cannot tell: an interval contains the bound." if self.verdict == "undecided" else ""


def judge(claim: Claim, results: Results, key: str = "claim") -> JudgedClaim:
    """Decide a claim: it holds if its check holds for every combination of its `each` axes."""
    check = CHECKS.parse(claim.check, f"{key}.check")
    cells = results.where(claim.where)
    parts: list[tuple[Verdict, str]] = []
    tests: list[str] = []
    for labels in itertools.product(*(cells.labels(axis) for axis in claim.each)):
        view = cells.where(dict(zip(claim.each, labels, strict=True)))
        verdict: Verdict
        try:
            with renamed_keys(lambda path: path.removeprefix(f"{key}.check.{check.name}.")):  # callers name the claim
                finding = check.make(view)
            verdict, numbers = _DECISIONS[finding.holds], finding.numbers
            tests.append(finding.test)
        except TooFewSeedsError as error:
            verdict, numbers = ("diverged" if _left_out(view) else "not run"), str(error)
        except NotRunError as error:
            verdict, numbers = "not run", str(error)
        except HasDivergedError as error:
            verdict, numbers = "diverged", str(error)
        parts.append((verdict, f"{', '.join(labels)}: {numbers}" if labels else numbers))
    verdicts = (verdict for verdict, _ in parts)
    return JudgedClaim(
        claim,
        max(verdicts, key=_PRECEDENCE.index, default="not run"),
        "; ".join(dict.fromkeys(tests)),
        [numbers for _, numbers in parts],
        _left_out(cells),
    )


def _left_out(cells: Results) -> list[str]:
    """The seeds of cells that diverged or collapsed: `DEEPSTORM on Ring: seed 2 (diverged at iteration 424)`."""
    return [
        f"{cell.name}: " + ", ".join(f"seed {seed} ({why})" for seed, why in sorted(cell.lost.items()))
        for cell in cells
        if cell.history is not None and cell.lost
    ]


def check_claim(claim: Claim, experiment: Experiment, key: str) -> None:
    """Raise, before any work, if a claim cannot be decided."""
    experiment.check_where(claim.where, f"{key}.where")
    for axis in claim.each:
        experiment.check_axis(axis, f"{key}.each")
    choice = CHECKS.parse(claim.check, f"{experiment.id}: {key}.check")
    arguments, path = choice.arguments, f"{key}.check.{choice.name}"
    if "measure" in arguments:
        check_measure(arguments["measure"], experiment, f"{path}.measure")
        if arguments["measure"] == TRACE and not experiment.trace:
            raise ConfigError(f"{experiment.id}: {path}.measure", f"{TRACE!r} given; it needs trace = true in the file")
    if "bound" in arguments:
        check_measure(arguments["bound"], experiment, f"{path}.bound")
    for measure in arguments.get("measures", ()):
        check_measure(measure, experiment, f"{path}.measures")
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
