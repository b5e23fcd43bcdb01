"""A graph and a mixing matrix W that satisfy Assumption 2 of the paper, checked where they are put together.

W = Wᵀ and W 1 = 1; w_ii > 0; w_ij > 0 on the edges and 0 elsewhere; the graph is connected. The eigenvalues of W are
then 1 = λ_1 > λ_2 ≥ … ≥ λ_n > -1, and λ = max(|λ_2|, |λ_n|) = ‖W - J‖₂ < 1 says how much of a disagreement one
exchange leaves.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from depositum.errors import NetworkError
from depositum.networks.graphs import Graph, as_clients, from_pairs
from depositum.networks.mixing import Matrix, adjacency, with_own_share
from depositum.networks.sources import Mixing, mixing_matrix, real_matrix

#: What counts as rounding: in the symmetry, row sums and zeros of a given matrix, and in λ.
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Network:
    """The clients' graph and the weights of their exchanges.

    Made by `from_graph`, `from_matrix` or a constructor such as `ring(10)`. Rounding in a given W (up to 1e-12) is
    taken out: the two halves are averaged, and the diagonal makes rows sum to one.

    >>> network = Network.from_graph(nx.cycle_graph(10))
    >>> network.n, network.edges, round(network.lam, 4), network.neighbours[0]
    (10, 10, 0.8727, (1, 9))
    """

    graph: Graph
    """Nodes 0 … n-1, frozen."""
    W: Matrix
    """The mixing matrix, float64 `[n, n]`, read-only."""
    name: str = "graph"
    """What the graph is called: `"ring(hops=2)"`."""
    mixing: str = "matrix"
    """What the weights are called: `"metropolis"`."""

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
        _check_connected(clients, "network.topology", repr(name))
        weights, W = mixing_matrix(mixing, clients, base)
        return cls(clients, W, name, weights)

    @classmethod
    def from_matrix(cls, W: NDArray[Any], name: str = "graph") -> "Network":
        """A network from its weights alone: the edges are where W is not zero."""
        matrix = real_matrix(W, "W")
        _check_square(matrix)
        linked = ~(np.abs(matrix) <= ROUNDING)
        graph = from_pairs(len(matrix), linked | linked.T)
        _check_connected(graph, "network.mixing", "the graph of the matrix")
        return cls(graph, matrix, name)

    def __post_init__(self) -> None:
        graph = nx.freeze(as_clients(self.graph))
        matrix = np.array(self.W, dtype=np.float64)
        _check_square(matrix)
        if len(matrix) != len(graph):
            raise NetworkError(
                "network.mixing",
                f"a matrix of shape {matrix.shape} given; {len(graph)} clients need ({len(graph)}, {len(graph)})",
            )
        _check_finite(matrix)
        _check_matrix(matrix)
        _check_support(matrix, graph, self.name)
        _check_connected(graph, "network.topology", repr(self.name))
        matrix[np.abs(matrix) <= ROUNDING] = 0.0
        W = with_own_share((matrix + matrix.T) / 2)
        W.setflags(write=False)
        object.__setattr__(self, "graph", graph)
        object.__setattr__(self, "W", W)

    @property
    def n(self) -> int:
        """The number of clients."""
        return len(self.W)

    @property
    def edges(self) -> int:
        """The number of edges, each counted once."""
        return self.graph.number_of_edges()

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """Each client's neighbours, itself not among them, in ascending order."""
        return tuple(tuple(sorted(self.graph.neighbors(i))) for i in range(self.n))

    @cached_property
    def degree(self) -> NDArray[np.int64]:
        """Each client's number of neighbours, `[n]`, read-only."""
        degree = np.array([len(around) for around in self.neighbours], dtype=np.int64)
        degree.setflags(write=False)
        return degree

    @cached_property
    def eigenvalues(self) -> Matrix:
        """The eigenvalues of W, `[n]`, descending and read-only; what is less than rounding is 0."""
        values = np.array(np.linalg.eigvalsh(self.W)[::-1], dtype=np.float64)
        values[np.abs(values) < ROUNDING] = 0.0
        values.setflags(write=False)
        return values

    @property
    def lam(self) -> float:
        """λ = ‖W - J‖₂ = max(|λ_2|, |λ_n|), in [0, 1); 0 is the exact average."""
        # W - J has the eigenvalues of W, but for λ_1 = 1, whose eigenvector is 1.
        return float(np.abs(self.eigenvalues[1:]).max(initial=0.0))

    @property
    def gap(self) -> float:
        """The spectral gap 1 - λ: the greater, the faster the clients agree."""
        return 1.0 - self.lam

    @property
    def lam_min(self) -> float:
        """The smallest eigenvalue of W, in (-1, 1]."""
        return float(self.eigenvalues[-1])

    def __str__(self) -> str:
        clients, edges = ("client", "clients")[self.n != 1], ("edge", "edges")[self.edges != 1]
        return (
            f"{self.name} of {self.n} {clients}, {self.edges} {edges}, {self.mixing} weights, "
            f"λ = {self.lam:.4f}, gap = {self.gap:.4f}"
        )


def _check_square(W: Matrix) -> None:
    if W.ndim != 2 or W.shape[0] != W.shape[1] or W.size == 0:
        raise NetworkError("network.mixing", f"a matrix of shape {W.shape} given; W is square, one row per client")


def _check_finite(W: Matrix) -> None:
    if len(bad := np.argwhere(~np.isfinite(W))):
        i, j = bad[0]
        raise NetworkError("network.mixing", f"w[{i}, {j}] = {W[i, j]} is not finite; every weight is a number ≥ 0")


def _check_matrix(W: Matrix) -> None:
    """W = Wᵀ and W 1 = 1."""
    if len(bad := np.argwhere(np.abs(W - W.T) > ROUNDING)):
        i, j = bad[0]
        raise NetworkError(
            "network.mixing",
            f"the matrix is not symmetric: w[{i}, {j}] = {W[i, j]!s} but w[{j}, {i}] = {W[j, i]!s}; "
            "both clients must give the link the same weight",
        )
    sums = W.sum(axis=1)
    if (errors := np.abs(sums - 1)).max() > ROUNDING:
        i = np.flatnonzero(errors > ROUNDING)[0]
        raise NetworkError(
            "network.mixing",
            f"row {i} sums to {sums[i]!s} and not to 1; give the weights in full float64 precision, "
            f"with w[{i}, {i}] = 1 - the others of its row",
        )


def _check_support(W: Matrix, graph: Graph, name: str) -> None:
    """Positive on edges and on the diagonal, zero elsewhere."""
    linked = (adjacency(graph) + np.eye(len(W))) > 0
    for i, j in np.argwhere(np.where(linked, ROUNDING >= W, np.abs(W) > ROUNDING)):
        weight = f"w[{i}, {j}] = {W[i, j]!s}"
        if i == j:
            problem = f"{weight} given; every client keeps a positive share of its own value: try (I + W) / 2"
        elif linked[i, j]:
            problem = f"{weight} given, but clients {i} and {j} are linked in {name!r}; an edge's weight is positive"
        else:
            problem = (
                f"{weight} given, but clients {i} and {j} are not linked in {name!r}; "
                "add the edge to network.topology, or set the weight to 0"
            )
        raise NetworkError("network.mixing", problem)


def _check_connected(graph: Graph, key: str, what: str) -> None:
    components = [sorted(component) for component in nx.connected_components(graph)]
    if len(components) > 1:
        stranded = min(min(component) for component in components if 0 not in component)
        raise NetworkError(
            key,
            f"{what} has {len(components)} components: client {stranded} cannot reach client 0; "
            "every client must reach every other: add edges between the components",
        )
