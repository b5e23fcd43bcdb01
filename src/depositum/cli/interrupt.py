"""Ctrl-C: a run stops after its iteration and keeps a checkpoint; anything else stops at once, without a traceback."""

import signal
import weakref
from contextlib import AbstractContextManager
from types import FrameType, TracebackType

from depositum.engines import Loop


class Interrupted(BaseException):
    """Stopped by a person. Not KeyboardInterrupt, which typer would take for itself and end without a word."""


class StopOnSignal(AbstractContextManager["StopOnSignal"]):
    """Ctrl-C (or SIGTERM) raises `Interrupted`; while there is a loop attached, the first asks it to stop instead.

    A loop is not kept alive by it: its memory is free for the next one of a sweep.
    """

    def __init__(self) -> None:
        self.requested = False
        self._loop: weakref.ref[Loop] | None = None

    def attach(self, loop: Loop) -> None:
        self._loop = weakref.ref(loop)
        loop.stop_requested = loop.stop_requested or self.requested

    def __enter__(self) -> "StopOnSignal":
        self._before = {s: signal.signal(s, self._handle) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        loop = self._loop() if self._loop is not None else None
        if loop is None or self.requested:
            raise Interrupted
        self.requested = loop.stop_requested = True


class StopTogether:
    """For one process among many: once a loop is attached, signals ask it to stop, and never more than that.

    All ranks then stop at the next evaluation or checkpoint. When a process dies, torchrun at once tells the others to
    end: they still have to name the one they lost. Before there is a loop, and in the midst of torch's own waiting, a
    signal ends the process. torchrun kills whoever has not ended after 30 seconds.
    """

    def __init__(self) -> None:
        self.requested = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)

    def attach(self, loop: Loop) -> None:
        def ask(number: int, frame: FrameType | None) -> None:
            self.requested = loop.stop_requested = True

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, ask)
