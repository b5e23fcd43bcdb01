"""The problem: minimise φ(x) = (1/n) Σ_i f_i(x) + β h(x) over the clients' data.

A `Problem` is the mathematical problem, without randomness or a device. A `Trial` is what varies between independent
runs on it: the seed, the initial model, and the samples of each client.
"""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from depositum.data import Samples
from depositum.errors import ConfigError, listing, nearest, renamed_keys, short_repr
from depositum.layout import Layout
from depositum.problem.losses import Loss, as_loss
from depositum.problem.model_copy import copy_to_device
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
    """

    model: nn.Module
    loss: Loss
    train: Samples
    trials: tuple[Trial, ...]
    test: Samples | None = None
    regularizer: Regularizer = field(default_factory=Zero)
    beta: float = 0.0
    weighting: Weighting = "uniform"

    def __post_init__(self) -> None:
        for beta in (self.beta, *self.betas):
            if not (isfinite(beta) and beta >= 0):
                raise ConfigError("beta", f"{short_repr(beta)} given; it must be a number ≥ 0")
        choices = get_args(Weighting)
        for weighting in (self.weighting, *self.weightings):
            if weighting not in choices:
                allowed = f"{listing(choices)}{nearest(str(weighting), choices)}"
                raise ConfigError("weighting", f"{short_repr(weighting)} given; it can be {allowed}")
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
        return tuple(trial.weighting or self.weighting for trial in self.trials)

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
        """A copy of the model with the parameters of one row `[d]` and these buffers, on the CPU."""
        model = copy_to_device(self.model, torch.device("cpu"), row.dtype)
        state = {**self.layout.views(row), **buffers}
        with torch.no_grad():
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
                if name in state:  # frozen parameters are not in it
                    tensor.copy_(state[name])
        return model


def from_client_data(
    model: nn.Module,
    clients: Sequence[tuple[Tensor | np.ndarray, Tensor | np.ndarray]],
    *,
    seed: int = 0,
    loss: object = None,
    test: tuple[Tensor | np.ndarray, Tensor | np.ndarray] | None = None,
    regularizer: Regularizer | None = None,
    beta: float = 0.0,
    weighting: Weighting = "uniform",
) -> Problem:
    """A problem from a user-defined model and one (inputs, targets) pair per client.

    The parameters of the given model are the common start x_0. The default loss is cross-entropy for integer targets
    and the squared error for floating-point ones.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError("model", f"a {type(model).__name__} given; it must be a torch.nn.Module")
    if not isinstance(seed, int | np.integer) or not -(1 << 63) <= seed < 1 << 63:
        raise ConfigError("seed", f"{short_repr(seed)} given; it must be a whole number of at most 64 bits")
    if not isinstance(clients, Iterable):
        raise ConfigError(
            "clients", f"{short_repr(clients)} given; it must be a list of (inputs, targets), one per client"
        )
    samples = [_samples(pair, f"clients[{i}]") for i, pair in enumerate(clients)]
    if not samples:
        raise ConfigError("clients", "no client given; it must be a list of (inputs, targets), one per client")
    test_samples = _samples(test, "test") if test is not None else None
    for i, client_samples in enumerate(samples):
        _check_consistent(client_samples, samples[0], f"clients[{i}]")
    if test_samples is not None:
        _check_consistent(test_samples, samples[0], "test")
    train = Samples(torch.cat([s.inputs for s in samples]), torch.cat([s.targets for s in samples]))
    ends = np.cumsum([len(s.targets) for s in samples])
    parts = [np.arange(end - len(s.targets), end) for end, s in zip(ends, samples, strict=True)]
    if loss is None:
        loss = "mse" if train.targets.is_floating_point() else "cross-entropy"
    layout = Layout.of(model)
    start = layout.row({k: p.detach() for k, p in model.named_parameters()}) if layout.size else torch.empty(0)
    return Problem(
        model=copy.deepcopy(model),
        loss=as_loss(loss),  # type: ignore[arg-type]
        train=train,
        trials=(Trial(seed, start.clone(), parts),),
        test=test_samples,
        regularizer=regularizer or Zero(),
        beta=beta,
        weighting=weighting,
    )


def _samples(pair: tuple[Tensor | np.ndarray, Tensor | np.ndarray], key: str) -> Samples:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ConfigError(key, f"a {type(pair).__name__} given; it must be a pair (inputs, targets)")
    try:
        inputs, targets = (torch.as_tensor(part).detach() for part in pair)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(key, f"must be two arrays of numbers: {' '.join(str(error).split())}") from None
    for name, part in (("inputs", inputs), ("targets", targets)):
        if part.layout != torch.strided:
            raise ConfigError(key, f"{name} are sparse ({part.layout}); convert them with .to_dense()")
    if not (inputs.dim() and targets.dim()):
        raise ConfigError(key, "must be arrays of samples, not single numbers")
    if len(inputs) != len(targets):
        raise ConfigError(key, f"{len(inputs)} inputs but {len(targets)} targets")
    if len(inputs) == 0:
        raise ConfigError(key, "has no samples; every client needs at least one")
    for name, part in (("inputs", inputs), ("targets", targets)):
        if part.is_floating_point() and not torch.isfinite(part).all():
            bad = int((~torch.isfinite(part.flatten(1) if part.dim() > 1 else part[:, None])).any(1).nonzero()[0])
            raise ConfigError(key, f"{name} of sample {bad} are not finite")
    return Samples(inputs, targets if targets.is_floating_point() else targets.long())


def _check_consistent(samples: Samples, first: Samples, key: str) -> None:
    """Reject samples that differ from the first client's in shape, or in being integers or floating-point."""
    for name in ("inputs", "targets"):
        one, other = getattr(samples, name), getattr(first, name)
        if one.shape[1:] != other.shape[1:]:
            shapes = f"{tuple(one.shape[1:])} per sample, but those of clients[0] {tuple(other.shape[1:])}"
            raise ConfigError(key, f"{name} have shape {shapes}")
        if one.is_floating_point() != other.is_floating_point():
            raise ConfigError(key, f"{name} are {one.dtype}, but those of clients[0] are {other.dtype}")
