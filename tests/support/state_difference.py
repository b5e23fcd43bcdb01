"""The difference of two simulators' states."""

import torch

from depositum.engines import Simulator


def relative_difference(one: Simulator, other: Simulator) -> float:
    """The largest difference of two simulators' variables, relative to the size of the variable, or to 1."""

    def tensors(simulator: Simulator) -> dict[str, torch.Tensor]:
        return {k: v.cpu() for k, v in simulator.state._asdict().items() if isinstance(v, torch.Tensor)}

    pairs = [(value, tensors(other)[name]) for name, value in tensors(one).items()]
    return max(float((a - b).double().abs().max() / b.double().abs().max().clamp(min=1.0)) for a, b in pairs)
