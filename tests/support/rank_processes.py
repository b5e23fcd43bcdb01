"""Starts real processes for tests, with the environment that torchrun would give them, at little cost.

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
# Also what runs import later: each process would otherwise spend seconds on it.
CONTEXT.set_forkserver_preload(
    ["tests.support.rank_engines", "tests.support.rank_runs", "matplotlib.pyplot", "sklearn.datasets"]
)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait_for_line(log: Path, text: str, timeout: float = 60.0) -> None:
    """Wait until a log contains a text."""
    end = time.monotonic() + timeout
    while not (log.exists() and text in log.read_text(encoding="utf-8")):
        assert time.monotonic() < end, f"{log} does not contain {text!r} after {timeout} s"
        time.sleep(0.01)


def _main(
    rank: int,
    size: int,
    port: int,
    environment: dict[str, str],
    pipe: Connection,
    work: Callable[..., Any],
    arguments: Any,
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
        **environment,
    )
    pipe.send(work(*arguments))


class RankProcesses:
    """`size` processes that run `work(*arguments)` and send back its result; a context manager that ends them.

    `per_rank` has a last argument for each rank. `store` is the port of a store that outlives the processes, as
    torchrun's does, and the number of this attempt.
    """

    def __init__(
        self,
        work: Callable[..., Any],
        size: int,
        *arguments: Any,
        per_rank: list[Any] | None = None,
        store: tuple[int, int] | None = None,
    ) -> None:
        port, environment = free_port(), {}
        if store is not None:
            port, attempt = store
            environment = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": str(attempt)}
        self.processes, self.pipes = [], []
        for rank in range(size):
            here, there = CONTEXT.Pipe(duplex=False)
            own = (*arguments, *([per_rank[rank]] if per_rank else []))
            process = CONTEXT.Process(target=_main, args=(rank, size, port, environment, there, work, own), daemon=True)
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

    def wait_for_files(self, folder: Path) -> None:
        """Wait until every rank has created a file in the folder; fail if a rank ends before that."""
        while len(list(folder.iterdir())) < len(self.processes):
            assert all(process.is_alive() for process in self.processes), "a process ended before it had begun"
            time.sleep(0.02)

    def signal(self, rank: int, number: signal.Signals) -> None:
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def receive(self, rank: int, timeout: float = 60.0) -> Any:
        """The result of one rank."""
        assert self.pipes[rank].poll(timeout), f"rank {rank} sent nothing within {timeout} s"
        return self.pipes[rank].recv()

    def results(self, timeout: float = 120.0) -> list[Any]:
        """The results of all ranks, once all processes have ended."""
        end = time.monotonic() + timeout
        out = [self.receive(rank, max(0.0, end - time.monotonic())) for rank in range(len(self.pipes))]
        for process in self.processes:
            process.join(10)
            assert not process.is_alive(), "a process is still running"
        return out


def launch(work: Callable[..., Any], size: int, *arguments: Any, per_rank: list[Any] | None = None) -> list[Any]:
    """The results of `work(*arguments)` on each of `size` processes."""
    with RankProcesses(work, size, *arguments, per_rank=per_rank) as started:
        return started.results()
