"""A lock on a run's folder: two processes that write into one folder would leave the run of neither.

The folder itself is locked, so that no file is left behind and a process that is killed releases it. Where the system
has no such locks (Windows, some network file systems), nothing is locked.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from depositum.errors import RunError

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

#: The folders that this process has locked, with their file descriptors.
_locked: dict[Path, int] = {}


class FolderInUse(RunError):
    """Another process has locked a folder."""


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Lock a folder for this process, from now on or, if it does not exist yet, from `acquire` on.

    A folder that another process has locked is refused. The same process may lock it again inside.
    """
    outermost = path.resolve() not in _locked
    if path.exists():
        acquire(path)
    try:
        yield
    finally:
        if outermost and path.resolve() in _locked:
            os.close(_locked.pop(path.resolve()))


def acquire(path: Path) -> None:
    """Lock a folder that exists; it is released at the end of `exclusive`."""
    key = path.resolve()
    if fcntl is None or key in _locked or not path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise FolderInUse(
            f"--out {path}: another process is using this folder; wait for it, or choose another folder"
        ) from None
    except OSError:  # a file system without locks
        os.close(descriptor)
        return
    _locked[key] = descriptor
