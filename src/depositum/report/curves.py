"""Curves of runs: mean over seeds with bands of one standard deviation, one panel per measure.

On logarithmic axes both are of the logarithm. From where a seed has diverged, the mean of the others is thinner.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from depositum.metrics import user_columns
from depositum.report.compared_runs import RunGroup, labels
from depositum.report.figure_file import save_figure
from depositum.report.seed_statistics import draw_seed_curve, over_seeds

#: A pattern of a line, as matplotlib takes it.
Dash = str | tuple[int, tuple[int, ...]]

#: Panels in order: column of the history, title, whether the axis is logarithmic.
PANELS = (
    ("train_loss", "training loss f(x̄)", False),
    ("test_loss", "test loss of x̄", False),
    ("test_accuracy", "test accuracy of x̄", False),
    ("consensus_x", "consensus error (1/n)‖Jx − x‖²", True),
    ("stationarity", "stationarity ‖Gᵅ(x)‖²", True),
    ("gradient_error_mean", "gradient-estimation error, running mean", True),
    ("sparsity", "sparsity (share of zeros)", False),
)
#: Distinguishable with the common forms of colour blindness, the first five by their lightness alone (a test computes
#: the distances), and by dash pattern.
COLOURS = ("#003A7D", "#228833", "#CC79A7", "#7A21DD", "#CCBB44", "#33BBEE", "#882255", "#000000", "#7F7F7F", "#D55E00")
DASHES = ("-", "--", "-.", ":")
#: Where some runs are set apart, lines tell both kinds apart first, and runs of the same colour only then.
RANKED_DASHES: tuple[Dash, ...] = ("-", (0, (9, 2)), (0, (9, 2, 2, 2)))
APART_DASHES: tuple[Dash, ...] = ((0, (3, 2)), (0, (3, 2, 1, 2)), (0, (2, 1, 1, 1, 1, 1)))
DIVERGED_DASHES: tuple[Dash, ...] = (":",)
#: Measures that are shares: their axis is in percent, as in tables.
SHARES = ("test_accuracy", "sparsity")
#: Sizes of the legend in inches: a character, what is beside a label, a line.
CHARACTER, HANDLE, LINE = 0.075, 0.55, 0.2
#: Lines of the legend that the panels leave room for; with more, the figure becomes higher.
LEGEND_LINES = 4
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


class Curve(NamedTuple):
    """One run in all panels of a figure."""

    label: str
    frame: pd.DataFrame
    style: dict[str, Any]


def draw_curves(runs: Mapping[str, pd.DataFrame], path: Path, title: str = "", against: str = "iteration") -> None:
    """Draw the histories of named runs into one figure file.

    A panel is drawn if at least one run has values for it, and shows only the runs that do; user-defined measures come
    last. The test loss gets a panel
    only if some evaluation lacks an accuracy or a training loss (regression, language models).
    """
    curves = [Curve(label, frame, _style(k, DASHES)) for k, (label, frame) in enumerate(runs.items())]
    _draw({"": curves}, path, title, against)


def draw_comparison(groups: Sequence[RunGroup], path: Path, against: str = "iteration") -> None:
    """Draw compared runs into one figure file, as `draw_curves` does.

    Labels have the stepsize where runs differ in it. Runs that solve another problem, or that diverged, have their own
    part of the legend, with its title, and broken lines.
    """
    names = labels([run for group in groups for run in group.runs])
    curves: dict[str, list[Curve]] = {}
    k = 0
    for group in groups:
        dashes = {"ranked": RANKED_DASHES, "apart": APART_DASHES, "diverged": DIVERGED_DASHES}[group.kind]
        part = curves.setdefault(group.title, [])
        for index, run in enumerate(group.runs):
            style = _style(k, DASHES) if len(groups) == 1 else _style(k, dashes, index // len(COLOURS))
            part.append(Curve(names[run.name], run.history, style))
            k += 1
    _draw(curves, path, "", against)


def _style(k: int, dashes: Sequence[Dash], dash: int | None = None) -> dict[str, Any]:
    """How the k-th curve is drawn, with one of `dashes`: the k-th, unless `dash` is given."""
    return {"color": COLOURS[k % len(COLOURS)], "linestyle": dashes[(k if dash is None else dash) % len(dashes)]}


def _draw(parts: Mapping[str, Sequence[Curve]], path: Path, title: str, against: str) -> None:
    """Draw the curves of all parts of a legend, by title, into a file."""
    save_figure(_figure(parts, title, against), path)


def history_figure(history: pd.DataFrame) -> Figure:
    """The figure of one run, which belongs to no backend: save it, in whatever format."""
    return _figure({"": [Curve("", history, _style(0, DASHES))]}, "", "iteration")


def _figure(parts: Mapping[str, Sequence[Curve]], title: str, against: str) -> Figure:
    curves = [curve for part in parts.values() for curve in part]
    own = user_columns(curve.frame.columns for curve in curves)
    curves = [curve._replace(frame=_drawable(curve.frame, own)) for curve in curves]
    panels = (*PANELS, *((name, name, False) for name in own))
    shown = [panel for panel in panels if any(_has_panel(curve.frame, panel[0]) for curve in curves)] or [PANELS[0]]
    columns = 2 if len(shown) == 4 else min(3, len(shown))
    rows = -(-len(shown) // columns)
    # Not made by pyplot: that would set a backend, which is the user's choice.
    figure = Figure(figsize=(4.2 * columns, 3.1 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    bands = len(curves) <= MAX_RUNS_WITH_BANDS
    for axes, panel in zip(grid.flat, shown, strict=False):
        _draw_panel(axes, curves, panel, against, bands)
    for axes in list(grid.flat)[len(shown) :]:
        axes.set_visible(False)
    if len(curves) > 1:
        _draw_legend(figure, parts)
    several_seeds = any(curve.frame["seed"].nunique() > 1 for curve in curves)
    statistic = f"mean {'± standard deviation ' * bands}over seeds" if several_seeds else ""
    if statistic and any(axes.get_yscale() == "log" for axes in grid.flat):
        statistic += ", of logarithms on logarithmic axes"
    if title or statistic:
        figure.suptitle(", ".join(part for part in (title, statistic) if part), fontsize=11)
    return figure


def _draw_legend(figure: Figure, parts: Mapping[str, Sequence[Curve]]) -> None:
    """Below the panels: the labels of each part in columns of its own, under its title."""
    longest = max(len(curve.label) for part in parts.values() for curve in part)
    fitting = max(len(parts), int(figure.get_figwidth() // (HANDLE + CHARACTER * longest)))
    lengths = [len(part) + bool(title) for title, part in parts.items()]
    height = 3 if any(parts) else 1  # a title above at least two labels
    while sum(ceil(length / height) for length in lengths) > fitting:
        height += 1
    wrapped = {title: fill(title, max(longest, 24)) for title in parts}
    empty = Line2D([], [], linestyle="none")
    handles: list[Line2D] = []
    texts: list[str] = []
    titles: list[int] = []
    for title, part in parts.items():
        if title:
            titles.append(len(texts))
            handles.append(empty)
            texts.append(wrapped[title])
        handles += [Line2D([], [], linewidth=1.6, **curve.style) for curve in part]
        texts += [curve.label for curve in part]
        filled = -len(texts) % height  # the next part begins in a new column
        handles += [empty] * filled
        texts += [""] * filled
    lines = height + max(title.count("\n") for title in wrapped.values())
    figure.set_figheight(figure.get_figheight() + LINE * max(0, lines - LEGEND_LINES))
    legend = figure.legend(
        handles, texts, loc="outside lower center", ncols=len(texts) // height, frameon=False, fontsize=9
    )
    for index in titles:
        legend.get_texts()[index].set_fontweight("bold")


def _drawable(frame: pd.DataFrame, own: Sequence[str]) -> pd.DataFrame:
    """A history without infinities, and with the columns of user-defined measures that another run has."""
    missing = [name for name in own if name not in frame]
    return frame.replace([np.inf, -np.inf], np.nan).assign(**dict.fromkeys(missing, np.nan))


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


def _draw_panel(axes: Axes, curves: Sequence[Curve], panel: tuple[str, str, bool], against: str, bands: bool) -> None:
    column, title, logarithmic = panel
    largest = {curve.label: _points(curve.frame, column)[column].max() for curve in curves}
    zero = [label for label, value in largest.items() if value == 0]
    if len(zero) == sum(value == value for value in largest.values()):
        axes.set_yticks([0])
        axes.text(0.5, 0.55, "0 throughout", transform=axes.transAxes, ha="center", color="0.4")
    elif logarithmic:  # cannot show 0
        axes.set_yscale("log")
        title += f"\n0 throughout: {_list_runs(zero, len(curves))}" if zero else ""
    if column in SHARES:
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1.0))
    for curve in curves:
        _draw_curve(axes, curve, column, against, bands)
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


def _draw_curve(axes: Axes, curve: Curve, column: str, against: str, band: bool) -> None:
    points = _points(curve.frame, column)
    table = pd.DataFrame({"seed": points["seed"], "t": points["iteration"], "x": points[against], "y": points[column]})
    ends = curve.frame.groupby("seed")["iteration"].max()
    drawn = over_seeds(table, axes.get_yscale() == "log", ends)
    single = len(drawn.x) == 1  # neither a line nor a band of a single point would be visible
    style: dict[str, Any] = {**curve.style, "label": curve.label, "marker": "o" if single else None, "markersize": 5}
    # A band of zero height would collapse the limits of a logarithmic axis.
    draw_seed_curve(axes, drawn, band=0.0 if single or not band else 0.18, **style)
    if single and band and drawn.has_band:
        around = [drawn.mean - drawn.low, drawn.high - drawn.mean]
        axes.errorbar(
            drawn.x, drawn.mean, yerr=around, fmt="none", ecolor=curve.style["color"], capsize=3, linewidth=1.6
        )
