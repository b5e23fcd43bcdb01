"""Signals: the first Ctrl-C makes a run stop with a checkpoint."""

import signal
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Protocol


class Stoppable(Protocol):
    """What can be asked to stop: a loop."""

    stop_requested: bool


class Interrupted(BaseException):
    """Stopped by the user. Not KeyboardInterrupt, which typer handles itself and without a message."""


class StopOnSignal(AbstractContextManager["StopOnSignal"]):
    """Signals raise `Interrupted`; while a loop is attached, the first one asks the loop to stop instead.

    The reference to the loop is weak, so that a sweep can free its memory before the next loop.
    """

    def __init__(self, signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM)) -> None:
        self.requested = False
        self._signals = signals
        self._loop: weakref.ref[Stoppable] | None = None

    def attach(self, loop: Stoppable) -> None:
        """Have the loop stop at the first signal."""
        self._loop = weakref.ref(loop)
        loop.stop_requested = loop.stop_requested or self.requested

    def __enter__(self) -> "StopOnSignal":
        self._previous = {s: signal.signal(s, self._handle) for s in self._signals}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        loop = self._loop() if self._loop is not None else None
        if loop is None or self.requested:
            raise Interrupted
        self.requested = loop.stop_requested = True
