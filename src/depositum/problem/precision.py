"""Precision of the model's forward and backward pass, and of nothing else.

Mixing, prox, momentum and tracking stay in the dtype of the state (contract 1 in `docs/architecture.md`): TF32 is
enabled only inside `forward_backward`, and `exact` disables it whatever the user's settings are (torch can be set to
compute float32 products in TF32 on a GPU, and in bf16 on a CPU).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

from depositum.errors import ConfigError, listing, nearest, short_repr

Precision = Literal["float32", "tf32", "bf16", "float64"]


def resolve(precision: str, dtype: torch.dtype, device: torch.device, frozen: bool = False) -> Precision:
    """The precision that `"auto"` or a name stands for; rejects TF32 without a GPU, and reduced precision of float64.

    `frozen` says that most of the model is a frozen base, which `"auto"` stores in bfloat16 on a GPU.
    """
    if precision == "auto":
        if dtype == torch.float64:
            return "float64"
        return "float32" if device.type != "cuda" else "bf16" if frozen else "tf32"
    if dtype == torch.float64:
        raise ConfigError("precision", f"{short_repr(precision)} given with dtype float64; it must be 'auto'")
    if precision == "tf32" and device.type != "cuda":
        raise ConfigError("precision", f"'tf32' needs a GPU, and the device is {device.type}; use 'float32'")
    allowed: tuple[Precision, ...] = ("float32", "tf32", "bf16")
    for known in allowed:
        if precision == known:
            return known
    choices = listing(("auto", *allowed))
    raise ConfigError("precision", f"{short_repr(precision)} given; it can be {choices}{nearest(precision, allowed)}")


#: Torch's settings of float32 arithmetic: matrix products first, then layers with separate kernels.
_ON_GPU: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)  # type: ignore[attr-defined]
_ON_CPU: tuple[Any, ...] = (torch.backends.mkldnn.matmul, torch.backends.mkldnn.conv, torch.backends.mkldnn.rnn)  # type: ignore[attr-defined]


@contextmanager
def _fp32(mode: Literal["ieee", "tf32"], *switches: Any) -> Iterator[None]:
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = mode
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value


@contextmanager
def forward_backward(precision: Precision) -> Iterator[None]:
    """Run the model's passes at this precision (for bf16, the caller uses autocast around the forward pass)."""
    with _fp32("tf32" if precision == "tf32" else "ieee", *_ON_GPU), _fp32("ieee", *_ON_CPU):
        yield


@contextmanager
def no_autocast() -> Iterator[None]:
    """Disable an enclosing `torch.autocast` of the user, which would run mixing and backward passes in bf16."""
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield


@contextmanager
def exact() -> Iterator[None]:
    """Full float32 matrix products, for mixing and measures."""
    with _fp32("ieee", _ON_GPU[0], _ON_CPU[0]):
        yield
