"""DEPOSITUM: decentralized federated proximal stochastic gradient tracking with momentum.

Y. Zhou, X. Shi, X. Li, J. Zhong, G. Wen, J. Cao: "Decentralized Nonconvex Composite Federated Learning with Gradient
Tracking and Momentum", Algorithm 1. With W^t = W for t ∈ {0, T0, 2T0, …} and the identity otherwise,

    x^{t+1} = W^t prox_h^{1/(αβ)}{ x^t − α y^t }            (Update4)
    g^{t+1} = fresh mini-batch gradients at x^{t+1}
    Polyak:   ν^{t+1} = γ ν^t + (1−γ) g^{t+1}               (Update1)
    Nesterov: μ^{t+1} = γ μ^t + (1−γ) g^{t+1}               (Update2)
              ν^{t+1} = γ μ^{t+1} + (1−γ) g^{t+1}           (Update3)
    y^{t+1} = W^t ( y^t + ν^{t+1} − ν^t )                   (Update5)

from x_i^0 = x_0, μ_i^0 = ν_i^0 = g_i^0, y_i^0 = ḡ^0. Two vectors per communication, one gradient per iteration.
Since J W^t = J, J y^t = J ν^t at every t, for every `start` below.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from depositum.algorithms.hyperparameters import check_interval
from depositum.algorithms.interface import ALGORITHMS, About, Mix, Oracle, Tensor
from depositum.algorithms.stepsize_methods import StepsizeMethod, iteration_zero


class DepositumState(NamedTuple):
    """The variables of Algorithm 1, each `[rows, d]` except t."""

    t: Tensor  # iteration
    x: Tensor  # models
    y: Tensor  # trackers of the average momentum estimate
    nu: Tensor  # momentum estimates
    mu: Tensor | None = None  # Nesterov's inner momentum; None for Polyak


@ALGORITHMS.register("depositum")
@dataclass(frozen=True)
class Depositum(StepsizeMethod):
    """Algorithm 1 of the paper.

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    gamma
        Momentum γ ∈ [0, 1); 0 disables it.
    momentum
        `"polyak"` or `"nesterov"`.
    start
        y^0: `"average"` is ḡ^0, synchronised once, as analysed in the paper; `"local"` is g_i^0, which needs no
        synchronisation (Remark 2); `"mixed"` is W g^0, one exchange with neighbours.
    """

    name = "depositum"
    mixes = ("x", "y")
    about = About(
        title="DEPOSITUM",
        citation="Zhou, Shi, Li, Zhong, Wen, Cao: Decentralized Nonconvex Composite Federated Learning with Gradient "
        "Tracking and Momentum, arXiv 2504.12742",
        mean_squared_smoothness=False,
        bounded_heterogeneity=False,
        batch="O(√n)",
        communication="O(1/(n T0 ε²))",
        gradients="O(1/(√n ε²))",
        mega_batch=False,
        linear_speedup=True,
        interval="T0",
        mixing="2",
    )

    gamma: float = 0.5
    momentum: Literal["polyak", "nesterov"] = "polyak"
    start: Literal["average", "local", "mixed"] = "average"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_interval("gamma", self.gamma, "[0, 1)")

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> DepositumState:
        g = oracle.grad(x0, oracle.sample())
        y = mix.average(g) if self.start == "average" else mix(g) if self.start == "mixed" else g
        return DepositumState(t=iteration_zero(x0), x=x0, y=y, nu=g, mu=g if self.momentum == "nesterov" else None)

    def step(self, s: DepositumState, oracle: Oracle, mix: Mix, kind: str) -> DepositumState:
        alpha, gamma = self._alpha(s), self.gamma
        x = mix(oracle.prox(s.x - alpha * s.y, alpha))  # (Update4)
        g = oracle.grad(x, oracle.sample())
        if s.mu is None:
            mu, nu = None, gamma * s.nu + (1 - gamma) * g  # (Update1)
        else:
            mu = gamma * s.mu + (1 - gamma) * g  # (Update2)
            nu = gamma * mu + (1 - gamma) * g  # (Update3)
        y = mix(s.y + nu - s.nu)  # (Update5)
        return DepositumState(t=s.t + 1, x=x, y=y, nu=nu, mu=mu)

    def vectors(self) -> int:
        return 2
