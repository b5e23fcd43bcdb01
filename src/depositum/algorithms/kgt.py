"""K-GT: gradient tracking with local updates, the tracker a correction of the local steps.

Y. Liu, T. Lin, A. Koloskova, S. U. Stich: "Decentralized Gradient Tracking with Local Steps", Optimization Methods and
Software 2024. Round r from the models x^r, with K = T0 local steps:

    p = x^r;  K times p ← p − α ( g(p) + c )
    z = ( x^r − p ) / (K α)                                    the mean direction of the round
    x^{r+1} = W ( x^r − η K α z ) = W ( x^r + η ( p − x^r ) )
    c ← c − z + W z

from c_i^0 = −g_i^0 + ḡ^0, synchronised once. J c = 0 at every round. Two vectors per communication, one gradient per
iteration. Where α changes, K α is the sum of the round's steps.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from depositum.algorithms.base import ALGORITHMS, About, Mix, Oracle, RoundBased
from depositum.algorithms.stepping import GradientMethod, check_positive, iteration_zero


class KGTState(NamedTuple):
    """The variables of a round, `[rows, d]` but t, and elapsed `[rows, 1]`."""

    t: Tensor  # iteration
    x: Tensor  # models x^r at the start of the round
    local: Tensor  # p, the local iterates of the round
    c: Tensor  # corrections of the local gradients
    elapsed: Tensor  # K α so far: the sum of the round's steps


@ALGORITHMS.register("k-gt")
@dataclass(frozen=True)
class KGT(GradientMethod, RoundBased):
    """Gradient tracking with K = T0 local steps.

    Parameters
    ----------
    alpha
        Stepsize α > 0 of the local steps, or a schedule.
    eta
        The step η > 0 along a round's whole displacement; 1 takes it as it is.
    """

    name: ClassVar[str] = "k-gt"
    about: ClassVar[About] = About(
        title="K-GT",
        citation="Liu, Lin, Koloskova, Stich: Decentralized Gradient Tracking with Local Steps, Optimization Methods "
        "and Software 2024",
        bounded_heterogeneity=False,
        mixing="2",
        notes="In rounds: x is the model at the start of the round.",
    )

    eta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("eta", self.eta)

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> KGTState:
        g = oracle.grad(x0, oracle.sample())
        none = x0.new_zeros(len(x0), 1)
        return KGTState(t=iteration_zero(x0), x=x0, local=x0, c=mix.average(g) - g, elapsed=none)

    def step(self, s: KGTState, oracle: Oracle, mix: Mix, kind: str) -> KGTState:
        alpha = self._alpha(s)
        local = s.local - alpha * (oracle.grad(s.local, oracle.sample()) + s.c)
        elapsed = s.elapsed + alpha
        if kind == "local":
            return s._replace(t=s.t + 1, local=local, elapsed=elapsed)
        x = mix(s.x + self.eta * (local - s.x))
        z = (s.x - local) / elapsed
        return KGTState(t=s.t + 1, x=x, local=x, c=s.c - z + mix(z), elapsed=torch.zeros_like(elapsed))

    def vectors(self) -> int:
        return 2
