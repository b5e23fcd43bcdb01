"""Networks from a user-defined graph or matrix: relabelled, cleaned and immutable."""

import dataclasses

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depositum import networks
from depositum.networks import Network
from tests.support.network_cases import adjacency, assert_assumption_2, edge_set


@st.composite
def connected_graphs(draw: st.DrawFn) -> nx.Graph:
    """Any connected graph: a random tree and further edges."""
    n = draw(st.integers(1, 12))
    graph = nx.empty_graph(n)
    graph.add_edges_from((i, draw(st.integers(0, i - 1))) for i in range(1, n))
    pairs = [(i, j) for j in range(n) for i in range(j)]
    graph.add_edges_from(draw(st.lists(st.sampled_from(pairs))) if pairs else [])
    return graph


@settings(deadline=None, max_examples=60)
@given(connected_graphs(), st.data())
def test_any_connected_graph_gives_a_valid_matrix(graph, data):
    """Any degrees, any labels in any order; and W alone gives the same network."""
    n = len(graph)
    linked = nx.to_numpy_array(graph).astype(bool)
    labels = data.draw(st.permutations(range(n)))
    shuffled = nx.Graph()
    shuffled.add_nodes_from(labels)
    shuffled.add_edges_from(graph.edges)
    for mixing in ("metropolis", "lazy-metropolis", "max-degree"):
        network = Network.from_graph(shuffled, mixing)
        assert_assumption_2(network.W, linked)
        again = Network.from_matrix(network.W)
        assert edge_set(again) == edge_set(network)
        assert (again.W == network.W).all()
        assert 0 <= network.lam < 1
        # ‖W - J‖₂ bounds the disagreement after one exchange.
        z = np.random.default_rng(0).normal(size=(n, 3))
        z -= z.mean(axis=0)
        assert np.linalg.norm(network.W @ z) <= network.lam * np.linalg.norm(z) + 1e-12


def test_nodes_are_numbered_in_sorted_order_or_as_added():
    """Labels are sorted, in whatever order they were added; those that cannot be sorted keep that order."""
    assert Network.from_graph(nx.Graph([("rome", "bonn"), ("oslo", "bonn")])).neighbours == ((1, 2), (0,), (0,))
    assert Network.from_graph(nx.Graph([(7, 3), (3, 5)])).neighbours == ((1, 2), (0,), (0,))
    assert Network.from_graph(nx.Graph([("b", 1), (1, (0, 0))])).neighbours == ((1,), (0, 2), (1,))


def test_networkx_variants_of_the_same_graph_are_accepted():
    """Self-loops, parallel edges, edge weights and a directed graph with both directions."""
    expected = networks.ring(5)
    looped = nx.cycle_graph(5)
    looped.add_edge(2, 2)
    weighted = nx.cycle_graph(5)
    nx.set_edge_attributes(weighted, 17.0, "weight")
    for graph in (looped, weighted, nx.MultiGraph([*nx.cycle_graph(5).edges] * 2), nx.cycle_graph(5).to_directed()):
        network = Network.from_graph(graph)
        assert (network.W == expected.W).all()
        assert network.neighbours == expected.neighbours
    assert looped.has_edge(2, 2), "the caller's graph was changed"


def test_a_network_is_immutable():
    """Engines store W and the graph: later changes to either, or to the user's objects, must not affect them."""
    graph, matrix = nx.path_graph(3), np.array([[0.5, 0.5, 0], [0.5, 0.25, 0.25], [0, 0.25, 0.75]])
    network = Network.from_graph(graph, matrix)
    graph.add_edge(0, 2)
    matrix[0, 0] = 9.0
    assert network.edges == 2
    assert network.W[0, 0] == 0.5
    with pytest.raises(ValueError, match="read-only"):
        network.W[0, 0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        network.degree[0] = 1
    with pytest.raises(nx.NetworkXError, match="[Ff]rozen"):
        network.graph.add_edge(0, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        network.W = matrix


def test_rounding_errors_in_a_given_matrix_are_removed():
    """An excess of 1e-13 per row would drift to 1e-10 in a thousand exchanges, and break J y = J ν."""
    noise = np.random.default_rng(0).uniform(-1e-13, 1e-13, size=(6, 6))
    network = Network.from_matrix(networks.ring(6).W + noise)
    assert network.edges == 6
    assert_assumption_2(network.W, adjacency("ring", 6))
    assert np.abs(network.W - networks.ring(6).W).max() < 1e-12


def test_lambda_includes_negative_eigenvalues():
    """Clients that weigh their neighbours more than themselves overshoot: λ = |λ_n|, not λ_2."""
    i, j = np.indices((4, 4))
    network = Network.from_matrix(np.where(i == j, 0.1, np.where((i - j) % 2 == 1, 0.45, 0.0)))
    assert network.eigenvalues == pytest.approx([1.0, 0.1, 0.1, -0.8])
    assert network.lam_min == pytest.approx(-0.8)
    assert network.lam == pytest.approx(0.8)
