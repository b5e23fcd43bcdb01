"""The search for a stepsize: a coarse grid, successive halving, refinement at the run's own length.

The search is a generator that asks for candidates to be run and is sent their outcomes, so that several searches (one
for each value of another hyper-parameter) can advance in step, their candidates side by side in one simulator.

1. A grid over three decades, run for an eighth of the iterations, and extended on the side where the best is at its
   edge.
2. The better half, and the neighbours of the best, continue to a quarter, a half and the full length: the best
   stepsize depends on the length of the run, so that the last decision is made at full length.
3. The interval around the best is halved, on a logarithmic scale, until the neighbours are about as good.
4. The choice is confirmed by a slightly larger stepsize, which must be stable as well.

At no length is a candidate at the edge of what was tried taken for the best.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from depositum.tuning.judging import SAFETY, Candidate, Outcome, choose, neighbour

#: Ratio of neighbours in the first grid, and its number of points.
COARSE, POINTS = math.sqrt(10), 7
#: How often the interval around the best is halved: to ratios of 1.78, 1.33 and 1.15.
HALVINGS = 3
#: Only below this ratio are neighbours that are about as good a reason to stop: their losses are noisy.
FINE = 1.5
#: The first grid is not extended by more than this factor, up or down.
FARTHEST = 1e8


@dataclass(frozen=True)
class Request:
    """Candidates to run until an iteration, from where they are."""

    candidates: tuple[Candidate, ...]
    until: int


#: What a search is: it asks, is sent the outcomes in the same order, and returns the choice.
Search = Generator[Request, Sequence[Outcome], Outcome | None]


def rungs(steps: int) -> list[int]:
    """The iterations at which candidates are compared.

    >>> rungs(1000), rungs(3)
    ([125, 250, 500, 1000], [1, 2, 3])
    """
    return sorted({max(1, math.ceil(steps / share)) for share in (8, 4, 2, 1)})


def search_stepsize(others: tuple[tuple[str, object], ...], start: float, steps: int) -> Search:
    """Search for the best stepsize around `start` in runs of `steps` iterations; None if none is stable."""
    bracket = _Bracket(others, start)
    grid = [start * COARSE ** (k - POINTS // 2) for k in range(POINTS)]
    for until in rungs(steps):
        yield from bracket.run(grid, until)
        best = yield from bracket.enclose(until, COARSE)
        if best is None:
            return None
        grid = bracket.survivors(best, until)
    ratio, until = COARSE, steps
    for _ in range(HALVINGS):
        best = bracket.best(until)
        assert best is not None
        if ratio < FINE and bracket.is_flat(best, until):
            break
        ratio = math.sqrt(ratio)
        yield from bracket.run([best.step / ratio, best.step * ratio], until)  # type: ignore[operator]
        yield from bracket.enclose(until, ratio)
    return (yield from bracket.confirm(until))


class _Bracket:
    """The outcomes of one search so far."""

    def __init__(self, others: tuple[tuple[str, object], ...], start: float) -> None:
        self.others, self.start = others, start
        self.outcomes: dict[tuple[float, int], Outcome] = {}

    def run(self, steps: Sequence[float], until: int) -> Generator[Request, Sequence[Outcome], None]:
        """Have stepsizes run until an iteration, except those whose outcome there is known."""
        new = [step for step in steps if self._find(step, until) is None]
        if new:
            outcomes = yield Request(tuple(Candidate(self.others, step) for step in new), until)
            self.outcomes |= {(step, until): outcome for step, outcome in zip(new, outcomes, strict=True)}

    def at(self, until: int) -> list[Outcome]:
        """The outcomes at an iteration, and of what had diverged before it, by increasing stepsize.

        A loss that has risen after a few iterations may still fall.
        """
        known = [o for (_, t), o in self.outcomes.items() if t == until or (t < until and any(o.diverged))]
        return sorted(known, key=lambda outcome: outcome.step or 0.0)

    def best(self, until: int) -> Outcome | None:
        return choose(self.at(until), cautious=False)

    def enclose(self, until: int, ratio: float) -> Generator[Request, Sequence[Outcome], Outcome | None]:
        """Run further stepsizes until the best has neighbours on both sides; None if all are unstable."""
        while True:
            best, known = self.best(until), self.at(until)
            if best is None:
                smallest = min(outcome.step or 0.0 for outcome in known)
                if smallest <= self.start / FARTHEST:
                    return None
                yield from self.run([smallest / ratio, smallest / ratio**2], until)
                continue
            assert best.step is not None
            missing = []
            if neighbour(best, known, above=False) is None and best.step > self.start / FARTHEST:
                missing.append(self._next(best.step, until, 1 / ratio))
            if neighbour(best, known, above=True) is None and best.step < self.start * FARTHEST:
                missing.append(self._next(best.step, until, ratio))
            if not missing:
                return best
            yield from self.run(missing, until)

    def survivors(self, best: Outcome, until: int) -> list[float]:
        """The stepsizes that continue: the better half of the stable ones, and the neighbours of the best."""
        known = self.at(until)
        stable = sorted((o for o in known if o.stable), key=lambda outcome: outcome.mean_objective)
        keep = {*(o.step for o in stable[: math.ceil(len(stable) / 2)]), best.step}
        for above in (False, True):
            beside = neighbour(best, known, above)
            if beside is not None and beside.stable:
                keep.add(beside.step)
        return sorted(step for step in keep if step is not None)

    def is_flat(self, best: Outcome, until: int) -> bool:
        """Whether both neighbours of the best are about as good."""
        known = self.at(until)
        sides = [neighbour(best, known, above) for above in (False, True)]
        limit = best.mean_objective + best.negligible
        return all(side is not None and side.mean_objective <= limit for side in sides)

    def confirm(self, until: int) -> Generator[Request, Sequence[Outcome], Outcome | None]:
        """The best stepsize for which one that is larger by the safety factor is stable as well."""
        while True:
            known = self.at(until)
            # A smaller stepsize that is as good is taken, but not the smallest: a still smaller one might be better.
            best = choose(known[1:] or known)
            assert best is not None
            assert best.step is not None
            probe = SAFETY * best.step
            if any(o.stable and o.step is not None and o.step >= probe * (1 - 1e-9) for o in known):
                return best
            if self._find(probe, until) is not None:  # it is unstable, and so are all smaller ones that are safe
                return best
            yield from self.run([probe], until)

    def _next(self, step: float, until: int, ratio: float) -> float:
        """The stepsize beside one: that of the earlier rungs if it was tried there, else a new one."""
        tried = {s for s, t in self.outcomes if t < until and (s > step if ratio > 1 else s < step)}
        return (min if ratio > 1 else max)(tried, default=step * ratio)

    def _find(self, step: float, until: int) -> Outcome | None:
        """The outcome of a stepsize at an iteration, if it is known."""
        for outcome in self.at(until):
            if outcome.step is not None and math.isclose(outcome.step, step, rel_tol=1e-6):
                return outcome
        return None
