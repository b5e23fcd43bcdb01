"""Small runs, callbacks that interrupt them, and what is compared of their results."""

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

#: Four clients and a linear model of 15 parameters; evaluations and checkpoints do not coincide.
SMALL: dict[str, dict[str, Any]] = {
    "problem": {
        "dataset": {"synthetic": {"samples": 60, "features": 4, "classes": 3}},
        "clients": 4,
        "partition": {"dirichlet": 0.5},
        "regularizer": "l1",
        "beta": 1e-3,
    },
    "algorithm": {"alpha": 0.1, "gamma": 0.5},
    # Always on the CPU, so that processes that tests start do not each need a GPU.
    "run": {"steps": 20, "period": 3, "batch_size": 4, "evaluate_every": 4, "checkpoint_every": 6, "device": "cpu"},
    "metrics": {"costly_every": 8},
}

#: A user-defined model with batch norm (buffers), and a pause per forward pass for tests that interrupt it.
USER_MODEL = """
import os, pathlib, time
from torch import nn

class Slow(nn.Sequential):
    def forward(self, x):
        time.sleep(float(os.environ.get("PAUSE", "0")))
        return super().forward(x)

def normalised(shape, classes):
    return Slow(nn.Linear(shape[0], 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, classes))

def never_ready(shape, classes):
    pathlib.Path(os.environ["BUILDING"]).touch()
    time.sleep(60)
"""

#: One weight that starts at 0.1 or at 1000, depending on the seed; the loss is w⁶/2, which diverges from 1000.
SIXTH_POWER = """
import torch
from torch import nn

class Power(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.where(torch.rand(1) < 0.5, 0.1, 1000.0))

    def forward(self, x):
        return self.w**3 + 0 * x

def power(shape, classes):
    return Power()
"""


def write_config(path: Path, **changes: dict[str, Any]) -> Path:
    """Write `SMALL` with some keys of its sections changed, and the module of user-defined models beside it."""
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
    """Run a configuration file in this process; return the result and the lines that were reported."""
    lines: list[str] = []
    return execute(load(config, overrides), out, callbacks=callbacks, say=lines.append), lines


def command(*arguments: object, **environment: str) -> "subprocess.Popen[str]":
    """Start the command line in a new process."""
    return subprocess.Popen(
        [sys.executable, "-m", "depositum", *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def files(folder: Path) -> dict[str, bytes]:
    """The bytes of every file below a folder, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def outcome(folder: Path, traced: bool = True) -> dict[str, Any]:
    """Everything in a run's folder that must not depend on interruptions: all but wall time and the figure."""
    tensors = {name: content for name, content in files(folder).items() if name.endswith(".safetensors")}
    tensors.pop("state.previous.safetensors", None)
    tensors = {name: content for name, content in tensors.items() if ".damaged" not in name}
    with (folder / "history.csv").open(newline="") as file:
        history = [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]
    tables = {
        name: (folder / name).read_text()
        for name in ("consensus.csv", "perplexity.csv")
        if (folder / name).exists() and (traced or name != "consensus.csv")
    }
    return {**tensors, "history": history, **tables}


class Killed(Exception):
    """Stands for the end of the process: nothing after it is executed."""


class KillAt(Callback):
    """Ends the run in a callback method at an iteration, without a checkpoint."""

    def __init__(self, t: int, moment: str = "on_step") -> None:
        self.t = t
        setattr(self, moment, self._kill)

    def _kill(self, loop: Loop, *_: object) -> None:
        if loop.t == self.t:
            raise Killed


class StopAt(Callback):
    """Asks the run to stop after an iteration, as the first Ctrl-C does."""

    def __init__(self, t: int) -> None:
        self.t = t

    def on_step(self, loop: Loop) -> None:
        loop.stop_requested = loop.stop_requested or loop.t == self.t


class LimitedMemory(Callback):
    """A device without memory for more than some trials, which raises an error at an evaluation from iteration t on."""

    def __init__(self, trials: int = 2, t: int = 0) -> None:
        self.trials, self.t = trials, t

    def on_evaluation(self, loop: Loop, records: list[dict[str, object]]) -> None:
        if loop.t >= self.t and len(loop.engine.problem.trials) > self.trials:
            raise torch.OutOfMemoryError


class CommandResult(NamedTuple):
    """The exit code and output of a command."""

    code: int
    out: str
    err: str


def cli(*arguments: object) -> CommandResult:
    """Run the command line in this process: the same code, and faster than in a new process."""
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
