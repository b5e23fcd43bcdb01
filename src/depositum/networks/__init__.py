"""Communication networks: the clients' graph, and the mixing matrix W on it (Assumption 2 of the paper).

>>> print(ring(10, hops=2))
ring(hops=2) of 10 clients, 20 edges, metropolis weights, λ = 0.6472, gap = 0.3528
"""

from pathlib import Path

from depositum.networks.assumption import Network
from depositum.networks.graphs import TOPOLOGIES
from depositum.networks.mixing import MIXINGS
from depositum.networks.sources import Mixing, Topology, topology_graph

__all__ = [
    "MIXINGS",
    "TOPOLOGIES",
    "Mixing",
    "Network",
    "Topology",
    "build",
    "complete",
    "erdos_renyi",
    "exponential",
    "geometric",
    "grid",
    "hypercube",
    "network",
    "path",
    "ring",
    "star",
    "torus",
]


def build(topology: Topology, mixing: Mixing, n: int, base: Path | None = None) -> Network:
    """The network of a configuration: `network.topology`, `network.mixing` and the number of clients.

    Files are looked for from `base`, the configuration's folder.
    """
    name, graph = topology_graph(topology, n, base)
    return Network.from_graph(graph, mixing, name, base)


def network(topology: Topology, n: int, mixing: Mixing = "metropolis") -> Network:
    """A network of n clients, by name, table, edge-list file or networkx graph.

    >>> network({"erdos-renyi": {"p": 0.4, "seed": 1}}, 10).n
    10
    """
    return build(topology, mixing, n)


def ring(n: int, hops: int = 1, mixing: Mixing = "metropolis") -> Network:
    """A circle; each client is linked to those within `hops` steps: 2·hops neighbours."""
    return network({"ring": {"hops": hops}}, n, mixing)


def complete(n: int, mixing: Mixing = "metropolis") -> Network:
    """Everybody linked to everybody; λ is 0."""
    return network("complete", n, mixing)


def star(n: int, mixing: Mixing = "metropolis") -> Network:
    """Client 0 linked to everybody else."""
    return network("star", n, mixing)


def path(n: int, mixing: Mixing = "metropolis") -> Network:
    """A line."""
    return network("path", n, mixing)


def grid(n: int, rows: int | None = None, cols: int | None = None, mixing: Mixing = "metropolis") -> Network:
    """A lattice of rows × cols = n clients, by default the most square one."""
    return network({"grid": {"rows": rows, "cols": cols}}, n, mixing)


def torus(n: int, rows: int | None = None, cols: int | None = None, mixing: Mixing = "metropolis") -> Network:
    """A grid whose opposite sides are joined."""
    return network({"torus": {"rows": rows, "cols": cols}}, n, mixing)


def hypercube(n: int, mixing: Mixing = "metropolis") -> Network:
    """Clients whose numbers differ in one binary digit; n is a power of two."""
    return network("hypercube", n, mixing)


def exponential(n: int, mixing: Mixing = "metropolis") -> Network:
    """Client i linked to i ± 1, 2, 4, 8, … (mod n)."""
    return network("exponential", n, mixing)


def erdos_renyi(n: int, p: float | None = None, seed: int = 0, mixing: Mixing = "metropolis") -> Network:
    """Each pair linked with probability `p` (by default 2 ln(n) / n); the first connected graph that `seed` draws."""
    return network({"erdos-renyi": {"p": p, "seed": seed}}, n, mixing)


def geometric(n: int, radius: float | None = None, seed: int = 0, mixing: Mixing = "metropolis") -> Network:
    """Random places in the unit square, linked up to a distance of `radius`; the first connected graph of `seed`."""
    return network({"geometric": {"radius": radius, "seed": seed}}, n, mixing)
