"""Communication networks: the clients' graph, and the mixing matrix W on it (Assumption 2 of the paper).

>>> print(ring(10, hops=2))
ring(hops=2) of 10 clients, 20 edges, metropolis weights, λ = 0.6472, gap = 0.3528
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from depositum.errors import NetworkError
from depositum.networks.assumption import Network
from depositum.networks.changing import DroppedLinks, OnePeerExponential
from depositum.networks.graphs import ONE_PEER, TOPOLOGIES
from depositum.networks.mixing import MIXINGS, one_peer_mean
from depositum.networks.sources import Mixing, Topology, topology_graph

__all__ = [
    "MIXINGS",
    "TOPOLOGIES",
    "DroppedLinks",
    "Mixing",
    "Network",
    "OnePeerExponential",
    "Topology",
    "build",
    "complete",
    "erdos_renyi",
    "exponential",
    "geometric",
    "grid",
    "hypercube",
    "network",
    "one_peer_exponential",
    "path",
    "ring",
    "star",
    "torus",
]


def build(topology: Topology, mixing: Mixing, n: int, base: Path | None = None, drop: float = 0.0) -> Network:
    """The network of a configuration: `network.topology`, `network.mixing`, the number of clients and `network.drop`.

    Files are looked for from `base`, the configuration's folder. `drop` is the probability with which each link is
    absent in a communication phase.
    """
    dropped = DroppedLinks(drop)
    name, graph = topology_graph(topology, n, base)
    if topology == ONE_PEER or (isinstance(topology, Mapping) and ONE_PEER in topology):
        _check_pairwise(mixing)
        made = Network(graph, one_peer_mean(graph), name, "pairwise", one_peer=OnePeerExponential(len(graph)))
    else:
        made = Network.from_graph(graph, mixing, name, base)
    return replace(made, drop=dropped) if drop else made


def network(topology: Topology, n: int, mixing: Mixing = "metropolis", drop: float = 0.0) -> Network:
    """A network of n clients, by name, table, edge-list file or networkx graph.

    >>> network({"erdos-renyi": {"p": 0.4, "seed": 1}}, 10).n
    10
    >>> print(network("complete", 4, drop=0.2))
    complete of 4 clients, 6 edges, metropolis weights, λ = 0.0000, gap = 1.0000, each link dropped with probability 0.2
    """
    return build(topology, mixing, n, drop=drop)


def _check_pairwise(mixing: Mixing) -> None:
    """Partners of one phase take their average, which is what Metropolis' rule makes of a single link."""
    if isinstance(mixing, str | Mapping) and MIXINGS.parse(mixing, "network.mixing").name == "metropolis":
        return
    given = repr(mixing) if isinstance(mixing, str | Mapping | Path) else "a matrix"
    raise NetworkError(
        "network.mixing", f"{given} given, but partners in {ONE_PEER!r} take their average; leave it at 'metropolis'"
    )


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


def one_peer_exponential(n: int) -> Network:
    """One partner per client and phase, i XOR 2^(k mod log2 n) in phase k; n is a power of two."""
    return network(ONE_PEER, n)


def erdos_renyi(n: int, p: float | None = None, seed: int = 0, mixing: Mixing = "metropolis") -> Network:
    """Each pair linked with probability `p` (by default 2 ln(n) / n); the first connected graph that `seed` draws."""
    return network({"erdos-renyi": {"p": p, "seed": seed}}, n, mixing)


def geometric(n: int, radius: float | None = None, seed: int = 0, mixing: Mixing = "metropolis") -> Network:
    """Random places in the unit square, linked up to a distance of `radius`; the first connected graph of `seed`."""
    return network({"geometric": {"radius": radius, "seed": seed}}, n, mixing)
