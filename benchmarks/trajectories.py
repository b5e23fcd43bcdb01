"""Record the results of many small runs, and compare the records of two versions of the package.

    python benchmarks/trajectories.py record OUT [--only PATTERN]
    python benchmarks/trajectories.py compare OLD NEW [--only PATTERN] [--except NAME=REASON]...
    python benchmarks/trajectories.py continue OLD OUT [--only PATTERN] [--except NAME=REASON]...

`record` runs every case below and writes `OUT/records/CASE.npz`: the final state, the averaged model and all tables of
a run (histories without wall time). All runs are in float64 on the CPU, not compiled, on a fixed backend. It also
leaves unfinished run folders in `OUT/unfinished`: shortened, interrupted and killed runs.

`compare` prints the largest difference of each case and exits with 1 if one exceeds 1e-12 relative to max(1, |value|),
or if a case is missing.

`continue` resumes copies of the unfinished folders of another version's record with the installed version, and compares
the results with those of the uninterrupted runs in that record.

Only public entry points are used (the command line and `depositum.fit`), so that one script serves all versions. Select
the version with PYTHONPATH.
"""

import argparse
import contextlib
import csv
import fnmatch
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from safetensors.numpy import load_file
from torch import nn

TOLERANCE = 1e-12
#: Columns of tables that hold wall time.
WALL_TIME = {"seconds"}

Table = dict[str, Any]
Record = dict[str, np.ndarray[Any, Any]]

#: User-defined code beside every configuration: models, a method and a regularizer.
USER_CODE = '''
import os
import signal
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from depositum.algorithms import ALGORITHMS, About, Algorithm
from depositum.regularizers import Regularizer

passes = 0


def stop_if_asked():
    """Send this process a signal after a number of forward passes: STOP_AFTER=SIGNAL:PASSES."""
    global passes
    passes += 1
    number, _, after = os.environ.get("STOP_AFTER", "").partition(":")
    if number and passes == int(after):
        os.kill(os.getpid(), int(number))


class Stopping(nn.Sequential):
    def forward(self, x):
        stop_if_asked()
        return super().forward(x)


def normalised(shape, classes):
    return Stopping(nn.Flatten(), nn.Linear(shape[-1], 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, classes))


def with_dropout(shape, classes):
    return nn.Sequential(nn.Linear(shape[-1], 6), nn.Dropout(0.3), nn.Tanh(), nn.Linear(6, classes))


def convolutional(shape, classes):
    return nn.Sequential(nn.Conv2d(shape[0], 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, classes))


class State(NamedTuple):
    t: Tensor
    x: Tensor


@dataclass(frozen=True)
class ProxDSGD(Algorithm):
    """Decentralized proximal SGD."""

    name: ClassVar[str] = "prox-dsgd"
    about: ClassVar[About] = About("Decentralized proximal SGD", "an example")
    alpha: float = 0.1

    def init(self, x0, oracle, mix):
        return State(torch.zeros((), dtype=torch.int64, device=x0.device), x0)

    def step(self, s, oracle, mix, kind):
        g = oracle.grad(s.x, oracle.sample())
        return State(s.t + 1, mix(oracle.prox(s.x - self.alpha * g, self.alpha)))

    def vectors(self):
        return 1

    def largest_prox_step(self, period):
        return self.alpha

    def stepsize(self, t):
        return self.alpha


@dataclass(frozen=True)
class Huber(Regularizer):
    delta: float = 1.0

    def value(self, x):
        small = x.abs().clamp(max=self.delta)
        return (small * (x.abs() - small / 2) / self.delta).sum(-1)

    def _prox(self, z, tau):
        return z - tau * (z / (self.delta + tau)).clamp(-1, 1)
'''

#: Every registered method.
METHODS = [
    "depositum",
    "d-psgd",
    "dsgt",
    "dproxsgt",
    "cdproxsgt",
    "deepstorm",
    "dfedavgm",
    "exact-diffusion",
    "d2",
    "led",
    "dsmt",
    "extra",
    "pg-extra",
    "fedavg",
    "fedavg-m",
    "fast-fedda",
    "feddr",
    "fedadmm",
    "fedmid",
    "feddualavg",
    "gut",
    "fednmut",
    "k-gt",
    "momentum-tracking",
    "heavy-ball-gt",
    "prox-dasa",
    "prox-dasa-gt",
    "prox-dgd",
    "proxgt-sa",
    "proxgt-sr-o",
    "proxgt-sr-e",
    "quasi-global",
    "scaffold",
    "scaffold-m",
    "sppdm",
    "zhang-composite",
]
#: Methods that communicate at every iteration only.
WITHOUT_PERIOD = ("sppdm", "extra", "pg-extra", "exact-diffusion", "d2", "dsmt", "heavy-ball-gt")


def configuration(**changes: Table) -> Table:
    """Return a small configuration with some keys of its sections replaced."""
    table: Table = {
        "problem": {
            "dataset": {"synthetic": {"samples": 60, "features": 4, "classes": 3}},
            "model": {"mlp": {"hidden": [5]}},
            "clients": 4,
            "partition": {"dirichlet": 0.5},
            "regularizer": "l1",
            "beta": 1e-3,
        },
        "algorithm": {"name": "depositum"},
        "run": {
            "steps": 18,
            "period": 3,
            "batch_size": 4,
            "seeds": [0, 1],
            "evaluate_every": 4,
            "checkpoint_every": 5,
            "device": "cpu",
            "dtype": "float64",
            "backend": "loop",
            "compile": "never",
        },
        "metrics": {"costly_every": 8},
        "override": {
            "smooth": {"problem": {"beta": 0.0}},
            "d2": {"network": {"mixing": "lazy-metropolis"}},
            **{name: {"run": {"period": 1}} for name in WITHOUT_PERIOD if name != "d2"},
        },
    }
    table["override"]["d2"]["run"] = {"period": 1}
    for section, keys in changes.items():
        table.setdefault(section, {}).update(keys)
    return table


AXES: dict[str, tuple[str, list[Any]]] = {
    "alpha": ("algorithm.alpha", [0.02, 0.1]),
    "beta": ("problem.beta", [1e-3, 1e-2]),
    "partition": ("problem.partition", ["iid", {"dirichlet": 0.5}]),
    "period": ("run.period", [1, 3]),
    "weighting": ("problem.weighting", ["uniform", "samples"]),
    "method": ("algorithm.name", ["depositum", "dproxsgt", "cdproxsgt"]),
}


def experiment(*axes: str, problem: Table | None = None, run: Table | None = None, **changes: Any) -> Table:
    """Return a small experiment over some axes; cells that differ in numbers, partitions and weightings share steps."""
    base = configuration(problem=problem or {}, run={"steps": 12, **(run or {})})
    del base["override"], base["run"]["seeds"]
    sweep = []
    for axis in axes:
        key, values = AXES[axis]
        labelled = [{"label": f"{axis} {i}", "set": {key: value}} for i, value in enumerate(values)]
        sweep.append({"axis": axis, "values": labelled})
    return {
        "title": "Small",
        "paper": "ours",
        "seeds": [0, 1],
        "base": base,
        "sweep": sweep,
        "figure": {"series": list(axes), "panel": [{"title": "Loss", "y": "train_loss"}]},
        **changes,
    }


# Cases


@dataclass(frozen=True)
class Case:
    """Something that is run and recorded.

    Attributes
    ----------
    name
        Name in the record.
    command
        `"run"`, `"reproduce"` or `"compare"` of the command line, or `"fit"`.
    table
        Configuration or experiment file.
    stages
        Options of successive calls in the same folder; several stages resume or extend a run.
    processes
        Number of processes under torchrun; 0 runs in this process.
    fit
        For `"fit"`: makes the arguments of `depositum.fit`; under torchrun each process takes its clients from them.
    stop
        How an unfinished folder is left: options that shorten the run, or a signal and the number of forward passes
        after which the model sends it.
    """

    name: str
    command: str
    table: Table = field(default_factory=dict)
    stages: tuple[tuple[str, ...], ...] = ((),)
    processes: int = 0
    fit: Callable[[], Table] | None = None
    stop: tuple[str, ...] | tuple[signal.Signals, int] | None = None

    def write(self, folder: Path) -> Path:
        """Write the configuration and the user-defined code; return the path of the former."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "user_code.py").write_text(USER_CODE, encoding="utf-8")
        path = folder / f"{self.name}.toml"
        path.write_text(tomli_w.dumps(self.table), encoding="utf-8")
        return path

    def call(self, config: Path, out: Path, options: tuple[str, ...], environment: dict[str, str] | None = None) -> int:
        """Run one stage; return the exit code."""
        arguments = [self.command, str(config), "--out", str(out), *options]
        if self.command == "reproduce":
            arguments += ["--cache", str(out / "cache"), "--device", "cpu"]
        if self.processes:
            return torchrun(self.processes, ["-m", "depositum", *arguments], environment)
        if environment:
            return subprocess.run(
                [sys.executable, "-m", "depositum", *arguments],
                env={**os.environ, **environment},
                capture_output=True,
                check=False,
            ).returncode
        return command_line(arguments)

    def perform(self, folder: Path, inputs: Path) -> Record:
        """Run the case in a new folder and return its results."""
        if self.command == "fit":
            return self._perform_fit(folder)
        config, out = self.write(folder), folder / "out"
        for options in self.stages:
            code = self.call(config, out, options)
            if code != 0:
                raise RuntimeError(f"{self.name}: exit code {code}; see {folder}")
        return collect(out, inputs)

    def _perform_fit(self, folder: Path) -> Record:
        folder.mkdir(parents=True, exist_ok=True)
        if self.processes:
            code = torchrun(self.processes, [str(Path(__file__).resolve()), "fit-rank", self.name, str(folder)])
            if code != 0:
                raise RuntimeError(f"{self.name}: exit code {code}")
        else:
            fit_and_save(self, folder / "rank-0.npz")
        return {
            f"{path.stem}/{key}": value
            for path in sorted(folder.glob("rank-*.npz"))
            for key, value in read_record(path).items()
        }

    def leave_unfinished(self, folder: Path) -> None:
        """Leave a run folder that is not finished."""
        assert self.stop is not None
        config, out = self.write(folder), folder / "out"
        if isinstance(self.stop[0], signal.Signals):
            code = self.call(config, out, (), {"STOP_AFTER": f"{int(self.stop[0])}:{self.stop[1]}"})
            if code == 0:
                raise RuntimeError(f"{self.name}: was not stopped")
        else:
            code = self.call(config, out, tuple(map(str, self.stop)))
            if code != 0:
                raise RuntimeError(f"{self.name}: exit code {code}")

    def resume(self, unfinished: Path, folder: Path, inputs: Path) -> Record:
        """Resume a copy of an unfinished folder of the same case and return its results."""
        shutil.copytree(unfinished, folder)
        code = self.call(folder / f"{self.name}.toml", folder / "out", self.stages[-1])
        if code != 0:
            raise RuntimeError(f"{self.name}: exit code {code}; see {folder}")
        return collect(folder / "out", inputs)


def run_cases(inputs: Path) -> Iterator[Case]:
    """Runs of one process."""

    def run(name: str, stages: tuple[tuple[str, ...], ...] = ((),), stop: Any = None, **changes: Table) -> Case:
        return Case(name, "run", configuration(**changes), stages, stop=stop)

    for name in METHODS:
        yield run(f"method-{name}", algorithm={"name": name})
    # Variants of methods
    variants: dict[str, Table] = {
        "depositum-nesterov": {"name": "depositum", "momentum": "nesterov", "alpha": 0.1, "gamma": 0.8},
        "depositum-start-local": {"name": "depositum", "start": "local"},
        "depositum-start-mixed": {"name": "depositum", "start": "mixed", "momentum": "nesterov"},
        "dproxsgt-released": {"name": "dproxsgt", "form": "released"},
        "prox-dasa-gt-unused": {"name": "prox-dasa-gt", "tracker": "unused"},
        "feddr-zero": {"name": "feddr", "start": "zero", "relaxation": 0.7},
        "fedmid-server-prox": {"name": "fedmid", "client_prox": False},
        "gut-replaced": {"name": "gut", "form": "replaced"},
        "fednmut-increment": {"name": "fednmut", "noise_on": "increment"},
        "deepstorm-v1": {"name": "deepstorm", "version": "v1", "placement": "prox-then-combine", "initial_batch": 6},
        "deepstorm-chebyshev": {"name": "deepstorm", "rounds": 2, "chebyshev": True},
        "scaffold-option-1": {"name": "scaffold", "option": "I"},
        "heavy-ball-dsgt": {"name": "heavy-ball-gt", "form": "dsgt-hb"},
        "schedule-power": {"alpha": {"power": {"start": 0.3, "power": 0.5}}},
        "schedule-step": {"alpha": {"step": {"start": 0.3, "factor": 0.5, "every": 5}}, "momentum": "nesterov"},
        "schedule-cosine": {"name": "dsgt", "alpha": {"cosine": {"start": 0.3, "steps": 15}}},
    }
    for name, algorithm in variants.items():
        yield run(name, algorithm=algorithm)
    # Problems
    problems: dict[str, Table] = {
        "weighting-samples": {"weighting": "samples", "partition": {"quantity": 0.5}},
        "regularizer-mcp": {"regularizer": {"mcp": {"lam": 1.0, "theta": 5.0}}},
        "regularizer-scad": {"regularizer": {"scad": {"lam": 1.0, "a": 4.0}}},
        "regularizer-elastic-net": {"regularizer": "elastic-net"},
        "regularizer-box": {"regularizer": {"box": {"low": -0.2, "high": 0.3}}},
        "regularizer-nuclear": {"regularizer": "nuclear"},
        "regularizer-group-lasso": {"regularizer": "group-lasso", "beta": 1e-2},
        "regularizer-l1-ball": {"regularizer": {"l1-ball": 2.0}},
        "regularizer-by-parameters": {
            "regularizer": [{"l1": {}, "on": "*.weight", "scale": 2.0}, {"squared-l2": {}, "on": "*.bias"}]
        },
        "regularizer-user-defined": {"regularizer": {"user_code:Huber": {"delta": 0.5}}, "beta": 1e-2},
        "partition-shards": {"partition": {"shards": 2}, "partition_seed": 3},
        "partition-dirichlet-clients": {"partition": {"dirichlet-clients": 0.5}, "holdout": 0.2},
        "loss-logistic": {
            "dataset": {"synthetic": {"samples": 60, "features": 4, "classes": 2}},
            "loss": "logistic",
            "model": "linear",
        },
        "model-dropout": {"model": "user_code:with_dropout"},
        "model-digits-convolutional": {"dataset": "digits", "model": "user_code:convolutional", "partition": "iid"},
        "model-digits-mlp": {"dataset": "digits", "model": {"mlp": {"hidden": [12]}}, "clients": 5},
        "model-resnet": {"dataset": "digits", "model": {"resnet18": {"width": 2}}, "clients": 2},
    }
    for name, problem in problems.items():
        yield run(name, problem=problem, run={"steps": 4} if name == "model-resnet" else {})
    # Networks
    networks: dict[str, Table] = {
        "network-drop": {"drop": 0.3},
        "network-one-peer": {"topology": "one-peer-exponential"},
        "network-star": {"topology": "star", "mixing": "max-degree"},
        "network-complete": {"topology": "complete", "mixing": "uniform"},
        "network-erdos-renyi": {"topology": {"erdos-renyi": {"p": 0.7, "seed": 2}}, "mixing": "lazy-metropolis"},
        "network-torus": {"topology": {"torus": {"rows": 2, "cols": 3}}},
    }
    for name, network in networks.items():
        yield run(name, network=network, problem={"clients": 6} if name == "network-torus" else {})
    yield run("network-drop-dsgt", network={"drop": 0.3}, algorithm={"name": "dsgt"})
    yield run("network-drop-led", network={"drop": 0.3}, algorithm={"name": "led"})
    # Settings of runs and measures
    yield run("batch-full", run={"batch_size": "full"})
    yield run("backend-vmap", run={"backend": "vmap"})
    yield run("backend-vmap-normalised", problem={"model": "user_code:normalised"}, run={"backend": "vmap"})
    yield run("backend-vmap-samples", problem={"weighting": "samples"}, run={"backend": "vmap", "seeds": [3, 1, 7]})
    yield run(
        "measures",
        run={"evaluate_from": 1, "evaluate_every": 3},
        metrics={"costly_every": 6, "train_every": 3, "alpha": 0.2, "smoothness": "measure"},
    )
    yield run("measures-smoothness", metrics={"smoothness": 2.0})
    yield run("method-user-defined", algorithm={"name": "user_code:ProxDSGD", "alpha": 0.2})
    # Resumed and extended
    normalised = {"model": "user_code:normalised"}
    yield run("normalised", problem=normalised, stop=(signal.SIGKILL, 150))
    yield run("interrupted", problem={**normalised, "weighting": "samples"}, stop=(signal.SIGINT, 200))
    shorter = "run.steps=7"
    yield run("extended", (("--set", shorter), ()), ("--set", shorter), algorithm={"momentum": "nesterov"})
    yield run("extended-normalised", (("--set", shorter), ()), ("--set", shorter), problem=normalised)
    yield run("extended-drop", (("--set", shorter), ()), ("--set", shorter), network={"drop": 0.3})
    for name in ("deepstorm", "scaffold-m", "cdproxsgt", "prox-dasa-gt", "dsmt", "fednmut", "proxgt-sr-o"):
        stages = (("--set", shorter), ("--set", "run.steps=11"), ())
        yield run(f"extended-{name}", stages, ("--set", shorter), algorithm={"name": name})
    # Language models
    lora = {
        "dataset": {"instructions": {"max_length": 64, "file": str(inputs / "instructions.jsonl")}},
        "model": {"lora": {"base": str(inputs / "base"), "rank": 2, "targets": ["q_proj", "v_proj"]}},
        "clients": 3,
        "partition": "iid",
        "regularizer": {"mcp": {"lam": 1.0, "theta": 5.0}},
        "beta": 1e-5,
    }
    few = {"steps": 6, "batch_size": 2, "evaluate_every": 3, "checkpoint_every": 2}
    steps = ("--set", "run.steps=3")
    yield run("lora", problem=lora, run=few, metrics={"costly_every": 0})
    yield run("lora-extended", (steps, ()), steps, problem=lora, run=few, metrics={"costly_every": 0})


def sweep_cases() -> Iterator[Case]:
    """Experiments, and methods compared on one configuration."""
    axes = ("alpha", "beta", "partition", "period")
    yield Case("sweep", "reproduce", experiment(*axes))
    yield Case("sweep-vmap", "reproduce", experiment(*axes, run={"backend": "vmap"}))
    yield Case("sweep-weightings", "reproduce", experiment("alpha", "weighting", "method"))
    normalised = experiment("alpha", "beta", problem={"model": "user_code:normalised"}, trace=True)
    yield Case("sweep-normalised", "reproduce", normalised, stop=(signal.SIGKILL, 300))
    tune = {
        "cell": {"partition": "partition 0"},
        "where": {},
        "holdout": 0.3,
        "seed": 5,
        "grid": {"algorithm.alpha": [0.01, 0.1], "algorithm.gamma": [0.2, 0.6]},
    }
    yield Case("sweep-tuned", "reproduce", experiment("partition", tune=[tune]))
    options = ("--methods", "depositum,dsgt,fedmid,deepstorm,fedavg")
    yield Case("compared", "compare", configuration(), (options,))


def client_data(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the samples of one client; clients have different numbers of them."""
    rng = np.random.default_rng(client)
    labels = rng.integers(0, 3, 20 + 5 * client)
    inputs = rng.normal(size=(len(labels), 4)) + labels[:, None]
    return torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels)


def fit_arguments(**changes: Any) -> Table:
    """Return arguments of `depositum.fit` for four clients, with some replaced."""
    import depositum as dp

    torch.manual_seed(3)
    make = changes.pop("model", lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)))
    return {
        "model": make(),
        "clients": [client_data(client) for client in range(4)],
        "network": dp.ring(4),
        "regularizer": dp.L1(),
        "beta": 1e-3,
        "algorithm": dp.Depositum(alpha=0.1),
        "period": 2,
        "batch_size": 8,
        "steps": 15,
        "seed": 1,
        "dtype": "float64",
        "device": "cpu",
        "progress": False,
        **changes,
    }


def fit_cases() -> Iterator[Case]:
    """Calls of `depositum.fit`."""
    import depositum as dp

    def huber(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        wanted = nn.functional.one_hot(targets, 3).to(outputs.dtype)
        return nn.functional.smooth_l1_loss(outputs, wanted, reduction="none").mean(-1)

    calls: dict[str, Callable[[], Table]] = {
        "fit": lambda: fit_arguments(),
        "fit-test-data": lambda: fit_arguments(
            test=client_data(99),
            metrics=dp.MetricSettings(costly_every=5, smoothness=2.0),
            evaluate_every=5,
            evaluate_from=2,
        ),
        "fit-samples": lambda: fit_arguments(weighting="samples", algorithm=dp.Depositum(momentum="nesterov")),
        "fit-smooth": lambda: fit_arguments(regularizer=None, beta=None, algorithm=dp.algorithm("dsgt", alpha=0.1)),
        "fit-server": lambda: fit_arguments(network=None, algorithm=dp.algorithm("fedmid", alpha=0.1)),
        "fit-loss": lambda: fit_arguments(loss=huber, regularizer=dp.MCP(lam=1.0, theta=5.0)),
        "fit-regression": lambda: fit_arguments(
            model=lambda: nn.Linear(4, 1),
            clients=[(inputs, inputs.sum(1, keepdim=True).sin()) for inputs, _ in map(client_data, range(4))],
        ),
        "fit-full": lambda: fit_arguments(model=lambda: nn.Linear(4, 3), batch_size="full", network=dp.complete(4)),
        "fit-schedule": lambda: fit_arguments(
            algorithm=dp.algorithm("depositum", alpha={"power": {"start": 0.3, "power": 0.5}})
        ),
    }
    for name, make in calls.items():
        yield Case(name, "fit", fit=make)
    yield Case("processes-fit", "fit", fit=calls["fit-test-data"], processes=4)


def process_cases() -> Iterator[Case]:
    """Runs of four processes under torchrun."""

    def run(name: str, stages: tuple[tuple[str, ...], ...] = ((),), stop: Any = None, **changes: Table) -> Case:
        changes.setdefault("processes", {})["timeout"] = 120.0
        return Case(f"processes-{name}", "run", configuration(**changes), stages, processes=4, stop=stop)

    for send in ("float32", "float16", "bfloat16", "sparse"):
        yield run(f"send-{send}", problem={"regularizer": "l1", "beta": 0.05}, processes={"send": send})
    yield run("gather", processes={"evaluate": "gather"}, metrics={"costly_every": 4, "smoothness": 2.0})
    yield run("samples", problem={"clients": 8, "weighting": "samples"}, processes={"evaluate": "none"})
    yield run("server", algorithm={"name": "scaffold"})
    yield run("drop", network={"drop": 0.3}, algorithm={"name": "dsgt"})
    yield run("one-peer", network={"topology": "one-peer-exponential"}, algorithm={"name": "deepstorm"})
    shorter = ("--set", "run.steps=7")
    normalised = {"model": "user_code:normalised"}
    yield run("extended", (shorter, ()), shorter, problem={**normalised, "clients": 8})
    yield run("killed", problem=normalised, stop=(signal.SIGKILL, 25))


def all_cases(inputs: Path) -> list[Case]:
    """Return every case; names are unique."""
    cases = [*run_cases(inputs), *sweep_cases(), *fit_cases(), *process_cases()]
    assert len({case.name for case in cases}) == len(cases)
    return cases


# Running


def command_line(arguments: list[str]) -> int:
    """Call the command line in this process; return its exit code."""
    from depositum.cli import main

    before, sys.argv = sys.argv, ["depositum", *arguments]
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
        return 0
    except SystemExit as end:
        code = int(end.code or 0)
        if code == 128 + signal.SIGINT:  # Ctrl-C and SIGTERM end the recording, not only this run
            raise KeyboardInterrupt from None
        if code:
            print(out.getvalue(), err.getvalue(), file=sys.stderr)
        return code
    finally:
        sys.argv = before


def torchrun(processes: int, arguments: list[str], environment: dict[str, str] | None = None) -> int:
    """Run a script or module under torchrun; return its exit code."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    launcher += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    ended = subprocess.run(
        [sys.executable, *launcher, *arguments],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode and not environment:
        print(ended.stdout[-4000:], ended.stderr[-4000:], file=sys.stderr)
    return ended.returncode


def fit_and_save(case: Case, path: Path) -> None:
    """Call `depositum.fit` with the data of this process's clients and save the results."""
    import depositum as dp

    assert case.fit is not None
    arguments = case.fit()
    if case.processes:
        rank = int(os.environ["RANK"])
        share = len(arguments["clients"]) // int(os.environ["WORLD_SIZE"])
        arguments["clients"] = arguments["clients"][rank * share : (rank + 1) * share]
    result = dp.fit(arguments.pop("model"), arguments.pop("clients"), **arguments)
    record = {f"state/{name}": value.numpy() for name, value in result.state.items()}
    record |= {f"model/{name}": value.numpy() for name, value in result.model.state_dict().items()}
    for name in result.history.columns:
        if name not in WALL_TIME:
            record[f"history/{name}"] = result.history[name].to_numpy(dtype=np.float64)
    record["consensus"] = result.consensus.to_numpy()
    write_record(path, record)


def collect(out: Path, inputs: Path) -> Record:
    """Read all tensors and tables below a folder; checkpoints but the last, and wall times, are left out."""
    record: Record = {}
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if path.suffix == ".safetensors" and ".previous." not in path.name:
            record |= {f"{name}/{key}": value for key, value in load_file(path).items()}
        elif path.suffix == ".csv":
            record |= {f"{name}/{key}": value for key, value in read_table(path).items()}
        elif path.name == "config.toml":
            text = path.read_text(encoding="utf-8").replace(str(inputs), "INPUTS")
            record[f"{name}/text"] = np.array(json.dumps(tomllib.loads(text), sort_keys=True))
    return record


def read_table(path: Path) -> Record:
    """Read the columns of a CSV file, as numbers where all of a column's values are (an empty one is NaN)."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    columns = {}
    for name in rows[0] if rows else ():
        if name in WALL_TIME:
            continue
        values = [row[name] for row in rows]
        try:
            columns[name] = np.array([float(value or "nan") for value in values])
        except ValueError:
            columns[name] = np.array(values)
    return columns


def write_record(path: Path, record: Record) -> None:
    """Write arrays by name (names have slashes, which members of an .npz file may not)."""
    names = list(record)
    arrays = {f"a{i}": record[name] for i, name in enumerate(names)}
    np.savez_compressed(path, names=np.array(names), **arrays)  # type: ignore[arg-type]


def read_record(path: Path) -> Record:
    """Read what `write_record` wrote."""
    with np.load(path) as file:
        return {str(name): file[f"a{i}"] for i, name in enumerate(file["names"])}


def make_language_model(inputs: Path) -> None:
    """Write a language model of 9,664 parameters with its tokenizer, and forty instructions, the same each time."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(7)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=264,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=256,
            tie_word_embeddings=True,
        )
    )
    for parameter in model.parameters():  # a new model's scores are nearly equal, and its gradients nearly 0
        parameter.data += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(inputs / "base")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(["<end>", *letters])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(inputs / "base")
    lines = [
        {"instruction": f"kind {i % 3}, number {i}", "response": "yes " * (1 + i % 4) + str(i), "category": f"k{i % 3}"}
        for i in range(40)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (inputs / "instructions.jsonl").write_text(text, encoding="utf-8")


def record(out: Path, only: str) -> int:
    """Run all cases whose names match and write their results."""
    inputs = out / "inputs"
    if not inputs.exists():
        inputs.mkdir(parents=True)
        make_language_model(inputs)
    (out / "records").mkdir(exist_ok=True)
    failed = []
    for case in all_cases(inputs):
        if not fnmatch.fnmatch(case.name, only):
            continue
        began = time.monotonic()
        for folder in (out / "cases" / case.name, out / "unfinished" / case.name):
            shutil.rmtree(folder, ignore_errors=True)
        try:
            values = case.perform(out / "cases" / case.name, inputs)
            if case.stop is not None:
                case.leave_unfinished(out / "unfinished" / case.name)
        except Exception as error:  # the other cases are still recorded
            failed.append(case.name)
            print(f"{case.name:32} FAILED: {error!r}", flush=True)
            continue
        write_record(out / "records" / f"{case.name}.npz", values)
        print(f"{case.name:32} {len(values):4} arrays  {time.monotonic() - began:6.1f} s", flush=True)
    print(f"{len(failed)} failed")
    return 1 if failed else 0


def continue_runs(old: Path, out: Path, only: str, exceptions: dict[str, str]) -> int:
    """Resume the unfinished folders of a record and compare the results with the record."""
    before = read_records(old, only)
    after: dict[str, Record] = {}
    for case in all_cases(old / "inputs"):
        unfinished = old / "unfinished" / case.name
        if case.name not in before or not unfinished.exists():
            before.pop(case.name, None)
            continue
        shutil.rmtree(out / case.name, ignore_errors=True)
        try:
            after[case.name] = case.resume(unfinished, out / case.name, old / "inputs")
        except Exception as error:  # reported as missing below
            print(f"{case.name:32} FAILED: {error!r}", flush=True)
    return compare(before, after, exceptions)


def read_records(out: Path, only: str) -> dict[str, Record]:
    """Read the results of all cases of a record whose names match."""
    return {path.stem: read_record(path) for path in sorted((out / "records").glob(f"{only}.npz"))}


# Comparing


def difference(old: np.ndarray[Any, Any], new: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Return the largest absolute difference, and the largest relative to max(1, |old|); infinite if incomparable."""
    if old.shape != new.shape or old.dtype.kind != new.dtype.kind:
        return float("inf"), float("inf")
    if old.dtype.kind not in "fiub":
        return (0.0, 0.0) if np.array_equal(old, new) else (float("inf"), float("inf"))
    a, b = old.astype(np.float64), new.astype(np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)) or not np.array_equal(np.isnan(a), np.isnan(b)):
        return float("inf"), float("inf")
    finite = np.isfinite(a)
    apart = np.abs(a[finite] - b[finite])
    if apart.size == 0:
        return 0.0, 0.0
    return float(apart.max()), float((apart / np.maximum(1.0, np.abs(a[finite]))).max())


def compare(old: dict[str, Record], new: dict[str, Record], exceptions: dict[str, str]) -> int:
    """Print a line per case; return 1 if one that is not excepted differs or is missing."""
    worst, different = 0.0, []
    print(f"{'case':32} {'arrays':>6} {'absolute':>10} {'relative':>10}  largest in")
    for case in sorted({*old, *new}):
        a, b = old.get(case, {}), new.get(case, {})
        configurations = [name for name in a.keys() & b.keys() if name.endswith("config.toml/text")]
        remarks = [line for name in sorted(configurations) for line in configuration_changes(a[name], b[name])]
        apart = {name: difference(a[name], b[name]) for name in a.keys() & b.keys() - set(configurations)}
        missing = [f"{name} only in {'new' if name in b else 'old'}" for name in sorted(a.keys() ^ b.keys())]
        absolute = max((value for value, _ in apart.values()), default=0.0)
        where, (_, relative) = max(apart.items(), key=lambda item: item[1][1], default=("", (0.0, 0.0)))
        differs = relative > TOLERANCE or bool(missing)
        if case in exceptions:
            remarks.insert(0, f"excepted: {exceptions[case]}")
        elif differs:
            different.append(case)
        worst = max(worst, relative)
        largest = f"{where} DIFFERS" if differs else where if relative else ""
        print(f"{case:32} {len(apart):6} {absolute:10.2e} {relative:10.2e}  {largest}")
        for remark in [*missing, *remarks][:6]:
            print(f"{'':34}{remark}")
    print(f"{len({*old, *new})} cases; largest relative difference {worst:.2e}; {len(different)} differ")
    for case in different:
        print(f"differs: {case}")
    return 1 if different else 0


def configuration_changes(old: np.ndarray[Any, Any], new: np.ndarray[Any, Any]) -> list[str]:
    """List the keys of a written configuration that differ; they are reported, and fail no comparison."""
    a, b = json.loads(str(old)), json.loads(str(new))
    keys = sorted({(section, key) for table in (a, b) for section in table for key in table[section]})
    values = {key: (a.get(key[0], {}).get(key[1]), b.get(key[0], {}).get(key[1])) for key in keys}
    return [f"{section}.{key}: {x!r} → {y!r}" for (section, key), (x, y) in values.items() if x != y]


def main() -> int:
    """Parse the arguments and run a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, paths in {"record": ["out"], "compare": ["old", "new"], "continue": ["old", "out"]}.items():
        command = commands.add_parser(name)
        for path in paths:
            command.add_argument(path, type=Path)
        command.add_argument("--only", default="*", metavar="PATTERN", help="cases whose names match")
        if name != "record":
            command.add_argument("--except", dest="exceptions", action="append", default=[], metavar="NAME=REASON")
    rank = commands.add_parser("fit-rank")  # used by `record` under torchrun
    rank.add_argument("name")
    rank.add_argument("folder", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)  # sums depend on it
    os.environ["OMP_NUM_THREADS"] = "1"  # the same for processes that are started
    if options.command == "fit-rank":
        with tempfile.TemporaryDirectory() as folder:
            case = next(case for case in all_cases(Path(folder)) if case.name == options.name)
        fit_and_save(case, options.folder / f"rank-{os.environ['RANK']}.npz")
        return 0
    if options.command == "record":
        return record(options.out.resolve(), options.only)
    exceptions = dict(text.split("=", 1) for text in options.exceptions)
    if options.command == "continue":
        return continue_runs(options.old.resolve(), options.out.resolve(), options.only, exceptions)
    return compare(read_records(options.old, options.only), read_records(options.new, options.only), exceptions)


if __name__ == "__main__":
    sys.exit(main())
