"""`python -m depositum` (and `torchrun -m depositum`) is the command line."""

import os
import sys
import threading

from depositum.cli import main
from depositum.engines.processes.group import launched


def end_at_once(code: int) -> None:
    """End without Python's clearing up, which aborts a process whose threads are waiting for others inside of torch."""
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    try:
        main()
    except SystemExit as end:
        if not launched() or isinstance(end.code, str):
            raise
        end_at_once(end.code or 0)
