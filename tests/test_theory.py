"""The theory's numbers against formulas typed anew, against each other, and against Algorithm 1 itself."""

import ast
import sys
from dataclasses import replace
from fractions import Fraction
from math import inf, isclose, sqrt
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mpmath import mpf

import depositum.theory
from depositum.errors import ConfigError
from depositum.theory import (
    Setting,
    bound,
    conditions,
    corollary,
    corollary_bound,
    corollary_setting,
    delta1,
    delta2,
    largest_alpha,
    lemma1_rhs,
    lemma2_model_rhs,
    lemma2_movement_rhs,
    lemma2_tracking_rhs,
    lemma2_variation_rhs,
    lemma3_conditions,
    lemma3_rhs,
    network_lam,
    proposition1_conditions,
    proposition1_rhs,
    proven,
    smallest_steps,
)

RING10 = 0.8726779962499649  # λ of the ring of ten with Metropolis weights: (1 + 2 cos 36°)/3

BASE = Setting(
    n=10,
    lam=RING10,
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
scenes = st.builds(
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


def admissible(scene: Setting, fraction: float = 1.0) -> Setting:
    """The same setting with (a fraction of) the largest admissible stepsize."""
    return replace(scene, alpha=fraction * largest_alpha(scene).alpha)


def exact_margins(s: Setting, lam: float) -> tuple[mpf, mpf]:
    """δ1 and δ2, from the paper's definitions, to fifty digits."""
    with mpmath.workdps(50):
        a, t0, w = mpf(s.alpha) * mpf(s.beta) * mpf(s.rho), mpf(s.period), mpf(lam)
        if lam < 1e-12:
            return (t0**t0 * (1 - a) ** (2 * t0 + 2)) / (1 + t0) ** (t0 + 1), t0**t0 / (1 + t0) ** (t0 + 1)
        return w * (1 - w) * ((1 - a) ** 2 - w ** (1 / t0)), w * (1 - w) * (1 - w ** (1 / t0))


def other_lams(s: Setting) -> list[float]:
    """A fine grid of λ' in [λ, 1), dense towards both ends."""
    inner = 1 / (1 + np.exp(-np.linspace(-12, 12, 4001)))
    return [s.lam, *(s.lam + (1 - s.lam) * inner).tolist()]


# ------------------------------------------------------------------------------------------------------ δ1 and δ2


def test_margins_by_hand() -> None:
    """Breaks on any misread factor: here the roots are rational, and the values exact."""
    assert delta2(1 / 2, 1) == Fraction(1, 8)
    assert isclose(delta2(1 / 4, 2), Fraction(3, 16) * Fraction(1, 2))
    assert isclose(delta2(8 / 27, 3), Fraction(8, 27) * Fraction(19, 27) * Fraction(1, 3))
    assert isclose(delta1(1 / 4, 2, 0.1, 2.0, 0.5), Fraction(3, 16) * (Fraction(81, 100) - Fraction(1, 2)))
    assert [delta2(0.0, t0) for t0 in (1, 2)] == [Fraction(1, 4), pytest.approx(4 / 27)]
    assert isclose(delta2(0.0, 5), Fraction(5**5, 6**6))
    assert isclose(delta1(0.0, 2, 0.1, 2.0, 0.5), Fraction(4, 27) * Fraction(9, 10) ** 6)


@given(scenes)
@settings(deadline=None)
def test_margins_against_the_definitions(s: Setting) -> None:
    """Breaks if the stable forms used (expm1, products) differ from the paper's."""
    assume(s.expansion < 1)
    d1, d2 = exact_margins(s, s.lam)
    assert delta2(s.lam, s.period) == pytest.approx(float(d2), rel=1e-11)
    assert delta1(s.lam, s.period, s.alpha, s.beta, s.rho) == pytest.approx(float(d1), rel=1e-9, abs=1e-14)


def test_margins_at_their_limits() -> None:
    """δ → 0 as λ → 0 or 1, ≈ (1−λ)²/T0 near 1, and a λ that is rounding counts as 0."""
    assert delta2(1e-11, 5) < 1e-10
    assert delta2(0.9999, 5) == pytest.approx(1e-8 / 5, rel=1e-3)
    assert delta1(0.9999, 5) == delta2(0.9999, 5)
    assert delta2(3e-16, 5) == delta2(0.0, 5) == pytest.approx(0.06698, rel=1e-4)


@given(st.floats(1e-6, 0.999), st.integers(1, 30))
@settings(deadline=None)
def test_delta1_is_positive_exactly_below_the_threshold(lam: float, period: int) -> None:
    """Breaks if the weak convexity enters with another power: the sign turns at αβρ = 1 − λ^(1/(2T0))."""
    threshold = 1 - lam ** (1 / (2 * period))
    assert delta1(lam, period, threshold * (1 - 1e-6), 1.0, 1.0) > 0
    assert delta1(lam, period, threshold * (1 + 1e-6), 1.0, 1.0) < 0
    assert delta1(lam, period, 5.0, 1.0, 1.0) < 0  # (1 − αβρ)² is large again there, but the prox is not defined


@given(lams, st.integers(1, 30), st.floats(0, 0.02), st.floats(0, 0.02))
@settings(deadline=None)
def test_margins_fall_with_the_period_and_the_stepsize(lam: float, period: int, one: float, two: float) -> None:
    """The monotonicities that bisection rests on."""
    assert delta2(lam, period + 1) < delta2(lam, period)
    assert delta1(lam, period + 1, one, 1.0, 1.0) < delta1(lam, period, one, 1.0, 1.0)
    low, high = sorted((one, two))
    assert delta1(lam, period, high, 1.0, 1.0) <= delta1(lam, period, low, 1.0, 1.0)


# ------------------------------------------------------------------------------------------------------ conditions


@given(scenes)
@settings(deadline=None, max_examples=40)
def test_conditions_against_the_theorem(s: Setting) -> None:
    """Breaks on a wrong constant, a wrong side, or a λ' that is not admissible or not the best."""
    assume(s.expansion < 1)
    sides = {c.name: (c.left, c.right) for c in conditions(s)}
    eight = 8 * s.alpha**2 * s.L**2
    a = s.alpha * s.beta * s.rho
    assert sides["prox"] == pytest.approx((a, 1 / 48))
    assert sides["contraction"] == pytest.approx((a, 1 - s.lam ** (1 / (2 * s.period))))
    assert sides["smoothness"] == pytest.approx((eight, 1 / 32))
    assert sides["momentum"] == pytest.approx((eight, (1 - s.gamma) ** 2 / 72))
    lam = network_lam(s)
    assert lam == 0 or s.lam <= lam < 1
    d1, d2 = exact_margins(s, lam)
    right = 3 * d1 * d2 / (s.period * (11 * d1 + 9 * s.period))
    assert sides["network"] == pytest.approx((eight, float(right)), rel=1e-6, abs=1e-18)
    assert [c.holds for c in conditions(s)] == [
        a <= 1 / 48 * (1 + 1e-12),
        a < 1 - s.lam ** (1 / (2 * s.period)),
        s.alpha * s.L <= 1 / 16 * (1 + 1e-12),
        s.alpha * s.L <= (1 - s.gamma) / 24 * (1 + 1e-12),
        eight <= right * (1 + 1e-12),
    ]
    assert all(c.slack == c.right - c.left for c in conditions(s))


@given(scenes, st.floats(0, 1))
@settings(deadline=None, max_examples=40)
def test_no_other_lam_does_better(s: Setting, share: float) -> None:
    """The search over λ' is at least as good as λ itself and as a fine grid, also where δ1 hardly stays positive."""
    if s.beta * s.rho > 0 and s.lam > 0:  # αβρ up to the threshold, where the peak is narrow
        threshold = 1 - s.lam ** (1 / (2 * s.period))
        s = replace(s, alpha=min(share * threshold / (s.beta * s.rho) + 1e-12, 1.0))
    assume(s.expansion < 1)
    found = conditions(s)[-1].right

    def right(lam: float) -> float:
        d1, d2 = delta1(lam, s.period, s.alpha, s.beta, s.rho), delta2(lam, s.period)
        return 3 * d1 * d2 / (s.period * (11 * d1 + 9 * s.period))

    best = max(map(right, other_lams(s)))
    assert found >= best * (1 - 1e-12) if best > 0 else found == right(s.lam)


def test_a_larger_lam_can_prove_more() -> None:
    """δ1, δ2 → 0 as λ → 0+, so that on a nearly complete graph λ' > λ must win; on a ring λ itself is best."""
    nearly = replace(BASE, lam=1e-4)
    assert network_lam(nearly) == pytest.approx(0.26, abs=0.01)
    assert network_lam(BASE) == BASE.lam
    assert network_lam(replace(BASE, lam=0.0)) == 0.0
    one = replace(BASE, lam=1e-4, period=1)  # λ'(1−λ')² peaks at 1/3
    assert network_lam(one) == pytest.approx(1 / 3, abs=1e-6)


def test_the_ring_admits_a_tiny_stepsize_only() -> None:
    """Theorem 1 on the paper's own stepsize experiment: αL ≈ 1.2e-4, against the 0.005 to 0.1 that it runs."""
    alpha, lam = largest_alpha(BASE)
    assert alpha == pytest.approx(1.218e-4, rel=1e-3)
    assert lam == RING10
    assert largest_alpha(replace(BASE, L=50.0)).alpha == pytest.approx(alpha / 50)


@given(scenes)
@settings(deadline=None, max_examples=40)
def test_largest_alpha_is_where_the_conditions_turn(s: Setting) -> None:
    """All conditions hold just below the largest stepsize, and one is broken just above it; α itself plays no part."""
    alpha, lam = largest_alpha(s)
    assert all(c.holds for c in conditions(replace(s, alpha=alpha * (1 - 1e-6))))
    assert not all(c.holds for c in conditions(replace(s, alpha=alpha * (1 + 1e-6))))
    assert largest_alpha(replace(s, alpha=1e-3)) == (alpha, lam)


@given(lams, st.integers(1, 30))
@settings(deadline=None, max_examples=40)
def test_largest_alpha_in_closed_form_for_convex_h(lam: float, period: int) -> None:
    """With ρ = 0 the margins do not depend on α: the largest α is a maximum over λ' that a grid can take."""
    s = replace(BASE, lam=lam, period=period, gamma=0.0)
    deltas = np.array([delta2(w, period) for w in other_lams(s)])
    network = np.sqrt(3 * deltas**2 / (8 * period * (11 * deltas + 9 * period))).max()
    found = largest_alpha(s).alpha
    assert min(network, 1 / 24) * (1 - 1e-12) <= found <= min(network, 1 / 24) * (1 + 1e-5)


@given(scenes)
@settings(deadline=None, max_examples=25)
def test_remedies_work_and_are_not_timid(s: Setting) -> None:
    """Each remedy alone makes its condition hold; one more unit in its fourth digit would not."""
    for group in (conditions, lemma3_conditions):
        for i, condition in enumerate(group(s)):
            if condition.holds:
                assert condition.remedies == ()
                continue
            assert condition.remedies[0].key == "alpha"
            for remedy in condition.remedies:
                change: dict[str, Any] = {remedy.key: remedy.value}
                assert group(replace(s, **change))[i].holds, remedy
                assert f"{remedy.value:.4g}" in remedy.sentence
                assert remedy.key in remedy.sentence
                more = remedy.value + 1 if remedy.key == "period" else max(remedy.value * 1.0011, 1e-11)
                change = {remedy.key: more}
                assert not group(replace(s, **change))[i].holds, remedy


def test_remedies_name_what_can_help() -> None:
    """Breaks if an alternative that suffices is not offered, or one that does not is."""

    def keys(s: Setting, name: str) -> list[str]:
        return next([r.key for r in c.remedies] for c in conditions(s) if c.name == name)

    hard = replace(BASE, alpha=0.002)
    assert keys(hard, "network") == ["alpha", "period", "lam"]
    assert keys(replace(BASE, alpha=0.05), "network") == ["alpha"]  # αL is beyond what even λ = 0 and T0 = 1 admit
    assert keys(replace(BASE, alpha=0.04), "momentum") == ["alpha", "gamma"]
    assert keys(replace(BASE, alpha=0.0417), "momentum") == ["alpha"]  # γ = 0 would not do
    weak = replace(BASE, alpha=0.03, beta=1.0, rho=1.0)
    assert keys(weak, "prox") == ["alpha", "beta"]
    assert keys(weak, "contraction") == ["alpha", "beta", "period", "lam"]
    needs_averaging = replace(BASE, lam=0.9, period=5, alpha=0.0026)
    sentence = next(r.sentence for r in conditions(needs_averaging)[-1].remedies if r.key == "lam")
    assert sentence == "take a network with lam = 0 (complete, all weights 1/n)"


def test_the_smaller_results_ask_for_less() -> None:
    """Proposition 1's and Lemma 3's conditions, with their own constants."""
    assert [c.name for c in proposition1_conditions(BASE)] == ["smoothness", "prox"]
    assert all(c.holds for c in proposition1_conditions(replace(BASE, alpha=1 / 16)))
    assert not proposition1_conditions(replace(BASE, alpha=1 / 16 + 1e-6))[0].holds
    d = delta2(RING10, 5)
    edge = d / (5 * sqrt(8))
    assert all(c.holds for c in lemma3_conditions(replace(BASE, alpha=edge * (1 - 1e-9))))
    assert not lemma3_conditions(replace(BASE, alpha=edge * (1 + 1e-9)))[1].holds


@given(scenes)
@settings(deadline=None, max_examples=40)
def test_theorem_1_implies_lemma_3_and_proposition_1(s: Setting) -> None:
    """Theorem 1 is proved from both: its conditions must be the stronger ones."""
    s = admissible(s)
    assert all(c.holds for c in (*proposition1_conditions(s), *lemma3_conditions(s)))


# ----------------------------------------------------------------------------------------------------------- bound


def exact_terms(s: Setting, lam: float) -> list[mpf]:
    """The five terms of (T1i), typed anew from the paper."""
    d1, d2 = exact_margins(s, lam)
    with mpmath.workdps(50):
        n, t0, g, a, big_l, sig, b = map(mpf, (s.n, s.period, s.gamma, s.alpha, s.L, s.sigma2, s.batch_size))
        steps = mpf(s.T + 1)
        down = b * (d1 * d2 - 8 * t0**2 * (a * big_l) ** 2)
        return [
            8 * mpf(s.gap) / (a * steps),
            142 * sig / (n * b * (1 - g) * steps),
            2 * t0 * (11 * d1 + 6 * t0) * (1 - g) * sig / (down * steps),
            355 * (1 - g) * sig / (2 * n * b),
            16 * t0 * (11 * d1 + 6 * t0) * (1 - g) ** 2 * sig / down,
        ]


@given(scenes, st.floats(0.01, 1))
@settings(deadline=None, max_examples=40)
def test_bound_is_the_theorems_at_the_best_lam(s: Setting, fraction: float) -> None:
    """Each term against (T1i) typed anew, and the total no larger than at any other λ' of a fine grid."""
    s = admissible(s, fraction)
    found = bound(s)
    assert found.proven
    assert list(found.terms.values()) == pytest.approx([float(t) for t in exact_terms(s, found.lam)], rel=1e-6)
    assert found.total == pytest.approx(sum(found.terms.values()))
    for lam in other_lams(s)[::20]:
        d1, d2 = exact_margins(s, lam)
        if d1 > 0 and d1 * d2 > 8 * s.period**2 * (s.alpha * s.L) ** 2:
            assert found.total <= float(sum(exact_terms(s, lam))) * (1 + 1e-9)


def test_without_noise_the_rate_is_one_over_t() -> None:
    """σ = 0 leaves 8[φ(x0) − φ*]/(α(T+1)) alone."""
    s = replace(admissible(BASE), sigma2=0.0)
    assert bound(s).total == bound(s).gap == pytest.approx(8 * 0.7 / (s.alpha * 500))
    assert bound(replace(s, steps=5000)).total == pytest.approx(bound(s).total / 10)


def test_a_bound_that_says_nothing_is_infinite_and_not_proven() -> None:
    """Breaks if a negative denominator gives a negative 'bound', or a number beyond the conditions is called one."""
    assert bound(BASE).total == inf
    assert not bound(BASE).proven
    assert not bound(replace(BASE, sigma2=0.0)).proven
    assert bound(replace(BASE, sigma2=0.0)).total < inf
    between = replace(BASE, alpha=largest_alpha(BASE).alpha * 1.5)  # Lemma 3's condition holds, Theorem 1's does not
    assert all(c.holds for c in lemma3_conditions(between))
    assert bound(between).total < inf
    assert not bound(between).proven


@given(scenes, st.floats(0.01, 1), st.floats(0, 1e6))
@settings(deadline=None, max_examples=80)
def test_the_theorem_follows_from_its_lemmas(s: Setting, fraction: float, mapping: float) -> None:
    """Substitute Lemmas 1 to 3 into Proposition 1 as the proof does, for any Σ‖G(x, y)‖²: (T1i) must come out.

    Breaks if any constant in the proposition, the lemmas, the conditions or the bound is too small or too large for
    the others.
    """
    s = admissible(s, fraction)
    lam = bound(s).lam
    tracking = lemma3_rhs(s, mapping, lam)
    model = lemma2_model_rhs(s, tracking, lam)
    estimation = lemma1_rhs(s, lemma2_movement_rhs(s, mapping, model))
    mean = proposition1_rhs(s, mapping, estimation, model, tracking) / (s.n * s.steps)
    assert mean <= bound(s).total * (1 + 1e-9) + 1e-9 * mapping / (s.n * s.steps)


# ------------------------------------------------------------------------------------------------------ Corollary 1


def test_the_schedule_by_hand() -> None:
    """B = ⌈√n⌉, 1 − γ = √(n/(T+1)), α = √n/(24L√(T+1))."""
    s = corollary(n=10, steps=1000, L=2.0)
    assert (s.batch_size, s.gamma, s.alpha) == (4, pytest.approx(0.9), pytest.approx(0.1 / 48))
    assert [corollary(n, n, 1.0).batch_size for n in (1, 2, 4, 5, 9, 16, 17)] == [1, 2, 2, 3, 3, 4, 5]
    assert corollary(n=7, steps=7, L=1.0).gamma == 0
    with pytest.raises(ConfigError, match=r"steps: 6 given; .* as clients \(7\)"):
        corollary(n=7, steps=6, L=1.0)


@given(scenes)
@settings(deadline=None, max_examples=40)
def test_corollary_bound_rounds_the_theorems_up(s: Setting) -> None:
    """(C1i) is (T1i) at the schedule with a few terms rounded up: never smaller, and equal in its first term."""
    found, direct = corollary_bound(s), bound(corollary_setting(s))
    assert found.gap == pytest.approx(direct.gap, rel=1e-9)
    assert found.estimation >= (direct.estimation + direct.estimation_start) * (1 - 1e-9)
    assert found.tracking >= (direct.tracking + direct.tracking_start) * (1 - 1e-9)
    assert found.proven == direct.proven
    assert found.lam == direct.lam


def test_corollary_bound_by_hand() -> None:
    """(C1i) typed anew, at a setting where all its terms matter."""
    s = replace(BASE, n=9, lam=0.0, period=2, steps=9 * 10**4, L=2.0, gap=3.0, sigma2=5.0)
    d = 4 / 27
    network = 2 * (11 * d + 12) * 5 / (d * d - 9 * 4 / (72 * 9e4)) * (2 / 9e4**1.5 + 16 * 3 / 9e4)
    assert corollary_bound(s).terms == {
        "objective gap": pytest.approx(192 * 2 * 3 / 900),
        "estimation": pytest.approx(320 * 5 / (9 * 300)),
        "tracking": pytest.approx(network),
    }
    assert corollary_bound(s).total == pytest.approx(1.28 + 1600 / 2700 + network)


@given(scenes)
@settings(deadline=None, max_examples=40)
def test_smallest_steps_is_where_the_conditions_begin_to_hold(s: Setting) -> None:
    """At the smallest T+1, and beyond, the schedule satisfies Theorem 1; one iteration fewer and it does not."""
    s = replace(s, lam=min(s.lam, 0.99))
    steps = smallest_steps(s)
    assert steps is not None
    for enough in (steps, steps + 1, 3 * steps):
        assert proven(corollary_setting(replace(s, steps=enough)))
    if steps > s.n:
        assert not proven(corollary_setting(replace(s, steps=steps - 1)))


def test_smallest_steps_on_the_papers_networks() -> None:
    """n/(24αL)² with the largest admissible αL: 1.2 million on the ring, n when W = J and T0 = 1."""
    expected = 10 / (24 * largest_alpha(replace(BASE, gamma=0.0)).alpha) ** 2
    assert smallest_steps(BASE) == pytest.approx(expected, rel=1e-5)
    assert smallest_steps(BASE) == pytest.approx(1.17e6, rel=0.01)
    assert smallest_steps(replace(BASE, lam=0.0, period=1)) == 10
    assert smallest_steps(replace(BASE, lam=0.999999, period=50)) is None
    # The `clients` experiment, n = 16 on a complete graph with T0 = 10 and 801 iterations, lies outside.
    assert smallest_steps(replace(BASE, n=16, lam=0.0, period=10)) > 10**4


def test_corollary_gains_from_clients() -> None:
    """Linear speedup: four times the clients halve the bound, once T is large enough for the network's term."""
    few, many = (corollary_bound(replace(BASE, n=n, lam=0.0, period=1, steps=10**12)) for n in (16, 64))
    assert few.gap == pytest.approx(2 * many.gap)
    assert few.estimation == pytest.approx(4 * many.estimation)
    assert few.tracking == pytest.approx(many.tracking / 2, rel=1e-3)
    assert many.total <= few.total / 2
    assert many.tracking < 0.01 * many.total


# ------------------------------------------------------------------------------- the lemmas, and Algorithm 1 itself


def test_lemmas_by_hand() -> None:
    """Each right-hand side at round numbers, typed anew."""
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


@given(scenes, st.floats(0.01, 1), st.floats(0, 1e6))
@settings(deadline=None, max_examples=40)
def test_lemma_3_is_lemma_2_closed(s: Setting, fraction: float, mapping: float) -> None:
    """Going once round Lemma 2's loop from Lemma 3's bound must return that bound: it is the loop's fixed point."""
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
    """Algorithm 1 on f_i = ½(x − c_i)ᵀA_i(x − c_i) with MCP, plainly; the sums of the lemmas, averaged over seeds.

    A_i ≼ L·I, mini-batch gradients are exact ones with Gaussian noise of variance σ²/B, and c_i differ widely.
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
    # φ* ≥ 0, since all f_i and h are, and h(0) = 0.
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

    Breaks if a right-hand side is too small by more than the proofs' own slack: a lost factor n, T0, 1/α² or 1/B.
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


# --------------------------------------------------------------------------------------------------------- the rest


def test_the_numbers_in_the_docs() -> None:
    """The page's table of admissible αL per graph and period, and its example of λ', are what the code says."""
    page = (Path(__file__).parents[1] / "docs" / "theory.md").read_text()
    for graph, lam in (("ring", RING10), ("2-hop ring", 0.6472), ("3-hop ring", 0.3740), ("complete", 0.0)):
        cells = next(line for line in page.splitlines() if line.startswith(f"| {graph} |")).split("|")[3:-1]
        alphas = [largest_alpha(replace(BASE, lam=lam, period=period)).alpha for period in (1, 2, 5, 10)]
        assert [float(cell) for cell in cells] == pytest.approx(alphas, rel=0.05)
    assert "With T0 = 5 and λ = 0.05, this raises the admissible αL from 8.7e-4 to 1.8e-3." in page
    d = delta2(0.05, 5)
    assert sqrt(3 * d * d / (8 * 5 * (11 * d + 45))) == pytest.approx(8.7e-4, rel=0.01)
    assert largest_alpha(replace(BASE, lam=0.05)).alpha == pytest.approx(1.84e-3, rel=0.01)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("n", 0, "a whole number, at least 1"),
        ("period", 2.5, "a whole number, at least 1"),
        ("steps", inf, "a whole number, at least 1"),
        ("lam", 1.0, r"in \[0, 1\)"),
        ("gamma", -0.1, r"in \[0, 1\)"),
        ("alpha", 0.0, "above 0"),
        ("L", float("nan"), "above 0"),
        ("rho", -1.0, "at least 0"),
        ("sigma2", inf, "at least 0"),
    ],
)
def test_impossible_settings_are_refused(key: str, value: float, allowed: str) -> None:
    """Breaks if a number the theorem cannot mean gets as far as a formula."""
    change: dict[str, Any] = {key: value}
    with pytest.raises(ConfigError, match=rf"{key}: .* given; it must be {allowed}"):
        replace(BASE, **change)


def test_theory_knows_of_numbers_only() -> None:
    """Breaks if the theory begins to import tensors, networks or problems."""
    for file in Path(depositum.theory.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            for module in modules:
                own = module == "depositum.errors" or module.startswith("depositum.theory")
                assert own or module.partition(".")[0] in sys.stdlib_module_names, (file.name, module)
