"""A graph and a mixing matrix W on it, validated against Assumption 2 of the paper.

Assumption 2: W = Wᵀ and W 1 = 1; w_ii > 0; w_ij > 0 on the edges and 0 elsewhere; the graph is connected. The
eigenvalues of W are then 1 = λ_1 > λ_2 ≥ … ≥ λ_n > -1, and λ = max(|λ_2|, |λ_n|) = ‖W - J‖₂ < 1 is the fraction of a
disagreement that one exchange leaves.
"""

from dataclasses import dataclass
from functools import cached_property
from math import exp, log
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from depositum.errors import NetworkError
from depositum.networks.graph_sequence import GraphSequence
from depositum.networks.graphs import Graph, as_client_graph, graph_from_pairs
from depositum.networks.mixing_matrices import Matrix, Sparse, adjacency, row_sums, stored_entries, with_diagonal
from depositum.networks.participation import Participation
from depositum.networks.specifications import Mixing, mixing_matrix, real_matrix
from depositum.networks.spectrum import extreme_eigenvalues
from depositum.networks.time_varying import DroppedLinks, LostMessages, OnePeerExponential

#: Tolerance for rounding in the symmetry, row sums and zeros of a given matrix, and in λ.
ROUNDING = 1e-12

#: Phases over which the effective λ of links that come and go at random is computed, and the most clients for which it
#: is part of a network's description.
RANDOM_WINDOW, MAX_WINDOW_CLIENTS = 50, 200

#: Up to this many clients λ comes from all eigenvalues of the dense W, beyond from `extreme_eigenvalues`.
MAX_DENSE_CLIENTS = 1_000


@dataclass(frozen=True, eq=False)
class Network:
    """The clients' graph and the weights of their exchanges.

    Made by `from_graph`, `from_matrix` or a constructor such as `ring(10)`. Rounding errors in a given W (up to 1e-12)
    are removed: W is replaced by (W + Wᵀ) / 2, and its diagonal set so that rows sum to one.

    A time-varying network has `drop`, `one_peer` or `participation`, or several of them, or `sequence`; `graph` then
    contains the links of all phases.

    >>> import networkx as nx
    >>> network = Network.from_graph(nx.cycle_graph(10))
    >>> network.n, network.edges, round(network.lam, 4), network.neighbours[0]
    (10, 10, 0.8727, (1, 9))
    """

    #: Whether links have a direction, and R and C take the place of W (`DirectedNetwork`).
    directed: ClassVar[bool] = False

    graph: Graph
    """Nodes 0 … n-1, frozen."""
    weights: Sparse
    """The mixing matrix W, float64 `[n, n]`, read-only: SciPy's CSR format, indices sorted, the diagonal stored.

    A dense matrix may be given. With `drop`, the weights while every link is present; with `one_peer` or `sequence`,
    their mean over the phases.
    """
    name: str = "graph"
    """Name of the graph: `"ring(hops=2)"`."""
    mixing: str = "matrix"
    """Name of the mixing rule: `"metropolis"`."""
    drop: DroppedLinks | None = None
    """Which links are missing in which phase, if links are dropped."""
    one_peer: OnePeerExponential | None = None
    """Who exchanges with whom in which phase, if clients exchange with one partner at a time."""
    lost: LostMessages | None = None
    """Which messages are lost or late in one direction of a link."""
    sequence: GraphSequence | None = None
    """Which graph there is in which phase, if each phase has another one."""
    participation: Participation | None = None
    """Which clients take part in which phase, if some rest; links to a client that rests are absent."""

    @classmethod
    def from_graph(
        cls, graph: Graph, mixing: Mixing = "metropolis", name: str = "graph", base: Path | None = None
    ) -> "Network":
        """A network on any networkx graph, with clients numbered by `as_client_graph`.

        `mixing` is a name, a matrix `[n, n]` whose rows follow the clients, or the path of a file that contains one
        (relative to `base`).
        """
        clients = as_client_graph(graph)
        if len(clients) == 0:
            raise NetworkError("topology", f"{name!r} has no clients; a network needs 1 or more")
        # Connectedness first: it concerns the graph alone, and is the likelier mistake.
        _check_connected(adjacency(clients), "topology", repr(name))
        rule, W = mixing_matrix(mixing, clients, base)
        return cls(clients, _to_csr(W), name, rule)

    @classmethod
    def from_matrix(cls, W: NDArray[Any] | Sparse, name: str = "graph") -> "Network":
        """A network given by its weights alone, dense or sparse: the edges are the nonzero entries of W."""
        matrix = _to_csr(real_matrix(W, "W"))
        i, j, weights = stored_entries(matrix)
        linked = (i != j) & ~(np.abs(weights) <= ROUNDING)
        graph = graph_from_pairs(matrix.shape[0], np.sort(np.stack([i, j], axis=1)[linked], axis=1))
        _check_connected(adjacency(graph), "mixing", "the graph of the matrix")
        return cls(graph, matrix, name)

    def __post_init__(self) -> None:
        self._check_combination()
        graph = as_client_graph(self.graph)
        n = len(graph)
        matrix = _to_csr(self.weights)
        if matrix.shape[0] != n:
            raise NetworkError("mixing", f"a matrix of shape {matrix.shape} given; {n} clients need ({n}, {n})")
        links = adjacency(graph)
        _check_finite(matrix)
        _check_symmetric_and_stochastic(matrix)
        _check_support(matrix, links, self.name)
        _check_connected(links, "topology", repr(self.name))
        matrix.data[np.abs(matrix.data) <= ROUNDING] = 0.0
        weights = with_diagonal(n, *stored_entries(_to_csr((matrix + matrix.T) / 2)))
        for array in (weights.data, weights.indices, weights.indptr):
            array.setflags(write=False)
        object.__setattr__(self, "graph", graph)
        object.__setattr__(self, "weights", weights)

    def _check_combination(self) -> None:
        """Refuse lost messages where weights change: running sums are divided by the weights of all phases at once."""
        if self.sequence is not None and (self.intermittent or self.one_peer is not None):
            key = "drop" if self.participation is None else "participation"
            raise NetworkError(key, "given, but each phase has a graph of its own; leave edges out of the graphs")
        if self.lost is not None and self.varies:
            raise NetworkError(
                "lost" if self.lost.p else "late",
                "given, but the links of this network come and go: running sums need the same weights in every phase",
            )

    @property
    def has_push_weights(self) -> bool:
        """Whether push-sum weights φ are not 1: on directed networks, and where messages are on their way."""
        return self.directed or self.lost is not None

    @property
    def n(self) -> int:
        """Number of clients."""
        return int(self.weights.shape[0])

    @property
    def edges(self) -> int:
        """Number of edges, each counted once."""
        return int(self.weights.nnz - self.n) // 2

    @cached_property
    def W(self) -> Matrix:
        """`weights` as a dense matrix, float64 `[n, n]`, read-only; meant for small n, as it has n² entries."""
        dense = self.weights.toarray()
        dense.setflags(write=False)
        return dense

    def matrix(self, phase: int) -> Matrix:
        """The dense W `[n, n]` of communication phase 0, 1, …; always `W` if the network does not vary in time."""
        if self.sequence is not None:
            dense: Matrix = self.sequence.weights[self.sequence.at(phase)].toarray()
            return dense
        W = self.W if self.one_peer is None else self.one_peer.matrix(phase)
        return without_absent(W, self, phase) if self.intermittent else W

    @property
    def intermittent(self) -> bool:
        """Whether links of the graph are absent in some phases, so that their weights return to their ends."""
        return self.drop is not None or self.participation is not None

    @property
    def varies(self) -> bool:
        """Whether W is another one in each phase."""
        return self.intermittent or self.one_peer is not None or self.sequence is not None

    @property
    def share(self) -> float:
        """The share of the clients that take part in a phase."""
        return 1.0 if self.participation is None else self.participation.size(self.n) / self.n

    def present(self, phase: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Whether no link between clients i and j is absent in a phase: bool, of the broadcast shape of the arguments.

        All arguments are int64, of one device.
        """
        there = torch.ones_like(phase + i + j, dtype=torch.bool)
        if self.drop is not None:
            there = there & self.drop.present(phase, i, j)
        if self.participation is not None:
            awake = self.participation.present(phase, torch.arange(self.n, device=phase.device), self.n)
            there = there & awake[i] & awake[j]
        return there

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """Each client's neighbours, without itself, in ascending order."""
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
        """Whether W = J = 11ᵀ/n up to rounding in every phase, so that an exchange is the mean over all clients."""
        return self._has_equal_weights and not self.varies

    @cached_property
    def _has_equal_weights(self) -> bool:
        """Whether `weights` are J up to rounding."""
        return self.weights.nnz == self.n**2 and bool(np.abs(self.weights.data - 1 / self.n).max() <= ROUNDING)

    @cached_property
    def eigenvalues(self) -> Matrix:
        """All eigenvalues of W, `[n]`, descending and read-only; those smaller than rounding errors are set to 0.

        Computed from the dense W, which is slow for thousands of clients; `lam`, `lam2` and `lam_min` do not need it.
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
        if self._has_equal_weights:
            return 0.0, 0.0
        if self.n <= MAX_DENSE_CLIENTS:
            return float(self.eigenvalues[1]), float(self.eigenvalues[-1])
        second, last = (value if abs(value) >= ROUNDING else 0.0 for value in extreme_eigenvalues(self.weights))
        return second, last

    @property
    def lam(self) -> float:
        """λ = ‖W - J‖₂ = max(|λ_2|, |λ_n|), in [0, 1); 0 means exact averaging.

        It refers to the network with all links present, and to the mean W of a one-peer network.
        """
        # W - J has the eigenvalues of W except for λ_1 = 1, whose eigenvector is 1.
        return max(map(abs, self._extremes)) if self.n > 1 else 0.0

    @property
    def window(self) -> int:
        """The phases after which links come again; of links that come and go at random, `RANDOM_WINDOW`."""
        if self.one_peer is not None and self.drop is None:
            return max(self.one_peer.phases, 1)
        if self.sequence is not None and self.sequence.order == "periodic":
            return len(self.sequence)
        return RANDOM_WINDOW if self.varies else 1

    def effective_lam(self, phases: int | None = None) -> float:
        """‖(I − J) W^{B−1} ⋯ W^0‖^{1/B}: the fraction of a disagreement that remains per phase, over B phases.

        The norm is the largest singular value. B is `phases`, by default `window`; for B = 1 on a network that does
        not vary it is λ. On directed networks it is that of R.

        >>> from depositum.networks import one_peer_exponential
        >>> one_peer_exponential(8).effective_lam()
        0.0
        """
        count = self.window if phases is None else phases
        product, logarithm = np.eye(self.n) - 1 / self.n, 0.0
        for phase in range(count):
            product = self.matrix(phase) @ product
            product = product - product.mean(0)
            if (norm := float(np.linalg.norm(product, 2))) < ROUNDING:
                return 0.0
            product, logarithm = product / norm, logarithm + log(norm)  # of many phases it would be all rounding
        return exp(logarithm / count)

    @property
    def gap(self) -> float:
        """The spectral gap 1 - λ: the larger, the faster the clients agree."""
        return 1.0 - self.lam

    @property
    def lam2(self) -> float:
        """λ_2, the second largest eigenvalue of W, in (-1, 1); 0 for one client."""
        return self._extremes[0]

    @property
    def lam_min(self) -> float:
        """λ_n, the smallest eigenvalue of W, in (-1, 1]."""
        return self._extremes[1]

    def _described_window(self) -> str:
        """λ over a window of phases, as part of a sentence, where it says more than λ and is quick to compute."""
        if (self.one_peer is None and self.sequence is None) or self.n > MAX_WINDOW_CLIENTS:
            return ""
        return f", effective λ = {self.effective_lam():.4f} over {self.window} phases"

    def __str__(self) -> str:
        clients, edges = ("client", "clients")[self.n != 1], ("edge", "edges")[self.edges != 1]
        dropped = "" if self.drop is None else f", each link dropped with probability {self.drop.p:g}"
        dropped += "" if self.lost is None else f", {self.lost}"
        dropped += "" if self.share == 1 else f", {round(self.share * self.n)} of {self.n} take part in a phase"
        dropped += self._described_window()
        return (
            f"{self.name} of {self.n} {clients}, {self.edges} {edges}, {self.mixing} weights, "
            f"λ = {self.lam:.4f}, gap = {self.gap:.4f}{dropped}"
        )


def without_absent(W: Matrix, network: Network, phase: int) -> Matrix:
    """The dense W `[n, n]` of a phase, given the W with all links present: absent weights return to their ends."""
    W = W.copy()
    i, j = np.nonzero(np.triu(W, 1))
    absent = ~network.present(torch.tensor(phase), torch.from_numpy(i), torch.from_numpy(j)).numpy()
    i, j = i[absent], j[absent]
    weights = W[i, j]
    W[i, j] = W[j, i] = 0.0
    np.add.at(W, (i, i), weights)
    np.add.at(W, (j, j), weights)
    return W


# The conditions of Assumption 2, each with an error message that names the first offending entry.


def _to_csr(W: Any) -> Sparse:
    """A sparse copy of a square matrix, dense or sparse: indices sorted, no duplicates, no stored zeros."""
    if W.ndim != 2 or W.shape[0] != W.shape[1] or W.shape[0] == 0:
        raise NetworkError("mixing", f"a matrix of shape {W.shape} given; W must be square, one row per client")
    copy: Sparse = sparse.csr_array(W, dtype=np.float64, copy=True)
    copy.sum_duplicates()
    copy.eliminate_zeros()
    return copy


def _check_finite(W: Sparse) -> None:
    if (bad := _first_nonzero(_indicator(W, ~np.isfinite(W.data)))) is not None:
        i, j = bad
        raise NetworkError("mixing", f"w[{i}, {j}] = {W[i, j]} is not finite; weights must be numbers ≥ 0")


def _check_symmetric_and_stochastic(W: Sparse) -> None:
    """W = Wᵀ and W 1 = 1."""
    difference = sparse.csr_array(W - W.T)
    if (bad := _first_nonzero(_indicator(difference, np.abs(difference.data) > ROUNDING))) is not None:
        i, j = bad
        raise NetworkError(
            "mixing",
            f"the matrix is not symmetric: w[{i}, {j}] = {W[i, j]!s} but w[{j}, {i}] = {W[j, i]!s}; "
            "both clients must give the link the same weight",
        )
    sums = row_sums(W)
    if (errors := np.abs(sums - 1)).max() > ROUNDING:
        i = np.flatnonzero(errors > ROUNDING)[0]
        raise NetworkError(
            "mixing",
            f"row {i} sums to {sums[i]!s} instead of 1; give the weights in full float64 precision, "
            f"with w[{i}, {i}] = 1 - the sum of the other weights in the row",
        )


def _check_support(W: Sparse, links: Sparse, name: str) -> None:
    """Positive on edges (where `links` is 1) and on the diagonal, zero elsewhere."""
    required = sparse.csr_array(links + sparse.eye_array(W.shape[0]))
    positive, nonzero = _indicator(W, W.data > ROUNDING), _indicator(W, np.abs(W.data) > ROUNDING)
    if (bad := _first_nonzero((required - required * positive) + (nonzero - nonzero * required))) is None:
        return
    i, j = bad
    weight = f"w[{i}, {j}] = {W[i, j]!s}"
    if i == j:
        problem = f"{weight} given; diagonal weights must be positive: try (I + W) / 2"
    elif links[i, j]:
        problem = f"{weight} given, but clients {i} and {j} are linked in {name!r}; edge weights must be positive"
    else:
        problem = (
            f"{weight} given, but clients {i} and {j} are not linked in {name!r}; "
            "add the edge to the topology, or set the weight to 0"
        )
    raise NetworkError("mixing", problem)


def _check_connected(links: Sparse, key: str, what: str) -> None:
    """Every client reaches every other along `links`; `key` and `what` name the user's input."""
    count, component = connected_components(links, directed=False)
    if count > 1:
        stranded = np.flatnonzero(component != component[0])[0]
        raise NetworkError(
            key,
            f"{what} has {count} components: client {stranded} cannot reach client 0; "
            "every client must reach every other: add edges between the components",
        )


def _first_nonzero(matrix: Any) -> tuple[int, int] | None:
    """Row and column of the first nonzero entry of a sparse matrix, in row-major order."""
    rows, columns = sparse.csr_array(matrix).nonzero()
    return (int(rows[0]), int(columns[0])) if len(rows) else None


def _indicator(W: Sparse, chosen: NDArray[np.bool_]) -> Sparse:
    """A matrix `[n, n]` with 1 at the chosen ones of the stored entries of W."""
    return sparse.csr_array((chosen.astype(np.float64), W.indices, W.indptr), shape=W.shape)
