"""Communication networks: the graph of the clients and the mixing matrix W on it (Assumption 2 of the paper).

>>> print(ring(10, hops=2))
ring(hops=2) of 10 clients, 20 edges, metropolis weights, λ = 0.6472, gap = 0.3528
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from depositum.errors import NetworkError, renamed_keys
from depositum.networks.communication_network import Network
from depositum.networks.directed_network import (
    DIRECTED_TOPOLOGIES,
    DirectedNetwork,
    check_default_mixing,
    directed_choice,
    directed_exponential,
    directed_file,
    directed_one_peer_exponential,
    directed_random,
    directed_ring,
    has_one_way_edge,
)
from depositum.networks.graph_sequence import GraphSequence
from depositum.networks.graphs import TOPOLOGIES
from depositum.networks.mixing_matrices import MIXINGS, one_peer_mean
from depositum.networks.participation import Participation, as_participation
from depositum.networks.sequences import SEQUENCES, network_sequence
from depositum.networks.server_network import ServerNetwork, server_network
from depositum.networks.specifications import Mixing, Topology, topology_graph
from depositum.networks.time_varying import DroppedLinks, LostMessages, OnePeerExponential

TOPOLOGIES.besides = (DIRECTED_TOPOLOGIES, SEQUENCES)

__all__ = [
    "DIRECTED_TOPOLOGIES",
    "MIXINGS",
    "SEQUENCES",
    "TOPOLOGIES",
    "DirectedNetwork",
    "DroppedLinks",
    "GraphSequence",
    "LostMessages",
    "Mixing",
    "Network",
    "OnePeerExponential",
    "Participation",
    "ServerNetwork",
    "Topology",
    "as_participation",
    "build",
    "complete",
    "directed_exponential",
    "directed_file",
    "directed_one_peer_exponential",
    "directed_random",
    "directed_ring",
    "erdos_renyi",
    "exponential",
    "geometric",
    "grid",
    "hypercube",
    "network",
    "network_sequence",
    "one_peer_exponential",
    "path",
    "ring",
    "server_network",
    "star",
    "torus",
]


def build(
    topology: Topology,
    mixing: Mixing,
    n: int,
    base: Path | None = None,
    drop: float = 0.0,
    lost: float = 0.0,
    late: int = 0,
) -> Network:
    """The network of a configuration: its topology, mixing matrix, number of clients, and what its links lose.

    Paths are relative to `base`, the configuration's folder. `drop` is the probability that a link is absent in a
    communication phase, `lost` that a message is lost in one direction of it; `late` is the most phases that one takes.
    """
    with renamed_keys(lambda _: "drop"):
        dropped = DroppedLinks(drop)
    messages = LostMessages(lost, late)
    static = _static(topology, mixing, n, base)
    varying: dict[str, Any] = {"drop": dropped} if drop else {}
    varying |= {"lost": messages} if lost or late else {}
    return replace(static, **varying) if varying else static


def _static(topology: Topology, mixing: Mixing, n: int, base: Path | None) -> Network:
    """The network with all its links."""
    if _chosen(topology) in SEQUENCES:
        assert isinstance(topology, str | Mapping)
        return SEQUENCES.parse(topology, "topology").make(n, mixing, base)
    if (directed := _directed(topology, n, base)) is not None:
        check_default_mixing(mixing, directed.name)
        return directed
    name, graph = topology_graph(topology, n, base)
    one_peer: OnePeerExponential | None = graph.graph.pop("one_peer", None)
    if one_peer is None:
        return Network.from_graph(graph, mixing, name, base)
    _check_pairwise(mixing, name)
    return Network(graph, one_peer_mean(graph), name, "pairwise", one_peer=one_peer)


def network(
    topology: Topology, n: int, mixing: Mixing = "metropolis", drop: float = 0.0, lost: float = 0.0, late: int = 0
) -> Network:
    """A network of n clients, given by a name, a table, an edge-list file or a networkx graph.

    >>> network({"erdos-renyi": {"p": 0.4, "seed": 1}}, 10).n
    10
    >>> print(network("complete", 4, drop=0.2))
    complete of 4 clients, 6 edges, metropolis weights, λ = 0.0000, gap = 1.0000, each link dropped with probability 0.2
    """
    return build(topology, mixing, n, drop=drop, lost=lost, late=late)


def _directed(topology: Topology, n: int, base: Path | None) -> DirectedNetwork | None:
    """The directed network that was chosen: by name, or a digraph with an edge that has none back."""
    if has_one_way_edge(topology):
        if len(topology) != n:
            raise NetworkError("topology", f"a digraph of {len(topology)} nodes given for {n} clients")
        return DirectedNetwork.from_digraph(topology)
    if _chosen(topology) not in DIRECTED_TOPOLOGIES:
        return None
    assert isinstance(topology, str | Mapping)
    return directed_choice(topology, base).make(n)


def _chosen(topology: Topology) -> object:
    """The name that a topology has in a configuration, if it has one."""
    if isinstance(topology, Mapping):
        return next(iter(topology)) if len(topology) == 1 else None
    return topology if isinstance(topology, str) else None


def _check_pairwise(mixing: Mixing, topology: str) -> None:
    """Reject rules other than Metropolis, which averages the ends of a single link, as partners of a phase do."""
    if isinstance(mixing, str | Mapping) and MIXINGS.parse(mixing, "mixing").name == "metropolis":
        return
    given = repr(mixing) if isinstance(mixing, str | Mapping | Path) else "a matrix"
    raise NetworkError(
        "mixing", f"{given} given, but partners in {topology!r} average their values; leave it at 'metropolis'"
    )


def ring(n: int, hops: int = 1, mixing: Mixing = "metropolis") -> Network:
    """Each client is linked to those within `hops` steps on a circle: 2·hops neighbours."""
    return _named("ring", n, mixing, hops=hops)


def complete(n: int, mixing: Mixing = "metropolis") -> Network:
    """Every client is linked to every other; λ is 0."""
    return _named("complete", n, mixing)


def star(n: int, mixing: Mixing = "metropolis") -> Network:
    """Client 0 is linked to all others."""
    return _named("star", n, mixing)


def path(n: int, mixing: Mixing = "metropolis") -> Network:
    """A line: each client is linked to the previous and the next."""
    return _named("path", n, mixing)


def grid(n: int, rows: int | None = None, cols: int | None = None, mixing: Mixing = "metropolis") -> Network:
    """A lattice of rows × cols = n clients, by default the most square one."""
    return _named("grid", n, mixing, rows=rows, cols=cols)


def torus(n: int, rows: int | None = None, cols: int | None = None, mixing: Mixing = "metropolis") -> Network:
    """A grid whose opposite sides are joined."""
    return _named("torus", n, mixing, rows=rows, cols=cols)


def hypercube(n: int, mixing: Mixing = "metropolis") -> Network:
    """Clients are linked if their numbers differ in one binary digit; n is a power of two."""
    return _named("hypercube", n, mixing)


def exponential(n: int, mixing: Mixing = "metropolis") -> Network:
    """Client i is linked to i ± 1, 2, 4, 8, … (mod n)."""
    return _named("exponential", n, mixing)


def one_peer_exponential(n: int) -> Network:
    """One partner per client and phase, i XOR 2^(k mod log2 n) in phase k; n is a power of two."""
    return _named("one-peer-exponential", n)


def erdos_renyi(n: int, p: float | None = None, seed: int = 0, mixing: Mixing = "metropolis") -> Network:
    """Each pair is linked with probability `p` (default 2 ln(n) / n); the first connected graph drawn from `seed`."""
    return _named("erdos-renyi", n, mixing, p=p, seed=seed)


def geometric(n: int, radius: float | None = None, seed: int = 0, mixing: Mixing = "metropolis") -> Network:
    """Random points in the unit square, linked if at most `radius` apart; the first connected graph from `seed`."""
    return _named("geometric", n, mixing, radius=radius, seed=seed)


def _named(topology: str, n: int, mixing: Mixing = "metropolis", **arguments: Any) -> Network:
    """A network of a registered topology, whose arguments are those of the function that the user called."""

    def argument(key: str) -> str:
        # A graph that does not exist for the number of clients is a matter of n.
        return "n" if key in ("topology", f"topology.{topology}") else key.removeprefix(f"topology.{topology}.")

    with renamed_keys(argument):
        return network({topology: arguments}, n, mixing)
