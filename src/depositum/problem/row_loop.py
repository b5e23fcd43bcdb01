"""Gradients of one row after another, as one operation to whoever traces it.

Unrolled over clients it would take minutes to compile, and gain little.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from depositum.problem.numbered import Numbered
from depositum.problem.precision import Precision, forward_backward


class OneByOne(Protocol):
    """A model whose gradients can be evaluated row by row; the operation finds it by its number in `MODELS`."""

    model: nn.Module
    precision: Precision

    def gradients_one_by_one(
        self,
        x: Tensor,
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor,
        buffers: dict[str, Tensor],
        noise: Tensor | None,
    ) -> tuple[Tensor, dict[str, Tensor]]: ...


MODELS = Numbered[OneByOne]()


@torch.library.custom_op("depositum::loop", mutates_args=())
def loop(
    number: int,
    x: Tensor,
    inputs: Tensor,
    targets: Tensor,
    weights: Tensor,
    buffers: Sequence[Tensor],
    train: bool,
    noise: Tensor | None,
) -> list[Tensor]:
    """The gradients `[r, d]` of a model's rows, and their new buffers, in the order of the model's."""
    rows = MODELS[number]
    rows.model.train(train)
    named = dict(zip((name for name, _ in rows.model.named_buffers()), buffers, strict=True))
    with forward_backward(rows.precision), _autograd():
        out, new = rows.gradients_one_by_one(x, inputs, targets, weights, named, noise)
    return [out, *new.values()]


@loop.register_fake
def _(
    number: int,
    x: Tensor,
    inputs: Tensor,
    targets: Tensor,
    weights: Tensor,
    buffers: Sequence[Tensor],
    train: bool,
    noise: Tensor | None,
) -> list[Tensor]:
    return [torch.empty_like(x), *(torch.empty_like(buffer) for buffer in buffers)]


@contextmanager
def _autograd() -> Iterator[None]:
    """Let autograd see what is done inside of an operator, which torch hides from it."""
    here = torch._C
    hidden = here._dispatch_tls_local_exclude_set()
    for key in ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor"):
        hidden = hidden.remove(getattr(here.DispatchKey, key))
    with here._ForceDispatchKeyGuard(here._dispatch_tls_local_include_set(), hidden):
        yield
