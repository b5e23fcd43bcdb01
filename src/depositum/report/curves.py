"""Curves of runs: mean over seeds with one-standard-deviation bands, one panel per measure."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depositum.report.saving import save

#: Panels in order: column, title, logarithmic axis.
PANELS = (
    ("train_loss", "training loss f(x̄)", False),
    ("test_loss", "test loss of x̄", False),
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

    Panels that no run has values for are left out; a run without a panel's measure is left out of that panel. The test
    loss has one where evaluations lack an accuracy or the training loss, as a regression's and a language model's do.
    """
    frames = {label: frame.replace([np.inf, -np.inf], np.nan) for label, frame in runs.items()}
    shown = [panel for panel in PANELS if any(_says(frame, panel[0]) for frame in frames.values())] or [PANELS[0]]
    columns = 2 if len(shown) == 4 else min(3, len(shown))
    rows = -(-len(shown) // columns)
    # A figure of its own, not pyplot's: a person's choice of backend stays as it is.
    figure = Figure(figsize=(4.2 * columns, 3.1 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, panel in zip(grid.flat, shown, strict=False):
        _draw_panel(axes, frames, panel, against)
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
    save(figure, path)


def _points(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """The rows of a history that a panel shows."""
    points: pd.DataFrame = frame.dropna(subset=[column])
    # All clients start from one model: rounding is all there is of a consensus error there.
    return points[points["iteration"] > 0] if column == "consensus_x" else points


def _says(frame: pd.DataFrame, column: str) -> bool:
    """Whether a run has values of a measure; of the test loss, where others do not say as much at all of them."""
    points = _points(frame, column)
    if column == "test_loss":
        points = points[points[["train_loss", "test_accuracy"]].isna().any(axis=1)]
    return not points.empty


def _draw_panel(axes: Axes, frames: Mapping[str, pd.DataFrame], panel: tuple[str, str, bool], against: str) -> None:
    column, name, logarithmic = panel
    largest = {label: _points(frame, column)[column].max() for label, frame in frames.items()}
    zero = [label for label, value in largest.items() if value == 0]
    if len(zero) == sum(value == value for value in largest.values()):
        axes.set_yticks([0])
        axes.text(0.5, 0.55, "0 throughout", transform=axes.transAxes, ha="center", color="0.4")
    elif logarithmic:  # an axis on which 0 has no place
        axes.set_yscale("log")
        name += f"\n0 throughout: {_listed(zero, len(frames))}" if zero else ""
    for k, (label, frame) in enumerate(frames.items()):
        _curve(axes, frame, column, against, label, k, band=len(frames) <= FEW)
    axes.set_title(name, fontsize=10)
    axes.set_xlabel(AGAINST[against])
    axes.locator_params(axis="x", integer=against != "seconds")
    if axes.dataLim.x1 > 0:
        axes.set_xlim(left=0)
    else:  # nothing was done yet: one place, and not on the edge
        axes.set(xlim=(-0.5, 0.5), xticks=[0])
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _listed(labels: list[str], runs: int) -> str:
    """Some of so many runs, by name where a title has room for that."""
    names = ", ".join(labels)
    return names if len(names) <= 40 else f"{len(labels)} of {runs} runs"


def _curve(axes: Axes, frame: pd.DataFrame, column: str, against: str, label: str, k: int, band: bool) -> None:
    groups = _points(frame, column).groupby("iteration")
    x, mean, std = groups[against].mean(), groups[column].mean(), groups[column].std().fillna(0.0)
    low = mean - std
    if axes.get_yscale() == "log":
        keep = mean > 0  # an exact 0 has no place on this axis
        x, mean, std = x[keep], mean[keep], std[keep]
        low = (mean - std).clip(lower=mean * 0.05)
    colour, dash = COLOURS[k % len(COLOURS)], DASHES[k % len(DASHES)]
    alone = len(x) == 1  # a line of one point, and a band around it, cannot be seen
    axes.plot(
        x.to_numpy(),
        mean.to_numpy(),
        dash,
        color=colour,
        label=label,
        linewidth=1.6,
        marker="o" if alone else None,
        markersize=5,
    )
    if not band or not (std > 0).any():  # a band of no height would leave a logarithmic axis without one too
        return
    if alone:
        axes.errorbar(x, mean, yerr=[mean - low, std], fmt="none", ecolor=colour, capsize=3, linewidth=1.6)
    else:
        axes.fill_between(x.to_numpy(), low.to_numpy(), (mean + std).to_numpy(), color=colour, alpha=0.18, linewidth=0)
