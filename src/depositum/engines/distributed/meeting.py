"""How the processes of one attempt find each other.

They meet in a store of keys and values at an address that all of them are given. The store may be older than this
attempt (torchrun's launcher keeps it while processes are restarted) or younger than some process (rank 0 keeps it, and
was itself restarted). So nothing about an earlier attempt may be read from it, and its end is not a failure: a process
that is waiting connects again.

Each process shows a random token that no other attempt has. Rank 0 admits the tokens that it sees to a part of the
store with the name of its own token, and once all ranks have confirmed there, all of them start. A token of a
process that has died is admitted too, but never confirms; its successor shows another one. No count of restarts is
needed, on which launchers that were themselves started at different times would not agree.
"""

import json
import socket
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

from depositum.errors import PeerLost
from depositum.launch import Launch

#: Prefix of all keys.
PREFIX = "depositum"
#: Seconds between two looks into the store.
POLL = 0.02
#: Seconds between two attempts to connect.
RETRY = 0.2
#: Seconds between two lines that report who is awaited.
REPORT_EVERY = 5.0


class Host(NamedTuple):
    """The host of a process: its name, and what tells it apart from others with this name."""

    name: str
    identity: str

    @classmethod
    def here(cls) -> "Host":
        boot = Path("/proc/sys/kernel/random/boot_id")
        return cls(socket.gethostname(), boot.read_text(encoding="ascii").strip() if boot.exists() else "")


class KeyValueStore(Protocol):
    """The part of torch's stores that is used here; a store that is lost raises a RuntimeError."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def delete_key(self, key: str, /) -> bool: ...


S = TypeVar("S", bound=KeyValueStore)


class Gathering(NamedTuple, Generic[S]):
    """All processes of one attempt: the store, the prefix of the keys that are theirs alone, the host of each rank."""

    store: S
    part: str
    hosts: list[Host]


def meet(launch: Launch, timeout: float, connect: Callable[[Launch, float], S]) -> Gathering[S]:
    """Meet all other processes, or raise `PeerLost` after `timeout` seconds; who is awaited is printed meanwhile.

    `connect` opens the store, within so many seconds; as rank 0 it creates it, unless torchrun's launcher did.
    """
    meeting = _Meeting(launch, timeout)
    while True:
        try:
            store = connect(launch, max(RETRY, meeting.left()))
            return Gathering(store, *meeting.hold(store))
        except (RuntimeError, OSError) as error:  # the store is not there yet, or ended with an earlier attempt
            meeting.problem = next(iter(str(error).strip().splitlines()), type(error).__name__)
            meeting.store, meeting.part = None, ""
            meeting.wait(RETRY)


class _Meeting:
    """One process's attempt to meet the others; a lost connection to the store begins it again."""

    def __init__(self, launch: Launch, timeout: float) -> None:
        self.launch, self.timeout, self.host = launch, timeout, Host.here()
        self.began = self.reported = time.monotonic()
        self.problem = ""
        #: The ranks that had not come when this process last looked; known even if rank 0 gives up first.
        self.missing: list[int] = []
        #: The store, and the prefix of the keys of those who meet here, once it is known.
        self.store: KeyValueStore | None = None
        self.part = ""

    def hold(self, store: KeyValueStore) -> tuple[str, list[Host]]:
        """Wait until all ranks are there; return the prefix of their keys, and their hosts."""
        self.store, rank = store, self.launch.rank
        token, looked = uuid.uuid4().hex, 0.0
        store.set(f"{PREFIX}/token/{rank}", token)
        while True:
            # Rank 0 may die and be succeeded by another one, which admits the same tokens to another part.
            part = f"{PREFIX}/{token}" if rank == 0 else self._admission(token)
            if part != self.part:
                self.part = part
                store.set(f"{part}/host/{rank}", json.dumps(self.host))
            if part:
                if store.check([f"{part}/complete"]):
                    hosts = [store.get(f"{part}/host/{r}") for r in range(self.launch.size)]
                    return part, [Host(*json.loads(text)) for text in hosts]
                if rank == 0:
                    self._admit(store)
                elif time.monotonic() - looked >= RETRY:
                    looked = time.monotonic()
                    self.missing = self._awaited()
            self.wait(POLL)

    def _admission(self, token: str) -> str:
        """The prefix of the keys to which rank 0 has admitted a token; empty as long as it has not."""
        assert self.store is not None
        key = f"{PREFIX}/admitted/{token}"
        return self.store.get(key).decode() if self.store.check([key]) else ""

    def _admit(self, store: KeyValueStore) -> None:
        """As rank 0: admit every token that is shown, and end the meeting when all ranks have confirmed."""
        awaited = self._awaited()
        for rank in awaited:
            if store.check([f"{PREFIX}/token/{rank}"]):
                token = store.get(f"{PREFIX}/token/{rank}").decode()
                store.set(f"{PREFIX}/admitted/{token}", self.part)
        if not awaited:
            store.set(f"{self.part}/complete", "1")

    def wait(self, seconds: float) -> None:
        """Sleep; report who is awaited from time to time, and give up at the end of the time-out."""
        if self.left() <= 0:
            raise self._gave_up()
        now = time.monotonic()
        if now - self.reported >= REPORT_EVERY:
            self.reported = now
            line = f"rank {self.launch.rank} waits for {self._describe_awaited()} ({self.left():.0f} s left)"
            print(line, file=sys.stderr, flush=True)
        time.sleep(seconds)

    def left(self) -> float:
        """Seconds until the time-out."""
        return self.began + self.timeout - time.monotonic()

    def _awaited(self) -> list[int]:
        """The ranks that have not come, as far as this process can know."""
        if self.store is None or not self.part:
            return [0] if self.launch.rank else list(range(1, self.launch.size))
        return [r for r in range(self.launch.size) if not self.store.check([f"{self.part}/host/{r}"])]

    def _describe_awaited(self) -> str:
        if self.store is None:
            return f"rank 0 at {self.launch.address}" if self.launch.rank else f"port {self.launch.port} to be free"
        return _names(self._awaited())

    def _gave_up(self) -> PeerLost:
        launch = self.launch
        here = f"rank {launch.rank} of {launch.size} (host {self.host.name})"
        if self.store is None and self.missing:
            who = f"{_names(self.missing)} did not come to {launch.address} within {self.timeout:g} s"
            return PeerLost(f"{who}, and rank 0 has left; has every process been started? ({here})", self.missing)
        if self.store is None:
            text = f"{here} met no others at {launch.address} within {self.timeout:g} s; is that address right and "
            return PeerLost(f"{text}reachable, and has every process been started? ({self.problem})", self._awaited())
        who = f"{self._describe_awaited()} did not come to {launch.address} within {self.timeout:g} s"
        return PeerLost(f"{who}; has every process been started, with this address? ({here})", self._awaited())


def _names(ranks: list[int]) -> str:
    return ", ".join(f"rank {r}" for r in ranks)
