"""The figure of an experiment: panels in the paper's arrangement, means with bands, one legend on top."""

import io
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from depositum.errors import ConfigError
from depositum.experiments.definition import Experiment, FigureSpec, Panel
from depositum.experiments.results import TRACE, CellResult, Results, Values, check_measure, measure_title
from depositum.experiments.sweep import Labels, matches
from depositum.report.curves import COLOURS, DASHES

WIDTH, HEIGHT = 3.1, 2.5
MARKERS = "osD^vPX*"
#: Smaller values are rounding; logarithmic axes end here.
SMALLEST = 1e-16


def check_figure(spec: FigureSpec, experiment: Experiment, cells: Sequence[Labels]) -> None:
    """Raise if a figure cannot be drawn."""
    for axis in spec.series:
        experiment.check_axis(axis, "figure.series")
    for number, panel in enumerate(spec.panel, start=1):
        key = f"figure.panel {number}"
        experiment.check_where(panel.where, f"{key}.where")
        check_measure(panel.y, f"{experiment.id}: {key}.y")
        check_measure(panel.x, f"{experiment.id}: {key}.x")
        for name, pair in (("limits", panel.limits), ("zoom", panel.zoom)):
            if pair is not None and not pair[0] < pair[1]:
                raise ConfigError(
                    f"{experiment.id}: {key}.{name}", f"{pair} given; the first must be smaller than the second"
                )
        if panel.zoom is not None and not 0 <= panel.zoom[0] < panel.zoom[1] <= 1:
            raise ConfigError(f"{experiment.id}: {key}.zoom", f"{panel.zoom} given; shares of the run are in [0, 1]")
        if panel.kind == "trace" and not experiment.trace:
            raise ConfigError(f"{experiment.id}: {key}.kind", "'trace' given; it needs trace = true in the file")
        names = [tuple(labels[axis] for axis in spec.series) for labels in cells if matches(labels, panel.where)]
        if len(set(names)) < len(names):
            raise ConfigError(
                f"{experiment.id}: {key}.where",
                "several cells share one curve; name more axes there, or in figure.series",
            )


def draw_figure(experiment: Experiment, results: Results, folder: Path) -> None:
    """Draw `figure.pdf` and `figure.png` into a folder."""
    spec = experiment.figure
    assert spec is not None
    columns = min(spec.columns, len(spec.panel))
    rows = -(-len(spec.panel) // columns)
    figure = Figure(figsize=(WIDTH * columns, HEIGHT * rows + 0.45), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    styles = _styles(spec, results)
    for axes, panel in zip(grid.flat, spec.panel, strict=False):
        _draw_panel(axes, panel, spec, results.where(panel.where), styles)
    for axes in list(grid.flat)[len(spec.panel) :]:
        axes.set_visible(False)
    handles = [
        Line2D(
            [],
            [],
            color=colour,
            linestyle=dash,  # type: ignore[arg-type]
            marker=marker if any(panel.kind == "points" for panel in spec.panel) else None,
            markersize=4,
        )
        for colour, dash, marker in styles.values()
    ]
    diverged = {_series_labels(cell, spec) for cell in results if cell.diverged}
    names = [", ".join(name) + (" (diverged)" if name in diverged else "") for name in styles]
    figure.legend(
        handles, names, loc="outside upper center", ncols=_legend_columns(names, columns), frameon=False, fontsize=9
    )
    _save(figure, folder)


def _legend_columns(names: list[str], columns: int) -> int:
    """How many entries of the legend fit next to each other."""
    width = int(columns * WIDTH * 11)  # in characters, approximately
    return max(1, min(len(names), width // (max(map(len, names), default=1) + 8)))


def _series_labels(cell: CellResult, spec: FigureSpec) -> tuple[str, ...]:
    """The labels that identify the curve of a cell."""
    return tuple(cell.labels[axis] for axis in spec.series)


def _styles(spec: FigureSpec, results: Results) -> dict[tuple[str, ...], tuple[str, str, str]]:
    """A colour, dash pattern and marker for every curve, in the order of the labels."""
    present = {_series_labels(cell, spec) for cell in results}
    names = [name for name in itertools.product(*(results.labels(axis) for axis in spec.series)) if name in present]
    return {
        name: (COLOURS[k % len(COLOURS)], DASHES[k % len(DASHES)], MARKERS[k % len(MARKERS)])
        for k, name in enumerate(names)
    }


def _draw_panel(
    axes: Axes,
    panel: Panel,
    spec: FigureSpec,
    results: Results,
    styles: dict[tuple[str, ...], tuple[str, str, str]],
) -> None:
    # Diverged cells come last: they may leave the panel, and must not determine its limits.
    drawn = sorted((cell for cell in results if cell.history is not None), key=lambda cell: bool(cell.diverged))
    limits = None
    if panel.log:
        axes.set_yscale("log")
    inset = _inset(axes, drawn, panel) if panel.zoom is not None and drawn else None
    if inset is not None and panel.log:
        inset.set_yscale("log")
    for cell in drawn:
        style = styles[_series_labels(cell, spec)]
        if cell.diverged and cell is not drawn[0] and limits is None:
            limits = axes.get_ylim()
        for target in [axes] if inset is None else [axes, inset]:
            if panel.kind == "points":
                _draw_point(target, cell, panel, style)
            elif panel.kind == "trace":
                _draw_trace(target, cell, style)
            else:
                _draw_mean_curve(target, cell, panel, style, band=target is axes)
    if not drawn:
        axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", va="center", color="0.5")
    axes.set_title(panel.title, fontsize=9)
    axes.set_xlabel(measure_title(panel.x), fontsize=8)
    axes.set_ylabel(panel.ylabel or measure_title(panel.y), fontsize=8)
    axes.tick_params(which="both", labelsize=7)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if panel.limits is not None:
        axes.set_ylim(*panel.limits)
    elif limits is not None:
        low, high = axes.get_ylim()
        axes.set_ylim(low, min(high, 10 * limits[1] if panel.log else 2 * limits[1] - limits[0]))
    if inset is not None and panel.zoom is not None:
        left, right = (share * max(cell.config.run.steps for cell in drawn) for share in panel.zoom)
        inset.set(xlim=(left, right), ylim=_range(inset, left, right))
        inset.tick_params(which="both", labelsize=6)
        axes.indicate_inset_zoom(inset, edgecolor="0.4")


def _inset(axes: Axes, drawn: list[CellResult], panel: Panel) -> Axes:
    """Axes for an enlarged part, where the curves leave space: above falling ones, below rising ones."""
    y = drawn[0].frame(panel.y).groupby("t")["y"].mean()
    falls = len(y) > 0 and y.iloc[-1] < y.iloc[0]
    return axes.inset_axes((0.42, 0.4 if falls else 0.12, 0.55, 0.52))


def _range(axes: Axes, left: float, right: float) -> tuple[float, float]:
    """The range of the lines of `axes` between two values of x, with a margin."""
    ys = [y[(x >= left) & (x <= right)] for x, y in (map(np.asarray, line.get_data()) for line in axes.lines)]
    inside = np.concatenate(ys)
    if not len(inside):
        return axes.get_ylim()
    margin = 0.05 * (inside.max() - inside.min()) or 1.0
    return float(inside.min() - margin), float(inside.max() + margin)


def _draw_mean_curve(
    axes: Axes, cell: CellResult, panel: Panel, style: tuple[str, str, str], band: bool = True
) -> None:
    """The mean over seeds, with a band of one sample standard deviation on either side."""
    frame = _finite(cell.frame(panel.y))
    if panel.y == "consensus_x":
        frame = frame[frame["t"] > 0]  # all clients start from one model: rounding only
    if panel.x not in ("iteration", "phases"):
        frame = frame.merge(cell.frame(panel.x).rename(columns={"y": "x"})[["seed", "t", "x"]], on=["seed", "t"])
    else:
        frame["x"] = frame["t"] if panel.x == "iteration" else frame["phases"]
    groups = frame.groupby("t")
    x, y, s = groups["x"].mean(), groups["y"].mean(), groups["y"].std().fillna(0.0)
    _draw_band(axes, _array(x), _array(y), _array(s) if band else None, panel.log, style)


def _draw_band(
    axes: Axes, x: Values, y: Values, s: Values | None, log: bool, style: tuple[str, str, str], width: float = 1.3
) -> None:
    """A line `y` over `x`, with a band of width `s` on either side if given; each `[points]`."""
    colour, dash, _ = style
    keep = y > SMALLEST if log else np.full(len(y), True)
    axes.plot(x[keep], y[keep], dash, color=colour, linewidth=width)
    if s is not None:
        low = np.maximum(y - s, 0.05 * y) if log else y - s
        axes.fill_between(x[keep], low[keep], (y + s)[keep], color=colour, alpha=0.16, linewidth=0)


def _draw_trace(axes: Axes, cell: CellResult, style: tuple[str, str, str]) -> None:
    """Faint: the mean at every iteration; thick: the mean of the seeds' maxima in each communication phase."""
    if cell.trace is None:
        return
    frame = _finite(cell.frame(TRACE))
    frame = frame[frame["t"] > 0]  # all clients start from one model: rounding only
    every = frame.groupby("t")["y"].mean().clip(lower=SMALLEST)
    axes.plot(every.index.to_numpy(), every.to_numpy(), "-", color=style[0], linewidth=0.5, alpha=0.3)
    period = cell.config.run.period
    # The exchange at t = kT0 starts the phase of iterations kT0 + 1 … (k + 1)T0.
    phase = (np.ceil(frame["t"] / period) * period).rename("end")
    most = frame.groupby(["seed", phase])["y"].max().groupby("end")
    y, s = most.mean(), most.std().fillna(0.0)
    _draw_band(axes, _array(y.index), _array(y), _array(s), True, style, width=1.6)


def _draw_point(axes: Axes, cell: CellResult, panel: Panel, style: tuple[str, str, str]) -> None:
    """The mean of the last values, with error bars of one sample standard deviation."""
    last = [_finite(cell.frame(name)).groupby("seed")["y"].last() for name in (panel.x, panel.y)]
    (x, sx), (y, sy) = ((values.mean(), values.std() if len(values) > 1 else 0.0) for values in last)
    axes.errorbar(x, y, xerr=sx, yerr=sy, fmt=style[2], color=style[0], markersize=5, capsize=2, linewidth=1)


def _array(values: "pd.Series[float] | pd.Index[float]") -> Values:
    return np.asarray(values, dtype=np.float64)


def _finite(frame: pd.DataFrame) -> pd.DataFrame:
    finite: pd.DataFrame = frame[np.isfinite(frame["y"])].copy()
    return finite


def _save(figure: Figure, folder: Path) -> None:
    """Write both files, with the same bytes for the same figure; a palette makes the PNG a third of the size."""
    figure.savefig(folder / "figure.pdf", metadata={"CreationDate": None, "Producer": None, "Creator": None})
    raw = io.BytesIO()
    figure.savefig(raw, format="png", dpi=130)
    raw.seek(0)
    picture = Image.open(raw).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    picture.save(folder / "figure.png", optimize=True)
