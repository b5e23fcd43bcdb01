"""DEPOSITUM and push-pull on directed networks: against NumPy, to the optimum, in both engines, through channels."""

from itertools import islice

import networkx as nx
import numpy as np
import pytest
import torch

import depositum as dp
from depositum.channels import Channel, as_channel
from depositum.engines import EngineSettings, Loop, Simulator
from depositum.engines.distributed import DistributedEngine
from depositum.networks import DirectedNetwork
from tests.support import equations_imperfect as eq
from tests.support import method_problems as mp
from tests.support import rank_engines
from tests.support.thread_communicator import ThreadCommunicator, run_threads

EDGES = [*((i, (i + 1) % mp.N) for i in range(mp.N)), (0, 3), (2, 5), (4, 1)]
NETWORK = DirectedNetwork.from_digraph(nx.DiGraph(EDGES))
START = np.tile(mp.X0, (mp.N, 1))


@pytest.mark.parametrize("period", [1, 5])
@pytest.mark.parametrize("momentum", ["polyak", "nesterov"])
def test_every_iterate_is_that_of_the_reference(momentum: str, period: int) -> None:
    """65 iterations to 1e-12: φ, the ratio in the prox, which of R and C mixes what, and the order of it all."""
    method = dp.algorithm("depositum-directed", alpha=0.05, gamma=0.4, momentum=momentum, start="local")
    run = mp.run(method, network=NETWORK, period=period)
    reference = eq.Method(mp.gradients, lambda v: mp.soft(v, 0.05 * mp.BETA), 0.05, 0.4, momentum, period)
    links = eq.Directed(eq.row_stochastic(mp.N, EDGES), eq.column_stochastic(mp.N, EDGES))
    for state in islice(reference.run(links, reference.start(START)), 65):
        run.advance(1)
        for name in ("x", "y", "nu", "phi"):
            assert np.abs(getattr(run, name) - getattr(state, name)).max() <= 1e-12, name


@pytest.mark.parametrize(("period", "alpha", "steps"), [(1, 0.03, 1500), (5, 0.008, 6000)])
def test_the_optimum_is_reached_and_trackers_follow_the_momentum(period: int, alpha: float, steps: int) -> None:
    """x* to 1e-9 and J y = J ν to 1e-11, in float64 with full gradients."""
    method = dp.algorithm("depositum-directed", alpha=alpha, gamma=0.5)
    run = mp.run(method, network=NETWORK, period=period)
    for _ in range(steps // 50):
        run.simulator.advance(50)
        assert np.abs(run.y.mean(0) - run.nu.mean(0)).max() <= 1e-11
    assert np.abs(run.x - mp.SOLUTION["lasso"]).max() <= 1e-9


def test_without_the_ratio_another_point_is_reached() -> None:
    """That of the reference without φ, to 1e-12; φ is not sent."""
    method = dp.algorithm("depositum-directed", alpha=0.05, gamma=0.4, start="local", ratio=False)
    run = mp.run(method, network=NETWORK)
    reference = eq.Method(mp.gradients, lambda v: mp.soft(v, 0.05 * mp.BETA), 0.05, 0.4, "polyak", 1)
    links = eq.Directed(eq.row_stochastic(mp.N, EDGES), eq.column_stochastic(mp.N, EDGES), ratio=False)
    for state in islice(reference.run(links, reference.start(START)), 65):
        run.advance(1)
        assert np.abs(run.x - state.x).max() <= 1e-12
    run.simulator.advance(1500)
    assert np.abs(run.x - mp.SOLUTION["lasso"]).max() >= 1e-3
    with_ratio = mp.run(dp.algorithm("depositum-directed", alpha=0.05), network=NETWORK)
    with_ratio.simulator.advance(1)
    plain = mp.run(dp.algorithm("depositum-directed", alpha=0.05, ratio=False), network=NETWORK)
    plain.simulator.advance(1)
    assert plain.simulator.costs.bytes_sent < with_ratio.simulator.costs.bytes_sent


def test_push_pull_reaches_the_optimum_of_a_smooth_problem() -> None:
    run = mp.run(dp.algorithm("push-pull", alpha=0.05), "ridge", network=NETWORK)
    run.simulator.advance(1500)
    assert np.abs(run.x - mp.SOLUTION["ridge"]).max() <= 1e-9


def test_on_an_undirected_network_it_is_depositum() -> None:
    """To the bit; and push-pull is DSGT in its second form."""
    for one, other, kind in (
        (dp.algorithm("depositum-directed", alpha=0.05), dp.Depositum(0.05), "lasso"),
        (dp.algorithm("push-pull", alpha=0.05), dp.algorithm("dsgt", alpha=0.05, form="second"), "ridge"),
    ):
        first, second = (mp.run(method, kind, period=2, steps=20) for method in (one, other))
        assert np.array_equal(first.x, second.x)
        assert first.simulator.costs == second.simulator.costs


N, STEPS = 4, 7
FOUR = DirectedNetwork.from_digraph(nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]))
SETTINGS = EngineSettings("cpu", "float64", backend="loop", compile="never")
CHANNELS: list[Channel] = [
    as_channel("exact"),
    as_channel("float16"),
    as_channel("sparse"),
    as_channel({"top-k": 0.3}),
    as_channel({"noise": {"sigma": 1e-3, "remedy": "none"}}),
]


def simulated(name: str, channel: Channel) -> Simulator:
    problem = rank_engines.problem(N, composite=name != "push-pull")
    sim = Simulator(problem, FOUR, dp.algorithm(name), period=2, batch_size=4, settings=SETTINGS, channel=channel)
    sim.start()
    return sim


@pytest.mark.parametrize("channel", CHANNELS, ids=repr)
@pytest.mark.parametrize("name", ["depositum-directed", "push-pull"])
def test_both_engines_give_one_trajectory_and_the_same_bytes(name: str, channel: Channel) -> None:
    """Rows travel in one direction only, and what is counted is what was posted."""
    sim = simulated(name, channel)
    for _ in range(STEPS):
        sim.step()

    def distribute(communicator: ThreadCommunicator) -> tuple[dict[str, torch.Tensor], float, int]:
        engine = DistributedEngine(
            rank_engines.problem(N, composite=name != "push-pull"),
            FOUR,
            dp.algorithm(name),
            communicator,
            period=2,
            batch_size=4,
            settings=SETTINGS,
            channel=channel,
        )
        engine.start()
        for _ in range(STEPS):
            engine.step()
        seeds = len(rank_engines.SEEDS)
        sent = sum(cost.bytes_sent for cost in Loop(engine, STEPS)._costs()) / seeds
        return engine.snapshot(), sent, communicator.bytes_posted

    parts = run_threads(N, distribute)
    seeds = len(rank_engines.SEEDS)
    for key in ("x", "y"):
        found = torch.stack([snapshot[key].view(seeds, -1) for snapshot, *_ in parts], dim=1).flatten(0, 1)
        assert (found - sim.snapshot()[key]).abs().max() <= 1e-12, key
    expected = sum(cost.bytes_sent for cost in Loop(sim, STEPS)._costs()) / seeds
    assert [sent for _, sent, _ in parts] == pytest.approx([expected] * N)
    averaged = sim.state.x.shape[1] * 8 if name == "depositum-directed" else 0  # y^0, which is no message on a link
    assert sum(posted for *_, posted in parts) == pytest.approx((expected - averaged) * N * seeds)
    if channel.known and name == "depositum-directed":
        y, nu = (z.view(seeds, N, -1).mean(1) for z in (sim.state.y, sim.state.nu))  # type: ignore[attr-defined]
        assert (y - nu).abs().max() <= 1e-12


@pytest.mark.slow
def test_it_is_compiled() -> None:
    plain, fast = (simulated("depositum-directed", as_channel({"top-k": 0.3})) for _ in range(2))
    fast.settings = EngineSettings("cpu", "float64", backend="loop", compile="always")
    fast.advance(STEPS)
    for _ in range(STEPS):
        plain.step()
    for key, value in plain.snapshot().items():
        torch.testing.assert_close(fast.snapshot()[key], value, rtol=1e-9, atol=1e-11)
