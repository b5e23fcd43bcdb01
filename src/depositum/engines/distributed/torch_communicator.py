"""The communicator over `torch.distributed`, for the processes of one trusted cluster; nothing else imports it.

Processes find each other by torchrun's environment (`depositum.launch`) and keep a store in common, in which they also
find out who is to blame when nothing arrives.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from depositum.engines.distributed.communicator import Communicator, Messages
from depositum.engines.engine import EngineSettings
from depositum.errors import ConfigError, GroupError, PeerLost
from depositum.launch import Launch

#: Numbers the communicators that this process has made, one after the other: each has its own part of the store.
_joined = count()
#: Seconds between two looks into the store, at the start.
POLL = 0.02
#: Seconds from one heartbeat to the next.
TICK = 0.2
#: Seconds that finding out who is lost may take.
PATIENCE = 0.9
#: How long after the time-out the transport gives up by itself: those to blame are known by then.
GRACE = 1.0


def join(timeout: float = 60.0, device: str = "auto") -> "TorchCommunicator":
    """Meet the other processes, at the address that torchrun's environment names.

    Parameters
    ----------
    timeout
        Seconds within which all processes must have started and, later, within which a peer must answer.
    device
        `"auto"`: a GPU of this process's own if there is one for each process of this host, else the CPU; `"cpu"`;
        `"cuda"` or `"cuda:1"`, which processes may share (their rows then travel through the CPU).
    """
    launch = Launch.from_environment()
    if not timeout > 0:
        raise ConfigError("timeout", f"{timeout!r} given; it must be a number of seconds > 0")
    chosen, nccl = _choose_device(device, launch)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
        # By itself, NCCL ends the process when it notices a failure; who is lost must be reported first.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    limit = timedelta(seconds=timeout)
    try:
        store, rank, size = next(iter(rendezvous("env://", timeout=limit)))
        store.set_timeout(limit)
        # torchrun may keep one store for all its restarts: what an earlier attempt left there must not be read.
        store = PrefixStore(f"attempt {launch.attempt}/{next(_joined)}", store)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if nccl else "gloo",
            store=PrefixStore("transport", store),
            rank=rank,
            world_size=size,
            timeout=limit + timedelta(seconds=GRACE),
        )
        communicator = TorchCommunicator(PrefixStore("depositum", store), launch, chosen, nccl, timeout)
    except (RuntimeError, OSError, ValueError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise GroupError(
            f"rank {launch.rank} of {launch.size} (host {socket.gethostname()}) met no others at {launch.address} "
            f"within {timeout:g} s; is that address right and reachable, and has every process been started? ({reason})"
        ) from None
    if nccl:
        communicator.sum(torch.zeros(1, device=chosen))  # NCCL needs every rank at its first exchange
    return communicator


def _choose_device(device: str, launch: Launch) -> tuple[torch.device, bool]:
    """The device of this process, and whether its rows travel by NCCL."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    own = gpus >= launch.local_size and dist.is_nccl_available()
    if device == "auto" and not own:
        return torch.device("cpu"), False
    chosen = EngineSettings(device).resolve_device()
    if chosen.type == "cuda" and ":" not in device:
        return torch.device("cuda", launch.local_rank % gpus), own
    return chosen, False


class TorchCommunicator(Communicator):
    """The processes of a run over `torch.distributed`; created by `join`."""

    def __init__(self, store: Store, launch: Launch, device: torch.device, nccl: bool, timeout: float) -> None:
        self.store, self.rank, self.size, self.timeout = store, launch.rank, launch.size, timeout
        self.device, self.nccl = device, nccl
        self.first_of_host = launch.local_rank == 0
        self.wire = device if nccl else torch.device("cpu")
        self._meetings = 0
        store.set(f"host/{self.rank}", socket.gethostname())
        hosts = store.multi_get([f"host/{r}" for r in range(self.size)])
        self.names = [f"rank {r} (host {host.decode()})" for r, host in enumerate(hosts)]
        self._keeper = None if launch.agent_keeps_store else 0
        self.failures = FailureDetector(store, self.rank, self.names, timeout, self._keeper)

    def exchange_values(self, value: Any, what: str, patience: float = 600.0) -> list[Any]:
        self._meetings += 1
        prefix = f"meeting {self._meetings}"
        keys = [f"{prefix}/{r}" for r in range(self.size)]
        self.store.set(keys[self.rank], json.dumps(value))
        end = time.monotonic() + patience
        # By polling, not by the store's own wait: a signal is noticed in between.
        while not self.store.check(keys):
            if time.monotonic() > end:
                absent = [r for r, key in enumerate(keys) if not self.store.check([key])]
                names = ", ".join(self.names[r] for r in absent)
                raise PeerLost(f"{names} did not complete {what!r} within {patience:g} s", absent)
            time.sleep(POLL)
        values = [json.loads(text) for text in self.store.multi_get(keys)]
        self._wait_for_readers(prefix)
        return values

    def _wait_for_readers(self, prefix: str) -> None:
        """The rank that keeps the store stays until every rank has read the values."""
        if self.store.add(f"{prefix}/read", 1) == self.size:
            self.store.set(f"{prefix}/done", "1")
        if self._keeper == self.rank:
            try:
                self.store.wait([f"{prefix}/done"], timedelta(seconds=self.timeout))
            except RuntimeError:
                return

    def post(self, messages: Messages, buffers: Messages, tag: int) -> "TorchTransfer":
        return TorchTransfer(self, messages, buffers, tag)

    def sum(self, z: Tensor) -> Tensor:
        return self._reduced(z, dist.ReduceOp.SUM)

    def minimum(self, z: Tensor) -> Tensor:
        return self._reduced(z, dist.ReduceOp.MIN)

    def broadcast(self, z: Tensor, source: int) -> Tensor:
        there = z.detach().to(self.wire, copy=True).contiguous()
        if self.size > 1:
            with self._waiting_for_all():
                self.complete(dist.broadcast(there, source, async_op=True))
        return there.to(z.device)

    def _reduced(self, z: Tensor, operation: Any) -> Tensor:
        there = z.detach().to(self.wire, copy=True).contiguous()
        if self.size > 1:
            with self._waiting_for_all():
                self.complete(dist.all_reduce(there, operation, async_op=True))
        return there.to(z.device)

    @contextmanager
    def _waiting_for_all(self) -> Iterator[None]:
        with self.failures.waiting_for(r for r in range(self.size) if r != self.rank):
            yield

    def complete(self, work: Any) -> None:
        """Wait for a transfer; a peer that hangs makes it raise a RuntimeError, a second after the time-out."""
        if self.nccl:
            # NCCL's own wait does not block the host, and so would not notice anything.
            end = time.monotonic() + self.timeout + GRACE
            while not work.is_completed():
                if time.monotonic() > end:
                    raise RuntimeError("timed out")
                time.sleep(1e-5)
        work.wait()

    def leave(self) -> None:
        self.barrier()  # a connection that is closed too early may lose rows
        self.failures.close()
        dist.destroy_process_group()


class TorchTransfer:
    """Messages on their way, all posted at once."""

    def __init__(self, communicator: TorchCommunicator, messages: Messages, buffers: Messages, tag: int) -> None:
        self._communicator, self._buffers = communicator, buffers
        self._arriving: dict[int, Any] = {}
        self._leaving: dict[int, Any] = {}
        operations = [dist.P2POp(dist.irecv, buffer, peer, tag=tag) for peer, buffer in buffers.items()]
        operations += [dist.P2POp(dist.isend, message, peer, tag=tag) for peer, message in messages.items()]
        if not operations:
            return
        with communicator.failures.waiting_for([*buffers, *messages]):
            works = dist.batch_isend_irecv(operations)
        if len(works) < len(operations):
            works = works[:1] * len(operations)  # NCCL merges them into one transfer
        self._arriving = dict(zip(buffers, works, strict=False))
        self._leaving = dict(zip(messages, works[len(buffers) :], strict=True))

    def receive(self, peer: int) -> Tensor:
        self._complete(self._arriving, peer)
        return self._buffers[peer]

    def close(self) -> None:
        for works in (self._arriving, self._leaving):
            for peer in list(works):
                self._complete(works, peer)

    def _complete(self, works: dict[int, Any], peer: int) -> None:
        if peer in works:
            with self._communicator.failures.waiting_for([peer]):
                self._communicator.complete(works.pop(peer))


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
    where those who wait look for it: when they then lose it, or the store, they name the same rank.

    Parameters
    ----------
    names
        What each rank is called in messages.
    keeper
        The rank whose process keeps the store; None if torchrun keeps it.
    """

    def __init__(self, store: Store, rank: int, names: Sequence[str], timeout: float, keeper: int | None) -> None:
        self.store, self.rank, self.names, self.timeout, self.keeper = store, rank, names, timeout, keeper
        self._waiting: Wait | None = None
        self._noted: Wait | None = None
        self._verdict: list[int] | None = None
        #: Whether the verdict is another process's, which may withdraw it.
        self._adopted = False
        self._failed = False
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

    def lost(self, suspects: Sequence[int], *, certain: bool, late: bool) -> PeerLost:
        """The error that names the rank to blame; `certain`: the suspects, unless others named a rank before."""
        self._failed = True
        if self._verdict is None:
            # In a thread: if the store's keeper hangs, so does whoever asks it.
            asking = threading.Thread(target=self._judge, args=(list(suspects), certain), daemon=True)
            asking.start()
            # A connection that closed is noticed at once, so there is time to find out, however busy the machine is.
            asking.join(PATIENCE if late else 2 * PATIENCE)
        if self.keeper == self.rank:
            # The store must outlive this error, so that the others can still ask it: a thread keeps the process alive.
            threading.Thread(target=time.sleep, args=(2 * PATIENCE,), daemon=False).start()
        # Without a verdict the store does not answer, so its keeper is the one.
        ranks = self._verdict or (list(suspects) if self.keeper is None else [self.keeper])
        what = f"did not answer within {self.timeout:g} s: it hangs" if late else "is gone: it died"
        return PeerLost(f"{', '.join(self.names[r] for r in ranks)} {what}, or its network did", ranks)

    # In the thread

    def _run(self) -> None:
        try:
            while not self._stop.wait(TICK):
                self.store.add(f"beat/{self.rank}", 1)
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
                    self._judge(wait.peers, certain=False)
        except RuntimeError:
            return  # the store is gone, and its keeper with it: the transport will report it

    def _withdraw(self) -> None:
        """The rank that was waited for has answered after all."""
        self.store.set(f"note/{self.rank}", "[]")
        self._noted = None
        if self._verdict is not None:
            self.store.delete_key("lost")
            self._verdict = None

    def _judge(self, suspects: list[int], certain: bool) -> None:
        """Find out who is to blame, and leave that in the store."""
        try:
            if (named := self._read("lost")) is not None:
                self._verdict = named
                return
            verdict = suspects if certain else self._culprits(suspects)
            # Others may have found out meanwhile, and ended: that they are silent now means nothing.
            self._verdict = self._read("lost") or verdict
            self.store.set("lost", json.dumps(self._verdict))
        except RuntimeError:
            return

    def _culprits(self, suspects: list[int]) -> list[int]:
        """The ranks that are reached from the suspects by following notes and have left none; silent ones first."""
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
        """The value in the store under a key, if there is one."""
        if not self.store.check([key]):
            return None
        value = json.loads(self.store.get(key))
        return value if isinstance(value, list) else [value]
