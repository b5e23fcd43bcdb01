"""Directed networks: who sends to whom, with row-stochastic weights R for models and column-stochastic C for trackers.

On a digraph no weights are symmetric, and in general none are doubly stochastic that a client can know by itself. A
receiver can divide its weight among those it hears, R 1 = 1, which lets clients agree but changes averages; a sender
can divide what it has among those it sends to, 1ᵀ C = 1ᵀ, which preserves sums but does not let clients agree. Methods
for directed networks use R for what has to agree, C for what has to add up, and the push-sum weights φ⁺ = C φ, φ⁰ = 1,
by which what C has made unequal is divided.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeGuard

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from depositum.errors import NetworkError, short_repr
from depositum.networks.communication_network import ROUNDING, Network
from depositum.networks.graph_sequence import GraphSequence, Order, mean_of
from depositum.networks.graphs import MAX_DRAWS, Graph
from depositum.networks.mixing_matrices import Matrix, Sparse, stored_entries
from depositum.networks.specifications import Mixing, read_edges
from depositum.randomness import numpy_generator
from depositum.registry import Choice, Registry, Spec

#: Directed networks by name; the package supplies the number of clients.
DIRECTED_TOPOLOGIES: "Registry[DirectedNetwork]" = Registry("directed topology", supplied=1)


@dataclass(frozen=True, eq=False)
class DirectedNetwork(Network):
    """A strongly connected digraph with the weights R (`weights`, "pull") and C (`push_weights`, "push").

    An edge (i, j) means that i sends to j. By default a receiver gives the same weight to itself and to all it hears,
    1/(1 + in-degree), and a sender divides what it has into equal parts, 1/(1 + out-degree).

    >>> network = DirectedNetwork.from_digraph(nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)]))
    >>> network.n, network.edges, network.neighbours[2], network.degree.tolist()
    (3, 4, (0, 1), [2, 1, 1])
    >>> network.C.round(2).tolist()
    [[0.33, 0.0, 0.5], [0.33, 0.5, 0.0], [0.33, 0.5, 0.5]]
    """

    directed: ClassVar[bool] = True

    push_weights: Sparse = field(kw_only=True)
    """C, float64 `[n, n]`, read-only, with the same entries stored as R: c_ij is the part of j's that i receives."""

    @classmethod
    def from_digraph(
        cls, graph: Any, R: Matrix | None = None, C: Matrix | None = None, name: str = "digraph"
    ) -> "DirectedNetwork":
        """A network on any networkx digraph, with clients numbered in the sorted order of its nodes.

        R and C, `[n, n]`, replace the default weights; their nonzero entries are the edges and the diagonal.
        """
        clients = as_client_digraph(graph)
        if len(clients) == 0:
            raise NetworkError("topology", f"{name!r} has no clients; a network needs 1 or more")
        rows, columns = equal_weights(clients)
        if R is not None:
            rows = sparse.csr_array(np.asarray(R, dtype=np.float64))
        if C is not None:
            columns = sparse.csr_array(np.asarray(C, dtype=np.float64))
        return cls(clients, rows, name, "equal" if R is None and C is None else "given", push_weights=columns)

    @classmethod
    def from_digraphs(
        cls, graphs: Sequence[Any], order: Order = "periodic", seed: int = 0, name: str = "digraphs"
    ) -> "DirectedNetwork":
        """A network with another digraph in every phase, with the default weights of each.

        The digraphs have the same nodes 0 … n − 1; together they must be strongly connected.
        """
        pairs = [equal_weights(graph) for graph in graphs]
        sequence = GraphSequence(tuple(R for R, _ in pairs), tuple(C for _, C in pairs), order, seed)
        union = _numbered(len(graphs[0]), [edge for graph in graphs for edge in graph.edges()])
        means = mean_of(sequence.weights), mean_of(sequence.push_weights)
        return cls(union, means[0], name, "equal", sequence=sequence, push_weights=means[1])

    def __post_init__(self) -> None:
        if self.drop is not None or self.one_peer is not None:
            raise NetworkError(
                "drop", "given, but links of a directed network have one direction; messages are lost by `lost`"
            )
        if self.participation is not None:
            raise NetworkError("participation", "given, but the network is directed; clients rest on undirected ones")
        self._check_combination()
        graph = as_client_digraph(self.graph)
        n = len(graph)
        linked = np.eye(n, dtype=bool)
        for sender, receiver in graph.edges():
            linked[receiver, sender] = True
        count, component = connected_components(sparse.csr_array(linked), directed=True, connection="strong")
        if count > 1:
            other = int(np.flatnonzero(component != component[0])[0])
            raise NetworkError(
                "topology",
                f"{self.name!r} is not strongly connected: clients 0 and {other} do not both reach each other along "
                "directed edges; add edges",
            )
        for matrix, key, axis, sums in (
            (self.weights, "R", 1, "row"),
            (self.push_weights, "C", 0, "column"),
        ):
            dense = matrix.toarray()
            if dense.shape != (n, n) or not np.isfinite(dense).all():
                raise NetworkError(key, f"a matrix of shape {dense.shape} given; finite weights [{n}, {n}] are needed")
            if (wrong := (dense > ROUNDING) != linked).any():
                i, j = (int(k) for k in np.argwhere(wrong)[0])
                expected = "> 0, as every client keeps a share and each edge has a weight" if linked[i, j] else "0"
                raise NetworkError(key, f"[{i}, {j}] = {dense[i, j]:g} given; it must be {expected}")
            if (off := np.abs(dense.sum(axis) - 1)).max() > ROUNDING * n:
                k = int(off.argmax())
                raise NetworkError(key, f"{sums} {k} sums to {dense.sum(axis)[k]!s}; it must sum to 1")
        for name, matrix in (("weights", self.weights), ("push_weights", self.push_weights)):
            stored = sparse.csr_array(np.where(linked, matrix.toarray(), 0.0))
            stored.sort_indices()
            for array in (stored.data, stored.indices, stored.indptr):
                array.setflags(write=False)
            object.__setattr__(self, name, stored)
        object.__setattr__(self, "graph", graph)

    @property
    def edges(self) -> int:
        """Number of directed edges."""
        return int(self.weights.nnz - self.n)

    @property
    def R(self) -> Matrix:
        """`weights` as a dense matrix, row-stochastic, `[n, n]`."""
        return self.W

    @cached_property
    def C(self) -> Matrix:
        """`push_weights` as a dense matrix, column-stochastic, `[n, n]`."""
        dense: Matrix = self.push_weights.toarray()
        dense.setflags(write=False)
        return dense

    @cached_property
    def listeners(self) -> tuple[tuple[int, ...], ...]:
        """The clients that each client sends to, in ascending order; `neighbours` are those it hears."""
        columns = sparse.csr_array(self.push_weights.T)
        columns.sort_indices()
        rows = np.split(columns.indices, columns.indptr[1:-1])
        return tuple(tuple(j for j in row.tolist() if j != i) for i, row in enumerate(rows))

    @cached_property
    def degree(self) -> NDArray[np.int64]:
        """The number of clients that each client sends to, `[n]`, read-only."""
        _, receivers_of, _ = stored_entries(self.push_weights)
        degree = np.bincount(receivers_of, minlength=self.n).astype(np.int64) - 1
        degree.setflags(write=False)
        return degree

    @cached_property
    def is_mean(self) -> bool:
        return False

    @cached_property
    def perron(self) -> Matrix:
        """π with C π = π, Σ π = 1: φ converges to n π. For the ring and other regular digraphs all are 1/n."""
        values, vectors = np.linalg.eig(self.C)
        vector = np.abs(np.real(vectors[:, np.argmin(np.abs(values - 1))]))
        return np.asarray(vector / vector.sum(), dtype=np.float64)

    @cached_property
    def _extremes(self) -> tuple[float, float]:
        """±λ, with λ the larger of the second largest moduli of the eigenvalues of R and C: no bound of a norm."""
        if self.n == 1:
            return 0.0, 1.0
        second = max(float(np.sort(np.abs(np.linalg.eigvals(matrix)))[-2]) for matrix in (self.R, self.C))
        return second, -second

    def __str__(self) -> str:
        return (
            f"{self.name} of {self.n} clients, {self.edges} directed edges, {self.mixing} weights, "
            f"second modulus {self.lam:.4f}, φ between {self.n * self.perron.min():.3f} and "
            f"{self.n * self.perron.max():.3f}{'' if self.lost is None else f', {self.lost}'}"
            f"{self._described_window()}"
        )


@DIRECTED_TOPOLOGIES.register("directed-ring")
def directed_ring(n: int) -> DirectedNetwork:
    """Client i sends to i + 1 (mod n)."""
    _check_size(n)
    return DirectedNetwork.from_digraph(_numbered(n, [(i, (i + 1) % n) for i in range(n)]), name="directed-ring")


@DIRECTED_TOPOLOGIES.register("directed-exponential")
def directed_exponential(n: int) -> DirectedNetwork:
    """Client i sends to i + 1, 2, 4, 8, … (mod n).

    >>> directed_exponential(8).listeners[0]
    (1, 2, 4)
    """
    _check_size(n)
    steps = [1 << k for k in range((n - 1).bit_length())]
    edges = [(i, (i + step) % n) for i in range(n) for step in steps]
    return DirectedNetwork.from_digraph(_numbered(n, edges), name="directed-exponential")


@DIRECTED_TOPOLOGIES.register("directed-random")
def directed_random(n: int, p: float = 0.3, seed: int = 0) -> DirectedNetwork:
    """Each ordered pair is an edge with probability `p`; the first strongly connected digraph drawn from `seed`."""
    _check_size(n)
    if not 0 <= p <= 1:
        raise NetworkError("p", f"{short_repr(p)} given; a probability must be in [0, 1]")
    generator = numpy_generator(seed, purpose="directed-random")
    for _ in range(MAX_DRAWS):
        drawn = _numbered(n, np.argwhere(generator.random((n, n)) < p).tolist())
        if nx.is_strongly_connected(drawn):
            return DirectedNetwork.from_digraph(drawn, name=f"directed-random(p={p:g}, seed={seed})")
    raise NetworkError("p", f"{p:g} given, but none of {MAX_DRAWS} digraphs drawn is strongly connected; raise it")


@DIRECTED_TOPOLOGIES.register("directed-one-peer-exponential")
def directed_one_peer_exponential(n: int) -> DirectedNetwork:
    """In phase k, client i sends to i + 2^(k mod ⌈log2 n⌉) (mod n): weights 1/2 and 1/2, R = C.

    >>> directed_one_peer_exponential(5).matrix(1)[2].tolist()
    [0.5, 0.0, 0.5, 0.0, 0.0]
    """
    _check_size(n)
    steps = [1 << k for k in range((n - 1).bit_length())] or [0]
    graphs = [_numbered(n, [(i, (i + step) % n) for i in range(n)]) for step in steps]
    return DirectedNetwork.from_digraphs(graphs, name="directed-one-peer-exponential")


@DIRECTED_TOPOLOGIES.register("directed-file")
def directed_file(n: int, path: str) -> DirectedNetwork:
    """The edges of a file: one `i j` per line, i sends to j, comments after `#`."""
    return DirectedNetwork.from_digraph(read_edges(Path(path), n, directed=True, key="path"), name=Path(path).name)


directed_file.path_arguments = ("path",)  # type: ignore[attr-defined]


def equal_weights(graph: Any) -> tuple[Sparse, Sparse]:
    """R and C, `[n, n]`, of a digraph on 0 … n − 1: 1/(1 + in-degree) and 1/(1 + out-degree)."""
    n = len(graph)
    edges = np.array([*((receiver, sender) for sender, receiver in graph.edges()), *((i, i) for i in range(n))])
    receivers, senders = edges.T
    by_receiver = 1.0 / np.bincount(receivers, minlength=n)[receivers]
    by_sender = 1.0 / np.bincount(senders, minlength=n)[senders]
    rows, columns = (sparse.csr_array((w, (receivers, senders)), shape=(n, n)) for w in (by_receiver, by_sender))
    for matrix in (rows, columns):
        matrix.sort_indices()
    return rows, columns


def _check_size(n: int) -> None:
    if n < 1:
        raise NetworkError("n", f"a network of {short_repr(n)} clients requested; it must have 1 client or more")


def _numbered(n: int, edges: list[Any]) -> Any:
    """The digraph on 0 … n − 1 with these edges, without loops."""
    graph: Any = nx.DiGraph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from((i, j) for i, j in edges if i != j)
    return graph


def has_one_way_edge(graph: object) -> TypeGuard[Graph]:
    """Whether an object is a digraph with an edge that has none back; one without is an undirected graph."""
    return isinstance(graph, nx.DiGraph) and any(not graph.has_edge(b, a) for a, b in graph.edges())


def as_client_digraph(graph: Graph) -> Graph:
    """A frozen simple copy of a digraph with nodes 0 … n − 1, numbered in sorted order, or as they were added."""
    try:
        labels = sorted(graph.nodes)
    except TypeError:
        labels = list(graph.nodes)
    number = {label: i for i, label in enumerate(labels)}
    edges = sorted((number[a], number[b]) for a, b in graph.edges())
    if not graph.is_directed():
        edges += [(b, a) for a, b in edges]
    frozen: Graph = nx.freeze(_numbered(len(labels), edges))
    return frozen


def check_default_mixing(mixing: Mixing, topology: str) -> None:
    """Refuse rules for undirected graphs: the weights of directed networks follow from degrees."""
    if not (isinstance(mixing, str) and mixing == "metropolis"):
        raise NetworkError(
            "mixing",
            f"{short_repr(mixing)} given, but {topology!r} is directed: its weights R and C follow from degrees; leave "
            "it out (for one digraph, DirectedNetwork.from_digraph takes R and C)",
        )


def directed_choice(topology: Spec, base: Path | None) -> Choice[DirectedNetwork]:
    """The directed topology of a configuration; the path of a file is relative to the configuration's folder."""
    choice = DIRECTED_TOPOLOGIES.parse(topology, "topology")
    paths: tuple[str, ...] = DIRECTED_TOPOLOGIES.attribute(topology, "path_arguments", ())
    absolute = {name: str((base or Path()) / Path(choice.arguments[name]).expanduser()) for name in paths}
    return replace(choice, arguments=choice.arguments | absolute)
