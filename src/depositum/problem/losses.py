"""The loss l of a sample, and the definition of a correct answer."""

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depositum.errors import ConfigError, short_repr
from depositum.registry import Registry

PerSample = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Loss:
    """One value per sample, and optionally whether the answer for a sample is correct.

    Attributes
    ----------
    per_sample
        `(outputs [B, ...], targets [B, ...]) -> [B]`.
    correct
        `(outputs, targets) -> bool [B]`, for the accuracy; `None` if it is not defined.
    check
        `(outputs of a few samples, all targets)`: raises an error if the loss is not defined for them.
    terms
        `targets [..., *shape] -> [...]`, the number of terms that a sample's loss is the sum of, and that `correct`
        counts; `None` for one each. Every mean over samples is then a mean over terms: all tokens of all texts have the
        same weight.
    curvature
        Bound of the norm of the Hessian of `per_sample` in the outputs; `None` if it is unbounded or unknown.
    """

    name: str
    per_sample: PerSample
    correct: PerSample | None = None
    check: Callable[[Tensor, Tensor], None] | None = None
    terms: Callable[[Tensor], Tensor] | None = None
    curvature: float | None = None

    def to(self, device: torch.device, dtype: torch.dtype) -> "Loss":
        """The same loss with its tensors (class weights, say) on a device and in a dtype."""
        if not isinstance(self.per_sample, nn.Module):
            return self
        return replace(self, per_sample=copy.deepcopy(self.per_sample).to(device, dtype))


LOSSES: Registry[Loss] = Registry("loss")


@LOSSES.register("cross-entropy")
def cross_entropy() -> Loss:
    """Softmax cross-entropy on class labels, as in the paper.

    Its Hessian in the logits is diag(p) − ppᵀ, of norm at most ½.
    """
    return Loss(
        "cross-entropy",
        lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none"),
        _is_correct_class,
        _check_labels,
        curvature=0.5,
    )


@LOSSES.register("logistic")
def logistic() -> Loss:
    """Logistic loss of one output unit on labels 0 and 1."""
    return Loss(
        "logistic",
        lambda outputs, targets: F.binary_cross_entropy_with_logits(
            outputs.reshape(len(targets)), targets.reshape(-1).to(outputs.dtype), reduction="none"
        ),
        lambda outputs, targets: (outputs.reshape(len(targets)) > 0) == (targets.reshape(-1) > 0),
        _check_binary,
        curvature=0.25,
    )


@LOSSES.register("mse")
def squared_error() -> Loss:
    """Half the squared error, summed over outputs, for regression."""

    def per_sample(outputs: Tensor, targets: Tensor) -> Tensor:
        return 0.5 * (outputs - targets.reshape(outputs.shape)).square().reshape(len(outputs), -1).sum(1)

    return Loss("mse", per_sample, check=_check_values, curvature=1.0)


LOSSES.register_path("tokens", "depositum.language.tokens:token_loss")


def as_loss(loss: "str | Loss | Callable[..., Any]") -> Loss:
    """A `Loss` from a name, or from a user-defined function or module of (outputs, targets).

    If it has a parameter or attribute `reduction`, as torch's losses do, a copy with `"none"` is used; any other must
    return one value per sample. Means are over samples: with `CrossEntropyLoss(weight=…)`, the weighted losses are
    divided by the number of samples, whereas torch divides by the sum of their weights.
    """
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str):
        return LOSSES.parse(loss, "loss").make()
    if not callable(loss):
        raise ConfigError(
            "loss", f"{short_repr(loss)} given; it must be a name, or a function or module of (outputs, targets)"
        )
    name = getattr(loss, "__name__", type(loss).__name__)
    reduction = _reduction(loss)
    per_sample = loss if reduction is None else _Unreduced(loss, reduction)
    if isinstance(loss, nn.CrossEntropyLoss) or loss is F.cross_entropy:
        ignored = getattr(loss, "ignore_index", -100)
        return Loss(name, per_sample, _is_correct_class, partial(_check_labels, ignored=ignored))
    return Loss(name, per_sample)


class _Unreduced(nn.Module):
    """A loss with a `reduction`, called without one.

    Torch's elementwise losses then return `[B, ...]`; a sample's value is the mean of its elements, or their sum if
    that was the reduction. Only if outputs and targets have the same shape: `[B, 1]` and `[B]` would be broadcast to
    all pairs of samples.
    """

    def __init__(self, loss: Callable[..., Any], reduction: str) -> None:
        super().__init__()
        if isinstance(loss, nn.Module):
            loss = copy.deepcopy(loss)
            loss.reduction = "none"  # type: ignore[assignment]
        else:
            loss = partial(loss, reduction="none")
        self.loss = loss
        self.means = reduction == "mean"

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        values = cast(Tensor, self.loss(outputs, targets))
        if values.dim() == 1 or not values.shape == outputs.shape == targets.shape:
            return values
        return values.flatten(1).mean(1) if self.means else values.flatten(1).sum(1)


def _reduction(loss: Callable[..., Any]) -> str | None:
    """The present `reduction` of a loss; None if it does not have one."""
    if isinstance(loss, nn.Module):
        return getattr(loss, "reduction", None)
    try:
        parameter = inspect.signature(loss).parameters.get("reduction")
    except ValueError:  # a function without a signature
        return None
    return None if parameter is None else str(parameter.default)


def _is_correct_class(outputs: Tensor, targets: Tensor) -> Tensor:
    """Whether the largest output is that of the label, or of the most probable class if targets are probabilities."""
    return outputs.argmax(-1) == (targets.argmax(-1) if targets.is_floating_point() else targets)


def _check_labels(outputs: Tensor, targets: Tensor, ignored: int | None = None) -> None:
    """Reject labels for which the model has no output; on a GPU they would terminate the process."""
    if targets.is_floating_point() and targets.shape[1:] != outputs.shape[1:]:
        raise ConfigError(
            "loss",
            "cross-entropy needs labels that are integers (or a probability for each output), but the targets are "
            "real numbers",
        )
    if targets.is_floating_point() or outputs.dim() < 2:
        return
    classes = outputs.shape[1]
    bad = (targets < 0) | (targets >= classes)
    if ignored is not None:
        bad &= targets != ignored
    if bad.any():
        label = int(targets[bad].flatten()[0])
        if outputs.dim() == 3 and targets.shape == outputs.shape[:2]:
            problem = "'cross-entropy' given, but outputs are scores of every token of a text; use 'tokens'"
            raise ConfigError("loss", problem)
        raise ConfigError(
            "model", f"it has {classes} outputs, but there is a label {label}; labels are 0 … {classes - 1}"
        )


def _check_binary(outputs: Tensor, targets: Tensor) -> None:
    bad = (targets != 0) & (targets != 1)
    if bad.any():
        label = targets[bad].flatten()[0].item()
        raise ConfigError("loss", f"'logistic' needs labels 0 and 1, but there is a label {label:g}")
    if (each := prod(outputs.shape[1:])) != 1:
        raise ConfigError("model", f"it has {each} outputs, but the loss 'logistic' needs one")


def _check_values(outputs: Tensor, targets: Tensor) -> None:
    """Reject a regression with different numbers of outputs and targets; usually classification was intended."""
    each, given = prod(outputs.shape[1:]), prod(targets.shape[1:])
    if each == given:
        return
    counts = f"a sample has {given} target{'' if given == 1 else 's'} and {each} output{'' if each == 1 else 's'}"
    if targets.is_floating_point():
        problem = f"targets that are not whole numbers mean regression, but {counts}; class labels must be integers"
    else:
        problem = f"'mse' compares outputs with targets, but {counts}; use 'cross-entropy' for class labels"
    raise ConfigError("loss", problem)
