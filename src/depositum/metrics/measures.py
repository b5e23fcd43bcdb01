"""The paper's measures of a state, written once for rows in one process or spread over many.

Each process measures the rows that it holds, `[S·k, d]` for k clients of S trials, and a `Reduction` adds up what the
processes contribute; a simulator is a group of one. All measures are `[S]`, one value per trial, the same on every
process. Sums run in float64, so that a squared norm of a million float32 differences keeps its digits.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from depositum.algorithms import State
from depositum.metrics.reduction import SINGLE_PROCESS, Reduction
from depositum.problem import Oracle, Problem

#: What may be sent between processes for measures: numbers and the averaged model; rows and gradients too; nothing.
Sharing = Literal["scalars", "gather", "none"]

#: Columns of the history that are measures of a state, in order (docs/metrics.md defines each); first those that read
#: the training data.
TRAINING = ("train_loss", "phi")
CHEAP = (*TRAINING, "test_loss", "test_accuracy", "consensus_x", "consensus_y", "sparsity")
COSTLY = ("stationarity", "gradient_error", "s", "client_accuracy_mean", "client_accuracy_worst", "zeta2")
#: Of a process that shares no measures with others: those of its own clients.
OWN = ("own_loss", "own_accuracy")
#: Of a language model: "perplexity:overall", over all test tokens, and one for each category.
PERPLEXITY, OVERALL = "perplexity:", "overall"

Buffers = dict[str, Tensor]


class Average(NamedTuple):
    """The averaged model of each trial: x̄ `[S, d]`, and its buffers, each `[S, ...]`."""

    x: Tensor
    buffers: Buffers


def as_records(values: dict[str, Tensor], trials: int) -> list[dict[str, float]]:
    """Measures `[S]` by name as one dictionary of plain numbers per trial, in one transfer from the device."""
    if not values:
        return [{} for _ in range(trials)]
    table = torch.stack([value.to(torch.float64) for value in values.values()]).T.tolist()
    return [dict(zip(values, row, strict=True)) for row in table]


def by_trial(z: Tensor, trials: int) -> Tensor:
    """`[S·k, d]` as `[S, k, d]`."""
    return z.view(trials, -1, z.shape[-1])


def squared_norm(z: Tensor) -> Tensor:
    """Squared norm of each trial's block `[k, d]` (or of each row of `[S, d]`), float64 `[S]`."""
    return z.flatten(1).square().sum(1, dtype=torch.float64)


def consensus(z: Tensor, trials: int) -> Tensor:
    """(1/n) ‖Jz − z‖², the consensus error of rows that are all here."""
    blocks = by_trial(z, trials)
    return squared_norm(blocks - blocks.mean(1, keepdim=True)) / blocks.shape[1]


def mean_row(z: Tensor, trials: int, n: int, reduction: Reduction = SINGLE_PROCESS) -> Tensor:
    """z̄, the average over each trial's n clients, `[S, d]`."""
    return reduction.sum(by_trial(z, trials).sum(1)) / n


def mean_buffers(buffers: Buffers, trials: int, n: int, reduction: Reduction = SINGLE_PROCESS) -> Buffers:
    """Each buffer `[S·k, ...]` averaged over its trial's n clients, `[S, ...]`; integers are rounded."""
    out = {}
    for name, buffer in buffers.items():
        sums = buffer.view(trials, -1, *buffer.shape[1:]).to(torch.float64).sum(1)
        mean = reduction.sum(sums) / n
        out[name] = (mean if buffer.is_floating_point() else mean.round()).to(buffer.dtype)
    return out


def averaged(state: State, oracle: Oracle, reduction: Reduction = SINGLE_PROCESS) -> Average:
    """The averaged model of each trial, the same on every process."""
    trials, n = oracle.trials, oracle.problem.n
    return Average(mean_row(state.x, trials, n, reduction), mean_buffers(oracle.buffers, trials, n, reduction))


def cheap(
    state: State,
    oracle: Oracle,
    train: bool = True,
    reduction: Reduction = SINGLE_PROCESS,
    average: Average | None = None,
) -> dict[str, Tensor]:
    """Loss, objective and accuracy of the averaged model; consensus errors; sparsity.

    Parameters
    ----------
    train
        Whether to measure what reads the training data.
    average
        The averaged models of the state, where they are known already.
    """
    trials, problem, n, x = oracle.trials, oracle.problem, oracle.problem.n, state.x
    y: Tensor | None = getattr(state, "y", None)
    mean, buffers = average or averaged(state, oracle, reduction)
    # What this process contributes to each measure; all of them meet in one sum.
    own = {"train_loss": oracle.evaluate(mean, buffers, "train")[0]} if train else {}
    if oracle.test is not None:
        own |= oracle.evaluate_test(mean, buffers, (reduction.rank, reduction.size))
    own["consensus_x"] = _deviation(x, mean, trials, n)
    if y is not None:
        own["consensus_y"] = _deviation(y, mean_row(y, trials, n, reduction), trials, n)
    own["sparsity"] = (by_trial(x, trials) == 0).to(torch.float64).mean(2).sum(1) / n  # exact zeros
    table = reduction.sum(torch.stack([value.to(torch.float64) for value in own.values()]))
    out = dict(zip(own, table, strict=True))
    if oracle.test is not None:
        out = with_perplexities(out, problem)
    if train:
        out["phi"] = out["train_loss"] + _regularization(mean, problem)
    return out


def own(state: State, oracle: Oracle) -> dict[str, Tensor]:
    """Loss and accuracy of the clients' own models on their own training data, on average over those held here.

    What a process can measure that shares nothing with others. Accuracy is left out if the loss does not define it.
    """
    loss, accuracy = oracle.evaluate_rows(state.x, oracle.buffers, range(len(state.x)))
    each = {"own_loss": loss, "own_accuracy": accuracy}
    if oracle.problem.loss.correct is None:
        del each["own_accuracy"]
    return {name: values.view(oracle.trials, -1).mean(1) for name, values in each.items()}


def costly(
    state: State,
    oracle: Oracle,
    alpha: float | Tensor | None,
    smoothness: Sequence[float],
    estimate: str = "nu",
    reduction: Reduction = SINGLE_PROCESS,
    sharing: Sharing = "gather",
) -> dict[str, Tensor]:
    """‖G^α(x)‖², gradient-estimation error, s, accuracy of the clients' models, ζ² at x̄.

    All but the accuracies need the rows of other clients on local data, or gradients of others: they are measured
    only if `sharing` is `"gather"`.

    Parameters
    ----------
    alpha
        One number, or one per row `[rows, 1]`; None where G^α is not defined.
    smoothness
        L of each trial, or nothing.
    estimate
        The state's variable that estimates the gradient, where it has one.
    """
    trials, n, x = oracle.trials, oracle.problem.n, state.x
    out: dict[str, Tensor] = {}
    if oracle.test is not None:
        _, accuracy = oracle.evaluate(x, oracle.buffers, "test")
        clients = accuracy.view(trials, -1)
        out["client_accuracy_mean"] = reduction.sum(clients.sum(1)) / n
        out["client_accuracy_worst"] = reduction.minimum(clients.amin(1))
    if sharing != "gather":
        return out
    nu: Tensor | None = getattr(state, estimate, None)
    mean = mean_row(x, trials, n, reduction)
    if alpha is not None:
        mapping = proximal_gradient_mapping(x, _global_grad(x, oracle, reduction), oracle, alpha)
        out["stationarity"] = reduction.sum(squared_norm(by_trial(mapping, trials)))
    if nu is not None:
        full = mean_row(oracle.full_grad(x), trials, n, reduction)
        out["gradient_error"] = squared_norm(full - mean_row(nu, trials, n, reduction))
    if smoothness and "stationarity" in out and "gradient_error" in out:
        # The s of Theorem 1: ‖G‖² + L²‖Jx − x‖² + n‖∇f̄(x) − ν̄‖².
        L = torch.tensor(smoothness, dtype=torch.float64, device=x.device)
        disagreement = n * reduction.sum(_deviation(x, mean, trials, n))
        out["s"] = out["stationarity"] + L.square() * disagreement + n * out["gradient_error"]
    # (1/n) Σ ‖∇f_i(x̄) − ∇f(x̄)‖²: the ζ² of the paper's condition (2) at x̄.
    local = oracle.full_grad(mean.repeat_interleave(len(oracle.clients), 0))
    out["zeta2"] = reduction.sum(_deviation(local, mean_row(local, trials, n, reduction), trials, n))
    return out


def with_perplexities(tested: dict[str, Tensor], problem: Problem) -> dict[str, Tensor]:
    """Measures of the test data, with perplexities where the loss is over tokens: overall and for each category.

    With other losses, the losses of categories are left out.
    """
    losses = {OVERALL: tested["test_loss"]}
    losses |= {key.partition(":")[2]: tested.pop(key) for key in list(tested) if key.startswith("test_loss:")}
    if problem.loss.terms is not None:
        tested |= {PERPLEXITY + name: loss.exp() for name, loss in losses.items()}
    return tested


def proximal_gradient_mapping(x: Tensor, direction: Tensor, oracle: Oracle, alpha: float | Tensor) -> Tensor:
    """G^α(x, y) = (x − prox_h^{1/(αβ)}{x − α y}) / α (Definition 2), row by row."""
    return (x - oracle.prox(x - alpha * direction, alpha)) / alpha


def _deviation(z: Tensor, mean: Tensor, trials: int, n: int) -> Tensor:
    """What the rows held here add to (1/n) Σ ‖z_i − z̄‖²."""
    return squared_norm(by_trial(z, trials) - mean[:, None]) / n


def _regularization(mean: Tensor, problem: Problem) -> Tensor | float:
    """βh of each trial's averaged model; where β = 0 it is 0, even if h is not finite."""
    if not any(problem.betas):
        return 0.0
    h = problem.regularizer.value(mean)
    beta = torch.tensor(problem.betas, dtype=h.dtype, device=h.device)
    return torch.where(beta > 0, beta * h, 0.0)


def _global_grad(x: Tensor, oracle: Oracle, reduction: Reduction) -> Tensor:
    """∇f(x_i) of the clients held here: every process's rows go round, and each adds the part of its own data."""
    own, result = oracle.buffers, x
    try:
        for rank in range(reduction.size):
            # Processes hold equal numbers of clients, so rows and buffers have the same shape on all of them.
            oracle.buffers = {name: reduction.broadcast(buffer, rank) for name, buffer in own.items()}
            part = reduction.sum(oracle.global_grad(reduction.broadcast(x, rank)))
            if rank == reduction.rank:
                result = part
    finally:
        oracle.buffers = own
    return result
