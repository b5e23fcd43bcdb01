"""Figures of curves: what each panel shows, and when it is omitted."""

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depositum.report.curves import PANELS, draw_curves
from tests.support.small_histories import history


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that would be saved to files."""
    saved: list[Figure] = []

    def save(self: Figure, path: Path, **_: object) -> None:
        saved.append(self)
        Path(path).touch()

    monkeypatch.setattr(Figure, "savefig", save)
    return saved


def panels(figure: Figure) -> dict[str, Axes]:
    """The visible panels of a figure, by title."""
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


def test_consensus_curves_start_after_the_common_initial_model(tmp_path: Path, figures: list[Figure]) -> None:
    """At t = 0 there is only rounding, which would dominate a logarithmic axis."""
    draw_curves({"a": history(seeds=1)}, tmp_path / "f.png")
    consensus = next(axes for axes in figures[0].axes if "consensus" in axes.get_title())
    assert consensus.get_yscale() == "log"
    assert list(consensus.lines[0].get_xdata()) == [10, 20, 30, 40]
    assert consensus.get_xlim()[0] == 0  # all panels still start at t = 0
    assert figures[0].get_suptitle() == ""  # one seed has no standard deviation


def test_curves_against_bytes_sent(tmp_path: Path, figures: list[Figure]) -> None:
    draw_curves({"a": history()}, tmp_path / "f.png", against="bytes_sent")
    assert list(figures[0].axes[0].lines[0].get_xdata()) == [0, 100, 200, 300, 400]
    assert figures[0].axes[0].get_xlabel() == "bytes sent per client"


def test_panels_without_values_are_omitted(tmp_path: Path, figures: list[Figure]) -> None:
    frame = history()
    frame["stationarity"] = frame["test_accuracy"] = np.nan
    draw_curves({"a": frame}, tmp_path / "f.png")
    titles = list(panels(figures[0]))
    assert len(titles) == len(PANELS) - 3  # the test loss is omitted too
    assert not any("accuracy" in title or "stationarity" in title for title in titles)


def test_curves_of_a_single_point_are_visible(tmp_path: Path, figures: list[Figure]) -> None:
    """A run without steps has a marker and an error bar in every panel, and no panel for the consensus error."""
    draw_curves({"a": history(points=1), "b": history()}, tmp_path / "f.png")
    draw_curves({"a": history(points=1)}, tmp_path / "f.png")
    both, alone = (panels(figure) for figure in figures)
    assert len(alone) == len(both) - 1 == len(PANELS) - 2
    assert not any("consensus" in title for title in alone)
    for axes in alone.values():
        (line,) = axes.lines[:1]
        assert (line.get_xdata().tolist(), line.get_marker()) == ([0], "o")
        (bar,) = axes.collections[0].get_segments()
        # The seeds' values are 1, 2, 3; on a logarithmic axis their logarithms are what is averaged.
        mean, low, high = 2.0, 1.0, 3.0
        if axes.get_yscale() == "log":
            mean, factor = 6 ** (1 / 3), float(np.exp(np.std(np.log([1, 2, 3]), ddof=1)))
            low, high = mean / factor, mean * factor
        np.testing.assert_allclose(line.get_ydata(), [mean])
        np.testing.assert_allclose(bar, [(0, low), (0, high)])
        assert axes.get_xlim()[0] < 0  # not half hidden behind the axis
        assert list(axes.get_xticks()) == [0]
    markers = {line.get_label(): line.get_marker() for line in both["training loss f(x̄)"].lines}
    assert (markers["a"], markers["b"]) == ("o", "None")


@pytest.mark.parametrize("points", [1, 2])
def test_constant_curves_on_a_logarithmic_axis(tmp_path: Path, figures: list[Figure], points: int) -> None:
    """The axis has a margin, which a band of zero height would remove."""
    frame = history(seeds=1, points=points)
    frame["stationarity"] = 3.0
    draw_curves({"a": frame}, tmp_path / "f.png")
    low, high = panels(figures[0])["stationarity ‖Gᵅ(x)‖²"].get_ylim()
    assert low < 2 < 4 < high


def test_sparsity_of_a_model_without_zeros(tmp_path: Path, figures: list[Figure]) -> None:
    """A single run with sparsity 0 has no negative ticks; next to another run it is an ordinary line."""
    dense, title = history(), "sparsity (share of zeros)"
    dense["sparsity"] = 0.0
    draw_curves({"a": dense}, tmp_path / "f.png")
    assert list(panels(figures[0])[title].get_yticks()) == [0]
    draw_curves({"a": dense, "b": history()}, tmp_path / "f.png")
    axes = panels(figures[1])[title]
    assert (axes.get_yscale(), len(axes.texts), len(axes.get_yticks()) > 1) == ("linear", 0, True)


def test_measures_that_are_zero_throughout(tmp_path: Path, figures: list[Figure]) -> None:
    """Clients that agree exactly: a line at 0 with a note; next to runs that do not, the title lists them."""
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
def test_the_test_loss_is_drawn_where_another_measure_is_missing(
    tmp_path: Path, figures: list[Figure], missing: str | None, shown: bool, throughout: bool
) -> None:
    """For a regression it is the only test measure, and for a language model at times the only loss."""
    frame = history(seeds=1)
    frame["test_loss"] = [5.0, 4.0, 3.0, 2.0, 1.0]
    if missing:
        frame.loc[frame.iteration > (-1 if throughout else 20), missing] = np.nan
    draw_curves({"a": frame}, tmp_path / "f.png")
    drawn = panels(figures[0])
    assert ("test loss of x̄" in drawn) == shown
    if shown:
        assert drawn["test loss of x̄"].lines[0].get_ydata().tolist() == [5, 4, 3, 2, 1]


@pytest.mark.slow
def test_non_finite_values_are_gaps(tmp_path: Path) -> None:
    """A diverged run gives neither warnings nor an empty figure."""
    frame = history(scale=1e37)
    frame.loc[frame.iteration >= 30, ["train_loss", "consensus_x"]] = np.inf
    frame.loc[frame.iteration >= 20, "test_accuracy"] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_curves({"a": frame}, tmp_path / "f.png")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["f.png"]


def test_a_run_without_finite_values_is_drawn(tmp_path: Path) -> None:
    frame = history()
    frame[[name for name, *_ in PANELS]] = np.nan
    draw_curves({"a": frame}, tmp_path / "f.png")
    assert (tmp_path / "f.png").exists()


def test_importing_does_not_change_the_matplotlib_backend() -> None:
    """A notebook's backend must survive `import depositum`."""
    check = "import matplotlib; matplotlib.use('svg'); import depositum, depositum.cli; print(matplotlib.get_backend())"
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "svg"


def test_user_defined_measures_have_panels(tmp_path: Path, figures: list[Figure]) -> None:
    """After those of the package, also where only one of the runs has the measure."""
    frame = history()
    draw_curves({"a": frame.assign(f1=0.5), "b": frame}, tmp_path / "f.png")
    (figure,) = figures
    assert list(panels(figure))[-1] == "f1"
    assert [line.get_label() for line in panels(figure)["f1"].lines if len(line.get_xdata())] == ["a"]
