"""What methods with one stepsize share: α, a number or a schedule, and h = 0 unless they say otherwise."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from depositum.algorithms.base import Algorithm, State
from depositum.algorithms.schedules import Constant, Stepsize, as_schedule
from depositum.errors import ConfigError, listing


@dataclass(frozen=True)
class GradientMethod(Algorithm):
    """Base of methods for smooth problems that step by α.

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    """

    handles: ClassVar[Literal["smooth", "convex", "weakly convex"]] = "smooth"

    alpha: Stepsize = 0.05

    def __post_init__(self) -> None:
        as_schedule(self.alpha)

    def stepsize(self, t: int) -> float:
        return float(as_schedule(self.alpha).at(torch.tensor(t)))

    def _alpha(self, s: State) -> float | Tensor:
        """α_t: a number where it is constant, else a tensor computed from t on the device."""
        schedule = as_schedule(self.alpha)
        return schedule.value if isinstance(schedule, Constant) else schedule.at(s.t).to(s.x.dtype)


def check_choice(key: str, value: str, allowed: Sequence[str]) -> None:
    """Refuse an option that is none of the allowed ones."""
    if value not in allowed:
        raise ConfigError(f"algorithm.{key}", f"{value!r} given; it can be {listing(allowed)}")


def check_fraction(key: str, value: float) -> None:
    """Refuse a momentum outside [0, 1)."""
    if not 0 <= value < 1:
        raise ConfigError(f"algorithm.{key}", f"{value!r} given; it must lie in [0, 1)")


def iteration_zero(x0: Tensor) -> Tensor:
    """T = 0, as a tensor on the device of the models."""
    return torch.zeros((), dtype=torch.int64, device=x0.device)
