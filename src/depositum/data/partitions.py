"""Partitions of the training samples among clients, a measure of how heterogeneous they are, and a figure of them.

Every sample goes to exactly one client. If a definition leaves a client without samples, that client is given one
sample of the largest client, since it could not take part otherwise: the only departure from the definitions.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from depositum.data.dataset import Dataset, Indices
from depositum.errors import ConfigError, is_integer, short_repr
from depositum.randomness import numpy_generator
from depositum.registry import Registry, Spec

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Factories of `(targets [N], clients, generator, …) -> one sorted index array per client`. A factory may declare
#: `needs_classes` (targets must be classes) or `needs_owners` (it is given `Dataset.clients` instead of the targets).
PARTITIONS = Registry[list[Indices]]("partition", supplied=3)

#: A Dirichlet concentration. NumPy's sampler breaks down far above the limit, where all shares are equal anyway.
Theta = Annotated[float, Field(gt=0, le=1e6)]
Targets = NDArray[Any]

F = TypeVar("F", bound=Callable[..., list[Indices]])


def needs_classes(factory: F) -> F:
    """Declare that a partition divides classes."""
    factory.needs_classes = True  # type: ignore[attr-defined]
    return factory


def needs_owners(factory: F) -> F:
    """Declare that a partition follows the assignment that the data defines."""
    factory.needs_owners = True  # type: ignore[attr-defined]
    return factory


def partition(spec: Spec | None, dataset: Dataset, n: int, seed: int) -> list[Indices]:
    """Divide a dataset's training samples among n clients; the result depends on the seed only.

    Without a `spec`, clients keep the samples that the data assigns to them (`natural`); if it assigns none, samples
    are distributed evenly (`iid`).

    >>> from depositum.data import load
    >>> parts = partition({"dirichlet": 0.5}, load("digits"), n=10, seed=0)
    >>> len(parts), sum(len(part) for part in parts)
    (10, 1437)
    """
    if spec is None:
        spec = "iid" if dataset.clients is None else "natural"
    choice = PARTITIONS.parse(spec, "partition")
    labels = dataset.class_labels
    if labels is None and PARTITIONS.attribute(choice.name, "needs_classes", False):
        problem = f"{choice.name!r} divides classes, but {dataset.name!r} has neither integer labels nor categories"
        raise ConfigError("partition", f"{problem}; use 'iid' or 'quantity', or one file per client")
    samples = len(dataset.train)
    if not is_integer(n):
        raise ConfigError("n", f"{n!r} given; it must be a whole number from 1 to {samples}")
    if not 1 <= n <= samples:
        raise ConfigError("n", f"{n} given, but it must be from 1 to the {samples} training samples")
    rng = numpy_generator(seed, purpose="partition")
    if PARTITIONS.attribute(choice.name, "needs_owners", False):
        if dataset.clients is None:
            problem = f"{choice.name!r} needs data that assigns samples to clients, and {dataset.name!r} does not"
            raise ConfigError("partition", f"{problem}; use another partition, or one file per client")
        if (owners := len(dataset.clients)) != n:
            names = ", ".join(map(short_repr, dataset.client_names[:5])) + (", …" if dataset.client_names[5:] else "")
            found = f"{dataset.name!r} has the data of {owners} client{'s' if owners > 1 else ''}"
            raise ConfigError("n", f"{n} given, but {found}{names and ': ' + names}")
        parts = choice.make(dataset.clients, n, rng)
    else:
        parts = choice.make(dataset.train.targets.cpu().numpy() if labels is None else labels, n, rng)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(samples)), "not a partition"
    return parts


@PARTITIONS.register("iid")
def iid(targets: Targets, n: int, rng: np.random.Generator) -> list[Indices]:
    """Shuffled and distributed evenly; sizes differ by one at most."""
    return _finished(np.array_split(rng.permutation(len(targets)), n), rng)


@PARTITIONS.register("dirichlet")
@needs_classes
def dirichlet(targets: Targets, n: int, rng: np.random.Generator, theta: Theta) -> list[Indices]:
    """The paper's label skew: class k is divided among the clients in proportions p_k ~ Dir(θ 1_n)."""
    parts: list[list[Indices]] = [[] for _ in range(n)]
    for label in np.unique(targets):
        members = rng.permutation(np.flatnonzero(targets == label))
        for part, share in zip(parts, _cut(members, rng.dirichlet(np.full(n, theta))), strict=True):
            part.append(share)
    return _finished([np.concatenate(part) for part in parts], rng)


@PARTITIONS.register("dirichlet-clients")
@needs_classes
def dirichlet_clients(targets: Targets, n: int, rng: np.random.Generator, theta: Theta) -> list[Indices]:
    """Label skew with equal sizes: client i draws its own proportions q_i ~ Dir(θ K π) over the K classes.

    π are the shares of the classes in the data, so that Dir(θ K π) is Dir(θ 1_K) for balanced classes. Clients take
    their samples one after another, in random order; exhausted classes are removed from the proportions of later
    clients. (Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution", 2019, with their α
    written θK.)
    """
    labels, available = np.unique(targets, return_counts=True)
    members = [rng.permutation(np.flatnonzero(targets == label)) for label in labels]
    concentration = theta * available * len(labels) / len(targets)
    sizes = [len(part) for part in np.array_split(targets, n)]
    parts: list[Indices] = [np.empty(0, np.int64)] * n
    for client in rng.permutation(n):
        remaining = available - _counts_per_class(sizes[client], rng.dirichlet(concentration), available)
        taken = zip(members, remaining, available, strict=True)
        parts[client] = np.concatenate([indices[start:end] for indices, start, end in taken])
        available = remaining
    return _finished(parts, rng)


@PARTITIONS.register("shards")
@needs_classes
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
@needs_owners
def natural(owned: Sequence[Indices], n: int, rng: np.random.Generator) -> list[Indices]:
    """The assignment that the data defines: `partition` passes the clients' samples here instead of the targets."""
    return _finished(owned, rng)


def heterogeneity(parts: Sequence[Indices], targets: Targets) -> float:
    """How different the clients' labels are: Σ_i (N_i / N) TV(q_i, π), from 0 (equal distributions) to below 1.

    TV(q, π) = ½ Σ_k |q_k - π_k| is the total-variation distance between a client's label distribution and that of all
    the data. Weighted by the number of samples, the clients' distributions average to π exactly, small clients do not
    dominate, and the largest value is known: 1 - Σ_k π_k², reached if every client has a single class (0.9 for ten
    balanced classes). Regression targets have no labels: nan.

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
    """Number of samples of each class that each client has, `[clients, classes]`, for the classes that occur."""
    labels, codes = np.unique(np.asarray(targets), return_inverse=True)
    return np.stack([np.bincount(codes[part], minlength=len(labels)) for part in parts])


def _cut(indices: Indices, proportions: NDArray[np.float64]) -> list[Indices]:
    """Split an array in these proportions, rounded to the nearest sample."""
    return np.split(indices, np.rint(np.cumsum(proportions)[:-1] * len(indices)).astype(np.int64))


def _counts_per_class(size: int, proportions: NDArray[np.float64], available: NDArray[np.int64]) -> NDArray[np.int64]:
    """Counts per class that sum to `size`, in these proportions as far as the available samples allow."""
    counts = np.zeros_like(available)
    while (missing := size - counts.sum()) > 0:
        weights = np.where(available > counts, proportions, 0)
        if weights.sum() == 0:  # all of the client's classes are exhausted
            weights = (available - counts).astype(np.float64)
        edges = np.rint(np.cumsum(weights) / weights.sum() * missing).astype(np.int64)
        counts = np.minimum(counts + np.diff(edges, prepend=0), available)
    return counts


def _finished(parts: Sequence[Indices], rng: np.random.Generator) -> list[Indices]:
    """Sorted parts, none of which is empty."""
    parts = list(parts)
    for i in range(len(parts)):
        if not len(parts[i]):
            largest = max(range(len(parts)), key=lambda j: len(parts[j]))
            given = rng.integers(len(parts[largest]))
            parts[i] = parts[largest][given : given + 1]
            parts[largest] = np.delete(parts[largest], given)
    return [np.sort(part) for part in parts]


def draw_partition(parts: Sequence[Indices], targets: Targets, ax: "Axes", names: Sequence[str] = ()) -> None:
    """Draw the paper's Fig. "dir" on `ax`: one bar per client, one colour per class; classes may have names.

    A segment is the share of that class's samples that the client has, so that each colour sums to 1 over the clients;
    with n IID clients and K classes, all bars are equal, of height K/n in K equal segments.
    """
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    counts = class_counts(parts, targets)
    shares = counts / counts.sum(axis=0)
    labels = np.unique(targets)
    few = len(labels) <= 10
    colours = colormaps["tab10"](range(10)) if few else colormaps["viridis"](np.linspace(0, 1, len(labels)))
    clients = np.arange(len(parts))
    bottom = np.zeros(len(parts))
    for label, share, colour in zip(labels, shares.T, colours, strict=False):
        ax.bar(clients, share, bottom=bottom, color=colour, label=names[label] if names else str(label))
        bottom += share
    ax.set_ylim(0, 1.05 * bottom.max())
    ax.set_xlabel("client")
    what = "category" if names else "class"
    ax.set_ylabel(f"share of each {what}")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(labels) <= 20:
        ax.legend(title=what, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))  # beside the bars
