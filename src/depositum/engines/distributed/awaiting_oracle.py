"""The oracle of a process, whose rows may still be on their way from others."""

from torch import Tensor

from depositum.engines.distributed.async_tensor import awaited
from depositum.problem import Batch, BatchSize, Oracle


class AwaitingOracle:
    """The oracle, for rows that may still be on their way: it waits for them where it needs them, and only there.

    In `grad(mix(x), sample())`, the mini-batch is drawn while x travels.
    """

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self.weights = oracle.weights

    def sample(self, size: BatchSize | None = None) -> Batch:
        return self._oracle.sample(size)

    def grad(self, x: Tensor, batch: Batch) -> Tensor:
        return self._oracle.grad(awaited(x), batch)

    def full_grad(self, x: Tensor) -> Tensor:
        return self._oracle.full_grad(awaited(x))

    def prox(self, z: Tensor, step: float | Tensor) -> Tensor:
        return self._oracle.prox(awaited(z), awaited(step))

    def normal(self, like: Tensor) -> Tensor:
        return self._oracle.normal(like)
