"""Reductions over the processes of a run: measures are written once, for rows in one process or in many."""

from typing import Protocol

from torch import Tensor


class Reduction(Protocol):
    """What measures need of a group of processes; every process calls the same methods in the same order."""

    rank: int
    size: int
    #: Whether processes agree to stop; otherwise each stops on its own, and the others wait until it returns.
    stops_together: bool

    def sum(self, z: Tensor) -> Tensor:
        """The elementwise sum over all processes, the same bits on each."""
        ...

    def minimum(self, z: Tensor) -> Tensor:
        """The elementwise minimum over all processes."""
        ...

    def broadcast(self, z: Tensor, source: int) -> Tensor:
        """The tensor of process `source`, which has the shape, dtype and device of z."""
        ...


class SingleProcess:
    """The reduction of a process that holds all rows."""

    rank, size, stops_together = 0, 1, True

    def sum(self, z: Tensor) -> Tensor:
        return z

    def minimum(self, z: Tensor) -> Tensor:
        return z

    def broadcast(self, z: Tensor, source: int) -> Tensor:
        return z


SINGLE_PROCESS = SingleProcess()
