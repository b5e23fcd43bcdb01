"""The bound of Theorem 1 on the mean stationarity (1/(n(T+1))) Σ_t E[s(x^t, ν̄^t)], term by term."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from depositum.theory.conditions import conditions_hold
from depositum.theory.margins import best_lam, margins
from depositum.theory.setting import Setting


@dataclass(frozen=True)
class Bound:
    """The five terms of (T1i), in the order of the paper."""

    gap: float  #: the objective gap φ(x0) − φ*, at the rate 1/(α(T+1))
    estimation_start: float  #: gradient estimation: the first mini-batch, which the momentum forgets at the rate 1 − γ
    tracking_start: float  #: tracking consensus: the same effect
    estimation: float  #: gradient estimation: independent of T, of order 1 − γ
    tracking: float  #: tracking consensus: independent of T, of order (1 − γ)²
    lam: float  #: the λ' in [λ, 1) that minimises the total
    proven: bool  #: whether the conditions of Theorem 1 hold; if not, the total is not a bound

    @property
    def terms(self) -> dict[str, float]:
        """The five terms by name."""
        return {
            "objective gap": self.gap,
            "estimation, start": self.estimation_start,
            "tracking, start": self.tracking_start,
            "estimation": self.estimation,
            "tracking": self.tracking,
        }

    @property
    def total(self) -> float:
        """The right-hand side of (T1i)."""
        return sum(self.terms.values())


def tracking_objective(setting: Setting) -> Callable[[float, float], float]:
    """The reciprocal of `tracking_factor`, to be maximised over λ'; negative where that is infinite.

    The network condition of Theorem 1 is equivalent to this value being at least 8T0(αL)²/3: the λ' that is best for
    the bound is admissible whenever any λ' is.
    """
    loss = 8 * (setting.period * setting.alpha * setting.L) ** 2

    def objective(d1: float, d2: float) -> float:
        margin = d1 * d2 - loss
        return margin / (11 * d1 + 6 * setting.period) if margin > 0 else margin

    return objective


def tracking_factor(setting: Setting, lam: float) -> float:
    """(11δ1 + 6T0) / (δ1δ2 − 8T0²(αL)²) at λ' = `lam`; infinite if the condition of Lemma 3 does not hold."""
    reciprocal = tracking_objective(setting)(*margins(setting, lam))
    return 1 / reciprocal if reciprocal > 0 else inf


def bound(setting: Setting) -> Bound:
    """(T1i) at the λ' that minimises it; with σ = 0 only the first term remains, with the rate O(1/T).

    If δ1δ2 ≤ 8T0²(αL)² for every λ', the tracking terms are infinite: the theorem gives no bound.

    >>> exact = Setting(n=10, lam=0.0, period=1, beta=0.0, rho=0.0, gamma=0.0, alpha=1/24, L=0.1, sigma2=0.0,
    ...                 batch_size=1, steps=192, gap=1.0)
    >>> bound(exact).total, bound(exact).proven
    (1.0, True)
    """
    s = setting
    lam = best_lam(s, tracking_objective(s))
    keep = 1 - s.gamma
    estimation = s.sigma2 / (s.n * s.batch_size)
    tracking = s.period * tracking_factor(s, lam) * s.sigma2 / s.batch_size if s.sigma2 > 0 else 0.0
    return Bound(
        gap=8 * s.gap / (s.alpha * s.steps),
        estimation_start=142 * estimation / (keep * s.steps),
        tracking_start=2 * keep * tracking / s.steps,
        estimation=355 / 2 * keep * estimation,
        tracking=16 * keep**2 * tracking,
        lam=lam,
        proven=conditions_hold(s),
    )
