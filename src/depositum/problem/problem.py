"""The problem: minimise φ(x) = (1/n) Σ_i f_i(x) + β h(x) over the clients' data.

A `Problem` is the mathematical problem, without randomness or a device. A `Trial` is what varies between independent
runs on it: the seed, the initial model, and the samples of each client.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from depositum import data
from depositum.data import Samples
from depositum.errors import ConfigError, check_choice, is_number, renamed_keys, short_repr
from depositum.layout import Layout
from depositum.problem.compatibility import attribute_errors
from depositum.problem.lazy_layers import materialized
from depositum.problem.losses import Loss, as_loss
from depositum.problem.model_copy import with_parameters
from depositum.regularizers import Regularizer, Zero

Weighting = Literal["uniform", "samples"]


@dataclass(frozen=True)
class Trial:
    """One independent run: its seed, its initial model x_0 `[d]`, and each client's sample indices.

    Trials of several configurations can be combined in one problem: two may then have the same seed, and thus the same
    batches, but not the same label; and each may have its own β and weighting.

    Attributes
    ----------
    label
        Identifies the trial; its seed by default. Nothing random depends on it.
    beta, weighting
        Override those of the problem, if given.
    test_indices
        Indices of the problem's `test` samples on which this trial is evaluated; None for all.
    """

    seed: int
    start: Tensor
    parts: Sequence[np.ndarray]
    label: int | None = None
    beta: float | None = None
    weighting: Weighting | None = None
    test_indices: np.ndarray | None = None


@dataclass(frozen=True)
class Problem:
    """Model, loss, data, regularizer, and the trials to run on them.

    Attributes
    ----------
    model
        The architecture. Trainable parameters come from the rows, frozen ones are shared by all clients.
    train, test
        All samples; each trial assigns those of `train` to clients, and may be evaluated on a subset of `test`.
    beta, regularizer
        β and h. β = 0 switches h off.
    weighting
        `"uniform"`: f_i is the mean loss of client i. `"samples"`: that mean times n·N_i/N, so that the uniform average
        over clients is the mean over all samples.
    class_names, feature_names
        The class of each label and the meaning of each input, where the data are tables.
    """

    model: nn.Module
    loss: Loss
    train: Samples
    trials: tuple[Trial, ...]
    test: Samples | None = None
    regularizer: Regularizer = field(default_factory=Zero)
    beta: float = 0.0
    weighting: Weighting = "uniform"
    class_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for beta in (self.beta, *self.betas):
            if not (is_number(beta) and isfinite(beta) and beta >= 0):
                raise ConfigError("beta", f"{short_repr(beta)} given; it must be a number ≥ 0")
        for weighting in (self.weighting, *self.weightings):
            check_choice("weighting", weighting, get_args(Weighting))
        if len({len(trial.parts) for trial in self.trials}) != 1:
            raise ConfigError("clients", "every trial must have the same number of clients, and at least one")
        if any(len(part) == 0 for trial in self.trials for part in trial.parts):
            raise ConfigError("clients", "a client has no samples; every client needs at least one")
        if not self.layout.size:
            raise ConfigError("model", "the model has no trainable parameters")
        with renamed_keys(lambda key: key if key == "regularizer" else f"regularizer.{key}"):
            bound = self.regularizer.bind(self.layout) if any(self.betas) else Zero()
        object.__setattr__(self, "regularizer", bound)

    @property
    def layout(self) -> Layout:
        return Layout.of(self.model)

    @property
    def n(self) -> int:
        """Clients of one trial."""
        return len(self.trials[0].parts)

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(trial.seed for trial in self.trials)

    @property
    def labels(self) -> tuple[int, ...]:
        """The label of each trial."""
        return tuple(trial.seed if trial.label is None else trial.label for trial in self.trials)

    @property
    def betas(self) -> tuple[float, ...]:
        """β of each trial."""
        return tuple(self.beta if trial.beta is None else trial.beta for trial in self.trials)

    @property
    def weightings(self) -> tuple[Weighting, ...]:
        """The weighting of each trial."""
        return tuple(self.weighting if trial.weighting is None else trial.weighting for trial in self.trials)

    @property
    def composite(self) -> bool:
        """Whether the problem has a regularizer: β > 0 in some trial, and h ≠ 0."""
        return any(self.betas) and not isinstance(self.regularizer, Zero)

    @property
    def prox_modulus(self) -> float:
        """βρ, the weak-convexity modulus of βh, maximum over trials: a prox of step α needs αβρ < 1."""
        return max(self.prox_moduli)

    @property
    def prox_moduli(self) -> tuple[float, ...]:
        """βρ of each trial."""
        return tuple(beta * self.regularizer.rho for beta in self.betas)

    def restricted_to(self, labels: Sequence[int]) -> "Problem":
        """The same problem with only the trials of these labels, in their present order."""
        chosen = zip(self.labels, self.trials, strict=True)
        return replace(self, trials=tuple(trial for label, trial in chosen if label in labels))

    def averaged_model(self, row: Tensor, buffers: dict[str, Tensor]) -> nn.Module:
        """A copy of the model with one row `[d]` as parameters and these buffers, on the CPU, in evaluation mode."""
        return with_parameters(self.model, row, buffers)


def from_client_data(
    model: nn.Module,
    clients: Any,
    *,
    by: str | None = None,
    target: str | None = None,
    seed: int = 0,
    loss: object = None,
    test: Any = None,
    regularizer: Regularizer | None = None,
    beta: float = 0.0,
    weighting: Weighting = "uniform",
) -> Problem:
    """A problem from a user-defined model and the clients' data, in any form that `data.from_clients` accepts.

    The parameters of the given model are the common start x_0; those of lazy layers are drawn from the seed. The
    default loss is cross-entropy for integer targets and the squared error for floating-point ones.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError("model", f"a {type(model).__name__} given; it must be a torch.nn.Module")
    if not isinstance(seed, int | np.integer) or not -(1 << 63) <= seed < 1 << 63:
        raise ConfigError("seed", f"{short_repr(seed)} given; it must be a whole number of at most 64 bits")
    dataset = data.from_clients(clients, test, by=by, target=target)
    _check_values(model)
    assert dataset.clients is not None
    if loss is None:
        loss = "mse" if dataset.train.targets.is_floating_point() else "cross-entropy"
    model = materialized(model, dataset.train.inputs, seed)
    layout = Layout.of(model)
    start = layout.row({k: p.detach() for k, p in model.named_parameters()}) if layout.size else torch.empty(0)
    return Problem(
        model=_copy(model),
        loss=as_loss(loss),  # type: ignore[arg-type]
        train=dataset.train,
        trials=(Trial(seed, start.clone(), dataset.clients),),
        test=dataset.test,
        regularizer=regularizer or Zero(),
        beta=beta,
        weighting=weighting,
        class_names=dataset.class_names,
        feature_names=dataset.feature_names,
    )


def _check_values(model: nn.Module) -> None:
    """Refuse complex parameters, and those that do not have values yet, except lazy ones, which the data determine."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta and not is_lazy(tensor):
            problem = f"{name!r} is on the device 'meta', which holds no values"
            raise ConfigError("model", f"{problem}; initialise it with .to_empty(device='cpu')")
        if tensor.is_complex():
            raise ConfigError("model", f"{name!r} is of {tensor.dtype}; parameters and buffers must be real numbers")


def _copy(model: nn.Module) -> nn.Module:
    with attribute_errors("model", "it cannot be copied"):
        return copy.deepcopy(model)
