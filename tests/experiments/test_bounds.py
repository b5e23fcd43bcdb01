"""Measures of experiments that are bounds: the theory's numbers for a cell's configuration, and the claims on them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from depositum import theory
from depositum.errors import ConfigError
from depositum.experiments import SweepOptions
from depositum.experiments.checks import CHECKS
from depositum.experiments.paper_number import PaperNumber
from depositum.experiments.plan import make_plan
from depositum.experiments.results import CellResult, NotRunError, Results
from depositum.experiments.sweep import make_cells
from depositum.runs import parse
from tests.support.small_experiments import read_experiment, small
from tests.support.synthetic_results import cell_result

TABLE: dict[str, Any] = {
    "problem": {"clients": 4, "regularizer": {"mcp": {"lam": 1.0, "theta": 5.0}}, "beta": 1e-3},
    "network": {"topology": "complete"},
    "algorithm": {"alpha": 1e-3, "gamma": 0.5},
    "run": {"steps": 40, "period": 2, "batch_size": 3},
    "metrics": {"smoothness": 2.0},
}


def measured(table: dict[str, Any], s: float = 1.0) -> CellResult:
    """A cell with the same s for both seeds, and φ(x0) = 0.5 and 0.7."""
    cell = cell_result({"s": (s, s), "phi": (0.5, 0.7)}, config=parse(table), axis="a")
    return replace(cell, variance=9.0)


def test_the_bound_of_theorem_1_is_the_theorys() -> None:
    series = measured(TABLE).series("theorem1")
    for seed, gap in ((0, 0.5), (1, 0.7)):
        for t, value in zip(series[seed].t, series[seed].y, strict=True):
            setting = theory.Setting(
                n=4,
                lam=0.0,
                period=2,
                beta=1e-3,
                rho=0.2,
                gamma=0.5,
                alpha=1e-3,
                L=2.0,
                sigma2=9.0,
                batch_size=3,
                steps=int(t) + 1,
                gap=gap,
            )
            assert value == pytest.approx(theory.bound(setting).total, rel=1e-12)


def test_there_is_no_bound_where_conditions_are_violated() -> None:
    with pytest.raises(NotRunError, match="has no theorem1"):
        measured(TABLE | {"algorithm": {"alpha": 1.0, "gamma": 0.5}}).series("theorem1")


@pytest.mark.parametrize(
    "changes",
    [
        {"network": {"drop": 0.3}},
        {"network": {"topology": {"sequence": {"graphs": ["ring", "star"]}}}},
        {"network": {"channel": {"top-k": 0.5}}},
        {"network": {"channel": {"noise": 1e-3}}},
        {"run": {**TABLE["run"], "participation": 0.5}},
        {"algorithm": {**TABLE["algorithm"], "start": "local"}},
        {"algorithm": {"alpha": {"cosine": {"start": 1e-3, "steps": 40}}}},
    ],
)
def test_there_is_no_bound_on_links_and_steps_that_the_theorem_is_not_about(changes: dict[str, Any]) -> None:
    with pytest.raises(NotRunError, match="has no theorem1"):
        measured(TABLE | changes).series("theorem1")
    assert measured(TABLE | {"network": {"channel": "sparse"}}).series("theorem1")


def test_the_bound_of_corollary_1_is_for_its_schedule_and_length() -> None:
    schedule = theory.corollary_schedule(4, 40, 2.0)
    run = {"steps": 40, "period": 1, "batch_size": schedule.batch_size}
    cell = measured(TABLE | {"run": run, "algorithm": {"alpha": schedule.alpha, "gamma": schedule.gamma}})
    assert [list(series.t) for series in cell.series("corollary1").values()] == [[40.0], [40.0]]
    with pytest.raises(NotRunError, match="has no corollary1"):
        measured(TABLE | {"run": run}).series("corollary1")


def test_the_running_mean_of_s_and_multiples_of_n() -> None:
    cell = cell_result({"s": [(4, 8), (2, 0), (0, 1), (2, 3), (2, 3)]}, axis="a")
    assert cell.series("s_mean/n")[0].y == pytest.approx(np.array([4, 3, 2, 2, 2]) / 4)
    assert cell.series("s_mean")[1].y == pytest.approx([8, 4, 3, 3, 3])
    assert cell.values("iteration*n").tolist() == [160, 160]


def test_below_the_bound() -> None:
    check = {"below-bound": {"measure": "s_mean/n", "bound": "theorem1"}}

    def verdict(s: float) -> bool | None:
        return CHECKS.parse(check, "check").make(Results([measured(TABLE, s)], {"axis": ["a"]})).holds

    smallest = min(series.y.min() for series in measured(TABLE).series("theorem1").values())
    assert verdict(0.5 * smallest * 4)
    assert verdict(2.0 * smallest * 4) is False


def test_one_label_that_agrees() -> None:
    """All three numbers at α = a are met, none at b."""
    rows = ["1", "2", "3"]
    cells = [
        cell_result({"train_loss": pair}, alpha=alpha, row=row)
        for alpha, pair in (("a", (0.9, 1.2)), ("b", (4.0, 4.1)))
        for row in rows
    ]
    cells.append(cell_result({}, alpha="c", row="1", missing=True))
    number = PaperNumber.parse("1.0±0.1", "paper")
    printed = {("train_loss", f"{alpha}, {row}"): number for alpha in "abc" for row in rows}
    results = Results(cells, {"alpha": ["a", "b", "c"], "row": rows}, printed)
    check = CHECKS.parse({"agrees": {"measure": "train_loss", "axis": "alpha"}}, "check")
    finding = check.make(results)
    assert finding.holds
    assert finding.numbers.startswith("at a; a: 3 of 3 agree")
    assert "b: 0 of 3 agree" in finding.numbers
    assert finding.numbers.endswith("; not tested: c: no cell has a printed number and two seeds")
    assert check.make(results.where({"alpha": ["b", "c"]})).holds is False
    with pytest.raises(NotRunError, match="c: no cell"):
        check.make(results.where({"alpha": "c"}))


def test_settings_of_combinations() -> None:
    where = {"period": "T0 = 2", "alpha": "large"}
    table = small(combination=[{"where": where, "set": {"run.steps": 7}}])
    cells = make_cells(read_experiment(table), SweepOptions())
    assert [cell.table["run"]["steps"] for cell in cells] == [12, 12, 12, 7]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"combination": [{"where": {"alpha": "larg"}, "set": {}}]},
            "combination 1.where.alpha: 'larg' is not a label",
        ),
        (
            {"figure": {"series": ["period", "alpha"], "panel": [{"title": "t", "y": "s", "against": "theorem1"}]}},
            r"figure.panel 1.against: 'theorem1' given; it needs variance",
        ),
        (
            {"claim": [{"text": "t", "check": {"below-bound": {"measure": "s", "bound": "theorem2"}}}]},
            r"below-bound.bound: 'theorem2' is not a measure.*'theorem1'",
        ),
    ],
)
def test_mistakes_are_found_before_any_work(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_plan(read_experiment(small(**changes)), SweepOptions())
