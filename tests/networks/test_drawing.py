"""The drawing shows every client, every link, λ and the gap."""

import networkx as nx
import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from depositum import networks
from depositum.networks import TOPOLOGIES
from depositum.networks.draw import HOP_COLOURS, draw


def drawn(network):
    ax = Figure().subplots()
    draw(network, ax)
    ax.figure.canvas.draw()
    (nodes,) = [c for c in ax.collections if isinstance(c, PathCollection)]
    (links,) = [c for c in ax.collections if isinstance(c, LineCollection)]
    return ax, np.asarray(nodes.get_offsets()), links


@pytest.mark.parametrize("n", [1, 2, 8])
@pytest.mark.parametrize("name", list(TOPOLOGIES))
def test_every_client_and_link_is_drawn(name, n):
    """n different places inside the picture, and a segment between the ends of each edge."""
    network = networks.network(name, n)
    ax, places, links = drawn(network)
    assert places.shape == (n, 2)
    assert len({tuple(place) for place in places.round(6)}) == n
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    assert ((places > [left, bottom]) & (places < [right, top])).all()
    segments = {frozenset(map(tuple, segment.round(6))) for segment in map(np.asarray, links.get_segments())}
    assert segments == {
        frozenset({tuple(places[i].round(6)), tuple(places[j].round(6))}) for i, j in network.graph.edges
    }


def test_ring_stands_on_a_circle_coloured_by_hop_and_labelled():
    """As in the paper's figure: client 0 on top, the next to its right; one colour per hop."""
    network = networks.ring(10, hops=3)
    ax, places, links = drawn(network)
    assert np.linalg.norm(places, axis=1) == pytest.approx(1.0)
    assert places[0] == pytest.approx([0.0, 1.0])
    assert places[1][0] > 0
    colours = [to_hex(colour) for colour in links.get_colors()]
    assert {colour: colours.count(colour) for colour in colours} == dict.fromkeys(HOP_COLOURS, 10)
    words = [text.get_text() for text in ax.texts]
    assert "λ = 0.3740, gap 1 − λ = 0.6260" in words
    assert ax.get_title() == "ring(hops=3)"
    assert [str(i) for i in range(10)] == words[:10]


def test_graphs_with_places_are_drawn_there_and_a_star_around_its_hub():
    """Also for a person's own networkx graph; places that are not all pairs are not used."""
    _, places, _ = drawn(networks.grid(6))
    assert places.tolist() == [[0, 0], [1, 0], [2, 0], [0, -1], [1, -1], [2, -1]]
    _, places, _ = drawn(networks.star(6))
    assert places[0].tolist() == [0, 0]
    assert np.linalg.norm(places[1:], axis=1) == pytest.approx(1.0)
    graph = nx.path_graph(3)
    nx.set_node_attributes(graph, {0: (0, 0), 1: (5, 1), 2: (9, 9)}, "pos")
    assert drawn(networks.network(graph, 3))[1].tolist() == [[0, 0], [5, 1], [9, 9]]
    del graph.nodes[1]["pos"]
    assert np.linalg.norm(drawn(networks.network(graph, 3))[1], axis=1).max() == pytest.approx(1.0)
