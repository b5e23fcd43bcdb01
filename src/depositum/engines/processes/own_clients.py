"""The problem of one process among many, from the data of its own clients; nobody is told another's samples."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from depositum.engines.processes.group import Group
from depositum.engines.processes.own_data import placeholder
from depositum.errors import ConfigError
from depositum.problem import Problem, from_client_data

Pair = tuple[Tensor | np.ndarray, Tensor | np.ndarray]


def problem_of_all(group: Group, model: nn.Module, clients: Sequence[Pair] | Pair, given: Mapping[str, Any]) -> Problem:
    """The problem of all ranks' clients, with the samples of those given here; all ranks must ask.

    `given` are the other arguments of `from_client_data`. Ranks tell each other how many clients and samples they have,
    and what must be the same: shapes, the seed and β. (`check_built` compares the models.)
    """
    with group.together("take the data"):
        pairs = [clients] if _is_pair(clients) else list(clients)
        own = from_client_data(model, pairs, **given)  # type: ignore[arg-type]
        facts = _facts(own)
    told = group.tell(facts, "take the data")
    with group.together("compare the data"):
        for key, value in facts.items():
            if key != "samples" and value != told[0][key]:
                here, there = (f"{v} on {group.name(r)}" for v, r in ((value, group.rank), (told[0][key], 0)))
                raise ConfigError(key, f"{here}, but {there}; every process needs the same")
    (trial,) = own.trials
    first = group.rank * len(trial.parts)
    sizes = [size for rank in told for size in rank["samples"]]
    parts = [
        trial.parts[i - first] if 0 <= i - first < len(trial.parts) else placeholder(size)
        for i, size in enumerate(sizes)
    ]
    return replace(own, trials=(replace(trial, parts=parts),))


def _is_pair(clients: Any) -> bool:
    """Whether this is one client's (inputs, targets), and not a list of two clients."""
    return isinstance(clients, tuple) and len(clients) == 2 and not isinstance(clients[0], tuple | list)


def _facts(problem: Problem) -> dict[str, Any]:
    """What a rank tells of its data, and of what must be the same on all; `samples` may differ."""
    (trial,) = problem.trials
    return {
        "clients": len(trial.parts),
        "inputs": f"{tuple(problem.train.inputs.shape[1:])} per sample",
        "targets": "real numbers" if problem.train.targets.is_floating_point() else "whole numbers",
        "test": 0 if problem.test is None else len(problem.test),
        "seed": int(trial.seed),
        "beta": problem.beta,
        "regularizer": str(problem.regularizer),
        "weighting": problem.weighting,
        "samples": [len(part) for part in trial.parts],
    }
