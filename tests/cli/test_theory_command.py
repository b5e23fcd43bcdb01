"""`depositum theory`: its output for a configuration, at any width of the terminal."""

import re
from pathlib import Path

import pytest

from depositum.cli.theory import measure
from depositum.runs import load
from depositum.theory import Setting, conditions, practical_alphas
from tests.support.small_runs import cli, command, write_config


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "80")
    return write_config(tmp_path / "c.toml")


def test_the_printed_largest_stepsize_satisfies_all_conditions(config: Path) -> None:
    """For a stepsize that is far too large, the largest one is printed; with it all conditions hold."""
    result = cli("theory", config)
    assert result.code == 0
    assert "to satisfy each condition, use:" in result.out
    line = next(line for line in result.out.splitlines() if line.startswith("largest α"))
    alpha = float(line.split(": ")[1].split()[0])
    smaller = cli("theory", config, "--set", f"algorithm.alpha={alpha}")  # as printed
    assert smaller.code == 0
    assert "all conditions hold" in smaller.out
    assert "│ no" not in smaller.out
    assert max(map(len, (result.out + smaller.out).splitlines())) <= 80


def test_the_guarantee_is_called_a_worst_case_and_a_stepsize_to_try_is_printed(config: Path) -> None:
    """A user took the largest α that is proven for the one to use: 67 times as many steps, and a worse result."""
    result = cli("theory", config)
    setting = measure(load(config)).setting
    lines = result.out.splitlines()
    assert next(line for line in lines if line.startswith("largest α")).endswith("; worst case)")
    assert "worst-case guarantee, sufficient but not necessary" in result.out
    assert 'depositum tune CONFIG.toml, or algorithm.alpha = "auto"' in lines[-1]
    start, low, high = (float(number) for number in re.findall(r"\d\S*\d(?=[ .])", lines[-2]))
    assert 0.9 <= start * setting.L <= 1
    assert 0.27 <= low * setting.L <= 0.3
    assert 2.7 <= high * setting.L <= 3


def test_stepsizes_to_try_are_within_what_the_prox_admits() -> None:
    """MCP with βρ = 2: its prox is defined for α < 1/2 only."""
    common = {"n": 4, "lam": 0.5, "period": 1, "gamma": 0.5, "alpha": 0.1, "sigma2": 1.0, "batch_size": 1}
    setting = Setting(**common, beta=1.0, rho=2.0, L=0.1, steps=10, gap=1.0)
    assert practical_alphas(setting) == (0.25, 0.25, 0.25)


@pytest.mark.slow
@pytest.mark.parametrize("width", [30, 40, 60, 75, 76, 80])
def test_the_table_fits_a_narrow_terminal(config: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """Every condition is printed with its numbers and its verdict."""
    checked = conditions(measure(load(config)).setting)
    monkeypatch.setenv("COLUMNS", str(width))
    lines = cli("theory", config).out.partition("the conditions of Theorem 1")[2].splitlines()
    rows = [line.strip("│").split("│") for line in lines if line.startswith("│")]
    verdicts = [row[-1].strip() for row in rows if row[-1].strip()]
    assert verdicts == ["yes" if condition.holds else "no" for condition in checked]
    assert set(verdicts) == {"yes", "no"}
    printed = "".join("".join(row[:-1]) for row in rows).replace(" ", "")
    for condition in checked:
        assert condition.formula.replace(" ", "") in printed
        assert f"{condition.slack:.3g}" in printed
    assert max(len(line) for line in lines if line.startswith(("┏", "│"))) <= width


def test_parts_that_the_theorem_does_not_cover_are_noted(config: Path) -> None:
    schedule = "algorithm.alpha={cosine={start=0.2, steps=20}}"
    changes = (schedule, "algorithm.start=local", "network.channel=top-k")
    result = cli("theory", config, *(part for each in changes for part in ("--set", each)), "--smoothness", "2.5")
    assert result.code == 0
    assert "2.5  (given)" in result.out
    assert "0.2, 0.001, 0.5" in result.out  # the largest α of the schedule
    assert "note: the theorem assumes a constant α" in result.out
    assert "note: the theorem assumes start = 'average'; this configuration has 'local'" in result.out
    assert "nothing is proven for channel 'top-k'" in result.out


@pytest.mark.parametrize(
    ("key", "of"), [("network.drop=0.5", "of W with all links"), ("network.topology=one-peer-exponential", "mean W")]
)
def test_nothing_is_proven_for_a_time_varying_network(config: Path, key: str, of: str) -> None:
    """Its λ is not that of any phase: "all conditions hold" alone would be misleading."""
    result = cli("theory", config, "--set", key, "--set", "problem.clients=4", "--set", "algorithm.alpha=1e-9")
    assert result.code == 0, result.err
    assert "nothing above is proven for this time-varying network" in result.out
    assert of in next(line for line in result.out.splitlines() if "spectral gap" in line)
    assert "nothing above" not in cli("theory", config, "--set", "algorithm.alpha=1e-9").out


@pytest.mark.slow
def test_an_ascii_terminal_replaces_other_characters(config: Path) -> None:
    """Characters that an ASCII terminal or pipe lacks are printed as "?"."""
    process = command("theory", config, "--smoothness", "2.5", PYTHONIOENCODING="ascii")
    output, error = process.communicate(timeout=120)
    assert (process.returncode, error) == (0, "")
    assert "2.5  (given)" in output
    assert "all conditions" in output or "to satisfy each condition, use:" in output


def test_overflow_is_reported_in_one_line(config: Path) -> None:
    """Without partial output before it."""
    result = cli("theory", config, "--smoothness", "1e300")
    assert result.code == 2
    assert result.out == ""
    assert "--smoothness: L = 1e+300 is too large to compute with" in result.err


def test_an_infeasible_start_has_no_bound(config: Path) -> None:
    """φ(x0) = ∞ outside the set of an indicator."""
    result = cli("theory", config, "--set", "problem.regularizer={l2-ball=1e-3}")
    assert result.code == 0
    assert "∞  (h is infinite at x0)" in result.out
    assert "bound (T1i): none" in result.out


def printed_schedule(out: str) -> tuple[dict[str, str], float]:
    """The schedule of Corollary 1 as printed, and its bound."""
    lines = out.splitlines()
    line = next(line for line in lines if line.startswith("Corollary 1's schedule: "))
    bound = float(next(line for line in lines if "(C1i)" in line).split(": ")[1])
    return dict(part.split(" = ") for part in line.split(": ")[1].split(", ")), bound


#: A configuration to which Corollary 1 applies.
COVERED = ("network.topology=complete", "run.period=1", "run.steps=60")


@pytest.mark.slow
def test_the_printed_schedule_satisfies_all_conditions(config: Path) -> None:
    """The momentum condition is an equality in the paper: values rounded to the nearest would violate it."""
    for steps in range(20, 90, 5):
        options = [f"--set={setting}" for setting in (*COVERED, f"run.steps={steps}")]
        schedule, _ = printed_schedule(cli("theory", config, *options).out)
        copied = [f"--set=run.batch_size={schedule['batch_size']}"]
        copied += [f"--set=algorithm.{key}={schedule[key]}" for key in ("gamma", "alpha")]
        assert "all conditions hold" in cli("theory", config, *options, *copied).out, steps


def test_the_schedule_uses_the_variance_of_samples_with_full_gradients(config: Path) -> None:
    """Breaks if the σ² = 0 of full gradients is used for the mini-batches that Corollary 1 prescribes."""
    options = [f"--set={setting}" for setting in COVERED]
    full = cli("theory", config, *options, "--set=run.batch_size=full")
    assert "T0, T + 1, B" in full.out
    assert "4, 1, 60, full" in full.out
    assert printed_schedule(full.out) == printed_schedule(cli("theory", config, *options).out)
    given = cli("theory", config, *options, "--set=run.batch_size=full", "--variance", "5.0")
    assert "0  (full gradients; one sample: 5  (given))" in given.out


def test_zero_steps_are_rejected(config: Path) -> None:
    assert cli("theory", config, "--set=run.steps=0").err.startswith("error: run.steps: 0 given; the theory needs")
