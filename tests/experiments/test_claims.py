"""Checks and verdicts on synthetic results: each check on data where it holds, and where it does not."""

from dataclasses import replace
from typing import Any

import pytest

from depositum.errors import ConfigError
from depositum.experiments.checks import CHECKS
from depositum.experiments.claims import judge
from depositum.experiments.definition import Claim
from depositum.experiments.results import CellResult, NotRunError, Results
from tests.support.synthetic_results import along, cell_result


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
    negated = along(*[(-a, -b) for a, b in values])
    assert (
        holds(negated, {"ordered": {"measure": "train_loss", "axis": "axis", "direction": "decreasing", **extra}})
        is expected
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)], False),
        ([(5, 5), (4, 4), (3, 3), (2, 2), (1, 1)], False),
        ([(2, 2), (1, 1), (3, 3), (4, 4), (5, 5)], True),  # one pair out of order: τ = 0.8
        ([(0, 2), (0.1, 2.1), (0.2, 2.2), (0.3, 2.3), (0.4, 2.4)], True),  # monotone, but within the noise
    ],
)
def test_not_ordered(values: list[tuple[float, float]], expected: bool) -> None:
    assert holds(along(*values), {"not-ordered": {"measure": "train_loss", "axis": "axis"}}) is expected


def test_one_seed_has_no_deviation() -> None:
    """With a deviation of 0, any difference would count as clearly separated."""
    results = along((1.0, 1.0), (2.0, 2.0))
    alone = []
    for cell in results:
        assert cell.history is not None
        alone.append(replace(cell, history=cell.history[cell.history["seed"] == 0]))
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
    """Pairs differ only in the given labels; a share of them may be enough, and some may be missing."""
    cells = [
        cell_result({"train_loss": (1, 1)}, method="x", graph="1"),
        cell_result({"train_loss": (2, 2)}, method="y", graph="1"),
        cell_result({"train_loss": (3, 3)}, method="x", graph="2"),
        cell_result({"train_loss": (2, 2)}, method="y", graph="2"),
    ]
    order = {"method": ["x", "y"], "graph": ["1", "2"]}
    check = {"measure": "train_loss", "cell": {"method": "x"}, "than": {"method": "y"}}
    assert not holds(Results(cells, order), {"lower": check})
    assert holds(Results(cells, order), {"lower": {**check, "share": 0.5}})
    some = Results([*cells[:2], cell_result({}, missing=True, method="x", graph="2"), cells[3]], order)
    with pytest.raises(NotRunError):
        holds(some, {"lower": check})
    assert holds(some, {"lower": {**check, "partial": True}})
    with pytest.raises(NotRunError):
        holds(some.where({"graph": "2"}), {"lower": {**check, "partial": True}})


def curve(values: list[float], **labels: str) -> CellResult:
    return cell_result({"test_loss": [(v, v) for v in values]}, **labels)


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
    assert not holds(along((1, 1), (0, 0), measure="bytes_sent"), {"ratio": check})  # there is no ratio to 0


def test_number() -> None:
    """The difference is taken per seed: 94, 96 minus 92, 95 is 2, 1."""
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
    one, other = results.cells
    assert other.cached is not None
    others = replace(other, cached=replace(other.cached, seeds=[0, 2]))
    with pytest.raises(NotRunError, match="have different seeds"):  # as many, but not the same
        holds(Results([one, others], results.order), {"number": check})
    not_run = Results([cell_result({}, axis=axis, missing=True) for axis in "ab"], {"axis": ["a", "b"]})
    with pytest.raises(ConfigError, match="must be one cell"):  # before anything is run
        holds(not_run, {"number": {**check, "less_than": {"axis": "c"}}})


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
    def row(name: str, x: float, y: float, missing: bool = False) -> list[CellResult]:
        return [
            cell_result({"test_accuracy": (x, x)}, method="x", data=name),
            cell_result({"test_accuracy": (y, y)}, method="y", data=name, missing=missing),
        ]

    order = {"method": ["x", "y"], "data": ["1", "2", "3"]}
    check = {"highest": {"measure": "test_accuracy", "axis": "method", "winners": ["x"], "share": 0.5}}
    assert holds(Results([*row("1", 0.9, 0.8), *row("2", 0.9, 0.8), *row("3", 0.1, 0.2)], order), check)
    assert not holds(Results([*row("1", 0.9, 0.8), *row("2", 0.1, 0.2)], order), check)  # half is not more than half
    assert holds(Results([*row("1", 0.9, 0.8), *row("2", 0.1, 0.2, missing=True)], order), check)
    with pytest.raises(NotRunError):
        holds(Results(row("1", 0.9, 0.8, missing=True), order), check)


# Verdicts


def claim(**arguments: Any) -> Claim:
    check = {"ordered": {"measure": "train_loss", "axis": "axis", "direction": "increasing"}}
    return Claim(text="t", check=check, **arguments)


def test_verdicts() -> None:
    """Each part of a claim must hold; a cell that diverged, or was not run, is reported and not judged."""
    good, bad = (1.0, 1.0), (3.0, 3.0)
    order = {"axis": ["a", "b"], "momentum": ["p", "n"]}
    cells = [
        cell_result({"train_loss": good}, axis="a", momentum="p"),
        cell_result({"train_loss": bad}, axis="b", momentum="p"),
        cell_result({"train_loss": bad}, axis="a", momentum="n"),
        cell_result({"train_loss": good}, axis="b", momentum="n"),
    ]
    results = Results(cells, order)
    judged = judge(claim(each=["momentum"]), results)
    assert judged.verdict == "does not hold"
    assert [line.split(":")[0] for line in judged.numbers] == ["p", "n"]
    assert judge(claim(where={"momentum": "p"}), results).verdict == "holds"
    diverged = cell_result({"train_loss": bad}, axis="b", momentum="p", diverged=True)
    assert judge(claim(where={"momentum": "p"}), Results([cells[0], diverged], order)).verdict == "diverged"
    part = judge(claim(each=["momentum"]), Results([cells[0], diverged, *cells[2:]], order))
    assert part.verdict == "does not hold"  # for the other momentum, whatever this one gave
    missing = cell_result({}, axis="b", momentum="p", missing=True)
    assert judge(claim(where={"momentum": "p"}), Results([cells[0], missing], order)).verdict == "not run"


def test_cells_along_an_axis_must_not_differ_in_another() -> None:
    cells = [cell_result({"train_loss": (1, 1)}, axis="a", momentum=m) for m in ("p", "n")]
    with pytest.raises(ConfigError, match="differ in another axis too"):
        judge(claim(), Results(cells, {"axis": ["a"], "momentum": ["p", "n"]}))
