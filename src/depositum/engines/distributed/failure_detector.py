"""Finds out, when nothing arrives, which process died or hangs."""

import json
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from depositum.engines.distributed.meeting import KeyValueStore
from depositum.errors import PeerLost

#: Seconds from one heartbeat to the next.
TICK = 0.2
#: Seconds that finding out who hangs may take: the transport gives up so long after the time-out.
PATIENCE = 0.9
#: Seconds that finding out who died may take. A closed connection is noticed at once, so there is time, and on a busy
#: machine it is needed: a process that is alive may not be given a processor for a second.
SEARCH = 3.0
#: Looks in a row at which no further process showed a sign of life, until those that never did are taken for dead.
QUIET_LOOKS, QUIET_LOOKS_WHEN_LATE = 5, 3


class Wait(NamedTuple):
    """Since when, by this process's clock, this process waits, and for which ranks."""

    since: float
    peers: list[int]


class FailureDetector:
    """Notices, within `timeout` seconds, that a peer died or hangs, and finds out which.

    If one process hangs, its neighbours wait for it, their neighbours wait for them, and soon all wait. So every
    process has a thread that writes into the common store that it is alive (a heartbeat) and, once it has waited for
    half the time-out, for whom (a note). The rank to blame is found by following the notes from rank to rank to one
    that has left none: it does not wait, it is silent. A process that blames another leaves that verdict in the store,
    where those who wait look for it: when they then lose it, or the store, they name the same rank. It also leaves
    word that it ends, so that its own silence is not taken for a death.

    Parameters
    ----------
    names
        What each rank is called in messages.
    keeps_store
        Whether this process keeps the store, which the others need to find out whom they lost.
    """

    #: The rank on whose host the store is: if the store is lost, that rank is named.
    KEEPER = 0

    def __init__(
        self, store: KeyValueStore, rank: int, names: Sequence[str], timeout: float, keeps_store: bool
    ) -> None:
        self.store, self.rank, self.names, self.timeout, self.keeps_store = store, rank, names, timeout, keeps_store
        self._waiting: Wait | None = None
        self._noted: Wait | None = None
        self._verdict: list[int] | None = None
        #: Whether the verdict is another process's, which may withdraw it.
        self._adopted = False
        self._failed = False
        #: Why other ranks ended, where they left a reason.
        self._reasons: dict[int, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="depositum-failure-detector", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread: one that still uses the store when the process ends would abort it."""
        self._stop.set()
        self._thread.join(max(PATIENCE, self.timeout))

    @contextmanager
    def waiting_for(self, peers: Iterable[int]) -> Iterator[None]:
        """Wait for these ranks inside: what the transport raises becomes a `PeerLost` that names the rank to blame."""
        wait = Wait(time.monotonic(), sorted(set(peers)))
        self._waiting = wait
        try:
            yield
        except RuntimeError as error:
            late = time.monotonic() - wait.since >= self.timeout
            # A connection that closed by itself was that of the one waited for; in a collective it may be anyone's.
            raise self.lost(wait.peers, certain=not late and len(wait.peers) == 1, late=late) from error
        finally:
            self._waiting = None

    @property
    def awaited(self) -> list[int]:
        """The ranks that this process waits for at the moment."""
        waiting = self._waiting
        return waiting.peers if waiting else []

    def lost(self, suspects: Sequence[int], *, certain: bool, late: bool) -> PeerLost:
        """The error that names the rank to blame; `certain`: the suspects, unless others named a rank before."""
        self._failed = True
        # In a thread: if the store's host hangs, so does whoever asks it.
        asking = threading.Thread(target=self._settle, args=(list(suspects), certain, late), daemon=True)
        asking.start()
        asking.join(PATIENCE if late else PATIENCE + SEARCH)
        verdict = self._verdict
        if verdict is None:
            return self.store_lost(late)
        if self.keeps_store:
            # The store must outlive this error, so that the others can still ask it: a thread keeps the process alive.
            threading.Thread(target=self._outlive, args=(verdict,), daemon=False).start()
        if len(verdict) == 1 and verdict[0] in self._reasons:
            return PeerLost(f"{self.names[verdict[0]]} stopped: {self._reasons[verdict[0]]}", verdict)
        what = f"did not answer within {self.timeout:g} s: it hangs" if late else "is gone: it died"
        return PeerLost(f"{', '.join(self.names[r] for r in verdict)} {what}, or its network did", verdict)

    def store_lost(self, late: bool = False) -> PeerLost:
        """The error for a store that does not answer: its host is named, whoever else is silent because of that."""
        self._failed = True
        what = f"did not answer within {self.timeout:g} s: it hangs" if late else "is gone: it died"
        name = f"{self.names[self.KEEPER]}, on whose host the store is,"
        return PeerLost(f"{name} {what}, or its network did", [self.KEEPER])

    def leave_reason(self, reason: str) -> None:
        """Leave word why this process ends; the others report it when they miss it."""
        writing = threading.Thread(target=self._leave_word, args=(reason,), daemon=True)
        writing.start()
        writing.join(PATIENCE)

    def beats(self, ranks: Iterable[int]) -> dict[int, Any]:
        """The present heartbeat of some ranks: a value that changes while a process lives."""
        return {r: self._read(f"beat/{r}") for r in ranks}

    # In threads

    def _run(self) -> None:
        try:
            while not self._stop.wait(TICK):
                self._beat()
                wait = self._waiting
                if self._noted is not None and wait is not self._noted and not self._failed:
                    self._withdraw()
                if self._adopted or (wait is not None and self._verdict is None):
                    self._verdict = self._read("lost") if wait is not None else None
                    self._adopted = self._verdict is not None
                if wait is None:
                    continue
                waited = time.monotonic() - wait.since
                if waited > self.timeout / 2 and self._noted is None:
                    self.store.set(f"note/{self.rank}", json.dumps(wait.peers))
                    self._noted = wait
                if waited > self.timeout and self._verdict is None:
                    self._judge(wait.peers, certain=False, late=True)
        except RuntimeError:
            return  # the store is gone, and its host with it: the transport will report it

    def _beat(self) -> None:
        self.store.add(f"beat/{self.rank}", 1)

    def _withdraw(self) -> None:
        """The rank that was waited for has answered after all."""
        self.store.set(f"note/{self.rank}", "[]")
        self._noted = None
        if self._verdict is not None:
            self.store.delete_key("lost")
            self._verdict = None

    def _settle(self, suspects: list[int], certain: bool, late: bool) -> None:
        """Find out who is to blame, unless that is known, and leave word that this process ends because of it."""
        try:
            if self._verdict is None:
                self._judge(suspects, certain, late)
            self._reasons |= {r: self._read(f"reason/{r}") for r in self._verdict or () if self._has(f"reason/{r}")}
            self.store.set(f"left/{self.rank}", "1")
        except RuntimeError:
            return

    def _leave_word(self, reason: str) -> None:
        try:
            self.store.set(f"reason/{self.rank}", json.dumps(reason))
        except RuntimeError:
            return

    def _outlive(self, dead: Collection[int]) -> None:
        """Wait, for a while, until all ranks that are alive have found out whom they lost."""
        keys = [f"left/{r}" for r in range(len(self.names)) if r not in dead]
        end = time.monotonic() + PATIENCE + SEARCH
        try:
            while time.monotonic() < end and not self.store.check(keys):
                time.sleep(TICK)
        except RuntimeError:
            return

    def _judge(self, suspects: list[int], certain: bool, late: bool) -> None:
        """Find out who is to blame, and leave that in the store."""
        try:
            if (named := self._read("lost")) is not None:
                self._verdict = named
                return
            verdict = suspects if certain else self._culprits(suspects, late)
            # Others may have found out meanwhile, and ended: that they are silent now means nothing.
            self._verdict = self._read("lost") or verdict
            self.store.set("lost", json.dumps(self._verdict))
        except RuntimeError:
            return

    def _culprits(self, suspects: list[int], late: bool) -> list[int]:
        """The ranks to blame, among those that are reached from the suspects by following notes.

        Where a connection closed, they are the silent ones: a process that died while it waited has left a note too.
        Where an answer is late, they are those without a note, silent ones first.
        """
        others = [r for r in range(len(self.names)) if r != self.rank]
        silent = self._silent(others, late)
        notes = {r: self._read(f"note/{r}") for r in others}
        reached: set[int] = set()
        front = list(suspects)
        while front:
            rank = front.pop()
            if rank not in reached and rank != self.rank:
                reached.add(rank)
                front += notes[rank] or []
        dead = sorted(reached & silent)
        noteless = sorted(r for r in reached if not notes[r])
        if dead and not late:
            return dead
        return [r for r in noteless if r in silent] or noteless or dead or sorted(reached)

    def _silent(self, others: list[int], late: bool) -> set[int]:
        """The ranks that show no sign of life: neither a heartbeat nor word that they end.

        Where a connection closed, at least one rank is dead. If all seem alive, a last heartbeat of the dead one was
        still on its way, and the search begins again.
        """
        patience, enough = (PATIENCE, QUIET_LOOKS_WHEN_LATE) if late else (SEARCH, QUIET_LOOKS)
        end = time.monotonic() + patience
        before, silent, quiet = self.beats(others), set(others), 0
        while quiet < enough and time.monotonic() + TICK < end:
            time.sleep(TICK)
            self._beat()  # others may search at the same time
            beats = self.beats(silent)
            alive = {r for r in silent if beats[r] != before[r] or self._has(f"left/{r}")}
            silent -= alive
            quiet = 0 if alive else quiet + 1
            if not silent and late:
                break
            if not silent:
                before, silent, quiet = self.beats(others), set(others), 0
        return silent

    def _has(self, key: str) -> bool:
        return bool(self.store.check([key]))

    def _read(self, key: str) -> Any:
        """The value in the store under a key, or None if it is missing."""
        return json.loads(self.store.get(key)) if self._has(key) else None
