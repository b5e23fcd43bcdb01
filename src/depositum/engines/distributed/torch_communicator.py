"""The communicator over `torch.distributed`, for the processes of one trusted cluster; nothing else imports it.

Processes find each other by their environment (`depositum.launch`, `meeting`) and keep a store in common, in which they
also find out who is to blame when nothing arrives (`failure_detector`).
"""

import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from depositum.engines.distributed.communicator import NO_SUBJECT, Check, ClusterCommunicator, Messages, Subject
from depositum.engines.distributed.failure_detector import FailureDetector
from depositum.engines.distributed.meeting import POLL, Host, meet
from depositum.engines.engine import EngineSettings
from depositum.errors import ConfigError, GroupError, PeerLost
from depositum.launch import Launch

#: How long after the time-out the transport gives up by itself: those to blame are known by then.
GRACE = 1.0
#: Seconds between two looks at the heartbeats of ranks that have not answered yet.
LISTEN = 1.0


def join(timeout: float = 60.0, device: str = "auto") -> "TorchCommunicator":
    """Meet the other processes, at the address that the environment names.

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
    common, part, hosts = meet(launch, timeout, _connect)
    common.set_timeout(timedelta(seconds=timeout))
    store = PrefixStore(part, common)
    local = _local_position(launch, hosts)
    chosen, nccl = _choose_device(device, *local)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
        # By itself, NCCL ends the process when it notices a failure; who is lost must be reported first.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if nccl else "gloo",
            store=PrefixStore("transport", store),
            rank=launch.rank,
            world_size=launch.size,
            timeout=timedelta(seconds=timeout + GRACE),
        )
    except (RuntimeError, OSError, ValueError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise GroupError(
            f"rank {launch.rank} of {launch.size} (host {hosts[launch.rank].name}) met the others at {launch.address}, "
            f"but could not connect to them; is GLOO_SOCKET_IFNAME the interface that they can reach? ({reason})"
        ) from None
    communicator = TorchCommunicator(PrefixStore("run", store), launch, hosts, local[0] == 0, chosen, nccl, timeout)
    if nccl:
        communicator.sum(torch.zeros(1, device=chosen))  # NCCL needs every rank at its first exchange
    return communicator


def _connect(launch: Launch, timeout: float) -> Store:
    """Connect to the store or, as the rank that keeps it, create it."""
    keeps_store = launch.rank == 0 and not launch.agent_keeps_store
    if not keeps_store:
        # By a plain connection first: torch prints a stack trace if it fails.
        socket.create_connection((launch.host, launch.port), timeout=timeout).close()
    limit = timedelta(seconds=timeout)
    store: Store = TCPStore(
        launch.host, launch.port, None, keeps_store, limit, wait_for_workers=False, multi_tenant=keeps_store
    )
    return store


def _local_position(launch: Launch, hosts: Sequence[Host]) -> tuple[int, int]:
    """Which of how many processes of its host this is; from the hosts, where the environment does not have it."""
    same = [rank for rank, host in enumerate(hosts) if host == hosts[launch.rank]]
    rank = same.index(launch.rank) if launch.local_rank is None else launch.local_rank
    return rank, launch.local_size or len(same)


def _choose_device(device: str, local_rank: int, local_size: int) -> tuple[torch.device, bool]:
    """The device of this process, and whether its rows travel by NCCL."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    own = gpus >= local_size and dist.is_nccl_available()
    if device == "auto" and not own:
        return torch.device("cpu"), False
    chosen = EngineSettings(device).resolve_device()
    if chosen.type == "cuda" and ":" not in device:
        return torch.device("cuda", local_rank % gpus), own
    return chosen, False


class TorchCommunicator(ClusterCommunicator):
    """The processes of a run over `torch.distributed`; created by `join`."""

    def __init__(
        self,
        store: Store,
        launch: Launch,
        hosts: Sequence[Host],
        first_of_host: bool,
        device: torch.device,
        nccl: bool,
        timeout: float,
    ) -> None:
        self.store, self.rank, self.size, self.timeout = store, launch.rank, launch.size, timeout
        self.device, self.nccl = device, nccl
        self.first_of_host = first_of_host
        self.wire = device if nccl else torch.device("cpu")
        self._meetings = 0
        self._keeps_store = self.rank == 0 and not launch.agent_keeps_store
        self.names = [f"rank {r} (host {host.name})" for r, host in enumerate(hosts)]
        self.failures = FailureDetector(store, self.rank, self.names, timeout, self._keeps_store)

    def exchange_values(self, value: Any, what: str, patience: float = 600.0) -> list[Any]:
        self._meetings += 1
        prefix = f"meeting {self._meetings}"
        keys = [f"{prefix}/{r}" for r in range(self.size)]
        try:
            self.store.set(keys[self.rank], json.dumps(value))
            self._wait_for_keys(keys, what, patience)
            values = [json.loads(text) for text in self.store.multi_get(keys)]
            self._wait_for_readers(prefix)
        except RuntimeError:
            raise self.failures.store_lost() from None
        return values

    def _wait_for_keys(self, keys: list[str], what: str, patience: float) -> None:
        """Wait until every rank has written its key; one that is slow may be, one whose heartbeats stop is lost.

        By polling, not by the store's own wait: a signal is noticed in between.
        """
        now = time.monotonic()
        end, listened = now + patience, now
        beats: dict[int, Any] = {}
        heard: dict[int, float] = {}
        while not self.store.check(keys):
            now = time.monotonic()
            if now - listened >= LISTEN or now > end:
                listened = now
                absent = [r for r, key in enumerate(keys) if not self.store.check([key])]
                for rank, beat in self.failures.beats(absent).items():
                    if beats.get(rank) != beat or rank not in heard:
                        beats[rank], heard[rank] = beat, now
                silent = [r for r in absent if now - heard[r] > self.timeout]
                if silent:
                    raise self.failures.lost(silent, certain=True, late=False)
                if now > end:
                    names = ", ".join(self.names[r] for r in absent)
                    raise PeerLost(f"{names} did not complete {what!r} within {patience:g} s", absent)
            time.sleep(POLL)

    def _wait_for_readers(self, prefix: str) -> None:
        """The rank that keeps the store stays until every rank has read the values."""
        if self.store.add(f"{prefix}/read", 1) == self.size:
            self.store.set(f"{prefix}/done", "1")
        if self._keeps_store:
            try:
                self.store.wait([f"{prefix}/done"], timedelta(seconds=self.timeout))
            except RuntimeError:
                return

    @property
    def awaited(self) -> list[str]:
        return [self.names[rank] for rank in self.failures.awaited]

    def leave_reason(self, reason: str) -> None:
        self.failures.leave_reason(reason)

    def post(
        self, messages: Messages, buffers: Messages, tag: int, subject: Subject = NO_SUBJECT, check: Check | None = None
    ) -> "TorchTransfer":
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
