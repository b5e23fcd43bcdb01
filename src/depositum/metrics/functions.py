"""User-defined measures: functions of all outputs and targets, such as F1, AUC or R².

Such a measure is in general not a mean over samples, so it cannot be added up from parts: the outputs of the averaged
model on all evaluated samples are collected on the host, of one trial after another.
"""

import math
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from depositum.errors import ConfigError, describe_exception, is_number, short_repr
from depositum.metrics.measures import Average
from depositum.metrics.reduction import SINGLE_PROCESS, Reduction
from depositum.problem import Oracle
from depositum.problem.compatibility import describe

#: A measure of outputs and targets `[N, ...]`, tensors on the host: a number, or a tensor with one element.
MetricFunction = Callable[[Tensor, Tensor], Any]

#: Most bytes of outputs that are collected at once. Those of a language model would be far more.
LARGEST_OUTPUTS = 4 << 30
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def check_functions(functions: object, taken: tuple[str, ...]) -> None:
    """Refuse what is not a mapping of new names to functions; `taken` are the names of other columns."""
    if not isinstance(functions, Mapping):
        example = 'a dictionary of functions of (outputs, targets) by name, such as {"f1": f1}'
        raise ConfigError("functions", f"{short_repr(functions)} given; it must be {example}")
    for name, function in functions.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            rule = "the name of a measure has letters, digits, - and _, and begins with a letter"
            raise ConfigError("functions", f"{short_repr(name)} given; {rule}")
        if name in taken:
            raise ConfigError(f"functions.{name}", "is the name of a column that every history has; choose another")
        if not callable(function):
            raise ConfigError(
                f"functions.{name}", f"{short_repr(function)} given; it must be a function of (outputs, targets)"
            )


def evaluate_functions(
    functions: Mapping[str, MetricFunction],
    average: Average,
    oracle: Oracle,
    reduction: Reduction = SINGLE_PROCESS,
) -> dict[str, Tensor]:
    """The user's measures of each trial's averaged model, float64 `[S]` by name; NaN where one is not defined.

    They are functions of the test data or, if there is none, of the training data. Among processes, which all have
    the same test data, rank 0 evaluates them for all.
    """
    values = torch.full((oracle.trials, len(functions)), float("nan"), dtype=torch.float64)
    if reduction.rank == 0:
        for trial in range(oracle.trials):
            split, indices = _evaluated(oracle, trial)
            buffers = {k: b[trial] for k, b in average.buffers.items()}
            outputs, targets = oracle.outputs(average.x[trial], buffers, split, indices)
            for column, (name, function) in enumerate(functions.items()):
                values[trial, column] = _call(name, function, outputs, targets)
    values = reduction.broadcast(values.to(average.x.device), 0)
    return dict(zip(functions, values.T, strict=True))


def dry_run(functions: Mapping[str, MetricFunction], oracle: Oracle, reduction: Reduction = SINGLE_PROCESS) -> None:
    """Call every function once, on the initial model, so that one that fails is reported before any work."""
    if not functions:
        return
    first = next(iter(functions))
    if reduction.size > 1 and oracle.test is None:
        raise ConfigError(
            f"functions.{first}", "given, but there is no test data, and no process has all the training data"
        )
    split, indices = _evaluated(oracle, 0)
    row, buffers = oracle.start()[0], {k: b[0] for k, b in oracle.buffers.items()}
    one, _ = oracle.outputs(row, buffers, split, indices[:1])
    size = one.nbytes * len(indices)
    if size > LARGEST_OUTPUTS:
        raise ConfigError(
            f"functions.{first}",
            f"given, but the outputs of {len(indices)} samples take {size / 2**30:.0f} GiB; at most "
            f"{LARGEST_OUTPUTS >> 30} GiB are collected",
        )
    if reduction.rank == 0:
        outputs, targets = oracle.outputs(row, buffers, split, indices)
        for name, function in functions.items():
            _call(name, function, outputs, targets)


def call_or_nan(name: str, function: MetricFunction, outputs: Tensor, targets: Tensor) -> float:
    """The value of a function that need not be defined for these samples: NaN, with a warning, where it fails."""
    try:
        return _call(name, function, outputs, targets)
    except ConfigError as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=1)
        return float("nan")


def _evaluated(oracle: Oracle, trial: int) -> tuple[Literal["train", "test"], Tensor]:
    """The samples that a trial is evaluated on: the test data or, without any, the clients' training data."""
    if oracle.test is not None:
        return "test", oracle.test_samples_of(trial)
    clients = len(oracle.clients)
    rows = range(trial * clients, (trial + 1) * clients)
    return "train", torch.cat([oracle.samples_of(row) for row in rows])


def _call(name: str, function: MetricFunction, outputs: Tensor, targets: Tensor) -> float:
    """The value of one function, which gets copies: it may change its arguments."""
    key = f"functions.{name}"
    try:
        with torch.no_grad():
            value = function(outputs.clone(), targets.clone())
    except Exception as error:
        given = f"outputs {describe(outputs)} and targets {describe(targets)}"
        reason = describe_exception(error)
        reason = reason if len(reason) <= 160 else f"{reason[:159]}…"
        raise ConfigError(key, f"fails on {given}: {reason}") from error
    number = value.item() if isinstance(value, Tensor | np.ndarray | np.generic) and _size(value) == 1 else value
    if isinstance(number, bool) or not is_number(number):
        what = describe(value) if isinstance(value, Tensor) else short_repr(value)
        raise ConfigError(key, f"returned {what}; it must return one number")
    if not math.isfinite(number):
        # The same text from the same line each time, so that Python shows the warning once.
        problem = "returned a value that is not finite; its column is empty there"
        warnings.warn(f"{key}: {problem}", RuntimeWarning, stacklevel=1)
        return float("nan")
    return float(number)


def _size(value: Tensor | np.ndarray | np.generic) -> int:
    return value.numel() if isinstance(value, Tensor) else value.size
