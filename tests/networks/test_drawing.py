"""The drawing shows every client, every link, λ and the gap."""

import networkx as nx
import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from depositum import networks
from depositum.networks import TOPOLOGIES
from depositum.networks.drawing import HOP_COLOURS, draw_network


def drawn(network):
    ax = Figure().subplots()
    draw_network(network, ax)
    ax.figure.canvas.draw()
    (nodes,) = [c for c in ax.collections if isinstance(c, PathCollection)]
    (links,) = [c for c in ax.collections if isinstance(c, LineCollection)]
    return ax, np.asarray(nodes.get_offsets()), links


@pytest.mark.parametrize("n", [1, 2, 8])
@pytest.mark.parametrize("name", list(TOPOLOGIES))
def test_every_client_and_link_is_drawn(name, n):
    """n distinct positions inside the axes, and a segment between the ends of each edge."""
    network = networks.network(name, n)
    ax, positions, links = drawn(network)
    assert positions.shape == (n, 2)
    assert len({tuple(position) for position in positions.round(6)}) == n
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    assert ((positions > [left, bottom]) & (positions < [right, top])).all()
    segments = {frozenset(map(tuple, segment.round(6))) for segment in map(np.asarray, links.get_segments())}
    assert segments == {
        frozenset({tuple(positions[i].round(6)), tuple(positions[j].round(6))}) for i, j in network.graph.edges
    }


def test_a_ring_is_drawn_as_a_labelled_circle_coloured_by_hop():
    """As in the paper's figure: client 0 at the top, client 1 to its right; one colour per hop."""
    network = networks.ring(10, hops=3)
    ax, positions, links = drawn(network)
    assert np.linalg.norm(positions, axis=1) == pytest.approx(1.0)
    assert positions[0] == pytest.approx([0.0, 1.0])
    assert positions[1][0] > 0
    colours = [to_hex(colour) for colour in links.get_colors()]
    assert {colour: colours.count(colour) for colour in colours} == dict.fromkeys(HOP_COLOURS, 10)
    words = [text.get_text() for text in ax.texts]
    assert "λ = 0.3740, gap 1 − λ = 0.6260" in words
    assert ax.get_title() == "ring(hops=3)"
    assert [str(i) for i in range(10)] == words[:10]


def test_node_positions_are_used_and_a_star_is_drawn_around_its_hub():
    """Also for a user's networkx graph; positions are ignored unless every node has a pair."""
    _, positions, _ = drawn(networks.grid(6))
    assert positions.tolist() == [[0, 0], [1, 0], [2, 0], [0, -1], [1, -1], [2, -1]]
    _, positions, _ = drawn(networks.star(6))
    assert positions[0].tolist() == [0, 0]
    assert np.linalg.norm(positions[1:], axis=1) == pytest.approx(1.0)
    graph = nx.path_graph(3)
    nx.set_node_attributes(graph, {0: (0, 0), 1: (5, 1), 2: (9, 9)}, "pos")
    assert drawn(networks.network(graph, 3))[1].tolist() == [[0, 0], [5, 1], [9, 9]]
    del graph.nodes[1]["pos"]
    assert np.linalg.norm(drawn(networks.network(graph, 3))[1], axis=1).max() == pytest.approx(1.0)
