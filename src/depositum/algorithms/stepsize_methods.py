"""Base classes of methods with a stepsize α (for composite or smooth problems, with a server), and the state's start.

A server's method works in rounds of K = T0 local steps. A round starts from the server's model w^r, which is the
state's `x`: equal in all rows and unchanged until the exchange after the last local step. Where an equation has K·α,
the code has `elapsed`, the sum of the stepsizes α_t since the round began: it is K·α at the exchange, and remains
correct if the stepsize changes with t.

If clients are weighted by their samples, `mean_i` and g_i in the equations have one of two forms, never both. By
default the oracle has the weights: g_i is n N_i/N times client i's gradient, and every client has the weight 1/n at the
server. With `server_weights = "samples"`, g_i is client i's gradient, and its weight at the server is N_i/N.
"""

from dataclasses import dataclass, field
from typing import Literal

from depositum.algorithms.interface import Algorithm, Mix, Oracle, RoundBased, State, Tensor
from depositum.algorithms.schedules import Constant, TunableStepsize, as_schedule, check_stepsize
from depositum.errors import ConfigError

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
class ServerRounds(RoundBased):
    """Base class of methods that work in rounds with a server, and of where their clients are weighted.

    Parameters
    ----------
    server_weights
        Where clients are weighted by their samples, if the problem weights them so: `"uniform"` in their gradients
        (the averages at the server are uniform), `"samples"` in the averages (as in released code).
    """

    server = True
    clocks = ("elapsed",)

    server_weights: Literal["uniform", "samples"] = field(default="uniform", kw_only=True)

    def gradient(self, x: Tensor, oracle: Oracle) -> Tensor:
        """Return g_i(x_i) with a new mini-batch, `[rows, d]`."""
        g = oracle.grad(x, oracle.sample())
        return g / oracle.weights if self.server_weights == "samples" else g

    def average(self, z: Tensor, oracle: Oracle, mix: Mix) -> Tensor:
        """Return mean_i z_i over the clients of the round at the server, in every row."""
        if self.server_weights != "samples":
            return mix.average(z)
        mean = mix.average(oracle.weights * z)
        return mean if mix.share == 1 else mean / mix.average(oracle.weights)  # of a cohort, the weights' mean is not 1

    def change_of_mean(self, change: Tensor, oracle: Oracle, mix: Mix) -> Tensor:
        """Return by how much the mean over all clients changes if z_i changes for those of the round, in every row."""
        return mix.share * mix.average(oracle.weights * change if self.server_weights == "samples" else change)


@dataclass(frozen=True)
class ServerMethod(StepsizeMethod, ServerRounds):
    """Base class of methods whose clients take local gradient steps between exchanges with a server.

    Parameters
    ----------
    alpha
        Client stepsize α > 0, or a schedule.
    server_weights
        Where clients are weighted by their samples: see `ServerRounds`.
    """

    def vectors(self) -> int:
        return 1


def check_server_weights(method: Algorithm, weighting: str) -> None:
    """Refuse weights by samples at the server for a problem whose clients have equal weights."""
    if getattr(method, "server_weights", "uniform") == "samples" and weighting != "samples":
        raise ConfigError(
            "server_weights",
            f"'samples' given, but weighting is {weighting!r}; with weighting = 'samples' it says that the server's "
            "averages have these weights instead of the clients' gradients",
        )


def iteration_zero(x0: Tensor) -> Tensor:
    """Return the iteration t = 0 as a 0-dimensional int64 tensor on the device of the models."""
    return x0.new_zeros(()).long()


def zero_elapsed(x0: Tensor) -> Tensor:
    """Return an `elapsed` of 0 for each row, `[rows, 1]`: rows may have different stepsizes."""
    return x0.new_zeros(len(x0), 1)


def zeros_like(z: Tensor) -> Tensor:
    """`torch.zeros_like`, without importing torch."""
    return z.new_zeros(z.shape)
