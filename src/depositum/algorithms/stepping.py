"""What methods with a stepsize share: α, a number or a schedule; and the checks of hyper-parameters."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from depositum.algorithms.base import Algorithm, State
from depositum.algorithms.schedules import Constant, Stepsize, as_schedule
from depositum.errors import ConfigError, is_integer, is_number, listing

#: A schedule that ends at 0 ends with this for the methods, of which many divide by it: a step that moves nothing.
LEAST = 1e-30


@dataclass(frozen=True)
class Stepping(Algorithm):
    """Base of methods that step by α, which is also the step of their prox where they have one.

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    """

    alpha: Stepsize = 0.05

    def __post_init__(self) -> None:
        as_schedule(self.alpha)

    def stepsize(self, t: int) -> float:
        return float(as_schedule(self.alpha).at(torch.tensor(t)))

    def largest_prox_step(self, period: int) -> float:
        return 0.0 if self.handles == "smooth" else as_schedule(self.alpha).largest

    def alpha_at(self, t: Tensor) -> float | Tensor:
        """α_t: a number where it is constant, else a tensor computed from t on the device."""
        schedule = as_schedule(self.alpha)
        return schedule.value if isinstance(schedule, Constant) else schedule.at(t).clamp(min=LEAST)

    def _alpha(self, s: State) -> float | Tensor:
        """α_t in the dtype of the state."""
        alpha = self.alpha_at(s.t)
        return alpha.to(s.x.dtype) if isinstance(alpha, Tensor) else alpha


@dataclass(frozen=True)
class GradientMethod(Stepping):
    """Base of methods for smooth problems that step by α.

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    """

    handles: ClassVar[Literal["smooth", "convex", "weakly convex"]] = "smooth"


def check_positive(key: str, value: float) -> None:
    """Refuse a hyper-parameter that is not a finite number > 0."""
    if not (is_number(value) and math.isfinite(value) and value > 0):
        raise ConfigError(f"algorithm.{key}", f"{value!r} given; it must be a number > 0")


def check_nonnegative(key: str, value: float) -> None:
    """Refuse a hyper-parameter that is not a finite number ≥ 0."""
    if not (is_number(value) and math.isfinite(value) and value >= 0):
        raise ConfigError(f"algorithm.{key}", f"{value!r} given; it must be a number ≥ 0")


def check_count(key: str, value: int) -> None:
    """Refuse a number of things below 1."""
    if not is_integer(value) or value < 1:
        raise ConfigError(f"algorithm.{key}", f"{value!r} given; it must be a whole number ≥ 1")


def check_choice(key: str, value: str, allowed: Sequence[str]) -> None:
    """Refuse an option that is none of the allowed ones."""
    if value not in allowed:
        raise ConfigError(f"algorithm.{key}", f"{value!r} given; it can be {listing(allowed)}")


def check_fraction(key: str, value: float) -> None:
    """Refuse a momentum outside [0, 1)."""
    if not (is_number(value) and 0 <= value < 1):
        raise ConfigError(f"algorithm.{key}", f"{value!r} given; it must lie in [0, 1)")


def check_share(key: str, value: float) -> None:
    """Refuse a weight outside (0, 1]."""
    if not (is_number(value) and 0 < value <= 1):
        raise ConfigError(f"algorithm.{key}", f"{value!r} given; it must lie in (0, 1]")


def iteration_zero(x0: Tensor) -> Tensor:
    """The iteration t = 0, as a tensor on the device of the models."""
    return torch.zeros((), dtype=torch.int64, device=x0.device)
