"""DEPOSITUM on directed networks, and push-pull for smooth problems.

With R row-stochastic and C column-stochastic in an exchange, and the identity otherwise,

    φ^{t+1} = C φ^t,   φ^0 = 1
    x^{t+1} = R prox_h^{1/(αβ)}{ x^t − α y^t/φ^t }          (DI.1)
    ν^{t+1} = momentum of fresh gradients at x^{t+1}         (Update1), or (Update2) and (Update3)
    y^{t+1} = C ( y^t + ν^{t+1} − ν^t )                      (DI.2)

Since 1ᵀ C = 1ᵀ, J y^t = J ν^t at every t. C makes trackers unequal, y_i → n π_i ȳ with π the Perron vector of C, and φ
by the same factors, so that the ratios y_i/φ_i → ȳ agree: with the plain y_i, every client would take a step of its own
length, and the fixed point would be another one whenever h ≠ 0. On an undirected network R = C = W, φ = 1, and this is
DEPOSITUM. The ratio is that of SONATA (Y. Sun, G. Scutari, A. Daneshmand: "Distributed Optimization Based on Gradient
Tracking Revisited", SIAM J. Optim. 2022, arXiv 1905.02637).

Push-pull (S. Pu, W. Shi, J. Xu, A. Nedić: "Push–Pull Gradient Methods for Distributed Optimization in Networks", IEEE
TAC 2021) is for h = 0, where ȳ → 0 makes the ratio unnecessary:

    x^{t+1} = R ( x^t − α y^t ),   y^{t+1} = C ( y^t + g^{t+1} − g^t )          (PP.1)
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from depositum.algorithms.hyperparameters import check_interval
from depositum.algorithms.interface import ALGORITHMS, About, Mix, Oracle, Tensor
from depositum.algorithms.stepsize_methods import SmoothMethod, StepsizeMethod, iteration_zero


class DirectedState(NamedTuple):
    """The variables of (DI.1) and (DI.2), each `[rows, d]` except t and φ."""

    t: Tensor  # iteration
    x: Tensor  # models
    y: Tensor  # trackers of the sum of momentum estimates
    nu: Tensor  # momentum estimates
    phi: Tensor  # push-sum weights, [rows, 1]
    mu: Tensor | None = None  # Nesterov's inner momentum; None for Polyak


class PushPullState(NamedTuple):
    """The variables of (PP.1), each `[rows, d]` except t."""

    t: Tensor  # iteration
    x: Tensor  # models
    y: Tensor  # trackers of the sum of gradients
    g: Tensor  # gradients at x


@ALGORITHMS.register("depositum-directed")
@dataclass(frozen=True)
class DepositumDirected(StepsizeMethod):
    """DEPOSITUM with row- and column-stochastic weights and push-sum ratios.

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    gamma
        Momentum γ ∈ [0, 1); 0 disables it.
    momentum
        `"polyak"` or `"nesterov"`.
    start
        y^0: `"average"` is ḡ^0, synchronised once; `"local"` is g_i^0.
    ratio
        Whether (DI.1) has y/φ. `False`, with y, is for comparison: where C is not doubly stochastic, it converges to
        another point.
    """

    name = "depositum-directed"
    directed = True
    about = About(
        title="DEPOSITUM, directed",
        citation="Zhou, Shi, Li, Zhong, Wen, Cao: Decentralized Nonconvex Composite Federated Learning with Gradient "
        "Tracking and Momentum, arXiv 2504.12742; with the ratios of Sun, Scutari, Daneshmand: Distributed "
        "Optimization Based on Gradient Tracking Revisited, SIAM J. Optim. 2022",
        interval="T0",
        mixing="2",
        notes="Nothing is proven about it on directed networks: Theorem 1 needs a doubly stochastic W. Besides x and "
        "y, one number φ is sent there. On undirected networks it is DEPOSITUM.",
    )

    gamma: float = 0.5
    momentum: Literal["polyak", "nesterov"] = "polyak"
    start: Literal["average", "local"] = "average"
    ratio: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_interval("gamma", self.gamma, "[0, 1)")

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> DirectedState:
        g = oracle.grad(x0, oracle.sample())
        y = mix.average(g) if self.start == "average" else g
        mu = g if self.momentum == "nesterov" else None
        return DirectedState(t=iteration_zero(x0), x=x0, y=y, nu=g, phi=x0.new_ones(len(x0), 1), mu=mu)

    def step(self, s: DirectedState, oracle: Oracle, mix: Mix, kind: str) -> DirectedState:
        alpha, gamma = self._alpha(s), self.gamma
        x = mix.pull(oracle.prox(s.x - alpha * (s.y / s.phi), alpha))  # (DI.1)
        phi = mix.push_weights(s.phi) if self.ratio else s.phi
        g = oracle.grad(x, oracle.sample())
        if s.mu is None:
            mu, nu = None, gamma * s.nu + (1 - gamma) * g  # (Update1)
        else:
            mu = gamma * s.mu + (1 - gamma) * g  # (Update2)
            nu = gamma * mu + (1 - gamma) * g  # (Update3)
        y = mix.push(s.y + nu - s.nu)  # (DI.2)
        return DirectedState(t=s.t + 1, x=x, y=y, nu=nu, phi=phi, mu=mu)

    def vectors(self) -> int:
        return 2


@ALGORITHMS.register("push-pull")
@dataclass(frozen=True)
class PushPull(SmoothMethod):
    """Push-pull gradient tracking.

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    """

    name = "push-pull"
    directed = True
    estimate = "g"
    about = About(
        title="Push-pull",
        citation="Pu, Shi, Xu, Nedić: Push–Pull Gradient Methods for Distributed Optimization in Networks, IEEE "
        "Transactions on Automatic Control 2021",
        bounded_heterogeneity=False,
        mixing="2",
        notes="For directed networks. On undirected ones it is DSGT with form = 'second'.",
    )

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> PushPullState:
        g = oracle.grad(x0, oracle.sample())
        return PushPullState(t=iteration_zero(x0), x=x0, y=g, g=g)

    def step(self, s: PushPullState, oracle: Oracle, mix: Mix, kind: str) -> PushPullState:
        x = mix.pull(s.x - self._alpha(s) * s.y)
        g = oracle.grad(x, oracle.sample())
        return PushPullState(t=s.t + 1, x=x, y=mix.push(s.y + g - s.g), g=g)  # (PP.1)

    def vectors(self) -> int:
        return 2
