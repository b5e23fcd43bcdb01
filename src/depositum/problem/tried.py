"""A model and a loss tried on a few samples, before any work: what does not fit together is said in one line."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from depositum.errors import ConfigError, describe_exception
from depositum.problem.losses import Loss


def check_loss(loss: Loss, outputs: object, targets: Tensor, few: int) -> None:
    """Refuse a loss that has no meaning for a model's outputs of the first few samples, or for one of the targets."""
    if loss.check:
        if not isinstance(outputs, Tensor):
            returned = f"returned a {type(outputs).__name__}, but {loss.name!r} takes one tensor"
            raise ConfigError("problem.model", f"{returned}; wrap it in a module that returns that alone")
        loss.check(outputs, targets)
    what = f"{loss.name!r} fails on outputs {described(outputs)} and targets {described(targets[:few])}"
    with blamed_on("problem.loss", what), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using a target size")  # torch's, of what is refused next
        losses = loss.per_sample(outputs, targets[:few])  # type: ignore[arg-type]
    _check_not_paired(losses, outputs, targets[:few])
    check_per_sample(losses, few)


def check_per_sample(losses: Tensor, batch: int) -> None:
    """Refuse a person's loss that has averaged already: full and weighted gradients need one value per sample."""
    shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
    if shape != (batch,):
        raise ConfigError(
            "problem.loss",
            f"returned shape {shape} for {batch} samples; it must return one value per sample, "
            f"shape ({batch},): use reduction='none'",
        )


def _check_not_paired(losses: object, outputs: object, targets: Tensor) -> None:
    """Refuse shapes that torch has broadcast: `[N, 1]` against `[N]`, each sample's with every other's."""
    if not isinstance(losses, Tensor) or not isinstance(outputs, Tensor):
        return
    n = len(targets)
    if {outputs.shape, targets.shape} == {(n,), (n, 1)} and losses.shape == (n, n):
        raise ConfigError(
            "problem.loss",
            f"outputs have shape {list(outputs.shape)} and targets {list(targets.shape)}, so that every output would "
            f"be compared with every target; give targets of shape {'[N, 1]' if outputs.dim() == 2 else '[N]'}",
        )


@contextmanager
def blamed_on(key: str, what: str) -> Iterator[None]:
    """A person's own code may raise anything: say whose it is, what it was given and what it said, in one line."""
    try:
        yield
    except Exception as error:
        raise ConfigError(key, f"{what}: {describe_exception(error)}") from error


def described(value: object) -> str:
    """A tensor's shape and type, or what it is instead."""
    return f"{list(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
