"""Statistics, tables and figures of synthetic results."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from depositum.experiments import figures, tables
from depositum.experiments.definition import TableSpec
from depositum.experiments.results import STATISTICS, CellResult, HasDivergedError, NotRunError, Results, Series
from depositum.experiments.tables import PaperNumber, TableCell
from tests.support.small_experiments import read_experiment, small
from tests.support.synthetic_results import cell_result

# Statistics


def statistic(at: Any, y: list[float], t: list[float] | None = None, phases: list[float] | None = None) -> float:
    t = t or [10.0 * k for k in range(len(y))]
    series = Series(np.array(t), np.array(phases or [v / 10 for v in t]), np.array(y), steps=int(t[-1]), period=10)
    return STATISTICS.parse(at, "at").make(series)


def test_statistics() -> None:
    y = [8.0, 4.0, 2.0, 1.0, 0.5]
    assert statistic("final", y) == 0.5
    assert statistic({"at": 0.25}, y) == 4.0
    assert statistic({"at": 0.125}, y) == 6.0  # halfway between two evaluations
    assert statistic({"phases": 1.5}, y) == 3.0
    assert statistic({"phases": 1}, [5.0, 4.0, 3.0, 2.0], phases=[0, 1, 1, 2]) == 3.0  # the last of a phase
    assert statistic("mean", y) == pytest.approx(3.1)
    assert statistic({"mean": {"start": 0.5, "end": 1.0}}, y) == pytest.approx(3.5 / 3)
    assert statistic({"max": {"start": 0.5}}, y) == 2.0
    assert statistic("roughness", y) == pytest.approx(0.0, abs=1e-12)  # falls at a constant rate
    assert statistic("roughness", [1.0, 10.0, 1.0, 10.0]) == pytest.approx(np.std([1, -1, 1], ddof=1))
    trace = [1e-12, 3.0, 1e-13, 5.0]  # t = 1, 10, 11, 20: after and before exchanges of period 10
    assert statistic("after-exchange", trace, t=[1.0, 10.0, 11.0, 20.0]) == 1e-12
    assert statistic("before-exchange", trace, t=[1.0, 10.0, 11.0, 20.0]) == 4.0
    with pytest.raises(NotRunError, match="nothing was evaluated between 1% and 2%"):
        statistic({"mean": {"start": 0.01, "end": 0.02}}, y)
    with pytest.raises(NotRunError, match="has 4 communication phases, not 5"):  # the last value is not extrapolated
        statistic({"phases": 5}, y)
    with pytest.raises(NotRunError, match="nothing was evaluated right after an exchange"):
        statistic("after-exchange", [1.0, 2.0], t=[5.0, 10.0])
    with pytest.raises(NotRunError, match="nothing was evaluated right before an exchange"):
        statistic("before-exchange", [1.0, 2.0], t=[1.0, 5.0])


def test_units_of_measures() -> None:
    """Shares are in percent; /n divides by the number of clients (4)."""
    cell = cell_result({"test_accuracy": (0.5, 0.25), "stationarity_mean": (8.0, 4.0)}, axis="a")
    assert cell.values("test_accuracy").tolist() == [50.0, 25.0]
    assert cell.values("stationarity_mean/n").tolist() == [2.0, 1.0]
    left = cell_result({"train_loss": (1, 2)}, axis="a", diverged=True)
    assert left.values("train_loss").tolist() == [2.0]
    assert left.cached is not None
    none = replace(left, cached=replace(left.cached, diverged=["seed 0 diverged: x", "seed 1 diverged: x"]))
    with pytest.raises(HasDivergedError, match="diverged 2 of 2"):
        none.values("train_loss")


# Tables


def test_numbers_of_a_table_cell() -> None:
    """Ours 94.1, 94.3 against 94.50 ± 0.30: mean 94.2, deviation 0.1414, 0.3 below, combined 0.3317: −0.9σ."""
    cell = TableCell(np.array([94.1, 94.3]), paper=PaperNumber.parse("94.50±0.30", "paper"))
    assert cell.ours() == "94.20 ± 0.14"
    assert cell.deviations == pytest.approx(-0.3 / math.sqrt(0.02 + 0.09))
    assert cell.difference() == "-0.9σ"
    assert TableCell(np.array([94.1, 94.3]), paper=PaperNumber.parse("94.5", "paper")).deviations == pytest.approx(
        -0.3 / 0.02**0.5
    )
    assert (
        TableCell(np.array([94.1]), paper=PaperNumber.parse("94.5", "paper")).deviations is None
    )  # no deviation is known
    assert TableCell(np.array([2.1194, 2.1232])).ours() == "2.1213 ± 0.0027"  # two digits of the deviation
    assert TableCell(np.array([8.1e-5, 9.9e-5])).ours() == "9.00e-05 ± 1.3e-05"
    assert TableCell(np.array([3.0, 3.0])).ours() == "3 ± 0"
    assert TableCell(np.array([120.0, 180.0])).ours() == "150 ± 42"
    assert TableCell(None, "diverged (1 of 5)").ours() == "diverged (1 of 5)"
    assert str(PaperNumber.parse("2.060", "paper")) == "2.060"  # as printed


def fill(cells: list[CellResult], **changes: Any) -> tables.FilledTable:
    return fill_all(cells, **changes)[0]


def fill_all(cells: list[CellResult], **changes: Any) -> list[tables.FilledTable]:
    experiment = read_experiment(small())
    spec = TableSpec.model_validate({**small()["table"][0], **changes})
    order = {"period": ["T0 = 1", "T0 = 2"], "alpha": ["small", "large"]}
    return tables.make_tables(spec, experiment, Results(cells, order))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_values_are_shown(value: float) -> None:
    """An overflowed perplexity, or a gap to 0, does not prevent the table."""
    assert TableCell(np.array([value])).ours() == str(value)
    assert TableCell(np.array([1.0, value, 2.0])).ours() == "not finite for 1 of 3"


def test_a_table_of_rows_and_columns() -> None:
    """Ours and the paper's in one cell, the best in bold, diverged or missing cells reported, and seeds counted."""
    cells = [
        cell_result({"train_loss": (1.0, 1.2)}, period="T0 = 1", alpha="small"),
        cell_result({"train_loss": (0.8, 1.0)}, period="T0 = 1", alpha="large"),
        cell_result({"train_loss": (9, 3)}, period="T0 = 2", alpha="small", diverged=True),
        cell_result({}, period="T0 = 2", alpha="large", missing=True),
    ]
    lines = tables.as_markdown(fill(cells, bold="lowest")).splitlines()
    # (1.1 − 1.0) / √(0.1414² + 0.1²) = 0.58
    assert "| T0 = 1 | 1.10 ± 0.14 (1.00 ± 0.10; +0.6σ) | **0.90 ± 0.14** (0.90 ± 0.10; +0.0σ) | 2 |" in lines
    assert "| T0 = 2 | diverged 1 of 2, else 3 | not run | 2 |" in lines
    text = tables.as_latex(fill(cells, bold="lowest"))
    assert r"T0 = 1 & 1.10 $\pm$ 0.14 (1.00 $\pm$ 0.10; +0.6$\sigma$) & \textbf{0.90 $\pm$ 0.14} (0.90" in text
    assert text.count("\\\\") == 3


def test_gaps_between_rows() -> None:
    """Per seed, in percent: 1.1/1.0 and 1.2/1.2 are 10 % and 0 %; for the paper's means 0.9/1.0; no σ anywhere."""
    cells = [
        cell_result({"train_loss": (1.0, 1.2)}, period="T0 = 1", alpha="small"),
        cell_result({"train_loss": (1.1, 1.2)}, period="T0 = 2", alpha="small"),
        cell_result({"train_loss": (1.0, 1.2)}, period="T0 = 1", alpha="large"),
        cell_result({"train_loss": (9, 9)}, period="T0 = 2", alpha="large", diverged=True),
    ]
    paper = [["T0 = 1", "1.00±0.10", ""], ["T0 = 2", "0.90±0.10", "0.8"]]
    plain, gaps = fill_all(cells, paper=paper, gaps_to={"period": "T0 = 1"})
    assert "| T0 = 1 | 1.10 ± 0.14 (1.00 ± 0.10) | 1.10 ± 0.14 | 2 |" in tables.as_markdown(plain).splitlines()
    text = tables.as_markdown(gaps)
    assert "gaps to T0 = 1 (%)**" in text
    assert "σ" not in text + tables.as_markdown(plain)
    assert [line for line in text.splitlines() if line.startswith("| T0")] == [
        "| T0 = 2 | 5.00 ± 7.07 (-10.00) | diverged 1 of 2 | 2 |"
    ]
    # The reference row may not have been run, or with fewer seeds (the first of more).
    assert TableCell(np.array([2.0, 3.0])).gap_to(TableCell(None, "not run")).ours() == "not run"
    assert TableCell(np.array([2.0, 3.0])).gap_to(TableCell(np.array([1.6]))).ours() == "25"
    assert len(fill_all(cells[1:2], gaps_to={"period": "T0 = 1"})) == 1


def test_columns_are_selected_by_their_complete_label() -> None:
    """A label that is contained in another one does not select it."""
    table = small(table=[], claim=[])
    table["sweep"][1]["values"][0]["label"] = "large as can be"
    spec = TableSpec(
        title="t", rows=["period"], columns=["alpha"], measure="train_loss", where={"alpha": "large as can be"}
    )
    cells = [cell_result({"train_loss": (1, 2)}, period="T0 = 1", alpha="large as can be")]
    order = {"period": ["T0 = 1", "T0 = 2"], "alpha": ["large as can be", "large"]}
    assert tables.fill_table(spec, read_experiment(table), Results(cells, order)).columns == ["large as can be"]


def test_a_table_of_lines() -> None:
    cells = [
        cell_result({"test_accuracy": (0.94, 0.96)}, period="T0 = 1", alpha="small"),
        cell_result({"test_accuracy": (0.92, 0.95)}, period="T0 = 2", alpha="small"),
    ]
    line = {"what": "lost", "cell": {"period": "T0 = 2"}, "less_than": {"period": "T0 = 1"}, "measure": "test_accuracy"}
    spec = {"rows": [], "columns": [], "measure": None, "paper": [], "line": [{**line, "paper": "1.2"}]}
    lines = tables.as_markdown(fill(cells, **spec)).splitlines()
    assert lines[-1] == "| lost | 1.5 ± 0.7 | 1.2 | +0.3 | +0.4σ | 2 |"  # 0.3 / 0.707


# Figures


def test_figures_draw_means_bands_and_phases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Curves are means over seeds; the thick curve of a trace is the mean over seeds of the maximum in each phase."""
    drawn: list[Any] = []
    monkeypatch.setattr(figures, "_save", lambda figure, folder: drawn.append(figure))
    trace = [(seed, t, (1 + seed) * (t % 10 or 10)) for seed in (0, 1) for t in range(1, 41)]
    cells = [
        cell_result(
            {
                "train_loss": [(4, 6), (3, 5), (2, 4), (1, 3), (0, 2)],
                "sparsity": (0.1, 0.3),
                "test_accuracy": (0.9, 0.8),
            },
            period="T0 = 1",
            alpha="small",
            trace=trace,
        ),
        cell_result({}, period="T0 = 1", alpha="large", missing=True),
    ]
    panels = [
        {"title": "loss", "y": "train_loss", "zoom": [0.25, 0.75]},
        {"title": "trace", "kind": "trace", "log": True},
        {"title": "points", "kind": "points", "x": "sparsity", "y": "test_accuracy", "log_x": True},
        {"title": "phases", "y": "train_loss", "x": "phases", "where": {"alpha": "large"}},
    ]
    experiment = read_experiment(small(trace=True, figure={"series": ["alpha"], "columns": 2, "panel": panels}))
    results = Results(cells, {"period": ["T0 = 1", "T0 = 2"], "alpha": ["small", "large"]})
    figures.check_figure(experiment.figure, experiment, [cell.labels for cell in cells])
    figures.draw_figure(experiment, results, tmp_path)
    loss, faint_and_thick, points, empty = drawn[0].axes[:4]
    np.testing.assert_allclose(loss.lines[0].get_xdata(), [0, 10, 20, 30, 40])
    np.testing.assert_allclose(loss.lines[0].get_ydata(), [5, 4, 3, 2, 1])
    inset = loss.child_axes[0]
    assert inset.get_xlim() == (10, 30)
    faint, thick = faint_and_thick.lines
    assert len(faint.get_xdata()) == 40
    np.testing.assert_allclose(thick.get_xdata(), [10, 20, 30, 40])
    np.testing.assert_allclose(thick.get_ydata(), [200**0.5] * 4)  # the mean of log 10 and log 20
    assert points.lines[0].get_xydata().tolist() == [[20.0, 85.0]]
    assert (points.get_xscale(), loss.get_xscale()) == ("log", "linear")
    assert [text.get_text() for text in empty.texts] == ["not run"]
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["small", "large"]
    assert len(inset.collections) == len(loss.collections) == 1  # the enlarged part has its band


def drawn_figure(
    cells: list[CellResult], panels: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> Any:
    """The figure of some cells of `small()`, with one curve for every value of alpha."""
    drawn: list[Any] = []
    monkeypatch.setattr(figures, "_save", lambda figure, folder: drawn.append(figure))
    experiment = read_experiment(small(trace=True, figure={"series": ["alpha"], "columns": 2, "panel": panels}))
    figures.draw_figure(
        experiment, Results(cells, {"period": ["T0 = 1", "T0 = 2"], "alpha": ["small", "large"]}), folder
    )
    return drawn[0]


def test_panels_that_are_compared_share_their_axes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those of one measure; not another measure, another scale, or limits that the file gives."""
    cells = [
        cell_result({"train_loss": (1, 2), "phi": (5, 6)}, period="T0 = 1", alpha="small"),
        cell_result({"train_loss": (10, 20), "phi": (5, 6)}, period="T0 = 2", alpha="small"),
    ]
    one, two = {"period": "T0 = 1"}, {"period": "T0 = 2"}
    panels = [
        {"title": "a", "y": "train_loss", "where": one},
        {"title": "b", "y": "train_loss", "where": two},
        {"title": "c", "y": "phi", "where": one},
        {"title": "d", "y": "train_loss", "log": True, "where": one},
        {"title": "e", "y": "train_loss", "limits": [0, 99], "where": one},
    ]
    a, b, c, d, e, *_ = drawn_figure(cells, panels, monkeypatch, tmp_path).axes
    assert a.get_ylim() == b.get_ylim()
    assert a.get_ylim()[0] < 1 < 20 < a.get_ylim()[1]
    assert a.get_xlim() == b.get_xlim()
    assert c.get_ylim() != a.get_ylim()
    assert (d.get_yscale(), a.get_yscale()) == ("log", "linear")
    assert e.get_ylim() == (0, 99)


def test_bands_on_logarithmic_axes_are_of_the_logarithm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of 1 and 100: 10 with a factor of e^std(0, ln 100); the arithmetic band would reach below 0."""
    cells = [cell_result({"train_loss": (1.0, 100.0)}, period="T0 = 1", alpha="small")]
    panels = [{"title": "log", "y": "train_loss", "log": True}, {"title": "linear", "y": "train_loss"}]
    logarithmic, linear, *_ = drawn_figure(cells, panels, monkeypatch, tmp_path).axes
    np.testing.assert_allclose(logarithmic.lines[0].get_ydata(), [10] * 5)
    factor = math.exp(np.std([0, math.log(100)], ddof=1))
    band = logarithmic.collections[0].get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose([band.min(), band.max()], [10 / factor, 10 * factor])
    np.testing.assert_allclose(linear.lines[0].get_ydata(), [50.5] * 5)
    band = linear.collections[0].get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose(band.max() - 50.5, np.std([1, 100], ddof=1))
    assert "on logarithmic axes" in drawn_figure(cells, panels, monkeypatch, tmp_path).get_supxlabel()
    assert "logarithm" not in drawn_figure(cells, panels[1:], monkeypatch, tmp_path).get_supxlabel()


def test_a_divergence_is_marked_where_it_happened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In its panel, from there on; neither in the legend nor in another panel. Seed 0 ends after t = 20."""
    cells = [
        cell_result({"train_loss": [(4, 6), (3, 5), (900, 4), (1, 3), (0, 2)]}, period="T0 = 1", alpha="small",
                    diverged=True),
        cell_result({"train_loss": (1, 2)}, period="T0 = 2", alpha="small"),
    ]  # fmt: skip
    panels = [
        {"title": "a", "y": "train_loss", "where": {"period": "T0 = 1"}},
        {"title": "b", "y": "train_loss", "where": {"period": "T0 = 2"}},
    ]
    figure = drawn_figure(cells, panels, monkeypatch, tmp_path)
    a, b, *_ = figure.axes
    both, survivor, cross = a.lines
    assert both.get_xydata().tolist() == [[0, 5], [10, 4], [20, 452]]
    assert survivor.get_xydata().tolist() == [[30, 3], [40, 2]]
    assert survivor.get_linewidth() < both.get_linewidth()
    assert (cross.get_xydata().tolist(), cross.get_marker()) == ([[30, 3]], "x")
    assert [text.get_text() for text in a.texts] == ["1 of 2 seeds diverged"]
    assert len(b.lines) == 1
    assert not b.texts
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["small"]
    assert a.get_ylim()[1] < 10  # the limits are those of what did not diverge


def test_points_are_of_seeds_that_did_not_diverge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The last value of a seed that diverged is not a result."""
    cells = [
        cell_result({"sparsity": (0.9, 0.3), "test_accuracy": (0.1, 0.8)}, period="T0 = 1", alpha="small",
                    diverged=True)
    ]  # fmt: skip
    panels = [{"title": "points", "kind": "points", "x": "sparsity", "y": "test_accuracy"}]
    (axes, *_) = drawn_figure(cells, panels, monkeypatch, tmp_path).axes
    assert axes.lines[0].get_xydata().tolist() == [[30.0, 80.0]]


def test_a_figure_has_the_same_bytes_again(tmp_path: Path) -> None:
    """Committed figures do not change without a reason."""
    cells = [cell_result({"train_loss": (1, 2)}, period="T0 = 1", alpha="small")]
    experiment = read_experiment(small(figure={"series": ["alpha"], "panel": [{"title": "a", "y": "train_loss"}]}))
    results = Results(cells, {"period": ["T0 = 1", "T0 = 2"], "alpha": ["small", "large"]})
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        figures.draw_figure(experiment, results, tmp_path / name)
    for suffix in ("svg", "pdf", "png"):
        first, second = ((tmp_path / name / f"figure.{suffix}").read_bytes() for name in ("first", "second"))
        assert first == second
