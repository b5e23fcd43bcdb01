"""Draws a network as in the paper's figure of topologies. The only module of this package that needs matplotlib."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from numpy.typing import NDArray

from depositum.networks.communication_network import Network

#: Colours of the edges of a k-hop ring, by hop.
HOP_COLOURS = ("#2b4fa8", "#e8871e", "#3c8d3c")
DEFAULT_COLOUR = HOP_COLOURS[0]


def draw_network(network: Network, ax: Axes) -> None:
    """Draw the clients and their links, with λ and the spectral gap below.

    Clients are arranged clockwise on a circle with client 0 at the top, unless the nodes of the graph have positions
    (`pos`), as those of a grid or a geometric graph do; a star has its hub in the centre. The links of a ring of up to
    3 hops are coloured by hop.
    """
    positions = _positions(network)
    edges = np.array(network.graph.edges, dtype=np.int64).reshape(-1, 2)
    ax.add_collection(LineCollection(list(positions[edges]), colors=_colours(network, edges), linewidths=1.0, zorder=1))
    ax.scatter(positions[:, 0], positions[:, 1], s=110, facecolor="#c5d3f2", edgecolor=DEFAULT_COLOUR, zorder=2)
    if network.n <= 50:
        for client, position in enumerate(positions):
            ax.annotate(str(client), position, ha="center", va="center", fontsize=7, zorder=3)
    ax.set_title(network.name)
    spectrum = f"λ = {network.lam:.4f}, gap 1 − λ = {network.gap:.4f}"
    ax.text(0.5, -0.02, spectrum, transform=ax.transAxes, ha="center", va="top")
    middle = (positions.min(axis=0) + positions.max(axis=0)) / 2
    half = 1.15 * (np.ptp(positions, axis=0).max() / 2 or 1.0)
    ax.set(xlim=(middle[0] - half, middle[0] + half), ylim=(middle[1] - half, middle[1] + half), aspect="equal")
    ax.set_axis_off()


def _positions(network: Network) -> NDArray[np.float64]:
    """The position of each client, `[n, 2]`."""
    given = [network.graph.nodes[i].get("pos") for i in range(network.n)]
    if all(position is not None and np.shape(position) == (2,) for position in given):
        return np.array(given, dtype=np.float64)
    if network.n > 2 and network.edges == network.n - 1 == network.degree.max():  # a star: its hub in the centre
        hub = int(network.degree.argmax())
        return np.insert(_circle(network.n - 1), hub, 0.0, axis=0)
    return _circle(network.n)


def _circle(n: int) -> NDArray[np.float64]:
    """Positions `[n, 2]` on the unit circle, clockwise from the top."""
    angle = np.pi / 2 - 2 * np.pi * np.arange(n) / n
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _colours(network: Network, edges: NDArray[np.int64]) -> list[tuple[str, float]]:
    """Colour and opacity of each edge: by hop for a k-hop ring, otherwise fainter the more edges there are."""
    steps = np.abs(edges[:, 0] - edges[:, 1])
    hops = np.minimum(steps, network.n - steps)
    max_hops = int(hops.max(initial=0))
    # A graph whose links all have at most max_hops hops is a ring of that many hops if it has max_hops · n links.
    if max_hops <= len(HOP_COLOURS) and len(edges) == max_hops * network.n:
        return [(HOP_COLOURS[hop - 1], 1.0) for hop in hops]
    return [(DEFAULT_COLOUR, max(0.1, min(0.8, 3 / np.sqrt(1 + network.degree.mean()) - 0.6)))] * len(edges)
