"""A curve over several seeds: its mean and band, and where it is of fewer seeds because others diverged."""

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Values = NDArray[np.float64]
#: How much thinner the mean of fewer seeds is drawn, and how much fainter.
FEWER_WIDTH, FEWER_ALPHA = 0.6, 0.7
#: Identifies the notes about seeds that diverged among the texts of a panel.
DIVERGED = "diverged"


class SeedCurve(NamedTuple):
    """Mean and band over seeds, each `[points]`; `changes`: from which point on it is of how many seeds."""

    x: Values
    mean: Values
    low: Values
    high: Values
    seeds: int
    changes: tuple[tuple[int, int], ...] = ()

    @property
    def has_band(self) -> bool:
        """Whether seeds differ anywhere."""
        return bool((self.high > self.low).any())

    def between(self, start: int, end: int) -> "SeedCurve":
        """Some of its points."""
        parts = (values[start:end] for values in (self.x, self.mean, self.low, self.high))
        x, mean, low, high = parts
        return SeedCurve(x, mean, low, high, self.seeds)


def over_seeds(frame: "pd.DataFrame", log: bool, ends: "pd.Series[float]") -> SeedCurve:
    """The mean over seeds ± one sample standard deviation, at every point that some seed has.

    For a logarithmic axis both are of the logarithm, so that the band is symmetric there and cannot reach 0: the line
    is the geometric mean. Values that are not positive are left out then.

    Parameters
    ----------
    frame
        Columns `seed`, `t`, `x` and `y`; y is finite.
    ends
        The last iteration of each seed, by seed: one that ends before others has diverged.
    """
    frame = frame[frame["y"] > 0] if log else frame
    groups = frame.assign(y=np.log(frame["y"]) if log else frame["y"]).groupby("t")
    x, mean, deviation = (
        np.asarray(each, dtype=np.float64)
        for each in (groups["x"].mean(), groups["y"].mean(), groups["y"].std().fillna(0.0))
    )
    t = np.asarray(groups.size().index, dtype=np.float64)
    # Equal values have a deviation of nothing but rounding, of a logarithm an absolute one.
    deviation = np.where(deviation > np.maximum(1e-12 * np.abs(mean), 1e-12 * log), deviation, 0.0)
    curve = mean, mean - deviation, mean + deviation
    changes = [(int(np.searchsorted(t, end, side="right")), int((ends > end).sum())) for end in sorted(set(ends))[:-1]]
    line, low, high = map(np.exp, curve) if log else curve
    return SeedCurve(x, line, low, high, len(ends), tuple(change for change in changes if change[0] < len(t)))


def draw_seed_curve(
    axes: "Axes", curve: SeedCurve, *, band: float, note: bool = True, linewidth: float = 1.6, **style: Any
) -> None:
    """Draw a curve, with a band of opacity `band` (0: without one).

    Where a seed has diverged, the line ends; a cross marks where that of the others begins, which is thinner. `note`
    writes below the last cross how many have diverged.
    """
    starts = [0, *(start for start, _ in curve.changes)]
    for start, end in pairwise([*starts, len(curve.x)]):
        part, opacity = curve.between(start, end), FEWER_ALPHA if start else 1.0
        kept = {**style, "label": None, "marker": None} if start else style
        if band and part.has_band:
            axes.fill_between(part.x, part.low, part.high, color=style["color"], alpha=band * opacity, linewidth=0)
        axes.plot(part.x, part.mean, linewidth=linewidth * (FEWER_WIDTH if start else 1.0), alpha=opacity, **kept)
    for start, _ in curve.changes:
        axes.plot(curve.x[start], curve.mean[start], "x", color=style["color"], markersize=5, markeredgewidth=1.4)
    if note and curve.changes:
        start, left = curve.changes[-1]
        mark_divergence(axes, float(curve.x[start]), float(curve.mean[start]), curve.seeds - left, curve.seeds)


def mark_divergence(axes: "Axes", x: float, y: float, diverged: int, seeds: int) -> None:
    """Write at the foot of the panel, below a point and above earlier notes, how many seeds have diverged."""
    right = x > np.mean(axes.get_xlim())
    above = sum(text.get_gid() == DIVERGED for text in axes.texts)
    axes.annotate(
        f"{diverged} of {seeds} seeds diverged",
        (x, y),
        xytext=(x, 0.03 + 0.07 * above),
        textcoords=("data", "axes fraction"),
        ha="right" if right else "left",
        fontsize=6.5,
        color="0.2",
        zorder=5,
        gid=DIVERGED,
        bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 0.5},
        arrowprops={
            "arrowstyle": "-",
            "linewidth": 0.6,
            "linestyle": ":",
            "color": "0.4",
            "shrinkA": 0,
            "shrinkB": 3,
            "relpos": (float(right), 1),
        },
    )
