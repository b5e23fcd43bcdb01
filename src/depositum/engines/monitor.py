"""What is monitored at every iteration, on the device, without making it wait.

The first non-finite (iteration, client, variable) of every row and, where all rows are in one process, the consensus
error of x at every iteration. Both are read at evaluations only.
"""

import importlib.util
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from depositum.algorithms import State
from depositum.metrics import SINGLE_PROCESS, Reduction
from depositum.metrics.measures import consensus

#: Stands for "always finite" among the codes of (iteration, variable, client).
_NEVER = (1 << 63) - 1


class Divergence(NamedTuple):
    """Where a trial left the finite numbers; `seed` is its label, which is its seed in a run of its own."""

    seed: int
    iteration: int
    client: int
    variable: str

    def __str__(self) -> str:
        return (
            f"seed {self.seed} diverged: {self.variable} of client {self.client} is not finite at "
            f"iteration {self.iteration}"
        )


def describe_divergences(divergences: Sequence[Divergence], seeds: int) -> str:
    """Which of a run's seeds diverged first, and how many of them did, in one line; empty if none did."""
    if not divergences:
        return ""
    several = f"{len(divergences)} of {seeds} seeds: " if seeds > 1 else ""
    return f"{several}{min(divergences, key=lambda one: one.iteration)}"


def row_variables(state: State) -> dict[str, Tensor]:
    """The state's variables that have one row per client, as the models do."""
    x = state.x
    tensors = {k: v for k, v in state._asdict().items() if isinstance(v, Tensor)}
    return {k: v for k, v in tensors.items() if v.shape == x.shape and v.dtype == x.dtype}


@torch.library.custom_op("depositum::watch", mutates_args=("errors", "first_bad"))
def _monitor_on_gpu(variables: Sequence[Tensor], x: int, t: Tensor, errors: Tensor, first_bad: Tensor) -> None:
    from depositum.kernels.monitoring import record

    record([v.contiguous() for v in variables], x, t, errors, first_bad)


@_monitor_on_gpu.register_fake
def _(variables: Sequence[Tensor], x: int, t: Tensor, errors: Tensor, first_bad: Tensor) -> None:
    return None


class Monitor:
    """Monitors the rows held here between two evaluations.

    Parameters
    ----------
    labels
        The label of each trial.
    clients, n
        The clients whose rows are held here, and how many there are in all.
    capacity
        Iterations that can pass between two reads of the consensus errors; 0 where they are not known, since other
        processes hold the other rows.
    """

    def __init__(self, labels: Sequence[int], clients: Sequence[int], n: int, capacity: int, state: State) -> None:
        self.labels, self.clients, self.n = tuple(labels), clients, n
        device = state.x.device
        self.names = list(row_variables(state))
        #: Whether it is a kernel of its own, which a compiler cannot fuse with anything.
        self.is_kernel = device.type == "cuda" and capacity > 0 and importlib.util.find_spec("triton") is not None
        #: The consensus errors of the last iterations, a ring buffer `[capacity, S]`, and the first iteration at which
        #: each row of each variable was not finite, −1 if it always was, `[rows, variables]`. Updated in place.
        self.tensors = [
            torch.zeros(capacity, len(self.labels), dtype=torch.float64, device=device),
            torch.full((len(state.x), len(self.names)), -1, dtype=torch.int64, device=device),
        ]
        self.read_until = int(state.t)

    def observe(self, state: State, rows: Tensor | None = None) -> None:
        """Record the state after an iteration, or that of some rows, where the others have not changed."""
        if rows is None:
            self._record(state, *self.tensors)
            return
        errors, first_bad = self.tensors
        part = first_bad[rows]
        self._record(state, errors, part)
        first_bad.index_copy_(0, rows, part)

    def _record(self, state: State, errors: Tensor, first_bad: Tensor) -> None:
        variables, x = list(row_variables(state).values()), self.names.index("x")
        if self.is_kernel:
            _monitor_on_gpu(variables, x, state.t, errors, first_bad)
            return
        if len(errors):
            slot = (state.t % len(errors)).view(1)
            errors.index_copy_(0, slot, consensus(variables[x], len(self.labels))[None])
        # A sum is finite only if all its terms are, and reads each row once.
        bad = ~torch.isfinite(torch.stack([v.sum(1) for v in variables], dim=1))
        first_bad.copy_(torch.where(bad & (first_bad < 0), state.t, first_bad))

    def read_errors(self, t: int) -> list[tuple[int, int, float]]:
        """(label, iteration, consensus error) of every iteration since the last read, up to t, where known."""
        errors = self.tensors[0]
        span = range(self.read_until + 1, t + 1)
        self.read_until = t
        if not span or not len(errors):
            return []
        assert len(span) <= len(errors), "more iterations passed than the monitor holds"
        table = errors[[i % len(errors) for i in span]].tolist()
        return [(label, i, row[k]) for i, row in zip(span, table, strict=True) for k, label in enumerate(self.labels)]

    def diverged(self, reduction: Reduction = SINGLE_PROCESS) -> list[Divergence]:
        """The first non-finite value of each trial that has one, in whichever process: the same answer in all."""
        bad = self.tensors[1]
        # One number for (iteration, variable, client), smallest for what came first.
        clients = torch.tensor(list(self.clients), device=bad.device).repeat(len(self.labels))
        codes = (bad * len(self.names) + torch.arange(len(self.names), device=bad.device)) * self.n + clients[:, None]
        codes = torch.where(bad < 0, _NEVER, codes)
        first = reduction.minimum(codes.view(len(self.labels), -1).amin(1)).tolist()
        found = []
        for label, code in zip(self.labels, first, strict=True):
            if code != _NEVER:
                rest, client = divmod(code, self.n)
                iteration, variable = divmod(rest, len(self.names))
                found.append(Divergence(label, iteration, client, self.names[variable]))
        return found
