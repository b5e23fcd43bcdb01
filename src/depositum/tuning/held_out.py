"""A part of each client's training data, held out to choose hyper-parameters on."""

from dataclasses import replace

import numpy as np

from depositum.errors import ConfigError
from depositum.problem import Problem
from depositum.randomness import numpy_generator


def hold_out_by_client(problem: Problem, share: float) -> Problem:
    """The problem with `share` of every client's training samples in place of the test data.

    Each trial has its own draw, so that the spread of held-out losses over seeds includes that of the samples. A client
    with several samples gives at least one and keeps at least one; a client with a single one keeps it.
    """
    if not 0 < share < 1:
        raise ConfigError("holdout", f"{share!r} given; it must be a number between 0 and 1")
    trials = []
    for trial in problem.trials:
        parts, held_out = [], []
        for client, part in enumerate(trial.parts):
            shuffled = numpy_generator(trial.seed, client, purpose="tuning holdout").permutation(part)
            count = min(max(1, round(share * len(part))), len(part) - 1)
            held_out.append(shuffled[:count])
            parts.append(np.sort(shuffled[count:]))
        indices = np.sort(np.concatenate(held_out))
        if not len(indices):
            raise ConfigError("clients", "every client has one sample; none can be held out to choose a stepsize on")
        trials.append(replace(trial, parts=parts, test_indices=indices))
    return replace(problem, trials=tuple(trials), test=problem.train)
