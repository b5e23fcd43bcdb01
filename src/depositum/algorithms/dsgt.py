"""DSGT: distributed stochastic gradient tracking.

S. Pu, A. Nedić: "Distributed Stochastic Gradient Tracking Methods", Mathematical Programming 2021. With W^t = W in an
exchange and the identity otherwise,

    x^{t+1} = W^t ( x^t − α y^t )
    atc:    y^{t+1} = W^t y^t + g^{t+1} − g^t            (SG.1)
    second: y^{t+1} = W^t ( y^t + g^{t+1} − g^t )        (SG.2)

from y_i^0 = g_i^0. Two vectors per communication, one gradient per iteration; J y^t = J g^t at every t. The two forms
differ in exchanges only. With full gradients both are exact, at T0 = 1 and 5; with local steps (T0 > 1) take (SG.2),
which settles faster there.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor

from depositum.algorithms.base import ALGORITHMS, About, Mix, Oracle
from depositum.algorithms.stepping import GradientMethod, check_choice, iteration_zero


class DSGTState(NamedTuple):
    """Models and trackers, each `[rows, d]` but t."""

    t: Tensor  # iteration
    x: Tensor  # models
    y: Tensor  # trackers of the average gradient
    g: Tensor  # gradients at x


@ALGORITHMS.register("dsgt")
@dataclass(frozen=True)
class DSGT(GradientMethod):
    """Distributed stochastic gradient tracking.

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    form
        `"atc"` mixes the tracker alone (SG.1), `"second"` the tracker with its new difference (SG.2), the one to take
        with local steps.
    """

    name: ClassVar[str] = "dsgt"
    about: ClassVar[About] = About(
        title="DSGT",
        citation="Pu, Nedić: Distributed Stochastic Gradient Tracking Methods, Mathematical Programming 2021",
        bounded_heterogeneity=False,
        mixing="2",
        notes="With local steps (period > 1) take form = 'second'. DEPOSITUM with h = 0, gamma = 0 and start = 'local' "
        "is form = 'second'.",
    )
    estimate: ClassVar[str] = "g"

    form: Literal["atc", "second"] = "atc"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("form", self.form, ("atc", "second"))

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
