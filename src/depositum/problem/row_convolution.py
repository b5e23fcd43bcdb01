"""Convolutions with different weights in every row, as operators that `vmap` knows a fast form of.

`torch.vmap` makes one grouped convolution of them, for which cuDNN has no fast kernels and which needs every image
transposed before and after; here it becomes one call of the Triton kernels in `depositum.kernels`.

The operators take weights with their taps first, `[KH, KW, O, C]`, whose channels lie side by side: they are turned by
an operator of their own, and their gradients turned back by ordinary ones, which a compiler fuses with what follows.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def convolution(x: Tensor, w: Tensor, bias: Tensor | None, stride: int, pad: int) -> Tensor:
    """The outputs `[B, O, P, Q]` of x `[B, C, H, W]` and w `[O, C, KH, KW]`, for use under `vmap`, on a GPU.

    Taps that only ever see padding (eight of nine on a 1×1 image) are left out.
    """
    size = [(x.shape[i] + 2 * pad - w.shape[i]) // stride + 1 for i in (2, 3)]
    (top, high), (left, wide) = (_live(x.shape[i], size[i - 2], w.shape[i], stride, pad) for i in (2, 3))
    taps_first = w[:, :, top : top + high, left : left + wide].permute(2, 3, 0, 1)
    out: Tensor = _convolution(x, taps_first, bias, stride, [pad - top, pad - left], size)
    return out


def _live(size: int, out: int, kernel: int, stride: int, pad: int) -> tuple[int, int]:
    """The first tap of a kernel, along one dimension, that ever sees a pixel, and the number of those that do."""
    live = [k for k in range(kernel) if any(0 <= i * stride - pad + k < size for i in range(out))]
    return live[0], len(live)


# One batch of samples and one set of weights, as a model's code calls it. Under `vmap` it becomes `_rows`, below.


@torch.library.custom_op("depositum::convolution", mutates_args=())
def _convolution(
    x: Tensor, w: Tensor, bias: Tensor | None, stride: int, pad: Sequence[int], size: Sequence[int]
) -> Tensor:
    raise NotImplementedError("it is called under vmap only")


@_convolution.register_fake
def _(x: Tensor, w: Tensor, bias: Tensor | None, stride: int, pad: Sequence[int], size: Sequence[int]) -> Tensor:
    return x.new_empty(x.shape[0], w.shape[2], *size)


@_convolution.register_vmap
def _(
    info: Any, dims: tuple[int | None, ...], x: Tensor, w: Tensor, bias: Tensor | None, *rest: Any
) -> tuple[Tensor, int]:
    def first(z: Tensor, dim: int | None) -> Tensor:
        return z.expand(info.batch_size, *z.shape) if dim is None else z.movedim(dim, 0)

    weights = _turned(first(w, dims[1]))
    return _rows(first(x, dims[0]), weights, None if bias is None else first(bias, dims[2]).contiguous(), *rest), 0


# All rows at once.


@torch.library.custom_op("depositum::taps_first", mutates_args=())
def _turned(w: Tensor) -> Tensor:
    """Weights `[r, KH, KW, O, C]` in that order in memory.

    An operation of its own, so that a compiler makes the new models once, in full, before anything reads a part of
    them; it would otherwise work out every part anew from what the models are made of.
    """
    from depositum.kernels.convolution import taps_first

    return taps_first(w)


@_turned.register_fake
def _(w: Tensor) -> Tensor:
    return torch.empty(w.shape, dtype=w.dtype, device=w.device)


_turned.register_autograd(lambda ctx, dy: dy)


@torch.library.custom_op("depositum::row_convolution", mutates_args=())
def _rows(x: Tensor, w: Tensor, bias: Tensor | None, stride: int, pad: Sequence[int], size: Sequence[int]) -> Tensor:
    from depositum.kernels import convolution as kernels

    return kernels.forward(_contiguous(x), w, bias, stride, (pad[0], pad[1]), (size[0], size[1]))


@_rows.register_fake
def _(x: Tensor, w: Tensor, bias: Tensor | None, stride: int, pad: Sequence[int], size: Sequence[int]) -> Tensor:
    return x.new_empty(*x.shape[:2], w.shape[3], *size)


@torch.library.custom_op("depositum::row_convolution_inputs", mutates_args=())
def _inputs(dy: Tensor, x: Tensor, w: Tensor, stride: int, pad: Sequence[int]) -> Tensor:
    from depositum.kernels import convolution as kernels

    return kernels.input_gradient(dy.contiguous(), x.shape, w, stride, (pad[0], pad[1]))


@_inputs.register_fake
def _(dy: Tensor, x: Tensor, w: Tensor, stride: int, pad: Sequence[int]) -> Tensor:
    return dy.new_empty(x.shape)


@torch.library.custom_op("depositum::row_convolution_weights", mutates_args=())
def _weights(dy: Tensor, x: Tensor, w: Tensor, stride: int, pad: Sequence[int], bias: bool) -> tuple[Tensor, Tensor]:
    from depositum.kernels import convolution as kernels

    return kernels.weight_gradient(dy.contiguous(), _contiguous(x), w.shape, stride, (pad[0], pad[1]), bias)


@_weights.register_fake
def _(dy: Tensor, x: Tensor, w: Tensor, stride: int, pad: Sequence[int], bias: bool) -> tuple[Tensor, Tensor]:
    return dy.new_empty(w.shape), dy.new_empty(len(w), w.shape[3] if bias else 0)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, bias, stride, pad, _ = inputs
    ctx.save_for_backward(x, w)
    ctx.settings = stride, pad, bias is not None


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, w = ctx.saved_tensors
    stride, pad, bias = ctx.settings
    dx = _inputs(dy, x, w, stride, pad) if ctx.needs_input_grad[0] else None
    dw, db = _weights(dy, x, w, stride, pad, bias)
    return dx, dw, db if bias else None, None, None, None


_rows.register_autograd(_backward, setup_context=_save)


def _contiguous(x: Tensor) -> Tensor:
    """The same with contiguous rows; one row that is every row's is left as it is."""
    return x if x[0].is_contiguous() and (x.stride(0) == 0 or x.is_contiguous()) else x.contiguous()
