"""Triton kernel that gathers samples directly from pinned host memory, so that it can be part of a CUDA graph."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _gather(host, indices, out, size, BLOCK: tl.constexpr):
    sample = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(indices + sample)
    value = tl.load(host + index * size + column, mask=column < size)
    tl.store(out + sample * size + column, value, mask=column < size)


def gather(host: Tensor, indices: Tensor) -> Tensor:
    """Samples `[*indices.shape, ...]` on the device of `indices`, from pinned host memory `[N, ...]`."""
    out = torch.empty(*indices.shape, *host.shape[1:], dtype=host.dtype, device=indices.device)
    size = host[0].numel()
    block = min(1024, triton.next_power_of_2(size))
    _gather[(indices.numel(), triton.cdiv(size, block))](host, indices.contiguous(), out, size, BLOCK=block)
    return out
