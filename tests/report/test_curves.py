"""The figure of runs' curves: what each panel shows, and where it is left out."""

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depositum.report import draw_curves
from depositum.report.curves import PANELS
from tests.support.small_histories import history


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved, instead of files."""
    saved: list[Figure] = []

    def save(self: Figure, path: Path, **_: object) -> None:
        saved.append(self)
        Path(path).touch()

    monkeypatch.setattr(Figure, "savefig", save)
    return saved


def panels(figure: Figure) -> dict[str, Axes]:
    """What can be seen of a figure, by title."""
    return {axes.get_title(): axes for axes in figure.axes if axes.get_visible()}


def test_curves_are_means_with_bands(tmp_path: Path, figures: list[Figure]) -> None:
    draw_curves({"a": history(), "b": history(scale=2.0)}, tmp_path / "f.png", title="runs")
    (figure,) = figures
    assert [axes.get_title() for axes in figure.axes] == [title for name, title, _ in PANELS if name != "test_loss"]
    loss = figure.axes[0]
    first, second = loss.lines
    np.testing.assert_allclose(first.get_xdata(), [0, 10, 20, 30, 40])
    np.testing.assert_allclose(first.get_ydata(), [2, 22, 42, 62, 82])  # the mean of 1, 2, 3 times 1 + t
    np.testing.assert_allclose(second.get_ydata(), [4, 44, 84, 124, 164])
    band = loss.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(82 + 41)
    assert first.get_color() != second.get_color()
    assert first.get_linestyle() != second.get_linestyle()  # legible in black and white
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]
    assert "standard deviation" in figure.get_suptitle()


def test_curves_of_the_consensus_error_begin_after_the_common_start(tmp_path: Path, figures: list[Figure]) -> None:
    """At t = 0 there is rounding only, which a logarithmic axis would make the whole picture of."""
    draw_curves({"a": history(seeds=1)}, tmp_path / "f.png")
    consensus = next(axes for axes in figures[0].axes if "consensus" in axes.get_title())
    assert consensus.get_yscale() == "log"
    assert list(consensus.lines[0].get_xdata()) == [10, 20, 30, 40]
    assert consensus.get_xlim()[0] == 0  # and yet all panels begin at the same place
    assert figures[0].get_suptitle() == ""  # one seed: there is no deviation to speak of


def test_curves_against_what_was_sent(tmp_path: Path, figures: list[Figure]) -> None:
    draw_curves({"a": history()}, tmp_path / "f.png", against="bytes_sent")
    assert list(figures[0].axes[0].lines[0].get_xdata()) == [0, 100, 200, 300, 400]
    assert figures[0].axes[0].get_xlabel() == "bytes sent per client"


def test_curves_leave_out_panels_without_values(tmp_path: Path, figures: list[Figure]) -> None:
    frame = history()
    frame["stationarity"] = frame["test_accuracy"] = np.nan
    draw_curves({"a": frame}, tmp_path / "f.png")
    titles = list(panels(figures[0]))
    assert len(titles) == len(PANELS) - 3  # and there is no test loss
    assert not any("accuracy" in title or "stationarity" in title for title in titles)


def test_curves_of_one_point_can_be_seen(tmp_path: Path, figures: list[Figure]) -> None:
    """A run of no steps has a marker in every panel, with a bar for the seeds, and no panel of the consensus error."""
    draw_curves({"a": history(points=1), "b": history()}, tmp_path / "f.png")
    draw_curves({"a": history(points=1)}, tmp_path / "f.png")
    both, alone = (panels(figure) for figure in figures)
    assert len(alone) == len(both) - 1 == len(PANELS) - 2
    assert not any("consensus" in title for title in alone)
    for axes in alone.values():
        (line,) = axes.lines[:1]
        assert (line.get_xdata().tolist(), line.get_ydata().tolist(), line.get_marker()) == ([0], [2], "o")
        (bar,) = axes.collections[0].get_segments()
        np.testing.assert_allclose(bar, [(0, 1), (0, 3)])  # the seeds' values are 1, 2, 3
        assert axes.get_xlim()[0] < 0  # not half behind the axis
        assert list(axes.get_xticks()) == [0]
    markers = {line.get_label(): line.get_marker() for line in both["training loss f(x̄)"].lines}
    assert (markers["a"], markers["b"]) == ("o", "None")


@pytest.mark.parametrize("points", [1, 2])
def test_curves_of_one_value(tmp_path: Path, figures: list[Figure], points: int) -> None:
    """A logarithmic axis has room around it, which a band of no height would take away."""
    frame = history(seeds=1, points=points)
    frame["stationarity"] = 3.0
    draw_curves({"a": frame}, tmp_path / "f.png")
    low, high = panels(figures[0])["stationarity ‖Gᵅ(x)‖²"].get_ylim()
    assert low < 2 < 4 < high


def test_a_model_without_zeros(tmp_path: Path, figures: list[Figure]) -> None:
    """A sparsity of 0 has no negative ticks around it, alone; beside another run it is a line like any."""
    dense, title = history(), "sparsity (fraction of zeros)"
    dense["sparsity"] = 0.0
    draw_curves({"a": dense}, tmp_path / "f.png")
    assert list(panels(figures[0])[title].get_yticks()) == [0]
    draw_curves({"a": dense, "b": history()}, tmp_path / "f.png")
    axes = panels(figures[1])[title]
    assert (axes.get_yscale(), len(axes.texts), len(axes.get_yticks()) > 1) == ("linear", 0, True)


def test_curves_of_what_is_zero_throughout(tmp_path: Path, figures: list[Figure]) -> None:
    """Clients that agree to the bit: a line at 0 that says so; where others do not, the title says it."""
    agreed, title = history(), "consensus error (1/n)‖Jx − x‖²"
    agreed["consensus_x"] = 0.0
    draw_curves({"a": agreed}, tmp_path / "f.png")
    axes = panels(figures[0])[title]
    assert [text.get_text() for text in axes.texts] == ["0 throughout"]
    assert (axes.get_yscale(), list(axes.get_yticks())) == ("linear", [0])
    assert axes.lines[0].get_ydata().tolist() == [0] * 4
    draw_curves({"a": agreed, "b": history()}, tmp_path / "f.png")
    axes = panels(figures[1])[f"{title}\n0 throughout: a"]
    assert (axes.get_yscale(), len(axes.texts)) == ("log", 0)
    assert [len(line.get_xdata()) for line in axes.lines] == [0, 4]
    many = {f"a run with a long name {k}": agreed for k in range(3)}
    draw_curves({**many, "b": history()}, tmp_path / "f.png")
    assert f"{title}\n0 throughout: 3 of 4 runs" in panels(figures[2])


@pytest.mark.parametrize(
    ("missing", "shown"), [("test_accuracy", True), ("train_loss", True), ("stationarity", False), (None, False)]
)
@pytest.mark.parametrize("throughout", [True, False])
def test_curves_of_the_test_loss(
    tmp_path: Path, figures: list[Figure], missing: str | None, shown: bool, throughout: bool
) -> None:
    """It is all there is of a regression's test data, and at times of a language model's loss."""
    frame = history(seeds=1)
    frame["test_loss"] = [5.0, 4.0, 3.0, 2.0, 1.0]
    if missing:
        frame.loc[frame.iteration > (-1 if throughout else 20), missing] = np.nan
    draw_curves({"a": frame}, tmp_path / "f.png")
    drawn = panels(figures[0])
    assert ("test loss of x̄" in drawn) == shown
    if shown:
        assert drawn["test loss of x̄"].lines[0].get_ydata().tolist() == [5, 4, 3, 2, 1]


def test_curves_of_a_run_that_diverged(tmp_path: Path) -> None:
    """Values that are not finite are drawn as gaps, not as warnings or an empty picture."""
    frame = history(scale=1e37)
    frame.loc[frame.iteration >= 30, ["train_loss", "consensus_x"]] = np.inf
    frame.loc[frame.iteration >= 20, "test_accuracy"] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_curves({"a": frame}, tmp_path / "f.png")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["f.png"]


def test_curves_of_a_run_with_nothing_finite(tmp_path: Path) -> None:
    frame = history()
    frame[[name for name, *_ in PANELS]] = np.nan
    draw_curves({"a": frame}, tmp_path / "f.png")
    assert (tmp_path / "f.png").exists()


def test_importing_leaves_matplotlib_as_it_is() -> None:
    """A notebook's own backend must survive `import depositum`."""
    check = "import matplotlib; matplotlib.use('svg'); import depositum, depositum.cli; print(matplotlib.get_backend())"
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "svg"
