"""Triton kernels that monitor every iteration, in one pass over each variable and two launches.

Compiled from ordinary sums, monitoring would take a dozen launches, which is longer than an iteration of a small model,
and read the rows of a large model several times.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Variables that one launch scans.
VARIABLES_PER_LAUNCH = 4
#: Enough programs to keep a large GPU busy; with fewer, the rows of a trial are divided among several programs.
PROGRAMS = 1024
#: Rows and columns that a program holds at once. One thread then has all rows of a column, so that threads exchange
#: data only at the end.
ROWS, COLUMNS = 4, 512


@triton.jit
def _scan(
    v0, v1, v2, v3, first_bad, now, parts, totals, n, d, trials, variables, index, x_index,
    COUNT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    which, chunk = tl.program_id(2) % COUNT, tl.program_id(2) // COUNT
    trial, block = tl.program_id(1).to(tl.int64), tl.program_id(0)
    z = v0
    if which == 1:
        z = v1
    if which == 2:
        z = v2
    if which == 3:
        z = v3
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < d
    z += trial * n * d
    each = tl.cdiv(n, CHUNKS)
    top = chunk * each
    last = tl.minimum(n, top + each)
    # `nonfinite` is 0, or NaN if any value here is not finite: such a value minus itself is NaN.
    if index + which == x_index:
        # Relative to the first client: where clients are close, the error is small, and so must be the summands.
        start = tl.load(z + column, mask=inside, other=0.0).to(tl.float64)
        total = tl.zeros((BLOCK,), tl.float64)
        squares = tl.zeros((BLOCK,), tl.float64)
        for first in range(top, last, ROWS):
            row = first + tl.arange(0, ROWS)
            inside_rows = (row < last)[:, None] & inside[None, :]
            value = tl.load(z + row[:, None].to(tl.int64) * d + column[None, :], mask=inside_rows, other=0.0)
            away = tl.where(inside_rows, value.to(tl.float64) - start[None, :], 0.0)
            total += tl.sum(away, axis=0)
            squares += tl.sum(away * away, axis=0)
        slot = (chunk * trials + trial) * tl.num_programs(0) + block
        if CHUNKS == 1:
            found = tl.sum(squares - total * total / n, axis=0)
        else:
            found = tl.sum(squares, axis=0)
            tl.store(totals + (chunk * trials + trial) * d + column, total, mask=inside)
        tl.store(parts + slot, found)
        nonfinite = (found - found).to(tl.float32)
    else:
        nothing = tl.zeros((BLOCK,), tl.float32)
        for first in range(top, last, ROWS):
            row = first + tl.arange(0, ROWS)
            inside_rows = (row < last)[:, None] & inside[None, :]
            value = tl.load(z + row[:, None].to(tl.int64) * d + column[None, :], mask=inside_rows, other=0.0)
            nothing += tl.sum((value - value).to(tl.float32), axis=0)
        nonfinite = tl.sum(nothing, axis=0)
    if nonfinite != 0:
        # Find the rows. This happens once per trial, which is then stopped. Concurrent writes store the same value.
        for first in range(top, last, ROWS):
            row = first + tl.arange(0, ROWS)
            inside_rows = (row < last)[:, None] & inside[None, :]
            value = tl.load(z + row[:, None].to(tl.int64) * d + column[None, :], mask=inside_rows, other=0.0)
            bad = tl.max(((value - value) != 0).to(tl.int32), axis=1) > 0
            slot = first_bad + (trial * n + row) * variables + index + which
            known = tl.load(slot, mask=bad, other=0)
            tl.store(slot, tl.load(now) + tl.zeros_like(known), mask=bad & (known < 0))


@triton.jit
def _record_error(parts, errors, now, capacity, n, trials, blocks, BLOCK: tl.constexpr):
    trial = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float64)
    for first in range(0, blocks, BLOCK):
        index = first + tl.arange(0, BLOCK)
        total += tl.load(parts + trial * blocks + index, mask=index < blocks, other=0.0)
    tl.store(errors + tl.load(now) % capacity * trials + trial, tl.sum(total, axis=0) / n)


def record(variables: list[Tensor], x_index: int, t: Tensor, errors: Tensor, first_bad: Tensor) -> None:
    """Record the consensus error of the variable at `x_index`, and the rows of every variable that are not finite.

    Parameters
    ----------
    variables
        Contiguous and of one dtype, each `[rows, d]`.
    t
        The iteration, int64.
    errors
        Ring buffer of errors `[capacity, S]` in float64; the entry t mod capacity is written.
    first_bad
        `[rows, variables]` in int64: t is written where a row is not finite and the value is negative.
    """
    x = variables[x_index]
    (rows, d), (capacity, trials) = x.shape, errors.shape
    n = rows // trials
    block = min(COLUMNS, max(16, triton.next_power_of_2(d)))
    blocks = triton.cdiv(d, block)
    chunks = min(triton.cdiv(n, 64), max(1, PROGRAMS // (blocks * trials)))
    parts = torch.empty(chunks, trials, blocks, dtype=torch.float64, device=x.device)
    totals = torch.empty(chunks if chunks > 1 else 0, trials, d, dtype=torch.float64, device=x.device)
    for index in range(0, len(variables), VARIABLES_PER_LAUNCH):
        group = variables[index : index + VARIABLES_PER_LAUNCH]
        padding = group[:1] * (VARIABLES_PER_LAUNCH - len(group))
        _scan[(blocks, trials, len(group) * chunks)](
            *group, *padding, first_bad, t, parts, totals, n, d, trials, len(variables), index, x_index,
            COUNT=len(group), ROWS=ROWS, BLOCK=block, CHUNKS=chunks, num_warps=max(1, min(8, block // 32)),
        )  # fmt: skip
    if chunks > 1:
        parts = (parts.sum(0).sum(1) - totals.sum(0).square().sum(1) / n)[:, None]
        blocks = 1
    block = 4096 if blocks > 512 else 512
    _record_error[(trials,)](parts, errors, t, capacity, n, trials, blocks, BLOCK=block, num_warps=4)
