"""A graph and a mixing matrix W that satisfy Assumption 2 of the paper, checked where they are put together.

W = Wᵀ and W 1 = 1; w_ii > 0; w_ij > 0 on the edges and 0 elsewhere; the graph is connected. The eigenvalues of W are
then 1 = λ_1 > λ_2 ≥ … ≥ λ_n > -1, and λ = max(|λ_2|, |λ_n|) = ‖W - J‖₂ < 1 says how much of a disagreement one
exchange leaves.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depositum.errors import NetworkError
from depositum.networks.changing import DroppedLinks, OnePeerExponential
from depositum.networks.checks import (
    ROUNDING,
    check_connected,
    check_finite,
    check_matrix,
    check_support,
    stored,
)
from depositum.networks.graphs import Graph, as_clients, from_pairs
from depositum.networks.mixing import Matrix, Sparse, adjacency, entries, with_own_share
from depositum.networks.sources import Mixing, mixing_matrix, real_matrix
from depositum.networks.spectrum import extremes

#: Up to this many clients λ comes from all eigenvalues of the dense W; beyond, from two of them (`spectrum`).
DENSE = 1_000


@dataclass(frozen=True, eq=False)
class Network:
    """The clients' graph and the weights of their exchanges.

    Made by `from_graph`, `from_matrix` or a constructor such as `ring(10)`. Rounding in a given W (up to 1e-12) is
    taken out: the two halves are averaged, and the diagonal makes rows sum to one.

    A network that changes has `drop`, `one_peer` or both; `graph` then has the links of all phases.

    >>> import networkx as nx
    >>> network = Network.from_graph(nx.cycle_graph(10))
    >>> network.n, network.edges, round(network.lam, 4), network.neighbours[0]
    (10, 10, 0.8727, (1, 9))
    """

    graph: Graph
    """Nodes 0 … n-1, frozen."""
    weights: Sparse
    """The mixing matrix W, float64 `[n, n]`, read-only: SciPy's compressed rows, indices sorted, the diagonal stored.

    A dense matrix may be given. With `drop`, the weights while every link is there; with `one_peer`, their mean over
    the phases.
    """
    name: str = "graph"
    """What the graph is called: `"ring(hops=2)"`."""
    mixing: str = "matrix"
    """What the weights are called: `"metropolis"`."""
    drop: DroppedLinks | None = None
    """Which links are missing in which phase, if any ever are."""
    one_peer: OnePeerExponential | None = None
    """Who exchanges with whom in which phase, if with one partner at a time."""

    @classmethod
    def from_graph(
        cls, graph: Graph, mixing: Mixing = "metropolis", name: str = "graph", base: Path | None = None
    ) -> "Network":
        """A network on any networkx graph; `as_clients` says how its nodes are numbered.

        `mixing` is a name, a matrix `[n, n]` whose rows follow the clients, or the path of a file that holds one
        (looked for from `base`).
        """
        clients = as_clients(graph)
        if len(clients) == 0:
            raise NetworkError("network.topology", f"{name!r} has no clients; a network needs 1 or more")
        # Connectedness first: it concerns the graph alone, and is the likelier mistake.
        check_connected(adjacency(clients), "network.topology", repr(name))
        weights, W = mixing_matrix(mixing, clients, base)
        return cls(clients, stored(W), name, weights)

    @classmethod
    def from_matrix(cls, W: NDArray[Any] | Sparse, name: str = "graph") -> "Network":
        """A network from its weights alone, dense or sparse: the edges are where W is not zero."""
        matrix = stored(real_matrix(W, "W"))
        i, j, weights = entries(matrix)
        linked = (i != j) & ~(np.abs(weights) <= ROUNDING)
        graph = from_pairs(matrix.shape[0], np.sort(np.stack([i, j], axis=1)[linked], axis=1))
        check_connected(adjacency(graph), "network.mixing", "the graph of the matrix")
        return cls(graph, matrix, name)

    def __post_init__(self) -> None:
        graph = as_clients(self.graph)
        n = len(graph)
        matrix = stored(self.weights)
        if matrix.shape[0] != n:
            raise NetworkError("network.mixing", f"a matrix of shape {matrix.shape} given; {n} clients need ({n}, {n})")
        links = adjacency(graph)
        check_finite(matrix)
        check_matrix(matrix)
        check_support(matrix, links, self.name)
        check_connected(links, "network.topology", repr(self.name))
        matrix.data[np.abs(matrix.data) <= ROUNDING] = 0.0
        weights = with_own_share(n, *entries(stored((matrix + matrix.T) / 2)))
        for array in (weights.data, weights.indices, weights.indptr):
            array.setflags(write=False)
        object.__setattr__(self, "graph", graph)
        object.__setattr__(self, "weights", weights)

    @property
    def n(self) -> int:
        """The number of clients."""
        return int(self.weights.shape[0])

    @property
    def edges(self) -> int:
        """The number of edges, each counted once."""
        return int(self.weights.nnz - self.n) // 2

    @cached_property
    def W(self) -> Matrix:
        """`weights` as a dense matrix, float64 `[n, n]`, read-only: for small n, as it has n² entries."""
        dense = self.weights.toarray()
        dense.setflags(write=False)
        return dense

    def matrix(self, phase: int) -> Matrix:
        """The dense W `[n, n]` of communication phase 0, 1, …; always `W` if the network does not change."""
        W = self.W if self.one_peer is None else self.one_peer.matrix(phase)
        return W if self.drop is None else self.drop.applied(W, phase)

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """Each client's neighbours, itself not among them, in ascending order."""
        rows = np.split(self.weights.indices, self.weights.indptr[1:-1])
        return tuple(tuple(j for j in row.tolist() if j != i) for i, row in enumerate(rows))

    @cached_property
    def degree(self) -> NDArray[np.int64]:
        """Each client's number of neighbours, `[n]`, read-only."""
        degree = np.diff(self.weights.indptr).astype(np.int64) - 1
        degree.setflags(write=False)
        return degree

    @cached_property
    def is_mean(self) -> bool:
        """Whether W = J = 11ᵀ/n to rounding in every phase, so that an exchange is the mean over all clients."""
        n, changes = self.n, self.drop is not None or self.one_peer is not None
        whole = self.weights.nnz == n * n and not changes
        return whole and bool(np.abs(self.weights.data - 1 / n).max() <= ROUNDING)

    @cached_property
    def eigenvalues(self) -> Matrix:
        """All eigenvalues of W, `[n]`, descending and read-only; what is less than rounding is 0.

        From the dense W, which takes long for thousands of clients; `lam`, `lam2` and `lam_min` do not need it.
        """
        values = np.array(np.linalg.eigvalsh(self.W)[::-1], dtype=np.float64)
        values[np.abs(values) < ROUNDING] = 0.0
        values.setflags(write=False)
        return values

    @cached_property
    def _extremes(self) -> tuple[float, float]:
        """λ_2 and λ_n; 0 and 1 for one client, whose only eigenvalue is λ_1 = 1."""
        if self.n == 1:
            return 0.0, 1.0
        if self.is_mean:
            return 0.0, 0.0
        if self.n <= DENSE:
            return float(self.eigenvalues[1]), float(self.eigenvalues[-1])
        second, last = (value if abs(value) >= ROUNDING else 0.0 for value in extremes(self.weights))
        return second, last

    @property
    def lam(self) -> float:
        """λ = ‖W - J‖₂ = max(|λ_2|, |λ_n|), in [0, 1); 0 is the exact average.

        Of the network while no link is dropped, and of the mean W of a one-peer network.
        """
        # W - J has the eigenvalues of W, but for λ_1 = 1, whose eigenvector is 1.
        return max(map(abs, self._extremes)) if self.n > 1 else 0.0

    @property
    def gap(self) -> float:
        """The spectral gap 1 - λ: the greater, the faster the clients agree."""
        return 1.0 - self.lam

    @property
    def lam2(self) -> float:
        """λ_2, the second largest eigenvalue of W, in (-1, 1); 0 for one client."""
        return self._extremes[0]

    @property
    def lam_min(self) -> float:
        """λ_n, the smallest eigenvalue of W, in (-1, 1]."""
        return self._extremes[1]

    def __str__(self) -> str:
        clients, edges = ("client", "clients")[self.n != 1], ("edge", "edges")[self.edges != 1]
        dropped = "" if self.drop is None else f", each link dropped with probability {self.drop.p:g}"
        return (
            f"{self.name} of {self.n} {clients}, {self.edges} {edges}, {self.mixing} weights, "
            f"λ = {self.lam:.4f}, gap = {self.gap:.4f}{dropped}"
        )
