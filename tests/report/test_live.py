"""The live view: what the screen shows at every size, in a real pseudo-terminal, and what happens without one."""

import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from depositum.engines.distributed.failure_detector import FailureDetector, Wait
from depositum.report.live import NO_TERMINAL, LiveView, screen, sparkline
from tests.support.small_runs import cli, write_config


class FakeLoop:
    """What a view reads of a loop."""

    def __init__(self, labels: tuple[int, ...] = (0, 1), steps: int = 100, awaited: tuple[str, ...] = ()) -> None:
        self.t, self.steps, self.stop_requested = 0, steps, False
        self.engine = self
        self.problem, self.history, self.snapshot = self, self, self
        self.labels, self.records, self.live, self.awaited = labels, [], list(labels), list(awaited)

    def evaluated(self, run: Any, t: int, **measures: float) -> None:
        """Report that iteration t was evaluated, with the same measures for every label."""
        self.t = t
        run.on_progress(self)
        run.on_evaluate(self)
        run.on_evaluation(self, [{"seed": label, "trial": label, "iteration": t, **measures} for label in self.labels])


def view_of(width: int, height: int = 24) -> LiveView:
    return LiveView("a run", Console(file=io.StringIO(), width=width, height=height, force_terminal=True))


def shown(view: LiveView) -> list[str]:
    """The lines of the screen."""
    console = Console(file=io.StringIO(), width=view.console.width, height=view.console.height, color_system=None)
    with console.capture() as capture:
        console.print(view.render())
    return capture.get().rstrip("\n").split("\n")


def trained(width: int, height: int = 24, labels: tuple[int, ...] = (0, 1)) -> LiveView:
    view, loop = view_of(width, height), FakeLoop(labels)
    run: Any = view.run(by_seed=True)
    run.on_start(loop)
    for t, loss in ((0, 2.0), (10, 1.0), (20, 0.5)):
        loop.evaluated(run, t, train_loss=loss, test_accuracy=1 - loss / 2, consensus_x=1e-3 / (1 + t))
    return view


def test_sparklines() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0, float("inf"), 2.0]) == "▁ █"
    assert sparkline([float("nan")]) == " "
    long = sparkline(list(range(1000)), width=8)
    assert long == "▁▂▃▄▅▆▇█"


def test_the_screen_shows_a_line_for_each_seed() -> None:
    lines = shown(trained(120))
    assert lines[0] == "a run"
    assert "20/100  20%" in lines[1]
    assert "it/s" in lines[1]
    assert "left" in lines[1]
    assert re.split(r"  +", lines[2].strip()) == [
        *("loss", "test accuracy", "consensus", "loss over time", "test accuracy over time", "iterations")
    ]
    assert re.split(r"  +", lines[3].strip()) == [
        *("seed 0", "0.5000", "75.00%", "4.8e-05", "█▃▁", "▁▆█", "20/100", "training")
    ]
    assert lines[4].startswith("seed 1")
    assert lines[5].strip() == "training"


@pytest.mark.parametrize("width", [20, 30, 45, 60, 80, 100, 200])
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    """Nothing wraps, so that the screen keeps its height; the loss is shown in any terminal of 40 columns."""
    view = trained(width)
    view.say("a long message " * 30)
    lines = shown(view)
    assert max(map(len, lines)) <= width
    assert len(lines) == 7, lines
    if width >= 40:
        assert any("0.5000" in line for line in lines)


def test_more_lines_than_fit_are_counted() -> None:
    lines = shown(trained(100, height=12, labels=tuple(range(40))))
    assert len(lines) <= 12
    assert any(re.fullmatch(r"… \d+ more", line.strip()) for line in lines)


def test_what_is_being_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data, compilation, an evaluation, a peer that is late; and that Ctrl-C has been noticed."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    view, loop = view_of(100), FakeLoop(awaited=("rank 1 (host a)",))
    run: Any = view.run()
    assert "reading the configuration and data" in view.waits_for()
    run.on_start(loop)
    assert view.waits_for() == "training"  # any iteration waits for its messages
    now = 2.0
    assert view.waits_for() == "waiting for rank 1 (host a)"
    loop.awaited = ["rank 1", "rank 2"]
    assert view.waits_for() == "waiting for 2 processes"
    loop.awaited = []
    assert view.waits_for() == "training"
    run.on_compile(loop)
    assert view.waits_for() == "compiling the iterations"
    now = 5.0
    assert view.waits_for() == "compiling the iterations (3.0 s)"
    run.on_progress(loop)
    run.on_evaluate(loop)
    assert view.waits_for() == "evaluating"
    loop.stop_requested = True
    assert view.waits_for() == "stopping as soon as possible; now evaluating"


def test_compiling_does_not_count_in_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute of it would make the remaining time wrong for as long."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    view, loop = view_of(100), FakeLoop()
    run: Any = view.run()
    run.on_start(loop)
    run.on_compile(loop)
    now, loop.t = 60.0, 10
    run.on_progress(loop)
    now, loop.t = 61.0, 30
    run.on_progress(loop)
    assert view.rate == 20.0


def test_a_failure_detector_says_whom_it_waits_for() -> None:
    detector = object.__new__(FailureDetector)
    detector._waiting = None
    assert detector.awaited == []
    detector._waiting = Wait(0.0, [2, 3])
    assert detector.awaited == [2, 3]


def test_methods_are_lines_of_one_table() -> None:
    """Those that wait, run, and are done; a method's line is the mean of its seeds."""
    view = view_of(100)
    view.wait_for(["first", "second"])
    loop, run = FakeLoop(steps=10), view.run("first")
    run.on_start(loop)  # type: ignore[arg-type]
    loop.evaluated(run, 10, train_loss=0.25)
    run.on_end(loop)  # type: ignore[arg-type]
    text = "\n".join(shown(view))
    assert re.search(r"first +0.2500 .* done", text)
    assert re.search(r"second +– .* waiting", text)


def test_what_is_printed_meanwhile_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    with LiveView("a run", Console(file=io.StringIO(), force_terminal=True, width=80)) as view:
        print("warning: something", file=sys.stderr)
        view.say("resuming from iteration 10")
        assert [line.strip() for line in shown(view)[-2:]] == ["warning: something", "resuming from iteration 10"]
    assert capsys.readouterr().err == "warning: something\nresuming from iteration 10\n"


def test_the_terminal_is_restored_after_an_error() -> None:
    file, before = io.StringIO(), sys.stderr
    with pytest.raises(ValueError, match="x"), LiveView("t", Console(file=file, force_terminal=True, width=80)):
        raise ValueError("x")
    assert file.getvalue().rstrip().endswith("\x1b[?25h") or "\x1b[?1049l" in file.getvalue()
    assert sys.stderr is before


def test_without_a_terminal_lines_are_printed_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with screen("t", live=True) as view:
        assert view is None
    assert capsys.readouterr().err == f"{NO_TERMINAL}\n"
    with screen("t", live=False) as view:
        assert view is None
    assert capsys.readouterr().err == ""


def test_commands_fall_back_to_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path / "c.toml")
    result = cli("run", "c.toml", "--live", "--out", "a")
    assert (result.code, NO_TERMINAL in result.err) == (0, True)
    result = cli("compare", "c.toml", "--live", "--methods", "depositum", "--out", "b")
    assert (result.code, NO_TERMINAL in result.err) == (0, True)
    result = cli("compare", "a", "b/depositum", "--live")
    assert result.code == 2
    assert "--live" in result.err


def in_terminal(arguments: list[str], folder: Path, width: int, height: int = 24) -> tuple[int, str]:
    """Run the command line in a pseudo-terminal of a size; return the exit code and everything it wrote."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "", "LINES": ""}
    environment = {key: value for key, value in environment.items() if value}
    process = subprocess.Popen(
        [sys.executable, "-m", "depositum", *arguments],
        cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True,
    )  # fmt: skip
    os.close(theirs)
    parts = []
    while select.select([ours], [], [], 120)[0]:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        parts.append(part)
    os.close(ours)
    return process.wait(timeout=60), b"".join(parts).decode(errors="replace")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "width"),
    [
        (["run", "c.toml", "--out", "r"], 48),
        (["compare", "c.toml", "--methods", "depositum,fedmid", "--out", "r"], 80),
        (["reproduce", "stepsize", "--quick", "--only", "alpha=α = 0.1", "--seeds", "1", "--out", "r"], 120),
    ],
    ids=["run", "compare", "reproduce"],
)
def test_a_real_terminal(tmp_path: Path, arguments: list[str], width: int) -> None:
    """One alternate screen, entered once and left before the results, in which no line scrolls away."""
    # Long enough for the screen to be drawn again after an evaluation, however quick the machine.
    write_config(tmp_path / "c.toml", run={"compile": "never", "steps": 1000})
    code, written = in_terminal([*arguments, "--live"], tmp_path, width)
    assert code == 0, written
    assert (written.count("\x1b[?1049h"), written.count("\x1b[?1049l")) == (1, 1)
    before, rest = written.split("\x1b[?1049h")
    live, after = rest.split("\x1b[?1049l")
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", live)
    assert "depositum" in text
    assert "loss" in text
    # Every drawing is as high as the terminal at most, and starts at its top: nothing scrolls.
    for drawing in live.split("\x1b[H"):
        assert drawing.count("\n") <= 23
    assert not before.strip()
    assert "loss" in after or "claim" in after
    assert (tmp_path / "r").exists()
