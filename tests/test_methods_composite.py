"""The decentralized composite methods against plain NumPy versions of their equations, and where they converge to.

Every NumPy version keeps the indices of its paper and shares nothing with the package. Gradients are full, or noisy in
a way that differs with (iteration, draw, batch size) and with the point, so that a batch used at the wrong point, in
the wrong iteration or of the wrong size shows: with full gradients alone, recursive estimates are the gradient itself.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.polynomial.chebyshev import Chebyshev

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
    ProxGTSA,
    ProxGTSRE,
    ProxGTSRO,
)
from tests import method_problems as mp
from tests.method_problems import BETA, DIM, X0, Array, L, N, soft

#: On a ring of six, Metropolis weights are thirds.
RING = np.array([[1 / 3 if (i - j) % N in (0, 1, N - 1) else 0.0 for j in range(N)] for i in range(N)])
START = np.tile(X0, (N, 1))
STEPS = 65
PERIODS = (1, 5)

States = Iterator[dict[str, Array]]
#: Gradients at x of the batch that is the `draw`th of iteration t and has this size (None: the run's own).
Gradient = Callable[..., Array]


def full(x: Array, t: int, draw: int = 0, size: Any = None) -> Array:
    return mp.gradients(x)


def noisy(x: Array, t: int, draw: int = 0, size: Any = None) -> Array:
    """Noise that depends on everything a batch is made of, and linearly on the point."""
    if size == "full":
        return mp.gradients(x)
    rng = np.random.default_rng([t, draw, size or 0])
    return mp.gradients(x) + 0.2 * rng.normal(size=(N, DIM)) * x + 0.2 * rng.normal(size=(N, DIM))


class NoisyOracle:
    """The simulator's oracle with the gradients of `noisy`."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def begin(self, t: torch.Tensor) -> None:
        self.t, self.draws, self.evaluations = int(t), 0, 0.0

    def sample(self, size: Any = None) -> tuple[int, int, Any]:
        self.draws += 1
        return self.t, self.draws - 1, size

    def grad(self, x: torch.Tensor, batch: tuple[int, int, Any]) -> torch.Tensor:
        return torch.tensor(noisy(x.numpy(), *batch))

    def full_grad(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tensor(mp.gradients(x.numpy()))


def start(method: Algorithm, gradient: Gradient, period: int = 1) -> mp.Trajectory:
    """A run at t = 0, with full or noisy gradients."""
    trajectory = mp.run(method, period=period)
    if gradient is noisy:
        trajectory.simulator.iteration.oracle = NoisyOracle(trajectory.simulator.oracle)
        trajectory.simulator.start()
    return trajectory


def matrix(t: int, period: int, rounds: int = 1, chebyshev: bool = False) -> Array:
    """W^t: K rounds of W, or the matrix polynomial T_K(W/λ)/T_K(1/λ), in an exchange; else the identity."""
    if t % period:
        return np.eye(N)
    if not chebyshev:
        return np.linalg.matrix_power(RING, rounds)
    values, vectors = np.linalg.eigh(RING)
    lam, polynomial = 2 / 3, Chebyshev.basis(rounds)
    return vectors @ np.diag(polynomial(values / lam) / polynomial(1 / lam)) @ vectors.T


# The methods in NumPy: each yields its state at t = 0, 1, …


def deepstorm(
    g: Gradient, period: int, *, alpha: Any, b: Any, version: str, placement: str, initial: Any = None, **mixing: Any
) -> States:
    x = START
    d = g(x, 0, 0, initial)
    y = matrix(0, 1, **mixing) @ d
    t = 0
    while True:
        yield {"x": x, "y": y, "d": d}
        w, a_t, b_t = matrix(t, period, **mixing), alpha(t), b(t)
        if placement == "combine-then-prox":
            new = soft(w @ x - a_t * y, a_t * BETA)
        else:
            new = w @ soft(x - a_t * y, a_t * BETA)
        if version == "v1":
            d_new = (1 - b_t) * (d + g(new, t + 1) - g(x, t + 1)) + b_t * g(new, t + 1, 1)
        else:
            d_new = g(new, t + 1) + (1 - b_t) * (d - g(x, t + 1))
        y = w @ (y + d_new - d)
        x, d, t = new, d_new, t + 1


def prox_dasa(
    g: Gradient, period: int, *, eta: float, a: Any, rounds: int = 1, tracking: bool = False, unused: bool = False
) -> States:
    x, z, v = START, np.zeros((N, DIM)), g(START, 0)
    u = v
    t = 0
    while True:
        yield {"x": x, "z": z} | ({"y": u, "v": v} if tracking else {})
        w, a_t = matrix(t, period, rounds), a(t)
        p = soft(x - eta * z, eta * BETA)
        v_new = g(x, t + 1)
        u_half = u + v_new - v
        x = w @ ((1 - a_t) * x + a_t * p)
        z = w @ ((1 - a_t) * z + a_t * (u_half if tracking and not unused else v_new))
        u, v, t = w @ u_half, v_new, t + 1


def proxgt(
    g: Gradient, period: int, *, alpha: float, q: int = 1, fresh: Any = None, recursive: bool = False, **mixing: Any
) -> States:
    """By the paper's indices: iteration t makes v^t, y^{t+1}, x^{t+1}."""
    x, y, v_old, x_old = START, np.zeros((N, DIM)), np.zeros((N, DIM)), START
    t = 0
    while True:
        v = v_old + g(x, t) - g(x_old, t) if recursive and t % q else g(x, t, 0, fresh)
        yield {"x": x, "y": y + v - v_old, "nu": v}
        w = matrix(t, period, **mixing)
        y = w @ (y + v - v_old)
        x_old, v_old = x, v
        x = w @ soft(x - alpha * y, alpha * BETA)
        t += 1


def dproxsgt_released(g: Gradient, period: int, *, alpha: float) -> States:
    """(DX.2); its y^{t+1} takes the W of iteration t, as DEPOSITUM's does."""
    x, y = START, g(START, 0)
    t, now = 0, y
    while True:
        yield {"x": x, "y": y, "nu": now}
        w = matrix(t, period)
        x = w @ soft(x - alpha * y, alpha * BETA)
        new = g(x, t + 1)
        y = w @ y + new - now
        t, now = t + 1, new


def top(k: int, z: Array) -> Array:
    out = np.zeros_like(z)
    for row, source in zip(out, z, strict=True):
        largest = sorted(range(DIM), key=lambda j: -abs(source[j]))[:k]
        row[largest] = source[largest]
    return out


def cdproxsgt(g: Gradient, period: int, *, alpha: float, k: int, gx: float, gy: float) -> States:
    """By the paper's indices; hats are known to neighbours, so they change in exchanges only."""
    x, y, before, xh, yh = START, *(np.zeros((N, DIM)) for _ in range(4))
    t = 0
    while True:
        now = g(x, t)
        y = y + now - before
        yield {"x": x, "y": y, "nu": now, "x_hat": xh, "y_hat": yh}
        talks = t % period == 0
        if talks:
            yh = yh + top(k, y - yh)
            y = y + gy * (RING @ yh - yh)
        x = soft(x - alpha * y, alpha * BETA)
        if talks:
            xh = xh + top(k, x - xh)
            x = x + gx * (RING @ xh - xh)
        t, before = t + 1, now


def sppdm(
    g: Gradient, period: int, *, c: float, s: float, kappa: float, b: float, dual: float, eta: float | str
) -> States:
    """Client by client on the edges of the ring, with the special first step."""
    x = START.copy()
    z, q = x.copy(), np.zeros((N, DIM))
    phi, theta = s + 4 * c + kappa, [1.0]
    yield {"x": x, "z": z, "q": q}
    around = np.array([x[i - 1] + x[(i + 1) % N] for i in range(N)])
    old, x = x, soft(((s + 2 * c + kappa) * x + c * around - g(x, 1)) / phi, BETA / phi)
    t = 1
    while True:
        z = np.array([z[i] + b * (x[i] - z[i]) for i in range(N)])
        yield {"x": x, "z": z, "q": q}
        while len(theta) <= t + 1:
            theta.append((1 + np.sqrt(1 + 4 * theta[-1] ** 2)) / 2)
        momentum = (theta[t] - 1) / theta[t + 1] if eta == "nesterov" else float(eta)
        ahead = x + momentum * (x - old)
        slopes = g(ahead, t + 1)
        new, q = x.copy(), q.copy()
        for i in range(N):
            both = x[i - 1] + x[(i + 1) % N]
            q[i] += dual * (2 * x[i] - both)
            inside = s * ahead[i] + c * (2 * x[i] + both) + kappa * z[i] - slopes[i] - q[i]
            new[i] = soft(inside / phi, BETA / phi)
        old, x, t = x, new, t + 1


# 1. Equality


def always(value: float) -> Callable[[int], float]:
    return lambda t: value


def shrinking(t: int) -> float:
    return 0.3 / (t + 4) ** (1 / 3)


def storm_weight(t: int) -> float:
    return min(1.0, 1 - shrinking(t + 1) / shrinking(t) + 8.0 * shrinking(t + 1) ** 2)


SHRINKING = Power(0.3 / 4 ** (1 / 3), 1 / 3, 4.0)
V2, V1 = ({"version": v, "placement": "combine-then-prox"} for v in ("v2", "v1"))
LATER = {"version": "v2", "placement": "prox-then-combine"}
SLOW: dict[str, Any] = {"alpha": always(0.1), "b": always(0.4)}
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
    "prox-dasa": (ProxDASA(0.3, 0.2), prox_dasa, {"eta": 0.3, "a": always(0.2)}),
    "prox-dasa rounds": (ProxDASA(0.3, 0.2, rounds=2), prox_dasa, {"eta": 0.3, "a": always(0.2), "rounds": 2}),
    "prox-dasa shrinking": (
        ProxDASA(0.3, Power(0.8 * N**0.5, 0.5)),
        prox_dasa,
        {"eta": 0.3, "a": lambda t: min(0.8 * (N / (t + 1)) ** 0.5, 1.0)},
    ),
    "prox-dasa-gt": (ProxDASAGT(0.3, 0.2), prox_dasa, {"eta": 0.3, "a": always(0.2), "tracking": True}),
    "prox-dasa-gt unused": (
        ProxDASAGT(0.3, 0.2, rounds=2, tracker="unused"),
        prox_dasa,
        {"eta": 0.3, "a": always(0.2), "rounds": 2, "tracking": True, "unused": True},
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


#: These draw batches of a size of their own, so they have no run with full gradients alone.
SAMPLING = ("deepstorm shrinking", "proxgt-sr-o")
EQUALITIES = [
    pytest.param(case, period, gradient, id=f"{case}-{period}-{gradient.__name__}")
    for case in CASES
    for period in periods_of(CASES[case][0])
    for gradient in (full, noisy)
    if not (gradient is full and case in SAMPLING)
]


@pytest.mark.parametrize(("case", "period", "gradient"), EQUALITIES)
def test_equals_its_equations(case: str, period: int, gradient: Gradient) -> None:
    """Every variable, to 1e-10: a wrong order, index, sign, weight, batch or schedule breaks it."""
    method, reference, options = CASES[case]
    trajectory = start(method, gradient, period)
    for t, expected in zip(range(STEPS + 1), reference(gradient, period, **options), strict=False):
        for name, value in expected.items():
            difference = np.abs(getattr(trajectory, name) - value).max()
            assert difference <= 1e-10, f"{name} at iteration {t}"
        trajectory.advance(1)
    assert int(trajectory.simulator.state.t) == STEPS + 1


# 2. and 3. Where they converge to

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


@pytest.mark.parametrize(("case", "period"), [(c, p) for c in EXACT for p in periods_of(EXACT[c][0])])
def test_exact_methods_find_the_solution_and_stay(case: str, period: int) -> None:
    """At a constant step with full gradients: nothing is left of the clients' differences."""
    method, steps = EXACT[case]
    trajectory = mp.run(method, period=period, steps=steps)
    assert mp.distance(trajectory, "lasso") <= 1e-6
    assert disagreement(trajectory.x) <= 1e-6
    before = trajectory.x.copy()
    assert np.abs(trajectory.advance(100).x - before).max() < 1e-8


def test_compressed_tracking_finds_the_solution() -> None:
    """What compression leaves out is made up for later: hats that were not kept would leave an error for ever."""
    trajectory = mp.run(CDProxSGT(0.2 / L, keep=0.4), steps=700)
    assert mp.distance(trajectory, "lasso") <= 1e-6
    assert disagreement(trajectory.x) <= 1e-6
    before = trajectory.x.copy()
    assert np.abs(trajectory.advance(100).x - before).max() < 1e-8


@pytest.mark.parametrize("period", PERIODS)
@pytest.mark.parametrize("method", [ProxDASA(0.5 / L, 0.3), ProxDASAGT(0.5 / L, 0.3, tracker="unused")])
def test_prox_dasa_without_tracking_is_biased(method: Algorithm, period: int) -> None:
    """It settles, but where the clients' differences put it."""
    trajectory = mp.run(method, period=period, steps=400)
    assert mp.distance(trajectory, "lasso") > 1e-3
    before = trajectory.x.copy()
    assert np.abs(trajectory.advance(100).x - before).max() < 1e-8


# 4. Identities


def assert_same_models(*methods: Algorithm, period: int = 1) -> None:
    """60 iterations on the same noisy gradients, to rounding."""
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
    """With q = 1 nothing is recursive; here both take full gradients."""
    a, b = mp.run(ProxGTSA(0.1), steps=60), mp.run(ProxGTSRE(0.1, q=1), steps=60)
    assert (a.x == b.x).all()


@pytest.mark.parametrize("period", PERIODS)
def test_deepstorm_with_b_1_estimates_by_the_gradient(period: int) -> None:
    """v2 with b = 1: d = g; with the prox first it is then DEPOSITUM without momentum, at any period."""
    plain = dp.Depositum(0.1, 0.0, start="mixed")
    assert_same_models(plain, DeepStorm(0.1, 1.0, placement="prox-then-combine"), period=period)


def test_dasa_gt_with_an_unused_tracker_is_dasa() -> None:
    for period in PERIODS:
        assert_same_models(ProxDASA(0.3, 0.2), ProxDASAGT(0.3, 0.2, tracker="unused"), period=period)


def test_the_two_forms_of_dproxsgt_differ() -> None:
    a, b = (mp.run(DProxSGT(0.1, form), steps=15) for form in ("paper", "released"))
    assert np.abs(a.x - b.x).max() > 1e-3


def test_where_the_prox_stands_decides_about_consensus() -> None:
    """On a complete graph an exchange ends all disagreement if it comes last, and does not if the prox does."""
    for placement, agrees in (("combine-then-prox", False), ("prox-then-combine", True)):
        method = DeepStorm(0.3, 0.5, placement=placement)
        trajectory = mp.run(method, network=dp.complete(N), period=5, steps=6)  # the sixth step exchanges
        assert (disagreement(trajectory.x) <= 1e-12) is agrees


# 5. What they cost

SAMPLES = mp.A.shape[1]
#: Vectors per phase, gradients at the start, and gradients per iteration, in full passes over a client's samples.
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
    "dproxsgt": (2, 1, 1),
    "dproxsgt released": (2, 1, 1),
    "cdproxsgt none": (2, 1, 1),
    "sppdm nesterov": (1, 0, 1),
}


@pytest.mark.parametrize(("case", "period"), [(c, p) for c in COSTS for p in periods_of(CASES[c][0])])
def test_costs_are_what_the_method_says(case: str, period: int) -> None:
    """Bytes per exchange and gradients per iteration, as counted where they happen."""
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


def test_compression_is_paid_for_by_what_is_kept() -> None:
    """Two entries of five, each a number of 8 bytes and a position of 4, for two variables to two neighbours."""
    simulator = mp.run(CDProxSGT(0.1, keep=0.4)).simulator
    simulator.step()
    assert simulator.costs.bytes_sent == 2 * 2 * 2 * (8 + 4)


@pytest.mark.parametrize("period", PERIODS)
def test_recursive_proxgt_exchanges_and_refreshes_each_in_its_own_time(period: int) -> None:
    """v⁰, v^q, v^{2q}, … cost one batch of their own size and the others two; exchanges keep to T0."""
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


# 6. Trackers

TRACKED = {"deepstorm": "d", "deepstorm v1": "d", "deepstorm rounds": "d", "prox-dasa-gt": "v"} | dict.fromkeys(
    ["proxgt-sa chebyshev", "proxgt-sr-o", "proxgt-sr-e", "dproxsgt", "dproxsgt released", "cdproxsgt"], "nu"
)


@pytest.mark.parametrize("period", PERIODS)
@pytest.mark.parametrize("case", TRACKED)
def test_trackers_keep_the_average(case: str, period: int) -> None:
    """J y = J(what is tracked) at every t, at every period and with noisy gradients."""
    trajectory = start(CASES[case][0], noisy, period)
    for _ in range(60):
        tracked = getattr(trajectory, TRACKED[case])
        assert np.abs(trajectory.y.mean(0) - tracked.mean(0)).max() <= 1e-12 * max(1.0, np.abs(tracked).max())
        trajectory.advance(1)


# What a person can get wrong


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
def test_bad_hyperparameters_are_refused(name: str, key: str, value: Any) -> None:
    """By name as a configuration gives them, and by the class: the key and the value are said, in one line."""
    for build in (lambda: dp.algorithm(name, **{key: value}), lambda: type(dp.algorithm(name))(**{key: value})):
        with pytest.raises(dp.ConfigError) as caught:
            build()
        assert caught.value.key == f"algorithm.{key}"
        assert str(value) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_sppdm_has_no_local_steps() -> None:
    with pytest.raises(dp.ConfigError, match="supports only 1"):
        mp.run(SPPDM(), period=2)


@pytest.mark.parametrize("method", [DeepStorm(0.5), ProxDASA(0.5), ProxGTSA(0.5), DProxSGT(0.5), CDProxSGT(0.5)])
def test_the_prox_is_checked_with_the_step_it_gets(method: Algorithm) -> None:
    """0.5·βρ must be below 1: 0.95 passes, 1 does not."""
    method.check(1, composite=True, prox_modulus=1.9)
    with pytest.raises(dp.ConfigError, match=r"[αη]βρ = 0.5·2 = 1"):
        method.check(1, composite=True, prox_modulus=2.0)
