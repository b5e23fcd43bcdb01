"""DEPOSITUM: equality with an independent NumPy version, special cases that are other methods, and its invariant."""

import networkx as nx
import numpy as np
import pytest
import torch
from torch import nn

import depositum as dp
from depositum.algorithms import Algorithm, Cosine, Power, Step
from depositum.engines import EngineSettings, Simulator
from depositum.problem import from_client_data
from tests.support import equations_depositum as equations

CLASSES, FEATURES, CLIENTS, BETA = 3, 4, 6, 0.1
EXACT = EngineSettings(device="cpu", dtype="float64")

REGULARIZERS = {
    "l1": (dp.L1(), lambda v, tau: equations.prox_l1(v, tau)),
    "mcp": (dp.MCP(lam=0.3, theta=4.0), lambda v, tau: equations.prox_mcp(v, tau, 0.3, 4.0)),
    "scad": (dp.SCAD(lam=0.1, a=3.7), lambda v, tau: equations.prox_scad(v, tau, 0.1, 3.7)),
    "box": (dp.Box(low=-0.2, high=0.3), lambda v, tau: equations.prox_box(v, -0.2, 0.3)),
}
RANDOM = nx.gnp_random_graph(CLIENTS, 0.5, seed=0)
GRAPHS = {
    "ring": (dp.ring(CLIENTS), [(i, (i + 1) % CLIENTS) for i in range(CLIENTS)]),
    "complete": (dp.complete(CLIENTS), [(i, j) for i in range(CLIENTS) for j in range(i)]),
    "random": (dp.network(RANDOM, CLIENTS), list(RANDOM.edges)),
}


def client_data(clients: int = CLIENTS, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Heterogeneous data: each client has its own centre, size and class distribution."""
    rng = np.random.default_rng(seed)
    data = []
    for i in range(clients):
        size = 8 + 3 * i
        inputs = rng.normal(size=(size, FEATURES)) + rng.normal(size=FEATURES)
        data.append((inputs, rng.choice(CLASSES, size, p=rng.dirichlet(np.ones(CLASSES)))))
    return data


def simulator(
    algorithm: Algorithm,
    network: dp.Network,
    regularizer: dp.Regularizer | None = None,
    *,
    period: int = 1,
    batch_size: object = "full",
    beta: float = BETA,
) -> Simulator:
    torch.manual_seed(0)
    problem = from_client_data(
        nn.Linear(FEATURES, CLASSES).double(), client_data(network.n), regularizer=regularizer, beta=beta
    )
    out = Simulator(problem, network, algorithm, period=period, batch_size=batch_size, settings=EXACT)
    out.start()
    return out


def numpy_states(sim: Simulator, prox, edges, **hyper) -> list[dict[str, np.ndarray]]:
    data = client_data(sim.problem.n)
    x0 = sim.problem.trials[0].start.numpy().astype(np.float64)
    return equations.depositum(
        x0,
        lambda i, row: equations.softmax_gradient(row, *data[i], CLASSES),
        prox,
        equations.metropolis(edges, sim.problem.n),
        **hyper,
    )


def assert_tracks(state) -> None:
    """J y = J ν to 1e-12·max(1, ‖ν‖∞): the network-average tracking property (Remark 1)."""
    gap = (state.y.mean(0) - state.nu.mean(0)).abs().max()
    assert gap <= 1e-12 * max(1.0, float(state.nu.abs().max()))


@pytest.mark.parametrize("period", [1, 5])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("h", REGULARIZERS)
@pytest.mark.parametrize("momentum", ["polyak", "nesterov"])
def test_equals_algorithm_1_in_numpy(momentum: str, h: str, graph: str, period: int) -> None:
    """Every variable over 200 iterations, to 1e-10. Fails for a wrong order, sign, weight or schedule."""
    alpha, gamma, steps = 0.2, 0.6, 200
    regularizer, prox = REGULARIZERS[h]
    network, edges = GRAPHS[graph]
    sim = simulator(dp.Depositum(alpha, gamma, momentum), network, regularizer, period=period)
    expected = numpy_states(
        sim,
        lambda v: prox(v, alpha * BETA),
        edges,
        alpha=alpha,
        gamma=gamma,
        period=period,
        steps=steps,
        momentum=momentum,
    )
    for t in range(steps + 1):
        names = ("x", "y", "nu") if momentum == "polyak" else ("x", "y", "nu", "mu")
        for name in names:
            difference = np.abs(getattr(sim.state, name).numpy() - expected[t][name]).max()
            assert difference <= 1e-10, f"{name} at iteration {t}"
        assert_tracks(sim.state)
        sim.step()


@pytest.mark.parametrize("start", ["average", "local", "mixed"])
def test_every_start_equals_its_equation(start: str) -> None:
    """y^0 = ḡ^0, g^0 or W g^0, each with the tracking property."""
    network, edges = GRAPHS["ring"]
    sim = simulator(dp.Depositum(0.1, 0.5, start=start), network, dp.L1(), period=3)
    expected = numpy_states(
        sim,
        lambda v: equations.prox_l1(v, 0.1 * BETA),
        edges,
        alpha=0.1,
        gamma=0.5,
        period=3,
        steps=30,
        momentum="polyak",
        start=start,
    )
    for t in range(31):
        assert np.abs(sim.state.y.numpy() - expected[t]["y"]).max() <= 1e-12
        assert_tracks(sim.state)
        sim.step()


@pytest.mark.parametrize("momentum", ["polyak", "nesterov"])
@pytest.mark.parametrize("period", [1, 4])
def test_tracking_property_holds_with_mini_batches(momentum: str, period: int) -> None:
    """J y = J ν does not depend on how gradients are computed."""
    sim = simulator(dp.Depositum(0.1, 0.7, momentum), dp.erdos_renyi(CLIENTS), dp.MCP(), period=period, batch_size=3)
    for _ in range(100):
        assert_tracks(sim.state)
        sim.step()


def test_without_h_momentum_and_local_steps_is_gradient_tracking() -> None:
    """h = 0, γ = 0, T0 = 1 is ATC gradient tracking in the paper's second form (GTEq1, GTEq3)."""
    network, edges = GRAPHS["random"]
    alpha = 0.3
    sim = simulator(dp.Depositum(alpha, 0.0, start="local"), network, beta=0.0)
    data, w = client_data(), equations.metropolis(edges, CLIENTS)
    x = np.tile(sim.problem.trials[0].start.numpy(), (CLIENTS, 1)).astype(np.float64)

    def gradients(x: np.ndarray) -> np.ndarray:
        return np.array([equations.softmax_gradient(x[i], *data[i], CLASSES) for i in range(CLIENTS)])

    g = y = gradients(x)
    for _ in range(200):
        x = w @ (x - alpha * y)
        new = gradients(x)
        y, g = w @ (y + new - g), new
        sim.step()
        assert np.abs(sim.state.x.numpy() - x).max() <= 1e-10
        assert np.abs(sim.state.y.numpy() - y).max() <= 1e-10


def test_one_client_is_proximal_sgd_with_momentum() -> None:
    """n = 1: ν is y, and x ← prox(x − α ν) (Gao, Rodomanov, Stich)."""
    alpha, gamma = 0.2, 0.8
    sim = simulator(dp.Depositum(alpha, gamma), dp.ring(1), dp.L1(), period=5)
    data = client_data(1)
    x = sim.problem.trials[0].start.numpy().astype(np.float64)
    nu = equations.softmax_gradient(x, *data[0], CLASSES)
    for _ in range(200):
        x = equations.prox_l1(x - alpha * nu, alpha * BETA)
        nu = gamma * nu + (1 - gamma) * equations.softmax_gradient(x, *data[0], CLASSES)
        sim.step()
        assert np.abs(sim.state.x.numpy()[0] - x).max() <= 1e-10


def test_averaging_network_is_centralized_proximal_sgd_with_momentum() -> None:
    """W = J, T0 = 1: every client's x is one proximal step with the average tracker."""
    alpha, gamma = 0.1, 0.5
    sim = simulator(dp.Depositum(alpha, gamma), dp.complete(CLIENTS, "uniform"), dp.L1())
    for _ in range(50):
        x, y = sim.state.x, sim.state.y
        sim.step()
        expected = equations.prox_l1((x - alpha * y).numpy(), alpha * BETA).mean(0)
        assert np.abs(sim.state.x.numpy() - expected).max() <= 1e-12


def test_polyak_and_nesterov_agree_without_momentum() -> None:
    """γ = 0 gives the same method for both."""
    polyak = simulator(dp.Depositum(0.1, 0.0, "polyak"), dp.ring(CLIENTS), dp.SCAD(), batch_size=4)
    nesterov = simulator(dp.Depositum(0.1, 0.0, "nesterov"), dp.ring(CLIENTS), dp.SCAD(), batch_size=4)
    for _ in range(50):
        polyak.step()
        nesterov.step()
    assert torch.equal(polyak.state.x, nesterov.state.x)


@pytest.mark.parametrize("schedule", [Cosine(0.2, 20, 0.01), Power(0.2, 0.5, 3.0), Step(0.2, 0.5, 7)])
def test_a_scheduled_stepsize_is_used_at_every_iteration(schedule) -> None:
    """A scheduled run equals NumPy with α computed at every t."""
    network, edges = GRAPHS["ring"]
    sim = simulator(dp.Depositum(schedule, 0.5), network, dp.L1())
    data, w = client_data(), equations.metropolis(edges, CLIENTS)
    state = {k: getattr(sim.state, k).numpy() for k in ("x", "y", "nu")}
    for t in range(40):
        alpha = float(schedule.at(torch.tensor(t)))
        x = w @ equations.prox_l1(state["x"] - alpha * state["y"], alpha * BETA)
        g = np.array([equations.softmax_gradient(x[i], *data[i], CLASSES) for i in range(CLIENTS)])
        nu = 0.5 * state["nu"] + 0.5 * g
        state = {"x": x, "y": w @ (state["y"] + nu - state["nu"]), "nu": nu}
        sim.step()
        assert np.abs(sim.state.x.numpy() - x).max() <= 1e-12
        assert alpha <= schedule.largest


@pytest.mark.slow
def test_converges_to_the_solution_of_a_composite_problem() -> None:
    """G^α vanishes at consensus, on a ring with heterogeneous data and T0 = 5: there is no bias."""
    sim = simulator(dp.Depositum(0.2, 0.5), dp.ring(CLIENTS), dp.L1(), period=5)
    for _ in range(2000):
        sim.step()
    x = sim.state.x
    mapping = (x - sim.oracle.prox(x - 0.2 * sim.oracle.global_grad(x), 0.2)) / 0.2
    assert mapping.abs().max() <= 1e-8
    assert (x - x.mean(0)).abs().max() <= 1e-9


@pytest.mark.parametrize(
    ("hyper", "key"),
    [
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": -1.0}, "alpha"),
        ({"alpha": float("nan")}, "alpha"),
        ({"gamma": 1.0}, "gamma"),
        ({"gamma": -0.1}, "gamma"),
        ({"momentum": "heavy"}, "momentum"),
        ({"start": "zero"}, "start"),
    ],
)
def test_invalid_hyperparameters_are_rejected(hyper: dict, key: str) -> None:
    with pytest.raises(dp.ConfigError) as error:
        dp.Depositum(**hyper)
    assert error.value.key == key


def test_a_prox_that_is_not_single_valued_is_rejected_before_work() -> None:
    """The prox is not unique for αβρ ≥ 1; the error has the numbers."""
    with pytest.raises(dp.ConfigError, match="αβρ = .* single-valued only below 1"):
        simulator(dp.Depositum(alpha=2.0), dp.ring(CLIENTS), dp.MCP(1.0, 0.5), beta=0.3)
