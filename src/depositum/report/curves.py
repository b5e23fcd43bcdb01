"""Curves of runs: mean over seeds with bands of one standard deviation, one panel per measure."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depositum.report.figure_file import save_figure

#: Panels in order: column of the history, title, whether the axis is logarithmic.
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
#: With more runs than this, bands would cover each other: only the means are drawn.
MAX_RUNS_WITH_BANDS = 8
#: What curves can be drawn against: column of the history, label of the horizontal axis.
X_AXES = {
    "iteration": "iteration t",
    "phases": "communication phases",
    "bytes_sent": "bytes sent per client",
    "gradient_evaluations": "gradient evaluations per client",
    "seconds": "seconds",
}


def draw_curves(runs: Mapping[str, pd.DataFrame], path: Path, title: str = "", against: str = "iteration") -> None:
    """Draw the histories of named runs into one figure file.

    A panel is drawn if at least one run has values for it, and shows only the runs that do. The test loss gets a panel
    only if some evaluation lacks an accuracy or a training loss (regression, language models).
    """
    frames = {label: frame.replace([np.inf, -np.inf], np.nan) for label, frame in runs.items()}
    shown = [panel for panel in PANELS if any(_has_panel(frame, panel[0]) for frame in frames.values())] or [PANELS[0]]
    columns = 2 if len(shown) == 4 else min(3, len(shown))
    rows = -(-len(shown) // columns)
    # Not made by pyplot: that would set a backend, which is the user's choice.
    figure = Figure(figsize=(4.2 * columns, 3.1 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, panel in zip(grid.flat, shown, strict=False):
        _draw_panel(axes, frames, panel, against)
    for axes in list(grid.flat)[len(shown) :]:
        axes.set_visible(False)
    bands = len(frames) <= MAX_RUNS_WITH_BANDS
    if len(frames) > 1:
        handles, labels = grid.flat[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=min(4 if bands else 5, len(frames)), frameon=False
        )
    several_seeds = any(frame["seed"].nunique() > 1 for frame in frames.values())
    statistic = f"mean {'± standard deviation ' * bands}over seeds" if several_seeds else ""
    if title or statistic:
        figure.suptitle(", ".join(part for part in (title, statistic) if part), fontsize=11)
    save_figure(figure, path)


def _points(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """The rows of a history that a panel shows."""
    points: pd.DataFrame = frame.dropna(subset=[column])
    # All clients start from one model: the consensus error at t = 0 is nothing but rounding.
    return points[points["iteration"] > 0] if column == "consensus_x" else points


def _has_panel(frame: pd.DataFrame, column: str) -> bool:
    """Whether a run has values of a measure; the test loss counts only where another measure is missing."""
    points = _points(frame, column)
    if column == "test_loss":
        points = points[points[["train_loss", "test_accuracy"]].isna().any(axis=1)]
    return not points.empty


def _draw_panel(axes: Axes, frames: Mapping[str, pd.DataFrame], panel: tuple[str, str, bool], against: str) -> None:
    column, title, logarithmic = panel
    largest = {label: _points(frame, column)[column].max() for label, frame in frames.items()}
    zero = [label for label, value in largest.items() if value == 0]
    if len(zero) == sum(value == value for value in largest.values()):
        axes.set_yticks([0])
        axes.text(0.5, 0.55, "0 throughout", transform=axes.transAxes, ha="center", color="0.4")
    elif logarithmic:  # cannot show 0
        axes.set_yscale("log")
        title += f"\n0 throughout: {_list_runs(zero, len(frames))}" if zero else ""
    for k, (label, frame) in enumerate(frames.items()):
        _draw_curve(axes, frame, column, against, label, k, band=len(frames) <= MAX_RUNS_WITH_BANDS)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(X_AXES[against])
    axes.locator_params(axis="x", integer=against != "seconds")
    if axes.dataLim.x1 > 0:
        axes.set_xlim(left=0)
    else:  # no iterations yet: a single point, which should not lie on the border
        axes.set(xlim=(-0.5, 0.5), xticks=[0])
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _list_runs(labels: list[str], runs: int) -> str:
    """Names of runs, or their number if the names are too long for a title."""
    names = ", ".join(labels)
    return names if len(names) <= 40 else f"{len(labels)} of {runs} runs"


def _draw_curve(axes: Axes, frame: pd.DataFrame, column: str, against: str, label: str, k: int, band: bool) -> None:
    groups = _points(frame, column).groupby("iteration")
    x, mean, std = groups[against].mean(), groups[column].mean(), groups[column].std().fillna(0.0)
    low = mean - std
    if axes.get_yscale() == "log":
        positive = mean > 0
        x, mean, std = x[positive], mean[positive], std[positive]
        low = (mean - std).clip(lower=mean * 0.05)
    colour, dash = COLOURS[k % len(COLOURS)], DASHES[k % len(DASHES)]
    single = len(x) == 1  # neither a line nor a band of a single point would be visible
    axes.plot(
        x.to_numpy(),
        mean.to_numpy(),
        dash,
        color=colour,
        label=label,
        linewidth=1.6,
        marker="o" if single else None,
        markersize=5,
    )
    if not band or not (std > 0).any():  # a band of zero height would collapse the limits of a logarithmic axis
        return
    if single:
        axes.errorbar(x, mean, yerr=[mean - low, std], fmt="none", ecolor=colour, capsize=3, linewidth=1.6)
    else:
        axes.fill_between(x.to_numpy(), low.to_numpy(), (mean + std).to_numpy(), color=colour, alpha=0.18, linewidth=0)
