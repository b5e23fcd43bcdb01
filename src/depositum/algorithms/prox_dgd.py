"""Prox-DGD: decentralized proximal gradient descent, without tracking.

J. Zeng, W. Yin: "On Nonconvex Decentralized Gradient Descent", IEEE Transactions on Signal Processing 66(11), 2018.
P_τ is the prox of τh; with W^t = W in an exchange and the identity otherwise,

    x^{t+1} = P_{α_t β}( W^t x^t − α_t g(x^t) )            (PD.1)

In the paper g is the full gradient. With h = 0 it is D-PSGD. One vector per communication, one gradient per iteration.
With a constant α and clients that differ, the limit is not a solution; with α_t that decreases to 0 (a schedule) it is.
docs/methods.md says with which code it was compared.
"""

from dataclasses import dataclass
from typing import NamedTuple

from depositum.algorithms.interface import ALGORITHMS, About, Mix, Oracle, Tensor
from depositum.algorithms.stepsize_methods import StepsizeMethod, iteration_zero


class ProxDGDState(NamedTuple):
    """The variables of (PD.1)."""

    t: Tensor  # iteration
    x: Tensor  # models, [rows, d]


@ALGORITHMS.register("prox-dgd")
@dataclass(frozen=True)
class ProxDGD(StepsizeMethod):
    """Decentralized proximal gradient descent.

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    """

    name = "prox-dgd"
    about = About(
        title="Prox-DGD",
        citation="Zeng, Yin: On Nonconvex Decentralized Gradient Descent, IEEE Transactions on Signal Processing 2018",
        mixing="1",
        notes="Biased if clients differ, at a constant stepsize.",
    )

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> ProxDGDState:
        return ProxDGDState(t=iteration_zero(x0), x=x0)

    def step(self, s: ProxDGDState, oracle: Oracle, mix: Mix, kind: str) -> ProxDGDState:
        alpha = self._alpha(s)
        g = oracle.grad(s.x, oracle.sample())
        return ProxDGDState(t=s.t + 1, x=oracle.prox(mix(s.x) - alpha * g, alpha))  # (PD.1)

    def vectors(self) -> int:
        return 1
