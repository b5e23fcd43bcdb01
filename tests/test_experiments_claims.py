"""Checks, statistics, tables and figures on made-up results: each check on data on which it holds, and on which not."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from depositum.errors import ConfigError
from depositum.experiments import figures, tables
from depositum.experiments.cache import Kept
from depositum.experiments.checks import CHECKS
from depositum.experiments.claims import judge
from depositum.experiments.definition import Claim, Tabulated
from depositum.experiments.results import STATISTICS, HasDivergedError, NotRunError, Outcome, Results, Series
from depositum.experiments.tables import Entry, Printed
from depositum.runs import Config, parse
from tests.small_experiments import read_experiment, small

CONFIG = parse({"run": {"steps": 40, "period": 10}, "problem": {"clients": 4}})


def outcome(
    values: dict[str, Any],
    *,
    diverged: bool = False,
    missing: bool = False,
    config: Config = CONFIG,
    trace: Any = None,
    **labels: str,
) -> Outcome:
    """A cell whose measures are, over t = 0, 10, …, a pair of seeds' values each, or one pair throughout."""
    if missing:
        return Outcome(labels, config, None)
    rows = []
    for seed in (0, 1):
        for k, t in enumerate(range(0, 50, 10)):
            row: dict[str, Any] = {"seed": seed, "iteration": t, "phases": t / 10}
            for name, given in values.items():
                row[name] = given[k][seed] if isinstance(given[0], (list, tuple)) else given[seed]
            rows.append(row)
    kept = Kept(Path(), [0, 1], ["seed 0 diverged: x"] if diverged else [], 1.0, "CPU", {})
    frame = None if trace is None else pd.DataFrame(trace, columns=["seed", "iteration", "consensus_x"])
    return Outcome(labels, config, kept, pd.DataFrame(rows), frame)


def along(*pairs: tuple[float, float], measure: str = "train_loss", **labels: str) -> Results:
    """Cells a, b, c, … of an axis, each with a final value per seed."""
    names = ["a", "b", "c", "d", "e"][: len(pairs)]
    return Results(
        [outcome({measure: pair}, axis=k, **labels) for k, pair in zip(names, pairs, strict=True)], {"axis": names}
    )


def holds(results: Results, check: Any) -> bool:
    return CHECKS.parse(check, "check").make(results).holds


# Checks


@pytest.mark.parametrize(
    ("values", "extra", "expected"),
    [
        ([(1, 1), (2, 2), (3, 3)], {}, True),
        ([(1, 1), (3, 3), (2, 2)], {}, False),
        ([(1, 1), (3, 3), (2, 2)], {"exceptions": 1}, True),
        ([(2, 2), (3, 3), (1, 1)], {"exceptions": 1}, False),  # the ends are the wrong way round
        ([(1, 1), (1, 1), (2, 2)], {}, False),  # equal is not increasing
        ([(0.9, 1.1), (1.9, 2.1)], {"apart": 4.9}, True),  # 1 apart, combined deviation 0.2
        ([(0.9, 1.1), (1.9, 2.1)], {"apart": 5.1}, False),
    ],
)
def test_ordered(values: list[tuple[float, float]], extra: dict[str, Any], expected: bool) -> None:
    results = along(*values)
    assert (
        holds(results, {"ordered": {"measure": "train_loss", "axis": "axis", "direction": "increasing", **extra}})
        is expected
    )
    turned = along(*[(-a, -b) for a, b in values])
    assert (
        holds(turned, {"ordered": {"measure": "train_loss", "axis": "axis", "direction": "decreasing", **extra}})
        is expected
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)], False),
        ([(5, 5), (4, 4), (3, 3), (2, 2), (1, 1)], False),
        ([(2, 2), (1, 1), (3, 3), (4, 4), (5, 5)], True),  # one pair out of order: τ = 0.8
        ([(0, 2), (0.1, 2.1), (0.2, 2.2), (0.3, 2.3), (0.4, 2.4)], True),  # monotone, but lost in the noise
    ],
)
def test_not_ordered(values: list[tuple[float, float]], expected: bool) -> None:
    assert holds(along(*values), {"not-ordered": {"measure": "train_loss", "axis": "axis"}}) is expected


def test_one_seed_has_no_deviation() -> None:
    """With a deviation of 0, whatever is above the other would be "well separated"."""
    results = along((1.0, 1.0), (2.0, 2.0))
    alone = []
    for own in results:
        assert own.history is not None
        alone.append(replace(own, history=own.history[own.history["seed"] == 0]))
    check = {"measure": "train_loss", "axis": "axis", "direction": "increasing"}
    assert holds(Results(alone, results.order), {"ordered": check})
    with pytest.raises(NotRunError, match="needs two seeds"):
        holds(Results(alone, results.order), {"ordered": {**check, "apart": 1.0}})


def test_lower_and_higher() -> None:
    results = along((1.0, 1.2), (2.0, 2.2))
    a, b = {"axis": "a"}, {"axis": "b"}
    assert holds(results, {"lower": {"measure": "train_loss", "cell": a, "than": b}})
    assert not holds(results, {"lower": {"measure": "train_loss", "cell": b, "than": a}})
    assert holds(results, {"higher": {"measure": "train_loss", "cell": b, "than": a}})
    assert not holds(results, {"higher": {"measure": "train_loss", "cell": a, "than": b}})
    assert holds(results, {"higher": {"measure": "train_loss", "cell": b, "than": a, "factor": 1.9}})
    assert not holds(results, {"higher": {"measure": "train_loss", "cell": b, "than": a, "factor": 2.0}})
    assert holds(results, {"lower": {"measure": "train_loss", "cell": a, "than": b, "by": 0.9}})
    assert not holds(results, {"lower": {"measure": "train_loss", "cell": a, "than": b, "by": 1.1}})
    assert holds(results, {"lower": {"measure": "train_loss", "cell": b, "than": a, "by": -1.1}})  # at most 1.1 above


def test_a_share_of_pairs() -> None:
    """Pairs are those that differ in what is asked alone; a part of them may be enough, and some may be missing."""
    cells = [
        outcome({"train_loss": (1, 1)}, method="x", graph="1"),
        outcome({"train_loss": (2, 2)}, method="y", graph="1"),
        outcome({"train_loss": (3, 3)}, method="x", graph="2"),
        outcome({"train_loss": (2, 2)}, method="y", graph="2"),
    ]
    order = {"method": ["x", "y"], "graph": ["1", "2"]}
    check = {"measure": "train_loss", "cell": {"method": "x"}, "than": {"method": "y"}}
    assert not holds(Results(cells, order), {"lower": check})
    assert holds(Results(cells, order), {"lower": {**check, "share": 0.5}})
    some = Results([*cells[:2], outcome({}, missing=True, method="x", graph="2"), cells[3]], order)
    with pytest.raises(NotRunError):
        holds(some, {"lower": check})
    assert holds(some, {"lower": {**check, "partial": True}})
    with pytest.raises(NotRunError):
        holds(some.where({"graph": "2"}), {"lower": {**check, "partial": True}})


def curve(values: list[float], **labels: str) -> Outcome:
    return outcome({"test_loss": [(v, v) for v in values]}, **labels)


def test_below_throughout() -> None:
    low, high = curve([9, 1, 1, 1, 1], method="x"), curve([1, 2, 2, 2, 2], method="y")
    results = Results([low, high], {"method": ["x", "y"]})
    check = {"measure": "test_loss", "cell": {"method": "x"}, "than": {"method": "y"}}
    assert not holds(results, {"below-throughout": {**check, "share": 0.9}})  # at 4 of 5 evaluations
    assert holds(results, {"below-throughout": {**check, "share": 0.8}})
    assert holds(results, {"below-throughout": {**check, "share": 1.0, "start": 0.2}})
    assert not holds(results, {"below-throughout": {**check, "cell": {"method": "y"}, "than": {"method": "x"}}})


def test_ratio() -> None:
    check = {"measure": "bytes_sent", "cell": {"axis": "a"}, "than": {"axis": "b"}, "value": 0.5, "within": 0.005}
    results = along((100, 100), (200, 200), measure="bytes_sent")
    assert holds(results, {"ratio": check})
    assert not holds(results, {"ratio": {**check, "value": 0.51}})
    assert not holds(along((1, 1), (0, 0), measure="bytes_sent"), {"ratio": check})  # of nothing there is no multiple


def test_number() -> None:
    """The drop is taken seed by seed: 94, 96 less 92, 95 is 2, 1."""
    results = along((0.94, 0.96), (0.92, 0.95), measure="test_accuracy")
    check = {
        "measure": "test_accuracy",
        "cell": {"axis": "b"},
        "less_than": {"axis": "a"},
        "value": 1.5,
        "within": 0.01,
    }
    finding = CHECKS.parse({"number": check}, "check").make(results)
    assert finding.holds
    assert finding.numbers.startswith("1.500 ± 0.707")
    assert not holds(results, {"number": {**check, "value": 1.6}})
    assert holds(results, {"number": {"measure": "test_accuracy", "cell": {"axis": "a"}, "value": 95, "within": 1e-9}})
    one, other = results.outcomes
    assert other.kept is not None
    others = replace(other, kept=replace(other.kept, seeds=[0, 2]))
    with pytest.raises(NotRunError, match="have other seeds"):  # as many, but not the same
        holds(Results([one, others], results.order), {"number": check})
    nothing = Results([outcome({}, axis=axis, missing=True) for axis in "ab"], {"axis": ["a", "b"]})
    with pytest.raises(ConfigError, match="must be one cell"):  # before anything is run
        holds(nothing, {"number": {**check, "less_than": {"axis": "c"}}})


def test_bounded() -> None:
    results = along((1, 2), (3, 4))
    assert holds(results, {"bounded": {"measure": "train_loss", "most": 4}})
    assert not holds(results, {"bounded": {"measure": "train_loss", "most": 3.9}})  # one seed of one cell is enough
    assert holds(results, {"bounded": {"measure": "train_loss", "least": 1}})
    assert not holds(results, {"bounded": {"measure": "train_loss", "least": 1.1}})
    with pytest.raises(ConfigError, match="neither most nor least"):
        holds(results, {"bounded": {"measure": "train_loss"}})
    with pytest.raises(NotRunError, match="no cells"):
        holds(Results([], {"axis": []}), {"bounded": {"measure": "train_loss", "most": 4}})


def test_similar_and_closer() -> None:
    results = Results([curve([5, 5, 3, 2, 1.1], axis="a"), curve([1, 1, 1, 1, 1], axis="b")], {"axis": ["a", "b"]})
    assert holds(results, {"similar": {"measure": "test_loss", "within": 0.11}})
    assert not holds(results, {"similar": {"measure": "test_loss", "within": 0.09}})
    early, late = {"mean": {"start": 0.0, "end": 0.25}}, {"at": 1.0}
    assert holds(results, {"closer": {"measure": "test_loss", "early": early, "late": late, "ratio": 0.03}})
    assert not holds(results, {"closer": {"measure": "test_loss", "early": early, "late": late, "ratio": 0.02}})


def test_highest() -> None:
    def row(name: str, x: float, y: float, missing: bool = False) -> list[Outcome]:
        return [
            outcome({"test_accuracy": (x, x)}, method="x", data=name),
            outcome({"test_accuracy": (y, y)}, method="y", data=name, missing=missing),
        ]

    order = {"method": ["x", "y"], "data": ["1", "2", "3"]}
    check = {"highest": {"measure": "test_accuracy", "axis": "method", "winners": ["x"], "share": 0.5}}
    assert holds(Results([*row("1", 0.9, 0.8), *row("2", 0.9, 0.8), *row("3", 0.1, 0.2)], order), check)
    assert not holds(Results([*row("1", 0.9, 0.8), *row("2", 0.1, 0.2)], order), check)  # half is not most
    assert holds(Results([*row("1", 0.9, 0.8), *row("2", 0.1, 0.2, missing=True)], order), check)
    with pytest.raises(NotRunError):
        holds(Results(row("1", 0.9, 0.8, missing=True), order), check)


# Verdicts


def claim(**arguments: Any) -> Claim:
    check = {"ordered": {"measure": "train_loss", "axis": "axis", "direction": "increasing"}}
    return Claim(text="t", check=check, **arguments)


def test_verdicts() -> None:
    """Each part of a claim must hold; a cell that diverged, or was not run, is said and not judged."""
    good, bad = (1.0, 1.0), (3.0, 3.0)
    order = {"axis": ["a", "b"], "momentum": ["p", "n"]}
    cells = [
        outcome({"train_loss": good}, axis="a", momentum="p"),
        outcome({"train_loss": bad}, axis="b", momentum="p"),
        outcome({"train_loss": bad}, axis="a", momentum="n"),
        outcome({"train_loss": good}, axis="b", momentum="n"),
    ]
    results = Results(cells, order)
    judged = judge(claim(each=["momentum"]), results)
    assert judged.verdict == "does not hold"
    assert [line.split(":")[0] for line in judged.numbers] == ["p", "n"]
    assert judge(claim(where={"momentum": "p"}), results).verdict == "holds"
    diverged = outcome({"train_loss": bad}, axis="b", momentum="p", diverged=True)
    assert judge(claim(where={"momentum": "p"}), Results([cells[0], diverged], order)).verdict == "diverged"
    part = judge(claim(each=["momentum"]), Results([cells[0], diverged, *cells[2:]], order))
    assert part.verdict == "does not hold"  # for the other momentum, whatever came of this one
    missing = outcome({}, axis="b", momentum="p", missing=True)
    assert judge(claim(where={"momentum": "p"}), Results([cells[0], missing], order)).verdict == "not run"


def test_an_axis_must_be_all_that_differs() -> None:
    cells = [outcome({"train_loss": (1, 1)}, axis="a", momentum=m) for m in ("p", "n")]
    with pytest.raises(ConfigError, match="differ in another one too"):
        judge(claim(), Results(cells, {"axis": ["a"], "momentum": ["p", "n"]}))


# Statistics


def statistic(at: Any, y: list[float], t: list[float] | None = None, phases: list[float] | None = None) -> float:
    t = t or [10.0 * k for k in range(len(y))]
    series = Series(np.array(t), np.array(phases or [v / 10 for v in t]), np.array(y), steps=int(t[-1]), period=10)
    return STATISTICS.parse(at, "at").make(series)


def test_statistics() -> None:
    y = [8.0, 4.0, 2.0, 1.0, 0.5]
    assert statistic("final", y) == 0.5
    assert statistic({"at": 0.25}, y) == 4.0
    assert statistic({"at": 0.125}, y) == 6.0  # half way between two evaluations
    assert statistic({"phases": 1.5}, y) == 3.0
    assert statistic({"phases": 1}, [5.0, 4.0, 3.0, 2.0], phases=[0, 1, 1, 2]) == 3.0  # the last of a phase
    assert statistic("mean", y) == pytest.approx(3.1)
    assert statistic({"mean": {"start": 0.5, "end": 1.0}}, y) == pytest.approx(3.5 / 3)
    assert statistic({"max": {"start": 0.5}}, y) == 2.0
    assert statistic("roughness", y) == pytest.approx(0.0, abs=1e-12)  # falls evenly
    assert statistic("roughness", [1.0, 10.0, 1.0, 10.0]) == pytest.approx(np.std([1, -1, 1], ddof=1))
    trace = [1e-12, 3.0, 1e-13, 5.0]  # t = 1, 10, 11, 20: after and before exchanges of period 10
    assert statistic("after-exchange", trace, t=[1.0, 10.0, 11.0, 20.0]) == 1e-12
    assert statistic("before-exchange", trace, t=[1.0, 10.0, 11.0, 20.0]) == 4.0
    with pytest.raises(NotRunError, match="nothing was evaluated between 1% and 2%"):
        statistic({"mean": {"start": 0.01, "end": 0.02}}, y)
    with pytest.raises(NotRunError, match="has 4 communication phases, and not 5"):  # the last value is no answer
        statistic({"phases": 5}, y)
    with pytest.raises(NotRunError, match="nothing was evaluated right after an exchange"):
        statistic("after-exchange", [1.0, 2.0], t=[5.0, 10.0])
    with pytest.raises(NotRunError, match="nothing was evaluated right before an exchange"):
        statistic("before-exchange", [1.0, 2.0], t=[1.0, 5.0])


def test_measures() -> None:
    """Shares are in percent; /n divides by the clients (four here)."""
    cell = outcome({"test_accuracy": (0.5, 0.25), "stationarity_mean": (8.0, 4.0)}, axis="a")
    assert cell.values("test_accuracy").tolist() == [50.0, 25.0]
    assert cell.values("stationarity_mean/n").tolist() == [2.0, 1.0]
    with pytest.raises(HasDivergedError):
        outcome({"train_loss": (1, 1)}, axis="a", diverged=True).values("train_loss")


# Tables


def test_the_arithmetic_of_a_table() -> None:
    """Ours 94.1, 94.3 against 94.50 ± 0.30: mean 94.2, deviation 0.1414, 0.3 below, combined 0.3317: −0.9σ."""
    entry = Entry(np.array([94.1, 94.3]), paper=Printed.read("94.50±0.30", "paper"))
    assert entry.ours() == "94.20 ± 0.14"
    assert entry.deviations == pytest.approx(-0.3 / math.sqrt(0.02 + 0.09))
    assert entry.apart() == "-0.9σ"
    assert Entry(np.array([94.1, 94.3]), paper=Printed.read("94.5", "paper")).deviations == pytest.approx(
        -0.3 / 0.02**0.5
    )
    assert Entry(np.array([94.1]), paper=Printed.read("94.5", "paper")).deviations is None  # no deviation at all
    assert Entry(np.array([2.1194, 2.1232])).ours() == "2.1213 ± 0.0027"  # two digits of the deviation
    assert Entry(np.array([8.1e-5, 9.9e-5])).ours() == "9.00e-05 ± 1.3e-05"
    assert Entry(np.array([3.0, 3.0])).ours() == "3.0000 ± 0.0000"
    assert Entry(np.array([120.0, 180.0])).ours() == "150 ± 42"
    assert Entry(None, "diverged (1 of 5)").ours() == "diverged (1 of 5)"
    assert str(Printed.read("2.060", "paper")) == "2.060"  # as printed


def made(cells: list[Outcome], **changes: Any) -> tables.Made:
    experiment = read_experiment(small())
    spec = Tabulated.model_validate({**small()["table"][0], **changes})
    return tables.make(spec, experiment, Results(cells, {"period": ["T0 = 1", "T0 = 2"], "alpha": ["small", "large"]}))


def test_a_table_of_rows_and_columns() -> None:
    """Paper's and ours in one place, the best in bold, what diverged or was not run said, and the seeds counted."""
    cells = [
        outcome({"train_loss": (1.0, 1.2)}, period="T0 = 1", alpha="small"),
        outcome({"train_loss": (0.8, 1.0)}, period="T0 = 1", alpha="large"),
        outcome({"train_loss": (9, 9)}, period="T0 = 2", alpha="small", diverged=True),
        outcome({}, period="T0 = 2", alpha="large", missing=True),
    ]
    lines = tables.markdown(made(cells, bold="lowest")).splitlines()
    # (1.1 − 1.0) / √(0.1414² + 0.1²) = 0.58
    assert "| T0 = 1 | 1.10 ± 0.14 (1.00 ± 0.10; +0.6σ) | **0.90 ± 0.14** (0.90 ± 0.10; +0.0σ) | 2 |" in lines
    assert "| T0 = 2 | diverged (1 of 2) | not run | – |" in lines
    text = tables.tex(made(cells, bold="lowest"))
    assert r"T0 = 1 & 1.10 $\pm$ 0.14 (1.00 $\pm$ 0.10; +0.6$\sigma$) & \textbf{0.90 $\pm$ 0.14} (0.90" in text
    assert text.count("\\\\") == 3


def test_a_column_is_asked_for_by_its_whole_label() -> None:
    """A label that is part of another one is another one."""
    table = small(table=[], claim=[])
    table["sweep"][1]["values"][0]["label"] = "large as can be"
    spec = Tabulated(
        title="t", rows=["period"], columns=["alpha"], measure="train_loss", where={"alpha": "large as can be"}
    )
    cells = [outcome({"train_loss": (1, 2)}, period="T0 = 1", alpha="large as can be")]
    order = {"period": ["T0 = 1", "T0 = 2"], "alpha": ["large as can be", "large"]}
    assert tables.make(spec, read_experiment(table), Results(cells, order)).columns == ["large as can be"]


def test_a_table_of_lines() -> None:
    cells = [
        outcome({"test_accuracy": (0.94, 0.96)}, period="T0 = 1", alpha="small"),
        outcome({"test_accuracy": (0.92, 0.95)}, period="T0 = 2", alpha="small"),
    ]
    line = {"what": "lost", "cell": {"period": "T0 = 2"}, "less_than": {"period": "T0 = 1"}, "measure": "test_accuracy"}
    spec = {"rows": [], "columns": [], "measure": None, "paper": [], "line": [{**line, "paper": "1.2"}]}
    lines = tables.markdown(made(cells, **spec)).splitlines()
    assert lines[-1] == "| lost | 1.5 ± 0.7 | 1.2 | +0.3 | +0.4σ | 2 |"  # 0.3 / 0.707


# Figures


def test_figures_draw_means_bands_and_phases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Curves are means over seeds; a trace's thick curve is the mean over seeds of the largest value in each phase."""
    drawn: list[Any] = []
    monkeypatch.setattr(figures, "_save", lambda drawing, folder: drawn.append(drawing))
    trace = [(seed, t, (1 + seed) * (t % 10 or 10)) for seed in (0, 1) for t in range(1, 41)]
    cells = [
        outcome(
            {
                "train_loss": [(4, 6), (3, 5), (2, 4), (1, 3), (0, 2)],
                "sparsity": (0.1, 0.3),
                "test_accuracy": (0.9, 0.8),
            },
            period="T0 = 1",
            alpha="small",
            trace=trace,
        ),
        outcome({}, period="T0 = 1", alpha="large", missing=True),
    ]
    panels = [
        {"title": "loss", "y": "train_loss", "zoom": [0.25, 0.75]},
        {"title": "trace", "kind": "trace", "log": True},
        {"title": "points", "kind": "points", "x": "sparsity", "y": "test_accuracy"},
        {"title": "phases", "y": "train_loss", "x": "phases", "where": {"alpha": "large"}},
    ]
    experiment = read_experiment(small(trace=True, figure={"series": ["alpha"], "columns": 2, "panel": panels}))
    results = Results(cells, {"period": ["T0 = 1", "T0 = 2"], "alpha": ["small", "large"]})
    figures.check_figure(experiment.figure, experiment, [cell.labels for cell in cells])
    figures.draw(experiment, results, tmp_path)
    loss, faint_and_thick, points, empty = drawn[0].axes[:4]
    np.testing.assert_allclose(loss.lines[0].get_xdata(), [0, 10, 20, 30, 40])
    np.testing.assert_allclose(loss.lines[0].get_ydata(), [5, 4, 3, 2, 1])
    inset = loss.child_axes[0]
    assert inset.get_xlim() == (10, 30)
    faint, thick = faint_and_thick.lines
    assert len(faint.get_xdata()) == 40
    np.testing.assert_allclose(thick.get_xdata(), [10, 20, 30, 40])
    np.testing.assert_allclose(thick.get_ydata(), [15] * 4)  # of 10 and 20
    assert points.lines[0].get_xydata().tolist() == [[20.0, 85.0]]
    assert [text.get_text() for text in empty.texts] == ["not run"]
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["small", "large"]
