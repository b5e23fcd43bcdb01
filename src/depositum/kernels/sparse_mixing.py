"""Triton kernel for Σ_j w_ij z_j over the neighbours j of every row i, W in CSR format: its time grows with the edges.

Programs that run concurrently take the same columns of neighbouring rows, so that a row read for one neighbour is still
in the cache when the next needs it. Terms are added in the order of j, in full float32 or float64.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _mix_sparse(z, out, starts, columns, weights, n, d, total, BLOCK: tl.constexpr):
    row = tl.program_id(0) % total
    client, base = row % n, (row // n * n).to(tl.int64)
    column = (tl.program_id(0) // total).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = column < d
    acc = tl.zeros((BLOCK,), z.dtype.element_ty)
    first, last = tl.load(starts + client), tl.load(starts + client + 1)
    for k in range(first, last):
        j = base + tl.load(columns + k)
        acc += tl.load(weights + k) * tl.load(z + j * d + column, mask=inside, other=0.0)
    tl.store(out + row.to(tl.int64) * d + column, acc, mask=inside)


def mix_sparse(starts: Tensor, columns: Tensor, weights: Tensor, z: Tensor, n: int) -> Tensor:
    """Mix the rows of every trial of z `[S·n, d]`; `starts` `[n + 1]` and `columns` `[edges]` are int32."""
    out = torch.empty_like(z)
    rows, d = z.shape
    block = min(1024, triton.next_power_of_2(d))
    _mix_sparse[(rows * triton.cdiv(d, block),)](z, out, starts, columns, weights, n, d, rows, BLOCK=block)
    return out
