"""The search for a stepsize, driven by losses that are known in closed form."""

import math
from collections.abc import Callable

import pytest

from depositum.tuning.judging import SAFETY, Outcome
from depositum.tuning.stepsize_search import COARSE, Request, rungs, search_stepsize

Loss = Callable[[float, int], float]


def run_search(loss: Loss, start: float = 1.0, steps: int = 400) -> tuple[Outcome | None, list[Request]]:
    """Answer a search's requests with a loss of (stepsize, iterations), which starts at 1; return also the requests."""
    search, requests, outcomes = search_stepsize((), start, steps), [], None
    try:
        while True:
            request = search.send(outcomes)
            requests.append(request)
            outcomes = [answer(loss, candidate, request.until) for candidate in request.candidates]
    except StopIteration as stop:
        return stop.value, requests


def answer(loss, candidate, until):
    value = loss(candidate.step, until)
    return Outcome(candidate, (value,), (value,), (1.0,), until)


def valley(best: float, unstable: float = math.inf) -> Loss:
    """A loss with its minimum at `best`, the later the deeper; stepsizes from `unstable` on diverge."""

    def loss(step: float, until: int) -> float:
        if step >= unstable:
            return math.nan
        return math.exp(-math.log(until + 1) / (1 + math.log(step / best) ** 2))

    return loss


@pytest.mark.parametrize("best", [3e-5, 0.02, 0.8, 1.0, 37.0, 4e4])
def test_the_minimum_is_found_wherever_it_lies(best: float) -> None:
    """The first grid spans 0.03 to 32; a minimum outside of it is reached by extending the grid."""
    chosen, _ = run_search(valley(best))
    assert chosen is not None
    assert best / 1.16 < chosen.step < best * 1.16


@pytest.mark.parametrize("best", [3e-5, 1.0, 4e4])
def test_the_choice_is_never_at_the_edge_of_what_was_tried_at_full_length(best: float) -> None:
    chosen, requests = run_search(valley(best))
    full = [candidate.step for request in requests if request.until == 400 for candidate in request.candidates]
    assert min(full) < chosen.step < max(full)


def test_the_choice_keeps_its_distance_from_divergence() -> None:
    """The loss falls up to the edge of stability, 1.5: what is chosen is stable when larger by a quarter."""
    chosen, requests = run_search(lambda step, until: math.nan if step >= 1.5 else math.exp(-step * until / 100))
    assert chosen.step * SAFETY < 1.5 < chosen.step * SAFETY * 1.5
    tried = {candidate.step for request in requests if request.until == 400 for candidate in request.candidates}
    assert any(chosen.step * SAFETY * 0.999 <= step < 1.5 for step in tried)


def test_a_best_stepsize_that_depends_on_the_length_is_that_of_the_full_length() -> None:
    """Short runs prefer stepsizes a hundred times larger; the search must come back."""

    def loss(step: float, until: int) -> float:
        return valley(30.0 * (10 / until) ** 1.2)(step, until)

    best = 30.0 * (10 / 400) ** 1.2
    chosen, _ = run_search(loss)
    assert best / 1.16 < chosen.step < best * 1.16


def test_half_of_the_candidates_continue() -> None:
    """Seven begin; the best one and its neighbours are always among those that go on."""
    _, requests = run_search(valley(1.0))
    by_rung = {until: [r for r in requests if r.until == until] for until in rungs(400)}
    first, second = by_rung[50][0], by_rung[100][0]
    assert len(first.candidates) == 7
    assert len(second.candidates) == 4
    assert {1.0, COARSE, 1 / COARSE} <= {round(c.step, 9) for c in second.candidates} | {COARSE, 1 / COARSE}


def test_what_rises_at_first_is_tried_again() -> None:
    """Large stepsizes end the first rung worse than they began, and are the best in the end."""

    def loss(step: float, until: int) -> float:
        return 1.5 if until < 100 and step > 0.5 else valley(1.0)(step, until)

    chosen, _ = run_search(loss)
    assert 1 / 1.16 < chosen.step < 1.16


def test_what_has_diverged_is_not_run_again() -> None:
    _, requests = run_search(valley(1.0, unstable=5.0))
    large = [c.step for r in requests for c in r.candidates if c.step >= 5.0]
    assert len(large) == len(set(large))


def test_if_every_stepsize_is_unstable_nothing_is_chosen() -> None:
    chosen, requests = run_search(lambda step, until: math.nan)
    assert chosen is None
    assert min(c.step for r in requests for c in r.candidates) < 1e-7


def test_a_flat_minimum_is_not_refined() -> None:
    """From 0.1 to 10 losses are practically the same: below a ratio of 1.5 no candidates are spent on them."""

    def loss(step: float, until: int) -> float:
        return 0.3 + 1e-6 * abs(math.log(step)) if 0.09 < step < 11 else 0.5

    chosen, requests = run_search(loss)
    ratios = [r.candidates[-1].step / r.candidates[0].step for r in requests if r.until == 400]
    assert len(ratios) == 3  # the grid, and two halvings
    assert 0.09 < chosen.step < 11


def test_a_loss_that_has_hardly_moved_is_not_flat() -> None:
    """Fine-tuning gains half a percent in all: to take the smallest stepsize would be not to train at all."""
    chosen, _ = run_search(lambda step, until: 1 - 0.005 * (1 - valley(1.0)(step, until)))
    assert 1 / 1.4 < chosen.step < 1.16


def test_runs_of_one_iteration_can_be_tuned() -> None:
    chosen, requests = run_search(valley(1.0), steps=1)
    assert chosen is not None
    assert {request.until for request in requests} == {1}
