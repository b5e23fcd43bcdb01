"""Settings for the tests of the theory."""

from dataclasses import replace

import mpmath
import numpy as np
from hypothesis import strategies as st
from mpmath import mpf

from depositum.theory import (
    Setting,
    largest_alpha,
)

RING10_LAM = 0.8726779962499649  # λ of the ring of ten with Metropolis weights: (1 + 2 cos 36°)/3

BASE = Setting(
    n=10,
    lam=RING10_LAM,
    period=5,
    beta=1e-5,
    rho=0.0,
    gamma=0.5,
    alpha=0.05,
    L=1.0,
    sigma2=4.0,
    batch_size=64,
    steps=500,
    gap=0.7,
)

lams = st.one_of(st.just(0.0), st.floats(1e-6, 0.999))
theory_settings = st.builds(
    Setting,
    n=st.integers(1, 100),
    lam=lams,
    period=st.integers(1, 30),
    beta=st.floats(0, 2),
    rho=st.floats(0, 2),
    gamma=st.floats(0, 0.999),
    alpha=st.floats(1e-6, 1),
    L=st.floats(0.01, 100),
    sigma2=st.floats(0, 10),
    batch_size=st.integers(1, 64),
    steps=st.integers(100, 10**6),
    gap=st.floats(0, 10),
)


def admissible(setting: Setting, fraction: float = 1.0) -> Setting:
    """The same setting with a fraction of the largest admissible stepsize."""
    return replace(setting, alpha=fraction * largest_alpha(setting).alpha)


def exact_margins(s: Setting, lam: float) -> tuple[mpf, mpf]:
    """δ1 and δ2 from the definitions in the paper, to fifty digits."""
    with mpmath.workdps(50):
        a, t0, w = mpf(s.alpha) * mpf(s.beta) * mpf(s.rho), mpf(s.period), mpf(lam)
        if lam < 1e-12:
            return (t0**t0 * (1 - a) ** (2 * t0 + 2)) / (1 + t0) ** (t0 + 1), t0**t0 / (1 + t0) ** (t0 + 1)
        return w * (1 - w) * ((1 - a) ** 2 - w ** (1 / t0)), w * (1 - w) * (1 - w ** (1 / t0))


def lam_grid(s: Setting) -> list[float]:
    """A fine grid of λ' in [λ, 1), denser towards both ends."""
    inner = 1 / (1 + np.exp(-np.linspace(-12, 12, 4001)))
    return [s.lam, *(s.lam + (1 - s.lam) * inner).tolist()]
