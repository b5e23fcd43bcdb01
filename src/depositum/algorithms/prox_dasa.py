"""Prox-DASA and Prox-DASA-GT: decentralized proximal averaged stochastic approximation, one batch per iteration.

T. Xiao, X. Chen, K. Balasubramanian, S. Ghadimi: "A One-Sample Decentralized Proximal Algorithm for Non-Convex
Stochastic Composite Optimization", UAI 2023. With η the prox step, a_t ≤ 1 the weight of the averages, and m
mixing rounds,

    p^t      = P_{ηβ}( x^t − η z^t )                                                   (PD.1)
    v^{t+1}  = fresh mini-batch gradients at x^t                                       (PD.2)
    x^{t+1}  = W^m ( (1−a_t) x^t + a_t p^t )                                           (PD.3), (PD.6)
    DASA:    z^{t+1} = W^m ( (1−a_t) z^t + a_t v^{t+1} )                               (PD.4), (PD.6)
    DASA-GT: ỹ^{t+1} = y^t + v^{t+1} − v^t,   y^{t+1} = W^m ỹ^{t+1}
             z^{t+1} = W^m ( (1−a_t) z^t + a_t ỹ^{t+1} )                               (PD.5), (PD.6)

from x_i^0 = x_0, z^0 = 0, y^0 = v^0 = g(x^0) (y is u in the paper). With a period, W^m is the identity in local steps.
The models are moving averages, hence not sparse; p is. J y^t = J v^t at every t.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from depositum.algorithms.hyperparameters import TunableFloat, check_count, check_positive
from depositum.algorithms.interface import ALGORITHMS, About, Algorithm, Mix, Oracle, Tensor
from depositum.algorithms.mixing_rounds import mix_rounds
from depositum.algorithms.schedules import Stepsize, as_schedule, check_stepsize
from depositum.algorithms.stepsize_methods import iteration_zero, zeros_like
from depositum.errors import ConfigError, short_repr

_CITATION = (
    "Xiao, Chen, Balasubramanian, Ghadimi: A One-Sample Decentralized Proximal Algorithm for Non-Convex Stochastic "
    "Composite Optimization, UAI 2023"
)
_SCALING = "The released code divides losses but not the prox by n: its values correspond to η = lr/n and β = n·l1."


class ProxDASAState(NamedTuple):
    """The variables of Prox-DASA, each `[rows, d]` except t."""

    t: Tensor  # iteration
    x: Tensor  # models
    z: Tensor  # averaged gradients


class ProxDASAGTState(NamedTuple):
    """The variables of Prox-DASA-GT, each `[rows, d]` except t."""

    t: Tensor  # iteration
    x: Tensor  # models
    z: Tensor  # averaged trackers
    y: Tensor  # trackers of the average gradient
    v: Tensor  # gradients of the previous iteration


@dataclass(frozen=True)
class _AveragingMethod(Algorithm):
    """Hyper-parameters of both methods, and the weight of the averages."""

    estimate = "z"
    stepsize_key = "eta"
    prox_key = "eta"
    prox_formula = "η"

    eta: TunableFloat = 0.1
    a: Stepsize = 0.3
    rounds: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.automatic:
            check_positive("eta", self.eta)
        if isinstance(self.a, int | float) and not 0 < self.a <= 1:
            raise ConfigError("a", f"{short_repr(self.a)} given; it must lie in (0, 1] or be a schedule")
        check_stepsize(self, "a")
        check_count("rounds", self.rounds)

    def largest_prox_step(self, period: int) -> float:
        return self.eta

    def stepsize(self, t: int) -> float:
        return self.eta

    def _weight(self, t: Tensor, like: Tensor) -> Tensor:
        """Return a_t in the dtype of `like`."""
        return as_schedule(self.a, "a").at(t).clamp(max=1.0).to(like.dtype)


@ALGORITHMS.register("prox-dasa")
@dataclass(frozen=True)
class ProxDASA(_AveragingMethod):
    """Prox-DASA.

    Parameters
    ----------
    eta
        Step η > 0 of the prox.
    a
        Weight a_t of the new point and gradient in their averages: a number in (0, 1], or a schedule, which is
        clipped to 1. The paper's a√(n/(t+1)) is `power` with start a√n and power 0.5.
    rounds
        m, the number of mixing rounds in each exchange of a variable.
    """

    name = "prox-dasa"
    about = About(
        title="Prox-DASA",
        citation=_CITATION,
        mean_squared_smoothness=False,
        bounded_heterogeneity=True,
        batch="O(1)",
        communication="O(1/(n ε²))",
        gradients="O(1/(n ε²))",
        mega_batch=False,
        linear_speedup=True,
        mixing="2K",
        notes="With a constant weight and heterogeneous data it converges to a biased point. " + _SCALING,
    )

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> ProxDASAState:
        return ProxDASAState(t=iteration_zero(x0), x=x0, z=zeros_like(x0))

    def step(self, s: ProxDASAState, oracle: Oracle, mix: Mix, kind: str) -> ProxDASAState:
        a = self._weight(s.t, s.x)
        p = oracle.prox(s.x - self.eta * s.z, self.eta)  # (PD.1)
        v = oracle.grad(s.x, oracle.sample())  # (PD.2)
        x = mix_rounds(mix, (1 - a) * s.x + a * p, self.rounds)  # (PD.3), (PD.6)
        z = mix_rounds(mix, (1 - a) * s.z + a * v, self.rounds)  # (PD.4), (PD.6)
        return ProxDASAState(t=s.t + 1, x=x, z=z)

    def vectors(self) -> int:
        return 2 * self.rounds


@ALGORITHMS.register("prox-dasa-gt")
@dataclass(frozen=True)
class ProxDASAGT(_AveragingMethod):
    """Prox-DASA with gradient tracking.

    Parameters
    ----------
    eta
        Step η > 0 of the prox.
    a
        Weight a_t of the new point and gradient in their averages: a number in (0, 1], or a schedule, which is
        clipped to 1. The paper's a√(n/(t+1)) is `power` with start a√n and power 0.5.
    rounds
        m, the number of mixing rounds in each exchange of a variable.
    tracker
        `"paper"` averages the trackers into z (PD.5); `"unused"` averages the gradients instead (PD.4), but still
        stores, mixes and sends the trackers, as the released code does.
    """

    name = "prox-dasa-gt"
    about = About(
        title="Prox-DASA-GT",
        citation=_CITATION,
        mean_squared_smoothness=False,
        bounded_heterogeneity=False,
        batch="O(1)",
        communication="O(1/(n ε²))",
        gradients="O(1/(n ε²))",
        mega_batch=False,
        linear_speedup=True,
        mixing="3K",
        notes="The released code never uses its trackers, which makes it Prox-DASA with more traffic "
        '(tracker = "unused"), and does not clip a_t to 1. ' + _SCALING,
    )

    tracker: Literal["paper", "unused"] = "paper"

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> ProxDASAGTState:
        g = oracle.grad(x0, oracle.sample())
        return ProxDASAGTState(t=iteration_zero(x0), x=x0, z=zeros_like(x0), y=g, v=g)

    def step(self, s: ProxDASAGTState, oracle: Oracle, mix: Mix, kind: str) -> ProxDASAGTState:
        a = self._weight(s.t, s.x)
        p = oracle.prox(s.x - self.eta * s.z, self.eta)  # (PD.1)
        v = oracle.grad(s.x, oracle.sample())  # (PD.2)
        y = s.y + v - s.v  # (PD.5)
        direction = y if self.tracker == "paper" else v
        x = mix_rounds(mix, (1 - a) * s.x + a * p, self.rounds)  # (PD.3), (PD.6)
        z = mix_rounds(mix, (1 - a) * s.z + a * direction, self.rounds)  # (PD.5) or (PD.4), (PD.6)
        return ProxDASAGTState(t=s.t + 1, x=x, z=z, y=mix_rounds(mix, y, self.rounds), v=v)

    def vectors(self) -> int:
        return 3 * self.rounds
