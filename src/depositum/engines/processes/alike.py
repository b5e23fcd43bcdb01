"""What every process of a run must have built alike, wherever its files lie: the model, its start, and the network.

Numbers are compared by a few sums with random signs, up to rounding: processors of two kinds may draw, or calculate,
the last digit of a parameter differently.
"""

from collections.abc import Sequence
from math import isclose

import torch
from torch import Tensor

from depositum.engines.processes.group import Group
from depositum.errors import ConfigError
from depositum.networks import Network
from depositum.problem import Problem
from depositum.problem.model_copy import has_frozen_base
from depositum.randomness import hash_words

#: The sums that stand for many numbers, and by how much of their norm they may differ; how many are read at once.
SUMS, ROUNDING, CHUNK = 4, 1e-5, 1 << 18


def check_built(group: Group, problem: Problem, network: Network | None) -> None:
    """Refuse, on its own rank, a model, a start or a network that is not rank 0's; all ranks must ask."""
    with group.together("compare what was built"):
        start = [sketch(trial.start) for trial in problem.trials]
        fixed = _fixed(problem)
        links = [] if network is None else [network.n, network.edges]
        weights = [] if network is None else _weights(network)
    own = [problem.layout.size, start, fixed, links, weights]
    first_size, first_start, first_fixed, first_links, first_weights = group.tell(own, "compare what was built")[0]
    with group.together("compare what was built"):
        here, there = group.name(group.rank), group.name(0)
        if problem.layout.size != first_size:
            sizes = f"{problem.layout.size} parameters on {here}, but {first_size} on {there}"
            raise ConfigError("problem.model", f"{sizes}; every process needs the same model")
        if not all(map(_alike, start, first_start)):
            what = f"its initial parameters on {here} are not those on {there}"
            raise ConfigError("problem.model", f"{what}; every process needs the same, drawn by torch from its seed")
        if len(fixed) != len(first_fixed) or not all(map(_alike, fixed, first_fixed)):
            what = f"what is not trained of it (frozen parameters, buffers) is not on {here} what it is on {there}"
            raise ConfigError("problem.model", f"{what}; every process needs the same")
        if links != first_links or not _alike(weights, first_weights):
            what = f"its links or weights on {here} are not those on {there}"
            raise ConfigError("network", f"{what}; every process needs the same")


def sketch(values: Tensor, places: Tensor | None = None) -> list[float]:
    """The norm of some numbers and a few sums of them, each with a random sign that belongs to its place.

    >>> one, other = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])
    >>> sketch(one) == sketch(one.clone()), sketch(one) == sketch(other)
    (True, False)
    """
    own = values.detach().to("cpu").flatten()
    places = torch.arange(len(own)) if places is None else places
    sums = torch.zeros(1 + SUMS, dtype=torch.float64)
    for some, there in zip(torch.split(own, CHUNK), torch.split(places, CHUNK), strict=True):
        column = some.double().unsqueeze(1)
        signs = 2 * (hash_words(there.unsqueeze(1), torch.arange(SUMS)) & 1) - 1
        sums += torch.cat([column.square(), column * signs], dim=1).sum(0)
    sums[0].sqrt_()
    numbers: list[float] = sums.tolist()
    return numbers


def _alike(a: Sequence[float], b: Sequence[float]) -> bool:
    scale = max(map(abs, (*a, *b)), default=0.0)
    return len(a) == len(b) and all(isclose(x, y, abs_tol=ROUNDING * scale) for x, y in zip(a, b, strict=True))


def _weights(network: Network) -> list[float]:
    W = network.weights.tocoo()
    return sketch(torch.from_numpy(W.data.copy()), torch.from_numpy(W.row.astype("int64") * network.n + W.col))


def _fixed(problem: Problem) -> list[list[float]]:
    """Of each tensor that the clients share untrained, the sum of what is finite in it, and how many numbers are not.

    A large frozen base is compared by its own digest.
    """
    model, found = problem.model, []
    frozen = [] if has_frozen_base(model) else [p for p in model.parameters() if not p.requires_grad]
    for tensor in (*frozen, *model.buffers()):
        values = tensor.detach().double()
        finite = values[values.isfinite()]
        found.append([float(finite.abs().sum()), float(finite.sum()), float(values.numel() - finite.numel())])
    return found
