"""What methods with a server share: rounds of K = T0 local steps, a client stepsize, and one model in all rows.

A round starts from the server's model w^r, which is the state's `x`: equal in all rows and unchanged until the round's
last step ends with the exchange. Every client has the same weight 1/n (a weighting by samples lives in the oracle).
Where an equation has K·α, the code has `elapsed`, the sum of the client steps α_t since the round began, which is K·α
at the exchange and stays right for a stepsize that changes with t.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from depositum.algorithms.base import RoundBased
from depositum.algorithms.schedules import Constant, Stepsize, as_schedule
from depositum.errors import ConfigError, listing


@dataclass(frozen=True)
class ServerMethod(RoundBased):
    """Base of the methods whose clients take gradient steps of their own between visits to the server.

    Parameters
    ----------
    alpha
        Client stepsize α > 0, or a schedule.
    """

    server: ClassVar[bool] = True
    #: The hyper-parameter that its largest prox step hangs on, and how that step comes about, for messages.
    prox_key: ClassVar[str] = "alpha"
    prox_formula: ClassVar[str] = "α"

    alpha: Stepsize = 0.05

    def __post_init__(self) -> None:
        as_schedule(self.alpha)

    def vectors(self) -> int:
        return 1

    def stepsize(self, t: int) -> float:
        return float(as_schedule(self.alpha).at(torch.tensor(t)))

    def alpha_at(self, t: Tensor) -> float | Tensor:
        """α_t: a number where it is constant, else a tensor computed from t on the device."""
        schedule = as_schedule(self.alpha)
        return schedule.value if isinstance(schedule, Constant) else schedule.at(t)

    def check(self, period: int, *, composite: bool, prox_modulus: float) -> None:
        step = self.largest_prox_step(period)
        if self.handles == "weakly convex" and step * prox_modulus >= 1:
            raise ConfigError(
                f"algorithm.{self.prox_key}",
                f"{self.name!r} with T0 = {period} takes a prox step of {self.prox_formula} = {step:g}, but the prox "
                f"is single-valued only for steps < 1/(βρ) = {1 / prox_modulus:g}; change {self.prox_key}, or take "
                "a smaller beta",
            )
        super().check(period, composite=composite, prox_modulus=prox_modulus)


def largest_alpha(method: ServerMethod) -> float:
    """The largest client stepsize that a method ever takes."""
    return as_schedule(method.alpha).largest


def start_clock(x0: Tensor) -> tuple[Tensor, Tensor]:
    """Iteration t = 0 and an elapsed step of 0, without dimension; the latter float64 whatever the models are."""
    return (
        torch.zeros((), dtype=torch.int64, device=x0.device),
        torch.zeros((), dtype=torch.float64, device=x0.device),
    )


def require_positive(key: str, value: float) -> None:
    """Refuse a hyper-parameter that is not a finite number > 0."""
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"algorithm.{key}", f"{value!r} given; it must be a number > 0")


def require_momentum(gamma: float) -> None:
    """Refuse a momentum outside [0, 1)."""
    if not 0 <= gamma < 1:
        raise ConfigError("algorithm.gamma", f"{gamma!r} given; it must lie in [0, 1)")


def require_choice(key: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuse a form of a method that it does not have."""
    if value not in allowed:
        raise ConfigError(f"algorithm.{key}", f"{value!r} given; it can be {listing(allowed)}")
