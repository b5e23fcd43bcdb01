"""The methods with a server: equations, limits, special cases, invariants, costs and prox steps."""

from collections.abc import Callable
from itertools import islice

import numpy as np
import pytest
import torch

import depositum as dp
from depositum.algorithms import Algorithm, Power
from tests.support.equations_server import (
    PERIODS,
    Rounds,
    fast_fedda,
    fedadmm,
    fedavg,
    feddr,
    feddualavg,
    fedmid,
    scaffold,
    scaffold_m,
    tile,
    zhang,
)
from tests.support.method_problems import BETA, DIM, MU, PER_CLIENT, SOLUTION, X0, L, distance, gradients, run, soft

E = 0.1 / L
#: Every method in every form: the method, its NumPy version, and the problem.
CASES: dict[str, tuple[Algorithm, Callable[[int], Rounds], str]] = {
    "fedavg": (dp.algorithm("fedavg", alpha=E), lambda K: fedavg(K, "ridge", E), "ridge"),
    "fedavg, s": (dp.algorithm("fedavg", alpha=E, server_step=1.4), lambda K: fedavg(K, "ridge", E, 1.4), "ridge"),
    "fedavg-m": (
        dp.algorithm("fedavg-m", alpha=E, gamma=0.7, server_step=0.8),
        lambda K: fedavg(K, "ridge", E, 0.8, 0.7),
        "ridge",
    ),
    "scaffold I": (
        dp.algorithm("scaffold", alpha=E, option="I", server_step=1.2),
        lambda K: scaffold(K, "ridge", E, 1.2, "I"),
        "ridge",
    ),
    "scaffold II": (
        dp.algorithm("scaffold", alpha=E, server_step=1.2),
        lambda K: scaffold(K, "ridge", E, 1.2),
        "ridge",
    ),
    "scaffold-m": (
        dp.algorithm("scaffold-m", alpha=E, gamma=0.6, server_step=0.9),
        lambda K: scaffold_m(K, "ridge", E, 0.9, 0.6),
        "ridge",
    ),
    "fedmid": (dp.algorithm("fedmid", alpha=E, server_step=1.3), lambda K: fedmid(K, "lasso", E, 1.3), "lasso"),
    "fedmid, OSP": (
        dp.algorithm("fedmid", alpha=E, server_step=1.3, client_prox=False),
        lambda K: fedmid(K, "lasso", E, 1.3, client=False),
        "lasso",
    ),
    "fedmid, clients only": (
        dp.algorithm("fedmid", alpha=E, server_prox=False),
        lambda K: fedmid(K, "lasso", E, server=False),
        "lasso",
    ),
    "feddualavg": (
        dp.algorithm("feddualavg", alpha=E, server_step=1.3),
        lambda K: feddualavg(K, "lasso", E, 1.3),
        "lasso",
    ),
    "feddr": (
        dp.algorithm("feddr", alpha=E, eta=0.7, relaxation=1.6),
        lambda K: feddr(K, "lasso", E, 0.7, 1.6),
        "lasso",
    ),
    "feddr, released": (
        dp.algorithm("feddr", alpha=E, eta=0.7, relaxation=1.6, start="zero"),
        lambda K: feddr(K, "lasso", E, 0.7, 1.6, "zero"),
        "lasso",
    ),
    "fedadmm": (dp.algorithm("fedadmm", alpha=E, c=1.4), lambda K: fedadmm(K, "lasso", E, 1.4), "lasso"),
    "fast-fedda": (dp.algorithm("fast-fedda", m=MU, G=2 * L), lambda K: fast_fedda(K, "lasso", MU, 2 * L), "lasso"),
    "zhang-composite": (
        dp.algorithm("zhang-composite", alpha=E, server_step=1.5),
        lambda K: zhang(K, "lasso", E, 1.5),
        "lasso",
    ),
    "zhang-composite, gradient": (
        dp.algorithm("zhang-composite", alpha=E, start="gradient"),
        lambda K: zhang(K, "lasso", E, start="gradient"),
        "lasso",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("period", PERIODS)
@pytest.mark.parametrize("form", CASES)
def test_equals_its_equations_in_numpy(form: str, period: int) -> None:
    """The variables after every round, to 1e-10; the server's model does not change within a round.

    Fails for a wrong sign, weight, order, prox step, or number of local steps.
    """
    method, reference, kind = CASES[form]
    trajectory = run(method, kind, period=period)
    assert np.array_equal(trajectory.x, tile(X0))
    for r, expected in enumerate(islice(reference(period), 60 if period == 1 else 16)):
        before = trajectory.x
        trajectory.advance(period - 1)
        assert np.array_equal(trajectory.x, before)
        trajectory.advance(1)
        for name, value in expected.items():
            scale = max(1.0, np.abs(value).max())
            assert np.abs(getattr(trajectory, name) - value).max() <= 1e-10 * scale, f"{name} after round {r + 1}"


# Limits

FAST = 0.3 / L
EXACT = {
    "scaffold I": (dp.algorithm("scaffold", alpha=FAST, option="I"), "ridge"),
    "scaffold II": (dp.algorithm("scaffold", alpha=FAST), "ridge"),
    "scaffold-m": (dp.algorithm("scaffold-m", alpha=FAST, gamma=0.5), "ridge"),
    "feddr": (dp.algorithm("feddr", alpha=FAST, eta=1.0), "lasso"),
    "feddr, relaxed": (dp.algorithm("feddr", alpha=FAST, eta=1.0, relaxation=1.5), "lasso"),
    "fedadmm": (dp.algorithm("fedadmm", alpha=FAST, c=1.0), "lasso"),
    "zhang-composite": (dp.algorithm("zhang-composite", alpha=FAST), "lasso"),
}
#: With the periods at which they are biased; the others are (almost) proximal gradient descent at T0 = 1.
BIASED = [
    ("fedavg", dp.algorithm("fedavg", alpha=FAST), "ridge", 5),
    ("fedavg-m", dp.algorithm("fedavg-m", alpha=FAST, gamma=0.5), "ridge", 5),
    ("fedmid", dp.algorithm("fedmid", alpha=FAST), "lasso", 1),
    ("fedmid", dp.algorithm("fedmid", alpha=FAST), "lasso", 5),
    ("fedmid, OSP", dp.algorithm("fedmid", alpha=FAST, client_prox=False), "lasso", 5),
    ("fedmid, clients only", dp.algorithm("fedmid", alpha=FAST, server_prox=False), "lasso", 1),
    ("fedmid, clients only", dp.algorithm("fedmid", alpha=FAST, server_prox=False), "lasso", 5),
    ("feddualavg", dp.algorithm("feddualavg", alpha=FAST), "lasso", 5),
]


@pytest.mark.slow
@pytest.mark.parametrize("period", PERIODS)
@pytest.mark.parametrize("form", EXACT)
def test_exact_methods_converge_to_the_solution(form: str, period: int) -> None:
    """Fails for a correction that lacks a term, or a prox too many, which leave a bias."""
    method, kind = EXACT[form]
    trajectory = run(method, kind, period=period, steps=700)
    assert distance(trajectory, kind) <= 1e-6
    assert np.abs(trajectory.x - trajectory.x.mean(0)).max() <= 1e-12
    before = trajectory.x
    assert np.abs(trajectory.advance(100).x - before).max() < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize(("method", "kind", "period"), [p[1:] for p in BIASED], ids=[f"{p[0]}-{p[3]}" for p in BIASED])
def test_biased_methods_converge_elsewhere(method: Algorithm, kind: str, period: int) -> None:
    """They converge, but not to the solution. Fails if one is not the method of the literature."""
    trajectory = run(method, kind, period=period, steps=700)
    before = trajectory.x
    assert np.abs(trajectory.advance(100).x - before).max() < 1e-8
    assert distance(trajectory, kind) > 1e-3


@pytest.mark.slow
def test_a_large_eta_makes_feddr_slow() -> None:
    """Five inner steps hardly solve (DR.2) with η = 100; with η = 1, the same number of rounds converges."""
    slow, fast = (run(dp.algorithm("feddr", alpha=FAST, eta=eta), period=5, steps=700) for eta in (100.0, 1.0))
    assert distance(fast, "lasso") <= 1e-9
    assert distance(slow, "lasso") > 1e-3


@pytest.mark.slow
def test_fast_fedda_is_biased() -> None:
    """Its error is O(1/T) around a limit that is not the solution.

    With T0 = 1 the limit is known: with 2T points in the sum after T iterations, ∇f(x) + β∂h(x) ∋ (m/2)x.
    """
    for period in PERIODS:
        trajectory = run(dp.algorithm("fast-fedda", m=MU, G=2 * L), period=period, steps=250)
        quarter = trajectory.x
        half = trajectory.advance(250).x
        end = trajectory.advance(500).x
        assert np.abs(end - half).max() <= 0.55 * np.abs(half - quarter).max()
        limit = (2 * end - half)[0]
        assert np.abs(limit - SOLUTION["lasso"]).max() > 1e-2
        if period == 1:
            g = gradients(tile(limit)).mean(0) - MU / 2 * limit
            assert np.abs(limit - soft(limit - g / L, BETA / L)).max() < 1e-5


# Special cases that are other methods, and invariants

PAIRS = {
    "fedadmm(c) = feddr(a=1, eta=1/c)": (
        dp.algorithm("fedadmm", alpha=E, c=1.7),
        dp.algorithm("feddr", alpha=E, eta=1 / 1.7),
        "lasso",
    ),
    "fedmid = fedavg without h": (
        dp.algorithm("fedmid", alpha=E, server_step=1.2),
        dp.algorithm("fedavg", alpha=E, server_step=1.2),
        "ridge",
    ),
    "feddualavg = fedavg without h": (
        dp.algorithm("feddualavg", alpha=E, server_step=1.2),
        dp.algorithm("fedavg", alpha=E, server_step=1.2),
        "ridge",
    ),
    "fedavg-m = fedavg without momentum": (
        dp.algorithm("fedavg-m", alpha=E, gamma=0.0, server_step=1.2),
        dp.algorithm("fedavg", alpha=E, server_step=1.2),
        "ridge",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("period", PERIODS)
@pytest.mark.parametrize("pair", PAIRS)
def test_special_cases_are_other_methods(pair: str, period: int) -> None:
    """Equal to rounding at every iteration, including local iterates of inexact inner solves."""
    one, other, kind = PAIRS[pair]
    a, b = run(one, kind, period=period), run(other, kind, period=period)
    for _ in range(60):
        a.advance(1), b.advance(1)
        assert np.abs(a.x - b.x).max() <= 1e-13
        assert np.abs(a.local - b.local).max() <= 1e-13


def test_dual_variables_of_fedadmm_are_displacements_of_feddr() -> None:
    """q_i = (x_i − y_i)/η, with y_i before (DR.1) of the next round."""
    admm = run(dp.algorithm("fedadmm", alpha=E, c=1.7), period=5, steps=40)
    dr = run(dp.algorithm("feddr", alpha=E, eta=1 / 1.7), period=5, steps=40)
    y = dr.base + dr.local
    assert np.abs(admm.q - 1.7 * (dr.local - y)).max() <= 1e-12


@pytest.mark.parametrize("period", PERIODS)
@pytest.mark.parametrize("form", ["scaffold I", "scaffold II", "scaffold-m"])
def test_server_control_variate_is_the_mean_of_the_clients(form: str, period: int) -> None:
    """c = mean_i c_i at every iteration, so that the corrections cancel on average."""
    trajectory = run(EXACT[form][0], "ridge", period=period)
    for _ in range(40):
        assert np.abs(trajectory.c - trajectory.ci.mean(0)).max() <= 1e-12
        trajectory.advance(1)
    assert np.abs(trajectory.ci).max() > 0.1


@pytest.mark.parametrize("period", PERIODS)
@pytest.mark.parametrize("start", ["zero", "gradient"])
def test_corrections_average_to_zero(start: str, period: int) -> None:
    """mean_i c_i = 0 at every iteration, also with server steps ≠ 1."""
    trajectory = run(dp.algorithm("zhang-composite", alpha=E, server_step=1.4, start=start), period=period)
    for _ in range(40):
        assert np.abs(trajectory.c.mean(0)).max() <= 1e-12
        trajectory.advance(1)
    assert np.abs(trajectory.c).max() > 0.1


# Costs

FULL = PER_CLIENT + DIM  # component gradients in one full local gradient


@pytest.mark.parametrize("form", CASES)
def test_costs_are_as_declared(form: str) -> None:
    """`vectors()` per round and client; one gradient per iteration, and one more per round with option I."""
    method, _, kind = CASES[form]
    trajectory = run(method, kind, period=5)
    started = 1 if form == "zhang-composite, gradient" else 0
    costs = trajectory.simulator.costs
    assert (costs.bytes_sent, costs.gradient_evaluations) == (started * DIM * 8, started * FULL)
    for _ in range(2):
        for k in range(5):
            before, after = trajectory.simulator.costs, trajectory.advance(1).simulator.costs
            exchanges = k == 4
            assert after.phases - before.phases == exchanges
            assert after.bytes_sent - before.bytes_sent == exchanges * method.vectors() * DIM * 8
            grads = 2 if form == "scaffold I" and exchanges else 1
            assert after.gradient_evaluations - before.gradient_evaluations == grads * FULL
    assert method.vectors() == (2 if form.startswith(("scaffold", "fast-fedda")) else 1)


# Prox steps

SCHEDULE = Power(start=E, power=0.5)
SCHEDULED = {name: dp.algorithm(name, alpha=SCHEDULE) for name in ("fedmid", "feddualavg", "zhang-composite")}
WITH_SCHEDULES = [
    *((form, method) for form, (method, _, _) in CASES.items()),
    *((f"{name}, schedule", method) for name, method in SCHEDULED.items()),
]


@pytest.mark.parametrize("period", PERIODS)
@pytest.mark.parametrize("method", [method for _, method in WITH_SCHEDULES], ids=[form for form, _ in WITH_SCHEDULES])
def test_no_prox_step_is_larger_than_declared(method: Algorithm, period: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weak convexity is checked with `largest_prox_step`, which must cover steps that grow within a round.

    If steps do not shrink with t, it is also attained. Smooth methods never apply a prox.
    """
    trajectory = run(method, "ridge" if method.handles == "smooth" else "lasso", period=period)
    steps: list[float] = []
    oracle = trajectory.simulator.oracle
    original = oracle.prox

    def recorded(z: torch.Tensor, step: float | torch.Tensor) -> torch.Tensor:
        steps.append(float(torch.as_tensor(step, dtype=torch.float64).max()))
        return original(z, step)

    monkeypatch.setattr(oracle, "prox", recorded)
    trajectory.advance(20)
    if method.handles == "smooth":
        assert not steps
        return
    largest = method.largest_prox_step(period)
    assert 0 < max(steps) <= largest * (1 + 1e-12)
    if method.handles == "weakly convex" and method not in SCHEDULED.values():
        assert max(steps) == pytest.approx(largest, rel=1e-12)


def test_scheduled_stepsizes_are_summed_over_a_round() -> None:
    """H of (FM.3) is Σ α_t over the round: FedMiD in NumPy with α_t = α/√(t+1)."""
    trajectory = run(dp.algorithm("fedmid", alpha=SCHEDULE, server_step=1.3), period=5)
    w, t = X0, 0
    for _ in range(12):
        x, H = tile(w), 0.0
        for _ in range(5):
            e = E / np.sqrt(t + 1)
            x = soft(x - e * gradients(x), e * BETA)
            H, t = H + e, t + 1
        w = soft(w + 1.3 * (x.mean(0) - w), 1.3 * H * BETA)
        assert np.abs(trajectory.advance(5).x - w).max() <= 1e-12
