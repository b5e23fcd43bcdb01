"""A run that ended worse than it began is reported, and no other run is."""

import numpy as np
import pandas as pd
import pytest

from depositum.metrics import ended_worse


def frame(seeds: int = 1, **columns: list[float]) -> pd.DataFrame:
    """A history with these values at iterations 0, 10, …, the same for every seed."""
    points = len(next(iter(columns.values())))
    one = pd.DataFrame({"iteration": [10 * k for k in range(points)], **columns})
    return pd.concat([one.assign(seed=seed) for seed in range(seeds)], ignore_index=True)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"phi": [2.0, 1.0, 3.0]}, "φ rose from 2 to 3; try a smaller alpha, or dp.tune"),
        ({"train_loss": [2.0, 1.0, 3.0]}, "train loss rose from 2 to 3; try"),
        ({"phi": [2.0, 1.0, np.nan]}, "φ is not a number; try"),
        ({"phi": [2.0, np.inf]}, "φ rose from 2 to inf"),
        ({"test_loss": [2.0, 3.0]}, "test loss rose from 2 to 3; try a smaller alpha"),
        ({"perplexity:overall": [20.0, 30.0], "test_loss": [2.0, 3.0]}, "perplexity rose from 20 to 30"),
        ({"phi": [2.0, 1.0], "test_loss": [2.0, 3.0]}, "test loss rose from 2 to 3, although φ did not; try fewer"),
        ({"train_loss": [2.0, np.nan, np.nan, 3.0], "test_loss": [2.0] * 4}, "train loss rose from 2 to 3"),
    ],
)
def test_a_rise_of_a_loss_is_reported(columns: dict[str, list[float]], said: str) -> None:
    line = ended_worse(frame(**columns))
    assert line is not None
    assert line.startswith(f"ended worse than it began: {said}")


@pytest.mark.parametrize(
    "columns",
    [
        {"phi": [2.0, 3.0, 1.0]},
        {"phi": [2.0, 2.00001]},  # rounding
        {"phi": [2.0]},  # no iterations
        {"phi": [np.inf, 1.0]},  # from a model that violates a constraint
        {"phi": [3.0, 2.0], "train_loss": [1.0, 1.5]},  # a large β: the loss rises as the norm falls
        {"phi": [2.0, np.nan], "test_loss": [2.0, 1.0]},  # stopped between two evaluations of the training loss
        {"phi": [2.0, 1.0, np.nan, 0.5, np.nan]},
        {"phi": [np.nan, np.nan]},
        {"test_accuracy": [0.5, 0.9]},
    ],
)
def test_other_runs_are_not_reported(columns: dict[str, list[float]]) -> None:
    assert ended_worse(frame(**columns)) is None


def test_the_worst_seed_is_named() -> None:
    """The mean over seeds would hide one that rose."""
    history = frame(seeds=3, phi=[2.0, 0.5])
    history.loc[(history.seed == 1) & (history.iteration == 10), "phi"] = 2.5
    assert "φ rose from 2 to 2.5 in seed 1 (1 of 3 seeds)" in str(ended_worse(history))


def test_the_remedy_is_the_callers() -> None:
    assert str(ended_worse(frame(phi=[1.0, 2.0]), "a smaller algorithm.eta")).endswith("; try a smaller algorithm.eta")
