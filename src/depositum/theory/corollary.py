"""Corollary 1: the batch size, momentum and stepsize that give the rate O(1/√(nT)), and the smallest T for it."""

from dataclasses import dataclass, replace
from math import isqrt, sqrt

from depositum.errors import ConfigError
from depositum.theory.bound import tracking_factor, tracking_objective
from depositum.theory.conditions import conditions_hold
from depositum.theory.margins import best_lam
from depositum.theory.setting import Setting


@dataclass(frozen=True)
class CorollarySchedule:
    """The parameters that Corollary 1 prescribes for n clients, T + 1 iterations and smoothness L."""

    batch_size: int
    gamma: float
    alpha: float


@dataclass(frozen=True)
class CorollaryBound:
    """The three terms of (C1i)."""

    gap: float  #: of order 1/√(nT)
    estimation: float  #: of order 1/(n√T)
    tracking: float  #: of order √n/T, with a constant that depends on the network
    lam: float  #: the λ' in [λ, 1) that minimises the total
    proven: bool  #: whether the conditions of Theorem 1 hold for the schedule

    @property
    def terms(self) -> dict[str, float]:
        """The three terms by name."""
        return {"objective gap": self.gap, "estimation": self.estimation, "tracking": self.tracking}

    @property
    def total(self) -> float:
        """The right-hand side of (C1i)."""
        return self.gap + self.estimation + self.tracking


def corollary_schedule(n: int, steps: int, L: float) -> CorollarySchedule:
    """B = ⌈√n⌉, 1 − γ = √(n/(T+1)), α = √n/(24L√(T+1)), for `steps` = T+1 ≥ n iterations.

    >>> corollary_schedule(n=16, steps=1600, L=2.0)
    CorollarySchedule(batch_size=4, gamma=0.9, alpha=0.002083333333333333)
    """
    if steps < n:
        raise ConfigError("steps", f"{steps} given; Corollary 1 needs at least as many iterations as clients ({n})")
    gamma = 1 - sqrt(n / steps)
    # α = (1 − γ)/(24L) uses the rounded γ, so that the momentum condition, an equality in the paper, still holds.
    return CorollarySchedule(batch_size=isqrt(n - 1) + 1, gamma=gamma, alpha=(1 - gamma) / (24 * L))


def corollary_setting(setting: Setting) -> Setting:
    """The same problem, network and iterations with the batch size, momentum and stepsize of Corollary 1."""
    s = corollary_schedule(setting.n, setting.steps, setting.L)
    return replace(setting, batch_size=s.batch_size, gamma=s.gamma, alpha=s.alpha)


def corollary_bound(setting: Setting) -> CorollaryBound:
    """(C1i) for the problem, network and iterations of the setting; the schedule replaces its α, γ and B."""
    s = corollary_setting(setting)
    # With the α of the schedule, 8T0²(αL)² is the nT0²/(72(T+1)) of (C1i).
    lam = best_lam(s, tracking_objective(s))
    tracking = s.period * tracking_factor(s, lam) * s.sigma2 if s.sigma2 > 0 else 0.0
    return CorollaryBound(
        gap=192 * s.L * s.gap / sqrt(s.n * s.steps),
        estimation=320 * s.sigma2 / (s.n * sqrt(s.steps)),
        tracking=tracking * (2 / s.steps**1.5 + 16 * sqrt(s.n) / s.steps),
        lam=lam,
        proven=conditions_hold(s),
    )


def smallest_steps(setting: Setting) -> int | None:
    """The smallest T+1 for which the schedule of Corollary 1 satisfies the conditions of Theorem 1; None beyond 2⁶².

    In theory it always exists, as λ < 1: the stepsize decreases with T, and every condition except momentum, which
    holds with equality, is an upper limit on the stepsize. For the same reason every larger T+1 is sufficient too, so
    that bisection is valid.
    """

    def fits(steps: int) -> bool:
        return conditions_hold(corollary_setting(replace(setting, steps=steps)))

    limit = 2**62
    low = high = setting.n
    while not fits(high):
        if high >= limit:
            return None
        low, high = high, min(2 * high, limit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
