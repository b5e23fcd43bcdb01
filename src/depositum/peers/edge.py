"""One edge of the agreed graph, as one of its two ends sees it: numbered messages, each delivered once and in order.

The members of a federation execute the same program, so both ends know which message has which number: whichever
connections break, and whichever end restarts, a message is identified by it. A message is taken as it comes if the
program has asked for it, or if there is room; otherwise it waits at its sender. What must not be used is refused before
it is counted: the connection is closed, and this end still needs that message.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from depositum.engines.distributed import BufferPool, Subject
from depositum.peers.account import Account
from depositum.peers.connecting import Retries
from depositum.peers.conversation import Bell, Lost, Reading, Writing, converse
from depositum.peers.frames import (
    DROPPED,
    HEAD,
    Envelope,
    Kind,
    Refused,
    frame,
    message_frame,
    read_body,
    read_count,
    read_envelope,
    read_head,
    read_text,
)
from depositum.peers.journal import INBOX, OUTBOX, Journal, Outcome
from depositum.peers.outbox import Outbox, Payload, Shelf
from depositum.peers.resumption import Position
from depositum.peers.secure_connection import PIECE, SecureConnection

#: Messages that are read before the program asks for them.
AHEAD = 2
#: Dropped exchanges of which an end knows before its program comes to them.
MARKERS = 1 << 20
#: Seconds without a frame after which a ping is sent: cloud load balancers cut connections that idle for 4 minutes.
PING = 30.0
#: Seconds after which a connection has lasted long enough for the next attempt to be made at once.
LASTING = 10.0
#: Seconds that the last frames before a connection is closed may take.
PARTING = 3.0


class Member(Protocol):
    """What an edge needs of the member whose edge it is."""

    #: Guards, and announces changes of, everything that the program and the edges share.
    changed: threading.Condition
    shelf: Shelf
    sent: Account
    received: Account
    #: The most bytes of a message that the program has not asked for yet; 0 until that is known.
    largest: int
    #: Where decisions and rows are written down, if exchanges can be dropped.
    journal: Journal | None

    def hello(self) -> dict[str, Any]:
        """What this member tells a neighbour first."""
        ...

    def greeted(self, name: str, hello: Mapping[str, Any]) -> None:
        """Check what a neighbour tells first; a difference is `Refused`."""
        ...

    def checkpoints(self) -> tuple[int, dict[str, Any]]:
        """Where this member, and others of which it knows, can resume; with a number that grows when that changes."""
        ...

    def heard_checkpoints(self, body: Mapping[str, Any]) -> None:
        """Take note of where other members can resume."""
        ...

    def log(self, line: str) -> None:
        """Write a line to the log."""
        ...


class Expected(NamedTuple):
    """A message that the program has asked for."""

    buffer: Tensor
    subject: Subject
    check: Callable[[Tensor], None]


class Arrived(NamedTuple):
    """A message that the program has not taken yet."""

    subject: Subject
    content: Tensor

    @property
    def is_marker(self) -> bool:
        """Whether it stands for an exchange that is dropped."""
        return self.subject.what == DROPPED and not self.content.numel()


@dataclass(frozen=True)
class Coverage:
    """Messages that an end will never need again: those before `before`; `done`: none at all, its run has ended."""

    before: int = 0
    done: bool = False


class Edge:
    """One end of an edge.

    Parameters
    ----------
    name
        The neighbour.
    dial
        Opens a connection to it; None if it dials, and connections come by `offer`.

    Attributes
    ----------
    connected, since, problem
        Whether there is a connection now, since when it has been so and, if not, why.
    position
        What the neighbour needs and keeps, once it runs; None while it is starting, or not known.
    is_starting
        Whether it is known to be starting.
    finished
        Whether its run has ended, so that it needs nothing any more.
    stopped
        Who has ended the run for good, and why; empty if nobody has.
    failure
        An error of this end, which ends the run.
    """

    def __init__(self, name: str, member: Member, dial: Callable[[], SecureConnection] | None) -> None:
        self.name, self._member, self._dial, self._journal = name, member, dial, member.journal
        self.connected, self.since, self.problem = False, time.time(), "not connected yet"
        self.position: Position | None = None
        self.is_starting, self.finished, self.stopped = False, False, ""
        self.failure: Exception | None = None
        self.last_phase, self.dropped_phases, self._last_dropped = 0, 0, -1
        #: When a piece of a message came last, and when the connection was lost last, by the monotonic clock.
        self.progress, self.lost = 0.0, time.monotonic()
        self._changed = member.changed
        self._bell = Bell()
        self._running = self._closing = self._dialling = self._ended = False
        self._hang_up = ""
        self._between_frames = True
        self._offered: SecureConnection | None = None
        self._outbox = Outbox(member.shelf)
        self._needs = self._asked = 0
        #: Of messages that arrive before the program asks for them.
        self._memory = BufferPool(torch.device("cpu"))
        self._expected: dict[int, Expected] = {}
        self._inbox: dict[int, Arrived] = {}
        self._discarded: set[int] = set()
        self._asking = self._asked_for = -1
        #: The next message to send over this connection; those before it have left, or are not needed.
        self._cursor = -1
        self._coverage = Coverage()
        self._told: Coverage | None = None
        self._thread = threading.Thread(target=self._run, name=f"edge to {name}", daemon=True)

    def open(self) -> None:
        """Begin to connect."""
        self._thread.start()

    # What the program does, in its thread

    def start(self, sent: int, received: int, covered: int) -> None:
        """Begin to exchange messages: so many were sent and received by the checkpoint that is continued from."""
        with self._changed:
            self._outbox, self._needs, self._asked = Outbox(self._member.shelf, sent), received, received
            self._coverage = Coverage(covered)
            if self._journal is not None:
                self._continue_from(self._journal, sent, received)
            self._running = True
        self._bell.ring()

    def _continue_from(self, journal: Journal, sent: int, received: int) -> None:
        """Have what was written down: rows that the neighbour may not have yet, and those that this end has."""
        journal.discard(OUTBOX, self.name, 0, after=sent)  # the program sends these again
        rows, first = journal.stored(OUTBOX, self.name), sent
        while first - 1 in rows or journal.outcome(self.name, first - 1) is Outcome.DROPPED:
            first -= 1
        self._outbox = Outbox(self._member.shelf, first, lambda before: journal.discard(OUTBOX, self.name, before))
        nothing = Subject(-1, DROPPED), torch.empty(0, dtype=torch.uint8)
        for number in range(first, sent):
            subject, content = rows.get(number, nothing)
            self._outbox.add(self._member.shelf.payload(content), subject)
        here = journal.stored(INBOX, self.name)
        self._inbox = {n: Arrived(*message) for n, message in here.items() if n >= received}
        self._needs = journal.needs(self.name, received)
        self._coverage = Coverage(self._needs)

    @property
    def counts(self) -> tuple[int, int]:
        """How many messages the program has sent, and asked for."""
        return self._outbox.end, self._asked

    def send(self, payload: Payload, subject: Subject) -> None:
        """Send the next message; it is kept until the neighbour can never ask for it again."""
        if self._journal is not None and payload.size:
            content = torch.frombuffer(payload.view(), dtype=torch.uint8)
            self._journal.store(OUTBOX, self.name, self._outbox.end, subject, content)
        with self._changed:
            self._outbox.add(payload, subject)
            if self.position is not None:
                self._outbox.forget(self.position.covered)
        self._bell.ring()

    def expect(self, buffer: Tensor, subject: Subject, check: Callable[[Tensor], None]) -> int:
        """Ask for the next message, into a buffer of its size, uint8 `[bytes]`; return its number."""
        with self._changed:
            number = self._asked
            self._asked += 1
            self._expected[number] = Expected(buffer, subject, check)
        self._bell.ring()
        return number

    def take(self, number: int) -> Arrived | None:
        """A message that was asked for, or None if it has not arrived; one that must not be used is refused."""
        with self._changed:
            if number not in self._inbox:
                return None
            arrived, expected = self._inbox[number], self._expected[number]
        try:
            if self._journal is not None and arrived.is_marker:
                return self._taken(number, arrived)
            _check_size(arrived.content.numel(), expected.buffer.numel())
            if arrived.subject != expected.subject:
                raise ValueError(f"it is {_described(arrived.subject)}, not {_described(expected.subject)}")
            expected.check(arrived.content)
        except ValueError as error:
            self._refuse(number, f"message {number} of {self.name!r} is refused: {error}")
            return None
        if self._journal is not None:
            self._journal.store(INBOX, self.name, number, *arrived)
        return self._taken(number, arrived)

    def _taken(self, number: int, arrived: Arrived) -> Arrived:
        with self._changed:
            del self._inbox[number], self._expected[number]
            self.last_phase = max(self.last_phase, arrived.subject.phase)
            if self._journal is not None:
                self._cover_without(number)
        self._bell.ring()  # there is room for another one
        return arrived

    def _cover_without(self, number: int) -> None:
        """Never ask for a message again, nor for those before it: it is written down what came of them."""
        self._coverage = replace(self._coverage, before=max(number + 1, self._coverage.before))

    # Exchanges that need not take place

    def ask(self, number: int) -> None:
        """Tell the neighbour that this end waits for its message, and has not decided yet."""
        with self._changed:
            self._asking = number
        self._bell.ring()

    def is_asked_for(self, number: int) -> bool:
        """Whether the neighbour waits for this end's message, as far as is known."""
        return self.connected and self._asked_for >= number

    def has(self, number: int) -> bool:
        """Whether a message has arrived."""
        return number in self._inbox

    def discard(self, number: int, phase: int) -> None:
        """Do without a message that was asked for, whenever it may arrive: its exchange is dropped."""
        with self._changed:
            self._expected.pop(number, None)
            self._inbox.pop(number, None)
            if number >= self._needs:
                self._discarded.add(number)
            else:
                self._cover_without(number)
            self.dropped_phases += phase > self._last_dropped
            self._last_dropped = max(phase, self._last_dropped)
        self._bell.ring()

    def missed(self) -> int:
        """How many of the next exchanges the neighbour has already dropped."""
        with self._changed:
            number = self._asked
            while number in self._inbox and self._inbox[number].is_marker:
                number += 1
            return number - self._asked

    def _refuse(self, number: int, reason: str) -> None:
        """Forget a message, and those after it, and close the connection."""
        with self._changed:
            for later in [n for n in self._inbox if n >= number]:
                del self._inbox[later]
            self._needs, self._hang_up = number, reason
            # A buffer may be written to until the connection is closed, and the message has not been accepted.
            self._expected = {n: e._replace(buffer=torch.empty_like(e.buffer)) for n, e in self._expected.items()}
        self._bell.ring()

    def cover(self, before: int, done: bool = False) -> None:
        """Tell the neighbour that messages before this one will never be needed again."""
        with self._changed:
            self._coverage = Coverage(max(before, self._coverage.before), done)
        self._bell.ring()

    @property
    def parted(self) -> bool:
        """Whether both ends know of each other that they need nothing any more."""
        return self.finished and self._coverage.done and self._told == self._coverage

    def ring(self) -> None:
        """Have the edge look at what has changed."""
        self._bell.ring()

    def offer(self, connection: SecureConnection) -> None:
        """Use a new connection that the neighbour has opened, in place of an older one."""
        with self._changed:
            replaced, self._offered = (connection, None) if self._ended else (self._offered, connection)
            self._changed.notify_all()
        if replaced is not None:
            replaced.close()
        self._bell.ring()

    def stop(self, reason: str = "") -> None:
        """Begin to close the edge; with a reason, the neighbour learns that this member has ended the run for good."""
        with self._changed:
            self._closing, self._hang_up = True, reason
            self._changed.notify_all()
        self._bell.ring()

    def wait_until_stopped(self) -> None:
        """Wait until the neighbour has everything; a connection that is only being made is given up."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._dialling or not self._thread.is_alive())
        self._bell.close()

    # What happens in the thread of the edge

    def _run(self) -> None:
        try:
            self._converse_until_closed()
        except Exception as error:  # a full disk, for instance: the program must not wait in vain
            with self._changed:
                self.failure = error
        with self._changed:
            self._no_connection()
            self._ended, offered, self._offered = True, self._offered, None
            self._changed.notify_all()
        if offered is not None:
            offered.close()

    def _converse_until_closed(self) -> None:
        retries = Retries()
        while not (self._closing or self.parted):
            connection = self._connect(retries)
            if connection is None:
                continue
            began = time.monotonic()
            reason = self._converse(connection)
            if time.monotonic() - began > LASTING:
                retries.succeeded()
            if reason:
                self._disconnected(reason, retries)

    def _no_connection(self) -> None:
        if self.connected:
            self.connected, self.lost = False, time.monotonic()

    def _converse(self, connection: SecureConnection) -> str:
        """Exchange frames over one connection until it ends; return why, unless this end has another one or closes."""
        last, reason = b"", ""
        with self._changed:
            self._no_connection()
            self.position, self.is_starting = None, False
            self._hang_up = self._hang_up if self._closing else ""
            self._asked_for = self._cursor = -1
        try:
            with closing(self._reading()) as reading, closing(self._writing()) as writing:
                converse(connection, self._bell, reading, writing, self._ends)
            reason = self._hang_up
            if reason:
                last = frame(Kind.STOPPED if self._closing else Kind.REFUSED, {"reason": reason[:800]})
        except Lost as lost:
            reason = str(lost)
        except Refused as refused:
            reason = str(refused)
            last = frame(Kind.REFUSED, {"reason": reason[:800]})
        finally:
            connection.part(last if self._between_frames else b"", PARTING)
            connection.close()
        return reason

    def _ends(self) -> bool:
        return self._closing or self._offered is not None or bool(self._hang_up)

    def _connect(self, retries: Retries) -> SecureConnection | None:
        if self._dial is None:
            with self._changed:
                if self._offered is None:
                    self._changed.wait(1.0)
                connection, self._offered = self._offered, None
            return connection
        with self._changed:
            self._dialling = True
        try:
            connection = self._dial()
        except Refused as refused:
            self._disconnected(str(refused), retries)
            return None
        finally:
            with self._changed:
                self._dialling = False
        if self._closing:
            connection.close()
            return None
        return connection

    def _disconnected(self, reason: str, retries: Retries) -> None:
        """Take note of why there is no connection, and wait before the next attempt."""
        with self._changed:
            news = self.problem != reason
            if self.connected or not self.problem:
                self.since = time.time()
            self._no_connection()
            self.problem = reason
            self._changed.notify_all()
        if self._closing or self.parted:
            return
        if news:
            self._member.log(f"no connection with {self.name}: {reason}")
        if self._dial is not None:
            with self._changed:
                self._changed.wait_for(lambda: self._closing, retries.seconds())

    # Reading

    def _reading(self) -> Reading:
        kind, body = yield from self._frame()
        if kind is not Kind.HELLO:
            raise Refused(f"sent a {kind.name} before its HELLO")
        hello = read_body(kind, body)
        self._member.greeted(self.name, hello)
        with self._changed:
            self.connected, self.since, self.problem = True, time.time(), ""
            self.is_starting, self.position = hello.get("starting") is True, None
            self._changed.notify_all()
        self._member.log(f"connected with {self.name}")
        while True:
            kind, body = yield from self._frame()
            if kind is Kind.MESSAGE:
                yield from self._message(read_envelope(body))
            elif kind is Kind.POSITION:
                self._heard_position(read_body(kind, body))
            elif kind is Kind.COVERED:
                self._heard_coverage(read_body(kind, body))
            elif kind is Kind.ASK:
                with self._changed:
                    self._asked_for = read_count(read_body(kind, body), "number", kind)
                    self._changed.notify_all()
            elif kind is Kind.CHECKPOINTS:
                self._member.heard_checkpoints(read_body(kind, body))
            elif kind is Kind.REFUSED:
                raise Lost(f"closed by {self.name}: {read_text(read_body(kind, body), 'reason')}")
            elif kind is Kind.STOPPED:
                reason = read_text(read_body(kind, body), "reason", 400) or "no reason given"
                with self._changed:
                    if not (self.is_starting and self._needs):  # what has begun with it goes on when it returns
                        self.stopped = reason
                    self._changed.notify_all()
                raise Lost(f"the run has ended: {reason}")
            elif kind is Kind.HELLO:
                raise Refused("sent a second HELLO")

    def _frame(self) -> Generator[memoryview | None, None, tuple[Kind, bytes]]:
        head = bytearray(HEAD.size)
        yield memoryview(head)
        kind, length = read_head(bytes(head))
        body = bytearray(length)
        if length:
            yield memoryview(body)
        return kind, bytes(body)

    def _message(self, envelope: Envelope) -> Reading:
        """Read a message that is in turn and of the right size, once it has been asked for or there is room for it."""
        number, size, subject = envelope
        if not self._running:
            raise Refused(f"sent message {number} before it was asked for any")
        if number != self._needs:
            state = "repeated" if number < self._needs else "out of turn"
            raise Refused(f"sent message {number} {state}; message {self._needs} is the next one")
        while (buffer := self._room(number, size)) is None:
            yield None
        content, hashed = buffer.numpy().data, hashlib.sha256()
        for begin in range(0, size, PIECE):
            piece = content[begin : begin + PIECE]
            yield piece
            hashed.update(piece)  # while it is in the cache: a thread of its own takes longer
            self.progress = time.monotonic()
        with self._changed:
            if self._hang_up or number != self._needs:
                return
            if number in self._discarded:
                self._discarded.remove(number)
                self._cover_without(number)
            else:
                self._inbox[number] = Arrived(subject, buffer)
            self._needs = number + 1
            self._changed.notify_all()
        self._member.received.add(self.name, *subject, number, size, hashed.hexdigest())

    def _room(self, number: int, size: int) -> Tensor | None:
        """Memory for a message, or None if it must wait."""
        with self._changed:
            expected = self._expected.get(number)
            if expected is not None and not (self._journal is not None and size == 0):
                try:
                    _check_size(size, expected.buffer.numel())
                except ValueError as error:
                    raise Refused(f"sent message {number} that is refused: {error}") from None
                return expected.buffer
            if not self._member.largest:
                return None
            if size > self._member.largest:
                raise Refused(f"sent a message of {size} bytes; at most {self._member.largest} are agreed")
            room = MARKERS if not size and self._journal is not None else AHEAD
            fits = len(self._inbox) < room or number in self._discarded
            return self._memory.empty(size, torch.uint8) if fits else None

    def _heard_position(self, body: Mapping[str, Any]) -> None:
        position = Position(*(read_count(body, key, Kind.POSITION) for key in ("needs", "first", "covered")))
        if position.covered > position.needs:
            raise Refused("sent a POSITION whose covered messages it still needs")
        with self._changed:
            if self._running:
                if self._outbox.first > position.needs:
                    raise Refused(f"needs message {position.needs}; those before {self._outbox.first} are kept no more")
                if position.first > self._needs:
                    raise Refused(f"can send messages from {position.first} on; this end needs {self._needs}")
                self._outbox.forget(position.covered)
            self.position, self.is_starting = position, False
            self.finished = body.get("done") is True
            self._changed.notify_all()

    def _heard_coverage(self, body: Mapping[str, Any]) -> None:
        before = read_count(body, "before", Kind.COVERED)
        with self._changed:
            if self.position is None or before > max(self._cursor, self.position.needs):
                raise Refused("sent a COVERED of messages that were not sent")
            self._outbox.forget(before)
            self.position = replace(self.position, covered=max(before, self.position.covered))
            self.finished = body.get("done") is True
            self._changed.notify_all()

    # Writing

    def _writing(self) -> Writing:
        member = self._member
        self._told, self._between_frames = None, False
        version, introduced, asking = -1, False, -1
        hello = frame(Kind.HELLO, member.hello())
        yield memoryview(hello)
        self._between_frames, said = True, time.monotonic()
        while True:
            following: bytes | None = None
            message, telling = None, self._told
            with self._changed:
                if not self.connected:
                    pass  # until the neighbour has introduced itself
                elif not self._running:
                    now, body = member.checkpoints()
                    if self.is_starting and now > version:
                        version, following = now, frame(Kind.CHECKPOINTS, body)
                elif not introduced:
                    introduced, telling = True, self._coverage
                    following = self._position_frame()
                elif self._told != self._coverage:
                    telling = self._coverage
                    body = {"before": self._coverage.before, "done": self._coverage.done}
                    following = frame(Kind.COVERED, body)
                elif self.position is not None:
                    self._cursor = max(self._cursor, self.position.needs)
                    if self._cursor < self._outbox.end:
                        message = self._outbox[self._cursor]
                    elif self._asking > asking:
                        asking, following = self._asking, frame(Kind.ASK, {"number": self._asking})
                if following is None and message is None and time.monotonic() - said > PING:
                    following = frame(Kind.PING)
            if message is None and following is None:
                yield None
                continue
            self._between_frames = False
            if message is not None:
                yield from self._sending(message.number, message.subject, message.payload)
                self._cursor += 1
            elif following is not None:
                yield memoryview(following)
                with self._changed:
                    self._told = telling
                    self._changed.notify_all()
            self._between_frames, said = True, time.monotonic()

    def _position_frame(self) -> bytes:
        return frame(
            Kind.POSITION,
            {
                "needs": self._needs,
                "first": self._outbox.first,
                "covered": self._coverage.before,
                "done": self._coverage.done,
            },
        )

    def _sending(self, number: int, subject: Subject, payload: Payload) -> Writing:
        """A message; a line of the account is written before the last of it leaves, or when the connection breaks."""
        head, content, done = message_frame(Envelope(number, payload.size, subject)), payload.view(), 0
        account = self._member.sent
        try:
            yield memoryview(head)
            while payload.size - done > PIECE:
                piece = content[done : done + PIECE]
                done += len(piece)  # it leaves, in part at least
                yield piece
        except GeneratorExit:
            if done:
                account.add(self.name, subject.phase, f"{subject.what} in part", None, done, payload.sha256.result())
            raise
        account.add(self.name, *subject, number, payload.size, payload.sha256.result())
        if done < payload.size:
            yield content[done:]


def _check_size(found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"it has {found} bytes; {expected} are agreed")


def _described(subject: Subject) -> str:
    return f"{subject.what} of phase {subject.phase}" if subject.phase >= 0 else subject.what
