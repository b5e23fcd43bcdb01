"""A Triton kernel that puts the taps of convolution weights first, as the kernels of `convolution` take them."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _taps_first(
    w, out, row_stride, size, from_h, from_w, from_pair,
    KH: tl.constexpr, KW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pair < size
    w += row * row_stride
    out += row * (KH * KW) * size
    # The taps of a pair of channels lie side by side: what one reads of a line, the next finds in the cache.
    for tap in tl.static_range(KH * KW):
        value = tl.load(w + pair * from_pair + tap // KW * from_h + tap % KW * from_w, mask=inside)
        tl.store(out + tap * size + pair, value, mask=inside)


def taps_first(w: Tensor) -> Tensor:
    """Weights `[r, KH, KW, O, C]` of any strides as a contiguous copy."""
    rows, high, wide, outputs, channels = w.shape
    if w.stride(3) != channels * w.stride(4) or high * wide > 9:
        return w.contiguous()
    out = torch.empty(w.shape, dtype=w.dtype, device=w.device)
    size = outputs * channels
    block = 512
    _taps_first[(triton.cdiv(size, block), rows)](
        w, out, w.stride(0), size, w.stride(1), w.stride(2), w.stride(4), KH=high, KW=wide, BLOCK=block, num_warps=4
    )
    return out
