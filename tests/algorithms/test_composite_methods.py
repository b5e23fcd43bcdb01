"""The decentralized composite methods: equations, limits, special cases, costs and invariants.

Gradients are full, or noisy in a way that depends on (iteration, draw, batch size) and on the point, so that a batch
that is used at the wrong point, in the wrong iteration or with the wrong size is detected: with full gradients,
recursive estimates are the gradient itself.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import depositum as dp
from depositum.algorithms import (
    SPPDM,
    Algorithm,
    CDProxSGT,
    DeepStorm,
    DProxSGT,
    Power,
    ProxDASA,
    ProxDASAGT,
    ProxDGD,
    ProxGTSA,
    ProxGTSRE,
    ProxGTSRO,
)
from tests.support import method_problems as mp
from tests.support.equations_composite import (
    PERIODS,
    STEPS,
    Gradient,
    States,
    cdproxsgt,
    deepstorm,
    dproxsgt_released,
    full,
    noisy,
    prox_dasa,
    prox_dgd,
    proxgt,
    sppdm,
    start,
)
from tests.support.method_problems import DIM, Array, L, N

# Equations


def constant(value: float) -> Callable[[int], float]:
    return lambda t: value


def shrinking(t: int) -> float:
    return 0.3 / (t + 4) ** (1 / 3)


def storm_weight(t: int) -> float:
    return min(1.0, 1 - shrinking(t + 1) / shrinking(t) + 8.0 * shrinking(t + 1) ** 2)


SHRINKING = Power(0.3 / 4 ** (1 / 3), 1 / 3, 4.0)
V2, V1 = ({"version": v, "placement": "combine-then-prox"} for v in ("v2", "v1"))
LATER = {"version": "v2", "placement": "prox-then-combine"}
SLOW: dict[str, Any] = {"alpha": constant(0.1), "b": constant(0.4)}
CASES: dict[str, tuple[Algorithm, Callable[..., States], dict[str, Any]]] = {
    "deepstorm": (DeepStorm(0.1, 0.4), deepstorm, SLOW | V2),
    "deepstorm v1": (DeepStorm(0.1, 0.4, version="v1"), deepstorm, SLOW | V1),
    "deepstorm later": (DeepStorm(0.1, 0.4, placement="prox-then-combine"), deepstorm, SLOW | LATER),
    "deepstorm shrinking": (
        DeepStorm(SHRINKING, c_b=8.0, initial_batch=64),
        deepstorm,
        {"alpha": shrinking, "b": storm_weight, "initial": 64} | V2,
    ),
    "deepstorm rounds": (
        DeepStorm(0.1, 0.4, rounds=3, chebyshev=True, initial_batch="full"),
        deepstorm,
        {"rounds": 3, "chebyshev": True, "initial": "full"} | SLOW | V2,
    ),
    "prox-dasa": (ProxDASA(0.3, 0.2), prox_dasa, {"eta": 0.3, "a": constant(0.2)}),
    "prox-dasa rounds": (ProxDASA(0.3, 0.2, rounds=2), prox_dasa, {"eta": 0.3, "a": constant(0.2), "rounds": 2}),
    "prox-dasa shrinking": (
        ProxDASA(0.3, Power(0.8 * N**0.5, 0.5)),
        prox_dasa,
        {"eta": 0.3, "a": lambda t: min(0.8 * (N / (t + 1)) ** 0.5, 1.0)},
    ),
    "prox-dasa-gt": (ProxDASAGT(0.3, 0.2), prox_dasa, {"eta": 0.3, "a": constant(0.2), "tracking": True}),
    "prox-dasa-gt unused": (
        ProxDASAGT(0.3, 0.2, rounds=2, tracker="unused"),
        prox_dasa,
        {"eta": 0.3, "a": constant(0.2), "rounds": 2, "tracking": True, "unused": True},
    ),
    "proxgt-sa": (ProxGTSA(0.1), proxgt, {"alpha": 0.1}),
    "proxgt-sa rounds": (ProxGTSA(0.1, rounds=2), proxgt, {"alpha": 0.1, "rounds": 2}),
    "proxgt-sa chebyshev": (ProxGTSA(0.1, 4, True), proxgt, {"alpha": 0.1, "rounds": 4, "chebyshev": True}),
    "proxgt-sr-o": (
        ProxGTSRO(0.1, q=3, refresh_batch=128),
        proxgt,
        {"alpha": 0.1, "q": 3, "fresh": 128, "recursive": True},
    ),
    "proxgt-sr-e": (
        ProxGTSRE(0.1, 2, q=7),
        proxgt,
        {"alpha": 0.1, "q": 7, "fresh": "full", "recursive": True, "rounds": 2},
    ),
    "prox-dgd": (ProxDGD(0.1), prox_dgd, {"alpha": 0.1}),
    "dproxsgt": (DProxSGT(0.1), proxgt, {"alpha": 0.1}),
    "dproxsgt released": (DProxSGT(0.1, "released"), dproxsgt_released, {"alpha": 0.1}),
    "cdproxsgt": (
        CDProxSGT(0.1, keep=0.4, gamma_x=0.6, gamma_y=0.3),
        cdproxsgt,
        {"alpha": 0.1, "k": 2, "gx": 0.6, "gy": 0.3},
    ),
    "cdproxsgt none": (
        CDProxSGT(0.1, "none", gamma_x=0.6, gamma_y=0.9),
        cdproxsgt,
        {"alpha": 0.1, "k": DIM, "gx": 0.6, "gy": 0.9},
    ),
} | {
    f"sppdm {eta}": (
        SPPDM(c=0.7, s=3.0, kappa=0.2, b=0.8, dual_step=0.05, eta=eta),
        sppdm,
        {"c": 0.7, "s": 3.0, "kappa": 0.2, "b": 0.8, "dual": 0.05, "eta": eta},
    )
    for eta in ("nesterov", 0.8, 0.0)
}


def periods_of(method: Algorithm) -> tuple[int, ...]:
    return PERIODS if method.periods is None else tuple(method.periods)


#: These draw batches of another size than the run's, so they are not tested with full gradients.
SAMPLING = ("deepstorm shrinking", "proxgt-sr-o")
EQUALITIES = [
    pytest.param(case, period, gradient, id=f"{case}-{period}-{gradient.__name__}")
    for case in CASES
    for period in periods_of(CASES[case][0])
    for gradient in (full, noisy)
    if not (gradient is full and case in SAMPLING)
]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "period", "gradient"), EQUALITIES)
def test_equals_its_equations_in_numpy(case: str, period: int, gradient: Gradient) -> None:
    """Every variable, to 1e-10. Fails for a wrong order, index, sign, weight, batch or schedule."""
    method, reference, options = CASES[case]
    trajectory = start(method, gradient, period)
    for t, expected in zip(range(STEPS + 1), reference(gradient, period, **options), strict=False):
        for name, value in expected.items():
            difference = np.abs(getattr(trajectory, name) - value).max()
            assert difference <= 1e-10, f"{name} at iteration {t}"
        trajectory.advance(1)
    assert int(trajectory.simulator.state.t) == STEPS + 1


# Limits

EXACT: dict[str, tuple[Algorithm, int]] = {
    "deepstorm": (DeepStorm(0.1 / L, 0.3), 500),
    "deepstorm later": (DeepStorm(0.1 / L, 0.3, placement="prox-then-combine"), 500),
    "prox-dasa-gt": (ProxDASAGT(0.3 / L, 0.3), 700),
    "proxgt-sa": (ProxGTSA(0.1 / L), 700),
    "proxgt-sr-e": (ProxGTSRE(0.1 / L, q=7), 700),
    "dproxsgt": (DProxSGT(0.1 / L), 700),
    "dproxsgt released": (DProxSGT(0.1 / L, "released"), 700),
    "sppdm": (SPPDM(s=L), 700),
}


def disagreement(x: Array) -> float:
    return float(np.abs(x - x.mean(0)).max())


@pytest.mark.slow
@pytest.mark.parametrize(("case", "period"), [(c, p) for c in EXACT for p in periods_of(EXACT[c][0])])
def test_exact_methods_converge_to_the_solution(case: str, period: int) -> None:
    """At a constant stepsize with full gradients, although the clients differ."""
    method, steps = EXACT[case]
    trajectory = mp.run(method, period=period, steps=steps)
    assert mp.distance(trajectory, "lasso") <= 1e-6
    assert disagreement(trajectory.x) <= 1e-6
    before = trajectory.x.copy()
    assert np.abs(trajectory.advance(100).x - before).max() < 1e-8


def test_compressed_tracking_converges_to_the_solution() -> None:
    """What compression omits is sent later. Fails if x̂ and ŷ are lost, which would leave a permanent error."""
    trajectory = mp.run(CDProxSGT(0.2 / L, keep=0.4), steps=700)
    assert mp.distance(trajectory, "lasso") <= 1e-6
    assert disagreement(trajectory.x) <= 1e-6
    before = trajectory.x.copy()
    assert np.abs(trajectory.advance(100).x - before).max() < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("period", PERIODS)
@pytest.mark.parametrize(
    "method", [ProxDASA(0.5 / L, 0.3), ProxDASAGT(0.5 / L, 0.3, tracker="unused"), ProxDGD(0.2 / L)]
)
def test_methods_without_tracking_are_biased(method: Algorithm, period: int) -> None:
    """It converges, but not to the solution."""
    trajectory = mp.run(method, period=period, steps=400)
    assert mp.distance(trajectory, "lasso") > 1e-3
    before = trajectory.x.copy()
    assert np.abs(trajectory.advance(100).x - before).max() < 1e-8


@pytest.mark.slow
def test_prox_dgd_with_a_decreasing_stepsize_reaches_the_solution() -> None:
    """Its bias is of the order of α, which is sixty times smaller at the end."""
    constant = mp.run(ProxDGD(0.2 / L), steps=400)
    decreasing = mp.run(ProxDGD(Power(0.2 / L, 1.0, 100.0)), steps=6000)
    assert mp.distance(decreasing, "lasso") < 0.1 * mp.distance(constant, "lasso")


# Special cases that are other methods


def assert_same_models(*methods: Algorithm, period: int = 1) -> None:
    """The methods have equal models over 60 iterations with the same noisy gradients, to rounding."""
    runs = [start(method, noisy, period) for method in methods]
    for _ in range(60):
        for run in runs:
            run.advance(1)
            assert np.abs(run.x - runs[0].x).max() <= 1e-12


def test_depositum_without_momentum_is_proxgt_and_dproxsgt() -> None:
    """DEPOSITUM(γ=0, T0=1, y⁰=Wg⁰) = ProxGT-SA(K=1) = DProxSGT (DX.1) = CDProxSGT(Q=I, γ_x=γ_y=1), on batches too."""
    assert_same_models(
        dp.Depositum(0.1, 0.0, start="mixed"),
        ProxGTSA(0.1),
        DProxSGT(0.1),
        CDProxSGT(0.1, "none", gamma_x=1.0, gamma_y=1.0),
        CDProxSGT(0.1, "top-k", keep=1.0, gamma_x=1.0, gamma_y=1.0),
        ProxGTSA(0.1, rounds=1, chebyshev=True),
    )


def test_proxgt_that_always_refreshes_with_the_same_batch_is_proxgt_sa() -> None:
    """With q = 1 no step is recursive; here both use full gradients."""
    a, b = mp.run(ProxGTSA(0.1), steps=60), mp.run(ProxGTSRE(0.1, q=1), steps=60)
    assert (a.x == b.x).all()


@pytest.mark.parametrize("period", PERIODS)
def test_deepstorm_with_b_1_is_depositum_without_momentum(period: int) -> None:
    """In v2 with b = 1, d is the gradient; with the prox first this is DEPOSITUM with γ = 0, at any period."""
    plain = dp.Depositum(0.1, 0.0, start="mixed")
    assert_same_models(plain, DeepStorm(0.1, 1.0, placement="prox-then-combine"), period=period)


def test_dasa_gt_with_an_unused_tracker_is_dasa() -> None:
    for period in PERIODS:
        assert_same_models(ProxDASA(0.3, 0.2), ProxDASAGT(0.3, 0.2, tracker="unused"), period=period)


def test_the_two_forms_of_dproxsgt_differ() -> None:
    a, b = (mp.run(DProxSGT(0.1, form), steps=15) for form in ("paper", "released"))
    assert np.abs(a.x - b.x).max() > 1e-3


def test_placement_of_the_prox_decides_about_consensus() -> None:
    """On a complete graph an exchange gives consensus if it comes last, but not if the prox comes last."""
    for placement, agrees in (("combine-then-prox", False), ("prox-then-combine", True)):
        method = DeepStorm(0.3, 0.5, placement=placement)
        trajectory = mp.run(method, network=dp.complete(N), period=5, steps=6)  # the sixth step exchanges
        assert (disagreement(trajectory.x) <= 1e-12) is agrees


# Costs

SAMPLES = mp.A.shape[1]
#: Vectors per phase, and full gradients at the start and per iteration.
COSTS: dict[str, tuple[int, float, float]] = {
    "deepstorm": (2, 1, 2),
    "deepstorm v1": (2, 1, 3),
    "deepstorm rounds": (6, 1, 2),
    "prox-dasa": (2, 0, 1),
    "prox-dasa rounds": (4, 0, 1),
    "prox-dasa-gt": (3, 1, 1),
    "prox-dasa-gt unused": (6, 1, 1),
    "proxgt-sa": (2, 1, 1),
    "proxgt-sa rounds": (4, 1, 1),
    "proxgt-sa chebyshev": (8, 1, 1),
    "prox-dgd": (1, 0, 1),
    "dproxsgt": (2, 1, 1),
    "dproxsgt released": (2, 1, 1),
    "cdproxsgt none": (2, 1, 1),
    "sppdm nesterov": (1, 0, 1),
}


@pytest.mark.parametrize(("case", "period"), [(c, p) for c in COSTS for p in periods_of(CASES[c][0])])
def test_costs_are_as_declared(case: str, period: int) -> None:
    """Bytes per exchange and gradients per iteration, as counted by the simulator."""
    method = CASES[case][0]
    vectors, at_start, per_step = COSTS[case]
    assert method.vectors() == vectors
    simulator = mp.run(method, period=period).simulator
    assert simulator.costs.gradient_evaluations == at_start * SAMPLES
    for t in range(11):
        before = simulator.costs
        simulator.step()
        exchanged = t % period == 0
        assert simulator.costs.phases - before.phases == exchanged
        assert simulator.costs.bytes_sent - before.bytes_sent == exchanged * vectors * 2 * DIM * 8
        assert simulator.costs.gradient_evaluations - before.gradient_evaluations == per_step * SAMPLES


def test_compressed_bytes_are_counted() -> None:
    """Two of five entries, each a number of 8 bytes and an index of 4, of two variables to two neighbours."""
    simulator = mp.run(CDProxSGT(0.1, keep=0.4)).simulator
    simulator.step()
    assert simulator.costs.bytes_sent == 2 * 2 * 2 * (8 + 4)


@pytest.mark.parametrize("period", PERIODS)
def test_recursive_proxgt_exchanges_and_refreshes_independently(period: int) -> None:
    """v⁰, v^q, v^{2q}, … cost one batch of their own size, the others two; exchanges have period T0."""
    q, refresh = 3, 128
    method = ProxGTSRO(0.1, q=q, refresh_batch=refresh)
    simulator = mp.run(method, period=period).simulator
    assert simulator.costs.gradient_evaluations == refresh
    for t in range(31):
        before = simulator.costs
        simulator.step()
        evaluations = simulator.costs.gradient_evaluations - before.gradient_evaluations
        assert evaluations == (refresh if (t + 1) % q == 0 else 2 * SAMPLES)
        assert simulator.costs.phases - before.phases == (t % period == 0)
        assert simulator.costs.bytes_sent - before.bytes_sent == (t % period == 0) * 2 * 2 * DIM * 8


# Invariants

TRACKED = {"deepstorm": "d", "deepstorm v1": "d", "deepstorm rounds": "d", "prox-dasa-gt": "v"} | dict.fromkeys(
    ["proxgt-sa chebyshev", "proxgt-sr-o", "proxgt-sr-e", "dproxsgt", "dproxsgt released", "cdproxsgt"], "nu"
)


@pytest.mark.parametrize("period", PERIODS)
@pytest.mark.parametrize("case", TRACKED)
def test_trackers_preserve_the_average(case: str, period: int) -> None:
    """mean(y) is the mean of the tracked variable at every t and period, with noisy gradients."""
    trajectory = start(CASES[case][0], noisy, period)
    for _ in range(60):
        tracked = getattr(trajectory, TRACKED[case])
        assert np.abs(trajectory.y.mean(0) - tracked.mean(0)).max() <= 1e-12 * max(1.0, np.abs(tracked).max())
        trajectory.advance(1)


# Rejected settings


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("deepstorm", "b", 0.0),
        ("deepstorm", "c_b", -1.0),
        ("deepstorm", "version", "v3"),
        ("deepstorm", "placement", "prox"),
        ("deepstorm", "rounds", 0),
        ("deepstorm", "initial_batch", 0),
        ("deepstorm", "alpha", -0.1),
        ("prox-dasa", "eta", 0.0),
        ("prox-dasa", "a", 1.5),
        ("prox-dasa-gt", "rounds", 0),
        ("prox-dasa-gt", "tracker", "none"),
        ("proxgt-sa", "rounds", 0),
        ("proxgt-sr-o", "q", 0),
        ("proxgt-sr-o", "refresh_batch", 0),
        ("dproxsgt", "form", "code"),
        ("cdproxsgt", "keep", 0.0),
        ("cdproxsgt", "gamma_x", 1.5),
        ("cdproxsgt", "compressor", "qsgd"),
        ("sppdm", "s", 0.0),
        ("sppdm", "kappa", -1.0),
        ("sppdm", "b", 2.0),
        ("sppdm", "eta", 1.0),
        ("sppdm", "eta", "polyak"),
    ],
)
def test_invalid_hyperparameters_are_rejected(name: str, key: str, value: Any) -> None:
    """By name, as in a configuration, and by class; the error has the key and the value, in one line."""
    for build in (lambda: dp.algorithm(name, **{key: value}), lambda: type(dp.algorithm(name))(**{key: value})):
        with pytest.raises(dp.ConfigError) as caught:
            build()
        assert caught.value.key == key
        assert str(value) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_sppdm_has_no_local_steps() -> None:
    with pytest.raises(dp.ConfigError, match="supports only 1"):
        mp.run(SPPDM(), period=2)


@pytest.mark.parametrize("method", [DeepStorm(0.5), ProxDASA(0.5), ProxGTSA(0.5), DProxSGT(0.5), CDProxSGT(0.5)])
def test_the_prox_is_checked_with_its_actual_step(method: Algorithm) -> None:
    """0.5·βρ must be below 1: 0.95 is accepted, 1 is not."""
    method.check(1, composite=True, prox_modulus=1.9)
    with pytest.raises(dp.ConfigError, match=r"[αη]βρ = 0.5·2 = 1"):
        method.check(1, composite=True, prox_modulus=2.0)
