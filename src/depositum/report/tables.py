"""Tables for the terminal: the end of a run, and runs side by side."""

from collections.abc import Mapping

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

#: Measures in a summary: column, heading, how it is written.
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


#: Measures in a line of a ranking.
RANKING = (
    ("test_accuracy", "accuracy %", "percent"),
    ("train_loss", "loss", "mean {:.4f}"),
    ("consensus_x", "consensus", "mean {:.1e}"),
    ("sparsity", "zeros", "mean {:.2f}"),
    ("phases", "phases", "{:.0f}"),
    ("bytes_sent", "sent", "bytes"),
)
#: The columns that a line of a ranking needs, with room for a name.
LINE = 80


def final_values(frame: pd.DataFrame) -> pd.DataFrame:
    """The last record of every seed."""
    return frame.sort_values("iteration").groupby("seed").tail(1)


def comparison(runs: Mapping[str, pd.DataFrame], width: int) -> Table | Group:
    """Final measures of any number of runs, in what can be read at this width.

    Side by side; or else a line each, in a ranking; or else one below the other, in the same order.
    """
    if 18 + 15 * len(runs) <= width or len(runs) == 1:
        return summary(runs)
    if width >= LINE:
        return ranking(runs)
    return Group(*(summary({name: runs[name]}) for name in _best_first(runs)))


def ranking(runs: Mapping[str, pd.DataFrame]) -> Table:
    """A line per run, the best test accuracy first (or the lowest training loss, where nothing was tested)."""
    last = {name: final_values(runs[name]) for name in _best_first(runs)}
    shown = [entry for entry in RANKING if any(frame[entry[0]].notna().any() for frame in last.values())]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("run", overflow="fold")
    for _, heading, _ in shown:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, frame in last.items():
        table.add_row(Text(name), *(cell(frame[column], form) for column, _, form in shown))
    return table


def _best_first(runs: Mapping[str, pd.DataFrame]) -> list[str]:
    def order(name: str) -> tuple[float, float]:
        last = final_values(runs[name])
        return -last["test_accuracy"].fillna(0.0).mean(), last["train_loss"].mean()

    return sorted(runs, key=order)


def summary(runs: Mapping[str, pd.DataFrame]) -> Table:
    """Final measures of named runs, mean ± sample standard deviation over seeds."""
    last = {name: final_values(frame) for name, frame in runs.items()}
    shown = [entry for entry in SUMMARY if any(frame[entry[0]].notna().any() for frame in last.values())]
    table = Table()
    table.add_column("")
    for name in last:
        table.add_column(Text(name), justify="right", overflow="fold")
    table.add_row("seeds", *(str(len(frame)) for frame in last.values()))
    for column, heading, form in shown:
        table.add_row(heading, *(cell(frame[column], form) for frame in last.values()))
    return table


def cell(values: pd.Series, form: str) -> str:
    """Mean ± standard deviation of a few values, in a measure's own form."""
    values = values.dropna().astype(float)
    if values.empty:
        return "–"
    mean, std = values.mean(), values.std() if len(values) > 1 else 0.0
    if form == "percent":
        return f"{100 * mean:.2f}" + (f" ± {100 * std:.2f}" if std > 0 else "")
    if form == "bytes":
        return size(mean)
    if form == "seconds":
        return duration(mean)
    alone, form = form.startswith("mean "), form.removeprefix("mean ")
    if form == "{:.4f}" and mean >= 1e5:  # a loss on its way to infinity
        form = "{:.1e}"
    return form.format(mean) + (f" ± {form.format(std)}" if std > 0 and not alone else "")


def size(count: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def duration(seconds: float) -> str:
    """Seconds as a person reads them."""
    if seconds < 59.95:  # from there on it would be written 60.0
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
