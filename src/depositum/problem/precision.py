"""Precision of the model's forward and backward pass, and of nothing else.

Mixing, prox, momentum and tracking stay in the state's own dtype (contract 1 of the design): TF32 is switched on
inside `forward_backward` alone, and `exact` switches it off again whatever a person's own settings are (torch can be
told to take float32 products in TF32 on GPU, and in bf16 on CPU).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

from depositum.errors import ConfigError, listing, nearest

Precision = Literal["float32", "tf32", "bf16", "float64"]


def resolve(precision: str, dtype: torch.dtype, device: torch.device, frozen: bool = False) -> Precision:
    """What `"auto"` means here, after refusing what cannot be: TF32 off the GPU, reduced precision of float64.

    `frozen` says that most of the model is a frozen base, which is held in bfloat16 where there is a GPU for it.
    """
    if precision == "auto":
        if dtype == torch.float64:
            return "float64"
        return "float32" if device.type != "cuda" else "bf16" if frozen else "tf32"
    if dtype == torch.float64:
        raise ConfigError("run.precision", f"{precision!r} given with dtype float64; it must be 'auto' there")
    if precision == "tf32" and device.type != "cuda":
        raise ConfigError("run.precision", f"'tf32' needs a GPU, and the device is {device.type}; use 'float32'")
    allowed: tuple[Precision, ...] = ("float32", "tf32", "bf16")
    for known in allowed:
        if precision == known:
            return known
    choices = listing(("auto", *allowed))
    raise ConfigError("run.precision", f"{precision!r} given; it can be {choices}{nearest(precision, allowed)}")


#: Torch's switches of float32 arithmetic, matrix products first, then layers that have kernels of their own.
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
    """Run the model's passes at this precision (bf16 is autocast by the caller, around the forward pass only)."""
    with _fp32("tf32" if precision == "tf32" else "ieee", *_ON_GPU), _fp32("ieee", *_ON_CPU):
        yield


@contextmanager
def no_autocast() -> Iterator[None]:
    """Leave a `torch.autocast` that a person is inside of: it would take mixing and backward passes to bf16."""
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield


@contextmanager
def exact() -> Iterator[None]:
    """Full float32 matrix products, for mixing and measures."""
    with _fp32("ieee", _ON_GPU[0], _ON_CPU[0]):
        yield
