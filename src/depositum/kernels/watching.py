"""Triton kernels of what is watched at every iteration, in one pass over each variable.

Compiled from ordinary sums, watching takes a dozen launches, which is longer than a small model's iteration.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _consensus(x, flags, errors, n, d, variables, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    trial = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < d
    x += trial * n * d
    total = tl.zeros((BLOCK,), tl.float64)
    for first in range(0, n, ROWS):
        row = first + tl.arange(0, ROWS)
        there = (row < n)[:, None] & inside[None, :]
        value = tl.load(x + row[:, None].to(tl.int64) * d + column[None, :], mask=there, other=0.0).to(tl.float64)
        total += tl.sum(value, axis=0)
        # A difference with itself is 0, or not a number.
        bad = tl.max(((value - value) != 0).to(tl.int32), axis=1)
        tl.atomic_or(flags + (trial * n + row) * variables, bad, mask=(row < n) & (bad > 0))
    mean = total / n
    squares = tl.zeros((BLOCK,), tl.float64)
    for first in range(0, n, ROWS):
        row = first + tl.arange(0, ROWS)
        there = (row < n)[:, None] & inside[None, :]
        value = tl.load(x + row[:, None].to(tl.int64) * d + column[None, :], mask=there, other=0.0).to(tl.float64)
        away = tl.where(there, value - mean[None, :], 0.0)
        squares += tl.sum(away * away, axis=0)
    tl.store(errors + trial * tl.num_programs(0) + tl.program_id(0), tl.sum(squares, axis=0) / n)


@triton.jit
def _finite(z, flags, d, variables, BLOCK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(z + row * d + column, mask=column < d, other=0.0)
    bad = tl.max(((value - value) != 0).to(tl.int32), axis=0)
    if bad > 0:
        tl.atomic_or(flags + row * variables, bad)


def watch(variables: list[Tensor], own: int, trials: int) -> tuple[Tensor, Tensor]:
    """The consensus error of the variable `own`, `[S]` in float64, and which rows of which variables are not finite.

    The flags are whole numbers `[rows, variables]`, 0 where all is finite. Errors are summed in a fixed order.
    """
    x = variables[own]
    rows, d = x.shape
    flags = torch.zeros(rows, len(variables), dtype=torch.int32, device=x.device)
    block = min(128, triton.next_power_of_2(d))
    parts = triton.cdiv(d, block)
    errors = torch.empty(trials, parts, dtype=torch.float64, device=x.device)
    _consensus[(parts, trials)](
        x, flags[:, own:], errors, rows // trials, d, len(variables), ROWS=16, BLOCK=block, num_warps=4
    )
    for place, z in enumerate(variables):
        if place == own:
            continue
        wide = min(2048, triton.next_power_of_2(z.shape[1]))
        grid = (triton.cdiv(z.shape[1], wide), rows)
        _finite[grid](z, flags[:, place:], z.shape[1], len(variables), BLOCK=wide, num_warps=4)
    return errors.sum(1), flags
