"""The model as `vmap` is to see it: the same function of the same parameters, with layers that are fast over rows.

On a GPU only. Convolutions in TF32 or bf16 use the kernels of `depositum.kernels`; batch norm is written out, because
`vmap` would transpose every image before and after it. Whatever is not listed here is left to `vmap`.
"""

import copy
import importlib.util
from typing import cast

import torch
from torch import Tensor, nn

from depositum.problem.precision import Precision
from depositum.problem.row_convolution import convolution


def batched(model: nn.Module, precision: Precision, device: torch.device) -> nn.Module:
    """A twin of a model on its own parameters and buffers, for `vmap`; the model itself where nothing would change."""
    if device.type != "cuda":
        return model
    kernels = precision in ("tf32", "bf16") and importlib.util.find_spec("triton") is not None
    twin = copy.deepcopy(model, {id(t): t for t in [*model.parameters(), *model.buffers()]})
    for module in twin.modules():
        if kernels and _is_plain_convolution(module):
            module.__class__ = _RowConv2d
        elif _is_plain_norm(module):
            module.__class__ = _RowBatchNorm2d
    return twin


def _is_plain_convolution(module: nn.Module) -> bool:
    """A convolution of all channels with one stride, padded by zeros: what the kernels cover."""
    return (
        type(module) is nn.Conv2d
        and module.groups == 1
        and module.dilation == (1, 1)
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
        and module.stride[0] == module.stride[1]
        and module.padding[0] == module.padding[1]
    )


def _is_plain_norm(module: nn.Module) -> bool:
    return (
        type(module) is nn.BatchNorm2d and module.affine and module.track_running_stats and module.momentum is not None
    )


class _RowConv2d(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4:
            return super().forward(x)
        weight, bias = self.weight, self.bias
        if torch.is_autocast_enabled("cuda"):  # which knows torch's own convolutions only
            x, weight = x.bfloat16(), weight.bfloat16()
            bias = None if bias is None else bias.bfloat16()
        return convolution(x, weight, bias, self.stride[0], int(self.padding[0]))


class _RowBatchNorm2d(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(self.weight.dtype)
        if self.training:
            var, mean = torch.var_mean(wide, (0, 2, 3), correction=0)
            self._remember(mean.detach(), var.detach(), x.numel() // x.shape[1])
        else:
            mean, var = self.running_mean, self.running_var  # type: ignore[assignment]
        scale = self.weight * torch.rsqrt(var + self.eps)
        return ((wide - mean[:, None, None]) * scale[:, None, None] + self.bias[:, None, None]).to(x.dtype)

    def _remember(self, mean: Tensor, var: Tensor, count: int) -> None:
        m = cast(float, self.momentum)
        cast(Tensor, self.running_mean).mul_(1 - m).add_(mean, alpha=m)
        cast(Tensor, self.running_var).mul_(1 - m).add_(var, alpha=m * count / max(count - 1, 1))
        cast(Tensor, self.num_batches_tracked).add_(1)
