"""The paper's measures of a run whose rows lie in several processes.

Each rank measures what it holds; sums meet in an all-reduce. By default (`"scalars"`) nothing leaves a rank but numbers
and its share of the averaged model. What needs another client's rows against one's own data (‖G‖²), or gradients of
others (the estimation error, ζ²), is measured with `"gather"` alone: rows and gradients then travel to all ranks. With
`"none"` nothing is measured and nothing is sent.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from depositum.algorithms import State
from depositum.engines.processes.group import Group
from depositum.metrics import proximal_gradient_mapping, with_perplexities
from depositum.metrics.measures import by_trial, of_theorem, squared_norm
from depositum.problem import Oracle
from depositum.problem.row_model import Buffers

Evaluate = Literal["scalars", "gather", "none"]


class GlobalMeasures:
    """Measures over all ranks' clients, the same numbers on every rank; each `[S]`.

    Every rank must ask for the same ones at the same time.
    """

    def __init__(self, oracle: Oracle, group: Group) -> None:
        self.oracle, self.group = oracle, group
        self.trials, self.n = oracle.trials, oracle.problem.n

    def mean(self, z: Tensor) -> Tensor:
        """z̄, the average over each trial's clients, `[S, d]`."""
        return self.group.sum(by_trial(z, self.trials).sum(1)) / self.n

    def buffers(self) -> Buffers:
        """Each trial's buffers averaged over all clients, `[S, ...]`; those of whole numbers are rounded."""
        out = {}
        for name, buffer in self.oracle.buffers.items():
            sums = buffer.view(self.trials, -1, *buffer.shape[1:]).to(torch.float64).sum(1)
            mean = self.group.sum(sums) / self.n
            out[name] = (mean if buffer.is_floating_point() else mean.round()).to(buffer.dtype)
        return out

    def cheap(self, state: State, train: bool = True) -> dict[str, Tensor]:
        """Loss, objective, accuracy of the averaged model; consensus errors; sparsity.

        Without `train`, nothing that reads the training data.
        """
        problem, x = self.oracle.problem, state.x
        y: Tensor | None = getattr(state, "y", None)
        mean, buffers = self.mean(x), self.buffers()
        own = {"train_loss": self.oracle.evaluate(mean, buffers, "train")[0]} if train else {}
        if self.oracle.test is not None:
            share = self.group.rank, self.group.size
            own |= self.oracle.evaluate_test(mean, buffers, share)
        own["consensus_x"] = self._deviation(x, mean)
        if y is not None:
            own["consensus_y"] = self._deviation(y, self.mean(y))
        own["sparsity"] = (by_trial(x, self.trials) == 0).to(torch.float64).mean(2).sum(1) / self.n
        out = self._summed(own)
        if self.oracle.test is not None:
            out = with_perplexities(out, problem)
        if train:
            loss = out["train_loss"]
            out["phi"] = loss + problem.beta * problem.regularizer.value(mean) if problem.beta else loss
        return out

    def clients(self, state: State) -> dict[str, Tensor]:
        """The accuracy of the clients' own models on the test data: their mean, and the worst."""
        if self.oracle.test is None:
            return {}
        _, accuracy = self.oracle.evaluate(state.x, self.oracle.buffers, "test")
        own = accuracy.view(self.trials, -1)
        return {
            "client_accuracy_mean": self.group.sum(own.sum(1)) / self.n,
            "client_accuracy_worst": self.group.minimum(own.amin(1)),
        }

    def gathered(
        self, state: State, alpha: float | None, smoothness: Sequence[float], estimate: str = "nu"
    ) -> dict[str, Tensor]:
        """‖G^α(x)‖², gradient-estimation error, s and ζ² at x̄: rows and gradients go to all ranks."""
        x, oracle = state.x, self.oracle
        nu: Tensor | None = getattr(state, estimate, None)
        out: dict[str, Tensor] = {}
        if alpha is not None:
            mapping = proximal_gradient_mapping(x, self._global_grad(x), oracle, alpha)
            out["stationarity"] = self.group.sum(squared_norm(by_trial(mapping, self.trials)))
        if nu is not None:
            out["gradient_error"] = squared_norm(self.mean(oracle.full_grad(x)) - self.mean(nu))
        mean = self.mean(x)
        if smoothness and "stationarity" in out and "gradient_error" in out:
            consensus = self.group.sum(self._deviation(x, mean))
            out["s"] = of_theorem(out["stationarity"], consensus, out["gradient_error"], self.n, smoothness)
        local = oracle.full_grad(mean.repeat_interleave(len(oracle.clients), 0))
        out["zeta2"] = self.group.sum(self._deviation(local, self.mean(local)))
        return out

    def _deviation(self, z: Tensor, mean: Tensor) -> Tensor:
        """What this rank adds to (1/n) Σ ‖z_i − z̄‖²."""
        return squared_norm(by_trial(z, self.trials) - mean[:, None]) / self.n

    def _global_grad(self, x: Tensor) -> Tensor:
        """∇f(x_i) of the clients held here: every rank's rows go round, and each adds the part of its own data."""
        oracle, own = self.oracle, self.oracle.buffers
        result = torch.zeros_like(x)
        try:
            for rank in range(self.group.size):
                # Shares are equal, so that rows and buffers of another rank have the shape of one's own.
                oracle.buffers = {name: self.group.broadcast(buffer, rank) for name, buffer in own.items()}
                part = self.group.sum(oracle.global_grad(self.group.broadcast(x, rank)))
                if rank == self.group.rank:
                    result = part
        finally:
            oracle.buffers = own
        return result

    def _summed(self, own: dict[str, Tensor]) -> dict[str, Tensor]:
        """All contributions summed over ranks, in one transfer."""
        table = self.group.sum(torch.stack([v.to(torch.float64) for v in own.values()]))
        return dict(zip(own, table, strict=True))
