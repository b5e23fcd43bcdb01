"""SPPDM: stochastic proximal primal-dual method, with momentum.

Z. Wang, J. Zhang, T.-H. Chang, J. Li, Z.-Q. Luo: "Distributed Stochastic Consensus Optimization With Momentum for
Nonconvex Nonsmooth Problems", IEEE Transactions on Signal Processing 2021. On the unweighted graph, with N_i
the neighbours of i and φ_i = s + 2c·deg_i + κ,

    q_i ← q_i + a_d ( deg_i x_i^t − Σ_{j∈N_i} x_j^t )                                  (SP.1)
    s̄_i = x_i^t + η_t ( x_i^t − x_i^{t−1} )                                            (SP.2)
    x_i^{t+1} = P_{β/φ_i}( [ s s̄_i + c ( deg_i x_i^t + Σ_{j∈N_i} x_j^t )
                             + κ z_i^t − g_i(s̄_i) − q_i ] / φ_i )                      (SP.3)
    z_i^{t+1} = z_i^t + b ( x_i^{t+1} − z_i^t )                                        (SP.4)

from q^0 = 0, z^0 = x^{−1} = x^0; since x_i^0 = x_0 at every client, the first step needs no separate formula. η_t is 0,
a constant, or Nesterov's (θ_t − 1)/θ_{t+1} with θ_0 = 1, θ_{t+1} = (1 + √(1 + 4θ_t²))/2. Each model is sent once.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from depositum.algorithms.hyperparameters import TunableFloat, check_interval, check_nonnegative, check_positive
from depositum.algorithms.interface import ALGORITHMS, About, Algorithm, Mix, Oracle, Tensor
from depositum.algorithms.stepsize_methods import iteration_zero, zeros_like
from depositum.errors import ConfigError, short_repr


class SPPDMState(NamedTuple):
    """The variables of SPPDM, each `[rows, d]` except t and theta."""

    t: Tensor  # iteration
    x: Tensor  # models
    before: Tensor  # models of the previous iteration
    z: Tensor  # proximal centres, averages of the models
    q: Tensor  # duals of the consensus constraints
    theta: Tensor  # Nesterov's θ_t, 0-dimensional


@ALGORITHMS.register("sppdm")
@dataclass(frozen=True)
class SPPDM(Algorithm):
    """SPPDM; it exchanges in every iteration.

    Parameters
    ----------
    c
        Penalty c > 0 of the consensus constraints.
    s
        Weight s > 0 of the previous model in the proximal step: s + κ must exceed the smoothness constant of the f_i.
    kappa
        Weight κ ≥ 0 of the proximal centre.
    b
        Weight b ∈ (0, 1] of the new model in the proximal centre.
    dual_step
        a_d > 0.
    eta
        Momentum η_t: `"nesterov"`, or a number in [0, 1).
    """

    name = "sppdm"
    stepsize_key, stepsize_inverse = "s", True
    prox_key = "s"
    prox_formula = "1/(s + kappa)"
    periods = (1,)
    about = About(
        title="SPPDM",
        citation="Wang, Zhang, Chang, Li, Luo: Distributed Stochastic Consensus Optimization With Momentum for "
        "Nonconvex Nonsmooth Problems, IEEE Transactions on Signal Processing 2021",
        mean_squared_smoothness=False,
        bounded_heterogeneity=False,
        batch="O(1/ε)",
        communication="O(1/ε)",
        gradients="O(1/ε²)",
        mega_batch=True,
        linear_speedup=False,
        mixing="1",
        notes="It has no variant with local steps. Public implementations have too large a prox step in the first "
        "iteration.",
    )

    c: float = 1.0
    s: TunableFloat = 3.0
    kappa: float = 0.1
    b: float = 0.9
    dual_step: float = 0.1
    eta: float | Literal["nesterov"] = "nesterov"

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("c", "s", "dual_step"):
            if not (key == "s" and self.automatic):
                check_positive(key, getattr(self, key))
        check_nonnegative("kappa", self.kappa)
        check_interval("b", self.b, "(0, 1]")
        if self.eta != "nesterov" if isinstance(self.eta, str) else not 0 <= self.eta < 1:
            raise ConfigError("eta", f"{short_repr(self.eta)} given; it must be 'nesterov' or lie in [0, 1)")

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> SPPDMState:
        return SPPDMState(t=iteration_zero(x0), x=x0, before=x0, z=x0, q=zeros_like(x0), theta=x0.new_ones(()))

    def step(self, s: SPPDMState, oracle: Oracle, mix: Mix, kind: str) -> SPPDMState:
        neighbours, own = mix.neighbours(s.x), mix.degree * s.x
        phi = self.s + 2 * self.c * mix.degree + self.kappa
        theta = (1 + (1 + 4 * s.theta**2).sqrt()) / 2
        eta = (s.theta - 1) / theta if self.eta == "nesterov" else self.eta
        q = s.q + self.dual_step * (own - neighbours)  # (SP.1)
        ahead = s.x + eta * (s.x - s.before)  # (SP.2)
        g = oracle.grad(ahead, oracle.sample())
        target = self.s * ahead + self.c * (own + neighbours) + self.kappa * s.z - g - q
        x = oracle.prox(target / phi, 1 / phi)  # (SP.3)
        z = s.z + self.b * (x - s.z)  # (SP.4)
        return SPPDMState(t=s.t + 1, x=x, before=s.x, z=z, q=q, theta=theta)

    def vectors(self) -> int:
        return 1

    def largest_prox_step(self, period: int) -> float:
        """Return a bound on 1/φ_i over all degrees."""
        return 1 / (self.s + self.kappa)
