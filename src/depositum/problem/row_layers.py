"""Layers that are fast under `vmap` over rows, each with its own parameters, on a GPU.

`with_row_layers` replaces layers of a model by these. Convolutions in TF32 or bf16 use the kernels of
`depositum.kernels.convolution`: `torch.vmap` turns them into one grouped convolution, for which cuDNN has no fast
kernels, and which needs every image transposed before and after. Depthwise convolutions are written out as a sum over
taps, which a compiler makes one pass over the images. Batch norm is written out, because `vmap` would transpose images
there too; on every device it is if its momentum is None, which torch reads on the host. All other layers are left to
`vmap`, and to `row_functions` where that fails.

The convolution operators take weights with their taps first, `[KH, KW, O, C]`, whose channels are adjacent in memory.
The weights are reordered by a separate operator, and their gradients by ordinary ones, which a compiler fuses with the
operations that follow.
"""

import copy
import importlib.util
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from depositum.problem.precision import Precision


def with_row_layers(model: nn.Module, precision: Precision, device: torch.device) -> nn.Module:
    """The same function of the same parameters and buffers, to be called under `vmap`.

    On a CPU that is nearly always the model itself.
    """
    on_gpu = device.type == "cuda"
    if not on_gpu and not any(map(_averages_all_batches, model.modules())):
        return model
    kernels = on_gpu and precision in ("tf32", "bf16") and importlib.util.find_spec("triton") is not None
    twin = copy.deepcopy(model, {id(t): t for t in [*model.parameters(), *model.buffers()]})
    for module in twin.modules():
        if kernels and _is_supported_convolution(module):
            module.__class__ = _RowConv2d
        elif on_gpu and _is_depthwise_convolution(module):
            module.__class__ = _RowDepthwiseConv2d
        elif _averages_all_batches(module) or (on_gpu and _is_supported_norm(module)):
            module.__class__ = _RowBatchNorm
        elif isinstance(module, nn.RNNBase):
            # It would copy the weights into one block for cuDNN, at an address that tensors under `vmap` do not have.
            module.flatten_parameters = _nothing  # type: ignore[method-assign]
    return twin


def _nothing() -> None: ...


def _is_supported_convolution(module: nn.Module) -> bool:
    """Whether the kernels cover a layer: an ungrouped convolution with one stride, padded by zeros."""
    return (
        type(module) is nn.Conv2d
        and module.groups == 1
        and module.dilation == (1, 1)
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
        and module.stride[0] == module.stride[1]
        and module.padding[0] == module.padding[1]
    )


def _is_depthwise_convolution(module: nn.Module) -> bool:
    """Whether a layer is a convolution of each channel with one filter, padded by zeros."""
    return (
        type(module) is nn.Conv2d
        and module.groups == module.in_channels == module.out_channels > 1
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
    )


def _is_supported_norm(module: nn.Module) -> bool:
    return type(module) is nn.BatchNorm2d and module.affine and module.track_running_stats


def _averages_all_batches(module: nn.Module) -> bool:
    """Whether a layer is a batch norm whose statistics are means over all batches so far."""
    return (
        type(module) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
        and cast(nn.BatchNorm2d, module).momentum is None
        and cast(nn.BatchNorm2d, module).track_running_stats
    )


class _RowConv2d(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4:
            return super().forward(x)
        weight, bias = self.weight, self.bias
        if torch.is_autocast_enabled("cuda"):  # which applies to torch's operators only
            x, weight = x.bfloat16(), weight.bfloat16()
            bias = None if bias is None else bias.bfloat16()
        return convolution(x, weight, bias, self.stride[0], int(self.padding[0]))


class _RowDepthwiseConv2d(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4:
            return super().forward(x)
        (vertical, horizontal), padding = self.stride, cast(tuple[int, int], self.padding)
        padded = nn.functional.pad(x, (padding[1], padding[1], padding[0], padding[0]))
        reach = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        high, wide = padded.shape[2] - reach[0], padded.shape[3] - reach[1]
        out: Tensor | None = None
        for i in range(self.kernel_size[0]):
            for j in range(self.kernel_size[1]):
                top, left = i * self.dilation[0], j * self.dilation[1]
                pixels = padded[:, :, top : top + high : vertical, left : left + wide : horizontal]
                term = pixels * self.weight[:, 0, i, j, None, None]
                out = term if out is None else out + term
        assert out is not None
        if self.bias is not None:
            out = out + self.bias[:, None, None]
        return out.bfloat16() if torch.is_autocast_enabled("cuda") else out


class _RowBatchNorm(nn.modules.batchnorm._BatchNorm):
    def forward(self, x: Tensor) -> Tensor:
        running_mean, running_var = cast(Tensor, self.running_mean), cast(Tensor, self.running_var)
        wide = x.to(running_mean.dtype)
        if self.training:
            var, mean = torch.var_mean(wide, (0, *range(2, x.dim())), correction=0)
            self._update_statistics(mean.detach(), var.detach(), x.numel() // x.shape[1])
        else:
            mean, var = running_mean, running_var
        one_each = (-1, *(1 for _ in range(x.dim() - 2)))
        scale = torch.rsqrt(var + self.eps)
        if self.affine:
            scale = self.weight * scale
        out = (wide - mean.view(one_each)) * scale.view(one_each)
        return (out + self.bias.view(one_each) if self.affine else out).to(x.dtype)

    def _update_statistics(self, mean: Tensor, var: Tensor, count: int) -> None:
        running_mean, running_var = cast(Tensor, self.running_mean), cast(Tensor, self.running_var)
        batches = cast(Tensor, self.num_batches_tracked).add_(1)
        m = 1 / batches.to(mean.dtype) if self.momentum is None else self.momentum
        running_mean.add_((mean - running_mean) * m)
        running_var.add_((var * (count / max(count - 1, 1)) - running_var) * m)

    def _check_input_dim(self, input: Tensor) -> None:
        """Nothing is left to check: the model itself has been evaluated before."""


def convolution(x: Tensor, w: Tensor, bias: Tensor | None, stride: int, pad: int) -> Tensor:
    """The outputs `[B, O, P, Q]` of x `[B, C, H, W]` and w `[O, C, KH, KW]`, for use under `vmap`, on a GPU.

    Taps that only ever see padding (eight of nine on a 1×1 image) are left out.
    """
    size = [(x.shape[i] + 2 * pad - w.shape[i]) // stride + 1 for i in (2, 3)]
    (top, high), (left, wide) = (_used_taps(x.shape[i], size[i - 2], w.shape[i], stride, pad) for i in (2, 3))
    taps_first = w[:, :, top : top + high, left : left + wide].permute(2, 3, 0, 1)
    out: Tensor = _convolution(x, taps_first, bias, stride, [pad - top, pad - left], size)
    return out


def _used_taps(size: int, out: int, kernel: int, stride: int, pad: int) -> tuple[int, int]:
    """The first tap of a kernel, along one dimension, that ever sees a pixel, and the number of those that do."""
    used = [k for k in range(kernel) if any(0 <= i * stride - pad + k < size for i in range(out))]
    return used[0], len(used)


# One batch of samples and one set of weights, as a model calls it. Under `vmap` it becomes `_row_convolution`, below.


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
    def rows_first(z: Tensor, dim: int | None) -> Tensor:
        return z.expand(info.batch_size, *z.shape) if dim is None else z.movedim(dim, 0)

    w, x = _contiguous_taps(rows_first(w, dims[1])), rows_first(x, dims[0])
    return _row_convolution(x, w, None if bias is None else rows_first(bias, dims[2]).contiguous(), *rest), 0


# All rows at once.


@torch.library.custom_op("depositum::taps_first", mutates_args=())
def _contiguous_taps(w: Tensor) -> Tensor:
    """A contiguous copy of weights `[r, KH, KW, O, C]`.

    As a separate operator, it makes a compiler compute the new models once, completely, before anything reads a part
    of them; otherwise the compiler would recompute each part from the terms of the models' update.
    """
    from depositum.kernels.convolution import taps_first

    return taps_first(w)


@_contiguous_taps.register_fake
def _(w: Tensor) -> Tensor:
    return torch.empty(w.shape, dtype=w.dtype, device=w.device)


_contiguous_taps.register_autograd(lambda ctx, dy: dy)


@torch.library.custom_op("depositum::row_convolution", mutates_args=())
def _row_convolution(
    x: Tensor, w: Tensor, bias: Tensor | None, stride: int, pad: Sequence[int], size: Sequence[int]
) -> Tensor:
    from depositum.kernels import convolution as kernels

    return kernels.forward(_contiguous_rows(x), w, bias, stride, (pad[0], pad[1]), (size[0], size[1]))


@_row_convolution.register_fake
def _(x: Tensor, w: Tensor, bias: Tensor | None, stride: int, pad: Sequence[int], size: Sequence[int]) -> Tensor:
    return x.new_empty(*x.shape[:2], w.shape[3], *size)


@torch.library.custom_op("depositum::row_convolution_inputs", mutates_args=())
def _input_gradient(dy: Tensor, x: Tensor, w: Tensor, stride: int, pad: Sequence[int]) -> Tensor:
    from depositum.kernels import convolution as kernels

    return kernels.input_gradient(dy.contiguous(), x.shape, w, stride, (pad[0], pad[1]))


@_input_gradient.register_fake
def _(dy: Tensor, x: Tensor, w: Tensor, stride: int, pad: Sequence[int]) -> Tensor:
    return dy.new_empty(x.shape)


@torch.library.custom_op("depositum::row_convolution_weights", mutates_args=())
def _weight_gradient(
    dy: Tensor, x: Tensor, w: Tensor, stride: int, pad: Sequence[int], bias: bool
) -> tuple[Tensor, Tensor]:
    from depositum.kernels import convolution as kernels

    return kernels.weight_gradient(dy.contiguous(), _contiguous_rows(x), w.shape, stride, (pad[0], pad[1]), bias)


@_weight_gradient.register_fake
def _(dy: Tensor, x: Tensor, w: Tensor, stride: int, pad: Sequence[int], bias: bool) -> tuple[Tensor, Tensor]:
    return dy.new_empty(w.shape), dy.new_empty(len(w), w.shape[3] if bias else 0)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, bias, stride, pad, _ = inputs
    ctx.save_for_backward(x, w)
    ctx.settings = stride, pad, bias is not None


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, w = ctx.saved_tensors
    stride, pad, bias = ctx.settings
    dx = _input_gradient(dy, x, w, stride, pad) if ctx.needs_input_grad[0] else None
    dw, db = _weight_gradient(dy, x, w, stride, pad, bias)
    return dx, dw, db if bias else None, None, None, None


_row_convolution.register_autograd(_backward, setup_context=_save_for_backward)


def _contiguous_rows(x: Tensor) -> Tensor:
    """X with contiguous rows; one row expanded to all is left as it is."""
    return x if x[0].is_contiguous() and (x.stride(0) == 0 or x.is_contiguous()) else x.contiguous()
