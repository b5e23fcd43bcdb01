"""The quantities that appear in the paper's theory."""

from dataclasses import dataclass, fields
from math import isfinite

from depositum.errors import ConfigError, is_number, short_repr


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The quantities of one run that Theorem 1 depends on: problem, network and parameters of the algorithm.

    >>> ring = Setting(n=10, lam=0.8727, period=5, beta=1e-5, rho=0.0, gamma=0.5, alpha=0.05, L=3.5, sigma2=4.0,
    ...                batch_size=64, steps=500, gap=0.7)
    >>> ring.T
    499
    """

    n: int  #: number of clients
    lam: float  #: λ = ‖W − J‖, in [0, 1); below 1e-12 it counts as 0
    period: int  #: T0, iterations between exchanges
    beta: float  #: β, the weight of the regularizer
    rho: float  #: ρ, its modulus of weak convexity; 0 if it is convex
    gamma: float  #: γ, the momentum, in [0, 1)
    alpha: float  #: α, the stepsize
    L: float  #: Lipschitz constant of the gradients of all f_i
    sigma2: float  #: σ², the variance of the gradient of one sample; 0 with full gradients
    batch_size: int  #: B, samples per mini-batch
    steps: int  #: T + 1, the number of iterations t = 0 … T
    gap: float  #: φ(x0) − φ*, or an upper bound on it

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not is_number(value):
                raise ConfigError(field.name, f"{short_repr(value)} given; it must be a number")
            allowed, fits = self._range(field.name, value)
            if not (isfinite(value) and fits):
                raise ConfigError(field.name, f"{short_repr(value)} given; it must be {allowed}")

    @staticmethod
    def _range(name: str, value: float) -> tuple[str, bool]:
        """The allowed values of a field in words, and whether `value` is one of them."""
        if name in ("n", "period", "batch_size", "steps"):
            return "a whole number, at least 1", value >= 1 and value % 1 == 0
        if name in ("lam", "gamma"):
            return "in [0, 1)", 0 <= value < 1
        if name in ("alpha", "L"):
            return "above 0", value > 0
        return "at least 0", value >= 0

    @property
    def T(self) -> int:
        """The index of the last iteration: sums "from 0 to T" have `steps` terms."""
        return self.steps - 1

    @property
    def expansion(self) -> float:
        """αβρ: the prox expands distances by at most 1/(1 − αβρ)."""
        return self.alpha * self.beta * self.rho
