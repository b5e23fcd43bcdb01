"""The decision between candidates, from their measures alone."""

import math

import pytest

from depositum.tuning.judging import Candidate, Outcome, choose, neighbour, tied, too_close


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


def test_held_out_losses_within_one_deviation_are_tied() -> None:
    """The lowest is 0.32 ± 0.01: 0.325 is not worse, 0.34 is, although it trains better."""
    best = outcome(0.1, [0.30, 0.31, 0.32], 0.20)
    close = outcome(0.2, [0.305, 0.315, 0.325], 0.10)
    overfit = outcome(0.4, [0.34, 0.34, 0.34], 0.01)
    assert best.deviation == pytest.approx(0.01)
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


def test_the_mean_objective_over_seeds_decides() -> None:
    """Of candidates that are tied in held-out loss; fails if one unlucky seed decides between stepsizes."""
    held_out = (0.3, 0.4, 0.5)
    unlucky = Outcome(Candidate((), 0.2), held_out, (0.10, 0.10, 0.16))
    even = Outcome(Candidate((), 0.1), held_out, (0.14, 0.14, 0.14))
    assert choose([unlucky, even]) is unlucky
