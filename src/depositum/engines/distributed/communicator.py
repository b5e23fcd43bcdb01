"""What the distributed engine needs of a transport: members, messages to neighbours, sums, agreement, failures.

A `Communicator` is one process's view of all processes of a run. A new transport implements the abstract methods;
nothing above this module depends on how messages travel.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

import depositum
from depositum.errors import ConfigError, GroupError, PeerLost
from depositum.metrics import Reduction, Sharing

#: Messages, uint8 `[bytes]`, by the rank that they go to or come from.
Messages = dict[int, Tensor]


#: What one process knows and others must know too: plain JSON by name.
Facts = dict[str, Any]
#: Refuses, by a `ConfigError`, facts of this process that differ from another's; the names of both follow.
Comparison = Callable[[Facts, Facts, str, str], None]
#: Raises a ValueError for a message of a rank that must not be used.
Check = Callable[[int, Tensor], None]


class Subject(NamedTuple):
    """What a message is about: the communication phase, −1 outside of one, and the variable or measure."""

    phase: int
    what: str


NO_SUBJECT = Subject(-1, "")


class Transfer(Protocol):
    """One message to each of some ranks, and one from each, on their way."""

    def receive(self, peer: int) -> Tensor | None:
        """Wait for the message of a rank and return it; None if the exchange takes place at neither end."""
        ...

    def close(self) -> None:
        """Wait until the messages of this process have left."""
        ...


class Communicator(ABC):
    """The processes of a run, as one of them sees them; it is a `Reduction` over them too.

    Every process calls the same methods in the same order.

    Attributes
    ----------
    rank, size
        Which of how many processes this is.
    names
        What each rank is called in messages.
    device
        Where the rows of this process live.
    wire
        Where messages are when they are sent and received.
    stops_together
        Whether processes agree to stop, or each stops, and resumes, on its own while the others wait.
    drops
        Whether exchanges with neighbours that are away may not take place.
    finite_only
        Whether rows that are not finite may not be sent: the run of their sender ends.
    """

    rank: int
    size: int
    names: list[str]
    device: torch.device
    wire: torch.device
    stops_together: bool
    drops: bool = False
    finite_only: bool = False

    @property
    def awaited(self) -> list[str]:
        """The names of the processes that this one waits for at the moment, as far as the transport knows."""
        return []

    @abstractmethod
    def post(
        self, messages: Messages, buffers: Messages, tag: int, subject: Subject = NO_SUBJECT, check: Check | None = None
    ) -> Transfer:
        """Send messages to some ranks, and receive one from each of them into a buffer of its size.

        Several exchanges can be under way.

        Parameters
        ----------
        tag
            The number of the exchange, the same at both ends of a link.
        subject
            What the messages are about, for a transport that keeps an account of them.
        check
            Raises a ValueError for a message of a rank that must not be used. A transport between parties that do not
            trust each other refuses such a message, and waits for a better one.
        """

    @abstractmethod
    def sum(self, z: Tensor) -> Tensor:
        """The sum of a tensor over all ranks, the same bits on each."""

    @abstractmethod
    def minimum(self, z: Tensor) -> Tensor:
        """The elementwise minimum of a tensor over all ranks."""

    @abstractmethod
    def broadcast(self, z: Tensor, source: int) -> Tensor:
        """The tensor of rank `source`; z gives its shape, dtype and device."""

    @abstractmethod
    def compare(self, what: str, facts: Callable[[], Facts], check: Comparison) -> None:
        """Have this process's facts compared with those of others before any work; `check` refuses what differs.

        `what` names the occasion in errors.
        """

    def stands_still(self, t: int, period: int, exchanges: int) -> bool:
        """Whether the rows held here do not change in iteration t, since this process was away.

        `exchanges` is how many there are in a phase.
        """
        return False

    def position(self) -> dict[str, Tensor]:
        """Numbers, without dimension, that a process which is resumed alone needs to continue its conversations."""
        return {}

    def reduction(self, sharing: Sharing) -> Reduction:
        """What measures are summed over, given what may be sent for them."""
        return self

    def describe_clients(self, clients: Sequence[Sequence[int]]) -> None:  # noqa: B027 (most need not)
        """Take note of the clients of each rank."""

    @contextmanager
    def all_or_none(self, what: str, patience: float = 600.0) -> Iterator[None]:
        """Do something before work that can fail; where processes start together, continue only if all succeed."""
        yield

    def barrier(self) -> None:
        """Wait until every rank has come here."""
        self.sum(torch.zeros(1))


class ClusterCommunicator(Communicator):
    """Processes that start together, fail together and trust each other.

    A process that dies or hangs makes the others raise `PeerLost`, which names it, within `timeout` seconds.

    Attributes
    ----------
    first_of_host
        Whether this is the first process of its host, which downloads data for the others.
    timeout
        Seconds within which a peer must answer.
    """

    stops_together = True
    first_of_host: bool
    timeout: float

    # What a transport implements

    @abstractmethod
    def exchange_values(self, value: Any, what: str, patience: float = 600.0) -> list[Any]:
        """Send a JSON value to all ranks, and return those of all ranks, by rank.

        `what` names the occasion in the error that reports who did not take part within `patience` seconds.
        """

    @abstractmethod
    def leave(self) -> None:
        """End the connection, after the last exchange, once every rank is here."""

    @abstractmethod
    def leave_reason(self, reason: str) -> None:
        """Leave word why this process is about to end, for the others to report when they miss it."""

    # What every such transport has

    def describe_clients(self, clients: Sequence[Sequence[int]]) -> None:
        """From now on include the clients of each rank in its name."""
        for rank, held in enumerate(clients):
            text = f"client {held[0]}" if len(held) == 1 else f"clients {held[0]}–{held[-1]}"
            head, _, tail = self.names[rank].partition("(")
            self.names[rank] = f"{head}({text}, {tail.rpartition(', ')[2]}"

    @contextmanager
    def all_or_none(self, what: str, patience: float = 600.0) -> Iterator[None]:
        """Do something on every rank, and continue only if all of them succeeded.

        An error inside is raised again on its own rank; the other ranks raise a `GroupError` with the rank and the
        reason. `patience` is how many seconds the slowest rank may take longer than this one.
        """
        error: Exception | None = None
        try:
            yield
        except Exception as found:
            error = found
        try:
            reasons = self.exchange_values(_reason(error), what, patience)
        except PeerLost:
            if error is not None:
                raise error from None
            raise
        if error is not None:
            raise error
        for rank, reason in enumerate(reasons):
            if reason:
                raise GroupError(**reason, reporter=f"{self.names[rank]} stopped: ")

    def compare(self, what: str, facts: Callable[[], Facts], check: Comparison) -> None:
        """Refuse, on the rank concerned, facts that differ from those of rank 0; a collective call."""
        with self.all_or_none(what):
            own = facts()
        first = self.exchange_values(own, what)[0]
        with self.all_or_none(what):
            check(json.loads(json.dumps(own)), first, self.names[self.rank], self.names[0])

    def check_same(self, settings: Mapping[str, Any]) -> None:
        """Refuse, on the rank concerned, settings or package versions that differ from those of rank 0.

        Nested tables are compared key by key.
        """
        own = json.loads(json.dumps({**_flattened(settings), **_versions()}))  # tuples become lists, as they arrive
        first = self.exchange_values(own, "compare the settings")[0]
        with self.all_or_none("compare the settings"):
            for key in [*first, *(k for k in own if k not in first)]:
                here, there = (json.dumps(s[key]) if key in s else "not set" for s in (own, first))
                if here != there:
                    ranks = f"{here} on {self.names[self.rank]}, but {there} on {self.names[0]}"
                    raise ConfigError(key, f"{ranks}; it must be the same on every rank")


def _reason(error: Exception | None) -> dict[str, Any]:
    """What another rank needs to report an error of this one: arguments of a `GroupError`; empty without an error."""
    if error is None:
        return {}
    if isinstance(error, ConfigError):
        return {"key": error.key, "problem": " ".join(error.problem.split()), "mentions": error.mentions}
    return {"problem": " ".join(str(error).split()) or type(error).__name__}


def _flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted keys."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            out |= _flattened(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out


def _versions() -> dict[str, str]:
    """What must be the same on every rank for one trajectory."""
    return {"version of depositum": depositum.__version__, "version of torch": torch.__version__.split("+")[0]}
