"""A part of every client's training data is held out; the test data are not looked at."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from depositum.errors import ConfigError
from depositum.problem import Problem, from_client_data
from depositum.tuning.held_out import hold_out_by_client
from tests.support.small_fits import client_pairs


def problem(sizes: list[int]) -> Problem:
    pairs = [(x[:size], y[:size]) for size, (x, y) in zip(sizes, client_pairs(len(sizes), 60), strict=True)]
    return from_client_data(torch.nn.Linear(5, 3), pairs, test=client_pairs(1)[0])


def test_every_client_contributes_and_keeps_its_own_samples() -> None:
    """A sample drawn from all data at once would leave small or one-sided clients out."""
    full = problem([60, 30, 5])
    split = hold_out_by_client(full, 0.1)
    (before,), (trial,) = full.trials, split.trials
    held_out = set(trial.test_indices.tolist())
    for own, kept, count in zip(before.parts, trial.parts, (6, 3, 1), strict=True):
        assert set(kept) | (set(own) & held_out) == set(own)
        assert len(set(own) & held_out) == count
        assert not set(kept) & held_out
    assert split.test is full.train


def test_a_client_with_one_sample_keeps_it() -> None:
    (trial,) = hold_out_by_client(problem([1, 8]), 0.5).trials
    assert [len(part) for part in trial.parts] == [1, 4]
    with pytest.raises(ConfigError, match="every client has one sample"):
        hold_out_by_client(problem([1, 1]), 0.5)


def test_each_seed_has_its_own_draw_and_always_the_same() -> None:
    base = problem([60, 60])
    two = replace(base, trials=tuple(replace(base.trials[0], seed=seed) for seed in (0, 1)))
    first, second = hold_out_by_client(two, 0.2).trials
    assert not np.array_equal(first.test_indices, second.test_indices)
    again = hold_out_by_client(two, 0.2).trials[0]
    assert np.array_equal(first.test_indices, again.test_indices)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 2.0])
def test_shares_that_leave_nothing_are_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="holdout.*between 0 and 1"):
        hold_out_by_client(problem([8]), share)
