"""Sizes of modules."""

from torch import nn


def parameter_count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
