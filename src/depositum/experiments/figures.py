"""The figure of an experiment: panels in the paper's arrangement, means with bands, one legend on top."""

import io
import itertools
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter
from PIL import Image

from depositum.errors import ConfigError
from depositum.experiments.definition import Experiment, FigureSpec, Panel
from depositum.experiments.results import TRACE, CellResult, Results, check_measure, measure_title
from depositum.experiments.sweep import Labels, matches
from depositum.report.curves import COLOURS, DASHES
from depositum.report.seed_statistics import SeedCurve, draw_seed_curve, over_seeds

WIDTH, HEIGHT = 3.1, 2.5
MARKERS = "osD^vPX*"
#: How many characters of the note fit under a column of panels.
NOTE_CHARACTERS = 55
#: Markers on a curve, and the opacity of a band.
MARKS, BAND = 8, 0.16
#: By which share of their panel curves that diverge may extend it, on either side.
LEAVING = 0.15
#: Colour, dash pattern and marker of a curve.
Style = tuple[str, str, str]
#: Smaller values are rounding; logarithmic axes end here.
SMALLEST = 1e-16


def check_figure(spec: FigureSpec, experiment: Experiment, cells: Sequence[Labels]) -> None:
    """Raise if a figure cannot be drawn."""
    for axis in spec.series:
        experiment.check_axis(axis, "figure.series")
    for number, panel in enumerate(spec.panel, start=1):
        key = f"figure.panel {number}"
        experiment.check_where(panel.where, f"{key}.where")
        for name, measure in (("y", panel.y), ("x", panel.x), ("against", panel.against)):
            if measure is not None:
                check_measure(measure, experiment, f"{key}.{name}")
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
        if len(set(names)) < len(names) and panel.kind != "points":
            raise ConfigError(
                f"{experiment.id}: {key}.where",
                "several cells share one curve; name more axes there, or in figure.series",
            )


def draw_figure(experiment: Experiment, results: Results, folder: Path) -> None:
    """Draw `figure.svg`, `figure.pdf` and `figure.png` into a folder.

    Panels that show the same measures share their axes, unless the file gives some of them limits of their own.
    """
    spec = experiment.figure
    assert spec is not None
    columns = min(spec.columns, len(spec.panel))
    rows = -(-len(spec.panel) // columns)
    figure = Figure(figsize=(WIDTH * columns, HEIGHT * rows + 0.6), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    styles = _styles(spec, results)
    comparable: dict[object, list[_DrawnPanel]] = {}
    for axes, panel in zip(grid.flat, spec.panel, strict=False):
        group = comparable.setdefault((panel.kind, panel.x, panel.y, panel.log, panel.log_x, str(panel.limits)), [])
        if group:
            axes.sharex(group[0].axes)
            axes.sharey(group[0].axes)
        group.append(_DrawnPanel(axes, panel, spec, results.where(panel.where), styles))
    for group in comparable.values():
        _draw_group(group)
    for axes in list(grid.flat)[len(spec.panel) :]:
        axes.set_visible(False)
    handles = [
        Line2D(
            [],
            [],
            color=colour,
            linestyle=dash,  # type: ignore[arg-type]
            marker=marker,
            markersize=4,
        )
        for colour, dash, marker in styles.values()
    ]
    names = [", ".join(name) for name in styles]
    figure.legend(
        handles, names, loc="outside upper center", ncols=_legend_columns(names, columns), frameon=False, fontsize=9
    )
    figure.supxlabel(_note(spec, results), fontsize=7, color="0.35")
    _save(figure, folder)


def _note(spec: FigureSpec, results: Results) -> str:
    """What lines and bands are, for the foot of the figure."""
    counts = sorted({len(cell.cached.seeds) for cell in results if cell.cached is not None})
    if not counts or counts == [1]:
        return "one seed"
    seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    against = any(panel.against is not None for panel in spec.panel)
    if all(panel.kind == "points" for panel in spec.panel):
        hollow = "; hollow: the bound" if against else ""
        return f"means over {seeds} seeds; bars: ± one sample standard deviation{hollow}"
    parts = [f"lines: means over {seeds} seeds; bands: ± one sample standard deviation"]
    if any(panel.log for panel in spec.panel):
        parts.append("on logarithmic axes, both of the logarithm")
    if against:
        parts.append("dotted: the bound")
    if any(panel.kind == "trace" for panel in spec.panel):
        parts.append("faint: every iteration, thick: the largest value of each communication phase")
    columns = min(spec.columns, len(spec.panel))
    return "\n".join(textwrap.wrap("; ".join(parts), NOTE_CHARACTERS * columns))


def _legend_columns(names: list[str], columns: int) -> int:
    """How many entries of the legend fit next to each other."""
    width = int(columns * WIDTH * 11)  # in characters, approximately
    return max(1, min(len(names), width // (max(map(len, names), default=1) + 8)))


def _series_labels(cell: CellResult, spec: FigureSpec) -> tuple[str, ...]:
    """The labels that identify the curve of a cell."""
    return tuple(cell.labels[axis] for axis in spec.series)


def _styles(spec: FigureSpec, results: Results) -> dict[tuple[str, ...], Style]:
    """A colour, dash pattern and marker for every curve, in the order of the labels."""
    present = {_series_labels(cell, spec) for cell in results}
    names = [name for name in itertools.product(*(results.labels(axis) for axis in spec.series)) if name in present]
    return {
        name: (COLOURS[k % len(COLOURS)], DASHES[k % len(DASHES)], MARKERS[k % len(MARKERS)])
        for k, name in enumerate(names)
    }


class _DrawnPanel:
    """A panel on its axes."""

    def __init__(
        self, axes: Axes, panel: Panel, spec: FigureSpec, results: Results, styles: dict[tuple[str, ...], Style]
    ) -> None:
        self.axes, self.panel, self._spec, self._styles = axes, panel, spec, styles
        self.cells = [cell for cell in results if cell.history is not None]
        if panel.log:
            axes.set_yscale("log")
        if panel.log_x:
            axes.set_xscale("log")
            axes.xaxis.set_minor_formatter(NullFormatter())
        self.inset = _inset(axes, self.cells, panel) if panel.zoom is not None and self.cells else None
        if self.inset is not None and panel.log:
            self.inset.set_yscale("log")

    def draw(self, diverged: bool) -> None:
        """Draw the cells that diverged, or the others."""
        for cell in self.cells:
            if bool(cell.diverged) is not diverged:
                continue
            style = self._styles[_series_labels(cell, self._spec)]
            for target in [self.axes] if self.inset is None else [self.axes, self.inset]:
                if self.panel.kind == "points":
                    _draw_point(target, cell, self.panel, style)
                elif self.panel.kind == "trace":
                    _draw_trace(target, cell, style)
                else:
                    _draw_mean_curve(target, cell, self.panel, style, note=target is self.axes)
                if self.panel.against is not None:
                    _draw_against(target, cell, self.panel, style)

    def finish(self) -> None:
        """Add titles, and the range of the enlarged part."""
        axes, panel = self.axes, self.panel
        if not self.cells:
            axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", va="center", color="0.5")
        axes.set_title(panel.title, fontsize=9)
        axes.set_xlabel(measure_title(panel.x), fontsize=8)
        axes.set_ylabel(panel.ylabel or measure_title(panel.y), fontsize=8)
        axes.tick_params(which="both", labelsize=7)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        if self.inset is not None and panel.zoom is not None:
            left, right = (share * max(cell.config.run.steps for cell in self.cells) for share in panel.zoom)
            self.inset.set(xlim=(left, right), ylim=_range(self.inset, left, right))
            self.inset.tick_params(which="both", labelsize=6)
            axes.indicate_inset_zoom(self.inset, edgecolor="0.4")


def _draw_group(group: Sequence[_DrawnPanel]) -> None:
    """Draw panels that share their axes: curves of cells that diverged may leave them, and do not set their limits."""
    first = group[0]
    sound = any(not cell.diverged for drawn in group for cell in drawn.cells)
    for drawn in group:
        drawn.draw(diverged=False)
    limits = first.axes.get_ylim()
    for drawn in group:
        drawn.draw(diverged=True)
    if first.panel.limits is not None:
        first.axes.set_ylim(*first.panel.limits)
    elif sound and any(cell.diverged for drawn in group for cell in drawn.cells):
        scale, inverse = (np.log, np.exp) if first.panel.log else (np.asarray, np.asarray)
        least, most = scale(limits)
        beyond = LEAVING * (most - least)
        low, high = first.axes.get_ylim()
        first.axes.set_ylim(max(low, float(inverse(least - beyond))), min(high, float(inverse(most + beyond))))
    for drawn in group:
        drawn.finish()


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


def _draw_mean_curve(axes: Axes, cell: CellResult, panel: Panel, style: Style, note: bool) -> None:
    """The mean over seeds, with a band of one sample standard deviation on either side."""
    frame = _finite(cell.frame(panel.y))
    if panel.y == "consensus_x":
        frame = frame[frame["t"] > 0]  # all clients start from one model: rounding only
    if panel.x not in ("iteration", "phases"):
        frame = frame.merge(cell.frame(panel.x).rename(columns={"y": "x"})[["seed", "t", "x"]], on=["seed", "t"])
    else:
        frame["x"] = frame["t"] if panel.x == "iteration" else frame["phases"]
    _draw(axes, over_seeds(frame[frame["y"] > SMALLEST] if panel.log else frame, panel.log, _ends(cell)), style, note)


def _draw_against(axes: Axes, cell: CellResult, panel: Panel, style: Style) -> None:
    """The second measure: a dotted curve, or hollow points."""
    assert panel.against is not None
    panel = panel.model_copy(update={"y": panel.against})
    if panel.kind == "points":
        _draw_point(axes, cell, panel, style, hollow=True)
    else:
        _draw_mean_curve(axes, cell, panel, (style[0], ":", ""), note=False)


def _draw(axes: Axes, curve: SeedCurve, style: Style, note: bool, linewidth: float = 1.3) -> None:
    """A curve with a band, and with markers at other points than those of the other curves."""
    colour, dash, marker = style
    every = max(1, len(curve.x) // MARKS)
    draw_seed_curve(
        axes,
        curve,
        band=BAND,
        note=note,
        linewidth=linewidth,
        color=colour,
        linestyle=dash,
        marker=marker,
        markersize=3,
        markevery=(MARKERS.index(marker) * every // len(MARKERS), every) if marker else None,
    )


def _ends(cell: CellResult) -> "pd.Series[float]":
    """The last iteration of each seed: of one that diverged, where it did."""
    assert cell.history is not None
    return cell.history.groupby("seed")["iteration"].max().astype(float)


def _draw_trace(axes: Axes, cell: CellResult, style: Style) -> None:
    """Faint: the mean at every iteration; thick: the mean of the seeds' maxima in each communication phase."""
    if cell.trace is None:
        return
    frame = _finite(cell.frame(TRACE))
    frame = frame[frame["t"] > 0]  # all clients start from one model: rounding only
    frame = frame.assign(y=frame["y"].clip(lower=SMALLEST), x=frame["t"])
    ends = frame.groupby("seed")["t"].max()
    every = over_seeds(frame, True, ends)
    axes.plot(every.x, every.mean, "-", color=style[0], linewidth=0.5, alpha=0.3)
    period = cell.config.run.period
    # The exchange at t = kT0 starts the phase of iterations kT0 + 1 … (k + 1)T0.
    frame["end"] = np.ceil(frame["t"] / period) * period
    # Of a seed that diverged, the last phase is not complete.
    complete = frame[(frame["end"] <= frame["seed"].map(ends)) | (frame["seed"].map(ends) == ends.max())]
    most = complete.groupby(["seed", "end"])["y"].max().reset_index().rename(columns={"end": "t"})
    _draw(axes, over_seeds(most.assign(x=most["t"]), True, ends), style, note=True, linewidth=1.6)


def _draw_point(axes: Axes, cell: CellResult, panel: Panel, style: Style, hollow: bool = False) -> None:
    """The mean of the last values of seeds that did not diverge, with error bars of one sample standard deviation."""
    ends = _ends(cell)
    survivors = ends.index[ends == ends.max()] if not cell.diverged else ends.index[ends == cell.config.run.steps]
    last = [_finite(cell.frame(name)).groupby("seed")["y"].last() for name in (panel.x, panel.y)]
    last = [values[values.index.isin(survivors)] for values in last]
    if any(values.empty for values in last):
        return
    (x, sx), (y, sy) = ((values.mean(), values.std() if len(values) > 1 else 0.0) for values in last)
    fill = "none" if hollow else style[0]
    axes.errorbar(x, y, xerr=sx, yerr=sy, fmt=style[2], color=style[0], mfc=fill, markersize=5, capsize=2, linewidth=1)


def _finite(frame: pd.DataFrame) -> pd.DataFrame:
    finite: pd.DataFrame = frame[np.isfinite(frame["y"])].copy()
    return finite


def _save(figure: Figure, folder: Path) -> None:
    """Write all files, with the same bytes for the same figure; a palette makes the PNG a third of the size."""
    figure.savefig(folder / "figure.pdf", metadata={"CreationDate": None, "Producer": None, "Creator": None})
    with rc_context({"svg.hashsalt": "depositum"}):
        figure.savefig(folder / "figure.svg", metadata={"Date": None, "Creator": None})
    raw = io.BytesIO()
    figure.savefig(raw, format="png", dpi=130)
    raw.seek(0)
    picture = Image.open(raw).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    picture.save(folder / "figure.png", optimize=True)
