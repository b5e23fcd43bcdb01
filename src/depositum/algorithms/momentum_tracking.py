"""Momentum Tracking and heavy-ball gradient tracking: trackers of momentum, and momentum of trackers.

Y. Takezawa, H. Bao, K. Niwa, R. Sato, M. Yamada: "Momentum Tracking: Momentum Acceleration for Decentralized Deep
Learning on Heterogeneous Data", TMLR 2023. With W^t = W in an exchange and the identity otherwise,

    x^{t+1} = W^t x^t − α y^t
    u^{t+1} = b u^t + g^{t+1},   y^{t+1} = W^t y^t + u^{t+1} − u^t            (MT.1)
    u^0 = g^0 + b ( g^0 − ḡ^0 ) / (1 − b),   y^0 = ḡ^0                        synchronised once

The paper's variable is c = u − y after the step, mixed as c ← W(c − u) + u. The heavy ball u is not normalised: its α
is (1 − γ) times that of DEPOSITUM.

R. Xin, U. A. Khan: "Distributed Heavy-Ball: A Generalization and Acceleration of First-Order Methods with Gradient
Tracking", IEEE TAC 2020 (ABm, with one W for both matrices); J. Gao, X.-W. Liu, Y.-H. Dai, Y. Huang, J. Gu:
"Distributed Stochastic Gradient Tracking Methods with Momentum Acceleration for Non-Convex Optimization", COAP 2023
(DSGT-HB):

    abm:     x^{t+1} = W x^t − α y^t + b ( x^t − x^{t−1} ),   y^{t+1} = W y^t + g^{t+1} − g^t
    dsgt-hb: x^{t+1} = W^t ( x^t − α u^t ),   y^{t+1} = W^t ( y^t + g^{t+1} − g^t ),   u^{t+1} = b u^t + (1 − b) y^{t+1}

from y^0 = u^0 = g^0, x^{−1} = x^0. All have two vectors per communication and one gradient per iteration, and
J y^t = J u^t (Momentum Tracking) or J g^t at every t. ABm supports only period 1: with W^t for W its momentum repeats
each mixing, and with small α it diverges on a ring at T0 = 5.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from depositum.algorithms.hyperparameters import check_interval
from depositum.algorithms.interface import ALGORITHMS, About, Mix, Oracle, Tensor
from depositum.algorithms.stepsize_methods import SmoothMethod, iteration_zero


class MomentumTrackingState(NamedTuple):
    """The variables of (MT.1), each `[rows, d]` except t."""

    t: Tensor  # iteration
    x: Tensor  # models
    y: Tensor  # trackers of the average heavy ball
    u: Tensor  # heavy balls, not normalised


@ALGORITHMS.register("momentum-tracking")
@dataclass(frozen=True)
class MomentumTracking(SmoothMethod):
    """Momentum Tracking (MT.1).

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    b
        Momentum b ∈ [0, 1), not normalised: with a constant gradient the effective stepsize is α/(1 − b).
    """

    name = "momentum-tracking"
    about = About(
        title="Momentum Tracking",
        citation="Takezawa, Bao, Niwa, Sato, Yamada: Momentum Tracking: Momentum Acceleration for Decentralized Deep "
        "Learning on Heterogeneous Data, TMLR 2023",
        bounded_heterogeneity=False,
        mixing="2",
        notes="The released code adds a weight decay of 1e-3.",
    )

    b: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_interval("b", self.b, "[0, 1)")

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> MomentumTrackingState:
        g = oracle.grad(x0, oracle.sample())
        y = mix.average(g)
        return MomentumTrackingState(t=iteration_zero(x0), x=x0, y=y, u=g + self.b * (g - y) / (1 - self.b))

    def step(self, s: MomentumTrackingState, oracle: Oracle, mix: Mix, kind: str) -> MomentumTrackingState:
        x = mix(s.x) - self._alpha(s) * s.y
        u = self.b * s.u + oracle.grad(x, oracle.sample())
        y = mix(s.y) + u - s.u  # (MT.1)
        return MomentumTrackingState(t=s.t + 1, x=x, y=y, u=u)

    def vectors(self) -> int:
        return 2


class HeavyBallState(NamedTuple):
    """The variables of heavy-ball gradient tracking, each `[rows, d]` except t."""

    t: Tensor  # iteration
    x: Tensor  # models
    y: Tensor  # trackers of the average gradient
    g: Tensor  # gradients at x
    before: Tensor | None = None  # ABm: models of the previous iteration
    u: Tensor | None = None  # DSGT-HB: momentum of the tracker


@ALGORITHMS.register("heavy-ball-gt")
@dataclass(frozen=True)
class HeavyBallGT(SmoothMethod):
    """Gradient tracking with a heavy ball.

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    b
        Momentum b ∈ [0, 1).
    form
        `"abm"` has momentum on the models (period 1 only), `"dsgt-hb"` on the tracker, normalised.
    """

    name = "heavy-ball-gt"
    about = About(
        title="Heavy-ball gradient tracking",
        citation="Xin, Khan: Distributed Heavy-Ball: A Generalization and Acceleration of First-Order Methods with "
        "Gradient Tracking, IEEE Transactions on Automatic Control 2020; Gao, Liu, Dai, Huang, Gu: Distributed "
        "Stochastic Gradient Tracking Methods with Momentum Acceleration for Non-Convex Optimization, Computational "
        "Optimization and Applications 2023",
        bounded_heterogeneity=False,
        mixing="2",
        notes="form = 'abm' has no local steps: it diverges with W^t for W.",
    )
    estimate = "g"

    b: float = 0.5
    form: Literal["abm", "dsgt-hb"] = "abm"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_interval("b", self.b, "[0, 1)")

    @property
    def periods(self) -> tuple[int, ...] | None:
        """Only 1 for form "abm", which diverges with local steps; any for "dsgt-hb"."""
        return (1,) if self.form == "abm" else None

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> HeavyBallState:
        g = oracle.grad(x0, oracle.sample())
        start = HeavyBallState(t=iteration_zero(x0), x=x0, y=g, g=g)
        return start._replace(before=x0) if self.form == "abm" else start._replace(u=g)

    def step(self, s: HeavyBallState, oracle: Oracle, mix: Mix, kind: str) -> HeavyBallState:
        alpha, b = self._alpha(s), self.b
        if s.before is not None:
            x = mix(s.x) - alpha * s.y + b * (s.x - s.before)
            g = oracle.grad(x, oracle.sample())
            return HeavyBallState(t=s.t + 1, x=x, y=mix(s.y) + g - s.g, g=g, before=s.x)
        assert s.u is not None
        x = mix(s.x - alpha * s.u)
        g = oracle.grad(x, oracle.sample())
        y = mix(s.y + g - s.g)
        return HeavyBallState(t=s.t + 1, x=x, y=y, g=g, u=b * s.u + (1 - b) * y)

    def vectors(self) -> int:
        return 2
