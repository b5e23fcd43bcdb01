"""Who owns which training sample: partitions by name, and a number for how unlike the clients are.

Every sample goes to exactly one client. Where a definition leaves a client with none, that client is given one sample
of the largest client, since it could take no part otherwise: the one departure from the definitions.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from depositum.data.dataset import Dataset, Indices
from depositum.data.text import TokenSamples
from depositum.errors import ConfigError, is_integer
from depositum.randomness import numpy_generator
from depositum.registry import Registry, Spec

#: Factories of `(targets [N], clients, generator, …) -> one sorted index array per client`.
PARTITIONS = Registry[list[Indices]]("partition", supplied=3)

#: A Dirichlet concentration; NumPy's own draws break down far beyond the upper limit, where all is equal long since.
Theta = Annotated[float, Field(gt=0, le=1e6)]
Targets = NDArray[Any]

_NEEDS_CLASSES = ("dirichlet", "dirichlet-clients", "shards")


def partition(spec: Spec | None, dataset: Dataset, n: int, seed: int, key: str = "problem.partition") -> list[Indices]:
    """Divide a dataset's training samples among n clients: the same for the same seed, whatever else is drawn.

    Without a `spec`, clients keep what the data says is theirs (`natural`), or samples are dealt out evenly (`iid`).

    >>> from depositum.data import load
    >>> parts = partition({"dirichlet": 0.5}, load("digits"), n=10, seed=0)
    >>> len(parts), sum(len(part) for part in parts)
    (10, 1437)
    """
    if spec is None:
        spec = "iid" if dataset.clients is None else "natural"
    choice = PARTITIONS.parse(spec, key)
    kinds = dataset.kinds
    if choice.name in _NEEDS_CLASSES and kinds is None:
        raise ConfigError(key, f"{choice.name!r} divides classes, but {dataset.name!r} {_without_classes(dataset)}")
    samples = len(dataset.train)
    if not is_integer(n):
        raise ConfigError("problem.clients", f"{n!r} given; it must be a whole number from 1 to {samples}")
    if not 1 <= n <= samples:
        raise ConfigError("problem.clients", f"{n} given, but it must be from 1 to the {samples} training samples")
    rng = numpy_generator(seed, purpose="partition")
    if choice.name == "natural":
        if dataset.clients is None:
            raise ConfigError(key, f"'natural' needs data that says who owns what, and {dataset.name!r} does not")
        if len(dataset.clients) != n:
            raise ConfigError(
                "problem.clients", f"{n} given, but {dataset.name!r} is the data of {len(dataset.clients)}"
            )
        parts = choice.make(dataset.clients, n, rng)
    else:
        parts = choice.make(dataset.train.targets.cpu().numpy() if kinds is None else kinds, n, rng)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(samples)), "not a partition"
    return parts


def _without_classes(dataset: Dataset) -> str:
    """Why a dataset cannot be divided by classes, and what can be done instead."""
    if isinstance(dataset.train, TokenSamples):
        return "is text without categories; use 'iid' or 'quantity', or give every client a file of its own"
    return "has none (its targets are not whole numbers); use 'iid' or 'quantity'"


@PARTITIONS.register("iid")
def iid(targets: Targets, n: int, rng: np.random.Generator) -> list[Indices]:
    """Shuffled and dealt out; sizes differ by one at most."""
    return _finished(np.array_split(rng.permutation(len(targets)), n), rng)


@PARTITIONS.register("dirichlet")
def dirichlet(targets: Targets, n: int, rng: np.random.Generator, theta: Theta) -> list[Indices]:
    """The paper's label skew: class k is divided among the clients in proportions p_k ~ Dir(θ 1_n)."""
    parts: list[list[Indices]] = [[] for _ in range(n)]
    for label in np.unique(targets):
        members = rng.permutation(np.flatnonzero(targets == label))
        for part, share in zip(parts, _cut(members, rng.dirichlet(np.full(n, theta))), strict=True):
            part.append(share)
    return _finished([np.concatenate(part) for part in parts], rng)


@PARTITIONS.register("dirichlet-clients")
def dirichlet_clients(targets: Targets, n: int, rng: np.random.Generator, theta: Theta) -> list[Indices]:
    """Label skew at equal sizes: client i draws its own proportions q_i ~ Dir(θ K π) over the K classes.

    π are the shares of the classes in all the data, so that Dir(θ K π) is Dir(θ 1_K) for balanced classes. Clients take
    their samples one after another, in random order; classes that have run out are left out of the later ones'
    proportions. (Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution", 2019, with their α
    written θK.)
    """
    labels, left = np.unique(targets, return_counts=True)
    members = [rng.permutation(np.flatnonzero(targets == label)) for label in labels]
    concentration = theta * left * len(labels) / len(targets)
    sizes = [len(part) for part in np.array_split(targets, n)]
    parts: list[Indices] = [np.empty(0, np.int64)] * n
    for client in rng.permutation(n):
        kept = left - _take(sizes[client], rng.dirichlet(concentration), left)
        parts[client] = np.concatenate([m[k:end] for m, k, end in zip(members, kept, left, strict=True)])
        left = kept
    return _finished(parts, rng)


@PARTITIONS.register("shards")
def shards(
    targets: Targets, n: int, rng: np.random.Generator, per_client: Annotated[int, Field(ge=1)] = 2
) -> list[Indices]:
    """Samples sorted by label and cut into n·per_client shards of equal size; each client gets per_client of them."""
    shuffled = rng.permutation(len(targets))
    by_label = shuffled[np.argsort(targets[shuffled], kind="stable")]
    pieces = np.array_split(by_label, n * per_client)
    dealt = rng.permutation(len(pieces)).reshape(n, per_client)
    return _finished([np.concatenate([pieces[j] for j in row]) for row in dealt], rng)


@PARTITIONS.register("quantity")
def quantity(targets: Targets, n: int, rng: np.random.Generator, theta: Theta) -> list[Indices]:
    """Quantity skew: shares of the samples ~ Dir(θ 1_n), labels IID."""
    return _finished(_cut(rng.permutation(len(targets)), rng.dirichlet(np.full(n, theta))), rng)


@PARTITIONS.register("natural")
def natural(owned: Sequence[Indices], n: int, rng: np.random.Generator) -> list[Indices]:
    """What the data itself says: `partition` passes its owners here in place of the targets."""
    return _finished(owned, rng)


def heterogeneity(parts: Sequence[Indices], targets: Targets) -> float:
    """How unlike the clients' labels are: Σ_i (N_i / N) TV(q_i, π), from 0 (all alike) to below 1.

    TV(q, π) = ½ Σ_k |q_k - π_k| is the total-variation distance between a client's label distribution and that of all
    the data. Weighted by samples, clients' distributions average to π exactly, tiny clients do not decide the number,
    and its largest value is known: 1 - Σ_k π_k², reached when every client holds a single class (0.9 for ten balanced
    classes). Regression targets have no labels: nan.

    >>> heterogeneity([np.array([0, 1]), np.array([2, 3])], np.array([0, 1, 0, 1]))
    0.0
    >>> heterogeneity([np.array([0, 2]), np.array([1, 3])], np.array([0, 1, 0, 1]))
    0.5
    """
    targets = np.asarray(targets)
    if targets.dtype.kind == "f":
        return float("nan")
    counts = class_counts(parts, targets)
    total = counts.sum()
    sizes = counts.sum(axis=1, keepdims=True)
    return float(np.abs(counts - sizes * (counts.sum(axis=0) / total)).sum() / (2 * total))


def class_counts(parts: Sequence[Indices], targets: Targets) -> NDArray[np.int64]:
    """How many samples of each class each client has, `[clients, classes]`; only classes that occur are counted."""
    labels, codes = np.unique(np.asarray(targets), return_inverse=True)
    return np.stack([np.bincount(codes[part], minlength=len(labels)) for part in parts])


def _cut(indices: Indices, proportions: NDArray[np.float64]) -> list[Indices]:
    """Cut an array in these proportions, to the nearest sample."""
    return np.split(indices, np.rint(np.cumsum(proportions)[:-1] * len(indices)).astype(np.int64))


def _take(size: int, proportions: NDArray[np.float64], left: NDArray[np.int64]) -> NDArray[np.int64]:
    """Counts per class that add up to `size`, in these proportions as far as what is left allows."""
    taken = np.zeros_like(left)
    while (short := size - taken.sum()) > 0:
        weights = np.where(left > taken, proportions, 0)
        if weights.sum() == 0:  # none of the client's own classes is left
            weights = (left - taken).astype(np.float64)
        edges = np.rint(np.cumsum(weights) / weights.sum() * short).astype(np.int64)
        taken = np.minimum(taken + np.diff(edges, prepend=0), left)
    return taken


def _finished(parts: Sequence[Indices], rng: np.random.Generator) -> list[Indices]:
    """Sorted parts, none of them empty."""
    parts = list(parts)
    for i in range(len(parts)):
        if not len(parts[i]):
            largest = max(range(len(parts)), key=lambda j: len(parts[j]))
            given = rng.integers(len(parts[largest]))
            parts[i] = parts[largest][given : given + 1]
            parts[largest] = np.delete(parts[largest], given)
    return [np.sort(part) for part in parts]
