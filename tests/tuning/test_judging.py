"""The decision between candidates, from their measures alone."""

import math

import pytest

from depositum.tuning.judging import Candidate, Outcome, choose, choose_smoothed, neighbour, tied, too_close


def outcome(step, held_out, objective=None, initial=(), others=()):
    held_out = (held_out,) if isinstance(held_out, float) else tuple(held_out)
    objective = held_out if objective is None else (objective,) * len(held_out)
    return Outcome(Candidate(tuple(others), step), held_out, objective, initial)


def test_a_candidate_that_diverges_in_one_of_three_seeds_is_never_chosen() -> None:
    """With one seed, or the mean of the finite ones, the second would win: it was chosen, and diverged in the run."""
    steady = outcome(0.1, [0.5, 0.5, 0.5])
    risky = outcome(1.0, [0.1, 0.1, math.nan])
    assert choose([steady, risky]) is steady
    assert risky.diverged == (False, False, True)


def test_the_worst_seed_counts() -> None:
    even, uneven = outcome(0.1, [0.30, 0.31, 0.32], 0.3), outcome(0.2, [0.1, 0.1, 0.9], 0.1)
    assert choose([even, uneven]) is even


def test_a_candidate_that_ends_worse_than_it_began_is_unstable() -> None:
    risen = outcome(1.0, [0.2, 0.2], 2.5, initial=(2.3, 2.3))
    assert not risen.stable
    assert choose([risen]) is None


def test_a_stepsize_beside_an_unstable_one_is_not_chosen() -> None:
    """0.24 has the lowest losses, but 0.28 diverges: another seed, or all of the data, may diverge at 0.24."""
    tried = [outcome(0.1, 0.5), outcome(0.2, 0.4), outcome(0.24, 0.3), outcome(0.28, math.inf)]
    assert [too_close(one, tried) for one in tried[:3]] == [False, False, True]
    assert choose(tried) is tried[1]


def test_every_unstable_stepsize_within_the_safety_factor_counts() -> None:
    """A stable stepsize in between does not hide it."""
    tried = [outcome(0.2, 0.3), outcome(0.21, 0.31), outcome(0.24, math.nan)]
    assert too_close(tried[0], tried)


def test_in_a_coarse_grid_the_next_larger_stepsize_must_be_stable() -> None:
    tried = [outcome(0.1, 0.5), outcome(0.3, 0.3), outcome(1.0, math.nan)]
    assert choose(tried).step == 0.3
    assert choose(tried, safety=math.inf).step == 0.1


def test_if_every_stable_stepsize_is_too_close_the_choice_is_made_among_them() -> None:
    tried = [outcome(0.1, 0.5), outcome(0.12, math.nan)]
    assert choose(tried).step == 0.1


def test_held_out_losses_within_one_standard_error_are_tied() -> None:
    """The lowest is 0.32 ± 0.0058: 0.325 is not worse, 0.34 is, although it trains better."""
    best = outcome(0.1, [0.30, 0.31, 0.32], 0.20)
    close = outcome(0.2, [0.305, 0.315, 0.325], 0.10)
    overfit = outcome(0.4, [0.34, 0.34, 0.34], 0.01)
    assert best.standard_error == pytest.approx(0.01 / math.sqrt(3))
    assert tied([best, close, overfit]) == [best, close]
    assert choose([best, close, overfit]) is close


def test_of_equal_objectives_the_smallest_stepsize_is_taken() -> None:
    flat = [outcome(step, [0.3, 0.4], objective) for step, objective in ((0.1, 0.1003), (0.2, 0.1), (0.4, 0.101))]
    assert choose(flat).step == 0.1


def test_neighbours_have_the_same_other_settings() -> None:
    one = outcome(0.1, 0.3, others=[("algorithm.gamma", 0.5)])
    other = outcome(0.11, math.nan, others=[("algorithm.gamma", 0.9)])
    assert neighbour(one, [one, other], above=True) is None
    assert not too_close(one, [one, other])
    assert neighbour(outcome(None, 0.3), [one], above=True) is None


def noisy(step: float, *objective: float) -> Outcome:
    return Outcome(Candidate((), step), tuple(0.3 for _ in objective), objective)


def test_noise_between_neighbouring_stepsizes_is_smoothed() -> None:
    """A candidate that is lowest by the chance of one seed, at the side of a valley, does not win over its middle.

    Fails if the lowest of noisy values is taken, which errs by as much as the noise.
    """
    places = (-0.75, -0.5, -0.25, 0.25, 0.5)
    valley = [noisy(2.0**k, *(0.1 + 0.04 * k**2 + e for e in (0.002, -0.002, 0.0))) for k in places]
    middle = noisy(1.0, 0.1, 0.1, 0.1)
    lucky = noisy(2.0**0.7, 0.12, 0.12, 0.0525)
    assert choose([*valley, middle, lucky]) is lucky
    assert choose_smoothed([*valley, middle, lucky]) is middle


def test_a_clear_minimum_is_not_smoothed_away() -> None:
    """Where the seeds agree, the lowest is taken, whatever a parabola through its neighbours says."""
    curve = {0.5: 0.120, 0.7: 0.115, 1.0: 0.112, 1.4: 0.111, 1.9: 0.108, 2.05: 0.125}
    outcomes = [noisy(step, loss, loss + 0.001, loss - 0.001) for step, loss in curve.items()]
    assert choose_smoothed(outcomes) is choose(outcomes)
    assert choose(outcomes).step == 1.9
