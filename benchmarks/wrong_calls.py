"""Random wrong calls of the Python API: each is refused in one line that names the argument, and changes nothing.

    python benchmarks/wrong_calls.py --calls 2000 --seeds 0 1 2

A call is a valid one, small enough to train in milliseconds, with no, one or two faults: a value of a wrong type, a
wrong shape, a misspelt name, a number out of range, settings that do not fit together, code of the user that fails. It
must succeed, or raise a `DepositumError` of one line of at most 300 characters that begins with the name of an
argument at fault. Anything else is a violation: another exception, a file that was written, a warning of a library,
output, or a call that takes longer than the limit. What a callback of the user raises must arrive unchanged.
"""

import argparse
import contextlib
import enum
import faulthandler
import functools
import inspect
import io
import itertools
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock

import networkx as nx
import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils import data as torch_data

import depositum as dp
from depositum.algorithms import ALGORITHMS
from depositum.errors import MAX_MESSAGE
from depositum.regularizers import REGULARIZERS

#: Seconds that one call may take.
LIMIT = 30.0

Arguments = dict[str, Any]
#: A fault: what it is, and the function that makes the wrong value from the arguments and a folder of the call's own.
Fault = tuple[str, Callable[[Arguments, Path], Any]]


class OwnError(Exception):
    """Raised by code of the user."""


class Hang(BaseException):
    """The call took longer than its limit."""


# Values that fit no argument, or few


class Colour(enum.Enum):
    RED = "red"


class FailingRepr:
    def __repr__(self) -> str:
        raise OwnError("repr")


class FailingLength:
    def __len__(self) -> int:
        raise OwnError("len")

    def __iter__(self) -> Iterator[int]:
        raise OwnError("iter")


class FailingTruth:
    def __bool__(self) -> bool:
        raise OwnError("bool")

    def __eq__(self, other: object) -> bool:
        raise OwnError("eq")

    __hash__ = None  # type: ignore[assignment]


class FailingNumber(float):
    def __float__(self) -> float:
        raise OwnError("float")


class OwnString(str):
    __slots__ = ()


def failing_generator() -> Iterator[int]:
    yield 1
    raise OwnError("generator")


def nested(depth: int) -> list[Any]:
    out: list[Any] = []
    for _ in range(depth):
        out = [out]
    return out


def own_list() -> list[Any]:
    out: list[Any] = [1]
    out.append(out)
    return out


#: Each is made anew for each call: some can be used once.
JUNK: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "False": lambda: False,
    "0": lambda: 0,
    "1": lambda: 1,
    "-1": lambda: -1,
    "-0.0": lambda: -0.0,
    "2.5": lambda: 2.5,
    "-0.5": lambda: -0.5,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "-inf": lambda: -float("inf"),
    "10**30": lambda: 10**30,
    "-10**30": lambda: -(10**30),
    "10**5000": lambda: 10**5000,
    "1e300": lambda: 1e300,
    "complex": lambda: 1 + 2j,
    "Decimal": lambda: Decimal("0.5"),
    "Decimal NaN": lambda: Decimal("sNaN"),
    "Fraction": lambda: Fraction(1, 2),
    "huge Fraction": lambda: Fraction(10**400, 3),
    "empty text": lambda: "",
    "text": lambda: "something",
    "text of a number": lambda: "3",
    "lines": lambda: "ring\nand more\n",
    "controls": lambda: "\x1b[2J\x00\r\t",
    "kilobytes": lambda: "abc\n\x07" * 2000,
    "surrogate": lambda: "a\udcffb",
    "right to left": lambda: "\u202eabc\u2028",
    "own text": lambda: OwnString("own"),
    "module:name": lambda: "os:getcwd",
    "bytes": lambda: b"bytes",
    "bytearray": lambda: bytearray(b"ab"),
    "empty list": list,
    "list of None": lambda: [None],
    "list of lists": lambda: [[], [1]],
    "list of text": lambda: ["a", "b"],
    "list of numbers": lambda: [1, 2.5],
    "deep list": lambda: nested(3000),
    "own list": own_list,
    "long list": lambda: list(range(100_000)),
    "empty tuple": tuple,
    "pair": lambda: (1, 2),
    "empty table": dict,
    "table": lambda: {"a": 1},
    "table of numbers": lambda: {1: 2, None: 3},
    "deep table": lambda: {"a": {"b": {"c": [{"d": None}]}}},
    "two names": lambda: {"ring": {}, "star": {}},
    "set": lambda: {1, 2},
    "frozenset": lambda: frozenset("ab"),
    "range": lambda: range(3),
    "function": lambda: lambda *_: None,
    "failing function": lambda: failing,
    "builtin": lambda: len,
    "class": lambda: int,
    "class of a module": lambda: nn.Linear,
    "class of a method": lambda: dp.Depositum,
    "class of a regularizer": lambda: dp.L1,
    "class of a network": lambda: dp.Network,
    "class of a callback": lambda: dp.Callback,
    "function of a network": lambda: dp.ring,
    "method": lambda: dp.Depositum(),
    "regularizer": lambda: dp.L1(),
    "network": lambda: dp.ring(7),
    "module": lambda: nn.Linear(2, 2),
    "loss module": nn.MSELoss,
    "object": object,
    "Ellipsis": lambda: ...,
    "python module": lambda: os,
    "exception": lambda: ValueError("a\nb"),
    "exception class": lambda: KeyError,
    "Path": lambda: Path("nowhere"),
    "enum": lambda: Colour.RED,
    "date": lambda: datetime(2020, 1, 1),
    "generator": lambda: (i for i in range(3)),
    "failing generator": failing_generator,
    "endless iterator": itertools.count,
    "lock": threading.Lock,
    "mock": mock.MagicMock,
    "failing repr": FailingRepr,
    "failing len": FailingLength,
    "failing bool": FailingTruth,
    "failing float": lambda: FailingNumber(1.0),
    "np.float64": lambda: np.float64(0.5),
    "np.float64 NaN": lambda: np.float64("nan"),
    "np.int8": lambda: np.int8(2),
    "np.uint64": lambda: np.uint64(2**64 - 1),
    "np.bool": lambda: np.bool_(True),
    "np.str": lambda: np.str_("ring"),
    "np.datetime64": lambda: np.datetime64("2020-01-01"),
    "empty array": lambda: np.zeros((0, 3)),
    "array": lambda: np.eye(3),
    "array of text": lambda: np.array(["a", "b"]),
    "array of objects": lambda: np.array([None, {}], dtype=object),
    "complex array": lambda: np.ones((3, 2)) * 1j,
    "record array": lambda: np.zeros(2, dtype=[("a", int), ("b", float)]),
    "masked array": lambda: np.ma.array([1.0, 2.0], mask=[True, False]),
    "NaN array": lambda: np.full((2, 2), np.nan),
    "single array": lambda: np.array(3),
    "tensor": lambda: torch.eye(3),
    "single tensor": lambda: torch.tensor(2.0),
    "empty tensor": lambda: torch.empty(0),
    "meta tensor": lambda: torch.empty(3, 5, device="meta"),
    "complex tensor": lambda: torch.ones(3, dtype=torch.complex64),
    "bool tensor": lambda: torch.ones(3, dtype=torch.bool),
    "half tensor": lambda: torch.ones(3, 5, dtype=torch.float16),
    "sparse tensor": lambda: torch.eye(3).to_sparse(),
    "tensor with gradient": lambda: torch.ones(3, requires_grad=True),
    "dtype": lambda: torch.float32,
    "device": lambda: torch.device("meta"),
    "empty frame": pd.DataFrame,
    "frame": lambda: pd.DataFrame({"a": [1.0, 2.0], "label": [0, 1]}),
    "frame with gaps": lambda: pd.DataFrame({"a": [1.0, None], "label": ["x", None]}),
    "Series": lambda: pd.Series([1, 2]),
    "NaT": lambda: pd.NaT,
    "NA": lambda: pd.NA,
    "graph": lambda: nx.path_graph(3),
}


JUNK_FAULTS: list[Fault] = [(name, lambda *_, make=make: make()) for name, make in JUNK.items()]


def failing(*_: Any, **__: Any) -> Any:
    raise OwnError("first line\nsecond line " + "x" * 1000)


# Models, losses, measures and callbacks that do something wrong


class Wrapped(nn.Module):
    """A linear model whose outputs are changed by a function."""

    def __init__(self, change: Callable[[torch.Tensor], Any], inputs: int = 5, outputs: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.change = change

    def forward(self, x: torch.Tensor) -> Any:
        return self.change(self.linear(x))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.linear(x + y)


class WithLock(nn.Linear):
    """Cannot be copied."""

    def __init__(self) -> None:
        super().__init__(5, 3)
        self.lock = threading.Lock()


class UnusedParameter(nn.Linear):
    def __init__(self) -> None:
        super().__init__(5, 3)
        self.unused = nn.Parameter(torch.ones(4))


class Branches(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if x.sum() > 0 else super().forward(-x)


class FailingCallback(dp.Callback):
    def __init__(self, moment: str) -> None:
        self.moment = moment

    def on_start(self, *_: Any, **__: Any) -> None:
        self._fail("on_start")

    def on_step(self, *_: Any, **__: Any) -> None:
        self._fail("on_step")

    def on_end(self, *_: Any, **__: Any) -> None:
        self._fail("on_end")

    def _fail(self, moment: str) -> None:
        if moment == self.moment:
            raise OwnError(moment)


def with_values(module: nn.Module, value: float) -> nn.Module:
    for parameter in module.parameters():
        nn.init.constant_(parameter, value)
    return module


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


def with_buffer(value: float) -> nn.Module:
    module = nn.BatchNorm1d(3)
    assert module.running_mean is not None
    module.running_mean.fill_(value)
    return nn.Sequential(nn.Linear(5, 3), module)


class BrokenDataset(torch_data.Dataset[Any]):
    def __init__(self, what: str) -> None:
        self.what = what

    def __len__(self) -> int:
        return -1 if self.what == "negative length" else 4

    def __getitem__(self, index: int) -> Any:
        if self.what == "fails" and index == 2:
            raise OwnError("sample")
        if self.what == "not pairs":
            return torch.ones(5)
        if self.what == "shapes":
            return torch.ones(5 + index), 0
        return torch.ones(5), "label" if self.what == "text" else index % 3


# Valid calls


def labels(n: int = 3, size: int = 6) -> list[Any]:
    generator = torch.Generator().manual_seed(n)
    return [(torch.randn(size + i, 5, generator=generator), torch.arange(size + i) % 3) for i in range(n)]


def values(n: int = 3) -> list[Any]:
    rng = np.random.default_rng(n)
    return [(rng.standard_normal((6, 5)).astype(np.float32), rng.standard_normal((6, 1))) for _ in range(n)]


def frame(n: int = 3, size: int = 18) -> pd.DataFrame:
    rng = np.random.default_rng(n)
    table = pd.DataFrame(rng.standard_normal((size, 5)), columns=list("abcde"))
    return table.assign(label=["low", "mid", "high"] * (size // 3), hospital=np.arange(size) % n)


def frames(n: int = 3) -> list[Any]:
    return [part.drop(columns="hospital") for _, part in frame(n).groupby("hospital")]


def valid_fit(rng: random.Random, folder: Path) -> Arguments:
    """A call that trains a few clients for up to three iterations."""
    n = rng.randint(2, 4)
    kind = rng.choice(["labels", "labels", "values", "table", "tables", "datasets", "csv"])
    call: Arguments = {"model": nn.Linear(5, 3), "clients": labels(n)}
    test: Any = (torch.randn(4, 5), torch.arange(4) % 3)
    if kind == "values":
        call |= {"model": nn.Linear(5, 1), "clients": values(n)}
        test = (np.ones((3, 5), dtype=np.float32), np.ones((3, 1)))
    elif kind == "table":
        call |= {"clients": frame(n), "by": "hospital", "target": "label"}
        test = frame(n, 6)
    elif kind == "tables":
        call |= {"clients": frames(n), "target": "label"}
        test = frames(n)[0]
    elif kind == "csv":
        file = folder / "patients.csv"
        frame(n).to_csv(file, index=False)
        call |= {"clients": rng.choice([file, str(file)]), "by": "hospital", "target": "label"}
        test = frame(n, 6)
    elif kind == "datasets":
        call |= {"clients": [torch_data.TensorDataset(*pair) for pair in labels(n)]}
    call |= {"steps": rng.randint(1, 3), "progress": False, "device": "cpu", "batch_size": rng.choice([1, 4, "full"])}
    optional: Arguments = {
        "network": rng.choice([dp.ring(n), "complete", {"ring": {"hops": 1}}, nx.path_graph(n)]),
        "channel": rng.choice(["float16", "sparse"]),
        "algorithm": rng.choice(["depositum", "prox-dasa", dp.Depositum(alpha=0.01), {"depositum": {"gamma": 0.2}}]),
        "period": rng.randint(1, 2),
        "test": test,
        "weighting": "samples",
        "seed": rng.randint(0, 9),
        "dtype": "float64",
        "evaluate_every": rng.randint(1, 3),
        "metrics": {"largest": lambda outputs, targets: outputs.max()},
        "callbacks": [dp.Callback()],
        "checkpoint_every": 2,
        "on_divergence": "warn",
    }
    for name in rng.sample(sorted(optional), rng.randint(0, 4)):
        call[name] = optional[name]
    if rng.random() < 0.3:
        call |= {"regularizer": rng.choice([dp.L1(), "l1", {"mcp": {"theta": 3.0}}]), "beta": 0.01}
    if rng.random() < 0.2:
        call["seeds"] = range(2)
        call.pop("seed", None)
    if rng.random() < 0.5:
        call["out"] = folder / "run"
    return call


def valid_tune(rng: random.Random, folder: Path) -> Arguments:
    """A call that tries few values of one hyper-parameter, or searches for a stepsize."""
    call = {k: v for k, v in valid_fit(rng, folder).items() if k not in RUN_ALONE}
    call["over"] = rng.choice([{"gamma": [0.0, 0.5]}, {"alpha": [0.01, 0.1]}, {"alpha": "auto"}, {"beta": [0.0, 0.1]}])
    call["algorithm"] = "depositum"
    if "beta" in call["over"]:
        call |= {"regularizer": "l1", "beta": 0.1}
    return {**call, "seeds_per_candidate": 1, "holdout": 0.4}


def valid_load(rng: random.Random, folder: Path) -> Arguments:
    """The folder of a finished run, copied."""
    shutil.copytree(_finished_run(), folder / "run")
    call: Arguments = {"folder": folder / "run"}
    if rng.random() < 0.7:
        call["model"] = nn.Linear(5, 3)
    return call


@functools.cache
def _finished_run() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="wrong-calls-"))
    dp.fit(nn.Linear(5, 3), labels(), steps=2, out=folder / "run", progress=False, device="cpu")
    return folder / "run"


@functools.cache
def _result() -> dp.FitResult:
    return dp.fit(nn.Linear(5, 3), labels(), steps=1, seeds=[1, 2], progress=False, device="cpu")


#: Constructors and small functions with valid arguments; every parameter of each is made wrong in turn.
SMALL: dict[str, tuple[Callable[..., Any], Arguments]] = {
    "Depositum": (dp.Depositum, {"alpha": 0.1}),
    "algorithm": (dp.algorithm, {"name": "fedavg", "alpha": 0.1}),
    "algorithm feddr": (dp.algorithm, {"name": "feddr", "eta": 1.0}),
    "algorithm deepstorm": (dp.algorithm, {"name": "deepstorm", "alpha": 0.1, "beta": 0.1}),
    "ring": (dp.ring, {"n": 5, "hops": 1}),
    "complete": (dp.complete, {"n": 4}),
    "star": (dp.star, {"n": 4}),
    "path": (dp.path, {"n": 4}),
    "grid": (dp.grid, {"n": 6}),
    "torus": (dp.torus, {"n": 9}),
    "hypercube": (dp.hypercube, {"n": 8}),
    "exponential": (dp.exponential, {"n": 8}),
    "one_peer_exponential": (dp.one_peer_exponential, {"n": 8}),
    "erdos_renyi": (dp.erdos_renyi, {"n": 6, "p": 0.9}),
    "geometric": (dp.geometric, {"n": 6}),
    "network": (dp.network, {"topology": "ring", "n": 5}),
    "L1": (dp.L1, {}),
    "MCP": (dp.MCP, {}),
    "SCAD": (dp.SCAD, {}),
    "Box": (dp.Box, {"low": -1.0, "high": 1.0}),
    "ElasticNet": (dp.ElasticNet, {}),
    "L1Ball": (dp.L1Ball, {}),
    "L2Ball": (dp.L2Ball, {}),
    "Simplex": (dp.Simplex, {}),
    "GroupLasso": (dp.GroupLasso, {}),
    "NuclearNorm": (dp.NuclearNorm, {}),
    "L1.on": (dp.L1().on, {"patterns": "*.weight"}),
    "L1.scaled": (dp.L1().scaled, {"scale": 2.0}),
    "MetricSettings": (dp.MetricSettings, {}),
    "ProcessSettings": (dp.ProcessSettings, {}),
    "EarlyStopping": (dp.EarlyStopping, {}),
    "KeepBest": (dp.KeepBest, {"monitor": "train_loss"}),
    "client_model": (lambda client, seed: _result().client_model(client, seed), {"client": 1, "seed": 2}),
}


# Faults


def const(value: Any) -> Callable[[Arguments, Path], Any]:
    return lambda *_: value


def made(make: Callable[[], Any]) -> Callable[[Arguments, Path], Any]:
    return lambda *_: make()


def replaced(index: int, make: Callable[[Any], Any]) -> Callable[[Arguments, Path], Any]:
    """The clients' data with one of them changed; other forms of data than lists become a list of pairs."""

    def change(call: Arguments, _: Path) -> Any:
        clients = list(call["clients"]) if isinstance(call["clients"], list) else labels()
        clients[index] = make(clients[index])
        return clients

    return change


def inputs_of(change: Callable[[torch.Tensor], Any]) -> Callable[[Arguments, Path], Any]:
    return replaced(1, lambda _: (change(torch.randn(6, 5)), torch.arange(6) % 3))


def targets_of(change: Callable[[torch.Tensor], Any]) -> Callable[[Arguments, Path], Any]:
    return replaced(1, lambda _: (torch.randn(6, 5), change(torch.arange(6) % 3)))


def column(name: str, values: Any) -> Callable[[Arguments, Path], Any]:
    """A table in which a column has other values."""
    return lambda *_: frame().assign(**{name: values})


def written(name: str, content: bytes) -> Callable[[Arguments, Path], Any]:
    """The path of a file with this content."""

    def write(_: Arguments, folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return write


def folder_with(name: str, *files: str) -> Callable[[Arguments, Path], Any]:
    def make(_: Arguments, folder: Path) -> Path:
        (folder / name).mkdir()
        for file in files:
            (folder / name / file).write_text("mine")
        return folder / name

    return make


def misspelt(name: str) -> str:
    """A name with two letters swapped."""
    return name[1] + name[0] + name[2:] if len(name) > 1 else name * 2


NUMBERS: dict[str, Any] = {
    "zero": 0,
    "negative": -3,
    "2**40": 2**40,
    "2**63": 2**63,
    "half": 0.5,
    "text of a number": "2",
    "np.int64": np.int64(2),
    "np.float32": np.float32(2),
}
NUMBER_FAULTS: list[Fault] = [(f"number {k}", const(v)) for k, v in NUMBERS.items()]

FIT_FAULTS: dict[str, list[Fault]] = {
    "model": [
        ("no parameters", made(nn.ReLU)),
        ("empty", made(nn.Sequential)),
        ("module list", lambda *_: nn.ModuleList([nn.Linear(5, 3)])),
        ("returns a tuple", lambda *_: Wrapped(lambda z: (z, z))),
        ("returns a table", lambda *_: Wrapped(lambda z: {"out": z})),
        ("returns None", lambda *_: Wrapped(lambda z: None)),
        ("returns text", lambda *_: Wrapped(lambda z: "out")),
        ("returns a number", lambda *_: Wrapped(lambda z: z.sum())),
        ("returns integers", lambda *_: Wrapped(lambda z: z.long())),
        ("returns complex", lambda *_: Wrapped(lambda z: z * 1j)),
        ("returns NaN", lambda *_: Wrapped(lambda z: z * float("nan"))),
        ("returns inf", lambda *_: Wrapped(lambda z: z / 0.0)),
        ("returns half", lambda *_: Wrapped(lambda z: z.half())),
        ("returns detached", lambda *_: Wrapped(lambda z: z.detach())),
        ("returns numpy", lambda *_: Wrapped(lambda z: z.detach().numpy())),
        ("returns fewer samples", lambda *_: Wrapped(lambda z: z[:1])),
        ("returns transposed", lambda *_: Wrapped(lambda z: z.T)),
        ("returns one more dimension", lambda *_: Wrapped(lambda z: z[..., None])),
        ("returns a sparse tensor", lambda *_: Wrapped(lambda z: z.to_sparse())),
        ("returns meta", lambda *_: Wrapped(lambda z: z.to("meta"))),
        ("fails", lambda *_: Wrapped(failing)),
        ("exits", lambda *_: Wrapped(lambda z: exec("raise AssertionError"))),
        ("two inputs", made(TwoInputs)),
        ("other inputs", lambda *_: nn.Linear(4, 3)),
        ("other outputs", lambda *_: nn.Linear(5, 2)),
        ("one output", lambda *_: nn.Linear(5, 1)),
        ("NaN parameters", lambda *_: with_values(nn.Linear(5, 3), float("nan"))),
        ("inf parameters", lambda *_: with_values(nn.Linear(5, 3), float("inf"))),
        ("large parameters", lambda *_: with_values(nn.Linear(5, 3), 1e38)),
        ("NaN buffers", lambda *_: with_buffer(float("nan"))),
        ("meta parameters", lambda *_: nn.Linear(5, 3, device="meta")),
        ("huge meta parameters", lambda *_: nn.Linear(5, 10**13, device="meta")),
        ("half parameters", lambda *_: nn.Linear(5, 3).half()),
        ("bfloat16 parameters", lambda *_: nn.Linear(5, 3).bfloat16()),
        ("double parameters", lambda *_: nn.Linear(5, 3).double()),
        ("mixed parameters", lambda *_: nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3).double())),
        ("complex parameters", lambda *_: nn.Linear(5, 3, dtype=torch.complex64)),
        ("frozen", lambda *_: frozen(nn.Linear(5, 3))),
        ("partly frozen", lambda *_: nn.Sequential(frozen(nn.Linear(5, 4)), nn.Linear(4, 3))),
        ("lazy", lambda *_: nn.LazyLinear(3)),
        ("lazy that fails", lambda *_: nn.Sequential(nn.Flatten(9), nn.LazyConv2d(3, 3))),
        ("recurrent", lambda *_: nn.LSTM(5, 3)),
        ("convolution", lambda *_: nn.Conv2d(1, 3, 3)),
        ("embedding", lambda *_: nn.Embedding(5, 3)),
        ("sparse embedding", lambda *_: nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Flatten())),
        ("batch norm", lambda *_: nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))),
        ("dropout", lambda *_: nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 3))),
        ("unused parameter", made(UnusedParameter)),
        ("branches", lambda *_: Branches(5, 3)),
        ("cannot be copied", made(WithLock)),
        ("state dict", lambda *_: nn.Linear(5, 3).state_dict()),
        ("parameters", lambda *_: nn.Linear(5, 3).parameters()),
        ("data parallel", lambda *_: nn.DataParallel(nn.Linear(5, 3))),
        ("shared parameters", lambda *_: nn.Sequential(*[nn.Linear(5, 5)] * 2, nn.Linear(5, 3))),
        ("scripted", lambda *_: torch.jit.trace(nn.Linear(5, 3), torch.ones(2, 5))),
    ],
    "clients": [
        ("pair", lambda *_: labels()[0]),
        ("one client", lambda *_: labels(1)),
        ("tensor", lambda *_: torch.randn(3, 6, 5)),
        ("empty client", replaced(1, lambda _: (torch.ones(0, 5), torch.ones(0)))),
        ("one sample", replaced(1, lambda _: (torch.ones(1, 5), torch.zeros(1, dtype=torch.int64)))),
        ("triple", replaced(1, lambda _: (torch.ones(6, 5), torch.arange(6) % 3, torch.ones(6)))),
        ("table pair", replaced(1, lambda _: {"inputs": torch.ones(6, 5), "targets": torch.arange(6)})),
        ("None client", replaced(1, lambda _: None)),
        ("text client", replaced(1, lambda _: "text")),
        ("path client", replaced(0, lambda _: Path("nowhere.csv"))),
        ("frame among pairs", replaced(1, lambda _: frame())),
        ("fewer targets", targets_of(lambda y: y[:5])),
        ("NaN inputs", inputs_of(lambda x: x / 0 * 0)),
        ("inf inputs", inputs_of(lambda x: x / 0)),
        ("large inputs", inputs_of(lambda x: x * 1e38)),
        ("double beyond float", inputs_of(lambda x: x.double() * 1e300)),
        ("meta inputs", inputs_of(lambda x: x.to("meta"))),
        ("complex inputs", inputs_of(lambda x: x * 1j)),
        ("bool inputs", inputs_of(lambda x: x > 0)),
        ("integer inputs", inputs_of(lambda x: x.long())),
        ("half inputs", inputs_of(lambda x: x.half())),
        ("uint16 inputs", inputs_of(lambda x: np.ones((6, 5), dtype=np.uint16))),
        ("sparse inputs", inputs_of(lambda x: x.to_sparse())),
        ("inputs with gradient", inputs_of(lambda x: x.requires_grad_())),
        ("wider inputs", inputs_of(lambda x: torch.cat([x, x], 1))),
        ("flat inputs", inputs_of(lambda x: x[:, 0])),
        ("no features", inputs_of(lambda x: x[:, :0])),
        ("object inputs", inputs_of(lambda x: np.array([[None] * 5] * 6, dtype=object))),
        ("text inputs", inputs_of(lambda x: [["a"] * 5] * 6)),
        ("ragged inputs", inputs_of(lambda x: [[1.0], [1.0, 2.0]])),
        ("frame inputs", inputs_of(lambda x: pd.DataFrame(x.numpy()))),
        ("date inputs", inputs_of(lambda x: np.full((6, 5), np.datetime64("2020-01-01")))),
        ("reversed inputs", inputs_of(lambda x: x.numpy()[::-1])),
        ("big-endian inputs", inputs_of(lambda x: x.numpy().astype(">f4"))),
        ("read-only inputs", inputs_of(lambda x: np.broadcast_to(np.float32(1), (6, 5)))),
        ("masked inputs", inputs_of(lambda x: np.ma.masked_less(x.numpy(), 0))),
        ("expanded inputs", inputs_of(lambda x: x[:1].expand(6, 5))),
        ("label beyond outputs", targets_of(lambda y: y + 7)),
        ("negative label", targets_of(lambda y: y - 1)),
        ("huge label", targets_of(lambda y: y + 2**62)),
        ("float targets", targets_of(lambda y: y.float())),
        ("bool targets", targets_of(lambda y: y > 0)),
        ("complex targets", targets_of(lambda y: y * 1j)),
        ("meta targets", targets_of(lambda y: y.to("meta"))),
        ("text targets", targets_of(lambda y: ["a"] * 6)),
        ("None targets", targets_of(lambda y: None)),
        ("one-hot targets", targets_of(lambda y: nn.functional.one_hot(y, 3))),
        ("scalar targets", targets_of(lambda y: 1)),
        ("NaN targets", targets_of(lambda y: y / 0)),
        ("uint64 targets", targets_of(lambda y: np.full(6, 2**64 - 1, dtype=np.uint64))),
        ("huge int targets", targets_of(lambda y: [10**30] * 6)),
        ("series targets", targets_of(lambda y: pd.Series(["a"] * 6))),
        *(
            (f"dataset: {what}", replaced(1, functools.partial(lambda what, _: BrokenDataset(what), what)))
            for what in ("fails", "not pairs", "shapes", "text", "negative length")
        ),
        ("one dataset", lambda *_: torch_data.TensorDataset(*labels()[0])),
        ("one loader", lambda *_: torch_data.DataLoader(torch_data.TensorDataset(*labels()[0]))),
        ("table of pairs", lambda *_: {"a": labels()[0], "b": labels()[1]}),
        ("table of junk names", lambda *_: {None: labels()[0], "x\n" * 500: (1, 2)}),
        ("missing values", column("a", [None, *[1.0] * 17])),
        ("missing labels", column("label", [None, *["low"] * 17])),
        ("missing clients", column("hospital", [None, *[1.0] * 17])),
        ("text feature", column("b", ["x"] * 18)),
        ("inf feature", column("b", [float("inf")] * 18)),
        ("date feature", column("b", [datetime(2020, 1, 1)] * 18)),
        ("object feature", column("b", [{}] * 18)),
        ("huge feature", column("b", [10**400] * 18)),
        ("complex feature", column("b", [1j] * 18)),
        ("list clients", column("hospital", [[1]] * 18)),
        ("many classes", column("label", [f"x{i}" for i in range(18)])),
        ("label above outputs", column("label", list(range(18)))),
        ("other columns", lambda *_: [*frames(2), frame(2).rename(columns={"a": "z"})]),
        ("two columns of one name", lambda *_: pd.concat([frame(), frame()], axis=1)),
        ("levels of columns", lambda *_: pd.concat({"x": frame(), "y": frame()}, axis=1)),
        ("missing file", lambda *_: "nowhere.csv"),
        ("missing folder", lambda *_: Path("no/where")),
        ("empty folder", folder_with("empty")),
        ("folder of text", folder_with("texts", "a.txt", "b.txt")),
        ("folder of bad tables", folder_with("tables", "a.csv", "b.csv")),
        ("empty csv", written("empty.csv", b"")),
        ("binary csv", written("binary.csv", bytes(range(256)))),
        ("ragged csv", written("ragged.csv", b"a,label\n1,2\n3,4,5,6\n")),
        ("bad parquet", written("bad.parquet", b"PAR1nothing")),
        ("bad npz", written("bad.npz", b"PK\x03\x04")),
        ("unknown ending", written("data.xyz", b"1 2 3")),
    ],
    "by": [
        ("missing column", const("clinic")),
        ("misspelt", const("hospitl")),
        ("the target", const("label")),
        ("given beside pairs", const("hospital")),
    ],
    "target": [
        ("missing column", const("outcome")),
        ("misspelt", const("lable")),
        ("the client", const("hospital")),
        ("number column", const("a")),
        ("given beside pairs", const("label")),
    ],
    "network": [
        ("other size", lambda *_: dp.ring(9)),
        ("misspelt", const("rign")),
        ("unknown option", const({"ring": {"hop": 2}})),
        ("wrong option", const({"ring": {"hops": -1}})),
        ("option of text", const({"ring": {"hops": "two"}})),
        ("impossible", const("hypercube")),
        ("missing file", const("edges.txt")),
        ("missing path", const(Path("edges.txt"))),
        ("bad edges", written("edges.txt", b"0 1\nzero one\n")),
        ("binary edges", written("edges.bin", bytes(range(256)))),
        ("edges of others", written("far.txt", b"0 99\n")),
        ("disconnected", lambda *_: nx.empty_graph(3)),
        ("directed", lambda *_: nx.DiGraph([(0, 1), (1, 2)])),
        ("multigraph", lambda *_: nx.MultiGraph([(0, 1), (0, 1), (1, 2)])),
        ("nodes of text", lambda *_: nx.Graph([("a", "b"), ("b", "c")])),
        ("empty graph", made(nx.Graph)),
        ("p above one", const({"erdos-renyi": {"p": 2.0}})),
        ("p of NaN", const({"erdos-renyi": {"p": float("nan")}})),
        ("p of zero", const({"erdos-renyi": {"p": 0.0}})),
    ],
    "channel": [
        ("misspelt", const("flaot16")),
        ("unknown option", const({"sparse": {"k": 1}})),
        ("number", const({"float16": 3})),
        ("two", const({"float16": {}, "sparse": {}})),
    ],
    "regularizer": [
        ("misspelt", const("l11")),
        ("unknown option", const({"mcp": {"thetta": 3.0}})),
        ("wrong option", const({"mcp": {"theta": -3.0}})),
        ("option NaN", const({"l1": {"lam": float("nan")}})),
        ("option inf", const({"mcp": {"theta": float("inf")}})),
        ("option text", const({"mcp": {"theta": "three"}})),
        ("option huge", const({"mcp": {"lam": 10**400}})),
        ("on nothing", const({"l1": {}, "on": "*.nothing"})),
        ("on number", const({"l1": {}, "on": 3})),
        ("on empty", const({"l1": {}, "on": []})),
        ("scale text", const({"l1": {}, "scale": "big"})),
        ("scale NaN", const({"l1": {}, "scale": float("nan")})),
        ("list without on", const([{"l1": {}}, {"l2": {}}])),
        ("list of overlaps", const([{"l1": {}, "on": "*"}, {"l2": {}, "on": "*"}])),
        ("list of junk", const([{"l1": {}, "on": "weight"}, 3])),
        ("list of instances", lambda *_: [dp.L1(), dp.L2Norm()]),
        ("box upside down", const({"box": {"low": 1.0, "high": -1.0}})),
        ("nuclear", const("nuclear")),
        ("group lasso", const("group-lasso")),
        ("simplex", const("simplex")),
        *((f"misspelt {name}", const(misspelt(name))) for name in REGULARIZERS),
    ],
    "beta": [*NUMBER_FAULTS, ("large", const(1e6)), ("large for MCP", const(100.0))],
    "algorithm": [
        ("unknown option", const({"depositum": {"alhpa": 0.1}})),
        ("negative alpha", const({"depositum": {"alpha": -0.1}})),
        ("zero alpha", const({"depositum": {"alpha": 0}})),
        ("NaN alpha", const({"depositum": {"alpha": float("nan")}})),
        ("huge alpha", const({"depositum": {"alpha": 10**400}})),
        ("diverging alpha", const({"depositum": {"alpha": 1e30}})),
        ("alpha of text", const({"depositum": {"alpha": "fast"}})),
        ("alpha of None", const({"depositum": {"alpha": None}})),
        ("alpha function", const({"depositum": {"alpha": lambda t: 0.1}})),
        ("alpha array", lambda *_: {"depositum": {"alpha": np.ones(3)}}),
        ("alpha schedule misspelt", const({"depositum": {"alpha": {"cosin": {"start": 0.1, "steps": 3}}}})),
        ("alpha schedule without start", const({"depositum": {"alpha": {"cosine": {}}}})),
        ("alpha schedule wrong", const({"depositum": {"alpha": {"step": {"start": 1.0, "factor": 2.0, "every": 3}}}})),
        ("gamma of one", const({"depositum": {"gamma": 1.0}})),
        ("momentum misspelt", const({"depositum": {"momentum": "polyakk"}})),
        ("start of number", const({"depositum": {"start": 3}})),
        ("list", const(["depositum"])),
        ("nested", const({"depositum": {"depositum": {}}})),
        ("value of a list", const({"depositum": [0.1]})),
        ("path", const(Path("depositum"))),
        ("import path", const("os:getcwd")),
        *((f"misspelt {name}", const(misspelt(name))) for name in ALGORITHMS),
        *((f"method {name}", const(name)) for name in ALGORITHMS),
    ],
    "period": [*NUMBER_FAULTS, ("larger than steps", const(7))],
    "batch_size": [*NUMBER_FAULTS, ("misspelt", const("ful")), ("more than samples", const(1000))],
    "steps": [fault for fault in NUMBER_FAULTS if fault[0] != "number 2**40"],  # it would be right, and never end
    "loss": [
        ("misspelt", const("cross-entropi")),
        ("mse", const("mse")),
        ("logistic", const("logistic")),
        ("tokens", const("tokens")),
        ("cross-entropy", const("cross-entropy")),
        ("class", const(nn.CrossEntropyLoss)),
        ("reduced", const(lambda o, y: o.sum())),
        ("fails", const(failing)),
        ("returns None", const(lambda o, y: None)),
        ("returns a number", const(lambda o, y: 1.0)),
        ("returns NaN", const(lambda o, y: o.flatten(1).sum(1) * float("nan"))),
        ("returns detached", const(lambda o, y: o.detach().flatten(1).sum(1))),
        ("returns numpy", const(lambda o, y: o.detach().numpy().sum(1))),
        ("returns integers", const(lambda o, y: o.flatten(1).sum(1).long())),
        ("returns complex", const(lambda o, y: o.flatten(1).sum(1) * 1j)),
        ("one argument", const(lambda o: o.sum(1))),
        ("no argument", const(lambda: 0)),
        ("wrong weight", lambda *_: nn.CrossEntropyLoss(weight=torch.ones(7))),
        ("nll", made(nn.NLLLoss)),
        ("l1", made(nn.L1Loss)),
        ("bce", made(nn.BCELoss)),
        ("functional", const(nn.functional.mse_loss)),
        ("margin", made(nn.MultiMarginLoss)),
        ("ctc", made(nn.CTCLoss)),
        ("cosine", made(nn.CosineEmbeddingLoss)),
        ("table", const({"cross-entropy": {}})),
        ("unreduced module", lambda *_: nn.CrossEntropyLoss(reduction="none")),
        ("unknown reduction", lambda *_: _with_reduction("median")),
    ],
    "test": [
        ("other width", lambda *_: (torch.ones(3, 4), torch.zeros(3, dtype=torch.int64))),
        ("other targets", lambda *_: (torch.ones(3, 5), torch.zeros(3, 2))),
        ("label beyond outputs", lambda *_: (torch.ones(3, 5), torch.full((3,), 9))),
        ("empty", lambda *_: (torch.ones(0, 5), torch.ones(0, dtype=torch.int64))),
        ("NaN", lambda *_: (torch.full((3, 5), float("nan")), torch.zeros(3, dtype=torch.int64))),
        ("meta", lambda *_: (torch.ones(3, 5, device="meta"), torch.zeros(3, dtype=torch.int64))),
        ("complex", lambda *_: (torch.ones(3, 5) * 1j, torch.zeros(3, dtype=torch.int64))),
        ("list of pairs", lambda *_: labels()),
        ("frame of others", lambda *_: pd.DataFrame({"z": [1.0], "label": ["low"]})),
        ("frame with gaps", lambda *_: frame().assign(a=None)),
        ("frame with a new label", lambda *_: frame().assign(label="other")),
        ("missing file", const("nowhere.csv")),
        ("empty csv", written("test.csv", b"")),
        ("folder", folder_with("folder", "a.csv")),
        ("broken dataset", lambda *_: BrokenDataset("fails")),
    ],
    "weighting": [("misspelt", const("sample"))],
    "seed": NUMBER_FAULTS,
    "seeds": [
        ("duplicates", const([1, 1])),
        ("negative", const([0, -1])),
        ("too large", const([2**63])),
        ("floats", const([0.0, 1.0])),
        ("truth values", const([True, False])),
        ("text", const("01")),
        ("one number", const(3)),
        ("array", lambda *_: np.arange(2)),
        ("tensor", lambda *_: torch.arange(2)),
        ("nested", const([[0], [1]])),
        ("endless", lambda *_: itertools.count()),
        ("fails", lambda *_: failing_generator()),
    ],
    "out": [
        ("file", written("file", b"mine")),
        ("below a file", lambda call, folder: written("file", b"mine")(call, folder) / "run"),
        ("other content", folder_with("mine", "notes.txt")),
        ("not writable", const("/proc/nowhere/run")),
        ("device", const("/dev/null")),
        ("too long", lambda _, folder: folder / ("x" * 5000)),
        ("NUL", lambda _, folder: f"{folder}/a\0b"),
        ("unknown user", const("~nobody-here/run")),
        ("broken config", folder_with("broken", "config.toml")),
        ("broken history", folder_with("half", "history.csv", "state.safetensors")),
        ("run of another", lambda _, folder: shutil.copytree(_finished_run(), folder / "other")),
    ],
    "device": [
        ("misspelt", const("cpuu")),
        ("missing", const("cuda:99")),
        ("meta", const("meta")),
        ("object", const(torch.device("cpu"))),
        ("mps", const("mps")),
        ("xla", const("xla")),
    ],
    "dtype": [("half", const("float16")), ("torch", const(torch.float32)), ("misspelt", const("flaot32"))],
    "precision": [("misspelt", const("bf61")), ("bf16", const("bf16")), ("tf32", const("tf32"))],
    "compile": [("misspelt", const("nevr"))],
    "evaluate_every": NUMBER_FAULTS,
    "evaluate_from": NUMBER_FAULTS,
    "checkpoint_every": NUMBER_FAULTS,
    "metrics": [
        ("fails", const({"f1": failing})),
        ("returns an array", const({"f1": lambda o, y: o})),
        ("returns text", const({"f1": lambda o, y: "good"})),
        ("returns None", const({"f1": lambda o, y: None})),
        ("returns truth", const({"f1": lambda o, y: True})),
        ("returns complex", const({"f1": lambda o, y: 1j})),
        ("returns NaN", const({"f1": lambda o, y: float("nan")})),
        ("one argument", const({"f1": lambda o: 1.0})),
        ("not a function", const({"f1": 3})),
        ("name of a column", const({"train_loss": lambda o, y: 1.0})),
        ("name of text", const({"f1 score\n": lambda o, y: 1.0})),
        ("name of number", const({1: lambda o, y: 1.0})),
        ("empty name", const({"": lambda o, y: 1.0})),
        ("class", const({"f1": int})),
        ("list", const([lambda o, y: 1.0])),
        ("smoothness", lambda *_: dp.MetricSettings(costly_every=6, smoothness="measure")),
        ("stride", lambda *_: dp.MetricSettings(costly_every=7)),
        ("alpha", lambda *_: dp.MetricSettings(costly_every=6, alpha=1e9)),
        ("large alpha", lambda *_: dp.MetricSettings(costly_every=6, alpha=1e300)),
    ],
    "callbacks": [
        ("class", const([dp.Callback])),
        ("function", const([print])),
        ("single", lambda *_: dp.Callback()),
        ("None inside", lambda *_: [dp.Callback(), None]),
        ("unknown measure", lambda *_: [dp.EarlyStopping("los")]),
        ("missing measure", lambda *_: [dp.EarlyStopping("stationarity")]),
        ("unknown best", lambda *_: [dp.KeepBest("f1")]),
        ("fails at the start", lambda *_: [FailingCallback("on_start")]),
        ("fails in a step", lambda *_: [FailingCallback("on_step")]),
        ("fails at the end", lambda *_: [FailingCallback("on_end")]),
        ("fails when iterated", lambda *_: failing_generator()),
    ],
    "progress": [("text", const("yes"))],
    "on_divergence": [("misspelt", const("rase"))],
    "processes": [("number", const(3))],
}

#: Arguments of `fit` that `tune` does not have.
RUN_ALONE = ("checkpoint_every", "callbacks", "on_divergence", "processes")

TUNE_FAULTS: dict[str, list[Fault]] = {
    **{argument: faults for argument, faults in FIT_FAULTS.items() if argument not in RUN_ALONE},
    "over": [
        ("unknown", const({"gama": [0.1]})),
        ("unknown section", const({"network.topology": ["ring"]})),
        ("no values", const({"gamma": []})),
        ("nothing", const({})),
        ("number", const({"gamma": 0.5})),
        ("text", const({"gamma": "many"})),
        ("automatic but not the stepsize", const({"gamma": "auto"})),
        ("wrong values", const({"gamma": [0.5, 2.0]})),
        ("values of text", const({"gamma": ["a", "b"]})),
        ("values of lists", const({"gamma": [[0.1], [0.2]]})),
        ("NaN values", const({"gamma": [float("nan")]})),
        ("None values", const({"gamma": [None]})),
        ("endless values", lambda *_: {"gamma": itertools.count()}),
        ("array", lambda *_: {"gamma": np.array([0.1, 0.5])}),
        ("tensor", lambda *_: {"alpha": torch.tensor([0.1, 0.5])}),
        ("names of numbers", const({3: [0.1]})),
        ("wrong period", const({"period": [0, 1]})),
        ("wrong batch", const({"batch_size": [-1, 4]})),
        ("other arguments", const({"steps": [1, 2]})),
        ("diverging", const({"alpha": [1e30, 1e35]})),
        ("zero stepsizes", const({"alpha": [0.0]})),
        ("beta without regularizer", const({"beta": [0.1]})),
        ("very many", const({"gamma": [i / 1e6 for i in range(100_000)], "alpha": [i / 1e6 for i in range(100_000)]})),
    ],
    "seeds_per_candidate": NUMBER_FAULTS,
    "holdout": [*NUMBER_FAULTS, ("one", const(1.0)), ("tiny", const(1e-12)), ("nearly all", const(0.999))],
    "callbacks": [("of the run", lambda *_: [dp.Callback()])],
    "stepz": [("misspelt", const(3))],
}

#: What an error may name besides the argument at fault: arguments that it must fit. Data, model and loss are judged
#: together, and so are a method, its period, its network and the regularizer.
_DATA = {"model", "clients", "by", "target", "test", "loss", "metrics", "batch_size"}
_METHOD = {"algorithm", "period", "network", "channel", "regularizer", "beta"}
RELATED: dict[str, set[str]] = {
    **dict.fromkeys(_DATA, _DATA | {"network", "out", "callbacks", "regularizer", "dtype"}),
    **dict.fromkeys(_METHOD, _METHOD | {"out", "metrics"}),
    "seed": {"seeds", "out"},
    "seeds": {"seed", "out"},
    "evaluate_every": {"evaluate_from", "metrics"},
    "evaluate_from": {"evaluate_every"},
    "dtype": {"precision", "clients", "model", "loss"},
    "precision": {"dtype"},
    "out": {"folder", "seed", "seeds"},
    "folder": {"model"},
    "over": {"algorithm", "beta", "period", "batch_size", "regularizer"},
    "holdout": {"clients", "model", "loss", "alpha", "over"},
    "seeds_per_candidate": {"seeds"},
}
#: Names of settings that are fields of an object that was passed, as the user wrote them there.
FIELDS = {
    "over": {"gamma", "alpha"},
    "algorithm": {name for method in ALGORITHMS for name in ALGORITHMS.parameters(method)},
    "metrics": {"costly_every", "alpha", "smoothness", "train_every"},
    "callbacks": {"monitor", "mode"},
}


def _with_reduction(name: str) -> nn.Module:
    loss = nn.CrossEntropyLoss()
    loss.reduction = name
    return loss


def load_faults() -> dict[str, list[Fault]]:
    def damaged(name: str, change: Callable[[bytes], bytes]) -> Callable[[Arguments, Path], Any]:
        def damage(call: Arguments, _: Path) -> Any:
            file = Path(call["folder"]) / name
            file.write_bytes(change(file.read_bytes()))
            return call["folder"]

        return damage

    def removed(*names: str) -> Callable[[Arguments, Path], Any]:
        def remove(call: Arguments, _: Path) -> Any:
            for name in names:
                (Path(call["folder"]) / name).unlink(missing_ok=True)
            return call["folder"]

        return remove

    folder = [
        ("missing", const("nowhere")),
        ("file", lambda call, _: Path(call["folder"]) / "config.toml"),
        ("empty", folder_with("empty")),
        ("other content", folder_with("mine", "notes.txt")),
        *[fault for fault in FIT_FAULTS["out"] if fault[0] in ("NUL", "unknown user", "too long", "device")],
        *((f"without {name}", removed(name)) for name in ("config.toml", "history.csv", "consensus.csv")),
        ("without checkpoints", removed("state.safetensors", "previous.safetensors")),
        *(
            (f"truncated {name}", damaged(name, lambda content: content[: len(content) // 2]))
            for name in ("config.toml", "history.csv", "consensus.csv", "state.safetensors")
        ),
        *(
            (f"binary {name}", damaged(name, lambda content: bytes(range(256))))
            for name in ("config.toml", "history.csv", "consensus.csv", "state.safetensors")
        ),
    ]
    return {"folder": folder, "model": FIT_FAULTS["model"]}


# Calls


@dataclass
class Call:
    """A function, its arguments, and what is wrong with them."""

    function: str
    run: Callable[..., Any]
    arguments: Arguments
    faults: list[tuple[str, str]] = field(default_factory=list)

    @property
    def names(self) -> set[str]:
        """The names with which an error may begin."""
        if self.function not in ("fit", "load", "tune"):
            return {*self.arguments, *_parameters(self.run), self.function.rpartition(".")[2]}
        names = set()
        for argument, _ in self.faults:
            names |= {argument} | RELATED.get(argument, set())
        if self.function == "tune":  # which refuses values that none of the candidates can have
            names |= {"over", "alpha"}
        for argument in list(names):
            names |= FIELDS.get(argument, set())
        return names

    def __str__(self) -> str:
        what = ", ".join(f"{argument}: {fault}" for argument, fault in self.faults)
        return f"{self.function}({what or 'valid'})"


def _parameters(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def random_call(rng: random.Random, folder: Path) -> Call:
    """A call of a random function with no, one or two faults."""
    chosen = rng.random()
    if chosen < 0.2:
        return _small_call(rng)
    if chosen < 0.28:
        call = Call("load", dp.load, valid_load(rng, folder))
        faults = load_faults()
    elif chosen < 0.4:
        call = Call("tune", dp.tune, valid_tune(rng, folder))
        faults = TUNE_FAULTS
    else:
        call = Call("fit", dp.fit, valid_fit(rng, folder))
        faults = FIT_FAULTS
    count = rng.choices([0, 1, 2], [1, 14, 5])[0]
    often = [argument for argument, kinds in faults.items() for _ in range(1 + len(kinds) // 8)]
    for argument in sorted({rng.choice(often) for _ in range(count)}):
        if rng.random() < 0.3:
            what, make = rng.choice(JUNK_FAULTS)
        else:
            what, make = rng.choice(faults[argument])
        call.faults.append((argument, what))
        call.arguments[argument] = make(call.arguments, folder)
        if argument == "regularizer":
            call.arguments.setdefault("beta", 0.1)
    return call


def _small_call(rng: random.Random) -> Call:
    name = rng.choice(sorted(SMALL))
    function, valid = SMALL[name]
    arguments = dict(valid)
    wrong = rng.choice(sorted({*_parameters(function), *arguments}) or [""])
    if not wrong:
        return Call(name, function, arguments)
    if rng.random() < 0.3:
        what, value = rng.choice([*NUMBERS.items()])
    else:
        what = rng.choice(sorted(JUNK))
        value = JUNK[what]()
    if name.startswith("algorithm") and wrong != "name" and rng.random() < 0.2:
        arguments[misspelt(wrong)] = arguments.pop(wrong)
    else:
        arguments[wrong] = value
    return Call(name, function, arguments, [(wrong, what)])


@dataclass(frozen=True)
class Outcome:
    """How a call ended; `violations` is empty if it ended as it should."""

    call: Call
    kind: str
    message: str
    violations: tuple[str, ...] = ()
    trace: str = ""


def perform(call: Call, folder: Path, limit: float = LIMIT) -> Outcome:
    """Make the call in a folder of its own, and judge how it ended."""
    before = _content(folder)
    printed = io.StringIO()
    error: BaseException | None = None
    with (
        contextlib.chdir(folder),
        warnings.catch_warnings(record=True) as caught,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        _time_limit(limit),
    ):
        warnings.simplefilter("always")
        try:
            call.run(**call.arguments)
        except (Exception, Hang) as raised:
            error = raised
    violations = [f"warns: {w.category.__name__}: {w.message}" for w in caught if not _is_own(w)]
    if printed.getvalue():
        violations.append(f"prints {printed.getvalue()[:200]!r}")
    if error is None:
        return Outcome(call, "accepted", "", tuple(violations))
    kind, found = _judge(call, error)
    if kind == "refused" and _content(folder) != before:
        new = sorted({str(path) for path in {*_content(folder).items()} ^ {*before.items()}})
        found.append(f"writes {new[:3]}")
    trace = "".join(traceback.format_exception(error)[-6:]) if found else ""
    return Outcome(call, kind, f"{type(error).__name__}: {error}", (*violations, *found), trace)


def _judge(call: Call, error: BaseException) -> tuple[str, list[str]]:
    """How a call ended that raised an error, and what is wrong with the error."""
    if isinstance(error, Hang):
        return "hangs", [f"takes longer than {LIMIT:g} s"]
    if isinstance(error, OwnError) and any(argument == "callbacks" for argument, _ in call.faults):
        return "user's error", []
    if not isinstance(error, dp.DepositumError):
        return "raises", [f"raises {type(error).__name__}: {str(error)[:200]!r}"]
    text, found = str(error), []
    if len(text) > MAX_MESSAGE or not text.isprintable():
        found.append(f"the message has {len(text)} characters, or is not one line")
    if isinstance(error, dp.DivergedError):
        return "diverged", found
    match = re.match(r"([A-Za-z_]+)([.\[][^:]*)?: ", text)
    if match is None:
        found.append("the message does not begin with a name")
    elif match[1] not in call.names:
        found.append(f"the message names {match[1]!r}")
    return "refused", found


def _is_own(warning: warnings.WarningMessage) -> bool:
    """Whether a warning is one that the package gives on purpose: one line, about what the user passed."""
    text = str(warning.message)
    if text.startswith(
        "There is a performance drop"
    ):  # torch, about a loss that it cannot evaluate for all rows at once
        return True
    return issubclass(warning.category, RuntimeWarning) and text.isprintable() and len(text) <= MAX_MESSAGE


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hang

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(4 * seconds, exit=True, file=sys.__stderr__)  # code that no signal interrupts
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def perform_random(seed: int, index: int, limit: float = LIMIT) -> Outcome:
    """The outcome of one random call."""
    rng = random.Random(f"{seed}/{index}")
    torch.manual_seed(index)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        return perform(random_call(rng, folder), folder, limit)


def table(outcomes: Sequence[Outcome]) -> str:
    """How many calls ended how, by the argument at fault."""
    kinds = ["accepted", "refused", "diverged", "user's error", "violations"]
    counts: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        arguments = [argument for argument, _ in outcome.call.faults] or ["(valid)"]
        big = outcome.call.function in ("fit", "load", "tune")
        for argument in arguments if big else ["(of it)"]:
            row = counts.setdefault(f"{outcome.call.function if big else 'small functions'} {argument}", Counter())
            row["violations" if outcome.violations else outcome.kind] += 1
    lines = [f"{'':32}" + "".join(f"{kind:>14}" for kind in kinds)]
    lines += [f"{name:32}" + "".join(f"{row[kind]:14}" for kind in kinds) for name, row in sorted(counts.items())]
    return "\n".join(lines)


def main() -> int:
    """Make the calls, print what happened, and return 1 if any ended as it should not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000, help="calls per seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--show", help="print calls that ended like this too: accepted, refused, diverged")
    parser.add_argument("--only", type=int, help="make this call alone, and print its traceback")
    options = parser.parse_args()
    indices = range(options.calls) if options.only is None else [options.only]
    outcomes = []
    for seed, index in itertools.product(options.seeds, indices):
        outcome = perform_random(seed, index)
        outcomes.append(outcome)
        if outcome.violations or options.only is not None or outcome.kind == options.show:
            print(f"seed {seed}, call {index}: {outcome.call}\n    {outcome.message}", file=sys.stderr)
            for violation in outcome.violations:
                print(f"    VIOLATION {violation}", file=sys.stderr)
            if options.only is not None:
                print(outcome.trace, file=sys.stderr)
    print(table(outcomes))
    wrong = sum(bool(outcome.violations) for outcome in outcomes)
    ends = Counter(outcome.kind for outcome in outcomes)
    print(f"\n{len(outcomes)} calls: {', '.join(f'{n} {kind}' for kind, n in ends.items())}; {wrong} violations")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
