"""What is watched at every iteration, on the device, without asking it to wait.

The consensus error of x at every iteration, and the first non-finite (iteration, client, variable) of every row; both
are read at evaluations only.
"""

import importlib.util
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from depositum.algorithms import State
from depositum.metrics.measures import consensus


class Divergence(NamedTuple):
    """Where a seed left the finite numbers."""

    seed: int
    iteration: int
    client: int
    variable: str

    def __str__(self) -> str:
        return (
            f"seed {self.seed} diverged: {self.variable} of client {self.client} is not finite at "
            f"iteration {self.iteration}"
        )


def row_variables(state: State) -> dict[str, Tensor]:
    """The state's variables that have one row per client, as the models do."""
    x = state.x
    tensors = {k: v for k, v in state._asdict().items() if isinstance(v, Tensor)}
    return {k: v for k, v in tensors.items() if v.shape == x.shape and v.dtype == x.dtype}


def _seen(variables: list[Tensor], own: int, trials: int) -> tuple[Tensor, Tensor]:
    """The consensus error of x, `[S]`, and whether each row of each variable is not finite, `[rows, variables]`.

    `own` is the place of x among the variables.
    """
    # A sum is finite only if all its terms are, and reads each row once.
    sums = torch.stack([v.sum(1) for v in variables], dim=1)
    return consensus(variables[own], trials), ~torch.isfinite(sums)


@torch.library.custom_op("depositum::watch", mutates_args=("errors", "first_bad"))
def _watch(variables: Sequence[Tensor], own: int, t: Tensor, errors: Tensor, first_bad: Tensor) -> None:
    from depositum.kernels.monitoring import record

    record([v.contiguous() for v in variables], own, t, errors, first_bad)


@_watch.register_fake
def _(variables: Sequence[Tensor], own: int, t: Tensor, errors: Tensor, first_bad: Tensor) -> None:
    return None


class Monitor:
    """Watches the rows of some seeds between two evaluations.

    Parameters
    ----------
    capacity
        Iterations that can pass between two reads.
    """

    def __init__(self, seeds: tuple[int, ...], capacity: int, state: State) -> None:
        self.seeds = seeds
        device = state.x.device
        self.names = list(row_variables(state))
        self.by_kernels = device.type == "cuda" and importlib.util.find_spec("triton") is not None
        #: The errors of the last iterations, in a ring `[capacity, S]`, and the first iteration at which each row of
        #: each variable was not finite, −1 if it always was, `[rows, variables]`.
        self.tensors = [
            torch.zeros(capacity, len(seeds), dtype=torch.float64, device=device),
            torch.full((len(state.x), len(self.names)), -1, dtype=torch.int64, device=device),
        ]
        self.read_until = int(state.t)

    def observe(self, state: State) -> None:
        """Note the state after an iteration."""
        errors, first_bad = self.tensors
        variables, own = list(row_variables(state).values()), self.names.index("x")
        if self.by_kernels:
            _watch(variables, own, state.t, errors, first_bad)
            return
        slot = (state.t % len(errors)).view(1)
        error, bad = _seen(variables, own, len(self.seeds))
        errors.index_copy_(0, slot, error[None])
        first_bad.copy_(torch.where(bad & (first_bad < 0), state.t, first_bad))

    def read_errors(self, t: int) -> list[tuple[int, int, float]]:
        """(seed, iteration, consensus error) of every iteration since the last read, up to t."""
        errors = self.tensors[0]
        span = range(self.read_until + 1, t + 1)
        assert len(span) <= len(errors), "more iterations passed than the monitor holds"
        self.read_until = t
        if not span:
            return []
        table = errors[[i % len(errors) for i in span]].tolist()
        return [(seed, i, row[k]) for i, row in zip(span, table, strict=True) for k, seed in enumerate(self.seeds)]

    def diverged(self) -> list[Divergence]:
        """The first non-finite value of each seed that has one."""
        bad = self.tensors[1].cpu()
        if (bad < 0).all():
            return []
        per_seed = bad.view(len(self.seeds), -1, len(self.names))
        found = []
        for seed, block in zip(self.seeds, per_seed, strict=True):
            hits = (block >= 0).nonzero().tolist()
            if hits:
                iteration, variable, client = min((int(block[i, v]), v, i) for i, v in hits)
                found.append(Divergence(seed, iteration, client, self.names[variable]))
        return found
