"""DSMT: distributed stochastic momentum tracking, with loopless Chebyshev acceleration.

K. Huang, S. Pu, A. Nedić: "An Accelerated Distributed Stochastic Gradient Method with Momentum", 2024. With
Wb = (I + W)/2, λ2 its second largest eigenvalue, e0 = (1 − √(1 − λ2²))/(1 + √(1 − λ2²)), e = (1 + e0)/2 and b = √e,

    P = x^t − α y^t,  Q = x~^t − α y^t;                x^{t+1} = (1 + e) Wb P − e Q,  x~^{t+1} = P
    ν^{t+1} = b ν^t + (1 − b) g^{t+1}
    P = y^t + ν^{t+1} − ν^t,  Q = y~^t + ν^{t+1} − ν^t;  y^{t+1} = (1 + e) Wb P − e Q,  y~^{t+1} = P     (MT.2)

from ν^0 = y^0 = y~^0 = (1 − b) g^0, x~^0 = x^0. Two vectors per communication, one gradient per iteration, and
J y^t = J ν^t. The acceleration supports only period 1: with W^t for W it extrapolates in local steps and diverges.
Without it (x = W^t P, y = W^t P) this is DEPOSITUM with Polyak's momentum and h = 0, from that start.
"""

from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

from depositum.algorithms.exact_diffusion import half_lazy
from depositum.algorithms.hyperparameters import check_interval
from depositum.algorithms.interface import ALGORITHMS, About, Mix, Oracle, Tensor
from depositum.algorithms.stepsize_methods import SmoothMethod, iteration_zero


class DSMTState(NamedTuple):
    """The variables of (MT.2), each `[rows, d]` except t."""

    t: Tensor  # iteration
    x: Tensor  # models
    y: Tensor  # trackers of the average momentum estimate
    nu: Tensor  # momentum estimates
    x_shadow: Tensor | None = None  # x~, if accelerated
    y_shadow: Tensor | None = None  # y~, if accelerated


@ALGORITHMS.register("dsmt")
@dataclass(frozen=True)
class DSMT(SmoothMethod):
    """Distributed stochastic momentum tracking (MT.2).

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    b
        Momentum b ∈ [0, 1); None uses the paper's √e, which depends only on the network.
    chebyshev
        Whether mixing is accelerated (period 1 only). If not, W itself is used, with any period.
    """

    name = "dsmt"
    about = About(
        title="DSMT",
        citation="Huang, Pu, Nedić: An Accelerated Distributed Stochastic Gradient Method with Momentum, 2024",
        bounded_heterogeneity=False,
        mixing="2",
        notes="Without chebyshev it is 'depositum' with Polyak's momentum, h = 0, from nu = y = (1 − b) g.",
    )

    b: float | None = None
    chebyshev: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.b is not None:
            check_interval("b", self.b, "[0, 1)")

    @property
    def periods(self) -> tuple[int, ...] | None:
        """Only 1 with accelerated mixing, which diverges with local steps; otherwise any."""
        return (1,) if self.chebyshev else None

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> DSMTState:
        nu = (1 - self._momentum(mix)) * oracle.grad(x0, oracle.sample())
        start = DSMTState(t=iteration_zero(x0), x=x0, y=nu, nu=nu)
        return start._replace(x_shadow=x0, y_shadow=nu) if self.chebyshev else start

    def step(self, s: DSMTState, oracle: Oracle, mix: Mix, kind: str) -> DSMTState:
        b, move = self._momentum(mix), self._alpha(s) * s.y
        x, x_shadow = self._mix(mix, s.x, s.x_shadow, -move)
        nu = b * s.nu + (1 - b) * oracle.grad(x, oracle.sample())
        y, y_shadow = self._mix(mix, s.y, s.y_shadow, nu - s.nu)
        return DSMTState(t=s.t + 1, x=x, y=y, nu=nu, x_shadow=x_shadow, y_shadow=y_shadow)

    def vectors(self) -> int:
        return 2

    def _mix(self, mix: Mix, z: Tensor, shadow: Tensor | None, change: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return z and its shadow after adding a change and mixing (MT.2); W only, if there is no shadow."""
        p = z + change
        if shadow is None:
            return mix(p), None
        e = extrapolation(mix)
        return (1 + e) * half_lazy(mix, p) - e * (shadow + change), p

    def _momentum(self, mix: Mix) -> float:
        return sqrt(extrapolation(mix)) if self.b is None else self.b


def extrapolation(mix: Mix) -> float:
    """Return e of (MT.2), from the second largest eigenvalue of (I + W)/2."""
    lam2 = (1 + mix.lam2) / 2
    root = sqrt(1 - lam2**2)
    return (1 + (1 - root) / (1 + root)) / 2
