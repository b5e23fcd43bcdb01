"""The right-hand sides of Proposition 1 and Lemmas 1 to 3, as functions of sums that a run can accumulate.

Each sum is over squared norms of stacked variables `[n, d]`, in expectation where the paper takes it:

    mapping            Σ ‖G^α(x^t, y^t)‖²        t = 0 … T
    estimation         Σ ‖mean_i ∇f_i(x_i^t) − ν̄^t‖²    t = 0 … T (a vector of R^d, not stacked)
    movement           Σ ‖x^{t+1} − x^t‖²        t = 0 … T
    variation          Σ ‖ν^{t+1} − ν^t‖²        t = 0 … T
    model_consensus    Σ ‖Jx^t − x^t‖²           range given by each function
    tracking_consensus Σ ‖Jy^t − y^t‖²           range given by each function

All require the common start y_i^0 = ḡ^0. `lam` is the λ' in [λ, 1) at which δ1 and δ2 are evaluated, by default the λ
of the setting. If the conditions of a lemma do not hold, its function raises an AssertionError instead of returning a
meaningless number.
"""

from depositum.theory.conditions import proposition1_conditions
from depositum.theory.margins import margins
from depositum.theory.setting import Setting


def proposition1_rhs(
    s: Setting, mapping: float, estimation: float, model_consensus: float, tracking_consensus: float
) -> float:
    """The bound of Proposition 1 on Σ s(x^t, ν̄^t), t = 0 … T; all sums are from 0 to T."""
    assert all(condition.holds for condition in proposition1_conditions(s)), "Proposition 1 does not apply"
    return (
        8 * s.n / s.alpha * s.gap
        - mapping
        + 142 * s.n * estimation
        + 5 / s.alpha**2 * model_consensus
        + 11 * tracking_consensus
    )


def lemma1_rhs(s: Setting, movement: float) -> float:
    """The bound of Lemma 1 on `estimation`: the movement that momentum lags behind, and the variance it averages."""
    keep = 1 - s.gamma
    variance = s.sigma2 / (s.n * s.batch_size)
    return (s.gamma * s.L / keep) ** 2 / s.n * movement + (1 / keep + 5 * s.T / 4 * keep) * variance


def lemma2_movement_rhs(s: Setting, mapping: float, model_consensus: float) -> float:
    """The first bound of Lemma 2, on `movement`; `model_consensus` is from 0 to T + 1."""
    return s.alpha**2 * mapping + 4 * model_consensus


def lemma2_model_rhs(s: Setting, tracking_consensus: float, lam: float | None = None) -> float:
    """The second bound of Lemma 2, on `model_consensus` from 0 to T + 1; `tracking_consensus` is from 0 to T."""
    d1, _ = _margins(s, lam)
    return s.period * s.alpha**2 / d1 * tracking_consensus


def lemma2_variation_rhs(s: Setting, movement: float) -> float:
    """The third bound of Lemma 2, on `variation`."""
    return 2 * s.L**2 * movement + 2 * _momentum_noise(s)


def lemma2_tracking_rhs(s: Setting, variation: float, lam: float | None = None) -> float:
    """The fourth bound of Lemma 2, on `tracking_consensus` from 0 to T + 1."""
    _, d2 = _margins(s, lam)
    return s.period / d2 * variation


def lemma3_rhs(s: Setting, mapping: float, lam: float | None = None) -> float:
    """The bound of Lemma 3 on `tracking_consensus` from 0 to T + 1, from `mapping` alone: it closes Lemma 2's loop."""
    d1, d2 = _margins(s, lam)
    margin = d1 * d2 - 8 * (s.period * s.alpha * s.L) ** 2
    assert margin > 0, "Lemma 3 needs 8T0²(αL)² < δ1δ2"
    return 2 * s.period * d1 / margin * ((s.alpha * s.L) ** 2 * mapping + _momentum_noise(s))


def _momentum_noise(s: Setting) -> float:
    """n(1−γ)[1 + 8(T+1)(1−γ)]σ²/B: the contribution of the mini-batches to the changes of the momentum."""
    keep = 1 - s.gamma
    return s.n * keep * (1 + 8 * s.steps * keep) * s.sigma2 / s.batch_size


def _margins(s: Setting, lam: float | None) -> tuple[float, float]:
    """δ1 and δ2 at λ' = `lam`, or at the λ of the setting."""
    lam = s.lam if lam is None else lam
    assert s.lam <= lam < 1, "λ' must be in [λ, 1)"
    d1, d2 = margins(s, lam)
    assert d1 > 0, "Lemma 2 needs αβρ < 1 − λ^(1/(2T0))"
    return d1, d2
