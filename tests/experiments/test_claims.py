"""Checks and verdicts on synthetic results: each check on data where it holds, and where it does not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from depositum.errors import ConfigError
from depositum.experiments.checks import CHECKS
from depositum.experiments.claims import judge
from depositum.experiments.definition import Claim
from depositum.experiments.paper_number import PaperNumber
from depositum.experiments.results import CellResult, NotRunError, Results
from depositum.experiments.seed_tests import agreement, chance_of_at_least, interval
from tests.support.synthetic_results import along, cell_result


def holds(results: Results, check: Any) -> bool | None:
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
        ([(0, 4), (4.0, 0.5)], {}, None),  # the mean is higher, but not for both seeds
        ([(0, 10), (1, 11)], {}, True),  # seeds differ more than the cells, which differ for each seed
        ([(1, 1), (0.9, 1.2), (5, 5)], {"exceptions": 1}, True),
        ([(1, 1), (0.9, 1.2), (5, 5)], {}, None),
    ],
)
def test_ordered(values: list[tuple[float, float]], extra: dict[str, Any], expected: bool | None) -> None:
    """Fails if cells are compared by their means alone, or as if they had different seeds."""
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
        ([(2, 2), (1, 1), (3, 3), (4, 4), (5, 5)], True),  # one step the other way
        ([(2, 2), (1, 9), (3, 3), (4, 4), (5, 5)], None),  # one that the seeds cannot tell
        ([(0, 2), (0.1, 2.1), (0.2, 2.2), (0.3, 2.3), (0.4, 2.4)], False),  # small, but the same for every seed
    ],
)
def test_not_ordered(values: list[tuple[float, float]], expected: bool | None) -> None:
    assert holds(along(*values), {"not-ordered": {"measure": "train_loss", "axis": "axis"}}) is expected


def test_one_seed_decides_nothing() -> None:
    results = along((1.0, 1.0), (2.0, 2.0))
    alone = []
    for cell in results:
        assert cell.history is not None
        alone.append(replace(cell, history=cell.history[cell.history["seed"] == 0]))
    check = {"measure": "train_loss", "axis": "axis", "direction": "increasing"}
    with pytest.raises(NotRunError, match="needs two seeds"):
        holds(Results(alone, results.order), {"ordered": check})


def test_the_interval_is_students() -> None:
    """Against SciPy's own one-sample t-test: an end is at 0 where its one-sided p-value is 5 %."""
    values = np.random.default_rng(3).normal(0.4, 1.0, size=7)
    found = interval(values)
    assert ttest_1samp(values, found.low, alternative="greater").pvalue == pytest.approx(0.05)
    assert ttest_1samp(values, found.high, alternative="less").pvalue == pytest.approx(0.05)
    assert found.inside(least=found.low - 1e-9)
    assert found.inside(least=found.low + 1e-9) is None
    assert found.inside(least=found.high + 1e-9) is False


def test_agreement_with_a_printed_number() -> None:
    """Two standard errors, the paper's included where it prints a deviation; their chance by simulation."""
    values = np.array([1.0, 2.0, 3.0, 4.0, 5.0])  # mean 3, deviation 1.58, standard error 0.707
    assert agreement(values, 4.41, None).agrees
    assert not agreement(values, 4.42, None).agrees
    assert agreement(values, 5.0, float(values.std(ddof=1))).agrees  # the standard error is now 1
    assert not agreement(values, 5.01, float(values.std(ddof=1))).agrees
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(size=(20000, 5)), rng.normal(size=(20000, 5))
    found = [agreement(a, b.mean(), b.std(ddof=1)) for a, b in zip(ours[:4000], theirs[:4000], strict=True)]
    assert np.mean([not one.agrees for one in found]) == pytest.approx(
        np.mean([one.chance for one in found]), abs=0.015
    )
    assert chance_of_at_least(2, [0.1, 0.2, 0.3]) == pytest.approx(
        0.1 * 0.2 * 0.7 + 0.1 * 0.8 * 0.3 + 0.9 * 0.2 * 0.3 + 0.006
    )


def test_lower_and_higher() -> None:
    results = along((1.0, 1.2), (2.0, 2.2))
    a, b = {"axis": "a"}, {"axis": "b"}
    assert holds(results, {"lower": {"measure": "train_loss", "cell": a, "than": b}})
    assert not holds(results, {"lower": {"measure": "train_loss", "cell": b, "than": a}})
    assert holds(results, {"higher": {"measure": "train_loss", "cell": b, "than": a}})
    assert not holds(results, {"higher": {"measure": "train_loss", "cell": a, "than": b}})
    double = along((1.0, 3.0), (2.0, 6.0))  # twice as much for each seed: in logarithms, and not in differences
    assert holds(double, {"higher": {"measure": "train_loss", "cell": b, "than": a, "factor": 1.99}})
    assert holds(double, {"higher": {"measure": "train_loss", "cell": b, "than": a, "factor": 2.01}}) is False
    assert holds(double, {"higher": {"measure": "train_loss", "cell": b, "than": a}}) is None
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


def test_a_pair_without_two_seeds_is_left_out_and_named() -> None:
    """Fails if a method that diverged disappears from a claim without a word."""
    cells = [
        cell_result({"train_loss": (1, 1)}, method="x", graph="1"),
        cell_result({"train_loss": (2, 2)}, method="y", graph="1"),
        cell_result({"train_loss": (3, 3)}, method="x", graph="2"),
        cell_result({"train_loss": (2, 2)}, method="y", graph="2", diverged=True),
    ]
    order = {"method": ["x", "y"], "graph": ["1", "2"]}
    check = {"lower": {"measure": "train_loss", "cell": {"method": "x"}, "than": {"method": "y"}}}
    judged = judge(Claim(text="t", check=check), Results(cells, order))
    assert judged.verdict == "holds"
    assert "left out: x, 2 and y, 2" in judged.numbers[0]
    assert judged.left_out == ["y, 2: seed 0 (diverged)"]
    assert "paired t-test" in judged.test


def test_a_collapsed_seed_is_not_averaged() -> None:
    """It ends where it began although the other learned; if none learns, none has collapsed."""
    learned = [(2.3, 2.3), (2.3, 1.0), (2.3, 0.5), (2.29, 0.3), (2.29, 0.3)]
    cell = cell_result({"test_loss": learned, "test_accuracy": (0.1, 0.9)}, axis="a")
    assert cell.lost == {0: "collapsed"}
    assert cell.values("test_accuracy").tolist() == [90.0]
    assert cell.losses == "collapsed 1 of 2"
    bounded = {"bounded": {"measure": "test_accuracy", "least": 50}}
    assert holds(Results([cell], {"axis": ["a"]}), bounded) is False  # every seed counts here
    assert not cell_result({"test_loss": [(2.3, 2.3)] * 4 + [(2.299, 2.295)]}, axis="a").lost
    assert not cell_result({"test_loss": [(2.3, 2.3)] * 4 + [(1.0, 0.6)]}, axis="a").lost


def test_agrees_counts_what_chance_explains() -> None:
    """Nine of ten cells agree: one beyond two standard errors is expected. Five of ten are not."""
    names = [str(k) for k in range(10)]
    spread = np.array([-1.0, 1.0])  # a standard error of 1

    def results(outside: int) -> Results:
        cells = [
            cell_result({"train_loss": tuple(spread + (9 if k < outside else 0.5))}, axis=name)
            for k, name in enumerate(names)
        ]
        printed = {("train_loss", name): PaperNumber.parse("0.0±0.1", "paper") for name in names}
        return Results(cells, {"axis": names}, printed)

    check = {"agrees": {"measure": "train_loss"}}
    assert holds(results(1), check)
    assert holds(results(10), check) is False
    with pytest.raises(NotRunError, match="no cell has a printed number"):
        holds(along((1, 1)), check)


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
    with pytest.raises(NotRunError, match="not finite"):  # there is no ratio to 0
        holds(along((1, 1), (0, 0), measure="bytes_sent"), {"ratio": check})


def test_number() -> None:
    """The difference is taken per seed: 94, 96 minus 92, 95 is 2, 1."""
    results = along((0.94, 0.96), (0.92, 0.95), measure="test_accuracy")
    check = {"measure": "test_accuracy", "cell": {"axis": "b"}, "less_than": {"axis": "a"}, "value": 1.5}
    finding = CHECKS.parse({"number": check}, "check").make(results)
    assert finding.holds
    assert finding.numbers.startswith("1.500 ± 0.707")
    assert holds(results, {"number": {**check, "value": 2.49}})  # the standard error is 0.5
    assert not holds(results, {"number": {**check, "value": 2.51}})
    assert holds(results, {"number": {**check, "value": 2.51, "std": 0.5}})
    one, other = results.cells
    assert other.cached is not None
    others = replace(other, cached=replace(other.cached, seeds=[0, 2]))
    with pytest.raises(NotRunError, match="have different seeds"):  # as many, but not the same
        holds(Results([one, others], results.order), {"number": check})
    not_run = Results([cell_result({}, axis=axis, missing=True) for axis in "ab"], {"axis": ["a", "b"]})
    with pytest.raises(ConfigError, match="must be one cell"):  # before anything is run
        holds(not_run, {"number": {**check, "less_than": {"axis": "c"}}})


def test_never_reaches_counts_every_seed() -> None:
    """Seeds that diverged have not reached anything; one seed of one cell that has is enough."""
    learned = cell_result({"test_accuracy": (0.1, 0.9)}, axis="a")
    untrained = cell_result({"test_accuracy": (0.1, 0.2)}, axis="b")
    diverged = cell_result({"test_accuracy": (0.9, 0.1)}, axis="c", diverged=True)
    check = {"never-reaches": {"measure": "test_accuracy", "value": 50}}
    order = {"axis": ["a", "b", "c"]}
    assert holds(Results([untrained, diverged], order), check)
    assert not holds(Results([untrained, diverged, learned], order), check)
    assert not holds(Results([untrained], order), {"never-reaches": {"measure": "test_accuracy", "value": 20}})


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
    left = judge(claim(where={"momentum": "p"}), Results([cells[0], diverged], order))
    assert left.verdict == "diverged"
    assert left.left_out == ["b, p: seed 0 (diverged)"]
    part = judge(claim(each=["momentum"]), Results([cells[0], diverged, *cells[2:]], order))
    assert part.verdict == "does not hold"  # for the other momentum, whatever this one gave
    missing = cell_result({}, axis="b", momentum="p", missing=True)
    assert judge(claim(where={"momentum": "p"}), Results([cells[0], missing], order)).verdict == "not run"


def test_cells_along_an_axis_must_not_differ_in_another() -> None:
    cells = [cell_result({"train_loss": (1, 1)}, axis="a", momentum=m) for m in ("p", "n")]
    with pytest.raises(ConfigError, match="differ in another axis too"):
        judge(claim(), Results(cells, {"axis": ["a"], "momentum": ["p", "n"]}))
