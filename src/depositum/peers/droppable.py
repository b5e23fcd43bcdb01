"""Exchanges that need not take place: at both ends of an edge, or at neither, whatever fails when.

Each end sends one message for each exchange: its row or, if it continues without the other, the message that it was
dropped. Of the two ends, the one of the lower client decides:

    decider                              other end
    asks for the row
                                         writes down that it is sent, and sends it; it is in doubt from now on
    writes down that the exchange
    takes place, and sends its own row
                                         has that row: the exchange takes place

An end that waits longer than was agreed writes down that the exchange is dropped, and says so: the decider until it has
the other row, the other end until it has sent its own. From then on it must wait until it can ask, which takes as long
as the decider is away, and is the time of one row otherwise. What was written down is done again after a restart.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from depositum.engines.distributed import Subject
from depositum.peers.edge import Edge
from depositum.peers.frames import DROPPED
from depositum.peers.journal import Journal, Outcome
from depositum.peers.outbox import Payload, Shelf


@dataclass
class DroppableExchange:
    """One exchange on one edge, as one end sees it.

    Attributes
    ----------
    number
        The number of its message in both directions.
    decides
        Whether this end is the decider.
    patience
        Seconds that a silent neighbour is waited for.
    alone
        Tells whether this member has no connection with any neighbour.
    done
        Whether it is known if it takes place.
    row
        What the other end sent, uint8 `[bytes]`, if it takes place.
    """

    edge: Edge
    journal: Journal
    shelf: Shelf
    payload: Payload
    subject: Subject
    number: int
    decides: bool
    patience: float
    alone: Callable[[], bool] = lambda: False
    began: float = field(default_factory=time.monotonic)
    done: bool = False
    row: Tensor | None = None
    _sent: bool = False

    def begin(self) -> None:
        """Do at once what has been decided in an earlier session; otherwise ask for the row."""
        self.shelf.hold(self.payload)  # until it is known whether it is sent
        known = self.journal.outcome(self.edge.name, self.number)
        if known is Outcome.DROPPED:
            self._drop(decided=True)
        elif known is not None and not self.decides:
            self._send()
        elif known is None and self.decides:
            self.edge.ask(self.number)

    def advance(self) -> None:
        """Do what can be done now."""
        if self.done:
            return
        message = self.edge.take(self.number)
        if message is not None:
            if message.is_marker:
                self._drop()
            elif self.decides or self._sent:
                if self.decides:
                    if self.journal.outcome(self.edge.name, self.number) is None:
                        self.journal.record(Outcome.COMMITTED, self.edge.name, self.number)
                    self._send()
                self._settle(message.content)
            return
        if self._sent:
            return  # in doubt
        if not self.decides and self.edge.is_asked_for(self.number):
            self.journal.record(Outcome.SENT, self.edge.name, self.number)
            self._send()
        elif self._is_late() and self.journal.outcome(self.edge.name, self.number) is None:
            self._drop()

    def _is_late(self) -> bool:
        """Whether nothing has come for longer than was agreed; bytes of a long row are something.

        A neighbour that has gone is waited for once, not again in every phase: its time runs since it was lost. But a
        member that has lost all of them may be the one that is cut off, and does not hurry ahead alone.
        """
        edge = self.edge
        since = max(self.began, edge.progress) if edge.connected or self.alone() else edge.lost
        return time.monotonic() - since > self.patience

    def has_news(self) -> bool:
        """Whether `advance` may have something to do, other than to wait."""
        asked = not self.decides and not self._sent and self.edge.is_asked_for(self.number)
        return self.done or asked or self.edge.has(self.number)

    @property
    def state(self) -> str:
        """What is being waited for."""
        return "in doubt" if self._sent else "not there yet"

    def _send(self) -> None:
        if not self._sent:
            self.edge.send(self.payload, self.subject)
            self._sent = True

    def _drop(self, decided: bool = False) -> None:
        """Go on without the exchange; this end's own message says so, unless it has sent its row."""
        if not decided:
            self.journal.record(Outcome.DROPPED, self.edge.name, self.number)
        if not self._sent:
            nothing = self.shelf.payload(torch.empty(0, dtype=torch.uint8))
            self.edge.send(nothing, Subject(self.subject.phase, DROPPED))
        self.edge.discard(self.number, self.subject.phase)
        self._settle(None)

    def _settle(self, row: Tensor | None) -> None:
        self.row, self.done = row, True
        self.shelf.release(self.payload)
