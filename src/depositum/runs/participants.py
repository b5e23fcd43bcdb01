"""Who takes part in a run, for those who look at its folder later: the graph, and who holds how much of what.

`participants.json` is written when a run begins, since neither can be found out later without the run's data and code:
both may be user-defined, or exist in memory alone. It has numbers of samples, and no samples.
"""

import json
from typing import Any

import numpy as np

from depositum.data import class_counts, heterogeneity
from depositum.networks import Network
from depositum.problem import Problem

PARTICIPANTS = "participants.json"
#: Larger graphs and tables of classes are described without their details.
MAX_EDGES, MAX_COUNTS = 20_000, 20_000


def describe_participants(network: Network | None, problem: Problem | None, trials: range = range(1)) -> str:
    """The content of `participants.json`.

    Parameters
    ----------
    network
        None for a method with a server.
    problem
        None where this process does not have all clients' data.
    trials
        The indices of the run's trials in the problem, one per seed.
    """
    table: dict[str, Any] = {"network": None if network is None else describe_network(network)}
    if problem is not None:
        table["data"] = [_describe_data(problem, index) for index in trials]
    return json.dumps(table, ensure_ascii=False) + "\n"


def describe_network(network: Network) -> dict[str, Any]:
    described: dict[str, Any] = {
        "text": str(network),
        "name": network.name,
        "mixing": network.mixing,
        "clients": network.n,
        "edges": network.edges,
        "lambda": network.lam,
        "varies": network.varies,
    }
    if network.edges <= MAX_EDGES:
        weights = network.weights.tocoo()
        described["links"] = [
            [int(i), int(j), float(w)]
            for i, j, w in zip(*weights.coords, weights.data, strict=True)
            if i < j or (network.directed and i != j)
        ]
    positions: list[Any] = [network.graph.nodes[i].get("pos") for i in range(network.n)]
    if all(position is not None and np.shape(position) == (2,) for position in positions):
        described["positions"] = [[float(value) for value in position] for position in positions]
    return described


def _describe_data(problem: Problem, index: int) -> dict[str, Any]:
    """Of one seed: the number of samples of each client and, if they have classes, of each class."""
    trial, train = problem.trials[index], problem.train
    described: dict[str, Any] = {"seed": trial.seed, "samples": [len(part) for part in trial.parts]}
    names: tuple[str, ...]
    if train.category is not None:
        labels, names, kind = train.category.cpu().numpy(), train.categories, "category"
    elif train.targets.dim() == 1 and not train.targets.is_floating_point():
        labels, names, kind = train.targets.cpu().numpy(), problem.class_names, "class"
    else:
        return described
    held = np.concatenate([np.asarray(part) for part in trial.parts])
    present = np.unique(labels[held])
    described |= {"kind": kind, "heterogeneity": round(heterogeneity(trial.parts, labels), 6)}
    if len(trial.parts) * len(present) <= MAX_COUNTS:
        counts = class_counts(trial.parts, labels)[:, np.isin(np.unique(labels), present)]
        described["classes"] = [names[k] if k < len(names) else str(k) for k in present.tolist()]
        described["counts"] = counts.tolist()
    return described
