"""Corollary 1: the batch size, momentum and stepsize that give O(1/√(nT)), and from which T on."""

from dataclasses import dataclass, replace
from math import isqrt, sqrt

from depositum.errors import ConfigError
from depositum.theory.bound import tracking_factor, tracking_figure
from depositum.theory.conditions import proven
from depositum.theory.margins import best_lam
from depositum.theory.setting import Setting


@dataclass(frozen=True)
class Schedule:
    """What Corollary 1 prescribes for a number of clients, of iterations, and L."""

    batch_size: int
    gamma: float
    alpha: float


@dataclass(frozen=True)
class CorollaryBound:
    """The three terms of (C1i)."""

    gap: float  #: of order 1/√(nT)
    estimation: float  #: of order 1/(n√T)
    tracking: float  #: of order √n/T, with the network's constant
    lam: float  #: the λ' in [λ, 1) that makes the total smallest
    proven: bool  #: whether Theorem 1's conditions hold for the schedule

    @property
    def terms(self) -> dict[str, float]:
        """The three terms by name."""
        return {"objective gap": self.gap, "estimation": self.estimation, "tracking": self.tracking}

    @property
    def total(self) -> float:
        """The right-hand side of (C1i)."""
        return self.gap + self.estimation + self.tracking


def corollary(n: int, steps: int, L: float) -> Schedule:
    """B = ⌈√n⌉, 1 − γ = √(n/(T+1)), α = √n/(24L√(T+1)), for `steps` = T+1 ≥ n iterations.

    >>> corollary(n=16, steps=1600, L=2.0)
    Schedule(batch_size=4, gamma=0.9, alpha=0.002083333333333333)
    """
    if steps < n:
        raise ConfigError("steps", f"{steps} given; Corollary 1 asks for at least as many iterations as clients ({n})")
    gamma = 1 - sqrt(n / steps)
    # α = (1 − γ)/(24L), from the γ that was rounded: on paper the momentum condition is an equality, and so it stays.
    return Schedule(batch_size=isqrt(n - 1) + 1, gamma=gamma, alpha=(1 - gamma) / (24 * L))


def corollary_setting(setting: Setting) -> Setting:
    """The same problem, network and iterations with Corollary 1's batch size, momentum and stepsize."""
    s = corollary(setting.n, setting.steps, setting.L)
    return replace(setting, batch_size=s.batch_size, gamma=s.gamma, alpha=s.alpha)


def corollary_bound(setting: Setting) -> CorollaryBound:
    """(C1i) for the setting's problem, network and iterations; its own α, γ and B are replaced by the schedule's."""
    s = corollary_setting(setting)
    # With the schedule's α, 8T0²(αL)² is (C1i)'s nT0²/(72(T+1)).
    lam = best_lam(s, tracking_figure(s))
    tracking = s.period * tracking_factor(s, lam) * s.sigma2 if s.sigma2 > 0 else 0.0
    return CorollaryBound(
        gap=192 * s.L * s.gap / sqrt(s.n * s.steps),
        estimation=320 * s.sigma2 / (s.n * sqrt(s.steps)),
        tracking=tracking * (2 / s.steps**1.5 + 16 * sqrt(s.n) / s.steps),
        lam=lam,
        proven=proven(s),
    )


def smallest_steps(setting: Setting) -> int | None:
    """The smallest T+1 for which Corollary 1's schedule satisfies Theorem 1's conditions; None beyond 2⁶².

    On paper there always is one, as λ < 1: the stepsize falls with T, and every condition but the momentum's, which
    is met with equality, is a cap on the stepsize. For the same reason every larger T+1 will do too, which is what
    bisection needs.
    """

    def fits(steps: int) -> bool:
        return proven(corollary_setting(replace(setting, steps=steps)))

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
