"""DSGT: distributed stochastic gradient tracking.

S. Pu, A. Nedić: "Distributed Stochastic Gradient Tracking Methods", Mathematical Programming 2021. With W^t = W in an
exchange and the identity otherwise,

    x^{t+1} = W^t ( x^t − α y^t )
    atc:    y^{t+1} = W^t y^t + g^{t+1} − g^t            (SG.1)
    second: y^{t+1} = W^t ( y^t + g^{t+1} − g^t )        (SG.2)

from y_i^0 = g_i^0. Two vectors per communication, one gradient per iteration; J y^t = J g^t at every t. The two forms
differ in exchanges only. With full gradients both are exact, at T0 = 1 and 5; with local steps (T0 > 1) prefer (SG.2),
which converges faster there.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from depositum.algorithms.interface import ALGORITHMS, About, Mix, Oracle, Tensor
from depositum.algorithms.stepsize_methods import SmoothMethod, iteration_zero


class DSGTState(NamedTuple):
    """The variables of (SG.1) and (SG.2), each `[rows, d]` except t."""

    t: Tensor  # iteration
    x: Tensor  # models
    y: Tensor  # trackers of the average gradient
    g: Tensor  # gradients at x


@ALGORITHMS.register("dsgt")
@dataclass(frozen=True)
class DSGT(SmoothMethod):
    """Distributed stochastic gradient tracking.

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    form
        `"atc"` mixes the previous tracker only (SG.1); `"second"` also the new gradient difference (SG.2), which is
        preferable with local steps.
    """

    name = "dsgt"
    about = About(
        title="DSGT",
        citation="Pu, Nedić: Distributed Stochastic Gradient Tracking Methods, Mathematical Programming 2021",
        bounded_heterogeneity=False,
        mixing="2",
        notes="With local steps (period > 1) prefer form = 'second', which is DEPOSITUM with h = 0, gamma = 0 and "
        "start = 'local'.",
    )
    estimate = "g"

    form: Literal["atc", "second"] = "atc"

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> DSGTState:
        g = oracle.grad(x0, oracle.sample())
        return DSGTState(t=iteration_zero(x0), x=x0, y=g, g=g)

    def step(self, s: DSGTState, oracle: Oracle, mix: Mix, kind: str) -> DSGTState:
        x = mix(s.x - self._alpha(s) * s.y)
        g = oracle.grad(x, oracle.sample())
        y = mix(s.y) + g - s.g if self.form == "atc" else mix(s.y + g - s.g)  # (SG.1), (SG.2)
        return DSGTState(t=s.t + 1, x=x, y=y, g=g)

    def vectors(self) -> int:
        return 2
