"""What `mix` is in the simulator: the rows of every trial, block by block.

`Exchange` is W, `Local` the identity. Both count what a client sends, so that the history can say it.
"""

import torch
from torch import Tensor

from depositum.networks import Network
from depositum.problem.precision import exact


class Exchange:
    """W ⊗ I on the rows `[S·n, d]` of S trials.

    Products run in the state's own dtype, never in TF32: a row of weights that sums to 0.9998 drifts silently.
    """

    def __init__(self, network: Network, trials: int, device: torch.device, dtype: torch.dtype) -> None:
        self.n, self.trials = network.n, trials
        self.lam, self.lam_min = network.lam, network.lam_min
        self.lam2 = float(network.eigenvalues[1]) if self.n > 1 else 0.0
        self.W = torch.tensor(network.W, device=device, dtype=dtype)
        self.adjacency = (self.W != 0).to(dtype).fill_diagonal_(0)
        self.degree = self.adjacency.sum(1, keepdim=True).repeat(trials, 1)
        self.mean_degree = float(network.degree.mean())
        self.bytes = 0.0

    def _blocks(self, z: Tensor) -> Tensor:
        return z.view(self.trials, self.n, -1)

    def _count(self, z: Tensor, copies: float, payload: float | None = None) -> None:
        if self.n > 1:
            self.bytes += copies * (z.shape[1] * z.element_size() if payload is None else payload)

    def __call__(self, z: Tensor, payload: float | None = None) -> Tensor:
        self._count(z, self.mean_degree, payload)
        with exact():
            return (self.W @ self._blocks(z)).view_as(z)

    def neighbours(self, z: Tensor) -> Tensor:
        self._count(z, self.mean_degree)
        with exact():
            return (self.adjacency @ self._blocks(z)).view_as(z)

    def average(self, z: Tensor) -> Tensor:
        self._count(z, 1.0)
        return self._blocks(z).mean(1, keepdim=True).expand(-1, self.n, -1).reshape(z.shape)


class Local:
    """The identity: a step in which nothing is sent by `mix` itself (averages and neighbours go through W)."""

    def __init__(self, exchange: Exchange) -> None:
        self.lam, self.lam2, self.lam_min = exchange.lam, exchange.lam2, exchange.lam_min
        self.degree = exchange.degree
        self.average, self.neighbours = exchange.average, exchange.neighbours

    def __call__(self, z: Tensor, payload: float | None = None) -> Tensor:
        return z
