"""Channels in both engines: one trajectory, the same bytes, averages preserved; and a channel that is new here."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import depositum as dp
from depositum.channels import Channel, Memory, as_channel
from depositum.engines import EngineSettings, Loop, Simulator
from depositum.engines.compilation import trace
from depositum.engines.distributed import DistributedEngine
from depositum.engines.mixing import MatrixMix
from depositum.networks import DroppedLinks
from tests.support.channel_cases import CHANNEL_CASES, CHANNEL_METHODS, PRESERVING, Averaging
from tests.support.rank_engines import SEEDS, problem
from tests.support.thread_communicator import ThreadCommunicator, run_threads

SETTINGS = EngineSettings("cpu", "float64", backend="loop", compile="never")
N, STEPS = 4, 9


METHODS = [*CHANNEL_METHODS, "sppdm"]


def method_of(name: str) -> tuple[dp.Algorithm, float]:
    """A method and a β that it supports."""
    method = dp.algorithm(name)
    return method, 0.0 if method.handles == "smooth" else 1e-3


def simulate(name: str, channel: Channel, period: int = 1, network: dp.Network | None = None) -> Simulator:
    method, beta = method_of(name)
    sim = Simulator(
        problem(N, composite=beta > 0),
        network or dp.ring(N, mixing="lazy-metropolis"),
        method,
        period=period,
        batch_size=4,
        settings=SETTINGS,
        channel=channel,
    )
    sim.start()
    for _ in range(STEPS):
        sim.step()
    return sim


def distribute(
    communicator: ThreadCommunicator, name: str, channel: Channel, period: int, interrupted: bool, network: dp.Network
) -> tuple[dict[str, Tensor], float, int]:
    """The same among threads: the final state, the bytes that a client sent, and all bytes that were posted."""
    method, beta = method_of(name)

    def make() -> DistributedEngine:
        made = DistributedEngine(
            problem(N, composite=beta > 0),
            network,
            method,
            communicator,
            period=period,
            batch_size=4,
            settings=SETTINGS,
            channel=channel,
        )
        made.start()
        return made

    engine = make()
    for t in range(STEPS):
        if interrupted and t == 5:
            resumed = make()
            resumed.restore(engine.snapshot(), engine.t, engine.costs)
            engine = resumed
        engine.step()
    sent = sum(cost.bytes_sent for cost in Loop(engine, STEPS)._costs()) / len(SEEDS)
    return engine.snapshot(), sent, communicator.bytes_posted


@pytest.mark.parametrize("channel", CHANNEL_CASES, ids=repr)
@pytest.mark.parametrize("name", METHODS)
def test_both_engines_give_one_trajectory_and_count_the_bytes_that_are_sent(name: str, channel: Channel) -> None:
    """Through every channel, to 1e-12, over a transport that the package does not have; bytes are equal to the byte.

    Breaks if one engine applies a channel that the other does not, or applies it to something else, or counts what it
    does not send.
    """
    period = 1 if name == "sppdm" else 2
    network = dp.ring(N, mixing="lazy-metropolis")
    sim = simulate(name, channel, period, network)
    parts = run_threads(N, lambda c: distribute(c, name, channel, period, False, network))
    for key, expected in sim.snapshot().items():
        rows = [snapshot[key] for snapshot, _, _ in parts]
        if expected.dim() and len(expected) == len(SEEDS) * N:
            found = torch.stack([r.view(len(SEEDS), *r.shape[1:]) for r in rows], dim=1).flatten(0, 1)
        else:
            found = rows[0]
        assert (found - expected).abs().max() <= 1e-12 * max(1.0, float(expected.abs().max())), key
    costs = sum(cost.bytes_sent for cost in Loop(sim, STEPS)._costs()) / len(SEEDS)
    assert {sent for _, sent, _ in parts} == {costs}
    averages = 1 if name == "depositum" else 0  # y^0 is an average over all clients, which is no message on a link
    row = sim.state.x.shape[1] * 8
    assert sum(posted for *_, posted in parts) == pytest.approx((costs - averages * row) * N * len(SEEDS), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("channel", CHANNEL_CASES, ids=repr)
def test_a_resumed_run_ends_in_the_same_bytes(channel: Channel) -> None:
    """The memory of a channel is part of the checkpoint, and neighbours' copies of it are fetched again."""
    network = dp.ring(N)
    straight = run_threads(N, lambda c: distribute(c, "depositum", channel, 2, False, network))
    resumed = run_threads(N, lambda c: distribute(c, "depositum", channel, 2, True, network))
    for (one, sent, _), (other, again, _) in zip(straight, resumed, strict=True):
        assert sent == again
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("channel", PRESERVING, ids=repr)
@pytest.mark.parametrize("momentum", ["polyak", "nesterov"])
def test_trackers_follow_the_momentum_through_every_channel(channel: Channel, momentum: str) -> None:
    """J y = J ν to 1e-12: W q in place of z + (W − I) q would break it for every channel that is not exact."""
    method = dp.Depositum(0.1, 0.5, momentum)  # type: ignore[arg-type]
    sim = Simulator(problem(N), dp.ring(N), method, period=2, batch_size=4, settings=SETTINGS, channel=channel)
    sim.start()
    for _ in range(20):
        sim.step()
        y, nu = (z.view(len(SEEDS), N, -1).mean(1) for z in (sim.state.y, sim.state.nu))
        assert (y - nu).abs().max() <= 1e-12 * max(1.0, float(nu.abs().max()))


@pytest.mark.parametrize("remedy", ["sums", "none"])
def test_unknown_noise_stays_in_averages_unless_running_sums_take_it_back(remedy: str) -> None:
    """J y − J ν is at most of the size of the last noise with running sums, however long; without, it grows.

    On a regular graph the sum of z + ξ⁺ − ξ over all messages leaves the last ξ alone.
    """
    sigma, channel = 1e-3, as_channel({"noise": {"sigma": 1e-3, "remedy": remedy}})
    sim = Simulator(problem(N), dp.ring(N), dp.Depositum(0.1), batch_size=4, settings=SETTINGS, channel=channel)
    sim.start()
    gaps = []
    for _ in range(150):
        sim.step()
        y, nu = (z.view(len(SEEDS), N, -1).mean(1) for z in (sim.state.y, sim.state.nu))
        gaps.append(float((y - nu).square().mean().sqrt()))
    # w_ij = 1/3, two neighbours, averaged over four clients: 2/3 σ/√4, and √t times as much without a remedy.
    if remedy == "sums":
        assert max(gaps) <= 2 * sigma / 3
    else:
        assert gaps[-1] >= 5 * 2 / 3 * sigma / 2


@pytest.mark.parametrize("channel", CHANNEL_CASES, ids=repr)
def test_advancing_in_place_equals_plain_steps_and_resumes(channel: Channel) -> None:
    """Updated in place, the memory of a channel is that of plain steps; a snapshot half-way holds it."""
    plain = simulate("depositum", channel, 2)
    fast, other = simulate("depositum", channel, 2), simulate("depositum", channel, 2)
    for sim in (fast, other):
        sim.start()
    fast.advance(4)
    other.restore(fast.snapshot(), fast.t, fast.costs)
    for sim in (fast, other):
        sim.advance(STEPS - sim.t)
        assert sim.costs == plain.costs
        for key, value in plain.snapshot().items():
            assert torch.equal(sim.snapshot()[key], value), key


@pytest.mark.slow
@pytest.mark.parametrize("channel", CHANNEL_CASES, ids=repr)
@pytest.mark.parametrize("name", CHANNEL_METHODS)
def test_a_traced_iteration_equals_the_step(name: str, channel: Channel) -> None:
    """What is compiled: the operations of an iteration, with the channel's memory updated in place.

    Breaks if a channel depends on anything that a traced iteration does not compute (compiled: `test_gpu.py`).
    """
    plain, traced = simulate(name, channel), simulate(name, channel)
    traced.start()
    traced.watch(STEPS)
    iteration = traced.iteration
    iteration.hold(traced.state)
    kind = traced.algorithm.kind(0, traced.period)
    iteration(kind)  # fills caches, and allocates the channel's memory
    program = trace(iteration, kind)
    for _ in range(STEPS - 1):
        program(*iteration.tensors())
    traced.state = iteration.state
    for key, value in plain.snapshot().items():
        assert torch.equal(traced.snapshot()[key], value), key


class HalfAveraging(Averaging):
    """Differences rounded to float16, with memory."""

    def send(self, z: Tensor, memory: Memory, words: Tensor) -> Tensor:
        return as_channel("float16").send(super().send(z, memory, words), {}, words)


@pytest.mark.slow
def test_a_channel_is_compiled() -> None:
    """A compiler must not leave out the rounding; and memory is allocated by a rehearsal that leaves no trace."""
    channel = HalfAveraging(0.5)
    plain, fast = simulate("d-psgd", channel), simulate("d-psgd", channel)
    fast.settings = replace(fast.settings, compile="always")
    fast.start()
    fast.advance(STEPS)
    for key, value in plain.snapshot().items():
        torch.testing.assert_close(fast.snapshot()[key], value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("network", ["dropped", "one peer"])
def test_compressed_differences_need_links_that_stay(network: str) -> None:
    """Where links come and go, neighbours have no copy to add to: complete rows are sent, and counted."""
    networks = {
        "dropped": replace(dp.ring(N), drop=DroppedLinks(0.4, seed=5)),
        "one peer": dp.network("one-peer-exponential", N),
    }
    chosen = networks[network]
    sim = simulate("cdproxsgt", as_channel("exact"), 1, chosen)
    parts = run_threads(N, lambda c: distribute(c, "cdproxsgt", as_channel("exact"), 1, False, chosen))
    found = torch.stack([snapshot["x"].view(len(SEEDS), -1) for snapshot, *_ in parts], dim=1).flatten(0, 1)
    assert (found - sim.state.x).abs().max() <= 1e-12
    assert np.mean([sent for _, sent, _ in parts]) == pytest.approx(sim.costs.bytes_sent)


def test_a_mixing_through_a_lossy_channel_uses_the_sent_value_at_both_ends() -> None:
    """z + (W − I) q by a dense product, for two trials; sums over neighbours likewise."""
    network, d = dp.star(5), 7
    mix = MatrixMix(network, 2, torch.device("cpu"), torch.float64, as_channel("float16"), d)
    z = torch.randn(10, d, dtype=torch.float64)
    q = z.half().double()
    W = torch.block_diag(*[torch.tensor(network.W)] * 2)
    adjacency = ((W > 0) & ~torch.eye(10, dtype=torch.bool)).double()
    assert (mix(z) - (z + W @ q - q)).abs().max() <= 1e-14
    degree = adjacency.sum(1, keepdim=True)
    assert (mix.neighbours(z) - (degree * z + adjacency @ q - degree * q)).abs().max() <= 1e-13
    assert mix.to_each == 2 * 2 * d


@pytest.mark.parametrize(
    ("channel", "algorithm", "message"),
    [
        ("flaot16", dp.Depositum(), "channel: 'flaot16' is not a channel; .* did you mean 'float16'"),
        (16, dp.Depositum(), "channel: 16 given; it must be the name of a channel or a Channel"),
        ("float16", dp.algorithm("cdproxsgt"), "^channel: 'float16' given, but 'cdproxsgt' compresses"),
        ("float16", dp.algorithm("fedavg"), "^channel: given, but 'fedavg' has a server"),
    ],
)
def test_channels_that_cannot_be_used_are_refused(channel: object, algorithm: dp.Algorithm, message: str) -> None:
    data = [(torch.randn(6, 3), torch.randint(0, 2, (6,))) for _ in range(3)]
    with pytest.raises(dp.ConfigError, match=message):
        dp.fit(torch.nn.Linear(3, 2), data, channel=channel, algorithm=algorithm, steps=1, progress=False)  # type: ignore[arg-type]
