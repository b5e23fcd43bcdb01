"""`alpha = "auto"` in runs: chosen once, stored in the folder, and taken from there ever after."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import depositum as dp
from depositum.errors import ConfigError, RunError
from depositum.runs import load, parse, resolve
from depositum.tuning import tuned
from tests.support.small_fits import client_pairs
from tests.support.small_runs import cli, files, write_config

AUTO = {"algorithm": {"alpha": "auto", "gamma": 0.5}, "run": {"steps": 8, "evaluate_every": 4}}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_config(tmp_path / "c.toml", **AUTO)


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call it to make every further search fail."""

    def forbid() -> None:
        def fail(*_: object, **__: object) -> None:
            raise AssertionError("a stepsize is searched for again")

        monkeypatch.setattr("depositum.tuning.auto_stepsize.tune", fail)

    return forbid


def test_a_run_tunes_first_and_stores_the_choice(config: Path, tmp_path: Path) -> None:
    """config.toml has the number, tuning.toml how it was found; the user is told what happens."""
    done = cli("run", config, "--out", "out")
    assert done.code == 0, done.err
    assert "algorithm.alpha = 'auto': searching for a stepsize" in done.err
    assert "margin: " in done.err
    assert "cost: " in done.err
    stored = tomllib.loads((tmp_path / "out" / "tuning.toml").read_text())
    alpha = tomllib.loads((tmp_path / "out" / "config.toml").read_text())["algorithm"]["alpha"]
    assert stored["best"]["algorithm"]["alpha"] == alpha
    assert stored["configuration"]["algorithm"]["alpha"] == "auto"
    assert {"tuning.toml", "tuning.csv", "tuning.png"} <= {*files(tmp_path / "out")}


def test_a_resumed_or_extended_run_does_not_tune_again(config: Path, no_search: Any) -> None:
    assert cli("run", config, "--out", "out").code == 0
    no_search()
    again = cli("run", config, "--out", "out")
    assert again.code == 0, again.err
    assert "as chosen before (tuning.toml)" in again.err
    longer = cli("run", config, "--out", "out", "--set", "run.steps=12")
    assert longer.code == 0, longer.err
    assert "resuming from iteration 8" in longer.err


def test_a_run_that_was_killed_after_tuning_does_not_tune_again(config: Path, tmp_path: Path, no_search: Any) -> None:
    """The folder then holds the files of tuning alone: it must not be refused as something else's."""
    tuned(load(config), tmp_path / "out")
    assert {*files(tmp_path / "out")} == {"tuning.toml", "tuning.csv", "tuning.png"}
    no_search()
    assert cli("run", config, "--out", "out").code == 0


@pytest.mark.parametrize("setting", ["run.steps=12", "run.period=2", "problem.beta=0.1", "algorithm.gamma=0.6"])
def test_a_choice_for_another_configuration_is_refused(config: Path, setting: str) -> None:
    assert cli("tune", config, "--out", "out", "--seeds", 2).code == 0
    before = files(Path("out"))
    done = cli("run", config, "--out", "out", "--set", setting)
    assert done.code == 2
    key = setting.partition("=")[0]
    assert re.fullmatch(rf"error: --out out: its stepsize was tuned for another run \({key} is .*\n", done.err)
    assert files(Path("out")) == before


def test_a_run_with_a_number_is_not_replaced(config: Path) -> None:
    """The folder of a run at α = 0.1 is not tuned in."""
    assert cli("run", config, "--out", "out", "--set", "algorithm.alpha=0.1").code == 0
    before = files(Path("out"))
    done = cli("run", config, "--out", "out")
    assert done.code == 2
    assert "holds another run (algorithm.alpha is 0.1 there and 'auto' here)" in done.err
    assert files(Path("out")) == before


@pytest.mark.parametrize("content", ["", "best = 3", "[best.algorithm]\nalpha = 1.0", "\x00", "best = ["])
def test_a_damaged_result_is_one_line(config: Path, content: str) -> None:
    Path("out").mkdir()
    (Path("out") / "tuning.toml").write_text(content)
    with pytest.raises(RunError, match="is not the result of tuning"):
        tuned(load(config), Path("out"))


def test_tune_from_the_command_line(config: Path) -> None:
    """A table of candidates, the choice, the margin, the cost, and the command that uses it."""
    done = cli("tune", config, "--seeds", 2)
    assert done.code == 0, done.err
    assert re.search(r"^chosen: algorithm.alpha = [\d.e-]+$", done.out, re.MULTILINE)
    assert re.search(r"^margin: (no instability was seen|unstable from)", done.out, re.MULTILINE)
    assert re.search(r"^cost: [\d.]+ times the run \(2 seeds\)$", done.out, re.MULTILINE)
    assert re.search(r"^to use it: depositum run .*c.toml --set algorithm.alpha=[\d.e-]+$", done.out, re.MULTILINE)
    assert "held-out loss" in " ".join(done.out.split())
    assert not Path("runs").exists()


def test_beta_against_sparsity_from_the_command_line(config: Path) -> None:
    """One row for each β, with the sparsity and the held-out accuracy of its best stepsize."""
    done = cli("tune", config, "--over", "problem.beta=0.0,0.01,0.1", "--over", "alpha=0.1,0.3", "--seeds", 2)
    assert done.code == 0, done.err
    assert "sparsity" in done.out
    assert "the sparsest model whose held-out loss is within one standard deviation" in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--over", "gamma"], "--over: 'gamma' given; it must be key=value,value"),
        (
            ["--over", "gama=0.5"],
            "over: 'gama' cannot be varied; .*did you mean 'gamma'",
        ),
        (["--over", "gamma=2.0"], "algorithm.gamma: 2.0 given; it must lie in"),
        (["--over", "problem.beta=-1"], "problem.beta: -1.* given; it must be a number ≥ 0"),
        (["--over", "run.period=0"], "run.period: 0 given"),
        (["--seeds", "0"], "seeds: 0 given"),
        (["--holdout", "1.5"], "holdout: 1.5 given; it must be a number between 0 and 1"),
        (["--set", "run.steps=0"], "run.steps: 0 given"),
        (["--set", "algorithm.gamma=auto"], "algorithm.gamma: 'auto' given; it must be a number"),
        (["--set", "algorithm.alpha={cosine={start='auto',steps=3}}"], "algorithm.alpha.cosine.start: 'auto' given"),
        (["--out", "."], "--out .: exists and is not an empty folder"),
    ],
)
def test_wrong_options_of_tune_are_one_line(config: Path, arguments: list[str], message: str) -> None:
    done = cli("tune", config, *arguments)
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert re.search(message, done.err), done.err
    assert len(done.err) <= 310


def test_processes_do_not_search(config: Path) -> None:
    with pytest.raises(ConfigError, match="algorithm.alpha: 'auto' given, but processes do not search for a stepsize"):
        resolve(parse(tomllib.loads(config.read_text())), config.parent, held=lambda n: range(n))


# In Python


def small_fit(**settings: Any) -> dp.FitResult:
    torch.manual_seed(0)
    arguments = {"steps": 8, "evaluate_every": 4, "progress": False, "device": "cpu", **settings}
    return dp.fit(torch.nn.Linear(5, 3), client_pairs(), **arguments)


def test_fit_with_auto_trains_with_the_chosen_stepsize(tmp_path: Path, no_search: Any) -> None:
    result = small_fit(algorithm=dp.Depositum(alpha="auto"), out=tmp_path / "out")
    assert result.tuning is not None
    alpha = result.tuning.best["alpha"]
    assert tomllib.loads((tmp_path / "out" / "config.toml").read_text())["algorithm"]["alpha"] == alpha
    same = small_fit(algorithm=dp.Depositum(alpha=alpha))
    assert torch.equal(result.state["x"], same.state["x"])
    no_search()
    longer = small_fit(algorithm={"depositum": {"alpha": "auto"}}, out=tmp_path / "out", steps=12)
    assert longer.tuning is None
    assert longer.iterations == 12


def test_what_tune_has_found_is_used_by_fit(tmp_path: Path, no_search: Any) -> None:
    torch.manual_seed(0)
    settings = {"steps": 8, "evaluate_every": 4, "progress": False, "device": "cpu"}
    found = dp.tune(torch.nn.Linear(5, 3), client_pairs(), out=tmp_path / "out", **settings)
    no_search()
    result = small_fit(algorithm="depositum", out=tmp_path / "other")
    assert result.tuning is None
    result = small_fit(algorithm=dp.Depositum(alpha="auto"), out=tmp_path / "out")
    stored = tomllib.loads((tmp_path / "out" / "config.toml").read_text())
    assert stored["algorithm"]["alpha"] == found.best["alpha"]
