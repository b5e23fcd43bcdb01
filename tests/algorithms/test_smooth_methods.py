"""Decentralized methods for smooth problems (and PG-EXTRA) against plain NumPy versions of their equations.

The NumPy versions share no code with the package: they are generators of the state after each iteration, written from
the equations with a matrix W, a period T0 and a function α(t).
"""

from collections.abc import Callable
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
from tests.support.equations_smooth import (
    LAZY_PATH,
    PATH,
    START,
    Reference,
    d_psgd,
    d_squared,
    dsgt,
    dsmt,
    exact_diffusion,
    extra,
    gut_replaced,
    gut_rounds,
    heavy_ball,
    k_gt,
    led,
    mean,
    momentum_tracking,
    pg_extra,
    quasi_global,
)
from tests.support.method_problems import L, distance, gradients, run

STEP = 0.1 / L
#: name: (method, its NumPy version, what that is told, periods)
METHODS: dict[str, tuple[dp.Algorithm, Callable[..., Reference], dict[str, Any], tuple[int, ...]]] = {
    "d-psgd": (DPSGD(STEP), d_psgd, {}, (1, 5)),
    "d-psgd adapt": (DPSGD(STEP, "adapt"), d_psgd, {"form": "adapt"}, (1, 5)),
    "dsgt": (DSGT(STEP), dsgt, {}, (1, 5)),
    "dsgt second": (DSGT(STEP, "second"), dsgt, {"form": "second"}, (1, 5)),
    "gut": (GUT(STEP, 0.6), gut_rounds, {"mu": 0.6}, (1, 5)),
    "gut replaced": (GUT(STEP, 0.2, "replaced"), gut_replaced, {"mu": 0.2}, (1, 5)),
    "fednmut": (FedNMUT(STEP, 0.6, noise=0.0), gut_rounds, {"mu": 0.6}, (1, 5)),
    "fednmut increment": (FedNMUT(STEP, 0.6, 0.0, "increment"), gut_rounds, {"mu": 0.6}, (1, 5)),
    "extra": (Extra(STEP), extra, {}, (1,)),
    "pg-extra": (PgExtra(STEP), pg_extra, {}, (1,)),
    "exact-diffusion": (ExactDiffusion(STEP), exact_diffusion, {}, (1,)),
    "d2": (D2(STEP), d_squared, {}, (1,)),
    "led": (LED(STEP), led, {}, (1, 5)),
    "k-gt": (KGT(STEP), k_gt, {}, (1, 5)),
    "k-gt eta": (KGT(STEP, eta=0.7), k_gt, {"eta": 0.7}, (1, 5)),
    "momentum-tracking": (MomentumTracking(STEP, 0.7), momentum_tracking, {"b": 0.7}, (1, 5)),
    "dsmt": (DSMT(STEP), dsmt, {"b": None, "chebyshev": True}, (1,)),
    "dsmt b": (DSMT(STEP, 0.4), dsmt, {"b": 0.4, "chebyshev": True}, (1,)),
    "dsmt plain": (DSMT(STEP, 0.4, chebyshev=False), dsmt, {"b": 0.4, "chebyshev": False}, (1, 5)),
    "heavy-ball-gt abm": (HeavyBallGT(STEP, 0.6), heavy_ball, {"b": 0.6, "form": "abm"}, (1,)),
    "heavy-ball-gt dsgt-hb": (HeavyBallGT(STEP, 0.6, "dsgt-hb"), heavy_ball, {"b": 0.6, "form": "dsgt-hb"}, (1, 5)),
    "quasi-global": (QuasiGlobal(STEP, 0.8, 0.9), quasi_global, {"b": 0.8, "mu": 0.9}, (1, 5)),
    "quasi-global nesterov": (
        QuasiGlobal(STEP, 0.5, 0.7, nesterov=True),
        quasi_global,
        {"b": 0.5, "mu": 0.7, "nesterov": True},
        (1, 5),
    ),
}
CASES = [(name, period) for name, (*_, periods) in METHODS.items() for period in periods]


def kind_of(method: dp.Algorithm) -> str:
    return "ridge" if method.handles == "smooth" else "lasso"


def network_of(method: dp.Algorithm) -> dp.Network:
    return LAZY_PATH if method.name == "d2" else PATH


@pytest.mark.parametrize("schedule", ["constant", "power"])
@pytest.mark.parametrize(("name", "period"), CASES)
def test_equals_its_equations(name: str, period: int, schedule: str) -> None:
    """Every variable at every iteration. A wrong sign, matrix, order, start or α of another iteration breaks it."""
    method, reference, told, _ = METHODS[name]
    if schedule == "power":
        method = replace(method, alpha={"power": {"start": 1.5 * STEP, "power": 0.5, "offset": 20.0}})  # type: ignore[call-arg]

    def alpha(t: int) -> float:
        return STEP if schedule == "constant" else 1.5 * STEP * (1 + t / 20) ** -0.5

    network = network_of(method)
    trajectory = run(method, kind_of(method), network=network, period=period)
    expected = reference(network.W, period, alpha, **told)
    for t in range(60):
        trajectory.advance(1)
        assert trajectory.t == t + 1
        for key, value in next(expected).items():
            assert np.abs(getattr(trajectory, key) - value).max() <= 1e-10, (key, t)


# Where they go

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


def label(case: Any) -> str:
    return case.name if isinstance(case, dp.Algorithm) else str(case)


@pytest.mark.parametrize(("method", "period"), EXACT, ids=label)
def test_exact_methods_reach_the_solution_and_stay(method: dp.Algorithm, period: int) -> None:
    """x̄ = x* and consensus, at a constant stepsize with clients that differ: a bias of any size breaks it."""
    network = dp.ring(mp.N, mixing="lazy-metropolis") if method.name == "d2" else None
    trajectory = run(method, kind_of(method), network=network, period=period, steps=300 if period == 1 else 900)
    assert distance(trajectory, kind_of(method)) <= 1e-6
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
    (QuasiGlobal(0.2 / L), 1),
    (QuasiGlobal(0.2 / L, 0.5, 0.5), 5),
    (QuasiGlobal(0.2 / L, 0.5, 0.5, nesterov=True), 1),
]


@pytest.mark.parametrize(("method", "period"), BIASED, ids=label)
def test_biased_methods_settle_elsewhere(method: dp.Algorithm, period: int) -> None:
    """They converge, to a point that is not x*: a method that silently tracks gradients breaks it."""
    trajectory = run(method, "ridge", period=period, steps=600)
    before = trajectory.x
    assert np.abs(trajectory.advance(100).x - before).max() < 1e-8
    assert distance(trajectory, "ridge") > 1e-3


def test_tracking_more_of_the_update_leaves_less_bias() -> None:
    """GUT's bias is about (1 − μ) times that of μ = 0, so the sign of its correction matters."""
    bias = [distance(run(GUT(0.1 / L, mu), "ridge", steps=600), "ridge") for mu in (0.0, 0.5, 0.9)]
    assert bias[1] == pytest.approx(0.5 * bias[0], rel=0.1)
    assert bias[2] == pytest.approx(0.1 * bias[0], rel=0.2)


def test_gut_with_w_replaced_diverges_with_local_steps() -> None:
    """The reason for rounds: on a ring with T0 = 5 and μ = 0.5, (GU.1) under W → W^t leaves every bound."""
    assert np.abs(run(GUT(0.02 / L, 0.5, "replaced"), "ridge", period=5, steps=300).x).max() > 1e6
    assert np.abs(run(GUT(0.02 / L, 0.5), "ridge", period=5, steps=300).x).max() < 10


# What they are in special cases


def agree(one: mp.Trajectory, other: mp.Trajectory, steps: int = 60) -> None:
    for _ in range(steps):
        assert np.abs(one.advance(1).x - other.advance(1).x).max() <= 1e-12


@pytest.mark.parametrize("period", [1, 5])
def test_dsmt_without_acceleration_is_depositum(period: int) -> None:
    """With Polyak's momentum and h = 0, from ν^0 = y^0 = (1 − γ) g^0."""
    gamma = 0.7
    depositum = run(dp.Depositum(STEP, gamma), "ridge", period=period)
    start = (1 - gamma) * torch.tensor(gradients(START))
    depositum.simulator.state = depositum.simulator.state._replace(y=start, nu=start)
    agree(depositum, run(DSMT(STEP, gamma, chebyshev=False), "ridge", period=period))


def test_d2_with_half_lazy_weights_is_exact_diffusion() -> None:
    agree(run(D2(STEP), "ridge", network=LAZY_PATH), run(ExactDiffusion(STEP), "ridge", network=PATH))


def test_led_with_one_local_step_is_exact_diffusion() -> None:
    agree(run(LED(STEP), "ridge"), run(ExactDiffusion(STEP), "ridge"))


def test_pg_extra_without_h_is_extra() -> None:
    agree(run(PgExtra(STEP), "ridge"), run(Extra(STEP), "ridge"))


@pytest.mark.parametrize("period", [1, 5])
def test_quasi_global_without_momentum_is_dsgd(period: int) -> None:
    """Adapt, then combine: after one step, or after the local steps of a round."""
    quasi = run(QuasiGlobal(STEP, 0.0, 0.0), "ridge", period=period)
    x = START
    for t in range(60):
        x = x - STEP * gradients(x)
        if (t + 1) % period == 0:
            x = dp.ring(mp.N).W @ x
            assert np.abs(quasi.advance(period).x - x).max() <= 1e-12
    if period == 1:
        agree(run(QuasiGlobal(STEP, 0.0, 0.0), "ridge"), run(DPSGD(STEP, "adapt"), "ridge"))


def test_gut_without_tracking_steps_from_the_mixed_model() -> None:
    """GUT(μ = 0): x^{t+1} = W x − α g(W x)."""
    W, x = dp.ring(mp.N).W, START
    trajectory = run(GUT(STEP, 0.0), "ridge")
    for _ in range(60):
        x = W @ x - STEP * gradients(W @ x)
        assert np.abs(trajectory.advance(1).x - x).max() <= 1e-12


def test_the_two_forms_of_gut_are_one_at_period_1() -> None:
    agree(run(GUT(STEP, 0.8), "ridge"), run(GUT(STEP, 0.8, "replaced"), "ridge"))


def test_dsgt_second_form_is_depositum_without_momentum() -> None:
    for period in (1, 5):
        depositum = run(dp.Depositum(STEP, 0.0, start="local"), "ridge", period=period)
        agree(depositum, run(DSGT(STEP, "second"), "ridge", period=period))


def test_momentum_trackers_without_momentum_are_gradient_trackers() -> None:
    agree(run(HeavyBallGT(STEP, 0.0, "dsgt-hb"), "ridge"), run(DSGT(STEP, "second"), "ridge"))
    tracking = run(HeavyBallGT(STEP, 0.0, "abm"), "ridge")
    start = torch.tensor(mean(gradients(START)))
    tracking.simulator.state = tracking.simulator.state._replace(y=start)
    agree(tracking, run(MomentumTracking(STEP, 0.0), "ridge"))


# FedNMUT's noise


def small_batches(method: dp.Algorithm, period: int) -> mp.Trajectory:
    """The ridge problem with mini-batches, where draws of noise could disturb draws of samples."""
    simulator = Simulator(mp.problem("ridge"), dp.ring(mp.N), method, period=period, batch_size=3, settings=mp.SETTINGS)
    simulator.start()
    return mp.Trajectory(simulator)


@pytest.mark.parametrize("noise_on", ["model", "increment"])
@pytest.mark.parametrize("period", [1, 5])
def test_fednmut_without_noise_is_gut_bitwise(noise_on: Any, period: int) -> None:
    gut = small_batches(GUT(STEP, 0.7), period).advance(50)
    fednmut = small_batches(FedNMUT(STEP, 0.7, 0.0, noise_on), period).advance(50)
    for key in ("x", "mixed", "local", "y", "g", "elapsed"):
        assert np.array_equal(getattr(gut, key), getattr(fednmut, key)), key


def test_fednmut_noise_is_what_its_channel_adds() -> None:
    """mixed = W(x + e): e has deviation σ on models; on increments it is summed, σ√r after r rounds."""
    W, noise, rounds = dp.ring(mp.N).W, 0.01, 64
    fresh, gathered = [], []
    model = run(FedNMUT(STEP, 0.5, noise), "ridge")
    increment = run(FedNMUT(STEP, 0.5, noise, "increment"), "ridge")
    scale = np.sqrt((W**2).sum(1).mean())  # what W does to the deviation of independent rows
    for r in range(1, rounds + 1):
        fresh.append(model.advance(1).mixed - W @ model.x)
        gathered.append((increment.advance(1).mixed - W @ increment.x) / np.sqrt(r))
        error = increment.simulator.state.error.numpy()
        assert np.abs(increment.mixed - W @ (increment.x + error)).max() <= 1e-12
    assert np.std(fresh) == pytest.approx(noise * scale, rel=0.1)
    assert np.std(gathered) == pytest.approx(noise * scale, rel=0.5)
    # New in every round: neighbouring rounds do not repeat each other.
    assert abs(np.corrcoef(np.ravel(fresh[:-1]), np.ravel(fresh[1:]))[0, 1]) < 0.1


# Invariants and costs


@pytest.mark.parametrize(("name", "period"), CASES)
def test_trackers_keep_the_average(name: str, period: int) -> None:
    """mean(y) is the mean of what is tracked at every t and T0; corrections have mean 0."""
    method = METHODS[name][0]
    tracked = {"dsgt": "g", "heavy-ball-gt": "g", "momentum-tracking": "u", "dsmt": "nu", "gut": "g", "fednmut": "g"}
    corrections = {"k-gt": "c", "led": "q"}
    trajectory = run(method, kind_of(method), network=network_of(method), period=period)
    for _ in range(15):
        trajectory.advance(1)
        if method.name in tracked:
            of = getattr(trajectory, tracked[method.name])
            assert np.abs(trajectory.y.mean(0) - of.mean(0)).max() <= 1e-11
        if method.name in corrections:
            assert np.abs(getattr(trajectory, corrections[method.name]).mean(0)).max() <= 1e-12


@pytest.mark.parametrize(("name", "period"), CASES)
def test_costs_are_what_the_method_says(name: str, period: int) -> None:
    """Bytes are counted by the simulator: a second exchange hidden in a step breaks it. One gradient per iteration."""
    method = METHODS[name][0]
    network = network_of(method)
    simulator = run(method, kind_of(method), network=network, period=period).simulator
    vector = mp.DIM * 8 * network.degree.mean()
    for t in range(12):
        before = simulator.costs
        simulator.step()
        talks = method.communicates(method.kind(t, period))
        assert simulator.costs.bytes_sent - before.bytes_sent == pytest.approx(talks * method.vectors() * vector)
        assert simulator.costs.gradient_evaluations - before.gradient_evaluations == mp.A.shape[1]
    # W replaced by W^t needs W y too, where the paper's one vector is enough.
    assert method.vectors() == int(method.about.mixing) + (name == "gut replaced")


def test_models_of_a_round_rest_until_its_exchange() -> None:
    for method in (LED(STEP), KGT(STEP), GUT(STEP), QuasiGlobal(STEP)):
        trajectory = run(method, "ridge", period=4, steps=4)
        x = trajectory.x
        assert np.array_equal(trajectory.advance(3).x, x)
        assert not np.array_equal(trajectory.advance(1).x, x)
