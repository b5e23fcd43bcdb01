"""The contraction margins δ1 and δ2, and the choice of the λ' at which they are evaluated.

The only property of the network that the proofs use is ‖W − J‖ ≤ λ. The results for λ therefore hold for every λ' in
[λ, 1), and since δ1 and δ2 vanish as λ → 0 (where the formulas for λ > 0 are loose), some λ' > λ often gives more.
"""

from collections.abc import Callable
from math import exp, expm1, inf, log, log1p

from depositum.theory.setting import Setting

#: A λ below this is a rounding error: the network averages exactly, and the formulas for λ = 0 apply.
ZERO = 1e-12


def delta1(lam: float, period: int, alpha: float = 0.0, beta: float = 0.0, rho: float = 0.0) -> float:
    """δ1, the contraction margin of the model consensus; not positive if αβρ ≥ 1 − λ^(1/(2 T0)).

    >>> round(delta1(0.5, period=1, alpha=0.1, beta=1.0, rho=0.5), 6)  # 0.5 · 0.5 · (0.95² − 0.5)
    0.100625
    """
    expansion = min(alpha * beta * rho, 1.0)  # beyond 1 the prox is not defined, and (1 − αβρ)² would increase again
    if lam < ZERO:
        return delta2(lam, period) * (1 - expansion) ** (2 * period + 2)
    return lam * (1 - lam) * (-expm1(log(lam) / period) - expansion * (2 - expansion))


def delta2(lam: float, period: int) -> float:
    """δ2, the contraction margin of the tracking consensus.

    >>> delta2(0.5, period=1), delta2(0.0, period=1)
    (0.125, 0.25)
    """
    if lam < ZERO:
        return (period / (1 + period)) ** period / (1 + period)
    return lam * (1 - lam) * -expm1(log(lam) / period)


def margins(setting: Setting, lam: float) -> tuple[float, float]:
    """(δ1, δ2) of a setting at λ' = `lam`."""
    return delta1(lam, setting.period, setting.alpha, setting.beta, setting.rho), delta2(lam, setting.period)


def best_lam(setting: Setting, objective: Callable[[float, float], float]) -> float:
    """The λ' in [λ, 1) that maximises `objective(δ1, δ2)`; for λ = 0, including the formulas for λ = 0.

    In u = −log λ', both log δ1 and log δ2 are concave: each is a sum of −u, log(1 − e^(−u)) and log(q − e^(−u/T0)).
    Every objective used in this package increases with both margins and is log-concave in u where it is positive, so
    it has a single maximum, which golden-section search finds. The maximum is at u ≤ u0 + 2, where
    u0 = −2 T0 log(1 − αβρ) is the point at which δ1 becomes positive: beyond u0 + 2 both margins decrease, since
    d log δ/du ≤ −1 + 1/u + 1/(u − u0) ≤ 0.
    """

    def value(lam: float) -> float:
        return objective(*margins(setting, lam))

    start = -2 * setting.period * log1p(-setting.expansion) if setting.expansion < 1 else inf
    end = -log(setting.lam) if setting.lam >= ZERO else inf
    if start >= end:
        return setting.lam
    best = exp(-_golden_section_maximum(lambda u: value(exp(-u)), start, min(end, start + 2)))
    return max((setting.lam, best), key=value)


def _golden_section_maximum(function: Callable[[float], float], low: float, high: float) -> float:
    """The maximiser of a unimodal function on (low, high)."""
    golden = (5**0.5 - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(80):
        if at_left < at_right:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = function(right)
        else:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = function(left)
    return left if at_left > at_right else right
