"""Which process holds which clients, and the problem as seen by a process that has the data of its own clients only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from depositum.data import encoding_digest
from depositum.engines.distributed.communicator import ClusterCommunicator
from depositum.errors import ConfigError
from depositum.problem import Problem, from_client_data

Pair = tuple[Tensor | np.ndarray, Tensor | np.ndarray]


@dataclass(frozen=True)
class Placement:
    """n clients in equal shares on the ranks 0 … size − 1, each rank's clients being consecutive.

    >>> placement = Placement(6, 3)
    >>> placement.clients(1), placement.rank_of(5)
    (range(2, 4), 2)
    """

    n: int
    size: int

    def __post_init__(self) -> None:
        if self.size > self.n:
            raise ConfigError(
                "clients",
                f"{self.n} given, but there are {self.size} processes, and each holds at least one client; use "
                f"--nproc-per-node × --nnodes = {self.n}",
            )
        if self.n % self.size:
            fitting = [str(k) for k in range(1, self.n + 1) if self.n % k == 0]
            raise ConfigError(
                "clients",
                f"{self.n} given, which {self.size} processes cannot share equally; use --nproc-per-node × --nnodes "
                f"= {', '.join(fitting)}, or a multiple of {self.size} clients",
            )

    @property
    def share(self) -> int:
        """Clients of one rank."""
        return self.n // self.size

    def clients(self, rank: int) -> range:
        """The clients that a rank holds."""
        return range(rank * self.share, (rank + 1) * self.share)

    def rank_of(self, client: int) -> int:
        """The rank that holds a client."""
        return client // self.share


def restrict_data(problem: Problem, clients: Sequence[int]) -> Problem:
    """The problem without the training samples that none of these clients owns in any trial.

    Of the other clients nothing remains but how many samples they have, which weighting by samples needs. A client's
    samples keep their order, so that it draws the same mini-batches.
    """
    parts = [trial.parts[i] for trial in problem.trials for i in clients]
    remaining = np.unique(np.concatenate(parts))
    trials = tuple(
        replace(
            trial,
            parts=[
                np.searchsorted(remaining, part) if i in clients else absent_part(len(part))
                for i, part in enumerate(trial.parts)
            ],
        )
        for trial in problem.trials
    )
    return replace(problem, train=problem.train.take(remaining), trials=trials)


def absent_part(size: int) -> np.ndarray:
    """As long as the part of another process's client, without its samples or their memory."""
    return np.broadcast_to(np.int64(-1), (size,))


def problem_from_local_clients(
    communicator: ClusterCommunicator, model: nn.Module, clients: Sequence[Pair] | Pair, settings: Mapping[str, Any]
) -> Problem:
    """The problem of all ranks' clients, with the samples of those given here; a collective call.

    `settings` are the other arguments of `from_client_data`. Ranks tell each other what `_facts` has, and compare it.
    (`check_consistency` compares the models.)
    """
    with communicator.all_or_none("read the data"):
        own = from_client_data(model, [clients] if _is_pair(clients) else clients, **settings)
        facts = _facts(own)
    all_facts = communicator.exchange_values(facts, "read the data")
    with communicator.all_or_none("compare the data"):
        for key, value in facts.items():
            if key == "table" and value != all_facts[0][key]:
                here, there = communicator.names[communicator.rank], communicator.names[0]
                problem = f"the columns, their categories or the classes on {here} are not those on {there}"
                raise ConfigError("clients", f"{problem}; give every process tables with the same pandas categories")
            if key != "samples" and value != (first := all_facts[0][key]):
                ranks = f"{value} on {communicator.names[communicator.rank]}, but {first} on {communicator.names[0]}"
                raise ConfigError(key, f"{ranks}; it must be the same on every rank")
    (trial,) = own.trials
    offset = communicator.rank * len(trial.parts)
    sizes = [size for rank in all_facts for size in rank.get("samples", [1] * len(trial.parts))]
    parts = [
        trial.parts[i - offset] if 0 <= i - offset < len(trial.parts) else absent_part(size)
        for i, size in enumerate(sizes)
    ]
    return replace(own, trials=(replace(trial, parts=parts),))


def _is_pair(clients: Any) -> bool:
    """Whether this is one client's (inputs, targets), and not a list of two clients."""
    return isinstance(clients, tuple) and len(clients) == 2 and not isinstance(clients[0], tuple | list)


def _facts(problem: Problem) -> dict[str, Any]:
    """What a rank tells the others about its data; all but `samples` must be the same on every rank.

    How many samples each client has is told only where clients are weighted by it.
    """
    (trial,) = problem.trials
    facts: dict[str, Any] = {
        "clients": len(trial.parts),
        "inputs": f"{tuple(problem.train.inputs.shape[1:])} per sample",
        "targets": "real numbers" if problem.train.targets.is_floating_point() else "whole numbers",
        "table": encoding_digest(problem.class_names, problem.feature_names),
        "test": 0 if problem.test is None else len(problem.test),
        "seed": int(trial.seed),
        "beta": problem.beta,
        "regularizer": str(problem.regularizer),
        "weighting": problem.weighting,
    }
    if problem.weighting == "samples":
        facts["samples"] = [len(part) for part in trial.parts]
    return facts
