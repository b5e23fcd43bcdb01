"""A communicator between the threads of one process, by queues: a second transport, for tests.

It implements what `ClusterCommunicator` leaves to a transport, and nothing else of the package knows of it.
"""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from typing import Any, TypeVar

import torch
from torch import Tensor

from depositum.engines.distributed import Check, ClusterCommunicator, Messages, Subject

T = TypeVar("T")


class Hub:
    """What the threads share: a barrier, a slot per rank, and a queue for each direction of each link and tag."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier, self.slots = size, threading.Barrier(size), [None] * size
        self._queues: dict[tuple[int, int, int], Queue[Tensor]] = {}
        self._lock = threading.Lock()

    def queue(self, source: int, target: int, tag: int) -> "Queue[Tensor]":
        with self._lock:
            return self._queues.setdefault((source, target, tag), Queue())

    def gather(self, rank: int, value: Any) -> list[Any]:
        """The values of all ranks, once all have given theirs."""
        self.slots[rank] = value
        self.barrier.wait(60)
        values = list(self.slots)
        self.barrier.wait(60)
        return values


class ThreadTransfer:
    """Messages between threads."""

    def __init__(self, hub: Hub, rank: int, tag: int, buffers: Messages) -> None:
        self._hub, self._rank, self._tag, self._buffers = hub, rank, tag, buffers
        self._waiting = set(buffers)

    def receive(self, peer: int) -> Tensor:
        if peer in self._waiting:
            self._waiting.remove(peer)
            self._buffers[peer].copy_(self._hub.queue(peer, self._rank, self._tag).get(timeout=60))
        return self._buffers[peer]

    def close(self) -> None:
        for peer in list(self._waiting):
            self.receive(peer)


class ThreadCommunicator(ClusterCommunicator):
    """One thread's view of all threads."""

    def __init__(self, hub: Hub, rank: int) -> None:
        self._hub, self.rank, self.size = hub, rank, hub.size
        self.names = [f"rank {r} (thread)" for r in range(hub.size)]
        self.device = self.wire = torch.device("cpu")
        self.first_of_host, self.timeout = rank == 0, 60.0
        self.bytes_posted = 0

    def exchange_values(self, value: Any, what: str, patience: float = 600.0) -> list[Any]:
        return [json.loads(text) for text in self._hub.gather(self.rank, json.dumps(value))]

    def post(
        self,
        messages: Messages,
        buffers: Messages,
        tag: int,
        subject: Subject | None = None,
        check: Check | None = None,
    ) -> ThreadTransfer:
        for peer, message in messages.items():
            self.bytes_posted += message.numel()
            self._hub.queue(self.rank, peer, tag).put(message.clone())
        return ThreadTransfer(self._hub, self.rank, tag, buffers)

    def sum(self, z: Tensor) -> Tensor:
        return torch.stack(self._hub.gather(self.rank, z.detach().clone())).sum(0)

    def minimum(self, z: Tensor) -> Tensor:
        return torch.stack(self._hub.gather(self.rank, z.detach().clone())).amin(0)

    def broadcast(self, z: Tensor, source: int) -> Tensor:
        values: list[Tensor] = self._hub.gather(self.rank, z.detach().clone())
        return values[source].clone()

    def leave(self) -> None:
        self.barrier()

    def leave_reason(self, reason: str) -> None:
        pass


def run_threads(size: int, work: Callable[[ThreadCommunicator], T]) -> list[T]:
    """What `work` returns on each of so many threads, which communicate with each other."""
    hub = Hub(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: work(ThreadCommunicator(hub, rank)), range(size)))
