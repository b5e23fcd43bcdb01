"""Real processes for tests: started as torchrun would start them, and cheap.

They are forked from a server that has imported torch once and has never computed anything.
"""

import multiprocessing as mp
import os
import signal
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

CONTEXT = mp.get_context("forkserver")
# What runs import on the way, too: each process would otherwise spend seconds on it.
CONTEXT.set_forkserver_preload(
    ["tests.support.rank_engines", "tests.support.rank_runs", "matplotlib.pyplot", "sklearn.datasets"]
)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _main(
    rank: int, size: int, port: int, more: dict[str, str], pipe: Connection, work: Callable[..., Any], arguments: Any
) -> None:
    import torch

    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME="lo",
        **more,
    )
    pipe.send(work(*arguments))


class RankProcesses:
    """`size` processes that run `work(*arguments)`, and send what it returns; used in a `with`, which ends them.

    `kept` is the store of a launcher that outlives its processes, as torchrun's does, and which attempt this is.
    """

    def __init__(
        self,
        work: Callable[..., Any],
        size: int,
        *arguments: Any,
        per_rank: list[Any] | None = None,
        kept: tuple[int, int] | None = None,
    ) -> None:
        port, more = free_port(), {}
        if kept is not None:
            port, attempt = kept
            more = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": str(attempt)}
        self.processes, self.pipes = [], []
        for rank in range(size):
            here, there = CONTEXT.Pipe(duplex=False)
            own = (*arguments, *([per_rank[rank]] if per_rank else []))
            process = CONTEXT.Process(target=_main, args=(rank, size, port, more, there, work, own), daemon=True)
            process.start()
            there.close()
            self.processes.append(process)
            self.pipes.append(here)

    def __enter__(self) -> "RankProcesses":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join(5)

    def wait_for(self, folder: Path) -> None:
        """Until every rank has put a file there; a rank that ends before it fails the test."""
        while len(list(folder.iterdir())) < len(self.processes):
            assert all(process.is_alive() for process in self.processes), "a process ended before it had begun"
            time.sleep(0.02)

    def signal(self, rank: int, number: signal.Signals) -> None:
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def receive(self, rank: int, timeout: float = 60.0) -> Any:
        """The next thing that a rank sends."""
        assert self.pipes[rank].poll(timeout), f"rank {rank} sent nothing within {timeout} s"
        return self.pipes[rank].recv()

    def results(self, timeout: float = 120.0) -> list[Any]:
        """What every rank returned; all of them have ended by then."""
        end = time.monotonic() + timeout
        out = [self.receive(rank, max(0.0, end - time.monotonic())) for rank in range(len(self.pipes))]
        for process in self.processes:
            process.join(10)
            assert not process.is_alive(), "a process is left running"
        return out


def launch(work: Callable[..., Any], size: int, *arguments: Any, per_rank: list[Any] | None = None) -> list[Any]:
    """What `work(*arguments)` returns on each of `size` processes."""
    with RankProcesses(work, size, *arguments, per_rank=per_rank) as started:
        return started.results()
