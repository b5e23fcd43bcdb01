"""The figure of an experiment: panels in the paper's arrangement, means with bands, one legend on top."""

import io
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D
from PIL import Image

from depositum.errors import ConfigError
from depositum.experiments.definition import Experiment, Figure, Panel
from depositum.experiments.results import TRACE, Outcome, Results, Values, check_measure, title
from depositum.experiments.sweep import Labels, check_axis, check_where, matches
from depositum.report.curves import COLOURS, DASHES

WIDTH, HEIGHT = 3.1, 2.5
MARKERS = "osD^vPX*"
#: What is smaller than this is rounding; a logarithmic axis ends here.
SMALLEST = 1e-16


def check_figure(figure: Figure, experiment: Experiment, cells: Sequence[Labels]) -> None:
    """Refuse a figure that cannot be drawn."""
    for axis in figure.series:
        check_axis(axis, experiment, "figure.series")
    for place, panel in enumerate(figure.panel, start=1):
        key = f"figure.panel {place}"
        check_where(panel.where, experiment, f"{key}.where")
        check_measure(panel.y, f"{experiment.id}: {key}.y")
        check_measure(panel.x, f"{experiment.id}: {key}.x")
        for name, pair in (("limits", panel.limits), ("zoom", panel.zoom)):
            if pair is not None and not pair[0] < pair[1]:
                raise ConfigError(f"{experiment.id}: {key}.{name}", f"{pair} given; the first must be the smaller")
        if panel.zoom is not None and not 0 <= panel.zoom[0] < panel.zoom[1] <= 1:
            raise ConfigError(f"{experiment.id}: {key}.zoom", f"{panel.zoom} given; they are shares of the run, 0 to 1")
        if panel.kind == "trace" and not experiment.trace:
            raise ConfigError(f"{experiment.id}: {key}.kind", "'trace' given; it needs trace = true in the file")
        names = [tuple(own[axis] for axis in figure.series) for own in cells if matches(own, panel.where)]
        if len(set(names)) < len(names):
            raise ConfigError(
                f"{experiment.id}: {key}.where",
                "several cells have one curve; name more axes there, or in figure.series",
            )


def draw(experiment: Experiment, results: Results, folder: Path) -> None:
    """Draw `figure.pdf` and `figure.png` into a folder."""
    figure = experiment.figure
    assert figure is not None
    columns = min(figure.columns, len(figure.panel))
    rows = -(-len(figure.panel) // columns)
    drawing = Drawing(figsize=(WIDTH * columns, HEIGHT * rows + 0.45), layout="constrained")
    grid = drawing.subplots(rows, columns, squeeze=False)
    styles = _styles(figure, results)
    for axes, panel in zip(grid.flat, figure.panel, strict=False):
        _draw_panel(axes, panel, figure, results.where(panel.where), styles)
    for axes in list(grid.flat)[len(figure.panel) :]:
        axes.set_visible(False)
    handles = [
        Line2D(
            [],
            [],
            color=colour,
            linestyle=dash,  # type: ignore[arg-type]
            marker=marker if _points(figure) else None,
            markersize=4,
        )
        for colour, dash, marker in styles.values()
    ]
    diverged = {_series(own, figure) for own in results if own.diverged}
    names = [", ".join(name) + (" (diverged)" if name in diverged else "") for name in styles]
    drawing.legend(handles, names, loc="outside upper center", ncols=_ncols(names, columns), frameon=False, fontsize=9)
    _save(drawing, folder)


def _points(figure: Figure) -> bool:
    return any(panel.kind == "points" for panel in figure.panel)


def _ncols(names: list[str], columns: int) -> int:
    """As many entries beside each other as there is room for."""
    room = int(columns * WIDTH * 11)  # characters, about
    return max(1, min(len(names), room // (max(map(len, names), default=1) + 8)))


def _series(outcome: Outcome, figure: Figure) -> tuple[str, ...]:
    return tuple(outcome.labels[axis] for axis in figure.series)


def _styles(figure: Figure, results: Results) -> dict[tuple[str, ...], tuple[str, str, str]]:
    """A colour, dash pattern and marker for every curve, in the order of the labels."""
    here = {_series(outcome, figure) for outcome in results}
    names = [name for name in itertools.product(*(results.labels(axis) for axis in figure.series)) if name in here]
    return {
        name: (COLOURS[k % len(COLOURS)], DASHES[k % len(DASHES)], MARKERS[k % len(MARKERS)])
        for k, name in enumerate(names)
    }


def _draw_panel(
    axes: Axes,
    panel: Panel,
    figure: Figure,
    results: Results,
    styles: dict[tuple[str, ...], tuple[str, str, str]],
) -> None:
    # What diverged comes last: it may leave the picture, but does not decide how much the others' fill of it.
    drawn = sorted((own for own in results if own.history is not None), key=lambda own: bool(own.diverged))
    reach = None
    if panel.log:
        axes.set_yscale("log")
    inset = _inset(axes, drawn, panel) if panel.zoom is not None and drawn else None
    if inset is not None and panel.log:
        inset.set_yscale("log")
    for outcome in drawn:
        style = styles[_series(outcome, figure)]
        if outcome.diverged and outcome is not drawn[0] and reach is None:
            reach = axes.get_ylim()
        for place in [axes] if inset is None else [axes, inset]:
            if panel.kind == "points":
                _point(place, outcome, panel, style)
            elif panel.kind == "trace":
                _trace(place, outcome, style)
            else:
                _curve(place, outcome, panel, style, band=place is axes)
    if not drawn:
        axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", va="center", color="0.5")
    axes.set_title(panel.title, fontsize=9)
    axes.set_xlabel(title(panel.x), fontsize=8)
    axes.set_ylabel(panel.ylabel or title(panel.y), fontsize=8)
    axes.tick_params(which="both", labelsize=7)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if panel.limits is not None:
        axes.set_ylim(*panel.limits)
    elif reach is not None:
        low, high = axes.get_ylim()
        axes.set_ylim(low, min(high, 10 * reach[1] if panel.log else 2 * reach[1] - reach[0]))
    if inset is not None and panel.zoom is not None:
        left, right = (share * max(own.config.run.steps for own in drawn) for share in panel.zoom)
        inset.set(xlim=(left, right), ylim=_range(inset, left, right))
        inset.tick_params(which="both", labelsize=6)
        axes.indicate_inset_zoom(inset, edgecolor="0.4")


def _inset(axes: Axes, drawn: list[Outcome], panel: Panel) -> Axes:
    """A place for an enlarged part, where the curves leave room: above those that fall, below those that rise."""
    y = drawn[0].frame(panel.y).groupby("t")["y"].mean()
    falls = len(y) > 0 and y.iloc[-1] < y.iloc[0]
    return axes.inset_axes((0.42, 0.4 if falls else 0.12, 0.55, 0.52))


def _range(axes: Axes, left: float, right: float) -> tuple[float, float]:
    """What the lines of `axes` reach between two places, with some room around."""
    ys = [y[(x >= left) & (x <= right)] for x, y in (map(np.asarray, line.get_data()) for line in axes.lines)]
    inside = np.concatenate(ys)
    if not len(inside):
        return axes.get_ylim()
    room = 0.05 * (inside.max() - inside.min()) or 1.0
    return float(inside.min() - room), float(inside.max() + room)


def _curve(axes: Axes, outcome: Outcome, panel: Panel, style: tuple[str, str, str], band: bool = True) -> None:
    """The mean over seeds, with a band of one sample standard deviation on either side."""
    frame = _finite(outcome.frame(panel.y))
    if panel.y == "consensus_x":
        frame = frame[frame["t"] > 0]  # all clients start from one model
    if panel.x not in ("iteration", "phases"):
        frame = frame.merge(outcome.frame(panel.x).rename(columns={"y": "x"})[["seed", "t", "x"]], on=["seed", "t"])
    else:
        frame["x"] = frame["t"] if panel.x == "iteration" else frame["phases"]
    groups = frame.groupby("t")
    x, y, s = groups["x"].mean(), groups["y"].mean(), groups["y"].std().fillna(0.0)
    _band(axes, _array(x), _array(y), _array(s) if band else None, panel.log, style)


def _band(
    axes: Axes, x: Values, y: Values, s: Values | None, log: bool, style: tuple[str, str, str], width: float = 1.3
) -> None:
    """A line `y` over `x`, with a band of `s` on either side where there is one; each `[points]`."""
    colour, dash, _ = style
    keep = y > SMALLEST if log else np.full(len(y), True)
    axes.plot(x[keep], y[keep], dash, color=colour, linewidth=width)
    if s is not None:
        low = np.maximum(y - s, 0.05 * y) if log else y - s
        axes.fill_between(x[keep], low[keep], (y + s)[keep], color=colour, alpha=0.16, linewidth=0)


def _trace(axes: Axes, outcome: Outcome, style: tuple[str, str, str]) -> None:
    """Faint: the mean at every iteration; thick: the largest value of each seed in each phase, then the mean."""
    if outcome.trace is None:
        return
    frame = _finite(outcome.frame(TRACE))
    frame = frame[frame["t"] > 0]  # all clients start from one model
    every = frame.groupby("t")["y"].mean().clip(lower=SMALLEST)
    axes.plot(every.index.to_numpy(), every.to_numpy(), "-", color=style[0], linewidth=0.5, alpha=0.3)
    period = outcome.config.run.period
    # The phase of the exchange at t = kT0 is iterations kT0 + 1 … (k + 1)T0.
    phase = (np.ceil(frame["t"] / period) * period).rename("end")
    most = frame.groupby(["seed", phase])["y"].max().groupby("end")
    y, s = most.mean(), most.std().fillna(0.0)
    _band(axes, _array(y.index), _array(y), _array(s), True, style, width=1.6)


def _point(axes: Axes, outcome: Outcome, panel: Panel, style: tuple[str, str, str]) -> None:
    """The last values of the seeds: their mean, with a bar of one sample standard deviation either way."""
    last = [_finite(outcome.frame(name)).groupby("seed")["y"].last() for name in (panel.x, panel.y)]
    (x, sx), (y, sy) = ((own.mean(), own.std() if len(own) > 1 else 0.0) for own in last)
    axes.errorbar(x, y, xerr=sx, yerr=sy, fmt=style[2], color=style[0], markersize=5, capsize=2, linewidth=1)


def _array(values: "pd.Series[float] | pd.Index[float]") -> Values:
    return np.asarray(values, dtype=np.float64)


def _finite(frame: pd.DataFrame) -> pd.DataFrame:
    finite: pd.DataFrame = frame[np.isfinite(frame["y"])].copy()
    return finite


def _save(drawing: Drawing, folder: Path) -> None:
    """Write both files, the same bytes for the same figure; the picture has a palette: a third of the size."""
    drawing.savefig(folder / "figure.pdf", metadata={"CreationDate": None, "Producer": None, "Creator": None})
    raw = io.BytesIO()
    drawing.savefig(raw, format="png", dpi=130)
    raw.seek(0)
    picture = Image.open(raw).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    picture.save(folder / "figure.png", optimize=True)
