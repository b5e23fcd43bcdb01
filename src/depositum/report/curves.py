"""Curves of runs: mean over seeds with one-standard-deviation bands, one panel per measure."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

#: Panels in order: column, title, logarithmic axis.
PANELS = (
    ("train_loss", "training loss f(x̄)", False),
    ("test_accuracy", "test accuracy of x̄", False),
    ("consensus_x", "consensus error (1/n)‖Jx − x‖²", True),
    ("stationarity", "stationarity ‖Gᵅ(x)‖²", True),
    ("gradient_error_mean", "gradient-estimation error, running mean", True),
    ("sparsity", "sparsity (fraction of zeros)", False),
)
#: Distinguishable with the common forms of colour blindness, and by dash pattern in black and white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F", "#8B4513")
DASHES = ("-", "--", "-.", ":")
#: With more runs than this, bands would cover each other: curves alone are drawn.
FEW = 8


#: How the horizontal axis is labelled.
AGAINST = {
    "iteration": "iteration t",
    "phases": "communication phases",
    "bytes_sent": "bytes sent per client",
    "gradient_evaluations": "gradient evaluations per client",
    "seconds": "seconds",
}


def draw_curves(runs: Mapping[str, pd.DataFrame], path: Path, title: str = "", against: str = "iteration") -> None:
    """Draw the histories of named runs into one figure file.

    Panels that no run has values for are left out; a run without a panel's measure is left out of that panel.
    """
    frames = {label: frame.replace([np.inf, -np.inf], np.nan) for label, frame in runs.items()}
    shown = [panel for panel in PANELS if any(_has(frame, panel[0]) for frame in frames.values())] or [PANELS[0]]
    columns = 2 if len(shown) == 4 else min(3, len(shown))
    rows = -(-len(shown) // columns)
    # A figure of its own, not pyplot's: a person's choice of backend stays as it is.
    figure = Figure(figsize=(4.2 * columns, 3.1 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, (column, name, logarithmic) in zip(grid.flat, shown, strict=False):
        for k, (label, frame) in enumerate(frames.items()):
            _curve(axes, frame, column, against, label, k, logarithmic, band=len(frames) <= FEW)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel(AGAINST[against])
        axes.set_xlim(left=0)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in list(grid.flat)[len(shown) :]:
        axes.set_visible(False)
    if len(frames) > 1:
        handles, labels = grid.flat[0].get_legend_handles_labels()
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=min(4 if len(frames) <= FEW else 5, len(frames)),
            frameon=False,
        )
    several = any(frame["seed"].nunique() > 1 for frame in frames.values())
    what = f"mean {'± standard deviation ' * (len(frames) <= FEW)}over seeds" if several else ""
    if title or what:
        figure.suptitle(", ".join(part for part in (title, what) if part), fontsize=11)
    part = path.with_name(path.stem + ".part" + path.suffix)
    figure.savefig(part, dpi=140)
    part.replace(path)


def _has(frame: pd.DataFrame, column: str) -> bool:
    return column in frame and bool(frame[column].notna().any())


def _curve(
    axes: Axes,
    frame: pd.DataFrame,
    column: str,
    against: str,
    label: str,
    k: int,
    logarithmic: bool,
    band: bool,
) -> None:
    points = frame[["seed", "iteration", *({against} - {"iteration"}), column]].dropna()
    if column == "consensus_x":
        points = points[points["iteration"] > 0]  # all clients start from one model: rounding is all there is
    groups = points.groupby("iteration")
    x, mean, std = groups[against].mean(), groups[column].mean(), groups[column].std().fillna(0.0)
    low = mean - std
    if logarithmic:
        keep = mean > 0  # an exact 0 has no place on this axis
        x, mean, std = x[keep], mean[keep], std[keep]
        low = (mean - std).clip(lower=mean * 0.05)
        axes.set_yscale("log")
    colour, dash = COLOURS[k % len(COLOURS)], DASHES[k % len(DASHES)]
    axes.plot(x.to_numpy(), mean.to_numpy(), dash, color=colour, label=label, linewidth=1.6)
    if band:
        axes.fill_between(x.to_numpy(), low.to_numpy(), (mean + std).to_numpy(), color=colour, alpha=0.18, linewidth=0)
