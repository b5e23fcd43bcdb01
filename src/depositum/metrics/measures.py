"""The paper's measures as functions of rows, per trial.

Rows `[S·n, d]` of S trials come in, one value per trial `[S]` comes out. Sums run in float64, so that a squared norm
of a million float32 differences keeps its digits.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def by_trial(z: Tensor, trials: int) -> Tensor:
    """`[S·n, d]` as `[S, n, d]`."""
    return z.view(trials, -1, z.shape[-1])


def squared_norm(z: Tensor) -> Tensor:
    """Squared norm of each trial's whole `[n, d]` block (or of each row of `[S, d]`), `[S]`."""
    return z.flatten(1).square().sum(1, dtype=torch.float64)


def mean_model(z: Tensor, trials: int) -> Tensor:
    """z̄, the average over each trial's clients, `[S, d]`."""
    return by_trial(z, trials).mean(1)


def consensus(z: Tensor, trials: int) -> Tensor:
    """(1/n) ‖Jz − z‖², the consensus error."""
    blocks = by_trial(z, trials)
    return squared_norm(blocks - blocks.mean(1, keepdim=True)) / blocks.shape[1]


def sparsity(x: Tensor, trials: int) -> Tensor:
    """Mean fraction of exact zeros in the clients' models."""
    return (by_trial(x, trials) == 0).to(torch.float64).mean((1, 2))


def stationarity(mapping: Tensor, trials: int) -> Tensor:
    """‖G‖² of stacked proximal-gradient mappings."""
    return squared_norm(by_trial(mapping, trials))


def estimation_error(full: Tensor, nu: Tensor, trials: int) -> Tensor:
    """‖∇f̄(x) − ν̄‖², with ∇f̄(x) the average of the local gradients at the local models."""
    return squared_norm(mean_model(full, trials) - mean_model(nu, trials))


def of_theorem(
    stationarity: Tensor, consensus: Tensor, estimation: Tensor, n: int, smoothness: Sequence[float]
) -> Tensor:
    """The s of Theorem 1, ‖G‖² + L²‖Jx − x‖² + n‖∇f̄(x) − ν̄‖², of measures `[S]` and each trial's L."""
    L = torch.tensor(smoothness, dtype=torch.float64, device=consensus.device)
    return stationarity + L.square() * n * consensus + n * estimation


def heterogeneity(local: Tensor, trials: int) -> Tensor:
    """(1/n) Σ ‖∇f_i(x) − ∇f(x)‖² at one common x: the ζ² of the paper's condition (2) there."""
    return consensus(local, trials)
