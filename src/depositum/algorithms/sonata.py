"""SONATA in its ratio form: composite gradient tracking on directed networks that may change, by push-sum alone.

With C column-stochastic in an exchange, the identity otherwise, and products by φ row by row,

    x̂^t = prox_{αh}( x^t − α y^t/φ^t ),   v^t = x^t + η (x̂^t − x^t)       (SO.1)
    φ^{t+1} = C φ^t,   φ^0 = 1
    x^{t+1} = C ( φ^t v^t ) / φ^{t+1}                                     (SO.2)
    y^{t+1} = C ( y^t + g^{t+1} − g^t )                                   (SO.3)

G. Scutari, Y. Sun: "Distributed Nonconvex Constrained Optimization over Time-Varying Digraphs", Math. Programming 2019,
arXiv 1809.01106, with gradient steps as the surrogate of f_i; y here is φ times the tracker of that paper, which adds
g^{t+1} − g^t after the product with C. Models too are averaged by ratios, with the weights c_ij φ_j/φ_i^+ in place of a
row-stochastic R: a receiver need not know whom it hears. Without momentum, this is all that distinguishes it from
`depositum-directed`.
"""

from dataclasses import dataclass
from typing import NamedTuple

from depositum.algorithms.hyperparameters import check_interval
from depositum.algorithms.interface import ALGORITHMS, About, Mix, Oracle, Tensor
from depositum.algorithms.stepsize_methods import StepsizeMethod, iteration_zero


class SonataState(NamedTuple):
    """The variables of (SO.1) to (SO.3), each `[rows, d]` except t and φ."""

    t: Tensor  # iteration
    x: Tensor  # models
    y: Tensor  # φ times the trackers: their sum is that of the gradients
    g: Tensor  # gradients at x
    phi: Tensor  # push-sum weights, [rows, 1]


@ALGORITHMS.register("sonata")
@dataclass(frozen=True)
class Sonata(StepsizeMethod):
    """SONATA with column-stochastic weights.

    Parameters
    ----------
    alpha
        Stepsize α > 0 of the prox-gradient step, or a schedule.
    eta
        Share η ∈ (0, 1] of the way to the new point.
    """

    name = "sonata"
    directed = True
    estimate = "g"
    about = About(
        title="SONATA",
        citation="Scutari, Sun: Distributed Nonconvex Constrained Optimization over Time-Varying Digraphs, "
        "Mathematical Programming 2019, arXiv 1809.01106",
        bounded_heterogeneity=False,
        mixing="2",
        notes="For directed networks: column-stochastic weights alone, and one number φ is sent besides two vectors. "
        "The paper has full gradients, and one exchange per iteration. On undirected networks it is gradient tracking "
        "with a prox.",
    )
    handles = "convex"
    needs_convex = "its paper has no other; 'depositum-directed' takes any"

    eta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_interval("eta", self.eta, "(0, 1]")

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> SonataState:
        g = oracle.grad(x0, oracle.sample())
        return SonataState(t=iteration_zero(x0), x=x0, y=g, g=g, phi=x0.new_ones(len(x0), 1))

    def step(self, s: SonataState, oracle: Oracle, mix: Mix, kind: str) -> SonataState:
        alpha = self._alpha(s)
        nearest = oracle.prox(s.x - alpha * (s.y / s.phi), alpha)
        v = s.x + self.eta * (nearest - s.x)  # (SO.1)
        phi = mix.push_weights(s.phi)
        x = mix.push(s.phi * v) / phi  # (SO.2)
        g = oracle.grad(x, oracle.sample())
        return SonataState(t=s.t + 1, x=x, y=mix.push(s.y + g - s.g), g=g, phi=phi)  # (SO.3)

    def vectors(self) -> int:
        return 2
