"""Messages that were sent, kept until their receiver can never ask for them again.

A receiver that restarts continues from a checkpoint, and needs the messages after it once more. Each member therefore
keeps what it sent in memory and, beyond a bound, in files; the same bytes for several neighbours exist once.
"""

import hashlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from depositum.engines.distributed import Subject
from depositum.errors import RunError

#: Bytes of messages in memory, beyond which they are written to files.
IN_MEMORY = 256 << 20
#: Smaller messages always stay in memory.
SMALL = 1 << 16


class Payload:
    """The bytes of a message, in memory or in a file; its hash is computed once, while the program continues."""

    def __init__(self, content: Tensor, hashing: ThreadPoolExecutor) -> None:
        self.size = content.numel()
        self._content: Tensor | None = content
        self._path: Path | None = None
        self.sha256: Future[str] = hashing.submit(_sha256, content)
        self.holders = 0

    def view(self) -> memoryview:
        """The bytes; those of a file are read, and must be what was written."""
        content = self._content
        if content is None:
            assert self._path is not None
            data = self._path.read_bytes()
            if hashlib.sha256(data).hexdigest() != self.sha256.result():
                raise RunError(f"{self._path}: has changed since it was written; restart this member")
            return memoryview(data)
        return content.numpy().data

    def spill(self, path: Path) -> None:
        """Move the bytes to a file."""
        assert self._content is not None
        try:
            path.write_bytes(self._content.numpy().data)
        except OSError as error:
            raise RunError(f"{path}: cannot be written ({error.strerror})") from None
        self._path, self._content = path, None

    def discard(self) -> None:
        """Free the memory or the file."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        self._content = None

    @property
    def in_memory(self) -> int:
        """Bytes of memory that it takes."""
        return 0 if self._content is None else self.size


def _sha256(content: Tensor) -> str:
    return hashlib.sha256(content.numpy().data).hexdigest()


class Shelf:
    """All payloads that a member keeps, for however many neighbours, within a bound of memory.

    Parameters
    ----------
    folder
        Where payloads beyond the bound are written. What is there is of an earlier session, and removed.
    """

    def __init__(self, folder: Path, bound: int = IN_MEMORY) -> None:
        self.folder, self.bound = folder, bound
        self.hashing = ThreadPoolExecutor(1, thread_name_prefix="sha256")
        self._kept: dict[int, Payload] = {}
        self._in_memory = self._written = 0
        self._lock = threading.Lock()
        if folder.exists():
            for path in folder.glob("*.message"):
                path.unlink()

    def payload(self, content: Tensor) -> Payload:
        """The payload of a message, uint8 `[bytes]`, whose memory must not change from now on."""
        return Payload(content if content.device.type == "cpu" else content.cpu(), self.hashing)

    def hold(self, payload: Payload) -> None:
        """Keep a payload for one more neighbour."""
        with self._lock:
            payload.holders += 1
            if payload.holders == 1:
                self._kept[id(payload)] = payload
                self._in_memory += payload.in_memory
            if self._in_memory > self.bound:
                self._spill()

    def release(self, payload: Payload) -> None:
        """Keep it for one neighbour less."""
        with self._lock:
            payload.holders -= 1
            if payload.holders == 0:
                del self._kept[id(payload)]
                self._in_memory -= payload.in_memory
                payload.discard()

    def _spill(self) -> None:
        """Write the oldest large payloads to files; the newest one is about to be sent."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for payload in list(self._kept.values())[:-1]:
            if payload.in_memory > SMALL:
                payload.sha256.result()
                self._in_memory -= payload.size
                payload.spill(self.folder / f"{self._written}.message")
                self._written += 1
            if self._in_memory <= self.bound:
                return

    def close(self) -> None:
        """End the thread that computes hashes."""
        self.hashing.shutdown(wait=True)


@dataclass
class Sent:
    """A message in an outbox."""

    number: int
    subject: Subject
    payload: Payload


class Outbox:
    """The messages to one neighbour, numbered from 0: those from `first` to `end` − 1 are kept.

    Parameters
    ----------
    end
        The number of the next message.
    forgotten
        Called with the number before which messages were freed.
    """

    def __init__(self, shelf: Shelf, end: int = 0, forgotten: Callable[[int], None] = lambda _: None) -> None:
        self._shelf, self._forgotten = shelf, forgotten
        self._kept: deque[Sent] = deque()
        self.end = end

    @property
    def first(self) -> int:
        """The first message that can still be sent."""
        return self._kept[0].number if self._kept else self.end

    def add(self, payload: Payload, subject: Subject) -> None:
        """Append the next message."""
        self._shelf.hold(payload)
        self._kept.append(Sent(self.end, subject, payload))
        self.end += 1

    def __getitem__(self, number: int) -> Sent:
        return self._kept[number - self.first]

    def forget(self, number: int) -> None:
        """Free the messages before this one."""
        if self._kept and self._kept[0].number < number:
            while self._kept and self._kept[0].number < number:
                self._shelf.release(self._kept.popleft().payload)
            self._forgotten(number)


def as_bytes(z: Tensor) -> Tensor:
    """The bytes of a tensor, uint8 `[bytes]`, sharing its memory."""
    return z.detach().contiguous().view(-1).view(torch.uint8)
