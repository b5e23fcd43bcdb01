"""Who is to blame when nothing arrives.

If one process hangs, its neighbours wait for it, their neighbours wait for them, and soon all wait. To name the one
that hangs, every process has a thread that tells the others, through the store they met in, that it is alive (a beat)
and, once it has waited for half the time-out, for whom (a note). The one to blame is then found by following the notes
from rank to rank to one that has left none: it does not wait, it is silent. A process that names another leaves that
in the store too, where those who wait look for it: when they then lose it, or the store, they name the same one.
"""

import json
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from torch.distributed.distributed_c10d import Store

from depositum.errors import PeerLost

#: Seconds from one beat to the next.
TICK = 0.2
#: Seconds that finding out may take.
PATIENCE = 0.9
#: How long after the time-out the transport gives up by itself: those to blame are known by then.
GRACE = 1.0


class Wait(NamedTuple):
    """Since when, by this process's clock, and for which ranks."""

    since: float
    peers: list[int]


class Watch:
    """Notices, within `timeout` seconds, that a peer died or hangs.

    Parameters
    ----------
    names
        What each rank is called in a message: its clients and its host.
    keeper
        The rank whose process keeps the store; None if it is none of them (torchrun keeps it).
    """

    def __init__(self, store: Store, rank: int, names: Sequence[str], timeout: float, keeper: int | None) -> None:
        self.store, self.rank, self.names, self.timeout, self.keeper = store, rank, names, timeout, keeper
        self._waiting: Wait | None = None
        self._noted: Wait | None = None
        self._verdict: list[int] | None = None
        #: Whether the verdict is another's, and so may be taken back by it.
        self._heard = False
        self._failed = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_watch, name="depositum-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop beating. A thread that were still with the store when the process ends would abort it."""
        self._stop.set()
        self._thread.join(max(PATIENCE, self.timeout))

    @contextmanager
    def waiting_for(self, peers: Iterable[int]) -> Iterator[None]:
        """Wait inside for these ranks: what the transport raises becomes a `PeerLost` that names who is to blame."""
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

    def lost(self, suspects: Sequence[int], *, certain: bool, late: bool) -> PeerLost:
        """The error that names who is to blame; `certain`: the suspects themselves, unless others named one before."""
        self._failed = True
        if self._verdict is None:
            # In a thread: if the store's keeper hangs, so does whoever asks it.
            asking = threading.Thread(target=self._judge, args=(list(suspects), certain), daemon=True)
            asking.start()
            # A connection that closed is noticed at once, so there is time to find out, however busy the machine is.
            asking.join(PATIENCE if late else 2 * PATIENCE)
        if self.keeper == self.rank:
            # The store outlives this error, so that the others can still ask it: a thread keeps the process.
            threading.Thread(target=time.sleep, args=(2 * PATIENCE,), daemon=False).start()
        # No verdict: the store does not answer, so its keeper is the one.
        ranks = self._verdict or (list(suspects) if self.keeper is None else [self.keeper])
        what = f"did not answer within {self.timeout:g} s: it hangs" if late else "is gone: it died"
        return PeerLost(f"{', '.join(self.names[r] for r in ranks)} {what}, or its network did", ranks)

    # In the thread

    def _keep_watch(self) -> None:
        try:
            while not self._stop.wait(TICK):
                self.store.add(f"beat/{self.rank}", 1)
                wait = self._waiting
                if self._noted is not None and wait is not self._noted and not self._failed:
                    self._take_back()
                if self._heard or (wait is not None and self._verdict is None):
                    self._verdict = self._read("lost") if wait is not None else None
                    self._heard = self._verdict is not None
                if wait is None:
                    continue
                waited = time.monotonic() - wait.since
                if waited > self.timeout / 2 and self._noted is None:
                    self.store.set(f"note/{self.rank}", json.dumps(wait.peers))
                    self._noted = wait
                if waited > self.timeout and self._verdict is None:
                    self._judge(wait.peers, certain=False)
        except RuntimeError:
            return  # the store is gone, and its keeper with it: the transport will say so

    def _take_back(self) -> None:
        """The one that was waited for has answered after all."""
        self.store.set(f"note/{self.rank}", "[]")
        self._noted = None
        if self._verdict is not None:
            self.store.delete_key("lost")
            self._verdict = None

    def _judge(self, suspects: list[int], certain: bool) -> None:
        """Find out who is to blame, and leave it in the store."""
        try:
            if (named := self._read("lost")) is not None:
                self._verdict = named
                return
            verdict = suspects if certain else self._culprits(suspects)
            # Others may have found out meanwhile, and gone: that they are silent now says nothing.
            self._verdict = self._read("lost") or verdict
            self.store.set("lost", json.dumps(self._verdict))
        except RuntimeError:
            return

    def _culprits(self, suspects: list[int]) -> list[int]:
        """Those who are reached from the suspects by following notes, and have left none; the silent ones first."""
        others = [r for r in range(len(self.names)) if r != self.rank]
        before = {r: self._read(f"beat/{r}") for r in others}
        time.sleep(3 * TICK)
        silent = [r for r in others if self._read(f"beat/{r}") == before[r]]
        notes = {r: self._read(f"note/{r}") for r in others}
        reached: set[int] = set()
        front = list(suspects)
        while front:
            rank = front.pop()
            if rank not in reached and rank != self.rank:
                reached.add(rank)
                front += notes[rank] or []
        noteless = sorted(r for r in reached if not notes[r])
        return [r for r in noteless if r in silent] or noteless or sorted(reached)

    def _read(self, key: str) -> list[int] | None:
        """What is in the store under a key, if anything."""
        if not self.store.check([key]):
            return None
        value = json.loads(self.store.get(key))
        return value if isinstance(value, list) else [value]
