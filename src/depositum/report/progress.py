"""Progress of a run or a sweep: a bar on a terminal or in a notebook, an occasional line elsewhere."""

import time
from html import escape
from importlib import import_module
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from depositum.engines import Callback, Divergence, Loop
from depositum.metrics import user_columns
from depositum.report.units import format_duration

#: Least time between two updates of a bar in a notebook.
NOTEBOOK_SECONDS = 0.2


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f} it/s" if task.speed else "")


class ProgressBar(Callback):
    """Shows iterations, rate, remaining time and the latest measures of a run.

    Parameters
    ----------
    console
        Where to print (default: standard error). In a notebook, the bar is in the output of the cell. If it is not a
        terminal, a line is printed at evaluations instead of a bar.
    quiet_seconds
        Least time between two such lines.
    """

    def __init__(self, console: Console | None = None, quiet_seconds: float = 10.0) -> None:
        self.console = console or Console(stderr=True)
        self.quiet_seconds = quiet_seconds
        self._last_line = 0.0
        self._latest, self._compiling = "", False
        self._bar: Progress | None = None
        self._cell: NotebookBar | None = None

    def on_start(self, loop: Loop) -> None:
        self._start_time, self._start_t = time.perf_counter(), loop.t
        self._last_line = self._start_time
        if self.console.is_jupyter:
            self._cell = NotebookBar()
            self._show_in_cell(loop, "training")
        elif self.console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                _RateColumn(),
                TimeRemainingColumn(),
                console=self.console,
                transient=True,
            )
            self._task = self._bar.add_task("training", total=loop.steps, completed=loop.t)
            self._bar.start()

    def on_compile(self, loop: Loop) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description="compiling")
        elif self._cell is not None:
            self._show_in_cell(loop, "compiling")
        elif not self._compiling:
            self._compiling = True  # each kind of step is compiled; one line is enough
            self.console.print("compiling the iterations, up to a minute", highlight=False)

    def on_progress(self, loop: Loop) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=loop.t, description=self._latest or "training")
        elif self._cell is not None and time.perf_counter() - self._last_line > NOTEBOOK_SECONDS:
            self._show_in_cell(loop, self._latest)

    def on_evaluation(self, loop: Loop, records: list[dict[str, object]]) -> None:
        self._latest = _format_records(records)
        if self._bar is not None:
            self._bar.update(self._task, description=self._latest)
        elif self._cell is not None:
            if time.perf_counter() - self._last_line > NOTEBOOK_SECONDS:
                self._show_in_cell(loop, self._latest)
        elif time.perf_counter() - self._last_line > self.quiet_seconds:
            self._last_line = time.perf_counter()
            self.console.print(
                f"{loop.t}/{loop.steps}  {self._latest}  {self._pace(loop)}", highlight=False, soft_wrap=True
            )

    def on_divergence(self, loop: Loop, divergence: Divergence) -> None:
        self.console.print(str(divergence), markup=False, highlight=False, soft_wrap=True)

    def on_end(self, loop: Loop) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._cell is not None:
            self._show_in_cell(loop, self._latest)
            self._cell = None

    def _pace(self, loop: Loop) -> str:
        """The rate so far, and the remaining time at this rate."""
        rate = (loop.t - self._start_t) / max(1e-9, time.perf_counter() - self._start_time)
        remaining = (loop.steps - loop.t) / rate if rate else 0.0
        return f"{rate:.1f} it/s  {format_duration(remaining)} left"

    def _show_in_cell(self, loop: Loop, text: str) -> None:
        assert self._cell is not None
        self._last_line = time.perf_counter()
        pace = self._pace(loop) if self._start_t < loop.t < loop.steps else ""
        self._cell.show(loop.t, loop.steps, f"{loop.t}/{loop.steps}  {text}  {pace}")


class NotebookBar:
    """A bar in the output of a notebook's cell, which is replaced, not repeated; it needs no widgets."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, done: int, total: int, text: str) -> None:
        """Show how much is done."""
        display = import_module("IPython.display")
        html = (
            f"<progress value='{done}' max='{max(1, total)}' style='width:18em'></progress> "
            f"<span style='font-family:monospace;white-space:pre-wrap'>{escape(text.rstrip())}</span>"
        )
        if self._handle is None:
            self._handle = display.display(display.HTML(html), display_id=True)
        else:
            self._handle.update(display.HTML(html))


class TuningProgress(ProgressBar):
    """Shows the progress of candidates that run side by side, without their divergences: those are results."""

    def on_divergence(self, loop: Loop, divergence: Divergence) -> None:
        pass


class SweepProgress:
    """Shows the completed share of a sweep, and an estimate of the remaining time.

    Work is counted in iterations × rows. Without a terminal, a line is printed when a group of cells starts, and at
    most one every `quiet_seconds` after that.

    Attributes
    ----------
    callback
        To be attached to every loop of the sweep: it reports the loop's progress here.
    """

    def __init__(self, console: Console | None = None, quiet_seconds: float = 20.0) -> None:
        self.console = console or Console(stderr=True)
        self.quiet_seconds = quiet_seconds
        self.callback: Callback = _LoopProgress(self)
        self._bar: Progress | None = None
        self._total = self._earlier_groups = self._done = self._group_total = 0.0
        self._title = self._group_name = ""

    def begin(self, title: str, work: float) -> None:
        """Start a sweep with this much work in total."""
        self._title, self._total = title, work
        self._earlier_groups = self._done = self._group_total = 0.0
        self._start_time = self._last_line = time.perf_counter()
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(),
                console=self.console, transient=True,
            )  # fmt: skip
            self._task = self._bar.add_task(title, total=work)
            self._bar.start()

    def group(self, name: str, cells: int, work: float) -> None:
        """Start the next group of cells, with this much work; the previous group is complete."""
        self._earlier_groups += self._group_total
        self._done, self._group_total = 0.0, work
        self._group_name = f"{name}, {cells} cell{'s' * (cells != 1)}"
        if self._bar is not None:
            description = f"{self._title}: {self._group_name}"
            self._bar.update(self._task, description=description, completed=self._earlier_groups)
        else:
            self._print_progress()

    def advance(self, work: float) -> None:
        """Add completed work of the current group."""
        self._done = min(self._done + work, self._group_total)
        if self._bar is not None:
            self._bar.update(self._task, completed=self._earlier_groups + self._done)
        elif time.perf_counter() - self._last_line > self.quiet_seconds:
            self._print_progress()

    def message(self, line: str) -> None:
        """Print a line for the user."""
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def end(self) -> None:
        """Remove the bar: the sweep is complete, or was stopped."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _print_progress(self) -> None:
        self._last_line = time.perf_counter()
        share = (self._earlier_groups + self._done) / self._total if self._total else 1.0
        elapsed = self._last_line - self._start_time
        remaining = f", about {format_duration(elapsed * (1 - share) / share)} left" if share else ""
        self.message(f"{self._title}: {self._group_name}: {share:.0%} done{remaining}")


class _LoopProgress(Callback):
    """Reports the progress of each loop of a sweep to its `SweepProgress`."""

    def __init__(self, sweep: SweepProgress) -> None:
        self._sweep, self._t = sweep, 0

    def on_start(self, loop: Loop) -> None:
        self._t = loop.t
        if loop.t:  # resumed: this work was done before
            self._sweep.advance(float(loop.t * loop.engine.oracle.rows))

    def on_progress(self, loop: Loop) -> None:
        self._sweep.advance(float((loop.t - self._t) * loop.engine.oracle.rows))
        self._t = loop.t


def _format_records(records: list[dict[str, object]]) -> str:
    """Mean loss, accuracy and user-defined measures over the seeds of one evaluation."""

    def mean(name: str) -> float | None:
        values = [v for v in (r.get(name) for r in records) if isinstance(v, float) and v == v]
        return sum(values) / len(values) if values else None

    loss, accuracy = mean("train_loss"), mean("test_accuracy")
    parts = [f"loss {loss:.4f}" if loss is not None else "", f"accuracy {accuracy:.2%}" if accuracy is not None else ""]
    parts += [f"{name} {mean(name):.4f}" for name in user_columns(records) if mean(name) is not None]
    return "  ".join(part for part in parts if part)
