"""The bounds of the theory against independent formulas, against each other, and against Algorithm 1 itself."""

from dataclasses import replace
from math import inf, sqrt

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mpf

from depositum.errors import ConfigError
from depositum.theory import (
    Setting,
    bound,
    conditions_hold,
    corollary_bound,
    corollary_schedule,
    corollary_setting,
    largest_alpha,
    lemma1_rhs,
    lemma2_model_rhs,
    lemma2_movement_rhs,
    lemma2_tracking_rhs,
    lemma2_variation_rhs,
    lemma3_conditions,
    lemma3_rhs,
    network_lam,
    proposition1_rhs,
    smallest_steps,
)
from tests.support.theory_settings import BASE, admissible, exact_margins, lam_grid, theory_settings

# ----------------------------------------------------------------------------------------------------------- bound


def exact_terms(s: Setting, lam: float) -> list[mpf]:
    """The five terms of (T1i), written independently from the paper."""
    d1, d2 = exact_margins(s, lam)
    with mpmath.workdps(50):
        n, t0, g, a, big_l, sig, b = map(mpf, (s.n, s.period, s.gamma, s.alpha, s.L, s.sigma2, s.batch_size))
        steps = mpf(s.T + 1)
        denominator = b * (d1 * d2 - 8 * t0**2 * (a * big_l) ** 2)
        return [
            8 * mpf(s.gap) / (a * steps),
            142 * sig / (n * b * (1 - g) * steps),
            2 * t0 * (11 * d1 + 6 * t0) * (1 - g) * sig / (denominator * steps),
            355 * (1 - g) * sig / (2 * n * b),
            16 * t0 * (11 * d1 + 6 * t0) * (1 - g) ** 2 * sig / denominator,
        ]


@given(theory_settings, st.floats(0.01, 1))
@settings(deadline=None, max_examples=40)
def test_bound_is_theorem_1_at_the_best_lam(s: Setting, fraction: float) -> None:
    """Each term equals (T1i), and the total is not larger than at any other λ' of a fine grid."""
    s = admissible(s, fraction)
    found = bound(s)
    assert found.proven
    assert list(found.terms.values()) == pytest.approx([float(t) for t in exact_terms(s, found.lam)], rel=1e-6)
    assert found.total == pytest.approx(sum(found.terms.values()))
    for lam in lam_grid(s)[::20]:
        d1, d2 = exact_margins(s, lam)
        if d1 > 0 and d1 * d2 > 8 * s.period**2 * (s.alpha * s.L) ** 2:
            # Numbers below 1e-300 have fewer digits than others.
            assert found.total <= float(sum(exact_terms(s, lam))) * (1 + 1e-9) + 1e-300


def test_without_noise_the_rate_is_one_over_t() -> None:
    """With σ = 0 only 8[φ(x0) − φ*]/(α(T+1)) remains."""
    s = replace(admissible(BASE), sigma2=0.0)
    assert bound(s).total == bound(s).gap == pytest.approx(8 * 0.7 / (s.alpha * 500))
    assert bound(replace(s, steps=5000)).total == pytest.approx(bound(s).total / 10)


def test_outside_the_conditions_the_bound_is_infinite_or_not_proven() -> None:
    """Breaks if a negative denominator gives a negative "bound", or if a number outside the conditions is proven."""
    assert bound(BASE).total == inf
    assert not bound(BASE).proven
    assert not bound(replace(BASE, sigma2=0.0)).proven
    assert bound(replace(BASE, sigma2=0.0)).total < inf
    between = replace(
        BASE, alpha=largest_alpha(BASE).alpha * 1.5
    )  # the condition of Lemma 3 holds, that of Theorem 1 does not
    assert all(c.holds for c in lemma3_conditions(between))
    assert bound(between).total < inf
    assert not bound(between).proven


@given(theory_settings, st.floats(0.01, 1), st.floats(0, 1e6))
@settings(deadline=None, max_examples=80)
def test_the_theorem_follows_from_its_lemmas(s: Setting, fraction: float, mapping: float) -> None:
    """Substituting Lemmas 1 to 3 into Proposition 1, as the proof does for any Σ‖G(x, y)‖², must give (T1i).

    Breaks if any constant in the proposition, the lemmas, the conditions or the bound is inconsistent with the others.
    """
    s = admissible(s, fraction)
    lam = bound(s).lam
    tracking = lemma3_rhs(s, mapping, lam)
    model = lemma2_model_rhs(s, tracking, lam)
    estimation = lemma1_rhs(s, lemma2_movement_rhs(s, mapping, model))
    mean = proposition1_rhs(s, mapping, estimation, model, tracking) / (s.n * s.steps)
    assert mean <= bound(s).total * (1 + 1e-9) + 1e-9 * mapping / (s.n * s.steps)


# ------------------------------------------------------------------------------------------------------ Corollary 1


def test_schedule_values() -> None:
    """B = ⌈√n⌉, 1 − γ = √(n/(T+1)), α = √n/(24L√(T+1))."""
    s = corollary_schedule(n=10, steps=1000, L=2.0)
    assert (s.batch_size, s.gamma, s.alpha) == (4, pytest.approx(0.9), pytest.approx(0.1 / 48))
    assert [corollary_schedule(n, n, 1.0).batch_size for n in (1, 2, 4, 5, 9, 16, 17)] == [1, 2, 2, 3, 3, 4, 5]
    assert corollary_schedule(n=7, steps=7, L=1.0).gamma == 0
    with pytest.raises(ConfigError, match=r"steps: 6 given; .* as clients \(7\)"):
        corollary_schedule(n=7, steps=6, L=1.0)


@given(theory_settings)
@settings(deadline=None, max_examples=40)
def test_corollary_bound_is_not_below_theorem_1(s: Setting) -> None:
    """(C1i) is (T1i) at the schedule with a few terms rounded up, and equal in its first term."""
    found, direct = corollary_bound(s), bound(corollary_setting(s))
    assert found.gap == pytest.approx(direct.gap, rel=1e-9)
    assert found.estimation >= (direct.estimation + direct.estimation_start) * (1 - 1e-9)
    assert found.tracking >= (direct.tracking + direct.tracking_start) * (1 - 1e-9)
    assert found.proven == direct.proven
    assert found.lam == direct.lam


def test_corollary_bound_values() -> None:
    """(C1i) written independently, at a setting where all its terms matter."""
    s = replace(BASE, n=9, lam=0.0, period=2, steps=9 * 10**4, L=2.0, gap=3.0, sigma2=5.0)
    d = 4 / 27
    network = 2 * (11 * d + 12) * 5 / (d * d - 9 * 4 / (72 * 9e4)) * (2 / 9e4**1.5 + 16 * 3 / 9e4)
    assert corollary_bound(s).terms == {
        "objective gap": pytest.approx(192 * 2 * 3 / 900),
        "estimation": pytest.approx(320 * 5 / (9 * 300)),
        "tracking": pytest.approx(network),
    }
    assert corollary_bound(s).total == pytest.approx(1.28 + 1600 / 2700 + network)


@given(theory_settings)
@settings(deadline=None, max_examples=40)
def test_smallest_steps_is_the_first_that_satisfies_the_conditions(s: Setting) -> None:
    """At the smallest T+1 and beyond, the schedule satisfies Theorem 1; with one iteration fewer it does not."""
    s = replace(s, lam=min(s.lam, 0.99))
    steps = smallest_steps(s)
    assert steps is not None
    for enough in (steps, steps + 1, 3 * steps):
        assert conditions_hold(corollary_setting(replace(s, steps=enough)))
    if steps > s.n:
        assert not conditions_hold(corollary_setting(replace(s, steps=steps - 1)))


def test_smallest_steps_on_the_papers_networks() -> None:
    """n/(24αL)² with the largest admissible αL: 1.2 million on the ring, n if W = J and T0 = 1."""
    expected = 10 / (24 * largest_alpha(replace(BASE, gamma=0.0)).alpha) ** 2
    assert smallest_steps(BASE) == pytest.approx(expected, rel=1e-5)
    assert smallest_steps(BASE) == pytest.approx(1.17e6, rel=0.01)
    assert smallest_steps(replace(BASE, lam=0.0, period=1)) == 10
    assert smallest_steps(replace(BASE, lam=0.999999, period=50)) is None
    # The `clients` experiment (n = 16, complete graph, T0 = 10, 801 iterations) is not covered.
    assert smallest_steps(replace(BASE, n=16, lam=0.0, period=10)) > 10**4


def test_corollary_has_linear_speedup() -> None:
    """Four times the clients halve the bound, once T is large enough for the network term."""
    few, many = (corollary_bound(replace(BASE, n=n, lam=0.0, period=1, steps=10**12)) for n in (16, 64))
    assert few.gap == pytest.approx(2 * many.gap)
    assert few.estimation == pytest.approx(4 * many.estimation)
    assert few.tracking == pytest.approx(many.tracking / 2, rel=1e-3)
    assert many.total <= few.total / 2
    assert many.tracking < 0.01 * many.total


# ------------------------------------------------------------------------------- the lemmas, and Algorithm 1 itself


def test_lemma_values() -> None:
    """Each right-hand side at round numbers, written independently."""
    s = replace(
        BASE, n=4, lam=0.0, period=1, gamma=0.75, alpha=0.01, L=2.0, sigma2=8.0, batch_size=2, steps=11, gap=3.0
    )
    assert proposition1_rhs(s, 1.0, 2.0, 3.0, 4.0) == pytest.approx(8 * 4 * 3 / 0.01 - 1 + 142 * 4 * 2 + 5e4 * 3 + 44)
    assert lemma1_rhs(s, 5.0) == pytest.approx(9 * 4 / 4 * 5 + (4 + 12.5 * 0.25) * 1)
    assert lemma2_movement_rhs(s, 2.0, 3.0) == pytest.approx(2e-4 + 12)
    assert lemma2_model_rhs(s, 3.0) == pytest.approx(4e-4 * 3)
    assert lemma2_variation_rhs(s, 3.0) == pytest.approx(24 + 2 * 4 * 0.25 * 4 * (1 + 88 * 0.25))
    assert lemma2_tracking_rhs(s, 3.0) == pytest.approx(12)
    margin = 1 / 16 - 8 * 0.02**2
    noise = 4 * 0.25 * 4 * (1 + 88 * 0.25)
    assert lemma3_rhs(s, 2.0) == pytest.approx(2 * 0.25 * (4e-4 * 2 + noise) / margin)
    with pytest.raises(AssertionError, match="Lemma 3"):
        lemma3_rhs(replace(s, alpha=0.05), 2.0)
    with pytest.raises(AssertionError, match="Proposition 1"):
        proposition1_rhs(replace(s, alpha=0.05), 1.0, 2.0, 3.0, 4.0)
    with pytest.raises(AssertionError, match="λ'"):
        lemma2_tracking_rhs(BASE, 3.0, lam=0.5)


@given(theory_settings, st.floats(0.01, 1), st.floats(0, 1e6))
@settings(deadline=None, max_examples=40)
def test_lemma_3_is_the_fixed_point_of_lemma_2(s: Setting, fraction: float, mapping: float) -> None:
    """Applying the inequalities of Lemma 2 to the bound of Lemma 3 must return that bound."""
    s = admissible(s, fraction)
    lam = network_lam(s)
    tracking = lemma3_rhs(s, mapping, lam)
    movement = lemma2_movement_rhs(s, mapping, lemma2_model_rhs(s, tracking, lam))
    assert lemma2_tracking_rhs(s, lemma2_variation_rhs(s, movement), lam) == pytest.approx(tracking, rel=1e-9)


def mcp_prox(v: np.ndarray, tau: float, theta: float) -> np.ndarray:
    """The prox of τ·MCP(λ=1, θ), a (1/θ)-weakly convex h."""
    shrunk = np.sign(v) * np.maximum(np.abs(v) - tau, 0) / (1 - tau / theta)
    return np.where(np.abs(v) <= theta, shrunk, v)


def run_algorithm1(s: Setting, weights: np.ndarray, nesterov: bool, seeds: int) -> dict[str, float]:
    """The sums of the lemmas for Algorithm 1 on f_i = ½(x − c_i)ᵀA_i(x − c_i) with MCP, averaged over seeds.

    A_i ≼ L·I, mini-batch gradients are exact gradients plus Gaussian noise of variance σ²/B, and the c_i differ widely.
    """
    rng = np.random.default_rng(0)
    n, d, theta = s.n, 6, 1 / s.rho
    curvature = np.linspace(0.1, 1, n * d).reshape(n, d) * s.L
    centres = 3 * rng.standard_normal((n, d))

    def gradients(x: np.ndarray) -> np.ndarray:
        return curvature * (x - centres)

    def noisy(x: np.ndarray) -> np.ndarray:
        return gradients(x) + rng.standard_normal(x.shape) * sqrt(s.sigma2 / s.batch_size / d)

    def prox(v: np.ndarray) -> np.ndarray:
        return mcp_prox(v, s.alpha * s.beta, theta)

    def square(z: np.ndarray) -> float:
        return float((z**2).sum() / seeds)

    def off_mean(z: np.ndarray) -> float:
        return square(z - z.mean(1, keepdims=True))

    x = np.zeros((seeds, n, d))
    nu = mu = noisy(x)
    y = np.broadcast_to(nu.mean(1, keepdims=True), x.shape)
    sums = dict.fromkeys(("stationarity", "mapping", "estimation", "movement", "variation", "model", "tracking"), 0.0)
    for t in range(s.steps):
        half = prox(x - s.alpha * y)
        full = np.stack([gradients(np.broadcast_to(x[:, i : i + 1], x.shape)).mean(1) for i in range(n)], axis=1)
        error = square(gradients(x).mean(1) - nu.mean(1))
        exact = (x - prox(x - s.alpha * full)) / s.alpha
        sums["mapping"] += square((x - half) / s.alpha)
        sums["estimation"] += error
        sums["model"] += off_mean(x)
        sums["tracking"] += off_mean(y)
        sums["stationarity"] += square(exact) + s.L**2 * off_mean(x) + n * error
        mix = weights if t % s.period == 0 else np.eye(n)
        new_x = mix @ half
        g = noisy(new_x)
        mu = s.gamma * mu + (1 - s.gamma) * g
        new_nu = s.gamma * mu + (1 - s.gamma) * g if nesterov else mu
        y = mix @ (y + new_nu - nu)
        sums["movement"] += square(new_x - x)
        sums["variation"] += square(new_nu - nu)
        x, nu = new_x, new_nu
    sums["model_end"], sums["tracking_end"] = sums["model"] + off_mean(x), sums["tracking"] + off_mean(y)
    # φ* ≥ 0, since all f_i and h are nonnegative, and h(0) = 0.
    sums["gap"] = float((curvature * centres**2).sum() / (2 * n))
    return sums


def ring_weights(n: int) -> np.ndarray:
    eye = np.eye(n)
    return (eye + np.roll(eye, 1, axis=1) + np.roll(eye, -1, axis=1)) / 3


@pytest.mark.parametrize("nesterov", [False, True], ids=["polyak", "nesterov"])
@pytest.mark.parametrize("sigma2", [0.0, 50.0])
@pytest.mark.parametrize(("network", "period"), [("ring", 1), ("ring", 4), ("average", 3)])
def test_algorithm_1_obeys_every_inequality(network: str, period: int, sigma2: float, nesterov: bool) -> None:
    """The proposition, the lemmas and the theorem, on the algorithm itself with a nonconvex h.

    Breaks if a right-hand side is too small by more than the slack of the proofs: a lost factor n, T0, 1/α² or 1/B.
    """
    n = 6
    weights = ring_weights(n) if network == "ring" else np.full((n, n), 1 / n)
    lam = float(np.linalg.norm(weights - 1 / n, 2))
    s = replace(
        BASE, n=n, lam=lam, period=period, beta=0.2, rho=0.25, gamma=0.6, L=2.0, sigma2=sigma2, batch_size=4, steps=120
    )
    s = admissible(s)
    sums = run_algorithm1(s, weights, nesterov, seeds=200 if sigma2 else 1)
    s = replace(s, gap=sums["gap"])
    assert sums["estimation"] <= lemma1_rhs(s, sums["movement"])
    assert sums["movement"] <= lemma2_movement_rhs(s, sums["mapping"], sums["model_end"])
    assert sums["variation"] <= lemma2_variation_rhs(s, sums["movement"])
    for other in (s.lam, network_lam(s)):
        assert sums["model_end"] <= lemma2_model_rhs(s, sums["tracking"], other)
        assert sums["tracking_end"] <= lemma2_tracking_rhs(s, sums["variation"], other)
    assert sums["tracking_end"] <= lemma3_rhs(s, sums["mapping"], network_lam(s))
    assert sums["stationarity"] <= proposition1_rhs(
        s, sums["mapping"], sums["estimation"], sums["model"], sums["tracking"]
    )
    assert sums["stationarity"] / (n * s.steps) <= bound(s).total
    assert bound(s).proven
