"""Networks with another graph in every phase, made of other topologies."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import networkx as nx

from depositum.errors import NetworkError, renamed_keys, short_repr
from depositum.networks.communication_network import Network
from depositum.networks.directed_network import (
    DIRECTED_TOPOLOGIES,
    DirectedNetwork,
    as_client_digraph,
    check_default_mixing,
    directed_choice,
    directed_file,
    has_one_way_edge,
)
from depositum.networks.graph_sequence import GraphSequence, Order, mean_of
from depositum.networks.graphs import Graph
from depositum.networks.mixing_matrices import MIXINGS
from depositum.networks.specifications import Mixing, Topology, mixing_matrix, read_edges, topology_graph
from depositum.registry import Registry

#: Networks made of other topologies; the package supplies n, the mixing rule and the configuration's folder.
SEQUENCES: "Registry[Network]" = Registry("topology", supplied=3)


@SEQUENCES.register("sequence")
def sequence(
    n: int, mixing: Mixing, base: Path | None, graphs: list[Any], order: Order = "periodic", seed: int = 0
) -> Network:
    """A list of topologies, edge-list files or networkx graphs, one for each phase.

    Undirected graphs have the weights of the mixing rule. If one of them is directed, all are, with equal weights.
    Together they must be connected, as one alone need not be.
    """
    if not graphs:
        raise NetworkError("graphs", "none given; a sequence needs 1 or more")
    labels = [set(graph) for graph in graphs if isinstance(graph, nx.Graph)]
    if any(nodes != labels[0] for nodes in labels):
        raise NetworkError("graphs", "networkx graphs with different nodes given; all need the same, the clients")
    parts = []
    for k, topology in enumerate(graphs):
        with renamed_keys(partial(_key_of_part, k)):
            parts.append(_part(topology, n, base))
    name = f"{order} sequence of {len(parts)} graphs"
    if any(part.is_directed() for part in parts):
        check_default_mixing(mixing, name)
        digraphs = [part if part.is_directed() else part.to_directed() for part in parts]
        return DirectedNetwork.from_digraphs(digraphs, order, seed, name)
    if not isinstance(mixing, str | Mapping):
        raise NetworkError("mixing", f"{short_repr(mixing)} given, but a sequence needs a rule for all of its graphs")
    MIXINGS.parse(mixing, "mixing")  # a file has the weights of one graph
    rules, matrices = zip(*(mixing_matrix(mixing, part, base) for part in parts), strict=True)
    made = GraphSequence(matrices, (), order, seed)
    union = nx.compose_all(parts)
    return Network(union, mean_of(made.weights), name, rules[0], sequence=made)


def network_sequence(
    graphs: Sequence[Topology], n: int, mixing: Mixing = "metropolis", order: Order = "periodic", seed: int = 0
) -> Network:
    """A network of n clients with another graph in every phase, in turn or drawn at `"random"`.

    >>> print(network_sequence(["ring", "star"], 5))  # doctest: +ELLIPSIS
    periodic sequence of 2 graphs of 5 clients, 7 edges, metropolis weights, ..., effective λ = 0.6569 over 2 phases
    """
    if isinstance(graphs, str) or not isinstance(graphs, Sequence):
        raise NetworkError("graphs", f"{short_repr(graphs)} given; a list of graphs is needed")
    return sequence(n, mixing, None, list(graphs), order, seed)


def _key_of_part(number: int, key: str) -> str:
    """The key of an error about one graph of a sequence: what concerns the number of clients keeps its own."""
    return f"graphs[{number}]{key.removeprefix('topology')}" if key.startswith("topology") else key


def _part(topology: Topology, n: int, base: Path | None) -> Graph:
    """One graph of a sequence, directed or not; it need not be connected."""
    if has_one_way_edge(topology):
        if len(topology) != n:
            raise NetworkError("topology", f"a digraph of {len(topology)} nodes given for {n} clients")
        return as_client_digraph(topology)
    name = next(iter(topology), None) if isinstance(topology, Mapping) else topology
    if isinstance(name, str) and name in SEQUENCES:
        raise NetworkError("topology", "a sequence given; a graph of a sequence is the same in every phase")
    if isinstance(topology, str | Mapping) and name in DIRECTED_TOPOLOGIES:
        choice = directed_choice(topology, base)
        if choice.factory is directed_file:
            key = "topology.directed-file.path"
            return read_edges(Path(choice.arguments["path"]), n, directed=True, all_linked=False, key=key)
        network = choice.make(n)
        graph, varies = network.graph, network.varies
    else:
        _, graph = topology_graph(topology, n, base, all_linked=False)
        varies = "one_peer" in graph.graph
    if varies:
        raise NetworkError("topology", f"{name!r} given; a graph of a sequence is the same in every phase")
    return graph
