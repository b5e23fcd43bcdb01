"""Which runs are ranked together, and what is shown of the settings in which they differ."""

import copy
import io
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from depositum.engines import Divergence, describe_divergences
from depositum.report.compared_runs import (
    ComparedRun,
    RunGroup,
    grouped_by_problem,
    labels,
    notes,
    problem_differences,
)
from depositum.report.curves import draw_comparison
from depositum.report.history_tables import comparison_table
from tests.support.small_histories import history

BASE: dict[str, dict[str, Any]] = {
    "problem": {"dataset": "digits", "regularizer": "l1", "beta": 1e-3, "clients": 10},
    "network": {"topology": {"ring": {"hops": 1}}},
    "algorithm": {"name": "depositum", "alpha": 0.1, "gamma": 0.5},
    "run": {"steps": 40, "period": 5},
}


def table(**changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    out = copy.deepcopy(BASE)
    for section, keys in changes.items():
        out[section] = {**out[section], **keys} if section != "algorithm" else keys
    return out


def falling(scale: float = 1.0) -> Any:
    """A history whose losses fall, and whose accuracy rises with `scale`."""
    frame = history(seeds=1, scale=scale)
    for column in ("train_loss", "phi"):
        frame[column] = 100.0 - frame["iteration"]
    return frame


def run(name: str, scale: float = 1.0, diverged: str = "", **changes: dict[str, Any]) -> ComparedRun:
    return ComparedRun(name, falling(scale), table(**changes), diverged)


def rendered(groups: list[RunGroup], width: int = 100) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(comparison_table(groups, width))
    return out.getvalue()


SMOOTH = {"problem": {"beta": 0.0}, "algorithm": {"name": "d-psgd", "alpha": 0.05}}


@pytest.mark.parametrize(
    ("changes", "title"),
    [
        ({"problem": {"beta": 0.0}}, "another problem: no regularizer, β = 0"),
        ({"problem": {"regularizer": "zero"}}, "another problem: no regularizer, β = 0"),
        ({"problem": {"beta": 0.01}}, "another problem: l1, β = 0.01"),
        ({"problem": {"regularizer": {"mcp": {"theta": 5.0}}}}, "another problem: mcp (theta = 5), β = 0.001"),
        ({"problem": {"dataset": "a9a"}}, "another problem: dataset = a9a"),
        ({"problem": {"partition": {"dirichlet": {"theta": 0.5}}}}, "another problem: partition = dirichlet (theta"),
        ({"problem": {"loss": "mse"}}, "another problem: loss = mse"),
        ({"problem": {"model": "mlp"}}, "another problem: model = mlp"),
        ({"problem": {"weighting": "samples"}}, "another problem: weighting = samples"),
        ({"problem": {"clients": 8}}, "another problem: clients = 8"),
    ],
)
def test_a_run_that_solves_another_problem_is_set_apart(changes: dict, title: str) -> None:
    """Even if it has the best measures: it would be first in a ranking."""
    ranked, apart = grouped_by_problem([run("a"), run("b", 9.0, **changes), run("c", 2.0)])
    assert ([each.name for each in ranked.runs], ranked.kind) == (["a", "c"], "ranked")
    assert ([each.name for each in apart.runs], apart.kind) == (["b"], "apart")
    assert apart.title.startswith(title)
    assert ranked.title.startswith("problem: ")
    assert title[len("another problem: ") :] not in ranked.title


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": {"name": "fedmid", "alpha": 0.3}},
        {"network": {"topology": "star"}},
        {"run": {"period": 1}},
        {"problem": {"weighting": "uniform", "holdout": 0.0}},  # the defaults, which an old folder does not have
    ],
)
def test_runs_that_solve_the_same_problem_are_ranked(changes: dict) -> None:
    (group,) = grouped_by_problem([run("a"), run("b", **changes)])
    assert (group.title, group.kind) == ("", "ranked")


def test_a_regularizer_without_weight_does_not_count() -> None:
    one, two = ({"problem": {"regularizer": name, "beta": beta}} for name, beta in (("l1", 0.0), ("zero", 1e-5)))
    assert problem_differences(one, two) == {}


def test_the_problem_in_question_is_that_of_the_file() -> None:
    """Not that of the first method, which may be a smooth one."""
    ranked, apart = grouped_by_problem([run("d-psgd", **SMOOTH), run("depositum")], table())
    assert [each.name for each in ranked.runs] == ["depositum"]
    assert [each.name for each in apart.runs] == ["d-psgd"]
    (alone,) = grouped_by_problem([run("d-psgd", **SMOOTH)], table())
    assert alone.kind == "ranked"


def test_runs_without_a_configuration() -> None:
    """All of them may solve one problem; next to a run whose problem is known, they are set apart."""
    (group,) = grouped_by_problem([ComparedRun("a", falling()), ComparedRun("b", falling())])
    assert group.kind == "ranked"
    _, apart = grouped_by_problem([ComparedRun("a", falling()), run("b")])
    assert (apart.title, [each.name for each in apart.runs]) == ("problem not known (no config.toml)", ["a"])


def test_diverged_runs_are_never_ranked() -> None:
    """Their last finite values can be the best of all: measured long before the others ended."""
    diverged = describe_divergences([Divergence(1, 30, 2, "x")], 3)
    groups = grouped_by_problem([run("a"), run("b", 9.0, diverged=diverged), run("c"), *map(run, "defgh")])
    assert [(group.kind, len(group.runs)) for group in groups] == [("ranked", 7), ("diverged", 1)]
    text = rendered(groups)
    (line,) = [line for line in text.splitlines() if line.split()[:1] == ["b"]]
    assert " ".join(line.split()) == "b 1 of 3 seeds: seed 1 diverged: x of client 2 is not finite at iteration 30"
    assert text.index("diverged, not ranked") > text.index(" h ")


@pytest.mark.parametrize("width", [60, 100])
@pytest.mark.parametrize("others", [0, 8])
def test_stepsizes_are_shown_by_the_methods_own_names_where_they_differ(others: int, width: int) -> None:
    runs = [run("a"), *(run(f"same-{k}") for k in range(others))]
    assert "α" not in rendered(grouped_by_problem(runs), width)
    assert labels(runs)["a"] == "a"
    runs += [run("b", algorithm={"name": "prox-dasa", "eta": 0.2})]
    runs += [run("c", algorithm={"name": "fast-fedda", "G": 3.0, "m": 0.1}), run("d", **SMOOTH)]
    text = rendered(grouped_by_problem(runs), width)
    for shown in ("α = 0.1", "η = 0.2", "G = 3", "α = 0.05", "no regularizer, β = 0", "l1, β = 0.001"):
        assert shown in text
    assert labels(runs)["b"] == "b, η = 0.2"


def test_a_schedule_is_shown() -> None:
    schedule = {"cosine": {"start": 0.3, "steps": 40}}
    runs = [run("a"), run("b", algorithm={"name": "depositum", "alpha": schedule})]
    assert labels(runs)["b"] == "b, α = cosine (start = 0.3, steps = 40)"


def test_other_settings_that_differ_are_listed() -> None:
    """A comparison of unequal budgets must not look like one of methods."""
    runs = [
        run("a"),
        run("b", run={"period": 1}),
        run("c", network={"topology": "star"}),
        run("d", algorithm={"name": "depositum", "alpha": 0.1, "gamma": 0.9}),
        run("e", algorithm={"name": "deepstorm", "alpha": 0.1, "gamma": 3.0}),  # its γ has another meaning
    ]
    assert notes(runs) == [
        "network.topology: ring (hops = 1); star for c",
        "run.period: 5; 1 for b",
        "algorithm.gamma: 0.5; 0.9 for d",
    ]


def test_unfinished_and_worsened_runs_are_noted() -> None:
    worse = ComparedRun("b", history(seeds=1), table())
    stopped = run("c", run={"steps": 100})
    noted = notes([run("a"), worse, stopped])
    assert noted[0] == "c: 40 of 100 iterations"
    assert noted[1].startswith("! b ended worse than it began: train loss rose from 1 to 41")
    assert "b !" in rendered(grouped_by_problem([run("a"), worse]))


def test_the_ranking_says_what_it_is_by() -> None:
    """With test data the accuracy, else the test loss, else φ."""
    runs = [run(str(k), scale=float(k)) for k in range(1, 8)]
    assert "by test accuracy" in rendered(grouped_by_problem(runs))
    for each in runs:
        each.history["test_accuracy"] = float("nan")
    assert "by φ" in rendered(grouped_by_problem(runs))
    for each in runs:
        each.history["test_loss"] = 10.0 - int(each.name)
    text = rendered(grouped_by_problem(runs))
    assert "by test loss" in text
    assert [line.split()[0] for line in text.splitlines() if line[1:2].isdigit()] == list("7654321")


def test_the_legend_has_a_part_for_each_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under its title, in columns of its own, with broken lines."""
    saved: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: (saved.append(self), Path(path).touch()))
    runs = [run("a"), run("b", algorithm={"name": "fedmid", "alpha": 0.2}), run("c", **SMOOTH)]
    draw_comparison(grouped_by_problem(runs), tmp_path / "f.png")
    (figure,) = saved
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == [
        "problem: l1, β = 0.001", "a, α = 0.1", "b, α = 0.2",
        "another problem: no\nregularizer, β = 0", "c, α = 0.05", "",
    ]  # fmt: skip
    styles = {line.get_label(): line.get_linestyle() for line in figure.axes[0].lines}
    assert styles["a, α = 0.1"] == styles["b, α = 0.2"] == "-"
    assert styles["c, α = 0.05"] != "-"
    draw_comparison(grouped_by_problem([run("a"), run("b")]), tmp_path / "f.png")
    assert [text.get_text() for text in saved[1].legends[0].get_texts()] == ["a", "b"]
