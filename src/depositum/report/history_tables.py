"""Tables of final measures for the terminal: one run, or several compared."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from depositum.report.units import format_bytes, format_duration

if TYPE_CHECKING:
    import pandas as pd

#: Measures of a summary: column of the history, heading, format.
SUMMARY = (
    ("iteration", "iterations", "{:.0f}"),
    ("phases", "phases", "{:.0f}"),
    ("bytes_sent", "sent / client", "bytes"),
    ("train_loss", "train loss", "{:.4f}"),
    ("phi", "φ", "{:.4f}"),
    ("test_loss", "test loss", "{:.4f}"),
    ("test_accuracy", "test accuracy %", "percent"),
    ("consensus_x", "consensus", "{:.2e}"),
    ("stationarity", "‖G‖²", "{:.2e}"),
    ("sparsity", "sparsity %", "percent"),
    ("seconds", "time", "seconds"),
)
#: Measures of a ranking, which has one line per run; `mean` leaves out the standard deviation.
RANKING = (
    ("test_accuracy", "accuracy %", "percent"),
    ("train_loss", "loss", "mean {:.4f}"),
    ("consensus_x", "consensus", "mean {:.1e}"),
    ("sparsity", "zeros", "mean {:.2f}"),
    ("phases", "phases", "{:.0f}"),
    ("bytes_sent", "sent", "bytes"),
)
#: Terminal width that a ranking needs, including the names of runs.
RANKING_WIDTH = 80


def final_values(frame: "pd.DataFrame") -> "pd.DataFrame":
    """The last record of every seed."""
    return frame.sort_values("iteration").groupby("seed").tail(1)


def comparison_table(runs: Mapping[str, "pd.DataFrame"], width: int) -> Table | Group:
    """Final measures of any number of named runs, in the layout that fits a terminal of `width` columns.

    Side by side if that fits; otherwise a ranking with one line per run; otherwise one table below the other.
    """
    if 18 + 15 * len(runs) <= width or len(runs) == 1:
        return summary_table(runs)
    if width >= RANKING_WIDTH:
        return ranking_table(runs)
    return Group(*(summary_table({name: runs[name]}) for name in _best_first(runs)))


def ranking_table(runs: Mapping[str, "pd.DataFrame"]) -> Table:
    """One line per run, the highest test accuracy first (or the lowest training loss, without test data)."""
    last = {name: final_values(runs[name]) for name in _best_first(runs)}
    shown = [entry for entry in RANKING if any(frame[entry[0]].notna().any() for frame in last.values())]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("run", overflow="fold")
    for _, heading, _ in shown:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, frame in last.items():
        table.add_row(Text(name), *(format_measure(frame[column], form) for column, _, form in shown))
    return table


def _best_first(runs: Mapping[str, "pd.DataFrame"]) -> list[str]:
    def order(name: str) -> tuple[float, float]:
        last = final_values(runs[name])
        return -last["test_accuracy"].fillna(0.0).mean(), last["train_loss"].mean()

    return sorted(runs, key=order)


def summary_table(runs: Mapping[str, "pd.DataFrame"]) -> Table:
    """One column per run: final measures, mean ± sample standard deviation over seeds."""
    last = {name: final_values(frame) for name, frame in runs.items()}
    shown = [entry for entry in SUMMARY if any(frame[entry[0]].notna().any() for frame in last.values())]
    table = Table()
    table.add_column("")
    for name in last:
        table.add_column(Text(name), justify="right", overflow="fold")
    table.add_row("seeds", *(str(len(frame)) for frame in last.values()))
    for column, heading, form in shown:
        table.add_row(heading, *(format_measure(frame[column], form) for frame in last.values()))
    return table


def format_measure(values: "pd.Series", form: str) -> str:
    """Mean ± standard deviation of a measure's values over seeds `[S]`, in the given format."""
    values = values.dropna().astype(float)
    if values.empty:
        return "–"
    mean, std = values.mean(), values.std() if len(values) > 1 else 0.0
    if form == "percent":
        return f"{100 * mean:.2f}" + (f" ± {100 * std:.2f}" if std > 0 else "")
    if form == "bytes":
        return format_bytes(mean)
    if form == "seconds":
        return format_duration(mean)
    mean_only, form = form.startswith("mean "), form.removeprefix("mean ")
    if form == "{:.4f}" and mean >= 1e5:  # a diverging loss
        form = "{:.1e}"
    return form.format(mean) + (f" ± {form.format(std)}" if std > 0 and not mean_only else "")
