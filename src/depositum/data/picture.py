"""A partition as a picture; the only module of `data` that needs matplotlib."""

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from depositum.data.dataset import Indices
from depositum.data.partitions import Targets, class_counts


def draw(parts: Sequence[Indices], targets: Targets, ax: Axes, names: Sequence[str] = ()) -> None:
    """Draw the paper's Fig. "dir" on `ax`: one bar per client, one colour per class, which may have names.

    A segment is the share of that class's samples that the client has, so that each colour adds up to 1 over the
    clients; with n IID clients and K classes all bars are alike, of height K/n in K equal segments.
    """
    counts = class_counts(parts, targets)
    shares = counts / counts.sum(axis=0)
    labels = np.unique(targets)
    few = len(labels) <= 10
    colours = colormaps["tab10"](range(10)) if few else colormaps["viridis"](np.linspace(0, 1, len(labels)))
    clients = np.arange(len(parts))
    bottom = np.zeros(len(parts))
    for label, share, colour in zip(labels, shares.T, colours, strict=False):
        ax.bar(clients, share, bottom=bottom, color=colour, label=names[label] if names else str(label))
        bottom += share
    ax.set_ylim(0, 1.05 * bottom.max())
    ax.set_xlabel("client")
    kind = "category" if names else "class"
    ax.set_ylabel(f"share of each {kind}")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(labels) <= 20:
        ax.legend(title=kind, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))  # beside the bars
