"""Base classes of methods with a stepsize α (for composite or smooth problems, with a server), and the state's start.

A server's method works in rounds of K = T0 local steps. A round starts from the server's model w^r, which is the
state's `x`: equal in all rows and unchanged until the exchange after the last local step. Every client has the same
weight 1/n (a weighting by samples is in the oracle). Where an equation has K·α, the code has `elapsed`, the sum of the
stepsizes α_t since the round began: it is K·α at the exchange, and remains correct if the stepsize changes with t.
"""

from dataclasses import dataclass

from depositum.algorithms.interface import Algorithm, RoundBased, State, Tensor
from depositum.algorithms.schedules import Constant, TunableStepsize, as_schedule, check_stepsize

#: Default stepsize.
DEFAULT_ALPHA = 0.05
#: Lower bound of scheduled stepsizes: many methods divide by α, and a step this small changes nothing.
MIN_ALPHA = 1e-30


@dataclass(frozen=True)
class StepsizeMethod(Algorithm):
    """Base class of methods with a stepsize α, which is also their prox step, if they have a prox.

    Parameters
    ----------
    alpha
        Stepsize α > 0, a schedule, or `"auto"`.
    """

    alpha: TunableStepsize = DEFAULT_ALPHA

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.automatic:
            check_stepsize(self)

    def stepsize(self, t: int) -> float:
        import torch

        return float(as_schedule(self.alpha).at(torch.tensor(t)))

    def largest_prox_step(self, period: int) -> float:
        return 0.0 if self.handles == "smooth" else self.largest_alpha

    @property
    def largest_alpha(self) -> float:
        """The largest stepsize over all iterations."""
        return as_schedule(self.alpha).largest

    def alpha_at(self, t: Tensor) -> float | Tensor:
        """Return α_t: a number if α is constant, else a float64 tensor computed from t on the device."""
        schedule = as_schedule(self.alpha)
        return schedule.value if isinstance(schedule, Constant) else schedule.at(t).clamp(min=MIN_ALPHA)

    def _alpha(self, s: State) -> float | Tensor:
        """Return α_t in the dtype of the state."""
        schedule = as_schedule(self.alpha)
        if isinstance(schedule, Constant):
            return schedule.value
        return schedule.at(s.t).clamp(min=MIN_ALPHA).to(s.x.dtype)


@dataclass(frozen=True)
class SmoothMethod(StepsizeMethod):
    """Base class of methods with a stepsize for smooth problems.

    Parameters
    ----------
    alpha
        Stepsize α > 0, a schedule, or `"auto"`.
    """

    handles = "smooth"


@dataclass(frozen=True)
class ServerMethod(StepsizeMethod, RoundBased):
    """Base class of methods whose clients take local gradient steps between exchanges with a server.

    Parameters
    ----------
    alpha
        Client stepsize α > 0, or a schedule.
    """

    server = True

    def vectors(self) -> int:
        return 1


def iteration_zero(x0: Tensor) -> Tensor:
    """Return the iteration t = 0 as a 0-dimensional int64 tensor on the device of the models."""
    return x0.new_zeros(()).long()


def zero_elapsed(x0: Tensor) -> Tensor:
    """Return an `elapsed` of 0 for each row, `[rows, 1]`: rows may have different stepsizes."""
    return x0.new_zeros(len(x0), 1)


def zeros_like(z: Tensor) -> Tensor:
    """`torch.zeros_like`, without importing torch."""
    return z.new_zeros(z.shape)
