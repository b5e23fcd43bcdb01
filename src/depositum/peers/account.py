"""An account of what left the house, and of what came in: `sent.csv` and `received.csv`.

A line for each message: when, to or from whom, in which phase, what, its number, its bytes and their SHA-256 hash. Each
line ends with a hash over itself and the line before, so that a line that is changed, removed or inserted later is
found (`verify`). What is sent again after a restart, or was sent in part before a connection broke, has a line as well.
"""

import csv
import errno
import hashlib
import io
import os
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from depositum.errors import DataError, RunError

SENT, RECEIVED = "sent.csv", "received.csv"
COLUMNS = ("time", "neighbour", "phase", "what", "number", "bytes", "sha256", "again", "chain")


class Account:
    """One of the two files, to which lines are appended.

    What a restarted member finds there is checked; a line that was written in part when it was killed is completed by
    being replaced.

    Attributes
    ----------
    bytes
        Of all messages so far, by neighbour.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, threading.Lock()
        self.bytes: dict[str, int] = {}
        self._next: dict[str, int] = {}
        self._chain = ""
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size:
            self._continue()
        self._file = path.open("ab", buffering=0)
        self._size = path.stat().st_size
        if not self._size:
            self._append(",".join(COLUMNS) + "\n")

    def _continue(self) -> None:
        """Read what is there, and remove a last line that is not complete."""
        complete = 0
        with self.path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                complete += len(line)
        if complete < self.path.stat().st_size:
            os.truncate(self.path, complete)
        for entry in _verified(self.path):
            neighbour, number, size = entry["neighbour"], entry["number"], int(entry["bytes"])
            self.bytes[neighbour] = self.bytes.get(neighbour, 0) + size
            if number:
                self._next[neighbour] = max(self._next.get(neighbour, 0), int(number) + 1)
            self._chain = entry["chain"]

    def add(self, neighbour: str, phase: int, what: str, number: int | None, size: int, sha256: str) -> None:
        """Append a line; a message of a number that has a line already is marked as sent again."""
        with self._lock:
            following = self._next.get(neighbour, 0)
            again = number is not None and number < following
            fields = [
                datetime.now(UTC).isoformat(timespec="milliseconds"),
                neighbour,
                "" if phase < 0 else phase,
                what,
                "" if number is None else number,
                size,
                sha256,
                "again" if again else "",
            ]
            text = io.StringIO()
            csv.writer(text, lineterminator="").writerow(fields)
            chain = _chained(self._chain, text.getvalue())
            self._append(f"{text.getvalue()},{chain}\n")
            self._chain = chain
            self.bytes[neighbour] = self.bytes.get(neighbour, 0) + size
            if number is not None:
                self._next[neighbour] = max(following, number + 1)

    def _append(self, text: str) -> None:
        """Write a line, or nothing of it: a line in part would break the chain of those after it."""
        content = text.encode()
        try:
            if self._file.write(content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            with suppress(OSError):
                os.truncate(self.path, self._size)
            raise RunError(f"{self.path}: cannot be written ({error.strerror})") from None
        self._size += len(content)

    def close(self) -> None:
        """Close the file, with everything on disk."""
        with self._lock:
            if not self._file.closed:
                os.fsync(self._file.fileno())
                self._file.close()


def verify(path: Path) -> int:
    """Check the chain of hashes of an account; return how many lines it has, or raise a `DataError` with the line."""
    return len(_verified(path))


def _verified(path: Path) -> list[dict[str, str]]:
    lines = []
    chain = ""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        header = file.readline().rstrip("\n")
        if header != ",".join(COLUMNS):
            raise DataError(f"{path}, line 1: is not the header of an account")
        for number, line in enumerate(file, 2):
            content, _, found = line.rstrip("\n").rpartition(",")
            chain = _chained(chain, content)
            fields = next(csv.reader([content]), [])
            if found != chain or not line.endswith("\n") or len(fields) != len(COLUMNS) - 1:
                raise DataError(f"{path}, line {number}: was changed, or a line before it was removed or inserted")
            lines.append(dict(zip(COLUMNS, [*fields, found], strict=True)))
    return lines


def _chained(before: str, content: str) -> str:
    return hashlib.sha256(f"{before}\n{content}".encode()).hexdigest()
