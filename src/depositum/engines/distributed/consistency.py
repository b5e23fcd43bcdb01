"""Checks that every process has built the same model, the same start and the same network, and runs the same code.

Each process may read files of its own. Numbers are compared by a few sums with random signs, up to rounding:
processors of two kinds may draw, or calculate, the last digit of a parameter differently.
"""

from collections.abc import Sequence
from math import isclose

import torch
from torch import Tensor

from depositum.algorithms import Algorithm
from depositum.engines.distributed.communicator import Communicator, Facts
from depositum.engines.distributed.probe import probe, source_digest
from depositum.errors import ConfigError
from depositum.networks import DirectedNetwork, Network
from depositum.problem import Problem
from depositum.problem.model_copy import has_frozen_base
from depositum.randomness import hash_words

#: The sums that stand for many numbers, by how much of their norm they may differ, and how many are read at once.
SUMS, ROUNDING, CHUNK = 4, 1e-5, 1 << 18
#: What is computed by the user's code, the setting that names it, and what it is called.
CODE = (
    ("outputs", "model", "the model"),
    ("losses", "loss", "the loss"),
    ("penalties", "regularizer", "the regularizer"),
    ("proxes", "regularizer", "the regularizer"),
)


def check_consistency(
    communicator: Communicator, problem: Problem, network: Network | None, algorithm: Algorithm | None = None
) -> None:
    """Refuse, on the rank concerned, a model, a start, a network or code that differs from another rank's.

    Compared is what model, loss and regularizer make of the same numbers, too. Among the processes of a cluster, a
    collective call.
    """
    communicator.compare(
        "compare model and network",
        lambda: _facts(problem, network, algorithm),
        lambda own, other, here, there: _check_same(own, other, here, there, algorithm),
    )


def _facts(problem: Problem, network: Network | None, algorithm: Algorithm | None) -> Facts:
    """What is compared, in plain numbers."""
    return {
        "size": problem.layout.size,
        "start": [sketch(trial.start) for trial in problem.trials],
        "frozen": _frozen_and_buffers(problem),
        "links": [] if network is None else [network.n, network.edges],
        "weights": [] if network is None else _weights(network),
        "source": "" if algorithm is None else source_digest(algorithm),
        **{name: None if values is None else _finite_sketch(values) for name, values in probe(problem).items()},
    }


def _check_same(own: Facts, other: Facts, here: str, there: str, algorithm: Algorithm | None) -> None:
    same = "it must be the same everywhere"
    if own["size"] != other["size"]:
        sizes = f"{own['size']} parameters on {here}, but {other['size']} on {there}"
        raise ConfigError("model", f"{sizes}; {same}")
    if not all(map(_close, own["start"], other["start"])):
        what = f"initial parameters differ between {here} and {there}"
        raise ConfigError("model", f"{what}; they must be the same, drawn by torch from the seed")
    if len(own["frozen"]) != len(other["frozen"]) or not all(map(_close, own["frozen"], other["frozen"])):
        raise ConfigError("model", f"frozen parameters or buffers differ between {here} and {there}; {same}")
    if own["links"] != other["links"] or not _close(own["weights"], other["weights"]):
        raise ConfigError("network", f"links or weights differ between {here} and {there}; {same}")
    for name, key, code in CODE:
        if not _same_answer(own[name], other[name]):
            what = f"{name} on the same numbers differ between {here} and {there}"
            raise ConfigError(key, f"{what}; the code of {code} must be the same everywhere")
    if own["source"] != other["source"]:
        what = f"the code of {type(algorithm).__qualname__} differs between {here} and {there}"
        raise ConfigError("algorithm", f"{what}; it must be the same everywhere")


def sketch(values: Tensor, positions: Tensor | None = None) -> list[float]:
    """The norm of some numbers and a few sums of them, each with a random sign that depends on its position.

    >>> one, other = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])
    >>> sketch(one) == sketch(one.clone()), sketch(one) == sketch(other)
    (True, False)
    """
    own = values.detach().to("cpu").flatten()
    positions = torch.arange(len(own)) if positions is None else positions
    sums = torch.zeros(1 + SUMS, dtype=torch.float64)
    for some, where in zip(torch.split(own, CHUNK), torch.split(positions, CHUNK), strict=True):
        column = some.double().unsqueeze(1)
        signs = 2 * (hash_words(where.unsqueeze(1), torch.arange(SUMS)) & 1) - 1
        sums += torch.cat([column.square(), column * signs], dim=1).sum(0)
    sums[0].sqrt_()
    numbers: list[float] = sums.tolist()
    return numbers


def _finite_sketch(values: Tensor) -> list[float]:
    """How many values are not finite, then a sketch of the others."""
    finite = values.isfinite()
    return [float((~finite).sum()), *sketch(values.where(finite, torch.zeros_like(values)))]


def _same_answer(a: Sequence[float] | None, b: Sequence[float] | None) -> bool:
    """Whether two processes computed the same, or neither could."""
    if a is None or b is None:
        return a is b
    return a[0] == b[0] and _close(a[1:], b[1:])


def _close(a: Sequence[float], b: Sequence[float]) -> bool:
    scale = max(map(abs, (*a, *b)), default=0.0)
    return len(a) == len(b) and all(isclose(x, y, abs_tol=ROUNDING * scale) for x, y in zip(a, b, strict=True))


def _weights(network: Network) -> list[float]:
    found = []
    for matrix in (network.weights, *([network.push_weights] if isinstance(network, DirectedNetwork) else [])):
        W = matrix.tocoo()
        found += sketch(torch.from_numpy(W.data.copy()), torch.from_numpy(W.row.astype("int64") * network.n + W.col))
    return found


def _frozen_and_buffers(problem: Problem) -> list[list[float]]:
    """For each tensor that clients share untrained: sums of its finite values, and how many are not finite.

    A large frozen base is compared by its own digest.
    """
    model, found = problem.model, []
    frozen = [] if has_frozen_base(model) else [p for p in model.parameters() if not p.requires_grad]
    for tensor in (*frozen, *model.buffers()):
        values = tensor.detach().double()
        finite = values[values.isfinite()]
        found.append([float(finite.abs().sum()), float(finite.sum()), float(values.numel() - finite.numel())])
    return found
