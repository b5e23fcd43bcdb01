"""`compare` ranks only what can be ranked, and `run` reports a run that ended badly."""

import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest

from depositum.errors import ConfigError
from depositum.runs import ResolvedConfig, load
from depositum.tuning import Tuned
from tests.support.small_runs import SIXTH_POWER, cli, train, write_config


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return write_config(
        tmp_path / "c.toml",
        run={"period": 1},
        override={"smooth": {"problem": {"beta": 0.0}}, "fedmid": {"algorithm": {"alpha": 1e38}}},
    )


def settings(*given: str) -> list[str]:
    return [f"--set={setting}" for setting in given]


def test_methods_are_compared_by_problem_and_stepsize(config: Path) -> None:
    """A smooth method solves another problem, and a diverged one is not ranked, whatever their accuracies.

    Fails if all are in one ranking, or if the table is silent about α, η and β.
    """
    result = cli("compare", config, "--methods", "d-psgd,depositum,fedmid,prox-dasa,gut", "--out", "all")
    assert result.code == 0, result.err
    first, _, rest = result.out.partition("another problem: no regularizer, β = 0")
    assert "problem: l1, β = 0.001" in first
    assert "α = 0.1" in first
    assert "η = 0.1" in first
    assert "α = 0.05" not in first
    apart, _, diverged = rest.partition("diverged, not ranked")
    assert "d-psgd" in apart
    assert "gut" in apart
    assert "α = 0.05" in apart
    assert "fedmid" not in first + apart
    assert "α = 1e+38" in diverged
    assert "seed 0 diverged" in diverged
    assert "fedmid: seed 0 diverged" in result.err


def test_methods_that_do_not_support_the_configuration_are_left_out_and_reported(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`compare CONFIG.toml` alone ended in an error about a method that the user had not named."""
    monkeypatch.setattr("depositum.cli.compare.ALGORITHMS", ["depositum", "d-psgd", "sppdm"])
    monkeypatch.setattr("depositum.cli.compare.selected_methods", lambda *_: ["depositum", "d-psgd", "sppdm"])
    plain = write_config(config.with_name("plain.toml"), run={"steps": 2})
    result = cli("compare", plain, "--out", "all")
    assert result.code == 0, result.err
    assert "not run, since they do not support this problem.regularizer: d-psgd\n" in result.err
    assert "not run, since they do not support this run.period: sppdm\n" in result.err
    assert cli("compare", plain, "--methods", "d-psgd", "--out", "one").code == 2
    wrong = cli("compare", plain, "--out", "two", "--set=problem.clients=0")
    assert (wrong.code, wrong.err.startswith("error: problem.clients")) == (2, True)


def test_folders_are_compared_by_their_configurations(config: Path) -> None:
    train(config, Path("a"))
    train(config, Path("b"), overrides=("problem.beta=0.0", "algorithm.alpha=0.2"))
    result = cli("compare", "a", "b")
    assert result.code == 0, result.err
    assert result.out.index("problem: l1, β = 0.001") < result.out.index("another problem: no regularizer, β = 0")
    assert "α = 0.2" in result.out
    Path("b/config.toml").unlink()
    assert "problem not known (no config.toml)" in cli("compare", "a", "b", "--force").out


def test_a_folder_in_which_a_seed_diverged_is_not_ranked(config: Path) -> None:
    """Its checkpoint says so, not its history, which ends with finite values."""
    train(config, Path("a"))
    train(config, Path("b"), overrides=("algorithm.alpha=1e38",))
    result = cli("compare", "a", "b")
    assert "diverged, not ranked" in result.out
    shutil.copy("a/history.csv", "b/history.csv")
    Path("b/state.safetensors").write_bytes(b"damaged")
    Path("b/state.previous.safetensors").unlink(missing_ok=True)
    result = cli("compare", "a", "b", "--force")
    assert result.code == 0
    assert "whether seeds diverged is not known" in result.err


def test_a_run_that_ends_worse_than_it_began_says_so(config: Path) -> None:
    """A table of final measures alone looks like success."""
    bad = cli("run", config, "--out", "bad", *settings("algorithm.alpha=1e4"))
    assert bad.code == 0
    (line,) = bad.err.splitlines()
    assert line.startswith("warning: this run ended worse than it began: φ rose from ")
    assert line.endswith("try a smaller algorithm.alpha, or `depositum tune`")
    assert cli("run", config, "--out", "good").err == ""
    compared = cli("compare", "good", "bad")
    assert "! bad ended worse than it began: φ rose from " in compared.out
    assert "bad !" in compared.out


def test_some_diverged_seeds_of_several_are_an_error(config: Path) -> None:
    """The table has the other seeds alone: the last finite values of a diverged one are not a result."""
    np.savez("line.npz", x=np.linspace(-1, 1, 12)[:, None], y=np.zeros(12))
    Path("sixth_power.py").write_text(SIXTH_POWER)
    problem = (
        "problem.dataset=line.npz",
        "problem.partition=iid",
        "problem.model=sixth_power:power",
        "problem.beta=0.0",
    )
    result = cli("run", config, "--out", "out", *settings(*problem, "algorithm.alpha=0.01", "run.seeds=[0, 1, 2, 3]"))
    assert result.code == 2
    error = result.err.splitlines()[-1]
    (seeds,) = [line for line in result.out.splitlines() if "│ seeds" in line]
    count, _, diverged = seeds.split("│")[2].strip().partition(" (seed")
    assert 1 <= int(count) <= 3
    assert diverged.endswith(" diverged)")
    assert error.startswith(f"error: algorithm.alpha = 0.01: {4 - int(count)} of 4 seeds: seed ")
    assert len(error) <= 300
    (loss,) = [line for line in result.out.splitlines() if "train loss" in line]
    assert "0.0000" in loss


def test_run_and_compare_print_the_same_number_for_a_measure(config: Path) -> None:
    """`zeros 0.00` against `sparsity 0.50 %`."""
    strong = settings("problem.beta=0.05")
    lines = cli("run", config, "--out", "r", *strong).out.splitlines()
    (row,) = [line for line in lines if "sparsity %" in line]
    number = row.split()[4]
    assert float(number) > 1
    for name in "abcdef":
        shutil.copytree("r", name)
    ranking = cli("compare", *"abcdef")
    assert all(f" {number} " in line for line in ranking.out.splitlines() if line[1:2] in set("abcdef"))
    assert "sparsity" in ranking.out


@pytest.mark.slow
def test_every_method_gets_its_own_best_stepsize(config: Path) -> None:
    """By its own name for it; stored in its folder, shown in the table, and used again by the same command."""
    methods = ("--methods", "depositum,prox-dasa,d-psgd")
    command = ("compare", config, *methods, "--tune", "--out", "t", *settings("run.steps=40"))
    result = cli(*command)
    assert result.code == 0, result.err
    chosen = {}
    for name, key in (("depositum", "alpha"), ("prox-dasa", "eta"), ("d-psgd", "alpha")):
        tuning = tomllib.loads(Path("t", name, "tuning.toml").read_text())
        chosen[name] = tuning["best"]["algorithm"][key]
        assert load(Path("t", name, "config.toml")).table["algorithm"][key] == chosen[name]
        symbol = {"alpha": "α", "eta": "η"}[key]
        assert f"{symbol} = {chosen[name]:g}" in result.out
        assert f"{name}: chosen: algorithm.{key} = " in result.err
    assert "another problem: no regularizer, β = 0" in result.out
    assert "chosen on held-out data: t/METHOD/tuning.toml" in result.out
    again = cli(*command)
    assert (again.code, again.out) == (0, result.out)
    assert "chosen:" not in again.err


def test_a_method_without_a_stable_stepsize_does_not_stop_the_others(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(spec: ResolvedConfig, folder: Path, **_: object) -> Tuned:
        if spec.algorithm.name == "fedmid":
            raise ConfigError("algorithm.alpha", "every value diverges")
        return Tuned(spec)

    monkeypatch.setattr("depositum.cli.compare.tuned", refuse)
    result = cli("compare", config, "--methods", "fedmid,depositum", "--out", "t", *settings("run.steps=2"))
    assert result.code == 0
    assert "fedmid is left out: algorithm.alpha: every value diverges" in result.err
    assert cli("compare", config, "--methods", "fedmid", "--out", "u").code == 2


def test_tuning_is_for_configurations(config: Path) -> None:
    train(config, Path("a"), overrides=("run.steps=2",))
    assert "--tune: the option given; it can only be used with CONFIG.toml" in cli("compare", "a", "--tune").err
