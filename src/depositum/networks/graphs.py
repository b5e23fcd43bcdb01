"""Who talks to whom: communication graphs on the clients 0 … n-1, undirected, without self-loops.

A client always keeps a share of its own value (w_ii > 0 in Assumption 2), so a self-loop would say nothing.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from depositum.errors import NetworkError
from depositum.networks.changing import OnePeerExponential
from depositum.randomness import numpy_generator
from depositum.registry import Registry

if TYPE_CHECKING:
    Graph = nx.Graph[Any]
else:
    Graph = nx.Graph

Linked = NDArray[np.bool_]

#: Graphs by name; the package supplies the number of clients, the rest is a person's to set.
TOPOLOGIES = Registry[Graph]("topology", supplied=1)

#: The topology with one partner per client and phase (`changing.OnePeerExponential`).
ONE_PEER = "one-peer-exponential"

#: How many pairs a random family looks at together.
PAIRS = 1 << 21

#: How many graphs of a random family are drawn before it is said that none is connected.
DRAWS = 100


@TOPOLOGIES.register("ring")
def ring(n: int, hops: int = 1) -> Graph:
    """Each client with those within `hops` steps on a circle; with hops ≥ n // 2 that is everybody.

    >>> sorted(ring(10, hops=2).neighbors(0))
    [1, 2, 8, 9]
    """
    if hops < 1:
        raise NetworkError("network.topology.ring.hops", f"{hops} given; it must be 1 or more")
    # Steps beyond half way round repeat shorter ones, and a step of n would be a self-loop.
    circle: Graph = nx.circulant_graph(n, list(range(1, min(hops, n // 2) + 1)))
    return circle


@TOPOLOGIES.register("complete")
def complete(n: int) -> Graph:
    """Everybody with everybody."""
    everybody: Graph = nx.complete_graph(n)
    return everybody


@TOPOLOGIES.register("star")
def star(n: int) -> Graph:
    """Client 0 with everybody else."""
    hub: Graph = nx.star_graph(n - 1)
    return hub


@TOPOLOGIES.register("path")
def path(n: int) -> Graph:
    """A line: each client with the one before and the one after."""
    line: Graph = nx.path_graph(n)
    return line


@TOPOLOGIES.register("grid")
def grid(n: int, rows: int | None = None, cols: int | None = None) -> Graph:
    """A lattice of rows × cols = n clients, numbered row by row; by default the most square one."""
    rows, cols = _sides("grid", n, rows, cols)
    lattice = _product(path(rows), path(cols))
    nx.set_node_attributes(lattice, {i: (float(i % cols), -float(i // cols)) for i in range(n)}, "pos")
    return lattice


@TOPOLOGIES.register("torus")
def torus(n: int, rows: int | None = None, cols: int | None = None) -> Graph:
    """A grid whose opposite sides are joined: 4 neighbours each, if both sides are 3 or longer.

    A side of 2 is a single link and not a double one; a side of 1 adds none.
    """
    rows, cols = _sides("torus", n, rows, cols)
    return _product(ring(rows), ring(cols))


@TOPOLOGIES.register("hypercube")
def hypercube(n: int) -> Graph:
    """Clients whose numbers differ in one binary digit; n is a power of two."""
    if n & (n - 1):
        below = 1 << (n.bit_length() - 1)
        raise NetworkError(
            "network.topology",
            f"'hypercube' of {n} clients given; it needs a power of two, such as {below} or {2 * below}; "
            "'exponential' takes any number",
        )
    cube: Graph = nx.empty_graph(n)
    cube.add_edges_from((i, i ^ (1 << bit)) for i in range(n) for bit in range(n.bit_length() - 1))
    return cube


@TOPOLOGIES.register(ONE_PEER)
def one_peer_exponential(n: int) -> Graph:
    """The links of all phases of the one-peer exponential network, which are a hypercube's; n is a power of two."""
    return hypercube(OnePeerExponential(n).n)


@TOPOLOGIES.register("exponential")
def exponential(n: int) -> Graph:
    """The static exponential graph: i with i ± 1, 2, 4, 8, … (mod n), both ways.

    >>> sorted(exponential(16).neighbors(0))
    [1, 2, 4, 8, 12, 14, 15]
    """
    circle: Graph = nx.circulant_graph(n, [1 << k for k in range((n - 1).bit_length())])
    return circle


@TOPOLOGIES.register("erdos-renyi")
def erdos_renyi(n: int, p: float | None = None, seed: int = 0) -> Graph:
    """Each pair of clients linked with probability `p`, given that the graph is connected.

    The first connected one of the graphs that `seed` draws. By default p = 2 ln(n) / n, twice the probability at
    which large graphs become connected: about 2 ln(n) neighbours each.
    """
    chance = min(1.0, 2 * math.log(n) / n) if p is None else p
    if not 0 <= chance <= 1:
        raise NetworkError("network.topology.erdos-renyi.p", f"{p} given; a probability is from 0 to 1")
    generator = numpy_generator(seed, purpose="erdos-renyi")

    def draw() -> Graph:
        return from_pairs(n, _in_blocks(n, lambda rows: generator.random((len(rows), n)) < chance))

    return _first_connected(draw, f"'erdos-renyi' with p = {chance:.4g} on {n} clients", "p")


@TOPOLOGIES.register("geometric")
def geometric(n: int, radius: float | None = None, seed: int = 0) -> Graph:
    """Clients at random places in the unit square, linked up to a distance of `radius`, given connectedness.

    The first connected one of the graphs that `seed` draws. By default the radius is sqrt(2 ln(n) / (π n)), for about
    2 ln(n) neighbours each away from the border. The places are the nodes' attribute `pos`.
    """
    reach = math.sqrt(2 * math.log(n) / (math.pi * n)) if radius is None else radius
    if not reach >= 0:
        raise NetworkError("network.topology.geometric.radius", f"{radius} given; a distance is 0 or more")
    generator = numpy_generator(seed, purpose="geometric")

    def draw() -> Graph:
        places = generator.random((n, 2))

        def near(rows: range) -> Linked:
            close: Linked = np.linalg.norm(places[rows.start : rows.stop, None] - places[None, :], axis=-1) <= reach
            return close

        drawn = from_pairs(n, _in_blocks(n, near))
        nx.set_node_attributes(drawn, dict(enumerate(map(tuple, places.tolist()))), "pos")
        return drawn

    return _first_connected(draw, f"'geometric' with radius = {reach:.4g} on {n} clients", "radius")


def as_clients(graph: Graph) -> Graph:
    """A plain frozen copy of any networkx graph, with nodes 0 … n-1; one that is that already is given back itself.

    Labels are numbered in sorted order or, where they cannot be sorted, in the order they were added. Self-loops,
    parallel edges and edge weights are left out; a directed graph must have every edge both ways.

    >>> as_clients(nx.Graph([("rome", "bonn"), ("bonn", "oslo")])).edges
    EdgeView([(0, 2), (0, 1)])
    """
    if _is_clients(graph):
        return graph
    if graph.is_directed():
        for a, b in graph.edges():
            if not graph.has_edge(b, a):
                raise NetworkError(
                    "network.topology",
                    f"a directed graph with an edge from {a!r} to {b!r} and none back given; links must go both ways: "
                    "add the way back, or use graph.to_undirected()",
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


def _is_clients(graph: Graph) -> bool:
    """Whether nobody can change the edges of a graph on 0 … n-1 without self-loops: a copy would be a waste."""
    return (
        type(graph) is nx.Graph
        and nx.is_frozen(graph)
        and list(graph) == list(range(len(graph)))
        and nx.number_of_selfloops(graph) == 0
    )


def from_pairs(n: int, pairs: NDArray[np.integer]) -> Graph:
    """The graph of the pairs `[m, 2]`; a pair may be there twice or the other way round."""
    graph: Graph = nx.empty_graph(n)
    graph.add_edges_from(pairs.tolist())
    return graph


def _in_blocks(n: int, linked: Callable[[range], Linked]) -> NDArray[np.integer]:
    """The pairs i < j `[m, 2]` of which `linked(rows)[i - rows.start, j]` is true, some rows of `[n, n]` at a time."""
    pairs = []
    step = max(1, PAIRS // n)
    for first in range(0, n, step):
        rows = range(first, min(first + step, n))
        found = np.argwhere(np.triu(linked(rows), 1 + first))
        pairs.append(found + np.array([first, 0]))
    return np.concatenate(pairs)


def _product(left: Graph, right: Graph) -> Graph:
    """Copies of `right` along `left`, numbered copy by copy: the pair (r, c) is client r · |right| + c."""
    cols = len(right)
    return nx.relabel_nodes(nx.cartesian_product(left, right), lambda pair: pair[0] * cols + pair[1])


def _sides(topology: str, n: int, rows: int | None, cols: int | None) -> tuple[int, int]:
    """The sides of a lattice of n clients, the missing ones filled in."""
    if rows is None and cols is None:
        rows = next(side for side in range(math.isqrt(n), 0, -1) if n % side == 0)
    for name, side in (("rows", rows), ("cols", cols)):
        if side is not None and (side < 1 or n % side):
            divisors = ", ".join(str(k) for k in range(1, n + 1) if n % k == 0)
            raise NetworkError(
                f"network.topology.{topology}.{name}",
                f"{side} given, which does not divide {n} clients; it can be one of {divisors}",
            )
    rows = rows if rows is not None else n // (cols or 1)
    cols = cols if cols is not None else n // rows
    if rows * cols != n:
        raise NetworkError(
            f"network.topology.{topology}",
            f"{rows} rows × {cols} cols given, which is {rows * cols} and not {n} clients; leave one of them out",
        )
    return rows, cols


def _first_connected(draw: Callable[[], Graph], what: str, parameter: str) -> Graph:
    for _ in range(DRAWS):
        graph = draw()
        if nx.is_connected(graph):
            return graph
    raise NetworkError(
        "network.topology",
        f"{what}: none of {DRAWS} graphs drawn is connected, the last has {nx.number_connected_components(graph)} "
        f"components; raise {parameter} or leave it out",
    )
