"""Every regularizer against its definition: one battery, run over all that are registered.

A regularizer that is registered is tested by that alone, with its default parameters; `EXAMPLES` gives parameters to
those that have none by default or deserve several.
"""

from dataclasses import dataclass, field
from math import inf, sqrt

import numpy as np
import pyproximal
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize

from depositum.errors import RegularizerError
from depositum.layout import Layout
from depositum.regularizers import (
    L1,
    MCP,
    REGULARIZERS,
    SCAD,
    Box,
    ElasticNet,
    L1Ball,
    L2Ball,
    Nonnegative,
    NuclearNorm,
    Simplex,
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
SPECS += [  # sums over groups of parameters are regularizers like the others
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
    chosen = [case for case in CASES if condition(case)]
    assert chosen, "a test that would run on nothing"
    return pytest.mark.parametrize("case", chosen, ids=lambda case: str(case.spec).replace("'", ""))


every = only(lambda case: True)
every_indicator = only(lambda case: case.h.indicator)
every_finite = only(lambda case: not case.h.indicator)
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])

# Kinks and ties are where formulas go wrong: exact zeros and equal coordinates are drawn as often as anything.
numbers = st.one_of(
    st.sampled_from([0.0, 0.5, 1.0, -1.0, 2.0]), st.floats(-6, 6, width=32).filter(lambda v: v == 0 or abs(v) > 1e-6)
)
rows = arrays(np.float64, (2, D), elements=numbers).map(torch.from_numpy)
shares = st.floats(0.05, 1.0)
thorough = settings(max_examples=20, deadline=None)


def draw(*shape, seed=0, dtype=torch.float64, scale=2.0):
    return (scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))).to(dtype)


def feasible(h, x):
    """A point with h finite: x itself, or its projection where h is ∞ (groups may mix both kinds)."""
    return torch.where(h.value(x).isfinite().unsqueeze(-1), x, h.prox(x, 1e-3))


def dot(a, b):
    return (a * b).sum(-1)


# --- the value, against the definition written out in NumPy -----------------------------------------------------------


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


@only(lambda case: case.name in DEFINITIONS and "scale" not in case.spec and "on" not in case.spec)
def test_value_is_the_definition(case):
    """Breaks with a wrong constant, a wrong branch or a wrong grouping of columns."""
    x = torch.cat([draw(6, D), draw(4, D, seed=1, scale=0.05), torch.zeros(1, D, dtype=torch.float64)])
    x = torch.cat([x, case.h.prox(draw(4, D, seed=2), 0.5)])  # inside the set, for the indicators
    expected = [DEFINITIONS[case.name](row, case.h) for row in x.numpy()]
    np.testing.assert_allclose(case.h.value(x), expected, rtol=1e-9, atol=1e-7 if case.name == "nuclear" else 1e-11)


@every_indicator
def test_indicator_is_infinite_outside(case):
    """Breaks if the tolerance swallows points that are outside by more than rounding."""
    x = case.h.prox(draw(5, D), 1.0)
    outside = x + 0.01 * (draw(5, D) - x)
    assert (case.h.value(outside) == inf).all()
    assert (case.h.subdifferential_distance(outside, draw(5, D, seed=1)) == inf).all()


# --- the prox, against independent minimisers -------------------------------------------------------------------------


def brute_force(h, z, tau):
    """argmin over p of h(p) + (p − z)²/(2τ) of one coordinate: a fine grid, refined around the best point."""
    centre, half_width = 0.0, 8.0
    for _ in range(6):
        grid = torch.linspace(centre - half_width, centre + half_width, 20_001, dtype=torch.float64)
        objective = h.value(grid.unsqueeze(-1)) + (grid - z).square() / (2 * tau)
        centre = float(grid[objective.argmin()])
        half_width /= 50
    return centre


@only(lambda case: case.h.separable and case.name in DEFINITIONS and "on" not in case.spec)
@pytest.mark.parametrize("share", [0.1, 0.6, 1.0])
def test_separable_prox_is_the_brute_force_minimiser(case, share):
    """Breaks with any error in a prox formula: the whole of its range is compared with a search of the objective."""
    tau = share * case.largest_step
    z = torch.linspace(-6, 6, 41, dtype=torch.float64)
    z = torch.cat([z, torch.linspace(-0.5, 0.5, 11, dtype=torch.float64)])
    found = torch.tensor([brute_force(case.h, float(v), tau) for v in z], dtype=torch.float64)
    torch.testing.assert_close(case.h.prox(z.unsqueeze(-1), tau).squeeze(-1), found, rtol=0, atol=2e-6)


@every
@thorough
@given(z=rows, q=rows, share=shares)
def test_prox_minimises_a_strongly_convex_objective(case, z, q, share):
    """The objective at any q is above that at P(z) by (1/τ − ρ)/2 ‖q − P(z)‖², and only the minimiser has this."""
    tau = share * case.largest_step
    p = case.h.prox(z, tau)
    for near in (1.0, 1e-3):
        other = feasible(case.h, p + near * (q - p))
        at_p, at_other = (case.h.value(x) + (x - z).square().sum(-1) / (2 * tau) for x in (p, other))
        margin = (1 / tau - case.h.rho) / 2 * (other - p).square().sum(-1)
        assert (at_other - at_p - margin >= -1e-9 * (1 + at_p)).all()


def search(objective, start, constraints, bounds=None):
    """The minimiser that SLSQP finds."""
    found = minimize(objective, start, bounds=bounds, constraints=constraints, options={"ftol": 1e-14, "maxiter": 500})
    return found.x


@only(lambda case: case.name in ("simplex", "l1-ball", "l2-ball"))
def test_projection_is_the_constrained_minimiser(case):
    """Breaks with a wrong threshold: SLSQP finds the nearest point of the set by itself."""
    h = case.h
    for seed in range(4):
        z = draw(5, seed=seed).numpy()
        if case.name == "simplex":
            rules = [{"type": "eq", "fun": lambda p: p.sum() - h.total}]
            nearest = search(lambda p, z=z: ((p - z) ** 2).sum(), np.ones(5), rules, bounds=[(0, None)] * 5)
        elif case.name == "l2-ball":
            rules = [{"type": "ineq", "fun": lambda p: h.radius**2 - (p * p).sum()}]
            nearest = search(lambda p, z=z: ((p - z) ** 2).sum(), np.zeros(5), rules)
        else:  # p = a − b with a, b ≥ 0 makes the constraint smooth
            rules = [{"type": "ineq", "fun": lambda ab: h.radius - ab.sum()}]
            ab = search(
                lambda ab, z=z: ((ab[:5] - ab[5:] - z) ** 2).sum(), np.full(10, 0.1), rules, bounds=[(0, None)] * 10
            )
            nearest = ab[:5] - ab[5:]
        np.testing.assert_allclose(h.prox(torch.from_numpy(z), 1.0), nearest, atol=2e-5)


def peer(case):
    """The same operator of pyproximal on one row, and how exactly it computes it; `None` where it has none."""
    h = case.h
    exact = {
        "l1": lambda: pyproximal.L1(sigma=1.0),
        "squared-l2": lambda: pyproximal.L2(sigma=1.0),
        "l2": lambda: pyproximal.Euclidean(sigma=1.0),
        "scad": lambda: pyproximal.SCAD(sigma=h.lam, a=h.a),
        "box": lambda: pyproximal.Box(lower=h.low, upper=h.high),
        "nonnegative": lambda: pyproximal.Box(lower=0.0),
        "l2-ball": lambda: pyproximal.EuclideanBall(0.0, h.radius),
    }
    bisected = {  # these search for their threshold
        "simplex": lambda: pyproximal.Simplex(D, h.total, xtol=1e-10, maxiter=200),
        "l1-ball": lambda: pyproximal.L1Ball(D, h.radius, xtol=1e-10, maxiter=200),
    }
    if case.name in exact:
        return exact[case.name]().prox, 1e-12
    if case.name in bisected:
        return bisected[case.name]().prox, 1e-8
    if case.name == "nuclear":
        matrices = [pyproximal.Nuclear(weight.shape).prox for weight in weights_of(np.zeros(D))]
    elif case.name == "group-lasso":  # its groups are columns, and ours are the rows of each weight
        groups = [(pyproximal.L21(ndim=w.shape[1]), w.shape) for w in weights_of(np.zeros(D))]
        matrices = [
            lambda z, tau, op=op, shape=shape: op.prox(z.reshape(shape).T.ravel(), tau).reshape(shape[::-1]).T.ravel()
            for op, shape in groups
        ]
    else:
        return None
    return lambda z, tau: np.concatenate([matrices[0](z[:12], tau), z[12:15], matrices[1](z[15:], tau)]), 1e-12


@only(lambda case: "on" not in case.spec and "scale" not in case.spec and peer(case) is not None)
def test_prox_agrees_with_pyproximal(case):
    """Breaks if a convention (what τ and the parameters multiply) differs from an independent implementation."""
    theirs, accuracy = peer(case)
    for seed, tau in enumerate([0.1, 0.5, 0.9]):
        z = draw(D, seed=seed)
        ours = case.h.prox(z, tau * min(1, case.largest_step))
        expected = theirs(z.numpy().copy(), tau * min(1, case.largest_step))
        np.testing.assert_allclose(ours, np.asarray(expected).ravel(), atol=accuracy)


# --- the properties the theory uses -----------------------------------------------------------------------------------


@only(lambda case: case.h.convex)
@thorough
@given(z=rows, w=rows, share=shares)
def test_prox_of_convex_is_firmly_nonexpansive(case, z, w, share):
    """⟨P(z) − P(w), z − w⟩ ≥ ‖P(z) − P(w)‖², which holds for proximal operators of convex functions alone."""
    tau = share * case.largest_step
    moved = case.h.prox(z, tau) - case.h.prox(w, tau)
    assert (dot(moved, z - w) >= dot(moved, moved) - 1e-10).all()


@only(lambda case: not case.h.convex)
@thorough
@given(z=rows, w=rows, share=shares)
def test_prox_of_weakly_convex_is_lipschitz(case, z, w, share):
    """The paper's Lemma on weak convexity (iii): P_τ is 1/(1 − τρ)-Lipschitz; a jump at a breakpoint would break it."""
    tau = share * case.largest_step
    moved = (case.h.prox(z, tau) - case.h.prox(w, tau)).norm(dim=-1)
    assert (moved <= (z - w).norm(dim=-1) / (1 - tau * case.h.rho) + 1e-10).all()


@only(lambda case: not case.h.convex)
def test_lipschitz_constant_is_attained(case):
    """Breaks if `rho` is larger than it need be, which would forbid steps that are fine."""
    tau = 0.7 * case.largest_step
    t = torch.linspace(0, 6, 6001, dtype=torch.float64)
    z = t[:, None, None] * torch.eye(D, dtype=torch.float64)
    slopes = case.h.prox(z, tau).diff(dim=0).norm(dim=-1) / z.diff(dim=0).norm(dim=-1)
    assert float(slopes.max()) == pytest.approx(1 / (1 - tau * case.h.rho), rel=1e-6)


@every_finite
@thorough
@given(x=rows, y=rows, t=st.floats(0, 1))
def test_weak_convexity(case, x, y, t):
    """The function h + ρ/2‖·‖² is convex along segments: breaks if `rho` is too small."""

    def convexified(point):
        return case.h.value(point) + case.h.rho / 2 * point.square().sum(-1)

    x, y = feasible(case.h, x), feasible(case.h, y)
    chord = t * convexified(x) + (1 - t) * convexified(y)
    assert (convexified(t * x + (1 - t) * y) <= chord + 1e-10 * (1 + chord)).all()


@only(lambda case: not case.h.convex)
def test_rho_is_tight(case):
    """The steepest downward bend of h along the axes is ρ: h + ρ'/2‖·‖² with a smaller ρ' is not convex."""
    step = 1e-3
    t = step * torch.arange(0, 6001, dtype=torch.float64)
    start = case.h.prox(torch.zeros(D, dtype=torch.float64), 1e-3)  # 0, but for the constraints in a sum
    values = case.h.value(start + t[:, None, None] * torch.eye(D, dtype=torch.float64))
    values = values[:, values.isfinite().all(0)]
    bend = (values[2:] - 2 * values[1:-1] + values[:-2]) / step**2
    assert float(-bend.min()) == pytest.approx(case.h.rho, rel=1e-4)


@pytest.mark.parametrize("h", [MCP(0.7, 2.5), SCAD(0.7, 3.1), SCAD()], ids=str)
def test_continuous_at_breakpoints(h):
    """Value, slope and prox agree from both sides of every breakpoint: breaks with a wrong branch or bound."""
    tau = 0.5
    level = h.lam * (h.theta if isinstance(h, MCP) else h.a)
    for point in (h.lam, level):
        x = torch.tensor([[point * (1 - 1e-9)], [point * (1 + 1e-9)]], dtype=torch.float64)
        below, above = h.value(x)
        torch.testing.assert_close(below, above, rtol=1e-8, atol=0)
        below, above = h.interval(x)[0]
        torch.testing.assert_close(below, above, rtol=0, atol=1e-8 * h.lam)
    for point in (tau * h.lam, (1 + tau) * h.lam, level):
        z = torch.tensor([[point * (1 - 1e-9)], [point * (1 + 1e-9)]], dtype=torch.float64)
        below, above = h.prox(z, tau)
        torch.testing.assert_close(below, above, rtol=0, atol=1e-8 * h.lam)


# --- the distance to the subdifferential ------------------------------------------------------------------------------


@every
@thorough
@given(z=rows, share=shares)
def test_prox_satisfies_its_optimality_condition(case, z, share):
    """(z − P(z))/τ ∈ ∂h(P(z)): prox and subdifferential are of the same h."""
    tau = share * case.largest_step
    p = case.h.prox(z, tau)
    assert (case.h.subdifferential_distance(p, (z - p) / tau) <= 1e-8 / tau).all()


@every
@pytest.mark.parametrize("shrink", [0.0, 0.3, 0.9, 30.0])
def test_subdifferential_distance_is_the_limit_of_prox_steps(case, shrink):
    """dist(v, ∂h(x)) = lim ‖P_t(x + t v) − x‖/t as t → 0, at points with and without kinks.

    The right side knows only the prox: breaks if the distance is to a set larger or smaller than ∂h(x).
    """
    x = case.h.prox(draw(40, D, seed=3, scale=1.0), min(shrink, 1.0) * case.largest_step)
    x = case.h.prox(x / max(1.0, shrink), 1e-9)  # also well inside a ball, and still on a simplex
    v = torch.cat([draw(15, D, seed=4, scale=0.4), draw(15, D, seed=5, scale=3.0), -2 * x[30:35], 2 * x[35:]])
    t = 1e-9
    limit = (case.h.prox(x + t * v, t) - x).norm(dim=-1) / t
    torch.testing.assert_close(case.h.subdifferential_distance(x, v), limit, rtol=2e-5, atol=2e-5)


# --- rows, shapes, types, devices -------------------------------------------------------------------------------------


@every
def test_rows_are_independent(case):
    """Breaks if anything is reduced over clients: stacked rows must give what each gives alone, in any shape."""
    z, v, tau = draw(6, D), draw(6, D, seed=1), 0.5 * case.largest_step
    p = case.h.prox(z, tau)
    torch.testing.assert_close(p, torch.stack([case.h.prox(row, tau) for row in z]), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(case.h.value(p), torch.stack([case.h.value(row) for row in p]), rtol=1e-12, atol=1e-13)
    distance = case.h.subdifferential_distance(p, v)
    alone = torch.stack([case.h.subdifferential_distance(*pair) for pair in zip(p, v, strict=True)])
    torch.testing.assert_close(distance, alone, rtol=1e-10, atol=1e-12)
    folded = case.h.prox(z.view(2, 3, D), tau)
    torch.testing.assert_close(folded.view(6, D), p, rtol=1e-12, atol=1e-13)
    assert case.h.value(folded).shape == case.h.subdifferential_distance(folded, folded).shape == (2, 3)
    assert case.h.value(z[0]).shape == case.h.subdifferential_distance(p[0], v[0]).shape == ()


@every
@both_dtypes
def test_tensor_step_equals_number(case, dtype):
    """A step per row, or one for all, of any float dtype, gives what the number gives, in the dtype of z."""
    z, taus = draw(4, D, dtype=dtype), [share * case.largest_step for share in (0.1, 0.4, 0.7, 0.9)]
    tight = {"rtol": 2e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-12}
    for tau_dtype in (dtype, torch.float64):
        common = case.h.prox(z, torch.tensor(taus[1], dtype=tau_dtype))
        torch.testing.assert_close(common, case.h.prox(z, taus[1]), **tight)
        per_row = case.h.prox(z, torch.tensor(taus, dtype=tau_dtype).unsqueeze(-1))
        expected = torch.stack([case.h.prox(row, tau) for row, tau in zip(z, taus, strict=True)])
        torch.testing.assert_close(per_row, expected, **tight)


@every
def test_float32_is_float64_rounded(case):
    """Breaks if float32 rows lose more than rounding, or come back as another dtype."""
    z, v, tau = draw(5, D), draw(5, D, seed=1), 0.5 * case.largest_step
    p = case.h.prox(z, tau)
    low = case.h.prox(z.float(), tau)
    results = (low, case.h.value(low), case.h.subdifferential_distance(low, v.float()))
    assert {result.dtype for result in results} == {torch.float32}
    torch.testing.assert_close(low.double(), p, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(results[1].double(), case.h.value(p), rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(results[2].double(), case.h.subdifferential_distance(p, v), rtol=1e-4, atol=1e-4)


@only(lambda case: case.name != "sum")
@both_dtypes
def test_zero_step(case, dtype):
    """P_0 is the identity to the bit, or the projection: breaks a method whose step decays to nothing."""
    z = draw(4, D, dtype=dtype)
    expected = case.h.prox(z, 1.0) if case.h.indicator else z
    for tau in (0.0, torch.zeros((), dtype=dtype), torch.zeros(4, 1, dtype=dtype)):
        assert torch.equal(case.h.prox(z, tau), expected)


@every
def test_nothing_waits_for_the_device(case):
    """On the meta device there are no values to read and no CPU tensor is welcome: a host sync or a stray mask fails.

    It stands in for a GPU, where both would be slow or wrong.
    """
    z = torch.empty(4, D, device="meta")
    tau = torch.empty(4, 1, device="meta")
    assert case.h.prox(z, tau).device == case.h.prox(z, 0.5 * case.largest_step).device == z.device
    assert case.h.prox(z, torch.tensor(0.5 * case.largest_step)).device == z.device  # a 0-dim step may lie on the host
    assert case.h.value(z).device == case.h.subdifferential_distance(z, z).device == z.device
    assert case.h.value(torch.zeros(D)).device.type == "cpu"  # and back again


@every
def test_prox_is_one_graph(case):
    """Breaks if a compiled step would fall apart at the prox (a Python branch on a tensor)."""
    torch._dynamo.reset()  # the other cases compiled the same method, and its recompilations are limited
    compiled = torch.compile(case.h.prox, backend="eager", fullgraph=True)
    z, tau = draw(3, D), torch.full((3, 1), 0.5 * case.largest_step, dtype=torch.float64)
    torch.testing.assert_close(compiled(z, tau), case.h.prox(z, tau))


@every
def test_diverged_row_stays_alone(case):
    """A NaN row neither raises nor touches the others, and does not come back as a number."""
    z, tau = draw(3, D), 0.5 * case.largest_step
    expected = case.h.prox(z, tau)
    z[1] = torch.nan
    p = case.h.prox(z, tau)
    torch.testing.assert_close(p[[0, 2]], expected[[0, 2]], rtol=1e-12, atol=1e-13)
    assert p[1].isnan().all()
    assert case.h.value(p)[[0, 2]].isfinite().all()
    if case.name not in ("zero", "none"):
        assert not case.h.value(p)[1].isfinite()
        assert not case.h.subdifferential_distance(p, expected)[1].isfinite()


# --- constraints ------------------------------------------------------------------------------------------------------


@every_indicator
@both_dtypes
@pytest.mark.parametrize("scale", [1.0, 1e4], ids=["near", "far"])
def test_projection_is_feasible_and_idempotent(case, dtype, scale):
    """Breaks if far points lose the set to cancellation, or if projecting twice moves a point."""
    p = case.h.prox(draw(20, D, dtype=dtype, scale=scale), 1.0)
    assert (case.h.value(p) == 0).all()
    torch.testing.assert_close(case.h.prox(p, 0.3), p, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)


@every_indicator
@both_dtypes
def test_averages_of_projected_rows_stay_feasible(case, dtype):
    """Breaks if φ becomes ∞ after mixing: a thousand clients, all on the boundary, summed in the worst order."""
    p = case.h.prox(draw(1000, D, dtype=dtype, scale=5.0) + 3, 1.0)
    p = torch.cat([p, p[:1].expand(1000, D)])  # equal rows, whose rounding errors all go one way
    for block in (p[:1000], p[1000:]):
        one_by_one = torch.zeros(D, dtype=dtype)
        for row in block:
            one_by_one += 1e-3 * row
        ring = (block + block.roll(1, 0) + block.roll(-1, 0)) / 3
        assert case.h.value(one_by_one) == case.h.value(block.mean(0)) == 0
        assert (case.h.value(ring) == 0).all()
        assert case.h.subdifferential_distance(one_by_one, torch.zeros(D, dtype=dtype)) == 0


def test_simplex_in_a_million_dimensions():
    """In float32 the sum of a million coordinates, or of what θ leaves of them, is off by more than the tolerance."""
    z = 1 + 1e-6 * draw(2, 1_000_000, dtype=torch.float32)
    z[1, 1:] = 0.01
    assert (Simplex().value(Simplex().prox(z, 1.0)) == 0).all()
    assert (L1Ball(5.0).value(L1Ball(5.0).prox(z, 1.0)) == 0).all()


# --- traits and refusals ----------------------------------------------------------------------------------------------


def test_traits():
    """The moduli and traits as BASELINES states them: 1/θ for MCP, 1/(a − 1) for SCAD, 0 for convex functions."""
    assert MCP(lam=2.0, theta=4.0).rho == 0.25
    assert SCAD(lam=2.0, a=3.0).rho == 0.5
    assert not MCP().convex
    assert not SCAD().convex
    separable = {"zero", "none", "l1", "squared-l2", "elastic-net", "mcp", "scad", "box", "nonnegative"}
    indicators = {"box", "nonnegative", "l2-ball", "l1-ball", "simplex"}
    for case in CASES:
        if case.name in DEFINITIONS:
            assert case.h.separable == (case.name in separable)
            assert case.h.indicator == (case.name in indicators)
            assert case.h.convex == (case.name not in ("mcp", "scad"))


@every
def test_is_a_value(case):
    """Two of the same parameters are equal and hash alike, and none can be changed after it was checked."""
    twin = build(case.spec).bind(LAYOUT)
    assert case.h == twin
    assert hash(case.h) == hash(twin)
    with pytest.raises(AttributeError):
        case.h.lam = 2.0


@every
@pytest.mark.parametrize("tau", [-1e-3, inf, float("nan")])
def test_impossible_step_is_refused(case, tau):
    with pytest.raises(RegularizerError, match="finite and >= 0"):
        case.h.prox(draw(2, D), tau)


@only(lambda case: not case.h.convex)
def test_step_beyond_weak_convexity_is_refused(case):
    """At τρ ≥ 1 the prox may be set-valued; the message has the condition and both numbers, under the caller's key."""
    for tau in (1 / case.h.rho, 1.5 / case.h.rho):
        with pytest.raises(RegularizerError, match=r"^prox: the prox needs tau \* rho < 1") as error:
            case.h.prox(draw(2, D), tau)
        assert repr(tau) in str(error.value)
        assert f"{case.h.rho:.6g}" in str(error.value)
        with pytest.raises(RegularizerError, match="^algorithm.alpha: "):
            case.h.check_step(tau, "algorithm.alpha")
    case.h.check_step(0.999 / case.h.rho)


def test_step_is_refused_where_the_reciprocal_rounds_down():
    """49 · (1/49) is below 1 in floating point, and τ = θ has no prox all the same."""
    assert 49 * (1 / 49) < 1
    with pytest.raises(RegularizerError, match="tau"):
        MCP(theta=49.0).check_step(49.0)


BAD = [
    (ElasticNet, {"k": -0.1}, "k", "k >= 0"),
    (MCP, {"lam": 0.0}, "lam", "lam > 0"),
    (MCP, {"lam": -1.0}, "lam", "lam > 0"),
    (MCP, {"theta": 0.0}, "theta", "theta > 0"),
    (MCP, {"theta": float("nan")}, "theta", "finite theta > 0"),
    (SCAD, {"lam": -1.0}, "lam", "lam > 0"),
    (SCAD, {"a": 2.0}, "a", "a > 2"),
    (SCAD, {"a": inf}, "a", "finite a > 2"),
    (Box, {"low": 1.0, "high": 0.0}, "low", "low <= high"),
    (Box, {"low": -inf, "high": 0.0}, "low", "finite low"),
    (Box, {"low": 0.0, "high": float("nan")}, "high", "finite high"),
    (L2Ball, {"radius": 0.0}, "radius", "radius > 0"),
    (L1Ball, {"radius": -2.0}, "radius", "radius > 0"),
    (Simplex, {"total": 0.0}, "total", "total > 0"),
]


@pytest.mark.parametrize(("make", "parameters", "key", "condition"), BAD, ids=str)
def test_bad_parameter_is_refused(make, parameters, key, condition):
    """The message names the parameter, its value, the regularizer and the condition."""
    with pytest.raises(RegularizerError) as error:
        make(**parameters)
    text = str(error.value)
    assert text.startswith(f"{key}: {parameters[key]!r} given")
    assert make.__name__ in text
    assert condition in text


def test_every_numeric_parameter_refuses_what_is_not_finite():
    """No parameter slips in unchecked: each of every registered regularizer is tried with NaN and ∞."""
    tried = 0
    for case in CASES:
        if case.name not in DEFINITIONS or "on" in case.spec or "scale" in case.spec:
            continue
        for parameter in REGULARIZERS.parameters(case.name):
            for value in (float("nan"), inf):
                given_ = {**case.spec[case.name], parameter: value}
                with pytest.raises(RegularizerError, match=parameter):
                    build({case.name: given_})
                tried += 1
    assert tried >= 16


def test_small_weights_are_not_on_a_boundary_at_zero():
    """In float32 the tolerance is 1e-4, and a weight of 1e-5 is positive all the same: no force may push it up."""
    x = torch.full((D,), 1e-5)
    push_down = -torch.ones(D)
    for h in (Nonnegative(), Box(0.0, 1.0)):
        assert h.subdifferential_distance(x, push_down) == pytest.approx(sqrt(D))
        assert h.subdifferential_distance(0 * x, push_down) == 0
    assert L1().subdifferential_distance(x, torch.zeros(D)) == pytest.approx(sqrt(D))


@both_dtypes
@pytest.mark.parametrize("h", [Box(-0.1, 0.7), L2Ball(0.7), L1Ball(0.7)], ids=str)
def test_averages_on_the_boundary_are_on_the_boundary(h, dtype):
    """A thousand clients agree on a boundary point; their rounded average still carries the outward force."""
    x = h.prox(torch.full((D,), 100.0, dtype=dtype), 1.0)
    average = torch.zeros(D, dtype=dtype)
    for _ in range(1000):
        average += 1e-3 * x
    assert not torch.equal(average, x)
    assert h.subdifferential_distance(average, torch.ones(D, dtype=dtype)) < 1e-3
    assert h.subdifferential_distance(average, -torch.ones(D, dtype=dtype)) == pytest.approx(sqrt(D))


def test_nuclear_prox_to_zero_is_zero():
    """All singular values below τ: exactly zero, not rounding noise, so that sparsity counts it."""
    h = NuclearNorm().bind(LAYOUT)
    p = h.prox(draw(3, D, scale=0.1), 10.0)
    assert p[:, :12].eq(0).all()
    assert p[:, 15:].eq(0).all()
