"""D-PSGD: decentralized parallel stochastic gradient descent.

X. Lian et al.: "Can Decentralized Algorithms Outperform Centralized Algorithms?", NeurIPS 2017. With W^t = W in an
exchange and the identity otherwise,

    combine: x^{t+1} = W^t x^t − α g(x^t)          (DP.1), as in the paper: gradient at the unmixed model
    adapt:   x^{t+1} = W^t ( x^t − α g(x^t) )      adapt-then-combine, often called DSGD

One vector per communication, one gradient per iteration. With a constant α and clients that differ, the limit is not a
solution; only α → 0 removes the bias.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from depositum.algorithms.interface import ALGORITHMS, About, Mix, Oracle, Tensor
from depositum.algorithms.stepsize_methods import SmoothMethod, iteration_zero


class DPSGDState(NamedTuple):
    """The variables of (DP.1)."""

    t: Tensor  # iteration
    x: Tensor  # models, [rows, d]


@ALGORITHMS.register("d-psgd")
@dataclass(frozen=True)
class DPSGD(SmoothMethod):
    """Decentralized parallel SGD.

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    form
        `"combine"` mixes, then steps (as in the paper); `"adapt"` steps, then mixes.
    """

    name = "d-psgd"
    about = About(
        title="D-PSGD",
        citation="Lian, Zhang, Zhang, Hsieh, Zhang, Liu: Can Decentralized Algorithms Outperform Centralized "
        "Algorithms? A Case Study for Decentralized Parallel Stochastic Gradient Descent, NeurIPS 2017",
        mixing="1",
        notes="Biased if clients differ, at a constant stepsize. Many implementations use form = 'adapt'.",
    )

    form: Literal["combine", "adapt"] = "combine"

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> DPSGDState:
        return DPSGDState(t=iteration_zero(x0), x=x0)

    def step(self, s: DPSGDState, oracle: Oracle, mix: Mix, kind: str) -> DPSGDState:
        move = self._alpha(s) * oracle.grad(s.x, oracle.sample())
        x = mix(s.x) - move if self.form == "combine" else mix(s.x - move)  # (DP.1)
        return DPSGDState(t=s.t + 1, x=x)

    def vectors(self) -> int:
        return 1
