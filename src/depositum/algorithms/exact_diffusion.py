"""Exact diffusion, D², and LED with local updates: bias corrected with one vector.

K. Yuan, B. Ying, X. Zhao, A. H. Sayed: "Exact Diffusion for Distributed Optimization and Learning", IEEE TSP 2019;
H. Tang, X. Lian, M. Yan, C. Zhang, J. Liu: "D²: Decentralized Training over Decentralized Data", ICML 2018;
S. A. Alghunaim: "Local Exact-Diffusion for Decentralized Optimization and Learning", IEEE TAC 2024.

    exact diffusion: ψ^{t+1} = x^t − α g^t,  x^{t+1} = Wb ( ψ^{t+1} + x^t − ψ^t ),  ψ^0 = x^0,  Wb = (I + W)/2    (ED.1)
    D²:              x^1 = W ( x^0 − α g^0 ),  x^{t+1} = W ( 2x^t − x^{t−1} − α ( g^t − g^{t−1} ) )               (ED.2)
    LED:             from p = x^r, T0 steps p ← p − α g(p) − q/T0;  x^{r+1} = Wb p;  q ← q + p − x^{r+1},  q^0 = 0

(ED.2) is (ED.1) with W for Wb, which needs λ_min(W) > −1/3. Written with ψ, each gradient keeps the α of its own
iteration where α changes. Exact diffusion and D² have period 1 only: they diverge under W → W^t. LED is in rounds of T0
local steps, and needs no T0 beforehand: q = 0 in the first round, whose steps are counted.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from depositum.algorithms.base import ALGORITHMS, About, Mix, Oracle, RoundBased
from depositum.algorithms.stepping import GradientMethod, iteration_zero
from depositum.errors import ConfigError

#: λ_min(W) = −1/3 comes out of an eigenvalue solver with rounding, and is refused all the same.
ROUNDING = 1e-9


def half_lazy(mix: Mix, z: Tensor) -> Tensor:
    """Wb z = (I + W)/2 z: no negative eigenvalues, one exchange."""
    return (z + mix(z)) / 2


class DiffusionState(NamedTuple):
    """The variables of (ED.1), each `[rows, d]` but t."""

    t: Tensor  # iteration
    x: Tensor  # models
    psi: Tensor  # models of the previous iteration after their gradient step


@dataclass(frozen=True)
class _Diffusion(GradientMethod):
    """(ED.1) with a matrix to be said."""

    periods = (1,)

    @abstractmethod
    def _combine(self, mix: Mix, phi: Tensor) -> Tensor:
        """The mixing of corrected models."""

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

    name: ClassVar[str] = "exact-diffusion"
    about: ClassVar[About] = About(
        title="Exact diffusion",
        citation="Yuan, Ying, Zhao, Sayed: Exact Diffusion for Distributed Optimization and Learning, IEEE "
        "Transactions on Signal Processing 2019",
        bounded_heterogeneity=False,
        mixing="1",
        notes="No local steps: it diverges under W → W^t; 'led' has them.",
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

    name: ClassVar[str] = "d2"
    about: ClassVar[About] = About(
        title="D²",
        citation="Tang, Lian, Yan, Zhang, Liu: D²: Decentralized Training over Decentralized Data, ICML 2018",
        bounded_heterogeneity=False,
        mixing="1",
        notes="Needs λ_min(W) > −1/3; a ring with an even number of clients and weights 1/3 has exactly −1/3. No local "
        "steps: it diverges under W → W^t.",
    )

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> DiffusionState:
        if mix.lam_min <= -1 / 3 + ROUNDING:
            raise ConfigError(
                "network.mixing",
                f"the smallest eigenvalue of W is {mix.lam_min:.4f}, but 'd2' needs one above -1/3; take "
                "mixing = 'lazy-metropolis', or the method 'exact-diffusion', which takes (I + W)/2",
            )
        return super().init(x0, oracle, mix)

    def _combine(self, mix: Mix, phi: Tensor) -> Tensor:
        return mix(phi)


class LEDState(NamedTuple):
    """The variables of LED, `[rows, d]` but t and k."""

    t: Tensor  # iteration
    x: Tensor  # models x^r at the start of the round
    local: Tensor  # p, the local iterates of the round
    q: Tensor  # the correction of one local step, q/T0
    k: Tensor  # local steps taken in this round


@ALGORITHMS.register("led")
@dataclass(frozen=True)
class LED(GradientMethod, RoundBased):
    """Local exact diffusion: rounds of T0 corrected local steps, then one exchange.

    Parameters
    ----------
    alpha
        Stepsize α > 0 of the local steps, or a schedule.
    """

    name: ClassVar[str] = "led"
    about: ClassVar[About] = About(
        title="LED",
        citation="Alghunaim: Local Exact-Diffusion for Decentralized Optimization and Learning, IEEE Transactions on "
        "Automatic Control 2024",
        bounded_heterogeneity=False,
        mixing="1",
        notes="In rounds: x is the model at the start of the round.",
    )

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> LEDState:
        t = iteration_zero(x0)
        return LEDState(t=t, x=x0, local=x0, q=torch.zeros_like(x0), k=t)

    def step(self, s: LEDState, oracle: Oracle, mix: Mix, kind: str) -> LEDState:
        local = s.local - self._alpha(s) * oracle.grad(s.local, oracle.sample()) - s.q
        if kind == "local":
            return s._replace(t=s.t + 1, local=local, k=s.k + 1)
        x = half_lazy(mix, local)
        return LEDState(t=s.t + 1, x=x, local=x, q=s.q + (local - x) / (s.k + 1), k=torch.zeros_like(s.k))

    def vectors(self) -> int:
        return 1
