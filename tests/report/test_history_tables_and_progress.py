"""Tables of final measures, and progress output."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from depositum.report.compared_runs import ComparedRun, grouped_by_problem
from depositum.report.history_tables import RANKING, comparison_table, format_measure
from depositum.report.progress import ProgressBar, SweepProgress, _format_records
from depositum.report.units import format_bytes, format_duration
from tests.support.small_histories import history
from tests.support.small_runs import train, write_config

# Tables


def rendered(runs: dict[str, pd.DataFrame], width: int = 80) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width)
    compared = [ComparedRun(name, frame) for name, frame in runs.items()]
    console.print(comparison_table(grouped_by_problem(compared), width))
    return out.getvalue()


def test_summary_shows_the_last_record_of_each_seed() -> None:
    """Mean ± sample standard deviation of (1, 2, 3)·41: 82 ± 41; a seed that ended early counts too."""
    frame = history()
    text = rendered({"run": frame})
    assert "82.0000 ± 41.0000" in text
    ended = frame[(frame.seed < 2) | (frame.iteration <= 10)]  # the third seed's last value is 3·11 = 33
    assert f"{np.mean([41, 82, 33]):.4f} ± {np.std([41, 82, 33], ddof=1):.4f}" in rendered({"run": ended})


def test_summary_omits_measures_without_values() -> None:
    text = rendered({"run": history()})
    assert "test accuracy" in text
    assert "test loss" not in text


@pytest.mark.parametrize("width", [40, 48, 60, 72, 80, 120])
@pytest.mark.parametrize("runs", [1, 2, 4, 9])
def test_summary_fits_a_terminal(runs: int, width: int) -> None:
    """No line is wider than the terminal, and no name or number is broken over two lines."""
    text = rendered({f"run-{k}": history(scale=1.0 + k) for k in range(runs)}, width)
    assert max(map(len, text.splitlines())) <= width
    for k in range(runs):
        assert f"run-{k}" in text
        assert f"{82 * (1.0 + k):.4f}" in text


def test_narrow_summaries_are_stacked_with_the_best_first() -> None:
    text = rendered({f"run-{k}": history(scale=k) for k in (1.0, 3.0, 2.0)}, width=40)
    assert [line.split()[2] for line in text.splitlines() if line.startswith("┃")] == ["run-3.0", "run-2.0", "run-1.0"]
    assert text.count("test accuracy %") == 3


def test_every_table_shows_the_same_number_for_a_measure() -> None:
    """A ranking showed 0.5 % of zeros as 0.00, under another heading than the table of one run."""
    frame = history(seeds=1, points=1)
    frame["sparsity"], frame["consensus_x"], frame["train_loss"] = 0.005, 0.0123456, 0.123456
    alone, ranked = rendered({"run": frame}), rendered({f"run-{k}": frame for k in range(9)}, width=120)
    for shown in ("0.50", "1.2e-02", "0.1235"):
        assert shown in alone
        assert shown in ranked
    assert "sparsity %" in alone
    assert "sparsity\n" not in alone
    assert "sparsity" in RANKING


def test_user_defined_measures_are_shown() -> None:
    frame = history(seeds=1)
    frame["f1"] = 0.25
    text = rendered({"a": frame, "b": history(seeds=1)})
    (line,) = [line for line in text.splitlines() if "f1" in line]
    assert line.split()[3:] == ["0.2500", "│", "–", "│"]


def test_names_are_not_markup() -> None:
    """Rich would remove text that looks like its markup."""
    assert "a[bold]b" in rendered({"a[bold]b": history()})


def test_measures_bytes_and_durations_are_formatted() -> None:
    assert format_measure(pd.Series([0.5]), "percent") == "50.00"
    assert format_measure(pd.Series([0.5, 0.7]), "percent") == "60.00 ± 14.14"
    assert format_measure(pd.Series([0.1 + 0.2, 0.3, 0.3]), "percent") == "30.00"
    assert format_measure(pd.Series([np.nan]), "{:.4f}") == "–"
    assert format_measure(pd.Series([1.0, np.nan]), "{:.2f}") == "1.00"
    assert format_measure(pd.Series([1.0, 3.0]), "{:.2f}", spread=False) == "2.00"
    assert format_measure(pd.Series([1e24]), "{:.4f}") == "1.0e+24"
    assert [format_bytes(b) for b in (0, 1023, 1024, 5 * 1024**3, 3 * 1024**5)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 GiB",
        "3072.0 TiB",
    ]
    assert [format_duration(s) for s in (1.26, 59.94, 59.96, 61, 3600, 7384)] == [
        "1.3 s",
        "59.9 s",
        "1 min 0 s",
        "1 min 1 s",
        "1 h 0 min",
        "2 h 3 min",
    ]


# Progress


@pytest.mark.slow
def test_progress_without_a_terminal(tmp_path: Path) -> None:
    """At most one plain line per evaluation, and none in a short run."""
    config = write_config(tmp_path / "c.toml", run={"seeds": [0, 1]})
    out = io.StringIO()
    result, _ = train(config, tmp_path / "a", ProgressBar(Console(file=out, width=80), quiet_seconds=0.0))
    lines = out.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == [f"{t}/20" for t in (0, 4, 8, 12, 16, 20)]
    last = result.history.frame.query("iteration == 20")
    assert f"loss {last.train_loss.mean():.4f}  accuracy {last.test_accuracy.mean():.2%}" in lines[-1]
    assert lines[-1].endswith("0.0 s left")
    assert "\x1b" not in out.getvalue()
    quiet = io.StringIO()
    train(config, tmp_path / "b", ProgressBar(Console(file=quiet, width=80)))
    assert quiet.getvalue() == ""


def test_compilation_is_announced_once() -> None:
    """A minute without output looks like a hanging program; two kinds of step give one line."""
    out = io.StringIO()
    progress = ProgressBar(Console(file=out, width=80))
    loop: Any = None  # not used without a terminal
    for _ in range(2):
        progress.on_compile(loop)
    assert out.getvalue() == "compiling the iterations, up to a minute\n"


def test_progress_on_a_terminal(tmp_path: Path) -> None:
    """The bar reaches the end, is removed, and the cursor is visible again."""
    config = write_config(tmp_path / "c.toml")
    out = io.StringIO()
    train(config, tmp_path / "a", ProgressBar(Console(file=out, width=80, force_terminal=True)))
    assert "20/20" in out.getvalue()
    assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l")


def test_progress_of_a_sweep() -> None:
    """A line when a group starts, with the completed share; a group that ended early counts as complete."""
    out = io.StringIO()
    sweep = SweepProgress(Console(file=out, width=80), quiet_seconds=0.0)
    sweep.begin("mine, sweep", 100.0)
    sweep.group("digits linear", 2, 40.0)
    sweep.advance(10.0)
    sweep.advance(10.0)
    sweep.group("digits mlp", 1, 60.0)
    sweep.advance(1000.0)
    sweep.end()
    lines = out.getvalue().splitlines()
    assert lines[0] == "mine, sweep: digits linear, 2 cells: 0% done"
    assert [line.split(": ")[2].split(" ")[0] for line in lines] == ["0%", "10%", "20%", "40%", "100%"]
    assert "left" in lines[1]


def test_progress_of_a_sweep_on_a_terminal() -> None:
    """The bar is removed, and the cursor is visible again."""
    out = io.StringIO()
    sweep = SweepProgress(Console(file=out, width=80, force_terminal=True))
    sweep.begin("mine", 2.0)
    sweep.group("digits linear", 1, 2.0)
    sweep.advance(2.0)
    sweep.end()
    assert "digits linear" in out.getvalue()
    assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l")


def test_progress_shows_user_defined_measures() -> None:
    records: list[dict[str, object]] = [{"seed": s, "trial": s, "train_loss": 1.0, "f1": 0.5 + s} for s in (0, 1)]
    assert _format_records([*records, {"seed": 2, "trial": 2, "train_loss": 1.0}]) == "loss 1.0000  f1 1.0000"
