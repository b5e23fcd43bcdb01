"""Members of a federation as processes, forked from one that has imported everything: starting one costs little."""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from depositum.engines import Callback, Loop
from depositum.errors import DepositumError
from depositum.federation.member_folder import MemberFolder
from depositum.peers import run_member
from tests.support.peer_federations import PORTS, dirichlet_problem

Found = TypeVar("Found")

ROOT = Path(__file__).resolve().parent.parent.parent


class Slow(Callback):
    """Iterations that take time, so that a member can be killed in the middle of them."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_step(self, loop: Loop) -> None:
        time.sleep(self.seconds)


class Saving(Callback):
    """Saves the rows of every checkpoint, by iteration; one that is saved again must be the same."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def on_checkpoint(self, loop: Loop) -> None:
        path, tensors = self.folder / f"{loop.t}.npz", loop.snapshot.tensors
        rows = {name: tensors[name].numpy() for name in ("x", "y", "nu")}
        if path.exists():
            before = np.load(path)
            if any((before[name] != rows[name]).any() for name in rows):
                (self.folder / "differs").write_text(str(loop.t))
        with path.with_suffix(".part").open("wb") as file:
            np.savez(file, **rows)
        path.with_suffix(".part").replace(path)


def member_process(path: str, seconds: float, listen: str | None) -> None:
    """What the process of a member does; its output is in a file of its folder."""
    folder = MemberFolder.open(path)
    with (folder.path / "output").open("a", buffering=1) as output:
        os.dup2(output.fileno(), 2)
        try:
            problem = dirichlet_problem(len(folder.agreement.members))
            callbacks = [Slow(seconds), Saving(folder.path / "saved")]
            run_member(
                folder, data=problem, callbacks=callbacks, say=lambda line: print(line, file=output), listen=listen
            )
        except DepositumError as error:
            print(f"error: {error}", file=output)
            sys.exit(error.exit_code)


class Processes:
    """Starts members."""

    def __init__(self) -> None:
        paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.support.peer_processes"])

    def start(self, folder: MemberFolder, seconds: float = 0.0, listen: str | None = None) -> BaseProcess:
        """Start a member."""
        process = self._context.Process(target=member_process, args=(str(folder.path), seconds, listen), daemon=True)
        process.start()
        return process


@dataclass
class Ending:
    """What a member has at the end of a run: everything that must not depend on what happened on the way."""

    state: bytes
    model: bytes
    history: list[list[str]]

    @classmethod
    def of(cls, folder: MemberFolder) -> "Ending":
        """The ending in a member's folder."""
        run = folder.runs
        client = folder.agreement.client(folder.name)
        lines = [line.split(",") for line in (run / "history.csv").read_text().splitlines()]
        seconds = lines[0].index("seconds")
        history = [fields[:seconds] + fields[seconds + 1 :] for fields in lines]
        state = (run / "clients" / f"{client}.safetensors").read_bytes()
        return cls(state, (run / "model.safetensors").read_bytes(), history)


def wait_for(processes: Sequence[BaseProcess], seconds: float) -> list[Any]:
    """The exit codes of processes; None for one that has not ended by then."""
    end = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    return [process.exitcode for process in processes]


#: Ports that each federation of a campaign has for itself.
PORTS_EACH = 20


def ports_of(number: int) -> Sequence[int]:
    """The ports of a campaign's federation of this number: no two that run at the same time have one in common."""
    first = PORTS_EACH * (number % (len(PORTS) // PORTS_EACH))
    return PORTS[first : first + PORTS_EACH]


def at_once(work: Callable[..., Found], tasks: Sequence[tuple[Any, ...]], jobs: int) -> Iterator[Found]:
    """What `work` returns for each task, in order; so many run at the same time, each in a process."""
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(work, *zip(*tasks, strict=True))
