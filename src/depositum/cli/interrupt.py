"""Ctrl-C: a run stops after its iteration and keeps a checkpoint; anything else stops at once, without a traceback."""

import signal
from contextlib import AbstractContextManager
from types import FrameType, TracebackType

from depositum.engines import Loop


class Interrupted(BaseException):
    """Stopped by a person. Not KeyboardInterrupt, which typer would take for itself and end without a word."""


class StopOnSignal(AbstractContextManager["StopOnSignal"]):
    """Ctrl-C (or SIGTERM) raises `Interrupted`; once a loop is attached, the first asks it to stop instead."""

    def __init__(self) -> None:
        self.requested = False
        self._loop: Loop | None = None

    def attach(self, loop: Loop) -> None:
        self._loop = loop

    def __enter__(self) -> "StopOnSignal":
        self._before = {s: signal.signal(s, self._handle) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._loop is None or self.requested:
            raise Interrupted
        self.requested = self._loop.stop_requested = True
