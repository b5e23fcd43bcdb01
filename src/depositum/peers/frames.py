"""What two neighbours say to each other: frames, each a kind, a length and a body; a message is followed by its bytes.

All bodies but a message's own bytes are small and JSON, read within limits; nothing is ever unpickled. The head of a
message announces its number and its size, so that it is refused before any memory is taken for it.
"""

import json
import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from depositum.engines.distributed import Subject
from depositum.errors import DepositumError, one_line

#: The versions of this protocol that this release speaks; two neighbours use the highest that both do.
PROTOCOLS = (1,)


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1  #: who this is, and what it runs; the first frame of a connection
    CHECKPOINTS = 2  #: where members that are starting can resume
    POSITION = 3  #: which messages this end needs next, and can still send
    MESSAGE = 4  #: the head of a message, which follows
    COVERED = 5  #: which messages this end will never ask for again
    PING = 6  #: nothing, so that the connection is not idle
    REFUSED = 7  #: why this end closes the connection
    STOPPED = 8  #: why this member ends the run for good
    ASK = 9  #: which message this end waits for, before it decides on an exchange


#: The most bytes that a body can have.
LIMITS = {
    Kind.HELLO: 1 << 22,
    Kind.CHECKPOINTS: 1 << 22,
    Kind.POSITION: 1 << 12,
    Kind.MESSAGE: 1 << 10,
    Kind.COVERED: 1 << 12,
    Kind.PING: 0,
    Kind.REFUSED: 1 << 12,
    Kind.STOPPED: 1 << 12,
    Kind.ASK: 1 << 12,
}
HEAD = struct.Struct(">BI")
_MESSAGE = struct.Struct(">QQq")
#: More than any number, size or phase.
_TOO_MANY = 1 << 62


#: What a message without bytes is about that stands for an exchange which is dropped.
DROPPED = "dropped"


class Refused(DepositumError):
    """What a neighbour sent cannot be used: the connection is closed, and this end's state is what it was before."""


class Envelope(NamedTuple):
    """The head of a message: its number among those in this direction, its size in bytes, and what it is about."""

    number: int
    size: int
    subject: Subject


def frame(kind: Kind, body: Mapping[str, Any] | None = None) -> bytes:
    """A frame with a body of JSON."""
    content = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
    return HEAD.pack(kind, len(content)) + content


def message_frame(envelope: Envelope) -> bytes:
    """The head of a message."""
    phase, what = envelope.subject
    content = _MESSAGE.pack(envelope.number, envelope.size, phase) + what.encode()[:64]
    return HEAD.pack(Kind.MESSAGE, len(content)) + content


def read_head(content: bytes) -> tuple[Kind, int]:
    """The kind of a frame and the length of its body."""
    number, length = HEAD.unpack(content)
    try:
        kind = Kind(number)
    except ValueError:
        raise Refused(f"sent a frame of an unknown kind ({number})") from None
    if length > LIMITS[kind]:
        raise Refused(f"sent a {kind.name} of {length} bytes; at most {LIMITS[kind]} are allowed")
    return kind, length


def read_body(kind: Kind, content: bytes) -> dict[str, Any]:
    """The JSON object of a frame."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        raise Refused(f"sent a {kind.name} that is not JSON") from None
    if not isinstance(body, dict):
        raise Refused(f"sent a {kind.name} that is not an object")
    return body


def read_envelope(content: bytes) -> Envelope:
    """The head of a message."""
    if len(content) < _MESSAGE.size:
        raise Refused("sent the head of a message that is too short")
    number, size, phase = _MESSAGE.unpack(content[: _MESSAGE.size])
    what = one_line(content[_MESSAGE.size :].decode("utf-8", "replace"), 64)
    if max(number, size, abs(phase)) > _TOO_MANY:
        raise Refused("sent the head of a message with numbers that are too large")
    return Envelope(number, size, Subject(phase, what))


def read_count(body: Mapping[str, Any], key: str, kind: Kind) -> int:
    """A whole number ≥ 0 of a body."""
    value = body.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _TOO_MANY:
        raise Refused(f"sent a {kind.name} whose {key!r} is not a whole number")
    return value


def read_text(body: Mapping[str, Any], key: str, length: int = 200) -> str:
    """A text of a body, as one line that can be printed; empty if it is missing."""
    value = body.get(key, "")
    return one_line(value, length) if isinstance(value, str) else ""
