"""Signals: the first Ctrl-C makes a run stop with a checkpoint; other commands stop without a traceback."""

import signal
import weakref
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from depositum.engines import Loop

#: Exit code of a command that was interrupted (docs/cli.md).
INTERRUPTED = 128 + signal.SIGINT


class Interrupted(BaseException):
    """Stopped by the user. Not KeyboardInterrupt, which typer handles itself and without a message."""


class StopOnSignal(AbstractContextManager["StopOnSignal"]):
    """SIGINT and SIGTERM raise `Interrupted`; while a loop is attached, the first one asks the loop to stop instead.

    The reference to the loop is weak, so that a sweep can free its memory before the next loop.
    """

    def __init__(self) -> None:
        self.requested = False
        self._loop: weakref.ref[Loop] | None = None

    def attach(self, loop: "Loop") -> None:
        self._loop = weakref.ref(loop)
        loop.stop_requested = loop.stop_requested or self.requested

    def __enter__(self) -> "StopOnSignal":
        self._previous = {s: signal.signal(s, self._handle) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        loop = self._loop() if self._loop is not None else None
        if loop is None or self.requested:
            raise Interrupted
        self.requested = loop.stop_requested = True


class StopUnderTorchrun:
    """Under torchrun: once a loop is attached, every SIGINT and SIGTERM only asks the loop to stop.

    All ranks then stop at the next evaluation or checkpoint. When one process dies, torchrun immediately signals the
    others, which must still report which rank they lost. Before a loop is attached, and while torch waits in native
    code, a signal ends the process. torchrun kills any process that is still alive after 30 seconds.
    """

    def __init__(self) -> None:
        self.requested = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)

    def attach(self, loop: "Loop") -> None:
        def request_stop(number: int, frame: FrameType | None) -> None:
            self.requested = loop.stop_requested = True

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, request_stop)
