"""K-GT: gradient tracking with local updates; the tracker corrects the local steps.

Y. Liu, T. Lin, A. Koloskova, S. U. Stich: "Decentralized Gradient Tracking with Local Steps", Optimization Methods and
Software 2024. Round r starts from the models x^r and has K = T0 local steps:

    p = x^r;  K times p ← p − α ( g(p) + c )
    z = ( x^r − p ) / (K α)                                    the mean direction of the round
    x^{r+1} = W ( x^r − η K α z ) = W ( x^r + η ( p − x^r ) )
    c ← c − z + W z

from c_i^0 = −g_i^0 + ḡ^0, synchronised once. J c = 0 in every round. Two vectors per communication, one gradient per
iteration. If α changes, K α is the sum of the round's stepsizes.
"""

from dataclasses import dataclass
from typing import NamedTuple

from depositum.algorithms.hyperparameters import check_positive
from depositum.algorithms.interface import ALGORITHMS, About, Mix, Oracle, RoundBased, Tensor
from depositum.algorithms.stepsize_methods import SmoothMethod, iteration_zero, zero_elapsed, zeros_like


class KGTState(NamedTuple):
    """The variables of a round, each `[rows, d]` except t and elapsed `[rows, 1]`."""

    t: Tensor  # iteration
    x: Tensor  # models x^r at the start of the round
    local: Tensor  # p, the local iterates of the round
    c: Tensor  # corrections of the local gradients
    elapsed: Tensor  # sum of the round's stepsizes so far; K α at its end


@ALGORITHMS.register("k-gt")
@dataclass(frozen=True)
class KGT(SmoothMethod, RoundBased):
    """Gradient tracking with K = T0 local steps.

    Parameters
    ----------
    alpha
        Stepsize α > 0 of the local steps, or a schedule.
    eta
        Step η > 0 along the displacement of a round; 1 leaves it unscaled.
    """

    name = "k-gt"
    about = About(
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
        return KGTState(t=iteration_zero(x0), x=x0, local=x0, c=mix.average(g) - g, elapsed=zero_elapsed(x0))

    def step(self, s: KGTState, oracle: Oracle, mix: Mix, kind: str) -> KGTState:
        alpha = self._alpha(s)
        local = s.local - alpha * (oracle.grad(s.local, oracle.sample()) + s.c)
        elapsed = s.elapsed + alpha
        if kind == "local":
            return s._replace(t=s.t + 1, local=local, elapsed=elapsed)
        x = mix(s.x + self.eta * (local - s.x))
        z = (s.x - local) / elapsed
        return KGTState(t=s.t + 1, x=x, local=x, c=s.c - z + mix(z), elapsed=zeros_like(elapsed))

    def vectors(self) -> int:
        return 2
