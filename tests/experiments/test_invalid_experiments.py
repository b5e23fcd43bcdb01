"""Errors in an experiment file or on the command line: reported in one line, before any work."""

from pathlib import Path
from typing import Any

import pytest

from depositum import experiments
from depositum.errors import ConfigError
from depositum.experiments import SweepOptions
from tests.support.small_experiments import read_experiment, small, write_experiment
from tests.support.small_runs import cli


def error_message(**changes: Any) -> str:
    with pytest.raises(ConfigError) as error:
        experiments.make_plan(read_experiment(small(**changes)), SweepOptions())
    assert "\n" not in str(error.value)
    return str(error.value)


FIRST = small()["sweep"][0]
CLAIM = small()["claim"][0]
PANEL = small()["figure"]["panel"][0]


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"titel": "x"}, ["mine: titel: unknown key", "did you mean 'title'?"]),
        ({"seeds": "5"}, ["mine: seeds", "'5' given", "a list"]),
        ({"sweep": []}, ["mine: sweep", "longer"]),
        (
            {"figure": {"series": ["period", "alpha"], "panel": [{**PANEL, "y": "stationarity"}]}},
            ["mine: figure.panel 1.y: 'stationarity' given, but no cell evaluates it; set metrics.costly_every"],
        ),
        (
            {"figure": {"series": ["period", "alpha"], "panel": [{**PANEL, "zoom": [1.0, 0.5]}]}},
            ["mine: figure.panel 1.zoom: [1.0, 0.5] given; the first must be smaller than the second"],
        ),
        (
            {"figure": {"series": ["period", "alpha"], "panel": [{**PANEL, "limits": [3.0, 1.0]}]}},
            ["mine: figure.panel 1.limits: [3.0, 1.0] given; the first must be smaller than the second"],
        ),
        ({"sweep": [FIRST, FIRST]}, ["mine: sweep: axis 'period' is defined twice"]),
        ({"sweep": [{"axis": "a", "valeus": []}]}, ["mine: sweep.1.", "missing"]),
        (
            {
                "sweep": [{"axis": "p", "values": [{"label": "x", "set": {"run.periodd": 1}}]}],
                "table": [],
                "claim": [],
                "figure": {"series": ["p"], "panel": [PANEL]},
            },
            ["mine: p = x", "run.periodd: unknown key", "did you mean 'period'?"],
        ),
        (
            {
                "sweep": [{"axis": "p", "values": [{"label": "x", "set": {"alpha": 1}}]}],
                "table": [],
                "claim": [],
                "figure": {"series": ["p"], "panel": [PANEL]},
            },
            ["alpha", "section.key"],
        ),
        ({"omit": [{"alhpa": "small"}]}, ["omit 1", "'alhpa' is not an axis", "did you mean 'alpha'?"]),
        ({"omit": [{"alpha": "smal"}]}, ["omit 1.alpha", "'smal' is not a label", "did you mean 'small'?"]),
        (
            {"figure": {"series": ["alpha"], "panel": [{**PANEL, "y": "train_los"}]}},
            ["panel 1.y", "did you mean 'train_loss'?"],
        ),
        ({"figure": {"series": ["alpha"], "panel": [{**PANEL, "kind": "trace"}]}}, ["panel 1.kind", "trace = true"]),
        (
            {"figure": {"series": ["alpha"], "panel": [{**PANEL, "kind": "bars"}]}},
            ["figure.panel.1.kind", "'bars' given", "'points'"],
        ),
        (
            {"figure": {"series": ["alpha"], "panel": [PANEL], "columns": 0}},
            ["mine: figure.columns: 0 given; it must be a number ≥ 1"],
        ),
        ({"table": [{"title": "t", "rows": ["alpha"]}]}, ["table 1", "must have lines"]),
        (
            {"table": [{**small()["table"][0], "paper": [["T0 = 1", "1.00±0.10"]]}]},
            ["table 1.paper", "has 2 entries; it must have 3"],
        ),
        (
            {"table": [{**small()["table"][0], "paper": [["T0 = 1", "1.00+0.10", "1"]]}]},
            ["table 1.paper", "'1.00+0.10' given"],
        ),
        (
            {"table": [{**small()["table"][0], "gaps_to": {"period": "T0 = 3"}}]},
            ["table 1.gaps_to.period", "'T0 = 3' is not a label"],
        ),
        (
            {"table": [{**small()["table"][0], "gaps_to": {"alpha": "small"}}]},
            ["table 1.gaps_to", "must name one row, by 'period'"],
        ),
        (
            {"claim": [{**CLAIM, "check": "orderd"}]},
            ["claim 1.check", "'orderd' is not a check", "did you mean 'ordered'?"],
        ),
        (
            {"claim": [{**CLAIM, "check": {"ordered": {"measure": "train_loss", "axis": "alpha"}}}]},
            ["direction: missing"],
        ),
        (
            {"claim": [{**CLAIM, "check": {"ordered": {**CLAIM["check"]["ordered"], "at": "finale"}}}]},
            ["at", "'finale' is not a statistic", "did you mean 'final'?"],
        ),
        (
            {"claim": [{**CLAIM, "check": {"ordered": {**CLAIM["check"]["ordered"], "measure": "loss"}}}]},
            ["claim 1.check.ordered.measure", "'loss' is not a measure"],
        ),
        (
            {"figure": {"series": ["alpha"], "panel": [PANEL]}},
            ["figure.panel 1.where", "several cells share one curve"],
        ),
        (
            {"table": [{"title": "t", "rows": ["alpha"], "measures": ["phi"]}]},
            ["table 1", "several cells", "name more axes"],
        ),
        ({"claim": [{**CLAIM, "each": []}]}, ["claim 1: axis: 'alpha' given", "differ in another axis too"]),
        (
            {"claim": [{**CLAIM, "check": {"bounded": {"measure": "phi"}}}]},
            ["claim 1", "has neither most nor least"],
        ),
        (
            {"claim": [{**CLAIM, "check": {"bounded": {"measure": "consensus_trace", "most": 1.0}}}]},
            ["claim 1.check.bounded.measure", "trace = true"],
        ),
        (
            {
                "claim": [
                    {
                        **CLAIM,
                        "check": {"number": {"measure": "phi", "cell": {"alpha": "small"}, "value": 1.0}},
                        "each": [],
                    }
                ]
            },
            ["claim 1: cell", "must be one cell, and 2 have"],
        ),
        ({"claim": [{**CLAIM, "each": ["periods"]}]}, ["claim 1.each", "did you mean 'period'?"]),
        (
            {
                "tune": [
                    {"where": {"alpha": "small"}, "grid": {"algorithm.gamma": [0.1, 2.0]}, "cell": {"period": "T0 = 1"}}
                ]
            },
            ["gamma", "2.0"],
        ),
        (
            {"tune": [{"where": {"alpha": "small"}, "grid": {"algorithm.gamma": [0.1, 0.2]}}]},
            ["tune 1.cell", "must select 1 of the cells", "not 2"],
        ),
        ({"tune": [{"where": {"alpha": "small"}, "grid": {"gamma": [0.1]}}]}, ["tune 1.grid.gamma", "section.key"]),
    ],
)
def test_errors_in_a_file_are_reported(changes: dict[str, Any], parts: list[str]) -> None:
    """One line with the key, the value, what is allowed and the nearest name; nothing is run."""
    message = error_message(**changes)
    for part in parts:
        assert part in message, message


def test_errors_on_the_command_line_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_experiment(tmp_path / "mine.toml", small())
    for arguments, part in (
        (("stepsiz",), "did you mean 'stepsize'?"),
        (("nowhere.toml",), "nowhere.toml: no such file"),
        (
            ("mine.toml", "--only", "alpa=small"),
            "--only: 'alpa' is not an axis; it can be 'period' or 'alpha'; did you",
        ),
        (("mine.toml", "--only", "alpha=smal"), "--only alpha: 'smal' is not a label"),
        (("mine.toml", "--only", "alpha=small", "--only", "large"), "no cell of 'mine' matches all of them"),
        (("mine.toml", "--seeds", "3"), "--seeds: 3 given; it must be from 1 to 2"),
        (("mine.toml", "--set", "run.stepz=1"), "run.stepz: unknown key"),
        (("mine.toml", "--set", "algorithm.alpha=0.3"), "would be the same; leave out what the sweep sets"),
        (("all", "--out", "x"), "--out: can only be used with one experiment"),
    ):
        result = cli("reproduce", *arguments)
        assert result.code == 2
        assert part in result.err, result.err
        assert len(result.err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]
    for option in ("--out", "--cache"):  # found before hours of work, not after
        result = cli("reproduce", "mine.toml", option, "mine.toml/x")
        assert result.code == 2
        assert result.err == f"error: {option} mine.toml/x: cannot be written to (Not a directory)\n"
        assert not list(tmp_path.rglob("history.csv"))
    (tmp_path / "broken.toml").write_text("title = ")
    assert "broken: is not valid TOML" in cli("reproduce", "broken.toml").err


@pytest.mark.slow
def test_foreign_files_and_other_results_are_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the user's files nor another experiment's results are overwritten, nor full results by --quick."""
    monkeypatch.chdir(tmp_path)
    write_experiment(tmp_path / "mine.toml", small())
    write_experiment(tmp_path / "other.toml", small(title="Other"))
    assert cli("reproduce", "mine.toml", "--out", "mine").code == 0
    files = tmp_path / "files"
    files.mkdir()
    (files / "runs.csv").write_text("mine")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for arguments, message in (
        (("mine.toml", "--out", "files"), "--out files: is not empty and does not contain results"),
        (("mine.toml", "--out", "."), "--out .: is not empty and does not contain results"),
        (("other.toml", "--out", "mine"), "--out mine: contains the results of another experiment ('Small')"),
        (("mine.toml", "--out", "mine", "--quick"), "--out mine: contains the results of the full experiment"),
    ):
        failed = cli("reproduce", *arguments)
        assert failed.code == 2
        assert failed.err.startswith(f"error: {message}")
        assert failed.err.count("\n") == 1
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    (tmp_path / "within" / "cache").mkdir(parents=True)  # as a stopped call leaves it
    assert cli("reproduce", "mine.toml", "--out", "within", "--cache", "within/cache").code == 0
    (tmp_path / "mine" / "runs.csv").unlink()  # as if it had been killed there
    assert cli("reproduce", "mine.toml", "--out", "mine").code == 0
    assert (tmp_path / "mine" / "runs.csv").read_bytes() == before[tmp_path / "mine" / "runs.csv"]


@pytest.mark.slow
def test_a_panel_whose_measure_only_some_cells_evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--only` of a cell without the costly measures is allowed: cells of earlier calls stay in the results."""
    monkeypatch.chdir(tmp_path)
    table = small(figure={"series": ["period", "alpha"], "panel": [{"title": "G", "y": "stationarity/n"}]})
    values = table["sweep"][1]["values"]
    values[0]["set"]["metrics.costly_every"] = 4
    write_experiment(tmp_path / "mine.toml", table)
    assert cli("reproduce", "mine.toml", "--only", "alpha=large", "--out", "mine").code == 0
    del values[0]["set"]["metrics.costly_every"]
    write_experiment(tmp_path / "mine.toml", table)
    assert "'stationarity/n' given, but no cell evaluates it" in cli("reproduce", "mine.toml", "--out", "other").err
