"""Signals under torchrun, and the exit code of an interrupted command."""

import signal
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from depositum.engines import Loop

#: Exit code of a command that was interrupted (docs/cli.md).
INTERRUPTED = 128 + signal.SIGINT


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
