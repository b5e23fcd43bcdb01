"""A problem with the data of some clients only: all that a process of many needs, and all it gets to see."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from depositum.problem import Problem


def own_data(problem: Problem, clients: Sequence[int]) -> Problem:
    """The problem without the training samples that no given client owns in any trial.

    Of the other clients nothing is left but how many samples they have, which the weighting by samples asks for. A
    client's samples keep their order, so that it draws the same mini-batches.
    """
    parts = [trial.parts[i] for trial in problem.trials for i in clients]
    kept = np.unique(np.concatenate(parts))
    trials = tuple(
        replace(
            trial,
            parts=[
                np.searchsorted(kept, part) if i in clients else placeholder(len(part))
                for i, part in enumerate(trial.parts)
            ],
        )
        for trial in problem.trials
    )
    return replace(problem, train=problem.train.take(kept), trials=trials)


def placeholder(size: int) -> np.ndarray:
    """As long as another client's part, without its samples or their memory."""
    return np.broadcast_to(np.int64(-1), (size,))
