"""The conditions of Theorem 1, Proposition 1 and Lemma 3, changes that would satisfy them, and the largest stepsize."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Context
from typing import Any, NamedTuple

from depositum.theory.margins import ZERO, best_lam, margins
from depositum.theory.setting import Setting

#: Relative tolerance of the conditions: the schedule of Corollary 1 satisfies the momentum condition with equality.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Remedy:
    """A change of one quantity that makes a violated condition hold: any value of `key` up to `value`."""

    key: str  #: a field of `Setting`
    value: float  #: rounded down to four digits, which is sufficient too
    sentence: str


@dataclass(frozen=True)
class Condition:
    """One condition, `left ≤ right` (or `<`), with remedies if it is violated."""

    name: str
    formula: str
    left: float
    right: float
    holds: bool
    remedies: tuple[Remedy, ...]  #: each is sufficient by itself, the stepsize first; empty if the condition holds

    @property
    def slack(self) -> float:
        """Right − left; negative if the condition is violated."""
        return self.right - self.left


class LargestStepsize(NamedTuple):
    """The largest stepsize that Theorem 1 admits, and the λ' that admits it."""

    alpha: float
    lam: float


def network_objective(period: int) -> Callable[[float, float], float]:
    """3δ1δ2 / (T0 (11δ1 + 9T0)), the upper limit of Theorem 1 on 8α²L², as a function of (δ1, δ2)."""
    return lambda d1, d2: 3 * d1 * d2 / (period * (11 * d1 + 9 * period))


def network_lam(setting: Setting) -> float:
    """The λ' at which the network condition of Theorem 1 has the largest right-hand side."""
    return best_lam(setting, network_objective(setting.period))


@dataclass(frozen=True)
class _Rule:
    """A condition as a function of the setting, which lowering one of `keys` may satisfy."""

    name: str
    formula: str
    sides: Callable[[Setting], tuple[float, float]]
    keys: tuple[str, ...]
    strict: bool = False

    def holds(self, setting: Setting) -> bool:
        left, right = self.sides(setting)
        return left < right if self.strict else left <= right * (1 + ROUNDING)

    def apply(self, setting: Setting) -> Condition:
        left, right = self.sides(setting)
        holds = self.holds(setting)
        remedies = [] if holds else [_remedy(setting, key, self.holds) for key in self.keys]
        return Condition(self.name, self.formula, left, right, holds, tuple(r for r in remedies if r is not None))


def _network_sides(s: Setting) -> tuple[float, float]:
    return 8 * (s.alpha * s.L) ** 2, network_objective(s.period)(*margins(s, network_lam(s)))


def _closure_sides(s: Setting) -> tuple[float, float]:
    d1, d2 = margins(s, best_lam(s, lambda d1, d2: d1 * d2))
    return 8 * (s.period * s.alpha * s.L) ** 2, d1 * d2


_PROX = _Rule("prox", "αβρ ≤ 1/48", lambda s: (s.expansion, 1 / 48), ("alpha", "beta"))
_CONTRACTION = _Rule(
    "contraction",
    "αβρ < 1 − λ^(1/(2T0))",
    lambda s: (s.expansion, 1 - (0.0 if s.lam < ZERO else s.lam) ** (1 / (2 * s.period))),
    ("alpha", "beta", "period", "lam"),
    strict=True,
)
_SMOOTHNESS = _Rule("smoothness", "8α²L² ≤ 1/32", lambda s: (8 * (s.alpha * s.L) ** 2, 1 / 32), ("alpha",))
_MOMENTUM = _Rule(
    "momentum", "8α²L² ≤ (1−γ)²/72", lambda s: (8 * (s.alpha * s.L) ** 2, (1 - s.gamma) ** 2 / 72), ("alpha", "gamma")
)
_NETWORK = _Rule("network", "8α²L² ≤ 3δ1δ2/(T0(11δ1+9T0))", _network_sides, ("alpha", "beta", "period", "lam"))
_CLOSURE = _Rule("closure", "8T0²α²L² < δ1δ2", _closure_sides, ("alpha", "beta", "period", "lam"), strict=True)

_THEOREM1 = (_PROX, _CONTRACTION, _SMOOTHNESS, _MOMENTUM, _NETWORK)


def conditions(setting: Setting) -> tuple[Condition, ...]:
    """The conditions of Theorem 1, with the network condition at the best λ'.

    >>> ring = Setting(n=10, lam=0.8727, period=5, beta=1e-5, rho=0.0, gamma=0.5, alpha=0.05, L=3.5, sigma2=4.0,
    ...                batch_size=64, steps=500, gap=0.7)
    >>> for condition in conditions(ring):
    ...     print(condition.name, condition.holds, *(remedy.sentence for remedy in condition.remedies), sep=" · ")
    prox · True
    contraction · True
    smoothness · False · use alpha ≤ 0.01785
    momentum · False · use alpha ≤ 0.005952
    network · False · use alpha ≤ 3.48e-05
    """
    return tuple(rule.apply(setting) for rule in _THEOREM1)


def conditions_hold(setting: Setting) -> bool:
    """Whether all conditions of Theorem 1 hold."""
    return all(rule.holds(setting) for rule in _THEOREM1)


def proposition1_conditions(setting: Setting) -> tuple[Condition, ...]:
    """The conditions of Proposition 1: αL ≤ 1/16 (written as 8α²L² ≤ 1/32, as in Theorem 1) and αβρ ≤ 1/48."""
    return _SMOOTHNESS.apply(setting), _PROX.apply(setting)


def lemma3_conditions(setting: Setting) -> tuple[Condition, ...]:
    """The conditions of Lemma 3: αβρ < 1 − λ^(1/(2T0)), and 8T0²α²L² < δ1δ2 at the λ' that maximises δ1δ2."""
    return _CONTRACTION.apply(setting), _CLOSURE.apply(setting)


def largest_alpha(setting: Setting) -> LargestStepsize:
    """The largest stepsize for which all conditions of Theorem 1 hold, regardless of the α of the setting.

    >>> ring = Setting(n=10, lam=0.8727, period=5, beta=1e-5, rho=0.0, gamma=0.5, alpha=0.05, L=1.0, sigma2=4.0,
    ...                batch_size=64, steps=500, gap=0.7)
    >>> alpha, lam = largest_alpha(ring)
    >>> f"{alpha:.4g}", lam  # here the best λ' is λ itself
    ('0.0001218', 0.8727)
    """
    # The momentum condition limits αL to (1 − γ)/24, below the 1/16 of the smoothness condition.
    top = replace(setting, alpha=(1 - setting.gamma) / (24 * setting.L))
    alpha = _largest(top, "alpha", conditions_hold)
    assert alpha is not None
    return LargestStepsize(alpha, network_lam(replace(setting, alpha=alpha)))


def _largest(setting: Setting, key: str, holds: Callable[[Setting], bool]) -> float | None:
    """The largest value of `key`, up to that of the setting, for which `holds` is true, or None.

    Bisection is valid because lowering a key never violates a condition: α and β increase the left sides and decrease
    δ1; γ decreases a right side; δ1 and δ2 decrease as T0 increases, for every λ'; a smaller λ admits additional λ';
    and every right side increases with δ1 and δ2.
    """

    def fits(value: float) -> bool:
        change: dict[str, Any] = {key: value}
        return holds(replace(setting, **change))

    integer = key == "period"
    low, high = (1.0 if integer else 0.0), float(getattr(setting, key))
    if fits(high):
        return high
    if key != "alpha" and not fits(low):  # α = 0 is not a stepsize, but sufficiently small ones always fit
        return None
    while high - low > (1 if integer else 1e-14 * high):
        middle = (low + high) // 2 if integer else (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


_SENTENCES = {
    "alpha": "use alpha ≤ {value:.4g}",
    "beta": "use beta ≤ {value:.4g}",
    "gamma": "use gamma ≤ {value:.4g}",
    "period": "use period ≤ {value:d}",
    "lam": "use a network with lam ≤ {value:.4g}",
}
_EXACT_AVERAGING = "use a network with lam = 0 (complete, all weights 1/n)"


def rounded_down(value: float, digits: int = 4) -> float:
    """Round an upper limit down to some digits, so that the printed value satisfies it.

    >>> rounded_down(0.0123456)
    0.01234
    """
    return float(Context(prec=digits, rounding=ROUND_FLOOR).create_decimal(value))


def _remedy(setting: Setting, key: str, holds: Callable[[Setting], bool]) -> Remedy | None:
    """The largest value of `key` for which `holds` is true, as a remedy, or None."""
    value = _largest(setting, key, holds)
    if value is None:
        return None
    if key == "period":
        return Remedy(key, int(value), _SENTENCES[key].format(value=int(value)))
    if key == "lam" and value < ZERO:
        return Remedy(key, 0.0, _EXACT_AVERAGING)
    value = rounded_down(value)
    return Remedy(key, value, _SENTENCES[key].format(value=value))
