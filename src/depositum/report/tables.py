"""Tables for the terminal: the end of a run, and runs side by side."""

from collections.abc import Iterator, Mapping

import pandas as pd
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
    ("test_accuracy", "test accuracy", "percent"),
    ("consensus_x", "consensus", "{:.2e}"),
    ("stationarity", "‖G‖²", "{:.2e}"),
    ("sparsity", "sparsity", "percent"),
    ("seconds", "time", "seconds"),
)


def final_values(frame: pd.DataFrame) -> pd.DataFrame:
    """The last record of every seed."""
    return frame.sort_values("iteration").groupby("seed").tail(1)


def summaries(runs: Mapping[str, pd.DataFrame], width: int) -> Iterator[Table]:
    """Summaries of any number of runs, as many side by side as can be read at this width."""
    names, together = list(runs), max(1, (width - 18) // 15)
    for first in range(0, len(names), together):
        yield summary({name: runs[name] for name in names[first : first + together]})


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
        return f"{100 * mean:.2f} %" + (f" ± {100 * std:.2f}" if std > 0 else "")
    if form == "bytes":
        return size(mean)
    if form == "seconds":
        return duration(mean)
    return form.format(mean) + (f" ± {form.format(std)}" if std > 0 else "")


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
