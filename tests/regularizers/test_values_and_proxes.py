"""Every regularizer against its definition: value, prox, subdifferential, and the properties that the theory uses."""

from math import inf

import numpy as np
import pyproximal
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from depositum.regularizers import (
    MCP,
    SCAD,
)
from tests.support.regularizer_cases import (
    DEFINITIONS,
    D,
    dot,
    draw,
    every,
    every_finite,
    every_indicator,
    feasible,
    only,
    rows,
    shares,
    thorough,
    weights_of,
)

# --- the value, against the definition written out in NumPy -----------------------------------------------------------


@only(lambda case: case.name in DEFINITIONS and "scale" not in case.spec and "on" not in case.spec)
def test_value_matches_the_definition(case):
    """Detects a wrong constant, branch or grouping of columns."""
    x = torch.cat([draw(6, D), draw(4, D, seed=1, scale=0.05), torch.zeros(1, D, dtype=torch.float64)])
    x = torch.cat([x, case.h.prox(draw(4, D, seed=2), 0.5)])  # inside the set, for the indicators
    expected = [DEFINITIONS[case.name](row, case.h) for row in x.numpy()]
    np.testing.assert_allclose(case.h.value(x), expected, rtol=1e-9, atol=1e-7 if case.name == "nuclear" else 1e-11)


@every_indicator
def test_indicator_is_infinite_outside(case):
    """Breaks if the tolerance accepts points that are outside by more than rounding."""
    x = case.h.prox(draw(5, D), 1.0)
    outside = x + 0.01 * (draw(5, D) - x)
    assert (case.h.value(outside) == inf).all()
    assert (case.h.subdifferential_distance(outside, draw(5, D, seed=1)) == inf).all()


# --- the prox, against independent minimisers -------------------------------------------------------------------------


def brute_force(h, z, tau):
    """argmin_p h(p) + (p − z)²/(2τ) of one coordinate, by a fine grid that is refined around the best point."""
    centre, half_width = 0.0, 8.0
    for _ in range(6):
        grid = torch.linspace(centre - half_width, centre + half_width, 20_001, dtype=torch.float64)
        objective = h.value(grid.unsqueeze(-1)) + (grid - z).square() / (2 * tau)
        centre = float(grid[objective.argmin()])
        half_width /= 50
    return centre


@pytest.mark.slow
@only(lambda case: case.h.separable and case.name in DEFINITIONS and "on" not in case.spec)
@pytest.mark.parametrize("share", [0.1, 0.6, 1.0])
def test_separable_prox_is_the_brute_force_minimiser(case, share):
    """Detects any error in a prox formula: its full range is compared with a search of the objective."""
    tau = share * case.largest_step
    z = torch.linspace(-6, 6, 41, dtype=torch.float64)
    z = torch.cat([z, torch.linspace(-0.5, 0.5, 11, dtype=torch.float64)])
    found = torch.tensor([brute_force(case.h, float(v), tau) for v in z], dtype=torch.float64)
    torch.testing.assert_close(case.h.prox(z.unsqueeze(-1), tau).squeeze(-1), found, rtol=0, atol=2e-6)


@pytest.mark.slow
@every
@thorough
@given(z=rows, q=rows, share=shares)
def test_prox_minimises_a_strongly_convex_objective(case, z, q, share):
    """The objective at any q exceeds that at P(z) by at least (1/τ − ρ)/2 ‖q − P(z)‖², only for the minimiser P(z)."""
    tau = share * case.largest_step
    p = case.h.prox(z, tau)
    for near in (1.0, 1e-3):
        other = feasible(case.h, p + near * (q - p))
        at_p, at_other = (case.h.value(x) + (x - z).square().sum(-1) / (2 * tau) for x in (p, other))
        margin = (1 / tau - case.h.rho) / 2 * (other - p).square().sum(-1)
        assert (at_other - at_p - margin >= -1e-9 * (1 + at_p)).all()


def search(objective, start, constraints, bounds=None):
    """The minimiser found by SLSQP."""
    found = minimize(objective, start, bounds=bounds, constraints=constraints, options={"ftol": 1e-14, "maxiter": 500})
    return found.x


@only(lambda case: case.name in ("simplex", "l1-ball", "l2-ball"))
def test_projection_is_the_constrained_minimiser(case):
    """Detects a wrong threshold: SLSQP finds the nearest point of the set independently."""
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


def pyproximal_prox(case):
    """The prox of pyproximal on one row and its accuracy; None if pyproximal does not have this operator."""
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
    elif case.name == "group-lasso":  # its groups are columns, ours are the rows of each weight
        groups = [(pyproximal.L21(ndim=w.shape[1]), w.shape) for w in weights_of(np.zeros(D))]
        matrices = [
            lambda z, tau, op=op, shape=shape: op.prox(z.reshape(shape).T.ravel(), tau).reshape(shape[::-1]).T.ravel()
            for op, shape in groups
        ]
    else:
        return None
    return lambda z, tau: np.concatenate([matrices[0](z[:12], tau), z[12:15], matrices[1](z[15:], tau)]), 1e-12


@only(lambda case: "on" not in case.spec and "scale" not in case.spec and pyproximal_prox(case) is not None)
def test_prox_agrees_with_pyproximal(case):
    """Detects a different convention (what τ and the parameters multiply) from an independent implementation."""
    theirs, accuracy = pyproximal_prox(case)
    for seed, tau in enumerate([0.1, 0.5, 0.9]):
        z = draw(D, seed=seed)
        ours = case.h.prox(z, tau * min(1, case.largest_step))
        expected = theirs(z.numpy().copy(), tau * min(1, case.largest_step))
        np.testing.assert_allclose(ours, np.asarray(expected).ravel(), atol=accuracy)


# --- the properties that the theory uses ------------------------------------------------------------------------------


@pytest.mark.slow
@only(lambda case: case.h.convex)
@thorough
@given(z=rows, w=rows, share=shares)
def test_prox_of_convex_is_firmly_nonexpansive(case, z, w, share):
    """⟨P(z) − P(w), z − w⟩ ≥ ‖P(z) − P(w)‖², which only proximal operators of convex functions satisfy."""
    tau = share * case.largest_step
    difference = case.h.prox(z, tau) - case.h.prox(w, tau)
    assert (dot(difference, z - w) >= dot(difference, difference) - 1e-10).all()


@pytest.mark.slow
@only(lambda case: not case.h.convex)
@thorough
@given(z=rows, w=rows, share=shares)
def test_prox_of_weakly_convex_is_lipschitz(case, z, w, share):
    """The paper's lemma on weak convexity (iii): P_τ is 1/(1 − τρ)-Lipschitz; a jump at a breakpoint violates it."""
    tau = share * case.largest_step
    difference = (case.h.prox(z, tau) - case.h.prox(w, tau)).norm(dim=-1)
    assert (difference <= (z - w).norm(dim=-1) / (1 - tau * case.h.rho) + 1e-10).all()


@only(lambda case: not case.h.convex)
def test_lipschitz_constant_is_attained(case):
    """Breaks if `rho` is larger than necessary, which would forbid valid steps."""
    tau = 0.7 * case.largest_step
    t = torch.linspace(0, 6, 6001, dtype=torch.float64)
    z = t[:, None, None] * torch.eye(D, dtype=torch.float64)
    slopes = case.h.prox(z, tau).diff(dim=0).norm(dim=-1) / z.diff(dim=0).norm(dim=-1)
    assert float(slopes.max()) == pytest.approx(1 / (1 - tau * case.h.rho), rel=1e-6)


@pytest.mark.slow
@every_finite
@thorough
@given(x=rows, y=rows, t=st.floats(0, 1))
def test_weak_convexity(case, x, y, t):
    """h + ρ/2‖·‖² is convex along segments: breaks if `rho` is too small."""

    def convexified(point):
        return case.h.value(point) + case.h.rho / 2 * point.square().sum(-1)

    x, y = feasible(case.h, x), feasible(case.h, y)
    chord = t * convexified(x) + (1 - t) * convexified(y)
    assert (convexified(t * x + (1 - t) * y) <= chord + 1e-10 * (1 + chord)).all()


@only(lambda case: not case.h.convex)
def test_rho_is_tight(case):
    """The most negative curvature of h along the axes is −ρ: h + ρ'/2‖·‖² with a smaller ρ' is not convex."""
    step = 1e-3
    t = step * torch.arange(0, 6001, dtype=torch.float64)
    start = case.h.prox(torch.zeros(D, dtype=torch.float64), 1e-3)  # 0, except for the constraints in a sum
    values = case.h.value(start + t[:, None, None] * torch.eye(D, dtype=torch.float64))
    values = values[:, values.isfinite().all(0)]
    curvature = (values[2:] - 2 * values[1:-1] + values[:-2]) / step**2
    assert float(-curvature.min()) == pytest.approx(case.h.rho, rel=1e-4)


@pytest.mark.parametrize("h", [MCP(0.7, 2.5), SCAD(0.7, 3.1), SCAD()], ids=str)
def test_continuous_at_breakpoints(h):
    """Value, slope and prox agree on both sides of every breakpoint: detects a wrong branch or bound."""
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


@pytest.mark.slow
@every
@thorough
@given(z=rows, share=shares)
def test_prox_satisfies_its_optimality_condition(case, z, share):
    """(z − P(z))/τ ∈ ∂h(P(z)): prox and subdifferential belong to the same h."""
    tau = share * case.largest_step
    p = case.h.prox(z, tau)
    assert (case.h.subdifferential_distance(p, (z - p) / tau) <= 1e-8 / tau).all()


@every
@pytest.mark.parametrize("shrink", [0.0, 0.3, 0.9, 30.0])
def test_subdifferential_distance_is_the_limit_of_prox_steps(case, shrink):
    """dist(v, ∂h(x)) = lim ‖P_t(x + t v) − x‖/t as t → 0, at points with and without kinks.

    The right side uses only the prox: detects a distance to a set larger or smaller than ∂h(x).
    """
    x = case.h.prox(draw(40, D, seed=3, scale=1.0), min(shrink, 1.0) * case.largest_step)
    x = case.h.prox(x / max(1.0, shrink), 1e-9)  # also well inside a ball, and still on a simplex
    v = torch.cat([draw(15, D, seed=4, scale=0.4), draw(15, D, seed=5, scale=3.0), -2 * x[30:35], 2 * x[35:]])
    t = 1e-9
    limit = (case.h.prox(x + t * v, t) - x).norm(dim=-1) / t
    torch.testing.assert_close(case.h.subdifferential_distance(x, v), limit, rtol=2e-5, atol=2e-5)
