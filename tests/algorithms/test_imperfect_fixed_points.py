"""Every kind of imperfect link in the package: the optimum is reached, averages follow the momentum; and the traps.

Six clients with losses ½‖D_i x − b_i‖² of condition number 1.5, so that a few hundred iterations reach rounding.
"""

from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

import depositum as dp
from depositum.channels import as_channel
from depositum.engines import EngineSettings, Simulator
from depositum.networks import DirectedNetwork, DroppedLinks, LostMessages, network_sequence
from depositum.problem import Problem, from_client_data
from tests.engines.test_lost_messages import in_flight

N, DIM, BETA = 6, 4, 0.3
RNG = np.random.default_rng(2)
SCALE, TARGET = RNG.uniform(0.9, 1.1, (N, DIM)), RNG.normal(size=(N, DIM)) + 3 * RNG.normal(size=DIM)
EDGES = [*((i, (i + 1) % N) for i in range(N)), (0, 3), (2, 5), (4, 1)]
RING, DIGRAPH = dp.ring(N), DirectedNetwork.from_digraph(nx.DiGraph(EDGES))
SETTINGS = EngineSettings("cpu", "float64", backend="vmap", compile="never")
CASES = [("l1", 1, "polyak"), ("l1", 5, "nesterov"), ("mcp", 1, "nesterov"), ("mcp", 5, "polyak")]


def optimum(h: str) -> Any:
    """Coordinate by coordinate, in closed form; 3 is the largest |x| of the problem, below MCP's θλ = 5."""
    curvature, pull = (SCALE**2).mean(0), (SCALE * TARGET).mean(0)
    shrunk = np.sign(pull) * np.maximum(np.abs(pull) - BETA, 0)
    if h == "l1":
        return shrunk / curvature
    inside = shrunk / (curvature - BETA / 5)
    return np.where(np.abs(inside) <= 5, inside, pull / curvature)


def problem(h: str) -> Problem:
    model = torch.nn.Linear(DIM, 1, bias=False).double()
    clients = [(np.sqrt(DIM) * np.diag(D), np.sqrt(DIM) * b) for D, b in zip(SCALE, TARGET, strict=True)]
    return from_client_data(model, clients, loss="mse", regularizer=dp.L1() if h == "l1" else dp.MCP(), beta=BETA)


def simulated(
    network: dp.Network, h: str, period: int, momentum: str, alpha: float, channel: Any = "exact", name: str = ""
) -> Simulator:
    directed = network.directed or network.lost is not None
    name = name or ("depositum-directed" if directed else "depositum")
    options = {} if name == "sonata" else {"gamma": 0.3, "momentum": momentum}
    method = dp.algorithm(name, alpha=alpha, **options)
    sim = Simulator(problem(h), network, method, period=period, settings=SETTINGS, channel=as_channel(channel))
    sim.start()
    return sim


def outcome(sim: Simulator, h: str, steps: int) -> tuple[float, float]:
    """The distance to the optimum, and the largest violation of J y (with what is in flight) = J ν."""
    violation = 0.0
    for _ in range(10):
        sim.advance(steps // 10)
        state: Any = sim.state
        momentum = state.g if hasattr(state, "g") else state.nu
        flight = in_flight(sim) if sim.network.lost is not None else 0.0
        violation = max(violation, float((state.y.sum(0) + flight - momentum.sum(0)).abs().max()) / N)
    return float(np.abs(sim.state.x.numpy() - optimum(h)).max()), violation


#: Network, channel, and the steps that take it to 1e-9: with T0 = 1 and α = 0.1, and with T0 = 5 and α = 0.03.
UPDATES: dict[str, tuple[dp.Network, Any, int, int]] = {
    "perfect": (RING, "exact", 400, 1000),
    "directed": (DIGRAPH, "exact", 400, 1000),
    "dropped": (replace(RING, drop=DroppedLinks(0.3)), "exact", 400, 1200),
    "one peer": (dp.network("directed-one-peer-exponential", N), "exact", 400, 1200),
    "sequence": (network_sequence(["star", nx.path_graph(N)], N), "exact", 400, 1200),
    "digraphs": (network_sequence([nx.DiGraph(EDGES), "directed-ring"], N, order="random"), "exact", 400, 1200),
    "lost": (replace(RING, lost=LostMessages(0.3)), "exact", 500, 1300),
    "late": (replace(DIGRAPH, lost=LostMessages(0.2, late=2)), "exact", 600, 1800),
    "top-k": (RING, {"top-k": 0.5}, 600, 2000),
    "random-k": (RING, {"random-k": 0.75}, 600, 2000),
    "quantized": (RING, {"quantize": 3}, 400, 1200),
    "sign": (RING, "sign", 400, 1200),
    "half": (RING, {"bfloat16": {"feedback": True}}, 400, 1000),  # in float16, differences below 6e-8 are 0
}


@pytest.mark.slow
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize(("h", "period", "momentum"), CASES)
def test_the_optimum_is_reached_and_trackers_follow_the_momentum(
    update: str, h: str, period: int, momentum: str
) -> None:
    """x* to 1e-9 and J y = J ν to 1e-11, in float64 with full gradients; known noise, the exception, is tested apart.

    Breaks if an update has another fixed point, or gains or loses anything on a link.
    """
    network, channel, *steps = UPDATES[update]
    alpha = 0.1 if period == 1 else 0.03
    distance, violation = outcome(simulated(network, h, period, momentum, alpha, channel), h, steps[period > 1])
    assert distance <= 1e-9
    assert violation <= 1e-11


@pytest.mark.parametrize("update", ["perfect", "directed", "one peer", "digraphs", "lost", "late"])
def test_sonata_reaches_the_optimum(update: str) -> None:
    """Ratios of models as well, also where messages are lost: what is in flight of φ x has its φ with it."""
    network, _, steps, _ = UPDATES[update]
    distance, violation = outcome(simulated(network, "l1", 1, "", 0.1, name="sonata"), "l1", steps)
    assert distance <= 1e-9
    assert violation <= 1e-11


def test_sonata_is_its_equations_in_numpy() -> None:
    """20 iterations to 1e-12; and it is not `depositum-directed` without momentum, whose models mix by R."""
    sim, other = (simulated(DIGRAPH, "l1", 1, "", 0.1, name="sonata") for _ in range(2))
    C, alpha = DIGRAPH.C, 0.1
    x = np.tile(sim.state.x[0].numpy(), (N, 1))
    g = SCALE * (SCALE * x - TARGET)
    y, phi = g, np.ones((N, 1))
    other = simulated(DIGRAPH, "l1", 1, "polyak", 0.1)
    for _ in range(20):
        z = x - alpha * y / phi
        z = np.sign(z) * np.maximum(np.abs(z) - alpha * BETA, 0)
        x, phi = C @ (phi * z) / (C @ phi), C @ phi
        new = SCALE * (SCALE * x - TARGET)
        y, g = C @ (y + new - g), new
        sim.step()
        other.step()
        assert np.abs(sim.state.x.numpy() - x).max() <= 1e-12
    assert (sim.state.x - other.state.x).abs().max() > 1e-3


@pytest.mark.parametrize("remedy", ["known", "sums"])
def test_noise_that_is_countered_stays_of_its_size(remedy: str) -> None:
    """The exception: σ remains, but does not accumulate."""
    sigma, distances = 1e-4, []
    sim = simulated(RING, "l1", 1, "polyak", 0.1, {"noise": {"sigma": sigma, "remedy": remedy}})
    for _ in range(2):
        distance, violation = outcome(sim, "l1", 400)
        distances.append(distance)
        assert violation <= (1e-11 if remedy == "known" else 3 * sigma)
    assert max(distances) <= 10 * sigma


# The traps: each in the package, with its remedy left out


class WithoutRatio(dp.algorithms.DepositumDirected):
    """x⁺ = R prox(x − α y): plain push-pull with a prox."""

    def step(self, s: Any, oracle: Any, mix: Any, kind: str) -> Any:
        new = super().step(s._replace(phi=torch.ones_like(s.phi)), oracle, mix, kind)
        return new._replace(phi=torch.ones_like(s.phi))


def trapped(network: dp.Network) -> tuple[float, float]:
    method = WithoutRatio(alpha=0.1, gamma=0.3)
    sim = Simulator(problem("l1"), network, method, settings=SETTINGS)
    sim.start()
    return outcome(sim, "l1", 400)


def test_without_the_ratio_the_fixed_point_is_another() -> None:
    """J y = J ν holds, and yet: on a digraph, and where a lost message leaves φ unequal."""
    distance, violation = trapped(DIGRAPH)
    assert violation <= 1e-11
    assert distance >= 1e-3
    assert trapped(replace(RING, lost=LostMessages(0.3)))[0] >= 1e-3


def test_a_lost_direction_without_running_sums_breaks_the_invariant() -> None:
    """W of a phase with the weight of a lost message returned to its receiver alone."""
    loss = LostMessages(0.3)

    class OwnValue(dp.Depositum):
        def step(self, s: Any, oracle: Any, mix: Any, kind: str) -> Any:
            i, j = torch.meshgrid(torch.arange(N), torch.arange(N), indexing="ij")
            W = torch.tensor(RING.W) * (loss.arrived(s.t, j, i, 0) | (i == j))
            W = W + torch.diag(1 - W.sum(1))
            return super().step(s, oracle, lambda z: W @ z, kind)

    sim = Simulator(problem("l1"), RING, OwnValue(alpha=0.1, gamma=0.3), settings=SETTINGS)
    sim.start()
    distance, violation = outcome(sim, "l1", 400)
    assert violation >= 1e-2
    assert distance >= 1e-2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("channel", "least"),
    [
        ({"quantize": {"bits": 3, "feedback": False, "rounding": "random"}}, 1e-3),
        ({"noise": {"sigma": 1e-3, "remedy": "none"}}, 3e-3),
    ],
)
def test_compression_without_feedback_and_noise_without_a_remedy_end_elsewhere(channel: Any, least: float) -> None:
    assert outcome(simulated(RING, "l1", 1, "polyak", 0.1, channel), "l1", 1000)[0] >= least
