"""One process at a time in a run's folder: what two of them write there is the run of neither.

The folder itself is locked, so that no file is left behind and whoever is killed lets go. Where there are no such locks
(Windows, some network file systems) nothing is.
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

#: The folders that this process has for itself, by what they are open as.
_held: dict[Path, int] = {}


@contextmanager
def alone_in(path: Path) -> Iterator[None]:
    """Have a folder for this process alone, from now on or, if it is yet to be made, from `hold`.

    A folder that another process has is refused. Within, the same process may ask again.
    """
    outermost = path.resolve() not in _held
    if path.exists():
        hold(path)
    try:
        yield
    finally:
        if outermost and path.resolve() in _held:
            os.close(_held.pop(path.resolve()))


def hold(path: Path) -> None:
    """Lock a folder that is there; it is let go at the end of `alone_in`."""
    key = path.resolve()
    if fcntl is None or key in _held or not path.is_dir():
        return
    place = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(place)
        raise RunError(
            f"--out {path}: another process is at work there; wait for it, or choose another folder"
        ) from None
    except OSError:  # a file system without locks
        os.close(place)
        return
    _held[key] = place
