"""A model where it is to compute: copied to a device and a dtype, but for frozen weights that are there already."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from depositum.problem.precision import Precision


def has_base(model: nn.Module) -> bool:
    """Whether most of a model is a frozen base, whose precision may follow that of the passes."""
    return bool(getattr(model, "frozen_follows_precision", False))


def placed(model: nn.Module, device: torch.device, dtype: torch.dtype, precision: Precision | None = None) -> nn.Module:
    """A copy of a model on a device, in a dtype.

    Frozen parameters are shared with the model itself where nothing has to change, so that a large base is in memory
    once. A model that says so (`frozen_follows_precision`) has them in bfloat16 where its passes are.
    """
    halved = precision == "bf16" and has_base(model)
    copies: dict[int, Any] = {}
    # Module by module, and not by `named_buffers`: a model need not show those that are constants.
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is None or id(parameter) in copies:
                continue
            kind = torch.bfloat16 if halved and not parameter.requires_grad else dtype
            moved = _moved(parameter, device, kind, copied=parameter.requires_grad)
            copies[id(parameter)] = nn.Parameter(moved, requires_grad=parameter.requires_grad)
        for buffer in module._buffers.values():
            if buffer is not None and id(buffer) not in copies:
                copies[id(buffer)] = _moved(buffer, device, dtype, copied=True)
    return copy.deepcopy(model, copies)


def _moved(tensor: Tensor, device: torch.device, dtype: torch.dtype, copied: bool) -> Tensor:
    kind = dtype if tensor.is_floating_point() else tensor.dtype
    return tensor.detach().to(device, kind, copy=copied)
