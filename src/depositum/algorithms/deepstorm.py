"""DEEPSTORM: decentralized proximal gradient tracking with recursive momentum.

G. Mancino-Ball, S. Miao, Y. Xu, J. Chen: "Proximal Stochastic Recursive Momentum Methods for Nonconvex Composite
Decentralized Optimization", AAAI 2023. With b_t the weight of the recursive momentum and ξ, ξ' independent batches,

    x^{t+1} = P_{α_t β}( W^t x^t − α_t y^t )                                           (DS.1), (DS.5)
    v1: d^{t+1} = (1−b_t)( d^t + g(x^{t+1};ξ) − g(x^t;ξ) ) + b_t g(x^{t+1};ξ')         (DS.2)
    v2: d^{t+1} = g(x^{t+1};ξ) + (1−b_t)( d^t − g(x^t;ξ) )                             (DS.3)
    y^{t+1} = W^t ( y^t + d^{t+1} − d^t )                                              (DS.4)

from x_i^0 = x_0, d^0 = gradients of a large batch, y^0 = W d^0. W can stand for K mixing rounds, plain or Chebyshev.
The prox comes last, so models are sparse but do not agree after an exchange; the other placement swaps the two:

    x^{t+1} = W^t P_{α_t β}( x^t − α_t y^t )                                           (DS.6)
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from depositum.algorithms.hyperparameters import check_count, check_interval, check_positive
from depositum.algorithms.interface import ALGORITHMS, About, Mix, Oracle, Tensor
from depositum.algorithms.mixing_rounds import mix_rounds
from depositum.algorithms.schedules import TunableStepsize, as_schedule
from depositum.algorithms.stepsize_methods import MIN_ALPHA, StepsizeMethod, iteration_zero


class DeepStormState(NamedTuple):
    """The variables of DEEPSTORM, each `[rows, d]` except t."""

    t: Tensor  # iteration
    x: Tensor  # models
    y: Tensor  # trackers of the average of d
    d: Tensor  # recursive-momentum estimates of the gradients


@ALGORITHMS.register("deepstorm")
@dataclass(frozen=True)
class DeepStorm(StepsizeMethod):
    """DEEPSTORM, both versions.

    Parameters
    ----------
    alpha
        Stepsize α_t: a number, or a schedule. The paper's a/(t+k0)^{1/3} is `power` with start a/k0^{1/3}, power 1/3
        and offset k0.
    b
        Weight b ∈ (0, 1] of the fresh gradient in the recursive momentum; 1 is proximal gradient tracking.
    c_b
        If given, b is replaced by b_t = 1 − α_{t+1}/α_t + c_b α_{t+1}², at most 1, as for diminishing stepsizes.
    version
        `"v2"`: one batch per iteration at two points; `"v1"`: two batches and three gradients.
    placement
        `"combine-then-prox"` (DS.5) or `"prox-then-combine"` (DS.6).
    rounds
        K, the number of mixing rounds in each exchange of a variable.
    chebyshev
        Whether the K rounds are accelerated.
    initial_batch
        Batch size of d^0, or `"full"`; by default the batch size of the run.
    """

    name = "deepstorm"
    estimate = "d"
    about = About(
        title="DEEPSTORM",
        citation="Mancino-Ball, Miao, Xu, Chen: Proximal Stochastic Recursive Momentum Methods for Nonconvex Composite "
        "Decentralized Optimization, AAAI 2023",
        mean_squared_smoothness=True,
        bounded_heterogeneity=False,
        batch="O(1/√ε)/O(1)",
        communication="O(1/(n ε^{3/2}))",
        gradients="O(1/(n ε^{3/2}))",
        mega_batch=True,
        linear_speedup=True,
        mixing="2K",
        notes="The two batch sizes are for d^0 and for the iterations; linear speedup holds for constant stepsizes. "
        "The released code divides losses but not the prox by n (its values correspond to α = lr/n, β = n·l1), makes "
        "d^0 too large, and its v1-SVRG equals its v1.",
    )

    alpha: TunableStepsize = 0.02
    b: float = 0.1
    c_b: float | None = None
    version: Literal["v2", "v1"] = "v2"
    placement: Literal["combine-then-prox", "prox-then-combine"] = "combine-then-prox"
    rounds: int = 1
    chebyshev: bool = False
    initial_batch: int | Literal["full"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_interval("b", self.b, "(0, 1]")
        check_count("rounds", self.rounds)
        if self.c_b is not None:
            check_positive("c_b", self.c_b)
        if self.initial_batch not in (None, "full"):
            check_count("initial_batch", self.initial_batch)  # type: ignore[arg-type]

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> DeepStormState:
        d = oracle.grad(x0, oracle.sample(self.initial_batch))
        return DeepStormState(t=iteration_zero(x0), x=x0, y=self._mix(mix, d), d=d)

    def step(self, s: DeepStormState, oracle: Oracle, mix: Mix, kind: str) -> DeepStormState:
        alpha, b = self._weights(s)
        if self.placement == "combine-then-prox":
            x = oracle.prox(self._mix(mix, s.x) - alpha * s.y, alpha)  # (DS.1), (DS.5)
        else:
            x = self._mix(mix, oracle.prox(s.x - alpha * s.y, alpha))  # (DS.6)
        batch = oracle.sample()
        g, g_previous = oracle.grad(x, batch), oracle.grad(s.x, batch)
        if self.version == "v1":
            d = (1 - b) * (s.d + g - g_previous) + b * oracle.grad(x, oracle.sample())  # (DS.2)
        else:
            d = g + (1 - b) * (s.d - g_previous)  # (DS.3)
        y = self._mix(mix, s.y + d - s.d)  # (DS.4)
        return DeepStormState(t=s.t + 1, x=x, y=y, d=d)

    def vectors(self) -> int:
        return 2 * self.rounds

    def _mix(self, mix: Mix, z: Tensor) -> Tensor:
        return mix_rounds(mix, z, self.rounds, self.chebyshev)

    def _weights(self, s: DeepStormState) -> tuple[float | Tensor, float | Tensor]:
        """Return α_t and b_t."""
        if self.c_b is None:
            return self._alpha(s), self.b
        alpha, alpha_next = (as_schedule(self.alpha).at(t).clamp(min=MIN_ALPHA) for t in (s.t, s.t + 1))
        b = (1 - alpha_next / alpha + self.c_b * alpha_next**2).clamp(max=1.0)
        return alpha.to(s.x.dtype), b.to(s.x.dtype)
