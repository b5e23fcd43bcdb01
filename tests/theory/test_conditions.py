"""The conditions and stepsizes of the theory against independent formulas and against each other."""

import ast
import sys
from dataclasses import replace
from fractions import Fraction
from math import inf, isclose, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import depositum.theory
from depositum.errors import ConfigError
from depositum.theory import (
    Setting,
    conditions,
    delta1,
    delta2,
    largest_alpha,
    lemma3_conditions,
    network_lam,
    proposition1_conditions,
)
from tests.support.theory_settings import BASE, RING10_LAM, admissible, exact_margins, lam_grid, lams, theory_settings

# ------------------------------------------------------------------------------------------------------ δ1 and δ2


def test_margin_values() -> None:
    """Detects any wrong factor: the roots are rational here, and the values exact."""
    assert delta2(1 / 2, 1) == Fraction(1, 8)
    assert isclose(delta2(1 / 4, 2), Fraction(3, 16) * Fraction(1, 2))
    assert isclose(delta2(8 / 27, 3), Fraction(8, 27) * Fraction(19, 27) * Fraction(1, 3))
    assert isclose(delta1(1 / 4, 2, 0.1, 2.0, 0.5), Fraction(3, 16) * (Fraction(81, 100) - Fraction(1, 2)))
    assert [delta2(0.0, t0) for t0 in (1, 2)] == [Fraction(1, 4), pytest.approx(4 / 27)]
    assert isclose(delta2(0.0, 5), Fraction(5**5, 6**6))
    assert isclose(delta1(0.0, 2, 0.1, 2.0, 0.5), Fraction(4, 27) * Fraction(9, 10) ** 6)


@given(theory_settings)
@settings(deadline=None)
def test_margins_against_the_definitions(s: Setting) -> None:
    """Breaks if the numerically stable forms (expm1, products) differ from those of the paper."""
    assume(s.expansion < 1)
    d1, d2 = exact_margins(s, s.lam)
    assert delta2(s.lam, s.period) == pytest.approx(float(d2), rel=1e-11)
    assert delta1(s.lam, s.period, s.alpha, s.beta, s.rho) == pytest.approx(float(d1), rel=1e-9, abs=1e-14)


def test_margins_at_their_limits() -> None:
    """δ → 0 as λ → 0 or 1, ≈ (1−λ)²/T0 near 1, and a λ of rounding size counts as 0."""
    assert delta2(1e-11, 5) < 1e-10
    assert delta2(0.9999, 5) == pytest.approx(1e-8 / 5, rel=1e-3)
    assert delta1(0.9999, 5) == delta2(0.9999, 5)
    assert delta2(3e-16, 5) == delta2(0.0, 5) == pytest.approx(0.06698, rel=1e-4)


@given(st.floats(1e-6, 0.999), st.integers(1, 30))
@settings(deadline=None)
def test_delta1_is_positive_exactly_below_the_threshold(lam: float, period: int) -> None:
    """Breaks if weak convexity enters with another power: the sign changes at αβρ = 1 − λ^(1/(2T0))."""
    threshold = 1 - lam ** (1 / (2 * period))
    assert delta1(lam, period, threshold * (1 - 1e-6), 1.0, 1.0) > 0
    assert delta1(lam, period, threshold * (1 + 1e-6), 1.0, 1.0) < 0
    assert delta1(lam, period, 5.0, 1.0, 1.0) < 0  # (1 − αβρ)² is large again, but the prox is not defined


@given(lams, st.integers(1, 30), st.floats(0, 0.02), st.floats(0, 0.02))
@settings(deadline=None)
def test_margins_decrease_with_the_period_and_the_stepsize(lam: float, period: int, one: float, two: float) -> None:
    """The monotonicity that bisection relies on."""
    assert delta2(lam, period + 1) < delta2(lam, period)
    assert delta1(lam, period + 1, one, 1.0, 1.0) < delta1(lam, period, one, 1.0, 1.0)
    low, high = sorted((one, two))
    assert delta1(lam, period, high, 1.0, 1.0) <= delta1(lam, period, low, 1.0, 1.0)


# ------------------------------------------------------------------------------------------------------ conditions


@given(theory_settings)
@settings(deadline=None, max_examples=40)
def test_conditions_against_the_theorem(s: Setting) -> None:
    """Detects a wrong constant, a wrong side, or a λ' that is not admissible or not the best."""
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


@given(theory_settings, st.floats(0, 1))
@settings(deadline=None, max_examples=40)
def test_no_other_lam_is_better(s: Setting, share: float) -> None:
    """The search over λ' is at least as good as λ itself and as a fine grid, even where δ1 is barely positive."""
    if s.beta * s.rho > 0 and s.lam > 0:  # αβρ up to the threshold, where the peak is narrow
        threshold = 1 - s.lam ** (1 / (2 * s.period))
        s = replace(s, alpha=min(share * threshold / (s.beta * s.rho) + 1e-12, 1.0))
    assume(s.expansion < 1)
    found = conditions(s)[-1].right

    def right(lam: float) -> float:
        d1, d2 = delta1(lam, s.period, s.alpha, s.beta, s.rho), delta2(lam, s.period)
        return 3 * d1 * d2 / (s.period * (11 * d1 + 9 * s.period))

    best = max(map(right, lam_grid(s)))
    assert found >= best * (1 - 1e-12) if best > 0 else found == right(s.lam)


def test_a_larger_lam_can_admit_more() -> None:
    """δ1, δ2 → 0 as λ → 0+, so that λ' > λ is best on a nearly complete graph; on a ring λ itself is best."""
    nearly = replace(BASE, lam=1e-4)
    assert network_lam(nearly) == pytest.approx(0.26, abs=0.01)
    assert network_lam(BASE) == BASE.lam
    assert network_lam(replace(BASE, lam=0.0)) == 0.0
    one = replace(BASE, lam=1e-4, period=1)  # λ'(1−λ')² peaks at 1/3
    assert network_lam(one) == pytest.approx(1 / 3, abs=1e-6)


def test_the_ring_admits_only_a_tiny_stepsize() -> None:
    """Theorem 1 for the stepsize experiment of the paper: αL ≈ 1.2e-4, compared with the 0.005 to 0.1 that it uses."""
    alpha, lam = largest_alpha(BASE)
    assert alpha == pytest.approx(1.218e-4, rel=1e-3)
    assert lam == RING10_LAM
    assert largest_alpha(replace(BASE, L=50.0)).alpha == pytest.approx(alpha / 50)


@given(theory_settings)
@settings(deadline=None, max_examples=40)
def test_largest_alpha_is_the_limit_of_the_conditions(s: Setting) -> None:
    """All conditions hold just below it and one is violated just above; the α of the setting has no influence."""
    alpha, lam = largest_alpha(s)
    assert all(c.holds for c in conditions(replace(s, alpha=alpha * (1 - 1e-6))))
    assert not all(c.holds for c in conditions(replace(s, alpha=alpha * (1 + 1e-6))))
    assert largest_alpha(replace(s, alpha=1e-3)) == (alpha, lam)


@given(lams, st.integers(1, 30))
@settings(deadline=None, max_examples=40)
def test_largest_alpha_in_closed_form_for_convex_h(lam: float, period: int) -> None:
    """With ρ = 0 the margins do not depend on α: the largest α is a maximum over λ', here over a grid."""
    s = replace(BASE, lam=lam, period=period, gamma=0.0)
    deltas = np.array([delta2(w, period) for w in lam_grid(s)])
    network = np.sqrt(3 * deltas**2 / (8 * period * (11 * deltas + 9 * period))).max()
    found = largest_alpha(s).alpha
    assert min(network, 1 / 24) * (1 - 1e-12) <= found <= min(network, 1 / 24) * (1 + 1e-5)


@pytest.mark.slow
@given(theory_settings)
@settings(deadline=None, max_examples=25)
def test_remedies_are_sufficient_and_tight(s: Setting) -> None:
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


def test_remedies_are_complete() -> None:
    """Breaks if a sufficient change is not offered, or an insufficient one is."""

    def keys(s: Setting, name: str) -> list[str]:
        return next([r.key for r in c.remedies] for c in conditions(s) if c.name == name)

    hard = replace(BASE, alpha=0.002)
    assert keys(hard, "network") == ["alpha", "period", "lam"]
    assert keys(replace(BASE, alpha=0.05), "network") == ["alpha"]  # αL exceeds even the limit of λ = 0 and T0 = 1
    assert keys(replace(BASE, alpha=0.04), "momentum") == ["alpha", "gamma"]
    assert keys(replace(BASE, alpha=0.0417), "momentum") == ["alpha"]  # γ = 0 would not be sufficient
    weak = replace(BASE, alpha=0.03, beta=1.0, rho=1.0)
    assert keys(weak, "prox") == ["alpha", "beta"]
    assert keys(weak, "contraction") == ["alpha", "beta", "period", "lam"]
    needs_averaging = replace(BASE, lam=0.9, period=5, alpha=0.0026)
    sentence = next(r.sentence for r in conditions(needs_averaging)[-1].remedies if r.key == "lam")
    assert sentence == "use a network with lam = 0 (complete, all weights 1/n)"


def test_conditions_of_proposition_1_and_lemma_3() -> None:
    """They are weaker, with different constants."""
    assert [c.name for c in proposition1_conditions(BASE)] == ["smoothness", "prox"]
    assert all(c.holds for c in proposition1_conditions(replace(BASE, alpha=1 / 16)))
    assert not proposition1_conditions(replace(BASE, alpha=1 / 16 + 1e-6))[0].holds
    d = delta2(RING10_LAM, 5)
    edge = d / (5 * sqrt(8))
    assert all(c.holds for c in lemma3_conditions(replace(BASE, alpha=edge * (1 - 1e-9))))
    assert not lemma3_conditions(replace(BASE, alpha=edge * (1 + 1e-9)))[1].holds


@given(theory_settings)
@settings(deadline=None, max_examples=40)
def test_theorem_1_implies_lemma_3_and_proposition_1(s: Setting) -> None:
    """Theorem 1 is proved from both, so its conditions must be stronger."""
    s = admissible(s)
    assert all(c.holds for c in (*proposition1_conditions(s), *lemma3_conditions(s)))


# --------------------------------------------------------------------------------------------------------- the rest


def test_the_documented_numbers_match_the_code() -> None:
    """The table of admissible αL by graph and period, and the example of λ'."""
    page = (Path(__file__).parents[2] / "docs" / "theory.md").read_text()
    for graph, lam in (("ring", RING10_LAM), ("2-hop ring", 0.6472), ("3-hop ring", 0.3740), ("complete", 0.0)):
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
def test_invalid_settings_are_rejected(key: str, value: float, allowed: str) -> None:
    """Breaks if a value outside the scope of the theorem reaches a formula."""
    change: dict[str, Any] = {key: value}
    with pytest.raises(ConfigError, match=rf"{key}: .* given; it must be {allowed}"):
        replace(BASE, **change)


def test_theory_depends_on_the_standard_library_only() -> None:
    """Breaks if the theory imports tensors, networks or problems."""
    for file in Path(depositum.theory.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            for module in modules:
                internal = module == "depositum.errors" or module.startswith("depositum.theory")
                assert internal or module.partition(".")[0] in sys.stdlib_module_names, (file.name, module)
