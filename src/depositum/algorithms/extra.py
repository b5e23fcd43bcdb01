"""EXTRA and PG-EXTRA: exact decentralized (proximal) gradient methods with one vector.

W. Shi, Q. Ling, G. Wu, W. Yin: "EXTRA: An Exact First-Order Algorithm for Decentralized Consensus Optimization", SIAM
J. Optim. 2015, and "A Proximal Gradient Algorithm for Decentralized Composite Optimization", IEEE TSP 2015. With
W~ = (I + W)/2,

    EXTRA:    x^1 = W x^0 − α g^0
              x^{t+2} = (I + W) x^{t+1} − W~ x^t − α ( g^{t+1} − g^t )                                (EX.1)
    PG-EXTRA: z^1 = W x^0 − α g^0,  x^1 = prox(z^1)
              z^{t+2} = W x^{t+1} + z^{t+1} − W~ x^t − α ( g^{t+1} − g^t ),  x^{t+2} = prox(z^{t+2})  (EX.2)

W~ x^t is computed from what the previous iteration received, so one vector is sent. The first step is the general one
from W~ x^{-1} = z^0 = x^0 and g^{-1} = 0. Period 1 only: with W^t for W and T0 = 5 both diverge, even at αL = 0.01. If
α changes, each gradient is multiplied by the α of its own iteration.
"""

from dataclasses import dataclass
from typing import NamedTuple

from depositum.algorithms.interface import ALGORITHMS, About, Mix, Oracle, Tensor
from depositum.algorithms.stepsize_methods import SmoothMethod, StepsizeMethod, iteration_zero, zeros_like


class ExtraState(NamedTuple):
    """The variables of (EX.1), each `[rows, d]` except t."""

    t: Tensor  # iteration
    x: Tensor  # models
    half_mixed: Tensor  # W~ x of the previous iteration
    move: Tensor  # α g of the previous iteration


class PgExtraState(NamedTuple):
    """The variables of (EX.2), each `[rows, d]` except t."""

    t: Tensor  # iteration
    x: Tensor  # models, after the prox
    z: Tensor  # models, before the prox
    half_mixed: Tensor  # W~ x of the previous iteration
    move: Tensor  # α g of the previous iteration


@ALGORITHMS.register("extra")
@dataclass(frozen=True)
class Extra(SmoothMethod):
    """EXTRA, for smooth problems.

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    """

    name = "extra"
    about = About(
        title="EXTRA",
        citation="Shi, Ling, Wu, Yin: EXTRA: An Exact First-Order Algorithm for Decentralized Consensus Optimization, "
        "SIAM Journal on Optimization 2015",
        bounded_heterogeneity=False,
        mixing="1",
        notes="No local steps: it diverges with W^t for W.",
    )
    periods = (1,)

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> ExtraState:
        return ExtraState(t=iteration_zero(x0), x=x0, half_mixed=x0, move=zeros_like(x0))

    def step(self, s: ExtraState, oracle: Oracle, mix: Mix, kind: str) -> ExtraState:
        mixed = mix(s.x)
        move = self._alpha(s) * oracle.grad(s.x, oracle.sample())
        x = s.x + mixed - s.half_mixed - (move - s.move)  # (EX.1)
        return ExtraState(t=s.t + 1, x=x, half_mixed=(s.x + mixed) / 2, move=move)

    def vectors(self) -> int:
        return 1


@ALGORITHMS.register("pg-extra")
@dataclass(frozen=True)
class PgExtra(StepsizeMethod):
    """PG-EXTRA, for composite problems; with h = 0 it is EXTRA.

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule; αβρ < 1.
    """

    name = "pg-extra"
    about = About(
        title="PG-EXTRA",
        citation="Shi, Ling, Wu, Yin: A Proximal Gradient Algorithm for Decentralized Composite Optimization, IEEE "
        "Transactions on Signal Processing 2015",
        bounded_heterogeneity=False,
        mixing="1",
        notes="No local steps: it diverges with W^t for W. Analysed for convex h.",
    )
    periods = (1,)

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> PgExtraState:
        return PgExtraState(t=iteration_zero(x0), x=x0, z=x0, half_mixed=x0, move=zeros_like(x0))

    def step(self, s: PgExtraState, oracle: Oracle, mix: Mix, kind: str) -> PgExtraState:
        alpha, mixed = self._alpha(s), mix(s.x)
        move = alpha * oracle.grad(s.x, oracle.sample())
        z = mixed + s.z - s.half_mixed - (move - s.move)  # (EX.2)
        return PgExtraState(t=s.t + 1, x=oracle.prox(z, alpha), z=z, half_mixed=(s.x + mixed) / 2, move=move)

    def vectors(self) -> int:
        return 1
