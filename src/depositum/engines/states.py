"""A whole state as named tensors on the host, which is what a checkpoint holds, and back."""

from typing import Any

import torch
from torch import Tensor

from depositum.algorithms import State
from depositum.problem import Oracle


def kept(state: State, oracle: Oracle) -> dict[str, Tensor]:
    """Copies of all that makes a run: the state's variables by name, and the model's buffers as `buffer.NAME`."""
    tensors = {k: v for k, v in state._asdict().items() if isinstance(v, Tensor) and k != "t"}
    tensors |= {f"buffer.{k}": v for k, v in oracle.buffers.items()}
    return {k: v.detach().to("cpu", copy=True).contiguous() for k, v in tensors.items()}


def taken_up(state: State, oracle: Oracle, tensors: dict[str, Tensor], t: int) -> State:
    """The state of iteration t that `kept` made these tensors of, in the form of another; buffers are put back."""
    fields: dict[str, Any] = {k: v.to(oracle.device) for k, v in tensors.items() if not k.startswith("buffer.")}
    fields["t"] = torch.tensor(t, dtype=torch.int64, device=oracle.device)
    for name, buffer in oracle.buffers.items():
        buffer.copy_(tensors[f"buffer.{name}"])
    replaced: State = state._replace(**fields)
    return replaced
