"""Communication graphs on the clients 0 … n-1: undirected and without self-loops.

Self-loops would carry no information, since a client always keeps a share of its value (w_ii > 0 in Assumption 2).
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from depositum.errors import NetworkError, renamed_keys, short_repr
from depositum.memory import available_memory, format_bytes
from depositum.networks.time_varying import OnePeerExponential, check_seed
from depositum.randomness import numpy_generator
from depositum.registry import Registry

if TYPE_CHECKING:
    Graph = nx.Graph[Any]
else:
    Graph = nx.Graph

BoolArray = NDArray[np.bool_]

#: Graphs by name; the package supplies the number of clients, the user the other arguments.
#: A graph whose clients exchange with one partner per phase has the graph attribute `one_peer`.
TOPOLOGIES = Registry[Graph]("topology", supplied=1)

#: Number of pairs of clients that a random graph examines at a time.
BLOCK_PAIRS = 1 << 21

#: Number of random graphs that are drawn in search of a connected one.
MAX_DRAWS = 100

#: The most clients of a network: all pairs are examined when W is checked, which takes a minute for so many.
MAX_CLIENTS = 100_000

#: Approximate number of bytes that a client and a link take, with their weights.
CLIENT_BYTES, LINK_BYTES = 2_000, 500


@TOPOLOGIES.register("ring")
def ring(n: int, hops: int = 1) -> Graph:
    """Each client is linked to those within `hops` steps on a circle; with hops ≥ n // 2, to all clients.

    >>> sorted(ring(10, hops=2).neighbors(0))
    [1, 2, 8, 9]
    """
    if hops < 1:
        raise NetworkError("hops", f"{hops} given; it must be 1 or more")
    # Steps beyond half the circle repeat shorter ones, and a step of n would be a self-loop.
    circle: Graph = nx.circulant_graph(n, list(range(1, min(hops, n // 2) + 1)))
    return circle


@TOPOLOGIES.register("complete")
def complete(n: int) -> Graph:
    """Every client is linked to every other."""
    graph: Graph = nx.complete_graph(n)
    return graph


@TOPOLOGIES.register("star")
def star(n: int) -> Graph:
    """Client 0 is linked to all others."""
    graph: Graph = nx.star_graph(n - 1)
    return graph


@TOPOLOGIES.register("path")
def path(n: int) -> Graph:
    """A line: each client is linked to the previous and the next."""
    line: Graph = nx.path_graph(n)
    return line


@TOPOLOGIES.register("grid")
def grid(n: int, rows: int | None = None, cols: int | None = None) -> Graph:
    """A lattice of rows × cols = n clients, numbered row by row; by default the most square one."""
    rows, cols = _lattice_sides("grid", n, rows, cols)
    lattice = _product(path(rows), path(cols))
    nx.set_node_attributes(lattice, {i: (float(i % cols), -float(i // cols)) for i in range(n)}, "pos")
    return lattice


@TOPOLOGIES.register("torus")
def torus(n: int, rows: int | None = None, cols: int | None = None) -> Graph:
    """A grid whose opposite sides are joined: 4 neighbours each, if both sides are 3 or longer.

    A side of 2 gives a single link, not a double one; a side of 1 gives none.
    """
    rows, cols = _lattice_sides("torus", n, rows, cols)
    return _product(ring(rows), ring(cols))


@TOPOLOGIES.register("hypercube")
def hypercube(n: int) -> Graph:
    """Clients are linked if their numbers differ in one binary digit; n is a power of two."""
    if n & (n - 1):
        below = 1 << (n.bit_length() - 1)
        raise NetworkError(
            "topology",
            f"'hypercube' of {n} clients given; it needs a power of two, such as {below} or {2 * below}; "
            "'exponential' takes any number",
        )
    cube: Graph = nx.empty_graph(n)
    cube.add_edges_from((i, i ^ (1 << bit)) for i in range(n) for bit in range(n.bit_length() - 1))
    return cube


@TOPOLOGIES.register("one-peer-exponential")
def one_peer_exponential(n: int) -> Graph:
    """The links of all phases of the one-peer exponential network, a hypercube; n is a power of two."""
    with renamed_keys(lambda _: "topology"):
        one_peer = OnePeerExponential(n)
    graph = hypercube(n)
    graph.graph["one_peer"] = one_peer
    return graph


@TOPOLOGIES.register("exponential")
def exponential(n: int) -> Graph:
    """The static exponential graph: client i is linked to i ± 1, 2, 4, 8, … (mod n).

    >>> sorted(exponential(16).neighbors(0))
    [1, 2, 4, 8, 12, 14, 15]
    """
    circle: Graph = nx.circulant_graph(n, [1 << k for k in range((n - 1).bit_length())])
    return circle


@TOPOLOGIES.register("erdos-renyi")
def erdos_renyi(n: int, p: float | None = None, seed: int = 0) -> Graph:
    """Each pair of clients is linked with probability `p`, conditional on the graph being connected.

    Graphs are drawn from `seed` until one is connected. By default p = 2 ln(n) / n, twice the threshold at which large
    graphs become connected: about 2 ln(n) neighbours each.
    """
    probability = min(1.0, 2 * math.log(n) / n) if p is None else p
    if not 0 <= probability <= 1:
        raise NetworkError("p", f"{p} given; a probability must be in [0, 1]")
    check_seed(seed)
    generator = numpy_generator(seed, purpose="erdos-renyi")

    def draw() -> Graph:
        return graph_from_pairs(n, _linked_pairs(n, lambda rows: generator.random((len(rows), n)) < probability))

    return _first_connected(draw, f"'erdos-renyi' with p = {probability:.4g} on {n} clients", "p")


@TOPOLOGIES.register("geometric")
def geometric(n: int, radius: float | None = None, seed: int = 0) -> Graph:
    """Clients at random points of the unit square, linked if at most `radius` apart, conditional on connectedness.

    Graphs are drawn from `seed` until one is connected. By default the radius is sqrt(2 ln(n) / (π n)), for about
    2 ln(n) neighbours each away from the border. The points are the node attribute `pos`.
    """
    reach = math.sqrt(2 * math.log(n) / (math.pi * n)) if radius is None else radius
    if not reach >= 0:
        raise NetworkError("radius", f"{radius} given; a distance must be ≥ 0")
    check_seed(seed)
    generator = numpy_generator(seed, purpose="geometric")

    def draw() -> Graph:
        points = generator.random((n, 2))

        def linked(rows: range) -> BoolArray:
            close: BoolArray = np.linalg.norm(points[rows.start : rows.stop, None] - points[None, :], axis=-1) <= reach
            return close

        drawn = graph_from_pairs(n, _linked_pairs(n, linked))
        nx.set_node_attributes(drawn, dict(enumerate(map(tuple, points.tolist()))), "pos")
        return drawn

    return _first_connected(draw, f"'geometric' with radius = {reach:.4g} on {n} clients", "radius")


def check_graph_size(topology: str, n: int, arguments: Mapping[str, Any]) -> None:
    """Refuse, before it is built, a graph of more clients and links than fit into memory."""
    links = expected_links(topology, n, **arguments)
    needed, available = CLIENT_BYTES * n + LINK_BYTES * links, available_memory()
    if needed > available:
        what = f"{topology!r} has about {links:.2g} links, which take {format_bytes(int(needed))} of memory"
        raise NetworkError("n", f"{n} given, but {what}; {format_bytes(available)} are available")


def expected_links(
    topology: str,
    n: int,
    hops: int = 1,
    p: float | None = None,
    radius: float | None = None,
    **_: Any,
) -> float:
    """About how many links a graph has, from its arguments; at most log2(n) per client if they do not say.

    >>> expected_links("complete", 1000), expected_links("ring", 1000, hops=2), expected_links("star", 1024)
    (499500.0, 2000, 10240.0)
    """
    if topology == "complete":
        return n * (n - 1) / 2
    if topology == "ring":
        return n * min(hops, n // 2)
    if p is not None:
        return min(max(p, 0.0), 1.0) * n * n / 2
    if radius is not None:
        return min(math.pi * radius * radius, 1.0) * n * n / 2
    return n * math.log2(max(n, 2))


def as_client_graph(graph: Graph) -> Graph:
    """A simple frozen copy of any networkx graph, with nodes 0 … n-1; a graph that already is one is returned as it is.

    Nodes are numbered in sorted order or, if their labels cannot be sorted, in the order in which they were added.
    Self-loops, parallel edges and edge weights are dropped; a directed graph must have every edge in both directions.

    >>> as_client_graph(nx.Graph([("rome", "bonn"), ("bonn", "oslo")])).edges
    EdgeView([(0, 2), (0, 1)])
    """
    if _is_client_graph(graph):
        return graph
    if graph.is_directed():
        for a, b in graph.edges():
            if not graph.has_edge(b, a):
                raise NetworkError(
                    "topology",
                    f"a directed graph with an edge from {a!r} to {b!r} but none back given; links must go both ways: "
                    "add the reverse edge, or use graph.to_undirected()",
                )
    try:
        labels = sorted(graph.nodes)
    except TypeError:
        labels = list(graph.nodes)
    number = {label: i for i, label in enumerate(labels)}
    simple: Graph = nx.Graph()
    simple.add_nodes_from((i, graph.nodes[label]) for label, i in number.items())
    simple.add_edges_from((number[a], number[b]) for a, b in graph.edges() if a != b)
    frozen: Graph = nx.freeze(simple)
    return frozen


def _is_client_graph(graph: Graph) -> bool:
    """Whether a graph is simple, frozen and on the nodes 0 … n-1, so that no copy is needed."""
    return (
        type(graph) is nx.Graph
        and nx.is_frozen(graph)
        and list(graph) == list(range(len(graph)))
        and nx.number_of_selfloops(graph) == 0
    )


def graph_from_pairs(n: int, pairs: NDArray[np.integer]) -> Graph:
    """The graph with these edges `[m, 2]`; an edge may occur twice, in either direction."""
    graph: Graph = nx.empty_graph(n)
    graph.add_edges_from(pairs.tolist())
    return graph


def _linked_pairs(n: int, linked: Callable[[range], BoolArray]) -> NDArray[np.integer]:
    """The pairs i < j `[m, 2]` for which `linked(rows)[i - rows.start, j]` is true, some rows of `[n, n]` at a time."""
    pairs = []
    step = max(1, BLOCK_PAIRS // n)
    for first in range(0, n, step):
        rows = range(first, min(first + step, n))
        found = np.argwhere(np.triu(linked(rows), 1 + first))
        pairs.append(found + np.array([first, 0]))
    return np.concatenate(pairs)


def _product(left: Graph, right: Graph) -> Graph:
    """The Cartesian product, with the pair (r, c) numbered r · |right| + c."""
    cols = len(right)
    return nx.relabel_nodes(nx.cartesian_product(left, right), lambda pair: pair[0] * cols + pair[1])


def _lattice_sides(topology: str, n: int, rows: int | None, cols: int | None) -> tuple[int, int]:
    """The numbers of rows and columns of a lattice of n clients, with missing ones filled in."""
    if rows is None and cols is None:
        rows = next(side for side in range(math.isqrt(n), 0, -1) if n % side == 0)
    for name, side in (("rows", rows), ("cols", cols)):
        if side is not None and (side < 1 or n % side):
            divisors = [str(k) for k in range(1, n + 1) if n % k == 0]
            given = f"{short_repr(side)} given, which does not divide {n} clients"
            raise NetworkError(name, f"{given}; it can be one of {', '.join(divisors[:30])}")
    rows = rows if rows is not None else n // (cols or 1)
    cols = cols if cols is not None else n // rows
    if rows * cols != n:
        raise NetworkError(
            f"topology.{topology}",
            f"{rows} rows × {cols} cols given, which is {rows * cols} clients instead of {n}; leave one of them out",
        )
    return rows, cols


def _first_connected(draw: Callable[[], Graph], what: str, parameter: str) -> Graph:
    """The first connected graph that `draw` returns."""
    for _ in range(MAX_DRAWS):
        graph = draw()
        if nx.is_connected(graph):
            return graph
    raise NetworkError(
        "topology",
        f"{what}: none of {MAX_DRAWS} graphs drawn is connected, the last has {nx.number_connected_components(graph)} "
        f"components; raise {parameter} or leave it out",
    )
