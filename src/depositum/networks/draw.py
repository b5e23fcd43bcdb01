"""A picture of a network, as in the paper's figure of topologies. The only module here that needs matplotlib."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from numpy.typing import NDArray

from depositum.networks.assumption import Network

#: Edges of a k-hop ring, by the steps between their ends.
HOP_COLOURS = ("#2b4fa8", "#e8871e", "#3c8d3c")
PLAIN = HOP_COLOURS[0]


def draw(network: Network, ax: Axes) -> None:
    """Draw the clients and their links, with λ and the spectral gap below.

    Clients stand on a circle, client 0 on top and the others clockwise, unless the graph's nodes have a place of
    their own (`pos`), as those of a grid or a geometric graph do; a star has its hub in the middle. Up to
    3 hops, a ring's links are coloured by hop.
    """
    places = _places(network)
    edges = np.array(network.graph.edges, dtype=np.int64).reshape(-1, 2)
    ax.add_collection(LineCollection(list(places[edges]), colors=_colours(network, edges), linewidths=1.0, zorder=1))
    ax.scatter(places[:, 0], places[:, 1], s=110, facecolor="#c5d3f2", edgecolor=PLAIN, zorder=2)
    if network.n <= 50:
        for client, place in enumerate(places):
            ax.annotate(str(client), place, ha="center", va="center", fontsize=7, zorder=3)
    ax.set_title(network.name)
    spectrum = f"λ = {network.lam:.4f}, gap 1 − λ = {network.gap:.4f}"
    ax.text(0.5, -0.02, spectrum, transform=ax.transAxes, ha="center", va="top")
    middle = (places.min(axis=0) + places.max(axis=0)) / 2
    half = 1.15 * (np.ptp(places, axis=0).max() / 2 or 1.0)
    ax.set(xlim=(middle[0] - half, middle[0] + half), ylim=(middle[1] - half, middle[1] + half), aspect="equal")
    ax.set_axis_off()


def _places(network: Network) -> NDArray[np.float64]:
    """Where each client stands, `[n, 2]`."""
    own = [network.graph.nodes[i].get("pos") for i in range(network.n)]
    if all(place is not None and np.shape(place) == (2,) for place in own):
        return np.array(own, dtype=np.float64)
    if network.n > 2 and network.edges == network.n - 1 == network.degree.max():  # a star: its hub in the middle
        hub = int(network.degree.argmax())
        return np.insert(_circle(network.n - 1), hub, 0.0, axis=0)
    return _circle(network.n)


def _circle(n: int) -> NDArray[np.float64]:
    """Places `[n, 2]` on the unit circle, clockwise from the top."""
    angle = np.pi / 2 - 2 * np.pi * np.arange(n) / n
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _colours(network: Network, edges: NDArray[np.int64]) -> list[tuple[str, float]]:
    """One colour and opacity per edge: by hop for a k-hop ring, fainter the more edges there are otherwise."""
    steps = np.abs(edges[:, 0] - edges[:, 1])
    hops = np.minimum(steps, network.n - steps)
    reach = int(hops.max(initial=0))
    # Links of 1 … reach hops only, and n of each, are all the links of a ring of that many hops.
    if reach <= len(HOP_COLOURS) and len(edges) == reach * network.n:
        return [(HOP_COLOURS[hop - 1], 1.0) for hop in hops]
    return [(PLAIN, max(0.1, min(0.8, 3 / np.sqrt(1 + network.degree.mean()) - 0.6)))] * len(edges)
