"""Triton kernels of what is watched at every iteration, in one pass over each variable and two launches.

Compiled from ordinary sums, watching takes a dozen launches, which is longer than a small model's iteration, and reads
a large model's rows several times.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Variables that one launch looks at.
TOGETHER = 4
#: Enough programs to keep a large GPU busy; where there are fewer, the rows of a trial are shared by several.
PROGRAMS = 1024
#: Rows and columns that a program holds at once. The rows of a column are then one thread's, so that nothing passes
#: between threads but at the end.
ROWS, COLUMNS = 4, 512


@triton.jit
def _look(
    v0, v1, v2, v3, first_bad, now, parts, totals, n, d, trials, variables, place, own,
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
    # `odd` is 0, or not a number if any value here is not finite: such a one less itself is none.
    if place + which == own:
        # Away from the first client: the error is small where clients are close, and so must be what is summed.
        start = tl.load(z + column, mask=inside, other=0.0).to(tl.float64)
        total = tl.zeros((BLOCK,), tl.float64)
        squares = tl.zeros((BLOCK,), tl.float64)
        for first in range(top, last, ROWS):
            row = first + tl.arange(0, ROWS)
            there = (row < last)[:, None] & inside[None, :]
            value = tl.load(z + row[:, None].to(tl.int64) * d + column[None, :], mask=there, other=0.0)
            away = tl.where(there, value.to(tl.float64) - start[None, :], 0.0)
            total += tl.sum(away, axis=0)
            squares += tl.sum(away * away, axis=0)
        spot = (chunk * trials + trial) * tl.num_programs(0) + block
        if CHUNKS == 1:
            found = tl.sum(squares - total * total / n, axis=0)
        else:
            found = tl.sum(squares, axis=0)
            tl.store(totals + (chunk * trials + trial) * d + column, total, mask=inside)
        tl.store(parts + spot, found)
        odd = (found - found).to(tl.float32)
    else:
        nothing = tl.zeros((BLOCK,), tl.float32)
        for first in range(top, last, ROWS):
            row = first + tl.arange(0, ROWS)
            there = (row < last)[:, None] & inside[None, :]
            value = tl.load(z + row[:, None].to(tl.int64) * d + column[None, :], mask=there, other=0.0)
            nothing += tl.sum((value - value).to(tl.float32), axis=0)
        odd = tl.sum(nothing, axis=0)
    if odd != 0:
        # Which rows? Once only, as a trial that has one is ended. All who see one in an iteration write the same.
        for first in range(top, last, ROWS):
            row = first + tl.arange(0, ROWS)
            there = (row < last)[:, None] & inside[None, :]
            value = tl.load(z + row[:, None].to(tl.int64) * d + column[None, :], mask=there, other=0.0)
            bad = tl.max(((value - value) != 0).to(tl.int32), axis=1) > 0
            spot = first_bad + (trial * n + row) * variables + place + which
            known = tl.load(spot, mask=bad, other=0)
            tl.store(spot, tl.load(now) + tl.zeros_like(known), mask=bad & (known < 0))


@triton.jit
def _note(parts, errors, now, capacity, n, trials, blocks, BLOCK: tl.constexpr):
    trial = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float64)
    for first in range(0, blocks, BLOCK):
        place = first + tl.arange(0, BLOCK)
        total += tl.load(parts + trial * blocks + place, mask=place < blocks, other=0.0)
    tl.store(errors + tl.load(now) % capacity * trials + trial, tl.sum(total, axis=0) / n)


def watch(variables: list[Tensor], own: int, t: Tensor, errors: Tensor, first_bad: Tensor) -> None:
    """Note the consensus error of the variable `own`, and which rows of which variables have left the finite numbers.

    Parameters
    ----------
    variables
        Contiguous and of one dtype, each `[rows, d]`.
    t
        The iteration, int64.
    errors
        A ring of errors `[capacity, S]` in float64, of which the place t mod capacity is written.
    first_bad
        `[rows, variables]` in int64: t is written where a row is not finite and a negative number stands.
    """
    x = variables[own]
    (rows, d), (capacity, trials) = x.shape, errors.shape
    n = rows // trials
    block = min(COLUMNS, max(16, triton.next_power_of_2(d)))
    blocks = triton.cdiv(d, block)
    chunks = min(triton.cdiv(n, 64), max(1, PROGRAMS // (blocks * trials)))
    parts = torch.empty(chunks, trials, blocks, dtype=torch.float64, device=x.device)
    totals = torch.empty(chunks if chunks > 1 else 0, trials, d, dtype=torch.float64, device=x.device)
    for place in range(0, len(variables), TOGETHER):
        some = variables[place : place + TOGETHER]
        _look[(blocks, trials, len(some) * chunks)](
            *some, *some[:1] * (TOGETHER - len(some)), first_bad, t, parts, totals, n, d, trials, len(variables), place,
            own, COUNT=len(some), ROWS=ROWS, BLOCK=block, CHUNKS=chunks, num_warps=max(1, min(8, block // 32)),
        )  # fmt: skip
    if chunks > 1:
        parts = (parts.sum(0).sum(1) - totals.sum(0).square().sum(1) / n)[:, None]
        blocks = 1
    _note[(trials,)](parts, errors, t, capacity, n, trials, blocks, BLOCK=4096 if blocks > 512 else 512, num_warps=4)
