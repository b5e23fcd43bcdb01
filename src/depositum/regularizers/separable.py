"""Regularizers that are a sum over coordinates: h(x) = Σ_j η(x_j)."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from depositum.regularizers.regularizer import Regularizer, Step, check_parameter, norm


class Separable(Regularizer):
    """A sum over coordinates of the same function η, which a subclass defines."""

    separable = True

    @abstractmethod
    def terms(self, x: Tensor) -> Tensor:
        """η of each coordinate, `[..., d]`."""

    @abstractmethod
    def interval(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The two ends of the interval ∂η of each coordinate, `[..., d]` each; the empty set is (∞, −∞)."""

    def value(self, x: Tensor) -> Tensor:
        return self.terms(x).sum(-1)

    def subdifferential_distance(self, x: Tensor, v: Tensor) -> Tensor:
        low, high = self.interval(x)
        return norm(torch.relu(low - v) + torch.relu(v - high))


def soft_threshold(z: Tensor, threshold: Step) -> Tensor:
    """sign(z) max(|z| − threshold, 0), with exact zeros, and exactly z for a threshold of 0."""
    if not isinstance(threshold, Tensor):
        threshold = min(threshold, torch.finfo(z.dtype).max)  # clamp refuses numbers that z could not hold
    return z - torch.clamp(z, -threshold, threshold)  # type: ignore[arg-type]  # two numbers or two tensors


def even_interval(x: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """∂η for an even η with derivative `slope` at |x|: [−slope, slope] at x = 0, a single number elsewhere."""
    derivative = torch.where(x.isnan(), x, torch.sign(x) * slope)  # the sign of NaN is 0
    return torch.where(x == 0, -slope, derivative), torch.where(x == 0, slope, derivative)


@dataclass(frozen=True)
class Zero(Separable):
    """h = 0: no regularizer."""

    def terms(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def _prox(self, z: Tensor, tau: Step) -> Tensor:
        return z

    def interval(self, x: Tensor) -> tuple[Tensor, Tensor]:
        zero = torch.zeros_like(x)
        return zero, zero


@dataclass(frozen=True)
class L1(Separable):
    """h(x) = Σ|x_j|, which promotes sparsity.

    >>> L1().prox(torch.tensor([3.0, -0.5]), 1.0)
    tensor([2., 0.])
    """

    def terms(self, x: Tensor) -> Tensor:
        return x.abs()

    def _prox(self, z: Tensor, tau: Step) -> Tensor:
        return soft_threshold(z, tau)

    def interval(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return even_interval(x, torch.ones_like(x))


@dataclass(frozen=True)
class SquaredL2(Separable):
    """h(x) = ‖x‖²/2, the ridge penalty."""

    def terms(self, x: Tensor) -> Tensor:
        return x.square() / 2

    def _prox(self, z: Tensor, tau: Step) -> Tensor:
        return z / (1 + tau)

    def interval(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


@dataclass(frozen=True)
class ElasticNet(Separable):
    """h(x) = ‖x‖₁ + k/2 ‖x‖².

    Parameters
    ----------
    k
        Weight of the ridge penalty, k ≥ 0; with k = 0 this is `L1`.
    """

    k: float = 1.0

    def __post_init__(self) -> None:
        check_parameter(self, "k", at_least=0)

    def terms(self, x: Tensor) -> Tensor:
        return x.abs() + self.k / 2 * x.square()

    def _prox(self, z: Tensor, tau: Step) -> Tensor:
        return soft_threshold(z, tau) / (1 + self.k * tau)

    def interval(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return even_interval(x, 1 + self.k * x.abs())
