"""Progress of a run: a bar where there is a terminal, a line now and then where there is none."""

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
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
        self._latest = ""
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

    def on_progress(self, loop: Loop) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=loop.t)

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


def _measures(records: list[dict[str, object]]) -> str:
    def mean(name: str) -> float | None:
        values = [v for v in (r.get(name) for r in records) if isinstance(v, float) and v == v]
        return sum(values) / len(values) if values else None

    loss, accuracy = mean("train_loss"), mean("test_accuracy")
    parts = [f"loss {loss:.4f}" if loss is not None else "", f"accuracy {accuracy:.2%}" if accuracy is not None else ""]
    return "  ".join(part for part in parts if part)
