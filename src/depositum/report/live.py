"""One steady screen in a terminal: how every run stands, what it waits for, and how long it will take.

A `LiveView` is the screen; each of its runs is a callback on a loop. It uses the terminal's alternate screen, like an
editor: nothing scrolls, and what was on the terminal before is back at the end. Lines that are printed meanwhile are
shown at the foot, and printed again when the screen is left, so that none is lost.
"""

import io
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar as Bar
from rich.table import Table
from rich.text import Text

from depositum.engines import Callback, Divergence, Loop
from depositum.report.history_tables import FORMATS
from depositum.report.progress import SweepProgress
from depositum.report.units import format_duration

#: Heights of a sparkline's columns.
BLOCKS = "▁▂▃▄▅▆▇█"
#: Widths of the terminal below which a table leaves out its sparklines, its bars, and the consensus error.
SPARK_WIDTH, BAR_WIDTH, CONSENSUS_WIDTH = 118, 76, 60
#: Columns between two columns of the table.
GAP = 2
#: Columns of a sparkline, lines that are remembered, and those of them that are shown.
SPARK_COLUMNS, REMEMBERED, SHOWN_LINES = 20, 1000, 4
#: Seconds over which the rate is measured, and between two drawings of the screen.
RATE_SECONDS, REFRESH = 10.0, 4
#: Seconds without progress after which the peers that are waited for are named.
LATE_SECONDS = 1.0
#: What a run is judged by, the first that it has.
QUALITY = ("test_accuracy", "test_loss")
#: How lines of some states are shown.
STYLES = {"waiting": "dim", "done": "green", "diverged": "red", "partly diverged": "yellow", "stopped": "yellow"}
COMPILING = "compiling the iterations"
#: What is printed where no screen can be drawn.
NO_TERMINAL = "--live needs a terminal; printing plain lines instead"


@contextmanager
def screen(title: str, live: bool) -> Iterator["LiveView | None"]:
    """A screen, if `live` asks for one and standard output is a terminal that can show it; else None."""
    console = Console()
    if live and console.is_terminal and not console.is_dumb_terminal:
        with LiveView(title, console) as view:
            yield view
        return
    if live:
        print(NO_TERMINAL, file=sys.stderr)
    yield None


def sparkline(values: Sequence[float], width: int = SPARK_COLUMNS) -> str:
    """A curve as blocks of text, the latest value last; values that are not finite are gaps.

    >>> sparkline([3, 2, 1, 0])
    '█▆▃▁'
    >>> sparkline([1.0, 1.0]), sparkline([])
    ('▁▁', '')
    """
    if len(values) > width:  # the mean of each share of the values
        edges = [round(k * len(values) / width) for k in range(width + 1)]
        parts = [values[a:b] for a, b in pairwise(edges)]
        values = [sum(part) / len(part) for part in parts]
    finite = [value for value in values if isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((v - low) * scale)] if isfinite(v) else " " for v in values)


@dataclass
class Row:
    """One line of the table: a seed, a run or a group of runs, with its values at the evaluations so far."""

    name: str
    state: str = "waiting"
    iteration: int = 0
    steps: int = 0
    consensus: float | None = None
    losses: list[float] = field(default_factory=list)
    qualities: list[float] = field(default_factory=list)
    quality: str = ""


class LiveRun(Callback):
    """One run of a `LiveView`: a line for each of its seeds, or one line of their means."""

    def __init__(self, view: "LiveView", name: str, by_seed: bool, quiet: bool) -> None:
        self._view, self._name, self._by_seed, self._quiet = view, name, by_seed, quiet
        self._rows: dict[int, Row] = {}
        self._mean: Row | None = None
        #: Whether the bar of the screen is of this run's iterations, and not of a sweep's work.
        self._has_bar = False

    def on_start(self, loop: Loop) -> None:
        self.attach(loop)
        self._has_bar = True
        self._view.measure(loop.t, loop.steps, restart=True)

    def attach(self, loop: Loop) -> None:
        """Show a loop that starts in the lines of this run."""
        if not self._by_seed:
            self._mean = self._view.row(self._name)
        # Of a run of one configuration, labels are seeds.
        for label in loop.engine.problem.labels if self._by_seed else ():
            self._rows.setdefault(label, self._view.row(f"seed {label}"))
        for row in self._all:
            row.state, row.steps, row.iteration = "training", loop.steps, loop.t
        self._add(loop.history.records)
        self._view.start(loop)

    def on_compile(self, loop: Loop) -> None:
        self._view.activity(COMPILING)

    def on_progress(self, loop: Loop) -> None:
        for row in self._all:
            if row.state == "training":
                row.iteration = loop.t
        if self._has_bar:
            # The rate is that of iterations; what compiling took is not part of it.
            self._view.measure(loop.t, loop.steps, restart=self._view.compiling)
        self._view.activity("training")

    def on_evaluate(self, loop: Loop) -> None:
        self._view.activity("evaluating")

    def on_evaluation(self, loop: Loop, records: list[dict[str, object]]) -> None:
        self._add(records)
        self._view.activity("training")

    def on_divergence(self, loop: Loop, divergence: Divergence) -> None:
        row = self._rows.get(divergence.seed)
        if row is not None:
            row.state = "diverged"
        elif self._mean is not None and not self._quiet:
            self._mean.state = "diverging"
        if not self._quiet:
            self._view.say(str(divergence))

    def on_checkpoint(self, loop: Loop) -> None:
        self._view.activity("training")

    def on_end(self, loop: Loop) -> None:
        done = loop.t >= loop.steps
        for row in self._all:
            if row.state == "training":
                row.state = "done" if done else "stopped"
            elif row.state == "diverging":
                row.state = "diverged" if not loop.snapshot.live else "partly diverged"
        self._view.activity("" if done else "stopped")

    @property
    def _all(self) -> list[Row]:
        return [*self._rows.values(), *([self._mean] if self._mean else [])]

    def _add(self, records: Sequence[dict[str, object]]) -> None:
        """Add evaluations, those of one iteration after another."""
        by_iteration: dict[object, list[dict[str, object]]] = {}
        for record in records:
            by_iteration.setdefault(record["iteration"], []).append(record)
        for group in by_iteration.values():
            if self._mean is not None:
                _append(self._mean, group)
            for record in group:
                row = self._rows.get(int(str(record.get("trial", record["seed"]))))
                if row is not None:
                    _append(row, [record])


def _append(row: Row, records: Sequence[dict[str, object]]) -> None:
    """Add the mean over some records to a line."""

    def mean(name: str) -> float | None:
        values = [v for v in (record.get(name) for record in records) if isinstance(v, float) and v == v]
        return sum(values) / len(values) if values else None

    row.quality = row.quality or next((name for name in QUALITY if mean(name) is not None), "")
    for values, name in ((row.losses, "train_loss"), (row.qualities, row.quality)):
        value = mean(name) if name else None
        if value is not None:
            values.append(value)
    consensus = mean("consensus_x")
    row.consensus = row.consensus if consensus is None else consensus


class LiveView:
    """The screen: a bar, a line for each run or seed, and what is being waited for.

    Use it as a context manager, around everything that runs.

    Parameters
    ----------
    title
        The first line of the screen.
    console
        Where to draw (default: standard output).
    """

    def __init__(self, title: str, console: Console | None = None) -> None:
        self.title = title
        self.console = console or Console()
        self.rows: list[Row] = []
        self._lines: deque[str] = deque(maxlen=REMEMBERED)
        self._activity, self._since = "reading the configuration and data", time.monotonic()
        self._loop: Loop | None = None
        self._points: deque[tuple[float, float]] = deque()
        self._done = self._total = 0.0
        #: Whether work is not counted in iterations, which says nothing to the user.
        self.share_only = False
        self._stack = ExitStack()

    def __enter__(self) -> "LiveView":
        self._stderr = sys.stderr
        # Warnings and messages must not be drawn over the screen.
        self._stack.enter_context(redirect_stderr(_Lines(self)))
        live = Live(
            console=self.console,
            screen=True,
            refresh_per_second=REFRESH,
            get_renderable=self.render,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._stack.enter_context(live)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()
        self._loop = None
        for line in self._lines:
            print(line, file=self._stderr)
        self._lines.clear()

    def run(self, name: str = "", *, by_seed: bool = False, quiet: bool = False) -> LiveRun:
        """A callback for the next run, which has a line of its own, or one for each seed.

        `quiet`: its divergences are results, as of candidates for a stepsize, and are not reported.
        """
        self.activity("reading the configuration and data")
        return LiveRun(self, name, by_seed, quiet)

    def wait_for(self, names: Iterable[str]) -> None:
        """Show runs that have not begun."""
        for name in names:
            self.row(name)

    def row(self, name: str) -> Row:
        """The line of this name."""
        found = next((row for row in self.rows if row.name == name), None)
        if found is None:
            found = Row(name)
            self.rows.append(found)
        return found

    def say(self, line: str) -> None:
        """Show a line at the foot of the screen, and print it when the screen is left."""
        self._lines.append(line)

    def activity(self, what: str) -> None:
        """What is being done from now on."""
        if what != self._activity:
            self._activity, self._since = what, time.monotonic()

    @property
    def compiling(self) -> bool:
        """Whether iterations are being compiled."""
        return self._activity == COMPILING

    def start(self, loop: Loop) -> None:
        """A loop starts, which is asked for whom it waits."""
        self._loop = loop
        self.activity("training")

    def measure(self, done: float, total: float, restart: bool = False) -> None:
        """Set how much is done, of how much."""
        now = time.monotonic()
        if restart:
            self._points.clear()
        self._done, self._total = done, total
        self._points.append((now, done))
        while len(self._points) > 2 and self._points[1][0] < now - RATE_SECONDS:
            self._points.popleft()

    @property
    def rate(self) -> float:
        """What is done per second, of late; 0 where that is not known."""
        points = list(self._points)
        if len(points) < 2 or points[-1][0] <= points[0][0]:
            return 0.0
        return (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])

    def waits_for(self) -> str:
        """What the run is waiting for: a peer, compilation, an evaluation."""
        now = time.monotonic()
        # Every iteration waits for its messages; what the user should know is who is late.
        late = bool(self._points) and now - self._points[-1][0] >= LATE_SECONDS
        awaited = self._loop.engine.awaited if self._loop is not None and late else []
        seconds = now - self._since
        lasting = f" ({format_duration(seconds)})" if seconds >= 1 else ""
        what = self._activity
        if awaited and what:
            what = f"waiting for {awaited[0] if len(awaited) == 1 else f'{len(awaited)} processes'}"
        elif what != "training":
            what += lasting
        stopping = self._loop is not None and self._loop.stop_requested and self._activity
        return f"stopping as soon as possible; now {what}" if stopping else what

    def render(self) -> RenderableType:
        """The screen as it is now; called by the thread that draws it."""
        width, height = self.console.size
        shown = list(self._lines)[-SHOWN_LINES:]
        parts: list[RenderableType] = [Text(self.title, style="bold", no_wrap=True, overflow="ellipsis")]
        parts.append(self._header(width))
        free = max(1, height - 6 - len(shown))
        if self.rows:
            parts.append(self._table(width, free))
        status = self.waits_for()
        parts.append(Text(status, style="cyan", no_wrap=True, overflow="ellipsis"))
        parts += [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in shown]
        return Group(*parts)

    def _header(self, width: int) -> RenderableType:
        total, done, rate = self._total, self._done, self.rate
        if not total:
            return Text("")
        pieces = [f"{done / total:.0%}"] if self.share_only else [f"{done:.0f}/{total:.0f}", f"{done / total:.0%}"]
        if rate and done < total:
            pieces += [] if self.share_only else [f"{rate:.1f} it/s"]
            pieces.append(f"{format_duration((total - done) / rate)} left")
        text = "  ".join(pieces)
        room = width - len(text) - 3
        if room < 8:
            return Text(text, no_wrap=True, overflow="ellipsis")
        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_row(Bar(total=total, completed=done, width=min(room, 50)), Text(text, no_wrap=True))
        return line

    def _table(self, width: int, free: int) -> RenderableType:
        rows = list(self.rows)
        quality = next((row.quality for row in rows if row.quality), "test_accuracy")
        name = FORMATS[quality].heading.removesuffix(" %")
        columns = [("loss", 8, "right"), (name, len(name), "right")]
        columns += [("consensus", 9, "right")] if width >= CONSENSUS_WIDTH else []
        if width >= SPARK_WIDTH:
            columns += [(f"{each} over time", max(SPARK_COLUMNS, len(each) + 10), "left") for each in ("loss", name)]
        columns += [("iterations", 12, "right")] if width >= BAR_WIDTH else []
        columns.append(("", max((len(row.state) for row in rows), default=0), "left"))
        # Names are cut where they do not fit, not numbers.
        room = max(7, width - sum(least + GAP for _, least, _ in columns) - GAP)
        table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False)
        table.add_column("", no_wrap=True, overflow="ellipsis", max_width=room)
        for heading, least, side in columns:
            table.add_column(heading, justify="right" if side == "right" else "left", no_wrap=True, min_width=least)
        visible = rows if len(rows) <= free else self._most_interesting(rows, free - 1)
        for row in visible:
            table.add_row(*self._cells(row, quality, width), style=STYLES.get(row.state, ""))
        hidden = len(rows) - len(visible)
        return Group(table, Text(f"… {hidden} more", style="dim")) if hidden else table

    @staticmethod
    def _most_interesting(rows: list[Row], count: int) -> list[Row]:
        """As many lines as fit, those that are being trained before the others, in their order."""
        active = [index for index, row in enumerate(rows) if row.state in ("training", "diverging", "diverged")]
        others = [index for index in reversed(range(len(rows))) if index not in set(active)]
        return [rows[index] for index in sorted([*active, *others][: max(1, count)])]

    def _cells(self, row: Row, quality: str, width: int) -> list[str]:
        cells = [row.name, f"{row.losses[-1]:.4f}" if row.losses else "–", _quality(row, quality)]
        if width >= CONSENSUS_WIDTH:
            cells.append("–" if row.consensus is None else f"{row.consensus:.1e}")
        if width >= SPARK_WIDTH:
            cells += [sparkline(row.losses), sparkline(row.qualities)]
        if width >= BAR_WIDTH:
            cells.append(f"{row.iteration}/{row.steps}" if row.steps else "–")
        return [*cells, row.state]


def _quality(row: Row, quality: str) -> str:
    if not row.qualities or row.quality != quality:
        return "–"
    return f"{row.qualities[-1]:.2%}" if quality == "test_accuracy" else f"{row.qualities[-1]:.4f}"


class LiveSweep(SweepProgress):
    """The progress of a sweep in a `LiveView`: a line for each group of cells, with the means over its cells."""

    def __init__(self, view: LiveView) -> None:
        super().__init__(view.console)
        self.view = view
        view.share_only = True
        self.callback = _GroupLoops(self)

    def begin(self, title: str, work: float) -> None:
        self._title, self._total = title, work
        self._earlier_groups = self._done = self._group_total = 0.0
        self.view.measure(0.0, work, restart=True)

    def group(self, name: str, cells: int, work: float) -> None:
        self._earlier_groups += self._group_total
        self._done, self._group_total = 0.0, work
        self.line = self.view.run(f"{self._title}: {name}, {cells} cell{'s' * (cells != 1)}", quiet=True)

    def advance(self, work: float) -> None:
        self._done = min(self._done + work, self._group_total)
        self.view.measure(self._earlier_groups + self._done, self._total)

    def message(self, line: str) -> None:
        self.view.say(line)

    def end(self) -> None:
        self.view.activity("")


class _GroupLoops(Callback):
    """Reports the loops of a sweep to the line of their group, and their progress to the sweep."""

    def __init__(self, sweep: LiveSweep) -> None:
        self._sweep, self._t = sweep, 0

    def on_start(self, loop: Loop) -> None:
        self._t = 0
        self._sweep.line.attach(loop)
        self._advance(loop)

    def on_compile(self, loop: Loop) -> None:
        self._sweep.line.on_compile(loop)

    def on_progress(self, loop: Loop) -> None:
        self._sweep.line.on_progress(loop)
        self._advance(loop)

    def on_evaluate(self, loop: Loop) -> None:
        self._sweep.line.on_evaluate(loop)

    def on_evaluation(self, loop: Loop, records: list[dict[str, object]]) -> None:
        self._sweep.line.on_evaluation(loop, records)

    def on_divergence(self, loop: Loop, divergence: Divergence) -> None:
        self._sweep.line.on_divergence(loop, divergence)

    def on_end(self, loop: Loop) -> None:
        self._sweep.line.on_end(loop)

    def _advance(self, loop: Loop) -> None:
        """Work is counted in iterations × rows; what was done before a resumption counts too."""
        self._sweep.advance(float((loop.t - self._t) * loop.engine.oracle.rows))
        self._t = loop.t


class _Lines(io.TextIOBase):
    """A stream whose lines are shown in a `LiveView`."""

    def __init__(self, view: LiveView) -> None:
        self._view, self._rest = view, ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if line.strip():
                self._view.say(line)
        return len(text)
