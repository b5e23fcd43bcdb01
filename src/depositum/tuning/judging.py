"""Which of several candidates to take: a decision from measures alone, whoever ran them.

Stability comes first: a candidate is out if one of its seeds diverged or ended worse than it began, and a stepsize is
out if one that is only slightly larger is unstable (`too_close`). Of the others, those whose held-out loss is within
one standard deviation of the best are tied, and of these the one with the lowest training objective is taken; of
several with practically the same objective, the one with the smallest stepsize. Stability and the held-out loss are
those of the worst seed, the training objective is the mean over seeds, which is less noisy than that of one of them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import stdev
from typing import Any

#: How far, as a factor, the chosen stepsize is from every stepsize that was seen to be unstable.
SAFETY = 1.25

#: Training objectives that differ by less than this share of them, and of what they have decreased, are equal.
FLAT = 0.005


@dataclass(frozen=True)
class Candidate:
    """A point of the search: values by configuration key, and a stepsize.

    Attributes
    ----------
    others
        The keys and values besides the stepsize.
    step
        The stepsize on the scale on which larger is less stable; None where no stepsize is varied.
    """

    others: tuple[tuple[str, Any], ...] = ()
    step: float | None = None


@dataclass(frozen=True)
class Outcome:
    """How a candidate ended, by seed.

    Attributes
    ----------
    held_out
        Loss on the held-out data at the end; not finite where the seed diverged.
    objective
        φ on the training data at the end, in the same way.
    initial
        φ on the training data at the start; nothing where it is not known.
    iterations
        Length of the run at whose end this was measured.
    measures
        Further measures by name, means over seeds, for the user to see.
    """

    candidate: Candidate
    held_out: tuple[float, ...]
    objective: tuple[float, ...]
    initial: tuple[float, ...] = ()
    iterations: int = 0
    measures: Mapping[str, float] = field(default_factory=dict)

    @property
    def step(self) -> float | None:
        return self.candidate.step

    @property
    def diverged(self) -> tuple[bool, ...]:
        """Which seeds left the finite numbers."""
        ends = zip(self.held_out, self.objective, strict=True)
        return tuple(not all(map(math.isfinite, end)) for end in ends)

    @property
    def stable(self) -> bool:
        """Whether every seed stayed finite and ended no worse than it began."""
        return not any(self.diverged) and all(
            end <= start for end, start in zip(self.objective, self.initial, strict=False)
        )

    @property
    def worst_held_out(self) -> float:
        """The highest held-out loss of a seed; infinite if the candidate is not stable."""
        return max(self.held_out) if self.stable else math.inf

    @property
    def worst_objective(self) -> float:
        """The highest training objective of a seed; infinite if the candidate is not stable."""
        return max(self.objective) if self.stable else math.inf

    @property
    def mean_objective(self) -> float:
        """The mean training objective over seeds; infinite if the candidate is not stable."""
        return sum(self.objective) / len(self.objective) if self.stable else math.inf

    @property
    def negligible(self) -> float:
        """A difference in the training objective that does not matter: a small share of it, and of its decrease."""
        decrease = max(self.initial) - self.mean_objective if self.initial else math.inf
        return FLAT * max(0.0, min(abs(self.mean_objective), decrease))

    @property
    def deviation(self) -> float:
        """The standard deviation of the held-out loss over seeds: the worst is the value of one seed."""
        if len(self.held_out) < 2 or any(self.diverged):
            return 0.0
        return stdev(self.held_out)


def choose(outcomes: Sequence[Outcome], safety: float = SAFETY, cautious: bool = True) -> Outcome | None:
    """The candidate to take, or None if none is stable.

    A candidate that is too close to an unstable one is taken only if all stable ones are. Unless `cautious`, the lowest
    objective is taken, even if that of a smaller stepsize is practically the same: for a search that is still to move.

    >>> flat = [Outcome(Candidate((), step), (0.30, 0.32), (loss, loss)) for step, loss in ((0.1, 0.2), (0.2, 0.1))]
    >>> broken = Outcome(Candidate((), 0.4), (0.2, float("nan")), (0.05, float("nan")))
    >>> choose([*flat, broken]).step, choose([*flat, broken], safety=2.0).step
    (0.2, 0.1)
    """
    if not any(outcome.stable for outcome in outcomes):
        return None
    candidates = eligible(outcomes, safety)
    lowest = min(candidates, key=lambda outcome: outcome.mean_objective)
    if not cautious:
        return lowest
    equal = [outcome for outcome in candidates if outcome.mean_objective <= lowest.mean_objective + lowest.negligible]
    return min(equal, key=lambda outcome: (outcome.step or 0.0, outcome.mean_objective))


def eligible(outcomes: Sequence[Outcome], safety: float = SAFETY) -> list[Outcome]:
    """The candidates that are stable, not too close to an unstable one if possible, and tied in held-out loss."""
    stable = [outcome for outcome in outcomes if outcome.stable]
    safe = [outcome for outcome in stable if not too_close(outcome, outcomes, safety)] or stable
    return tied(safe) if safe else []


def tied(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The candidates whose held-out loss is within one standard deviation, or a negligible difference, of the best."""
    best = min(outcomes, key=lambda outcome: outcome.worst_held_out)
    # Where the held-out samples are few and all predicted well, the deviation is as good as zero.
    limit = best.worst_held_out + max(best.deviation, best.negligible if math.isfinite(best.negligible) else 0.0)
    return [outcome for outcome in outcomes if outcome.worst_held_out <= limit]


def too_close(outcome: Outcome, outcomes: Sequence[Outcome], safety: float = SAFETY) -> bool:
    """Whether a larger stepsize that was tried is unstable: the next one up to a factor `safety`, any up to `SAFETY`.

    With an infinite `safety`, the next larger one must be stable however far it is: for grids that are not refined.
    """
    if outcome.step is None:
        return False
    others, step = outcome.candidate.others, outcome.step * (1 + 1e-9)
    unstable = [o.step for o in outcomes if o.step is not None and o.candidate.others == others and not o.stable]
    if any(step < other <= min(safety, SAFETY) * step for other in unstable):
        return True
    larger = neighbour(outcome, outcomes, above=True)
    return larger is not None and larger.step in unstable and larger.step is not None and larger.step <= safety * step


def neighbour(outcome: Outcome, outcomes: Sequence[Outcome], above: bool) -> Outcome | None:
    """The candidate with the next larger (or smaller) stepsize among those that are otherwise equal."""
    step, others = outcome.step, outcome.candidate.others
    if step is None:
        return None
    found = {other.step: other for other in outcomes if other.step is not None and other.candidate.others == others}
    beyond = [other for other in found if (other > step if above else other < step)]
    if not beyond:
        return None
    return found[min(beyond) if above else max(beyond)]
