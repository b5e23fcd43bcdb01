"""Tables of final measures for the terminal: one run, or several compared."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from depositum.metrics import COLUMNS
from depositum.report.compared_runs import ComparedRun, RunGroup, notes, stepsizes
from depositum.report.units import format_bytes, format_duration

if TYPE_CHECKING:
    import pandas as pd


class MeasureFormat(NamedTuple):
    """How every table shows a measure; shares are percentages."""

    heading: str
    form: str


FORMATS = {
    "iteration": MeasureFormat("iterations", "{:.0f}"),
    "phases": MeasureFormat("phases", "{:.0f}"),
    "bytes_sent": MeasureFormat("sent / client", "bytes"),
    "train_loss": MeasureFormat("train loss", "{:.4f}"),
    "phi": MeasureFormat("φ", "{:.4f}"),
    "test_loss": MeasureFormat("test loss", "{:.4f}"),
    "test_accuracy": MeasureFormat("test accuracy %", "percent"),
    "consensus_x": MeasureFormat("consensus", "{:.1e}"),
    "stationarity": MeasureFormat("‖G‖²", "{:.1e}"),
    "sparsity": MeasureFormat("sparsity %", "percent"),
    "seconds": MeasureFormat("time", "seconds"),
}
#: Measures of a ranking, which has one line per run.
RANKING = ("test_accuracy", "test_loss", "train_loss", "consensus_x", "sparsity", "phases", "bytes_sent")
#: Those of them that are left out, in this order, where the terminal is too narrow.
LEFT_OUT = ("phases", "consensus_x", "bytes_sent")
#: What runs are ranked by: the first measure that all of them have; whether the highest value is the best.
RANKED_BY = {"test_accuracy": True, "test_loss": False, "phi": False, "train_loss": False}
#: Terminal width below which a ranking is not readable.
RANKING_WIDTH = 80


def final_values(frame: "pd.DataFrame") -> "pd.DataFrame":
    """The last record of every seed."""
    return frame.sort_values("iteration").groupby("seed").tail(1)


def comparison_table(groups: Sequence[RunGroup], width: int, show_stepsizes: bool = False) -> Group:
    """Final measures of any number of runs, in the layout that fits a terminal of `width` columns, and notes on them.

    Runs of one group are side by side if all runs would fit; otherwise a ranking with one line per run; otherwise one
    table below the other. Stepsizes are shown where they differ, or with `show_stepsizes`.
    """
    runs = [run for group in groups for run in group.runs]
    differing = stepsizes(runs, show_stepsizes)
    parts: list[RenderableType] = []
    shown = sum(not run.diverged for run in runs)
    for group in groups:
        title, side_by_side = group.title, shown == 1 or 18 + 15 * shown <= width
        tables: list[Table]
        if group.kind == "diverged":
            tables = [_diverged_table(group, differing)]
        elif side_by_side:
            tables = [summary_table(group.runs, differing)]
        else:
            measure = ranked_by(group.runs)
            order = "" if measure is None else f"by {FORMATS[measure].heading.removesuffix(' %')}"
            title = ", ".join(part for part in (title, order) if part)
            if width >= RANKING_WIDTH:
                tables = [ranking_table(group.runs, differing, width)]
            else:
                tables = [summary_table([run], differing) for run in best_first(group.runs)]
        # Not the title of a table, which is broken into lines as narrow as the table.
        parts += [*([Text(title, style="bold")] if title else []), *tables]
    return Group(*parts, *(Text(note, style="yellow" if note.startswith("!") else "") for note in notes(runs)))


def ranking_table(runs: Sequence[ComparedRun], differing: Mapping[str, str], width: int) -> Table:
    """One line per run, the best first."""
    columns = [column for column in RANKING if _has_values(runs, column)]
    if "test_accuracy" in columns and "test_loss" in columns:
        columns.remove("test_loss")
    table = _ranking_table(runs, differing, columns)
    for column in LEFT_OUT:
        if Console(width=10_000).measure(table).maximum > width and column in columns:
            columns.remove(column)
            table = _ranking_table(runs, differing, columns)
    return table


def _ranking_table(runs: Sequence[ComparedRun], differing: Mapping[str, str], columns: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("run", overflow="fold")
    if differing:
        table.add_column("stepsize", no_wrap=True)
    for column in columns:
        table.add_column(FORMATS[column].heading.replace(" ", "\n", 1), justify="right", no_wrap=True)
    for run in best_first(runs):
        last = final_values(run.history)
        own = (differing[run.name],) if differing else ()
        shown = (format_measure(last[c], FORMATS[c].form, spread=c == "test_accuracy") for c in columns)
        table.add_row(_name(run), *map(Text, own), *shown)
    return table


def summary_table(runs: Sequence[ComparedRun], differing: Mapping[str, str] | None = None) -> Table:
    """One column per run: final measures, mean ± sample standard deviation over seeds."""
    last = {run.name: final_values(run.history) for run in runs}
    table = Table()
    table.add_column("")
    for run in runs:
        table.add_column(_name(run), justify="right", overflow="fold")
    if differing:
        table.add_row("stepsize", *(Text(differing[run.name]) for run in runs))
    table.add_row("seeds", *(f"{len(last[run.name])}{f' ({run.diverged})' if run.diverged else ''}" for run in runs))
    for column, (heading, form) in all_formats(last.values()).items():
        if _has_values(runs, column):
            values = [frame[column] if column in frame else frame["seed"].iloc[:0] for frame in last.values()]
            table.add_row(heading, *(format_measure(value, form) for value in values))
    return table


def ranked_by(runs: Sequence[ComparedRun]) -> str | None:
    """The measure that runs are ranked by: the first that all of them have; None if there is not any."""
    last = [final_values(run.history) for run in runs]
    return next((column for column in RANKED_BY if all(frame[column].notna().all() for frame in last)), None)


def best_first(runs: Sequence[ComparedRun]) -> list[ComparedRun]:
    """Runs in the order of their rank; as given, if they have no measure in common."""
    measure = ranked_by(runs)
    if measure is None:
        return list(runs)
    sign = -1 if RANKED_BY[measure] else 1
    return sorted(runs, key=lambda run: sign * float(final_values(run.history)[measure].mean()))


def format_measure(values: "pd.Series", form: str, spread: bool = True) -> str:
    """Mean ± standard deviation of a measure's values over seeds `[S]`, in the given format.

    `spread` is whether to show the standard deviation; bytes and durations are always means.
    """
    values = values.dropna().astype(float)
    if values.empty:
        return "–"
    mean, std = values.mean(), values.std() if spread and len(values) > 1 else 0.0
    if form == "bytes":
        return format_bytes(mean)
    if form == "seconds":
        return format_duration(mean)
    if form == "percent":
        mean, std, form = 100 * mean, 100 * std, "{:.2f}"
    elif form == "{:.4f}" and abs(mean) >= 1e5:  # a diverging loss
        form = "{:.1e}"
    # Equal values have a standard deviation of nothing but rounding.
    return form.format(mean) + (f" ± {form.format(std)}" if std > 1e-12 * abs(mean) else "")


def _diverged_table(group: RunGroup, differing: Mapping[str, str]) -> Table:
    """Where each run diverged: its last finite measures say nothing about where it was going."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_header=False)
    table.add_column("run", no_wrap=True)
    if differing:
        table.add_column("stepsize", no_wrap=True)
    table.add_column("where", overflow="fold")
    for run in group.runs:
        table.add_row(_name(run), *map(Text, (differing[run.name],) if differing else ()), Text(run.diverged))
    return table


def all_formats(frames: "Iterable[pd.DataFrame]") -> dict[str, MeasureFormat]:
    """The formats of all columns to show: measures that are not the package's come after its own."""
    own = dict.fromkeys(column for frame in frames for column in frame.columns if column not in (*COLUMNS, "trial"))
    return {**FORMATS, **{column: MeasureFormat(column, "{:.4f}") for column in own}}


def _has_values(runs: Sequence[ComparedRun], column: str) -> bool:
    return any(column in run.history and bool(final_values(run.history)[column].notna().any()) for run in runs)


def _name(run: ComparedRun) -> Text:
    """The name of a run, marked if it ended worse than it began."""
    return Text(f"{run.name} !", style="yellow") if run.worse else Text(run.name)
