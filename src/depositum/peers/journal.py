"""What a member that may continue without a neighbour has decided and received, on disk before it has any effect.

With `absent = "drop"`, whether an exchange takes place is decided by events: who was there, and when. A member that is
restarted must decide again as it did. Before a decision takes effect, it is a line of `decisions.log`; a row that was
received is a file until a checkpoint covers it, and one that was sent until its receiver has it. So a member continues
from its own disk alone, whoever is away.
"""

import json
import os
import threading
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

import torch
from torch import Tensor

from depositum.engines.distributed import Subject
from depositum.errors import RunError

DECISIONS, INBOX, OUTBOX = "decisions.log", "inbox", "outbox"


class Outcome(Enum):
    """What is known of an exchange."""

    SENT = "S"  #: this end's row may have been used at the other end, which decides
    COMMITTED = "C"  #: it takes place, at both ends
    DROPPED = "D"  #: it does not take place, at either end


class Journal:
    """The decisions of a member, and the rows that they concern.

    Parameters
    ----------
    folder
        The member's run folder.
    neighbours
        The names of its neighbours.
    """

    def __init__(self, folder: Path, neighbours: Sequence[str]) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._outcomes: dict[str, dict[int, Outcome]] = {name: {} for name in neighbours}
        #: Where this member stood still: from an iteration until before another one.
        self._stood: dict[int, int] = {}
        path = folder / DECISIONS
        for name in neighbours:
            for kind in (INBOX, OUTBOX):
                (folder / kind / name).mkdir(parents=True, exist_ok=True)
                for part in (folder / kind / name).glob("*.part"):
                    part.unlink()
        if path.exists():
            self._read(path)
        self._file = path.open("ab", buffering=0)

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        complete = content.rfind(b"\n") + 1
        if complete < len(content):  # killed while it was written: it had no effect
            os.truncate(path, complete)
        for line in content[:complete].decode("utf-8", "replace").splitlines():
            try:
                kind, first, second = line.split(" ")
                if kind == "stood":
                    self._stood[int(first)] = int(second)
                else:
                    self._outcomes[first][int(second)] = Outcome(kind)
            except (ValueError, KeyError):
                raise RunError(f"{path}: is damaged ({line[:60]!r}); restore it") from None

    def outcome(self, name: str, number: int) -> Outcome | None:
        """What is known of the exchange of this number with a neighbour."""
        return self._outcomes[name].get(number)

    def record(self, outcome: Outcome, name: str, *numbers: int) -> None:
        """Write decisions down; they may take effect when this returns."""
        with self._lock:
            self._write("".join(f"{outcome.value} {name} {number}\n" for number in numbers))
            self._outcomes[name].update(dict.fromkeys(numbers, outcome))

    def stood_until(self, t: int) -> tuple[int, int] | None:
        """From which iteration until which this member stood still, if it did so at iteration t."""
        return next(((a, b) for a, b in self._stood.items() if a <= t < b), None)

    def stand(self, t: int, until: int) -> None:
        """Write down that this member stands still for some iterations."""
        with self._lock:
            self._write(f"stood {t} {until}\n")
            self._stood[t] = until

    def _write(self, text: str) -> None:
        try:
            self._file.write(text.encode())
            os.fsync(self._file.fileno())
        except OSError as error:
            raise RunError(f"{self._folder / DECISIONS}: cannot be written ({error.strerror})") from None

    # Rows

    def store(self, kind: str, name: str, number: int, subject: Subject, content: Tensor) -> None:
        """Store a message that was received (`INBOX`), or is sent (`OUTBOX`)."""
        path = self._path(kind, name, number)
        part = path.with_suffix(".part")
        try:
            with part.open("wb") as file:
                file.write(json.dumps(subject).encode() + b"\n")
                file.write(content.numpy().data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError as error:
            raise RunError(f"{path}: cannot be written ({error.strerror})") from None

    def stored(self, kind: str, name: str) -> dict[int, tuple[Subject, Tensor]]:
        """All messages that are stored, by number."""
        found = {}
        for path in (self._folder / kind / name).glob("*.row"):
            head, _, content = path.read_bytes().partition(b"\n")
            phase, what = json.loads(head)
            found[int(path.stem)] = Subject(phase, what), torch.frombuffer(bytearray(content), dtype=torch.uint8)
        return dict(sorted(found.items()))

    def discard(self, kind: str, name: str, before: int, after: int | None = None) -> None:
        """Remove stored messages before a number, and those from another one on."""
        for path in (self._folder / kind / name).glob("*.row"):
            number = int(path.stem)
            if number < before or (after is not None and number >= after):
                path.unlink()

    def needs(self, name: str, received: int) -> int:
        """The first message of a neighbour that is neither here nor decided without, if so many were used by then."""
        decided = [n for n, outcome in self._outcomes[name].items() if outcome is not Outcome.SENT]
        here = [int(path.stem) for path in (self._folder / INBOX / name).glob("*.row")]
        return max([received, *(number + 1 for number in (*decided, *here))])

    def _path(self, kind: str, name: str, number: int) -> Path:
        return self._folder / kind / name / f"{number}.row"

    def close(self) -> None:
        """Close the file."""
        self._file.close()
