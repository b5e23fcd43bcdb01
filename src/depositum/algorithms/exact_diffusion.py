"""Exact diffusion, D², and LED with local updates: bias correction with one vector.

K. Yuan, B. Ying, X. Zhao, A. H. Sayed: "Exact Diffusion for Distributed Optimization and Learning", IEEE TSP 2019;
H. Tang, X. Lian, M. Yan, C. Zhang, J. Liu: "D²: Decentralized Training over Decentralized Data", ICML 2018;
S. A. Alghunaim: "Local Exact-Diffusion for Decentralized Optimization and Learning", IEEE TAC 2024.

    exact diffusion: ψ^{t+1} = x^t − α g^t,  x^{t+1} = Wb ( ψ^{t+1} + x^t − ψ^t ),  ψ^0 = x^0,  Wb = (I + W)/2    (ED.1)
    D²:              x^1 = W ( x^0 − α g^0 ),  x^{t+1} = W ( 2x^t − x^{t−1} − α ( g^t − g^{t−1} ) )               (ED.2)
    LED:             from p = x^r, T0 steps p ← p − α g(p) − q/T0;  x^{r+1} = Wb p;  q ← q + p − x^{r+1},  q^0 = 0

(ED.2) is (ED.1) with W for Wb, which needs λ_min(W) > −1/3. Written with ψ, each gradient is multiplied by the α of its
own iteration if α changes. Exact diffusion and D² support only period 1: they diverge with W^t for W. LED works in
rounds of T0 local steps; it does not need to know T0, since q = 0 in the first round, whose steps are counted.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from depositum.algorithms.interface import ALGORITHMS, About, Mix, Oracle, RoundBased, Tensor
from depositum.algorithms.stepsize_methods import SmoothMethod, iteration_zero, zeros_like
from depositum.errors import ConfigError

#: Tolerance for λ_min(W) = −1/3, which an eigenvalue solver returns with rounding, and which must be rejected.
EIGENVALUE_TOLERANCE = 1e-9


def half_lazy(mix: Mix, z: Tensor) -> Tensor:
    """Return Wb z = (I + W)/2 z: no negative eigenvalues, one exchange."""
    return (z + mix(z)) / 2


class DiffusionState(NamedTuple):
    """The variables of (ED.1), each `[rows, d]` except t."""

    t: Tensor  # iteration
    x: Tensor  # models
    psi: Tensor  # models of the previous iteration after their gradient step


@dataclass(frozen=True)
class _Diffusion(SmoothMethod):
    """(ED.1); subclasses define the mixing matrix."""

    periods = (1,)

    @abstractmethod
    def _combine(self, mix: Mix, phi: Tensor) -> Tensor:
        """Mix the corrected models."""

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> DiffusionState:
        return DiffusionState(t=iteration_zero(x0), x=x0, psi=x0)

    def step(self, s: DiffusionState, oracle: Oracle, mix: Mix, kind: str) -> DiffusionState:
        psi = s.x - self._alpha(s) * oracle.grad(s.x, oracle.sample())
        return DiffusionState(t=s.t + 1, x=self._combine(mix, psi + s.x - s.psi), psi=psi)  # (ED.1), (ED.2)

    def vectors(self) -> int:
        return 1


@ALGORITHMS.register("exact-diffusion")
@dataclass(frozen=True)
class ExactDiffusion(_Diffusion):
    """Exact diffusion (ED.1).

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    """

    name = "exact-diffusion"
    about = About(
        title="Exact diffusion",
        citation="Yuan, Ying, Zhao, Sayed: Exact Diffusion for Distributed Optimization and Learning, IEEE "
        "Transactions on Signal Processing 2019",
        bounded_heterogeneity=False,
        mixing="1",
        notes="No local steps: it diverges with W^t for W; 'led' supports them.",
    )

    def _combine(self, mix: Mix, phi: Tensor) -> Tensor:
        return half_lazy(mix, phi)


@ALGORITHMS.register("d2")
@dataclass(frozen=True)
class D2(_Diffusion):
    """D² (ED.2): exact diffusion with W itself, for λ_min(W) > −1/3.

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    """

    name = "d2"
    about = About(
        title="D²",
        citation="Tang, Lian, Yan, Zhang, Liu: D²: Decentralized Training over Decentralized Data, ICML 2018",
        bounded_heterogeneity=False,
        mixing="1",
        notes="Needs λ_min(W) > −1/3; a ring with an even number of clients and weights 1/3 has exactly −1/3. No local "
        "steps: it diverges with W^t for W.",
    )

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> DiffusionState:
        if mix.lam_min <= -1 / 3 + EIGENVALUE_TOLERANCE:
            raise ConfigError(
                "mixing",
                f"the smallest eigenvalue of W is {mix.lam_min:.4f}, but 'd2' needs it to be above -1/3; use "
                "mixing = 'lazy-metropolis', or the method 'exact-diffusion', which mixes with (I + W)/2",
            )
        return super().init(x0, oracle, mix)

    def _combine(self, mix: Mix, phi: Tensor) -> Tensor:
        return mix(phi)


class LEDState(NamedTuple):
    """The variables of LED, each `[rows, d]` except t and k."""

    t: Tensor  # iteration
    x: Tensor  # models x^r at the start of the round
    local: Tensor  # p, the local iterates of the round
    q: Tensor  # q/T0, the correction of one local step
    k: Tensor  # local steps taken in this round


@ALGORITHMS.register("led")
@dataclass(frozen=True)
class LED(SmoothMethod, RoundBased):
    """Local exact diffusion: rounds of T0 corrected local steps, then one exchange.

    Parameters
    ----------
    alpha
        Stepsize α > 0 of the local steps, or a schedule.
    """

    name = "led"
    about = About(
        title="LED",
        citation="Alghunaim: Local Exact-Diffusion for Decentralized Optimization and Learning, IEEE Transactions on "
        "Automatic Control 2024",
        bounded_heterogeneity=False,
        mixing="1",
        notes="In rounds: x is the model at the start of the round.",
    )

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> LEDState:
        t = iteration_zero(x0)
        return LEDState(t=iteration_zero(x0), x=x0, local=x0, q=zeros_like(x0), k=t)

    def step(self, s: LEDState, oracle: Oracle, mix: Mix, kind: str) -> LEDState:
        local = s.local - self._alpha(s) * oracle.grad(s.local, oracle.sample()) - s.q
        if kind == "local":
            return s._replace(t=s.t + 1, local=local, k=s.k + 1)
        x = half_lazy(mix, local)
        return LEDState(t=s.t + 1, x=x, local=x, q=s.q + (local - x) / (s.k + 1), k=zeros_like(s.k))

    def vectors(self) -> int:
        return 1
