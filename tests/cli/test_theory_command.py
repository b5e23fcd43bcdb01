"""`depositum theory`: what it says of a configuration, at any width of the terminal."""

from pathlib import Path

import pytest

from depositum.cli.theory import measure
from depositum.runs import load
from depositum.theory import conditions
from tests.support.small_runs import cli, command, write_config


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "80")
    return write_config(tmp_path / "c.toml")


def test_theory(config: Path) -> None:
    """A stepsize far too large is told the largest; with that stepsize all conditions hold."""
    result = cli("theory", config)
    assert result.code == 0
    assert "what would make each hold:" in result.out
    line = next(line for line in result.out.splitlines() if line.startswith("largest α"))
    alpha = float(line.split(": ")[1].split()[0])
    smaller = cli("theory", config, "--set", f"algorithm.alpha={alpha}")  # as it is printed
    assert smaller.code == 0
    assert "all conditions hold" in smaller.out
    assert "│ no" not in smaller.out
    assert max(map(len, (result.out + smaller.out).splitlines())) <= 80


@pytest.mark.parametrize("width", [30, 40, 60, 75, 76, 80])
def test_theory_in_a_narrow_terminal(config: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """Every condition keeps its numbers and its verdict, which is what the command is for."""
    checked = conditions(measure(load(config), config.parent).setting)
    monkeypatch.setenv("COLUMNS", str(width))
    lines = cli("theory", config).out.partition("the conditions of Theorem 1")[2].splitlines()
    rows = [line.strip("│").split("│") for line in lines if line.startswith("│")]
    verdicts = [row[-1].strip() for row in rows if row[-1].strip()]
    assert verdicts == ["yes" if condition.holds else "no" for condition in checked]
    assert set(verdicts) == {"yes", "no"}
    said = "".join("".join(row[:-1]) for row in rows).replace(" ", "")
    for condition in checked:
        assert condition.formula.replace(" ", "") in said
        assert f"{condition.slack:.3g}" in said
    assert max(len(line) for line in lines if line.startswith(("┏", "│"))) <= width


def test_theory_of_what_it_does_not_cover(config: Path) -> None:
    schedule = "algorithm.alpha={cosine={start=0.2, steps=20}}"
    result = cli("theory", config, "--set", schedule, "--set", "algorithm.start=local", "--smoothness", "2.5")
    assert result.code == 0
    assert "2.5  (given)" in result.out
    assert "0.2, 0.001, 0.5" in result.out  # the largest α of the schedule
    assert "note: the theorem is of a constant α" in result.out
    assert "note: the theorem is of start = 'average'; this configuration has 'local'" in result.out


@pytest.mark.parametrize(
    ("key", "of"), [("network.drop=0.5", "of all links together"), ("network.topology=one-peer-exponential", "mean")]
)
def test_theory_of_a_network_that_changes(config: Path, key: str, of: str) -> None:
    """Its λ is not that of any phase, so that nothing is proven: "all conditions hold" alone would be a lie."""
    result = cli("theory", config, "--set", key, "--set", "problem.clients=4", "--set", "algorithm.alpha=1e-9")
    assert result.code == 0, result.err
    assert "nothing above is proven of it" in result.out
    assert of in next(line for line in result.out.splitlines() if "spectral gap" in line)
    assert "nothing above" not in cli("theory", config, "--set", "algorithm.alpha=1e-9").out


def test_where_there_is_no_alpha(config: Path) -> None:
    """A terminal or a pipe that knows ASCII only gets "?" for what it lacks, and the answer all the same."""
    process = command("theory", config, "--smoothness", "2.5", PYTHONIOENCODING="ascii")
    said, error = process.communicate(timeout=120)
    assert (process.returncode, error) == (0, "")
    assert "2.5  (given)" in said
    assert "all conditions" in said or "what would make each hold:" in said


def test_theory_beyond_what_can_be_calculated(config: Path) -> None:
    """One line, and no half of an answer before it."""
    result = cli("theory", config, "--smoothness", "1e300")
    assert result.code == 2
    assert result.out == ""
    assert "--smoothness: L = 1e+300 is beyond what can be calculated with" in result.err


def test_theory_where_the_start_is_not_allowed(config: Path) -> None:
    """φ(x0) = ∞ outside an indicator's set: there is no bound, and none is made up."""
    result = cli("theory", config, "--set", "problem.regularizer={l2-ball=1e-3}")
    assert result.code == 0
    assert "∞  (h is infinite at x0)" in result.out
    assert "bound (T1i): none" in result.out


def the_schedule(out: str) -> tuple[dict[str, str], float]:
    """Corollary 1's schedule as it is printed, and its bound."""
    lines = out.splitlines()
    line = next(line for line in lines if line.startswith("Corollary 1's schedule: "))
    bound = float(next(line for line in lines if "(C1i)" in line).split(": ")[1])
    return dict(part.split(" = ") for part in line.split(": ")[1].split(", ")), bound


#: Where Corollary 1 is proven.
FEW = ("network.topology=complete", "run.period=1", "run.steps=60")


def test_the_schedule_can_be_copied(config: Path) -> None:
    """The momentum's condition is an equality on paper: rounded to the nearest, what is printed would break it."""
    for steps in range(20, 90, 5):
        own = [f"--set={setting}" for setting in (*FEW, f"run.steps={steps}")]
        schedule, _ = the_schedule(cli("theory", config, *own).out)
        copied = [f"--set=run.batch_size={schedule['batch_size']}"]
        copied += [f"--set=algorithm.{key}={schedule[key]}" for key in ("gamma", "alpha")]
        assert "all conditions hold" in cli("theory", config, *own, *copied).out, steps


def test_the_schedule_of_full_gradients_has_batches(config: Path) -> None:
    """Breaks if the σ² = 0 of full gradients is taken for that of the batches which Corollary 1 prescribes."""
    own = [f"--set={setting}" for setting in FEW]
    full = cli("theory", config, *own, "--set=run.batch_size=full")
    assert "T0, T + 1, B" in full.out
    assert "4, 1, 60, full" in full.out
    assert the_schedule(full.out) == the_schedule(cli("theory", config, *own).out)
    given = cli("theory", config, *own, "--set=run.batch_size=full", "--variance", "5.0")
    assert "0  (full gradients; of one sample 5  (given))" in given.out


def test_no_iterations_have_no_theory(config: Path) -> None:
    assert cli("theory", config, "--set=run.steps=0").err.startswith("error: run.steps: 0 given; theory speaks of one")
