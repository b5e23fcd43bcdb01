"""A run as a whole, whoever holds its rows: what the loop asks besides iterations.

A simulator holds all rows, and `AllRows` answers from them. A `ProcessEngine` holds some, and answers together with the
other ranks, all of which must ask the same at the same iterations.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from depositum.engines.monitor import Divergence, Monitor
from depositum.engines.simulator import Costs, Simulator
from depositum.metrics import cheap, costly
from depositum.problem import mean_buffer

#: The mean of a seed's models `[d]`, and of its buffers.
Averaged = tuple[Tensor, dict[str, Tensor]]


class Whole(Protocol):
    """Answers for all clients, the same on every rank."""

    def read_errors(self, t: int) -> list[tuple[int, int, float]]:
        """(seed, iteration, consensus error) of iterations up to t since the last read, where they are known."""
        ...

    def diverged(self) -> list[Divergence]:
        """The first non-finite value of each seed that has one."""
        ...

    def measure_cheap(self, train: bool) -> dict[str, Tensor]:
        """Measures of every evaluation, each `[S]`; those that are not known are left out.

        Without `train`, nothing that reads the training data.
        """
        ...

    def measure_costly(self, alpha: float | None, smoothness: Sequence[float]) -> dict[str, Tensor]:
        """Measures that need gradients over all data, each `[S]`; those that are not known are left out."""
        ...

    def mean_costs(self) -> Costs:
        """What a client has cost on average."""
        ...

    def stops(self, asked: bool, due: bool) -> bool:
        """Whether to stop now, where this process was asked to; `due` at iterations at which all meet anyway."""
        ...

    def averaged(self, rows: dict[str, Tensor]) -> Averaged:
        """x̄ `[d]` and the mean buffers of one seed, from a snapshot's rows of it."""
        ...


class AllRows:
    """A simulator that is watched: all rows are here.

    Parameters
    ----------
    capacity
        Iterations that can pass between two reads of the errors.
    """

    def __init__(self, simulator: Simulator, capacity: int) -> None:
        self._simulator = simulator
        self._monitor = Monitor(simulator.problem.labels, capacity, simulator.state)
        simulator.watch(self._monitor)
        self.read_errors, self.diverged = self._monitor.read_errors, self._monitor.diverged
        self._monitor.observe(simulator.state)

    def measure_cheap(self, train: bool) -> dict[str, Tensor]:
        return cheap(self._simulator.state, self._simulator.oracle, train)

    def measure_costly(self, alpha: float | Tensor | None, smoothness: Sequence[float]) -> dict[str, Tensor]:
        """As of any whole; `alpha` can also be one for each trial, `[S]`."""
        simulator = self._simulator
        state, oracle = simulator.state, simulator.oracle
        if isinstance(alpha, Tensor):
            alpha = alpha.to(state.x).repeat_interleave(len(oracle.clients))[:, None]
        return costly(state, oracle, alpha, smoothness, simulator.algorithm.estimate)

    def mean_costs(self) -> Costs:
        return self._simulator.costs

    def stops(self, asked: bool, due: bool) -> bool:
        return asked

    def averaged(self, rows: dict[str, Tensor]) -> Averaged:
        return average_of(rows)


def average_of(rows: dict[str, Tensor]) -> Averaged:
    """The means over rows that are all here."""
    buffers = {name: buffer for name, buffer in rows.items() if name.startswith("buffer.")}
    return rows["x"].mean(0), {name.removeprefix("buffer."): mean_buffer(b, 1)[0] for name, b in buffers.items()}
