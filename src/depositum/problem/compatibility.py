"""Checks, before any work, that a model and a loss can be used with the data: each failure is one line."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from depositum.errors import ConfigError, describe_exception
from depositum.problem.losses import Loss


def check_loss(loss: Loss, outputs: object, targets: Tensor, count: int) -> None:
    """Check a loss on a model's outputs for the first `count` samples, and on all targets `[N, ...]`."""
    if loss.check:
        if not isinstance(outputs, Tensor):
            returned = f"returned a {type(outputs).__name__}, but {loss.name!r} takes one tensor"
            raise ConfigError("model", f"{returned}; wrap it in a module that returns only that tensor")
        if outputs.dim() == 0 or len(outputs) != count:
            shape = f"{list(outputs.shape)} for {count} samples"
            raise ConfigError("model", f"returned a tensor of shape {shape}; it must return one row per sample")
        loss.check(outputs, targets)
    what = f"{loss.name!r} fails on outputs {describe(outputs)} and targets {describe(targets[:count])}"
    with attribute_errors("loss", what), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using a target size")  # torch warns of what the next check rejects
        losses = loss.per_sample(outputs, targets[:count])  # type: ignore[arg-type]
    _check_not_broadcast(losses, outputs, targets[:count])
    check_per_sample(losses, count)


def check_per_sample(losses: Tensor, count: int) -> None:
    """Reject a loss that has averaged over samples: full and weighted gradients need one value per sample."""
    shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
    if shape != (count,):
        raise ConfigError(
            "loss",
            f"returned shape {shape} for {count} samples; it must return one value per sample, "
            f"shape ({count},): use reduction='none'",
        )


def _check_not_broadcast(losses: object, outputs: object, targets: Tensor) -> None:
    """Reject shapes that torch broadcasts: `[N, 1]` with `[N]` would compare every sample with every other."""
    if not isinstance(losses, Tensor) or not isinstance(outputs, Tensor):
        return
    n = len(targets)
    if {outputs.shape, targets.shape} == {(n,), (n, 1)} and losses.shape == (n, n):
        raise ConfigError(
            "loss",
            f"outputs have shape {list(outputs.shape)} and targets {list(targets.shape)}, so that every output would "
            f"be compared with every target; give targets of shape {'[N, 1]' if outputs.dim() == 2 else '[N]'}",
        )


@contextmanager
def attribute_errors(key: str, what: str) -> Iterator[None]:
    """Turn any exception of user-defined code into one line: the key it was given for, what failed, and the error."""
    try:
        yield
    except Exception as error:
        raise ConfigError(key, f"{what}: {describe_exception(error)}") from error


def describe(value: object) -> str:
    """A tensor's shape and dtype; the type of anything else."""
    return f"{list(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
