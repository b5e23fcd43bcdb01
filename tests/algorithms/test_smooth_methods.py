"""The decentralized methods for smooth problems, and PG-EXTRA: equations, limits, special cases and costs."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import depositum as dp
from depositum.algorithms import (
    D2,
    DPSGD,
    DSGT,
    DSMT,
    GUT,
    KGT,
    LED,
    DFedAvgM,
    ExactDiffusion,
    Extra,
    FedNMUT,
    HeavyBallGT,
    MomentumTracking,
    PgExtra,
    QuasiGlobal,
)
from depositum.engines import Simulator
from tests.support import method_problems as mp
from tests.support.equations_smooth import LAZY_PATH, PATH, SMOOTH_METHODS, START, STEP, mean
from tests.support.method_problems import L, case_label, distance, gradients, problem_kind, run

CASES = [(name, period) for name, (*_, periods) in SMOOTH_METHODS.items() for period in periods]


def network_of(method: dp.Algorithm) -> dp.Network:
    return LAZY_PATH if method.name == "d2" else PATH


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["constant", "power"])
@pytest.mark.parametrize(("name", "period"), CASES)
def test_equals_its_equations_in_numpy(name: str, period: int, schedule: str) -> None:
    """Every variable at every iteration. Fails for a wrong sign, matrix, order, start, or α of another iteration."""
    method, reference, arguments, _ = SMOOTH_METHODS[name]
    if schedule == "power":
        method = replace(method, alpha={"power": {"start": 1.5 * STEP, "power": 0.5, "offset": 20.0}})  # type: ignore[call-arg]

    def alpha(t: int) -> float:
        return STEP if schedule == "constant" else 1.5 * STEP * (1 + t / 20) ** -0.5

    network = network_of(method)
    trajectory = run(method, problem_kind(method), network=network, period=period)
    expected = reference(network.W, period, alpha, **arguments)
    for t in range(60):
        trajectory.advance(1)
        assert trajectory.t == t + 1
        for key, value in next(expected).items():
            assert np.abs(getattr(trajectory, key) - value).max() <= 1e-10, (key, t)


# Limits

EXACT: list[tuple[dp.Algorithm, int]] = [
    (DSGT(0.3 / L), 1),
    (DSGT(0.1 / L), 5),
    (DSGT(0.3 / L, "second"), 1),
    (DSGT(0.1 / L, "second"), 5),
    (Extra(0.3 / L), 1),
    (PgExtra(0.3 / L), 1),
    (ExactDiffusion(0.3 / L), 1),
    (D2(0.3 / L), 1),
    (LED(0.3 / L), 1),
    (LED(0.1 / L), 5),
    (KGT(0.3 / L), 1),
    (KGT(0.1 / L), 5),
    (MomentumTracking(0.1 / L, 0.5), 1),
    (MomentumTracking(0.05 / L, 0.5), 5),
    (DSMT(0.3 / L), 1),
    (DSMT(0.3 / L, 0.5, chebyshev=False), 1),
    (DSMT(0.1 / L, 0.5, chebyshev=False), 5),
    (HeavyBallGT(0.2 / L, 0.5), 1),
    (HeavyBallGT(0.3 / L, 0.5, "dsgt-hb"), 1),
    (HeavyBallGT(0.1 / L, 0.5, "dsgt-hb"), 5),
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "period"), EXACT, ids=case_label)
def test_exact_methods_converge_to_the_solution(method: dp.Algorithm, period: int) -> None:
    """x̄ = x* and consensus, at a constant stepsize with clients that differ. Fails for a bias of any size."""
    network = dp.ring(mp.N, mixing="lazy-metropolis") if method.name == "d2" else None
    trajectory = run(method, problem_kind(method), network=network, period=period, steps=300 if period == 1 else 900)
    assert distance(trajectory, problem_kind(method)) <= 1e-6
    assert np.abs(trajectory.x - trajectory.x.mean(0)).max() <= 1e-6
    before = trajectory.x
    assert np.abs(trajectory.advance(100).x - before).max() < 1e-8


BIASED: list[tuple[dp.Algorithm, int]] = [
    (DPSGD(0.2 / L), 1),
    (DPSGD(0.2 / L), 5),
    (DPSGD(0.2 / L, "adapt"), 1),
    (GUT(0.2 / L, 0.9), 1),
    (GUT(0.2 / L, 0.9), 5),
    (GUT(0.2 / L, 0.2, "replaced"), 5),
    (DFedAvgM(0.2 / L, 0.5), 1),
    (DFedAvgM(0.2 / L, 0.5), 5),
    (QuasiGlobal(0.2 / L), 1),
    (QuasiGlobal(0.2 / L, 0.5, 0.5), 5),
    (QuasiGlobal(0.2 / L, 0.5, 0.5, nesterov=True), 1),
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "period"), BIASED, ids=case_label)
def test_biased_methods_converge_elsewhere(method: dp.Algorithm, period: int) -> None:
    """They converge, but not to x*. Fails for a method that silently tracks gradients."""
    trajectory = run(method, "ridge", period=period, steps=600)
    before = trajectory.x
    assert np.abs(trajectory.advance(100).x - before).max() < 1e-8
    assert distance(trajectory, "ridge") > 1e-3


@pytest.mark.slow
def test_tracking_more_of_the_update_leaves_less_bias() -> None:
    """The bias of GUT is about (1 − μ) times that with μ = 0, so the sign of its correction matters."""
    bias = [distance(run(GUT(0.1 / L, mu), "ridge", steps=600), "ridge") for mu in (0.0, 0.5, 0.9)]
    assert bias[1] == pytest.approx(0.5 * bias[0], rel=0.1)
    assert bias[2] == pytest.approx(0.1 * bias[0], rel=0.2)


def test_gut_with_w_replaced_diverges_with_local_steps() -> None:
    """The reason for rounds: on a ring with T0 = 5 and μ = 0.5, (GU.1) with W^t for W is unbounded."""
    assert np.abs(run(GUT(0.02 / L, 0.5, "replaced"), "ridge", period=5, steps=300).x).max() > 1e6
    assert np.abs(run(GUT(0.02 / L, 0.5), "ridge", period=5, steps=300).x).max() < 10


# Special cases that are other methods


def assert_same_models(one: mp.Trajectory, other: mp.Trajectory, steps: int = 60) -> None:
    for _ in range(steps):
        assert np.abs(one.advance(1).x - other.advance(1).x).max() <= 1e-12


@pytest.mark.parametrize("period", [1, 5])
def test_dsmt_without_acceleration_is_depositum(period: int) -> None:
    """With Polyak's momentum and h = 0, from ν^0 = y^0 = (1 − γ) g^0."""
    gamma = 0.7
    depositum = run(dp.Depositum(STEP, gamma), "ridge", period=period)
    start = (1 - gamma) * torch.tensor(gradients(START))
    depositum.simulator.state = depositum.simulator.state._replace(y=start, nu=start)
    assert_same_models(depositum, run(DSMT(STEP, gamma, chebyshev=False), "ridge", period=period))


def test_d2_with_half_lazy_weights_is_exact_diffusion() -> None:
    assert_same_models(run(D2(STEP), "ridge", network=LAZY_PATH), run(ExactDiffusion(STEP), "ridge", network=PATH))


def test_led_with_one_local_step_is_exact_diffusion() -> None:
    assert_same_models(run(LED(STEP), "ridge"), run(ExactDiffusion(STEP), "ridge"))


def test_pg_extra_without_h_is_extra() -> None:
    assert_same_models(run(PgExtra(STEP), "ridge"), run(Extra(STEP), "ridge"))


@pytest.mark.parametrize("period", [1, 5])
def test_quasi_global_without_momentum_is_dsgd(period: int) -> None:
    """DSGD adapts, then combines: after one step, or after the local steps of a round."""
    quasi = run(QuasiGlobal(STEP, 0.0, 0.0), "ridge", period=period)
    x = START
    for t in range(60):
        x = x - STEP * gradients(x)
        if (t + 1) % period == 0:
            x = dp.ring(mp.N).W @ x
            assert np.abs(quasi.advance(period).x - x).max() <= 1e-12
    if period == 1:
        assert_same_models(run(QuasiGlobal(STEP, 0.0, 0.0), "ridge"), run(DPSGD(STEP, "adapt"), "ridge"))


def test_dfedavgm_without_momentum_or_local_steps_is_dsgd() -> None:
    """θ = 0, or T0 = 1, since the momentum starts anew in every round."""
    assert_same_models(run(DFedAvgM(STEP, 0.0), "ridge"), run(DPSGD(STEP, "adapt"), "ridge"))
    assert_same_models(run(DFedAvgM(STEP, 0.9), "ridge"), run(DPSGD(STEP, "adapt"), "ridge"))


def test_gut_without_tracking_steps_from_the_mixed_model() -> None:
    """GUT(μ = 0): x^{t+1} = W x − α g(W x)."""
    W, x = dp.ring(mp.N).W, START
    trajectory = run(GUT(STEP, 0.0), "ridge")
    for _ in range(60):
        x = W @ x - STEP * gradients(W @ x)
        assert np.abs(trajectory.advance(1).x - x).max() <= 1e-12


def test_the_two_forms_of_gut_agree_at_period_1() -> None:
    assert_same_models(run(GUT(STEP, 0.8), "ridge"), run(GUT(STEP, 0.8, "replaced"), "ridge"))


def test_dsgt_second_form_is_depositum_without_momentum() -> None:
    for period in (1, 5):
        depositum = run(dp.Depositum(STEP, 0.0, start="local"), "ridge", period=period)
        assert_same_models(depositum, run(DSGT(STEP, "second"), "ridge", period=period))


def test_momentum_trackers_without_momentum_are_gradient_trackers() -> None:
    assert_same_models(run(HeavyBallGT(STEP, 0.0, "dsgt-hb"), "ridge"), run(DSGT(STEP, "second"), "ridge"))
    tracking = run(HeavyBallGT(STEP, 0.0, "abm"), "ridge")
    start = torch.tensor(mean(gradients(START)))
    tracking.simulator.state = tracking.simulator.state._replace(y=start)
    assert_same_models(tracking, run(MomentumTracking(STEP, 0.0), "ridge"))


# Noise of FedNMUT


def run_with_mini_batches(method: dp.Algorithm, period: int) -> mp.Trajectory:
    """A run on the ridge problem with mini-batches, where draws of noise could change draws of samples."""
    simulator = Simulator(mp.problem("ridge"), dp.ring(mp.N), method, period=period, batch_size=3, settings=mp.SETTINGS)
    simulator.start()
    return mp.Trajectory(simulator)


@pytest.mark.parametrize("noise_on", ["model", "increment"])
@pytest.mark.parametrize("period", [1, 5])
def test_fednmut_without_noise_equals_gut_bitwise(noise_on: Any, period: int) -> None:
    gut = run_with_mini_batches(GUT(STEP, 0.7), period).advance(50)
    fednmut = run_with_mini_batches(FedNMUT(STEP, 0.7, 0.0, noise_on), period).advance(50)
    for key in ("x", "mixed", "local", "y", "g", "elapsed"):
        assert np.array_equal(getattr(gut, key), getattr(fednmut, key)), key


def test_fednmut_noise_has_the_declared_deviation() -> None:
    """mixed = W(x + e): e has deviation σ on models; on increments it accumulates to σ√r after r rounds."""
    W, noise, rounds = dp.ring(mp.N).W, 0.01, 64
    fresh, accumulated = [], []
    model = run(FedNMUT(STEP, 0.5, noise), "ridge")
    increment = run(FedNMUT(STEP, 0.5, noise, "increment"), "ridge")
    scale = np.sqrt((W**2).sum(1).mean())  # the factor by which W changes the deviation of independent rows
    for r in range(1, rounds + 1):
        fresh.append(model.advance(1).mixed - W @ model.x)
        accumulated.append((increment.advance(1).mixed - W @ increment.x) / np.sqrt(r))
        error = increment.simulator.state.error.numpy()
        assert np.abs(increment.mixed - W @ (increment.x + error)).max() <= 1e-12
    assert np.std(fresh) == pytest.approx(noise * scale, rel=0.1)
    assert np.std(accumulated) == pytest.approx(noise * scale, rel=0.5)
    # The noise is new in every round: consecutive rounds are not correlated.
    assert abs(np.corrcoef(np.ravel(fresh[:-1]), np.ravel(fresh[1:]))[0, 1]) < 0.1


# Invariants and costs


@pytest.mark.parametrize(("name", "period"), CASES)
def test_trackers_preserve_the_average(name: str, period: int) -> None:
    """mean(y) is the mean of the tracked variable at every t and T0; corrections have mean 0."""
    method = SMOOTH_METHODS[name][0]
    tracked = {"dsgt": "g", "heavy-ball-gt": "g", "momentum-tracking": "u", "dsmt": "nu", "gut": "g", "fednmut": "g"}
    corrections = {"k-gt": "c", "led": "q"}
    trajectory = run(method, problem_kind(method), network=network_of(method), period=period)
    for _ in range(15):
        trajectory.advance(1)
        if method.name in tracked:
            of = getattr(trajectory, tracked[method.name])
            assert np.abs(trajectory.y.mean(0) - of.mean(0)).max() <= 1e-11
        if method.name in corrections:
            assert np.abs(getattr(trajectory, corrections[method.name]).mean(0)).max() <= 1e-12


@pytest.mark.parametrize(("name", "period"), CASES)
def test_costs_are_as_declared(name: str, period: int) -> None:
    """One gradient per iteration; bytes are counted by the simulator. Fails for a hidden second exchange."""
    method = SMOOTH_METHODS[name][0]
    network = network_of(method)
    simulator = run(method, problem_kind(method), network=network, period=period).simulator
    vector = mp.DIM * 8 * network.degree.mean()
    for t in range(12):
        before = simulator.costs
        simulator.step()
        exchanges = method.communicates(method.kind(t, period))
        assert simulator.costs.bytes_sent - before.bytes_sent == pytest.approx(exchanges * method.vectors() * vector)
        assert simulator.costs.gradient_evaluations - before.gradient_evaluations == mp.A.shape[1]
    # The form with W^t for W also needs W y, while one vector is enough in the paper.
    assert method.vectors() == int(method.about.mixing) + (name == "gut replaced")


def test_models_change_only_at_the_exchange_of_a_round() -> None:
    for method in (LED(STEP), KGT(STEP), GUT(STEP), QuasiGlobal(STEP), DFedAvgM(STEP)):
        trajectory = run(method, "ridge", period=4, steps=4)
        x = trajectory.x
        assert np.array_equal(trajectory.advance(3).x, x)
        assert not np.array_equal(trajectory.advance(1).x, x)
