"""Copies of a model on another device and in another dtype, which share frozen parameters where possible."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from depositum.layout import Layout
from depositum.problem.precision import Precision


def has_frozen_base(model: nn.Module) -> bool:
    """Whether most of a model is a frozen base, whose dtype follows the precision of the passes.

    A model class declares this by the attribute `frozen_follows_precision`.
    """
    return bool(getattr(model, "frozen_follows_precision", False))


def copy_to_device(
    model: nn.Module, device: torch.device, dtype: torch.dtype, precision: Precision | None = None
) -> nn.Module:
    """A copy of a model on a device, in a dtype.

    Frozen parameters that need no conversion are shared with the given model, so that a large base is in memory once.
    The frozen base of a model (`has_frozen_base`) is in bfloat16 if the passes are.
    """
    half_base = precision == "bf16" and has_frozen_base(model)
    copies: dict[int, Any] = {}
    # Module by module, because `named_buffers` of a model need not include those that are constants.
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is None or id(parameter) in copies:
                continue
            target = torch.bfloat16 if half_base and not parameter.requires_grad else dtype
            converted = _converted(parameter, device, target, copy=parameter.requires_grad)
            copies[id(parameter)] = nn.Parameter(converted, requires_grad=parameter.requires_grad)
        for buffer in module._buffers.values():
            if buffer is not None and id(buffer) not in copies:
                copies[id(buffer)] = _converted(buffer, device, dtype, copy=True)
    return copy.deepcopy(model, copies)


def _converted(tensor: Tensor, device: torch.device, dtype: torch.dtype, copy: bool) -> Tensor:
    return tensor.detach().to(device, dtype if tensor.is_floating_point() else tensor.dtype, copy=copy)


def with_parameters(model: nn.Module, row: Tensor, buffers: dict[str, Tensor]) -> nn.Module:
    """A copy of a model with the parameters of one row `[d]` and these buffers, on the CPU, in evaluation mode."""
    out = copy_to_device(model, torch.device("cpu"), row.dtype)
    state = {**Layout.of(model).views(row), **buffers}
    with torch.no_grad():
        for name, tensor in [*out.named_parameters(), *out.named_buffers()]:
            if name in state:  # frozen parameters are not in it
                tensor.copy_(state[name])
    return out.eval()
