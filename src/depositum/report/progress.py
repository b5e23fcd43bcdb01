"""Progress of a run, or of a sweep: a bar where there is a terminal, a line now and then where there is none."""

import time

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
from depositum.report.tables import duration


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f} it/s" if task.speed else "")


class ProgressBar(Callback):
    """Shows iterations, rate, time left and the latest measures.

    Without a terminal it prints a line at evaluations, at most one every `quiet_seconds`.
    """

    def __init__(self, console: Console | None = None, quiet_seconds: float = 10.0) -> None:
        self.console = console or Console(stderr=True)
        self.quiet_seconds = quiet_seconds
        self._said = 0.0
        self._latest, self._compiling = "", False
        self._bar: Progress | None = None

    def on_start(self, loop: Loop) -> None:
        self._began, self._first = time.perf_counter(), loop.t
        self._said = self._began
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                _Rate(),
                TimeRemainingColumn(),
                console=self.console,
                transient=True,
            )
            self._task = self._bar.add_task("training", total=loop.steps, completed=loop.t)
            self._bar.start()

    def on_compile(self, loop: Loop) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description="compiling")
        elif not self._compiling:
            self._compiling = True  # one kind of step after another
            self.console.print("compiling the iterations, up to a minute", highlight=False)

    def on_progress(self, loop: Loop) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=loop.t, description=self._latest or "training")

    def on_evaluation(self, loop: Loop, records: list[dict[str, object]]) -> None:
        self._latest = _measures(records)
        if self._bar is not None:
            self._bar.update(self._task, description=self._latest)
        elif time.perf_counter() - self._said > self.quiet_seconds:
            self._said = time.perf_counter()
            done = loop.t - self._first
            rate = done / (self._said - self._began)
            left = (loop.steps - loop.t) / rate if rate else 0.0
            self.console.print(
                f"{loop.t}/{loop.steps}  {self._latest}  {rate:.1f} it/s  {duration(left)} left",
                highlight=False,
                soft_wrap=True,
            )

    def on_divergence(self, loop: Loop, divergence: Divergence) -> None:
        self.console.print(str(divergence), markup=False, highlight=False, soft_wrap=True)

    def on_end(self, loop: Loop) -> None:
        if self._bar is not None:
            self._bar.stop()


class SweepProgress:
    """Shows how far a sweep is, and the time left, at the pace it has had so far.

    Without a terminal it prints a line when a group of cells begins, and at most one every `quiet_seconds` after.
    """

    def __init__(self, console: Console | None = None, quiet_seconds: float = 20.0) -> None:
        self.console = console or Console(stderr=True)
        self.quiet_seconds = quiet_seconds
        self.callback: Callback = _Reporter(self)
        self._bar: Progress | None = None
        self._work = self._before = self._done = self._group_work = 0.0
        self._title = self._name = ""

    def begin(self, title: str, work: float) -> None:
        """There is so much to do: iterations of rows."""
        self._title, self._work = title, work
        self._before = self._done = self._group_work = 0.0
        self._began = self._said = time.perf_counter()
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(),
                console=self.console, transient=True,
            )  # fmt: skip
            self._task = self._bar.add_task(title, total=work)
            self._bar.start()

    def group(self, name: str, cells: int, work: float) -> None:
        """The next group of cells, with so much of the work, begins; the one before is done."""
        self._before += self._group_work
        self._done, self._group_work = 0.0, work
        self._name = f"{name}, {cells} cell{'s' * (cells != 1)}"
        if self._bar is not None:
            self._bar.update(self._task, description=f"{self._title}: {self._name}", completed=self._before)
        else:
            self._line()

    def advance(self, work: float) -> None:
        """So much more of the group's work is done."""
        self._done = min(self._done + work, self._group_work)
        if self._bar is not None:
            self._bar.update(self._task, completed=self._before + self._done)
        elif time.perf_counter() - self._said > self.quiet_seconds:
            self._line()

    def say(self, line: str) -> None:
        """Print a line for a person."""
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def end(self) -> None:
        """All is done, or was stopped."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _line(self) -> None:
        self._said = time.perf_counter()
        done = (self._before + self._done) / self._work if self._work else 1.0
        left = f", about {duration((self._said - self._began) * (1 - done) / done)} left" if done else ""
        self.say(f"{self._title}: {self._name}: {done:.0%} done{left}")


class _Reporter(Callback):
    """Tells a sweep what its loops have done."""

    def __init__(self, sweep: SweepProgress) -> None:
        self._sweep, self._t = sweep, 0

    def on_start(self, loop: Loop) -> None:
        self._t = loop.t
        if loop.t:  # what an earlier sitting has done
            self._sweep.advance(float(loop.t * loop.engine.oracle.rows))

    def on_progress(self, loop: Loop) -> None:
        self._sweep.advance(float((loop.t - self._t) * loop.engine.oracle.rows))
        self._t = loop.t


def _measures(records: list[dict[str, object]]) -> str:
    def mean(name: str) -> float | None:
        values = [v for v in (r.get(name) for r in records) if isinstance(v, float) and v == v]
        return sum(values) / len(values) if values else None

    loss, accuracy = mean("train_loss"), mean("test_accuracy")
    parts = [f"loss {loss:.4f}" if loss is not None else "", f"accuracy {accuracy:.2%}" if accuracy is not None else ""]
    return "  ".join(part for part in parts if part)
