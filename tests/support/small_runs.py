"""Runs small enough to be tested by the dozen, and what is compared of them."""

import contextlib
import copy
import csv
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w
import torch

from depositum.cli import main
from depositum.engines import Callback, Loop
from depositum.runs import RunResult, execute, load

#: Four clients, a linear model of 15 parameters; evaluations and checkpoints do not coincide.
SMALL: dict[str, dict[str, Any]] = {
    "problem": {
        "dataset": {"synthetic": {"samples": 60, "features": 4, "classes": 3}},
        "clients": 4,
        "partition": {"dirichlet": 0.5},
        "regularizer": "l1",
        "beta": 1e-3,
    },
    "algorithm": {"alpha": 0.1, "gamma": 0.5},
    # On the CPU everywhere: the processes that tests start then need no GPU of their own.
    "run": {"steps": 20, "period": 3, "batch_size": 4, "evaluate_every": 4, "checkpoint_every": 6, "device": "cpu"},
    "metrics": {"costly_every": 8},
}

#: A person's own model: batch norm (buffers), and a pause per forward pass where a test wants time to interrupt it.
USER_MODEL = """
import os, pathlib, time
from torch import nn

class Own(nn.Sequential):
    def forward(self, x):
        time.sleep(float(os.environ.get("PAUSE", "0")))
        return super().forward(x)

def normalised(shape, classes):
    return Own(nn.Linear(shape[0], 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, classes))

def never_ready(shape, classes):
    pathlib.Path(os.environ["BUILDING"]).touch()
    time.sleep(60)
"""


def write_config(path: Path, **changes: dict[str, Any]) -> Path:
    """Write `SMALL` with some keys of its sections changed, and a person's own models beside it."""
    table = copy.deepcopy(SMALL)
    for section, keys in changes.items():
        table.setdefault(section, {}).update(keys)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(tomli_w.dumps(table), encoding="utf-8")
    (path.parent / "user_model.py").write_text(USER_MODEL, encoding="utf-8")
    return path


def train(
    config: Path, out: Path, *callbacks: Callback, overrides: tuple[str, ...] = ()
) -> tuple[RunResult, list[str]]:
    """Run a configuration file in this process; return the result and what was said."""
    said: list[str] = []
    checked = load(config, overrides)
    return execute(checked, out, callbacks=callbacks, say=said.append), said


def command(*arguments: object, **environment: str) -> "subprocess.Popen[str]":
    """Start the command line as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "depositum", *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder and its bytes: what must stay as it is."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def outcome(folder: Path, traced: bool = True) -> dict[str, Any]:
    """Everything of a run that may not depend on when it was stopped: all but wall time and the picture."""
    kept = {name: content for name, content in files(folder).items() if name.endswith(".safetensors")}
    kept.pop("state.previous.safetensors", None)
    with (folder / "history.csv").open(newline="") as file:
        history = [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]
    tables = {
        name: (folder / name).read_text()
        for name in ("consensus.csv", "perplexity.csv")
        if (folder / name).exists() and (traced or name != "consensus.csv")
    }
    return {**kept, "history": history, **tables}


class Killed(Exception):
    """Stands for the end of the process: nothing that comes after it is done."""


class KillAt(Callback):
    """Ends the run at a moment of an iteration, without a checkpoint of its own."""

    def __init__(self, t: int, moment: str = "on_step") -> None:
        self.t = t
        setattr(self, moment, self._end)

    def _end(self, loop: Loop, *_: object) -> None:
        if loop.t == self.t:
            raise Killed


class StopAt(Callback):
    """Asks the run to stop after an iteration, as the first Ctrl-C does."""

    def __init__(self, t: int) -> None:
        self.t = t

    def on_step(self, loop: Loop) -> None:
        loop.stop_requested = loop.stop_requested or loop.t == self.t


class LimitedMemory(Callback):
    """A device that cannot hold more than so many seeds, as it finds out at some iteration."""

    def __init__(self, seeds: int = 2, t: int = 0) -> None:
        self.seeds, self.t = seeds, t

    def on_evaluation(self, loop: Loop, records: list[dict[str, object]]) -> None:
        if loop.t >= self.t and len(loop.engine.problem.trials) > self.seeds:
            raise torch.OutOfMemoryError


class CommandResult(NamedTuple):
    """What a command ended with."""

    code: int
    out: str
    err: str


def cli(*arguments: object) -> CommandResult:
    """The command line in this process: quicker than one of its own, and the same code."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["depositum", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        sys.argv = before
    return CommandResult(code, out.getvalue(), err.getvalue())
