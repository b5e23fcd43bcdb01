"""Test cases for all registered regularizers, and their definitions in NumPy.

A registered regularizer is tested with its default parameters; `EXAMPLES` has parameters for those that have no
defaults or need several cases.
"""

from dataclasses import dataclass, field
from math import inf, sqrt

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from depositum.layout import Layout
from depositum.regularizers import (
    REGULARIZERS,
    build,
)

LAYOUT = Layout.from_shapes({"first.weight": (3, 4), "first.bias": (3,), "second.weight": (2, 1, 2)})
D = LAYOUT.size

EXAMPLES = {
    "elastic-net": [{}, {"k": 0.3}],
    "mcp": [{}, {"lam": 0.6, "theta": 1.5}],
    "scad": [{"lam": 0.8}, {"lam": 0.5, "a": 2.2}],
    "box": [{"low": -0.5, "high": 1.25}, {"low": 0.3, "high": 0.3}],
    "l2-ball": [{"radius": 1.5}],
    "l1-ball": [{"radius": 2.0}],
    "simplex": [{}, {"total": 3.0}],
}

SPECS = [{name: parameters} for name in REGULARIZERS for parameters in EXAMPLES.get(name, [{}])]
SPECS += [  # sums over groups of parameters
    [
        {"mcp": {}, "on": "first.weight", "scale": 0.5},
        {"simplex": {}, "on": "*.bias"},
        {"nuclear": {}, "on": "second.*", "scale": 2.0},
    ],
    {"scad": {"lam": 1.0}, "on": "!*.bias", "scale": 1.5},
    {"group-lasso": {}, "scale": 0.7},
]


@dataclass(frozen=True)
class Case:
    """A regularizer bound to the layout, and the largest prox step at which it is tested."""

    spec: object
    h: object = field(init=False)
    largest_step: float = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "h", build(self.spec).bind(LAYOUT))
        object.__setattr__(self, "largest_step", 0.9 / self.h.rho if self.h.rho else 3.0)

    @property
    def name(self):
        return next(iter(self.spec)) if isinstance(self.spec, dict) else "sum"


CASES = [Case(spec) for spec in SPECS]


def only(condition):
    """Parametrize a test over the cases that satisfy a condition."""
    chosen = [case for case in CASES if condition(case)]
    assert chosen, "no case satisfies the condition"
    return pytest.mark.parametrize("case", chosen, ids=lambda case: str(case.spec).replace("'", ""))


every = only(lambda case: True)
every_indicator = only(lambda case: case.h.indicator)
every_finite = only(lambda case: not case.h.indicator)
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])

# Errors show at kinks and ties: exact zeros and equal coordinates are drawn as often as other values.
numbers = st.one_of(
    st.sampled_from([0.0, 0.5, 1.0, -1.0, 2.0]), st.floats(-6, 6, width=32).filter(lambda v: v == 0 or abs(v) > 1e-6)
)
rows = arrays(np.float64, (2, D), elements=numbers).map(torch.from_numpy)
shares = st.floats(0.05, 1.0)
thorough = settings(max_examples=20, deadline=None)


def draw(*shape, seed=0, dtype=torch.float64, scale=2.0):
    return (scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))).to(dtype)


def feasible(h, x):
    """A point with finite h: x itself, or its projection where h is ∞ (a sum may contain both kinds)."""
    return torch.where(h.value(x).isfinite().unsqueeze(-1), x, h.prox(x, 1e-3))


def dot(a, b):
    return (a * b).sum(-1)


# Values by definition, in NumPy


def mcp_term(t, lam, theta):
    return lam * abs(t) - t * t / (2 * theta) if abs(t) <= theta * lam else theta * lam**2 / 2


def scad_term(t, lam, a):
    if abs(t) <= lam:
        return lam * abs(t)
    if abs(t) <= a * lam:
        return (-t * t + 2 * a * lam * abs(t) - lam**2) / (2 * (a - 1))
    return (a + 1) * lam**2 / 2


def weights_of(x):
    return [x[:12].reshape(3, 4), x[15:].reshape(2, 2)]


def zero_if(condition):
    return 0.0 if condition else inf


DEFINITIONS = {
    "zero": lambda x, h: 0.0,
    "none": lambda x, h: 0.0,
    "l1": lambda x, h: sum(abs(t) for t in x),
    "l2": lambda x, h: sqrt(sum(t * t for t in x)),
    "squared-l2": lambda x, h: sum(t * t for t in x) / 2,
    "elastic-net": lambda x, h: sum(abs(t) + h.k / 2 * t * t for t in x),
    "mcp": lambda x, h: sum(mcp_term(t, h.lam, h.theta) for t in x),
    "scad": lambda x, h: sum(scad_term(t, h.lam, h.a) for t in x),
    "box": lambda x, h: zero_if(all(h.low <= t <= h.high for t in x)),
    "nonnegative": lambda x, h: zero_if(all(t >= 0 for t in x)),
    "l2-ball": lambda x, h: zero_if(sum(t * t for t in x) <= h.radius**2 + 1e-12),
    "l1-ball": lambda x, h: zero_if(sum(abs(t) for t in x) <= h.radius + 1e-12),
    "simplex": lambda x, h: zero_if(all(t >= 0 for t in x) and abs(sum(x) - h.total) < 1e-12),
    "group-lasso": lambda x, h: sum(np.linalg.norm(unit) for weight in weights_of(x) for unit in weight),
    "nuclear": lambda x, h: sum(np.trace(matrix_root(weight.T @ weight)) for weight in weights_of(x)),
}


def matrix_root(a):
    values, vectors = np.linalg.eigh(a)
    return vectors @ np.diag(np.sqrt(values.clip(min=0))) @ vectors.T
