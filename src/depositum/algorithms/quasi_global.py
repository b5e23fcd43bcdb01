"""QG-DSGDm: decentralized SGD whose momentum follows the displacement of the models, including mixing.

T. Lin, S. P. Karimireddy, S. U. Stich, M. Jaggi: "Quasi-Global Momentum: Accelerating Decentralized Deep Learning on
Heterogeneous Data", ICML 2021.

    x^{t+1} = W ( x^t − α ( b m^t + g^t ) )                          heavy ball
    x^{t+1} = W ( x^t − α ( g^t + b ( b m^t + g^t ) ) )              Nesterov
    m^{t+1} = μ m^t + (1 − μ) ( x^t − x^{t+1} ) / α,   m^0 = 0       (QG.1)

One vector per communication, one gradient per iteration. With T0 > 1 it works in rounds: T0 local steps with
the same m, one mixing, and one update of m with the displacement of the round divided by the sum of its stepsizes.
(Updating m in every local step repeats each mixing up to b/(1 − b) times before the next: with b = 0.5, T0 = 5 and
small α it diverges.) Biased if clients differ, at a constant α.
"""

from dataclasses import dataclass
from typing import NamedTuple

from depositum.algorithms.hyperparameters import check_interval
from depositum.algorithms.interface import ALGORITHMS, About, Mix, Oracle, RoundBased, Tensor
from depositum.algorithms.stepsize_methods import SmoothMethod, iteration_zero, zero_elapsed, zeros_like


class QuasiGlobalState(NamedTuple):
    """The variables of (QG.1), each `[rows, d]` except t and elapsed `[rows, 1]`."""

    t: Tensor  # iteration
    x: Tensor  # models at the start of the round
    local: Tensor  # the local iterates of the round
    m: Tensor  # quasi-global momentum
    elapsed: Tensor  # sum of the round's stepsizes so far


@ALGORITHMS.register("quasi-global")
@dataclass(frozen=True)
class QuasiGlobal(SmoothMethod, RoundBased):
    """QG-DSGDm (QG.1).

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    b
        Momentum b ∈ [0, 1): the weight of m in a step.
    mu
        μ ∈ [0, 1): how slowly m follows the displacement.
    nesterov
        Nesterov's momentum instead of the heavy ball.
    """

    name = "quasi-global"
    about = About(
        title="QG-DSGDm",
        citation="Lin, Karimireddy, Stich, Jaggi: Quasi-Global Momentum: Accelerating Decentralized Deep Learning on "
        "Heterogeneous Data, ICML 2021",
        mixing="1",
        notes="Biased if clients differ, at a constant stepsize. In rounds: x is the model at the start of the "
        "round, and m is updated once per round.",
    )

    b: float = 0.9
    mu: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_interval("b", self.b, "[0, 1)")
        check_interval("mu", self.mu, "[0, 1)")

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> QuasiGlobalState:
        return QuasiGlobalState(t=iteration_zero(x0), x=x0, local=x0, m=zeros_like(x0), elapsed=zero_elapsed(x0))

    def step(self, s: QuasiGlobalState, oracle: Oracle, mix: Mix, kind: str) -> QuasiGlobalState:
        alpha, g = self._alpha(s), oracle.grad(s.local, oracle.sample())
        direction = self.b * s.m + g
        if self.nesterov:
            direction = g + self.b * direction
        local, elapsed = s.local - alpha * direction, s.elapsed + alpha
        if kind == "local":
            return s._replace(t=s.t + 1, local=local, elapsed=elapsed)
        x = mix(local)  # (QG.1)
        m = self.mu * s.m + (1 - self.mu) * (s.x - x) / elapsed
        return QuasiGlobalState(t=s.t + 1, x=x, local=x, m=m, elapsed=zeros_like(elapsed))

    def vectors(self) -> int:
        return 1
