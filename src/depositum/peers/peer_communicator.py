"""The communicator of one member of a federation: rows along the agreed edges, and sums along a tree of them.

Nothing is asked of all members at once but what the program asks. Each member starts when it likes, compares what it
runs with its neighbours as they connect, finds out with them where it can continue, and waits for whoever is slow or
away.
"""

import errno
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from depositum.engines.distributed import Check, Communicator, Facts, Messages, Subject, Transfer
from depositum.errors import DepositumError, GroupError
from depositum.federation.agreement import check_address
from depositum.federation.member_folder import MemberFolder
from depositum.interrupt import Interrupted
from depositum.metrics import SINGLE_PROCESS, Reduction, Sharing
from depositum.peers.account import RECEIVED, SENT, Account
from depositum.peers.connecting import Identity, Listener, describe
from depositum.peers.droppable import DroppableExchange
from depositum.peers.edge import Edge
from depositum.peers.frames import DROPPED
from depositum.peers.hello import Introduction
from depositum.peers.journal import INBOX, Journal, Outcome
from depositum.peers.outbox import Payload, Shelf, as_bytes
from depositum.peers.resumption import START, Candidate, Starting, choose, describe_impossible, possible, read_starting
from depositum.peers.spanning_tree import SpanningTree
from depositum.peers.stranger_log import StrangerLog

#: Seconds between two looks at whether the user wants to stop.
LOOK = 0.2
#: What the program asks for outside of communication phases.
SUM, MINIMUM, BROADCAST = (Subject(-1, what) for what in ("sum", "minimum", "broadcast"))


class Wait(NamedTuple):
    """Whom a member waits for, since when, and for what."""

    name: str
    since: float
    what: str


class PeerCommunicator(Communicator):
    """One member's view of its federation.

    Parameters
    ----------
    folder
        The member's folder.
    device
        Where its rows live.
    log
        Writes one line to the log.
    interrupted
        Whether the user wants this member to stop; asked while it waits.
    listen
        Where this member listens, `host:port`, if that is not where its neighbours reach it: behind a forwarded port.

    Attributes
    ----------
    waiting
        Whom the program waits for at this moment.
    """

    stops_together = False
    finite_only = True

    def __init__(
        self,
        folder: MemberFolder,
        device: torch.device,
        log: Callable[[str], None],
        interrupted: Callable[[], bool] = lambda: False,
        listen: str | None = None,
    ) -> None:
        agreement = folder.agreement
        self.folder, self.agreement, self.log, self.interrupted = folder, agreement, log, interrupted
        self.name, self.names = folder.name, agreement.names
        self.rank, self.size = agreement.client(folder.name), len(agreement.members)
        self.device, self.wire = device, torch.device("cpu")
        self.changed = threading.Condition()
        self.drops = agreement.absent == "drop"
        self.journal = Journal(folder.runs, agreement.neighbours(folder.name)) if self.drops else None
        self.shelf = Shelf(folder.runs / "kept")
        self.sent, self.received = Account(folder.runs / SENT), Account(folder.runs / RECEIVED)
        self.largest = 0
        self.waiting: Wait | None = None
        self.strangers = StrangerLog(log)
        self.introduction = Introduction(agreement, folder.name, log)
        self.tree = SpanningTree(agreement.client_edges) if self.size > 1 else SpanningTree([])
        self._identity = Identity(folder)
        self._listener: Listener | None = None
        self._listen_at = listen or agreement.member(folder.name).address
        self._known: dict[str, Starting] = {}
        self._version, self._news = time.time_ns(), 0
        self._running = False
        self.edges = {agreement.client(name): self._edge(name) for name in agreement.neighbours(folder.name)}
        self._by_name = {edge.name: edge for edge in self.edges.values()}

    def _edge(self, name: str) -> Edge:
        if self.agreement.listener(self.name, name) == self.name:
            return Edge(name, self, None)
        address = self.agreement.member(name).address
        assert address is not None, "an agreement has an address for each end that listens"
        place = check_address("address", address)
        return Edge(name, self, lambda: self._identity.dial(name, place))

    # Before work

    def compare(self, what: str, facts: Callable[[], Facts], check: Callable[[Facts, Facts, str, str], None]) -> None:
        """Compare facts with each neighbour whenever it connects."""
        self.introduction.compare(what, facts(), check)

    def connect(self, candidates: Sequence[Candidate]) -> Candidate:
        """Connect with all neighbours, and find out from which of these checkpoints, newest first, to continue."""
        if any(self.agreement.listener(self.name, edge.name) == self.name for edge in self.edges.values()):
            address = self._listen_at
            assert address is not None
            place = check_address("listen", address)
            try:
                self._listener = Listener(self._identity, place, self._accept, self.strangers.refused)
            except OSError as error:
                used = "; is another program listening on this port?" if error.errno == errno.EADDRINUSE else ""
                reason = describe(error).partition(" (while")[0]
                raise GroupError(f"{address}: cannot listen there ({reason}){used}") from None
        for edge in self.edges.values():
            edge.open()
        choose = self._choose_alone if self.drops else self._choose
        began = time.monotonic()
        with self.changed:
            while (chosen := choose(candidates, time.monotonic() - began)) is None:
                self._wait_for_change(*self._missing())
        self.waiting = None
        return chosen

    def _all_here(self) -> bool:
        """Whether all neighbours are connected, and run the same."""
        for difference in self.introduction.differences.values():
            raise difference
        return all(edge.connected and (edge.is_starting or edge.position) for edge in self.edges.values())

    def _choose_alone(self, candidates: Sequence[Candidate], seconds: float) -> Candidate | None:
        """The newest: what this member has on disk is enough. Only the start waits for others, as long as agreed."""
        ready = self._all_here() or candidates[0].t > START or seconds > self.agreement.patience
        return candidates[0] if ready else None

    def _choose(self, candidates: Sequence[Candidate], seconds: float) -> Candidate | None:
        """Where to continue, or None as long as that depends on what is not known yet."""
        if not self._all_here():
            return None
        running = {edge.name: edge.position for edge in self.edges.values() if edge.position is not None}
        found = tuple(possible(candidates, running))
        if not found:
            raise describe_impossible(candidates, running)
        neighbours = tuple(edge.name for edge in self.edges.values() if edge.position is None)
        known = self._known.get(self.name)
        if known is None or (known.candidates, known.neighbours) != (found, neighbours):
            self._version = max(self._version + 1, time.time_ns())
            self._known[self.name] = Starting(self._version, found, neighbours)
            self._tell()
        return choose(self.name, self._known)

    def _missing(self) -> tuple[str, str]:
        """A neighbour that is waited for at the start, and what is missing."""
        for edge in self.edges.values():
            if not edge.connected:
                return edge.name, f"connection ({edge.problem})"
        for edge in self.edges.values():
            if edge.is_starting and edge.name not in self._known:
                return edge.name, "its neighbours"
        return next(iter(self._by_name)), "others to start"

    def start(self, candidate: Candidate, covered: Mapping[str, int]) -> None:
        """Begin to exchange messages; `covered` are those that an older checkpoint of this member had received."""
        for edge in self.edges.values():
            edge.start(candidate.sent[edge.name], candidate.received[edge.name], covered[edge.name])
        with self.changed:
            self._running = True

    def saved(self, received: Mapping[str, int]) -> None:
        """A checkpoint is on disk, and these messages had been received by the one before it."""
        for edge in self.edges.values():
            if self.journal is not None:
                self.journal.discard(INBOX, edge.name, received[edge.name])
            else:
                edge.cover(received[edge.name])

    def ended(self) -> None:
        """Tell neighbours that this member will ask for nothing any more."""
        for edge in self.edges.values():
            edge.cover(0, done=True)  # of a dropped exchange, a message may still be on its way

    @property
    def counts(self) -> tuple[dict[str, int], dict[str, int]]:
        """How many messages were sent to each neighbour, and asked for from it."""
        counts = {edge.name: edge.counts for edge in self.edges.values()}
        return {name: sent for name, (sent, _) in counts.items()}, {name: got for name, (_, got) in counts.items()}

    def position(self) -> dict[str, Tensor]:
        sent, received = self.counts
        numbers = {"sent": sent, "received": received}
        return {f"{what}.{name}": torch.tensor(n) for what, table in numbers.items() for name, n in table.items()}

    # The program

    def post(
        self, messages: Messages, buffers: Messages, tag: int, subject: Subject = SUM, check: Check | None = None
    ) -> Transfer:
        numbers = {}
        payloads = {id(message): self.shelf.payload(message) for message in messages.values()}
        if self.journal is not None:
            return self._post_droppable(self.journal, messages, buffers, subject, check, payloads)
        for peer in sorted(messages):
            self.edges[peer].send(payloads[id(messages[peer])], subject)
            numbers[peer] = self._expect(peer, buffers[peer], subject, check)
        return PeerTransfer(self, numbers, subject)

    def _post_droppable(
        self,
        journal: Journal,
        messages: Messages,
        buffers: Messages,
        subject: Subject,
        check: Check | None,
        payloads: dict[int, Payload],
    ) -> "DroppableTransfer":
        exchanges = {}
        for peer in sorted(messages):
            edge, payload = self.edges[peer], payloads[id(messages[peer])]
            number = self._expect(peer, buffers[peer], subject, check)
            assert number == edge.counts[0], "one message in each direction for every exchange"
            patience, decides = self.agreement.patience, self.rank < peer
            exchange = DroppableExchange(
                edge, journal, self.shelf, payload, subject, number, decides, patience, self._is_alone
            )
            exchange.begin()
            exchanges[peer] = exchange
        return DroppableTransfer(self, exchanges)

    def _is_alone(self) -> bool:
        return not any(edge.connected for edge in self.edges.values())

    def stands_still(self, t: int, period: int, exchanges: int) -> bool:
        """Whether this member was away in iteration t: all neighbours that are here went on without it.

        Its rows then stay what they were until the phase that its neighbours have come to.
        """
        journal = self.journal
        if journal is None:
            return False
        until = journal.stood_until(t)
        begins = until is None or until[0] == t
        if until is None:
            missed = [edge.missed() // exchanges for edge in self.edges.values() if edge.connected]
            if t % period or not missed or not min(missed):
                return False
            until = t, t + min(missed) * period
        if begins:
            for edge in self.edges.values():
                self._miss(journal, edge, t // period, (until[1] - t) // period, exchanges)
            journal.stand(*until)
        return True

    def _miss(self, journal: Journal, edge: Edge, phase: int, phases: int, exchanges: int) -> None:
        """Drop all exchanges of some phases."""
        nothing, first = torch.empty(0, dtype=torch.uint8), edge.counts[1]
        numbers = range(first, first + phases * exchanges)
        journal.record(Outcome.DROPPED, edge.name, *numbers)
        for number in numbers:
            subject = Subject(phase + (number - first) // exchanges, DROPPED)
            edge.expect(nothing, subject, lambda _: None)
            edge.send(self.shelf.payload(nothing), subject)
            edge.discard(number, subject.phase)

    def sum(self, z: Tensor) -> Tensor:
        return self._reduced(z, torch.add, SUM)

    def minimum(self, z: Tensor) -> Tensor:
        return self._reduced(z, torch.minimum, MINIMUM)

    def _reduced(self, z: Tensor, combine: Callable[[Tensor, Tensor], Tensor], subject: Subject) -> Tensor:
        """Towards the root of the tree, each member's own first and then its children's by id; and the result back."""
        branches = self.tree.branches(self.rank)
        total = z.detach().to("cpu", copy=True).contiguous()
        for child in branches.children:
            total = combine(total, self._receive(child, total, subject))
        if branches.parent is not None:
            self._send([branches.parent], total, subject)
            total = self._receive(branches.parent, total, subject)
        self._send(branches.children, total, subject)
        return total.to(z.device)

    def broadcast(self, z: Tensor, source: int) -> Tensor:
        branches = self.tree.branches(self.rank, root=source)
        value = z.detach().to("cpu", copy=True).contiguous()
        if branches.parent is not None:
            value = self._receive(branches.parent, value, BROADCAST)
        self._send(branches.children, value, BROADCAST)
        return value.to(z.device)

    def reduction(self, sharing: Sharing) -> Reduction:
        """With `"none"`, nothing is asked of others: every member's measures are its own."""
        return SINGLE_PROCESS if sharing == "none" else self

    def _send(self, peers: Sequence[int], value: Tensor, subject: Subject) -> None:
        if peers:
            payload = self.shelf.payload(as_bytes(value.clone()))
            for peer in peers:
                self.edges[peer].send(payload, subject)

    def _receive(self, peer: int, like: Tensor, subject: Subject) -> Tensor:
        buffer = torch.empty(like.numel() * like.element_size(), dtype=torch.uint8)
        number = self._expect(peer, buffer, subject, None)
        return self.take(peer, number, subject).view(like.dtype).view(like.shape)

    def _expect(self, peer: int, buffer: Tensor, subject: Subject, check: Check | None) -> int:
        return self.edges[peer].expect(buffer, subject, lambda message: check(peer, message) if check else None)

    def take(self, peer: int, number: int, subject: Subject) -> Tensor:
        """Wait for a message of a neighbour, for as long as it takes."""
        edge = self.edges[peer]
        what = f"{subject.what} of phase {subject.phase}" if subject.phase >= 0 else subject.what
        while (message := edge.take(number)) is None:
            with self.changed:
                if not edge.has(number):
                    self._wait_for_change(edge.name, what)
        self.waiting = None
        return message.content

    def settle(self, exchanges: Mapping[int, DroppableExchange], peer: int) -> Tensor | None:
        """Wait until it is known whether an exchange takes place; return the neighbour's row if it does."""
        while not exchanges[peer].done:
            for exchange in exchanges.values():
                exchange.advance()
            with self.changed:
                if not any(exchange.has_news() for exchange in exchanges.values() if not exchange.done):
                    if exchanges[peer].done:
                        break
                    late = exchanges[peer]
                    phase, what = late.subject
                    self._wait_for_change(late.edge.name, f"{what} of phase {phase}: {late.state}")
        self.waiting = None
        return exchanges[peer].row

    def _wait_for_change(self, name: str, what: str) -> None:
        """Wait a moment, and notice whatever ends the run; `changed` is held."""
        for edge in self.edges.values():
            if edge.failure is not None:
                raise edge.failure
            if edge.stopped:
                raise GroupError(edge.stopped)
        if self.interrupted():
            raise Interrupted
        same = self.waiting is not None and self.waiting.name == name
        self.waiting = Wait(name, self.waiting.since if same and self.waiting else time.time(), what)
        self.changed.wait(LOOK)

    # At the end

    def finish(self) -> bool:
        """Stay until no neighbour can need this member any more; where neighbours can be away, not for ever.

        Return whether that is so; connections are not closed yet.
        """
        with self.changed:
            end = time.monotonic() + self.agreement.patience if self.drops else math.inf
            while missing := [edge for edge in self.edges.values() if not edge.parted]:
                if time.monotonic() > end:
                    self.log(f"{missing[0].name} is not there at the end of the run")
                    break
                self._wait_for_change(missing[0].name, "the end of its run")
        self.waiting = None
        return not missing

    def close(self, reason: str = "") -> None:
        """Close all connections; with a reason, neighbours learn that the run has ended for good."""
        if self._listener is not None:
            self._listener.close()
        for edge in self.edges.values():
            edge.stop(reason)
        for edge in self.edges.values():
            edge.wait_until_stopped()
        if self.journal is not None:
            self.journal.close()
        self.strangers.close()
        self.shelf.close()
        self.sent.close()
        self.received.close()

    @contextmanager
    def closing(self) -> Iterator["PeerCommunicator"]:
        """Close whatever happens; neighbours learn of an error that ends the run for all."""
        try:
            yield self
        except DepositumError:
            self.close(self._last_words())
            raise
        except BaseException:
            self.close()
            raise

    def _last_words(self) -> str:
        """What ends the run of all members: a difference between two of them, found here or reported by a neighbour.

        Whatever else ends this member's run concerns this member alone (a full disk, for instance): the others wait
        until it is started again.
        """
        for edge in self.edges.values():
            if edge.stopped:
                return edge.stopped
        for difference in self.introduction.differences.values():
            return f"{self.name} stopped: {difference}"
        return ""

    # What edges need

    def hello(self) -> dict[str, Any]:
        with self.changed:
            return self.introduction.own() | {"starting": not self._running}

    def greeted(self, name: str, hello: Mapping[str, Any]) -> None:
        self.introduction.check(name, hello, fatal=not self._running)
        with self.changed:
            if hello.get("starting") is not True:
                self._known.pop(name, None)

    def checkpoints(self) -> tuple[int, dict[str, Any]]:
        with self.changed:
            return self._news, {name: starting.facts() for name, starting in self._known.items()}

    def heard_checkpoints(self, body: Mapping[str, Any]) -> None:
        with self.changed:
            news = False
            for name, facts in body.items():
                if name not in self.names or name == self.name:
                    continue
                starting = read_starting(facts, self.agreement.neighbours(name))
                if name not in self._known or self._known[name].version < starting.version:
                    self._known[name], news = starting, True
            if news:
                self.changed.notify_all()
                self._tell()

    def _tell(self) -> None:
        """Have edges tell what is known of checkpoints."""
        self._news += 1
        for edge in self.edges.values():
            edge.ring()

    def _accept(self, name: str, connection: Any) -> None:
        edge = self._by_name[name]
        if self.agreement.listener(self.name, name) != self.name:
            self.strangers.refused(name, f"{name!r} dialled, but it is the end that listens")
            connection.close()
            return
        edge.offer(connection)


class DroppableTransfer:
    """Exchanges with some neighbours, each of which takes place at both ends or at neither."""

    def __init__(self, communicator: PeerCommunicator, exchanges: dict[int, DroppableExchange]) -> None:
        self._communicator, self._exchanges = communicator, exchanges

    def receive(self, peer: int) -> Tensor | None:
        return self._communicator.settle(self._exchanges, peer)

    def close(self) -> None:
        """Wait until it is known of every exchange whether it takes place."""
        for peer in self._exchanges:
            self.receive(peer)


class PeerTransfer:
    """Messages on their way; each stays asked for until it has arrived."""

    def __init__(self, communicator: PeerCommunicator, numbers: dict[int, int], subject: Subject) -> None:
        self._communicator, self._numbers, self._subject = communicator, numbers, subject
        self._received: Messages = {}

    def receive(self, peer: int) -> Tensor:
        if peer not in self._received:
            self._received[peer] = self._communicator.take(peer, self._numbers[peer], self._subject)
        return self._received[peer]

    def close(self) -> None:
        """Wait for what was not received; what was sent is kept until it cannot be needed any more."""
        for peer in self._numbers:
            self.receive(peer)
