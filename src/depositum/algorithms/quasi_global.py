"""QG-DSGDm: decentralized SGD whose momentum follows the models' whole displacement, mixing included.

T. Lin, S. P. Karimireddy, S. U. Stich, M. Jaggi: "Quasi-Global Momentum: Accelerating Decentralized Deep Learning on
Heterogeneous Data", ICML 2021.

    x^{t+1} = W ( x^t − α ( b m^t + g^t ) )                          heavy ball
    x^{t+1} = W ( x^t − α ( g^t + b ( b m^t + g^t ) ) )              Nesterov
    m^{t+1} = μ m^t + (1 − μ) ( x^t − x^{t+1} ) / α,   m^0 = 0       (QG.1)

One vector per communication, one gradient per iteration. With T0 > 1 it is in rounds: T0 local steps with the same m,
one mixing, and one new m from the displacement of the round over the sum of its steps. (Refreshing m in every local
step replays each mixing up to b/(1 − b) times before the next: with b = 0.5, T0 = 5 and small α it diverges.) Biased
where clients differ, at a constant α.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from depositum.algorithms.base import ALGORITHMS, About, Mix, Oracle, RoundBased
from depositum.algorithms.stepping import GradientMethod, check_fraction, iteration_zero


class QuasiGlobalState(NamedTuple):
    """The variables of (QG.1), `[rows, d]` but t, and elapsed `[rows, 1]`."""

    t: Tensor  # iteration
    x: Tensor  # models at the start of the round
    local: Tensor  # the local iterates of the round
    m: Tensor  # quasi-global momentum
    elapsed: Tensor  # the sum of the round's steps so far


@ALGORITHMS.register("quasi-global")
@dataclass(frozen=True)
class QuasiGlobal(GradientMethod, RoundBased):
    """QG-DSGDm (QG.1).

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    b
        Momentum b ∈ [0, 1): how much of m a step takes.
    mu
        μ ∈ [0, 1): how slowly m follows the displacement.
    nesterov
        Nesterov's momentum instead of the heavy ball.
    """

    name: ClassVar[str] = "quasi-global"
    about: ClassVar[About] = About(
        title="QG-DSGDm",
        citation="Lin, Karimireddy, Stich, Jaggi: Quasi-Global Momentum: Accelerating Decentralized Deep Learning on "
        "Heterogeneous Data, ICML 2021",
        mixing="1",
        notes="Biased where clients differ, at a constant stepsize. In rounds: x is the model at the start of the "
        "round, and m is refreshed once per round.",
    )

    b: float = 0.9
    mu: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction("b", self.b)
        check_fraction("mu", self.mu)

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> QuasiGlobalState:
        none = x0.new_zeros(len(x0), 1)
        return QuasiGlobalState(t=iteration_zero(x0), x=x0, local=x0, m=torch.zeros_like(x0), elapsed=none)

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
        return QuasiGlobalState(t=s.t + 1, x=x, local=x, m=m, elapsed=torch.zeros_like(elapsed))

    def vectors(self) -> int:
        return 1
