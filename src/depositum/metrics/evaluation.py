"""What is recorded at an evaluation: cheap measures every time, costly ones at a stride of their own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from depositum.algorithms import State
from depositum.errors import ConfigError, is_integer, is_number
from depositum.metrics import measures
from depositum.problem import Oracle, Problem, constants

#: Columns of the history that are measures of a state, in order (docs/metrics.md says what each is); first those that
#: read the training data.
TRAINING = ("train_loss", "phi")
CHEAP = (*TRAINING, "test_loss", "test_accuracy", "consensus_x", "consensus_y", "sparsity")
#: Of a language model: "perplexity:overall", all test tokens pooled, and one of each category.
PERPLEXITY, OVERALL = "perplexity:", "overall"
#: Why processes cannot measure L.
NOT_AMONG_PROCESSES = "'measure' given, but no process has all the data to measure it on; give a number"
COSTLY = ("stationarity", "gradient_error", "s", "client_accuracy_mean", "client_accuracy_worst", "zeta2")


@dataclass(frozen=True)
class Evaluations:
    """Which iterations are evaluated: t = 0, every so many from `start` on, and the last.

    Attributes
    ----------
    every
        Iterations between evaluations.
    start
        The first after t = 0 (0: a whole stride). With 1, and a stride of whole phases, it is right after an exchange.
    """

    every: int = 10
    start: int = 0

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ConfigError("run.evaluate_every", f"{self.every} given; it must be a whole number ≥ 1")
        if not 0 <= self.start < self.every:
            raise ConfigError(
                "run.evaluate_from",
                f"{self.start} given; it must be a whole number from 0 to run.evaluate_every − 1 = {self.every - 1}",
            )

    def due(self, t: int, every: int | None = None) -> bool:
        """Whether t is evaluated even if it is not the last; with `every`, by a measure that has this stride."""
        return t == 0 or (t - self.start) % (self.every if every is None else every) == 0

    def left(self, t: int) -> int:
        """Iterations from t to the next evaluation after it."""
        return self.every - (t - self.start) % self.every


@dataclass(frozen=True)
class MetricSettings:
    """Which measures, how often.

    Attributes
    ----------
    costly_every
        Iterations between evaluations of the costly measures (each needs gradients over all data); 0 is never.
    alpha
        The α of G^α; None is the algorithm's own.
    smoothness
        L, for the stationarity measure s of Definition 3; `"measure"`: found on the data first; None leaves s empty.
    train_every
        Iterations between evaluations of the training loss, which reads all the training data; None is at every
        evaluation, 0 never.
    """

    costly_every: int = 0
    alpha: float | None = None
    smoothness: float | Literal["measure"] | None = None
    train_every: int | None = None

    def __post_init__(self) -> None:
        for key, every in self._strides:
            if not is_integer(every):
                raise ConfigError(f"metrics.{key}", f"{every!r} given; it must be a whole number ≥ 0 (0: never)")
            if every < 0:
                raise ConfigError(f"metrics.{key}", f"{every} given; it must be ≥ 0 (0: never)")
        for key, value, other in (("alpha", self.alpha, ""), ("smoothness", self.smoothness, " or 'measure'")):
            if value is None or (other and value == "measure"):
                continue
            if isinstance(value, str) or not (is_number(value) and value > 0):
                raise ConfigError(f"metrics.{key}", f"{value!r} given; it must be a number > 0{other}")

    @property
    def _strides(self) -> list[tuple[str, int]]:
        """The strides that are set, by their keys."""
        strides = {"costly_every": self.costly_every, "train_every": self.train_every}
        return [(key, every) for key, every in strides.items() if every is not None]

    def check(self, evaluations: Evaluations) -> None:
        """Refuse strides at which there is not always an evaluation."""
        for key, every in self._strides:
            if every % evaluations.every:
                multiple = f"a multiple of run.evaluate_every = {evaluations.every} (0: never)"
                raise ConfigError(f"metrics.{key}", f"{every} given; it must be {multiple}")

    def smoothness_of(self, oracle: Oracle) -> dict[int, float]:
        """L of each trial, by its label: as it is given, or measured on the data of all its clients; none at all."""
        labels = oracle.problem.labels
        if self.smoothness is None:
            return {}
        if self.smoothness != "measure":
            return dict.fromkeys(labels, self.smoothness)
        if len(oracle.clients) < oracle.problem.n:
            raise ConfigError("metrics.smoothness", NOT_AMONG_PROCESSES)
        return dict(zip(labels, constants.smoothness_of_trials(oracle), strict=True))

    def costly_at(self, t: int, last: bool, evaluations: Evaluations) -> bool:
        """Whether an evaluation at t has the costly measures."""
        return self.costly_every > 0 and (last or evaluations.due(t, self.costly_every))

    def train_at(self, t: int, last: bool, evaluations: Evaluations) -> bool:
        """Whether an evaluation at t has the training loss."""
        every = self.train_every
        return every is None or (every > 0 and (last or evaluations.due(t, every)))


def cheap(state: State, oracle: Oracle, train: bool = True) -> dict[str, Tensor]:
    """Loss, objective, accuracy of the averaged model; consensus errors; sparsity. Each `[S]`.

    Without `train`, nothing that reads the training data.
    """
    trials, problem = oracle.trials, oracle.problem
    mean = measures.mean_model(state.x, trials)
    buffers = oracle.average_buffers()
    out = {}
    if train:
        loss, _ = oracle.evaluate(mean, buffers, "train")
        out = {"train_loss": loss, "phi": loss + _regularization(mean, problem)}
    if oracle.test is not None:
        out |= with_perplexities(oracle.evaluate_test(mean, buffers), problem)
    out["consensus_x"] = measures.consensus(state.x, trials)
    y = getattr(state, "y", None)
    if y is not None:
        out["consensus_y"] = measures.consensus(y, trials)
    out["sparsity"] = measures.sparsity(state.x, trials)
    return out


def with_perplexities(tested: dict[str, Tensor], problem: Problem) -> dict[str, Tensor]:
    """Measures of the test data; where losses are of tokens, with e to the mean of all, and of each category's.

    Of other losses, what is known of categories is left out.
    """
    losses = {OVERALL: tested["test_loss"]}
    losses |= {key.partition(":")[2]: tested.pop(key) for key in list(tested) if key.startswith("test_loss:")}
    if problem.loss.terms is not None:
        tested |= {PERPLEXITY + name: loss.exp() for name, loss in losses.items()}
    return tested


def _regularization(mean: Tensor, problem: Problem) -> Tensor | float:
    """βh of each trial's averaged model, `[S]`; where β = 0 it is 0, even if h is not finite."""
    if not any(problem.betas):
        return 0.0
    h = problem.regularizer.value(mean)
    beta = torch.tensor(problem.betas, dtype=h.dtype, device=h.device)
    return torch.where(beta > 0, beta * h, 0.0)


def costly(
    state: State, oracle: Oracle, alpha: float | Tensor | None, smoothness: Sequence[float], estimate: str = "nu"
) -> dict[str, Tensor]:
    """‖G^α(x)‖², gradient-estimation error, s, ζ² at x̄, per-client accuracy. Each `[S]`.

    `alpha` is one number, or one per row `[rows, 1]`; `smoothness` is L of each trial, or nothing. `estimate` names
    the state's variable that estimates the
    gradient, where it has one.
    """
    trials, n, x = oracle.trials, oracle.problem.n, state.x
    out: dict[str, Tensor] = {}
    if alpha is not None:
        mapping = proximal_gradient_mapping(x, oracle.global_grad(x), oracle, alpha)
        out["stationarity"] = measures.stationarity(mapping, trials)
    nu = getattr(state, estimate, None)
    if nu is not None:
        out["gradient_error"] = measures.estimation_error(oracle.full_grad(x), nu, trials)
    if smoothness and "stationarity" in out and "gradient_error" in out:
        out["s"] = measures.of_theorem(
            out["stationarity"], measures.consensus(x, trials), out["gradient_error"], n, smoothness
        )
    if oracle.test is not None:
        _, accuracy = oracle.evaluate(x, oracle.buffers, "test")
        clients = accuracy.view(trials, -1)
        out["client_accuracy_mean"], out["client_accuracy_worst"] = clients.mean(1), clients.amin(1)
    mean = measures.mean_model(x, trials).repeat_interleave(n, 0)
    out["zeta2"] = measures.heterogeneity(oracle.full_grad(mean), trials)
    return out


def proximal_gradient_mapping(x: Tensor, direction: Tensor, oracle: Oracle, alpha: float | Tensor) -> Tensor:
    """G^α(x, y) = (x − prox_h^{1/(αβ)}{x − α y}) / α (Definition 2), row by row."""
    return (x - oracle.prox(x - alpha * direction, alpha)) / alpha


def record(values: dict[str, Tensor], trials: int) -> list[dict[str, Any]]:
    """One dictionary of plain numbers per trial, in one transfer from the device."""
    if not values:
        return [{} for _ in range(trials)]
    table = torch.stack([v.to(torch.float64) for v in values.values()]).T.tolist()
    return [dict(zip(values, row, strict=True)) for row in table]
