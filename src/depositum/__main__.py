"""`python -m depositum` (and `torchrun -m depositum`) is the command line."""

import os
import sys
import threading

from depositum.cli import main
from depositum.launch import launched


def exit_without_cleanup(code: int) -> None:
    """Exit without Python's cleanup, which aborts a process that has threads waiting for other processes in torch."""
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    if launched():
        # A lost peer is reported in one line; torch, not yet imported, would add a stack trace to it.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        main()
    except SystemExit as end:
        if not launched() or isinstance(end.code, str):
            raise
        exit_without_cleanup(end.code or 0)
