"""Links that lose messages in one direction or deliver them late: against NumPy, and in both engines."""

import zlib
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor

import depositum as dp
from depositum.channels import as_channel
from depositum.engines import EngineSettings, Loop, Simulator
from depositum.engines.distributed import DistributedEngine
from depositum.networks import DirectedNetwork, LostMessages
from depositum.runs import parse, resolve
from tests.support import equations_imperfect as eq
from tests.support import method_problems as mp
from tests.support import rank_engines, small_runs
from tests.support.reference_hash import reference_hash
from tests.support.thread_communicator import ThreadCommunicator, run_threads

EDGES = [*((i, (i + 1) % mp.N) for i in range(mp.N)), (0, 3), (2, 5), (4, 1)]
DIGRAPH, RING = DirectedNetwork.from_digraph(nx.DiGraph(EDGES)), dp.ring(mp.N)
START = np.tile(mp.X0, (mp.N, 1))


def reference_links(network: dp.Network, loss: LostMessages) -> eq.Lossy:
    """The NumPy links with the same losses, from the hash in Python integers."""
    C = network.C if isinstance(network, DirectedNetwork) else network.W

    def word(i: int, j: int, phase: int) -> int:
        return reference_hash(loss.seed, zlib.crc32(b"lost messages"), j, i, phase)

    def arrives(i: int, j: int, phase: int) -> bool:
        return (word(i, j, phase) & 0xFFFFFFFF) / 2**32 >= loss.p

    def delay(i: int, j: int, phase: int) -> int:
        return (word(i, j, phase) >> 32) * (loss.late + 1) // 2**32

    return eq.Lossy(network.W, C, arrives, delay)


def in_flight(simulator: Simulator) -> Tensor:
    """Σ c_ij (s_j − s_j') over all links, `[d]`, from the memory of the last mixing of a step."""
    memory, network = simulator.channel_state.memory[-1], simulator.network
    C = network.C if isinstance(network, DirectedNetwork) else network.W
    total = torch.zeros_like(simulator.state.x[0])
    for i, senders in enumerate(network.neighbours):
        for slot, j in enumerate(senders):
            total = total + float(C[i, j]) * (memory["sent"][j, 0] - memory["heard"][i, slot])
    return total


@pytest.mark.parametrize("network", [DIGRAPH, RING], ids=["digraph", "ring"])
@pytest.mark.parametrize("loss", [LostMessages(0.4, seed=3), LostMessages(0.2, late=3), LostMessages(late=1)], ids=str)
@pytest.mark.parametrize(("momentum", "period"), [("polyak", 1), ("nesterov", 3)])
def test_every_iterate_is_that_of_the_reference(
    network: dp.Network, loss: LostMessages, momentum: str, period: int
) -> None:
    """60 iterations to 1e-12, and what is in flight: which messages arrive when, and what is done with each."""
    method = dp.algorithm("depositum-directed", alpha=0.01, gamma=0.4, momentum=momentum, start="local")
    run = mp.run(method, network=replace(network, lost=loss), period=period)
    reference = eq.Method(mp.gradients, lambda v: mp.soft(v, 0.01 * mp.BETA), 0.01, 0.4, momentum, period)
    links = reference_links(network, loss)
    for state in islice(reference.run(links, reference.start(START)), 60):
        run.advance(1)
        for name in ("x", "y", "nu", "phi"):
            assert np.abs(getattr(run, name) - getattr(state, name)).max() <= 1e-12, name
        assert np.abs(in_flight(run.simulator).numpy() - links.in_flight()).max() <= 1e-12
    gap = run.y.sum(0) + in_flight(run.simulator).numpy() - run.nu.sum(0)
    assert np.abs(gap).max() <= 1e-12


def test_messages_are_lost_and_late_as_often_as_configured() -> None:
    """A share p is lost, each delay is as likely, directions are independent, and nothing arrives before phase 0."""
    loss, phases = LostMessages(0.3, late=2, seed=1), torch.arange(2, 4002)
    i, j = torch.tensor(0), torch.tensor(1)
    by_age = [loss.arrived(phases + age, i, j, age) for age in range(3)]
    shares = [float(now.double().mean()) for now in by_age]
    assert shares == pytest.approx([0.7 / 3, 1.4 / 3, 0.7], abs=0.03)
    assert (by_age[1] | ~by_age[0]).all()
    assert (by_age[2] | ~by_age[1]).all()
    back = loss.arrived(phases + 2, j, i, 2)
    assert float((back & by_age[2]).double().mean()) == pytest.approx(0.49, abs=0.03)
    assert not loss.arrived(torch.tensor(1), i, j, 2).any()


# Both engines

N, STEPS = 4, 9
SETTINGS = EngineSettings("cpu", "float64", backend="loop", compile="never")
FOUR = DirectedNetwork.from_digraph(nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]))
CASES = [
    ("depositum-directed", replace(FOUR, lost=LostMessages(0.3, late=2)), "exact"),
    ("depositum-directed", replace(dp.ring(N), lost=LostMessages(0.4)), "sparse"),
    ("push-pull", replace(dp.star(N), lost=LostMessages(0.1, late=1)), "exact"),
]


def settings_of(name: str) -> tuple[Any, ...]:
    return rank_engines.problem(N, composite=name != "push-pull"), dp.algorithm(name)


def simulated(name: str, network: dp.Network, channel: str) -> Simulator:
    problem, method = settings_of(name)
    settings = {"period": 2, "batch_size": 4, "settings": SETTINGS, "channel": as_channel(channel)}
    sim = Simulator(problem, network, method, **settings)
    sim.start()
    return sim


def distributed(
    communicator: ThreadCommunicator, name: str, network: dp.Network, channel: str, interrupted: bool = False
) -> tuple[dict[str, Tensor], float, int]:
    """The final state, the bytes that a client sent, and all bytes that were posted."""
    problem, method = settings_of(name)

    def made() -> DistributedEngine:
        settings = {"period": 2, "batch_size": 4, "settings": SETTINGS, "channel": as_channel(channel)}
        engine = DistributedEngine(problem, network, method, communicator, **settings)
        engine.start()
        return engine

    engine = made()
    for t in range(STEPS):
        if interrupted and t == 5:
            resumed = made()
            resumed.restore(engine.snapshot(), engine.t, engine.costs)
            engine = resumed
        engine.step()
    sent = sum(cost.bytes_sent for cost in Loop(engine, STEPS)._costs()) / len(rank_engines.SEEDS)
    return engine.snapshot(), sent, communicator.bytes_posted


def joined(parts: list[Tensor]) -> Tensor:
    """The rows of all ranks in the order of a simulator."""
    seeds = len(rank_engines.SEEDS)
    return torch.cat([part.view(seeds, -1, *part.shape[1:]) for part in parts], dim=1).flatten(0, 1)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("name", "network", "channel"), CASES)
def test_both_engines_give_one_trajectory_and_the_same_bytes(
    name: str, network: dp.Network, channel: str, ranks: int
) -> None:
    """To 1e-12 with the memory of all links; a message that is lost was sent, and is counted."""
    sim = simulated(name, network, channel)
    for _ in range(STEPS):
        sim.step()
    parts = run_threads(ranks, lambda c: distributed(c, name, network, channel))
    for key, expected in sim.snapshot().items():
        if key == "channel.bytes" and ranks < N:  # nothing is sent between clients of one rank
            continue
        found = joined([snapshot[key] for snapshot, *_ in parts])
        assert found.shape == expected.shape
        assert (found - expected).abs().max() <= 1e-12 * max(1.0, float(expected.abs().max())), key
    costs = sum(cost.bytes_sent for cost in Loop(sim, STEPS)._costs()) / len(rank_engines.SEEDS)
    if ranks == N:
        assert {sent for _, sent, _ in parts} == {costs}
        averaged = sim.state.x.shape[1] * 8 if name == "depositum-directed" else 0  # y^0, which is no message
        assert sum(posted for *_, posted in parts) == (costs - averaged) * N * len(rank_engines.SEEDS)
    perfect = simulated(name, replace(network, lost=None), "exact")
    for _ in range(STEPS):
        perfect.step()
    assert (perfect.state.x - sim.state.x).abs().max() > 1e-6
    if channel == "exact" and network.directed:
        assert perfect.costs == sim.costs


@pytest.mark.parametrize(("name", "network", "channel"), CASES[:2])
def test_a_resumed_run_ends_in_the_same_bytes(name: str, network: dp.Network, channel: str) -> None:
    """What is on its way is part of the checkpoint, in both engines; what neighbours have sent is asked for again."""
    straight, again = (
        run_threads(N, lambda c, resume=resume: distributed(c, name, network, channel, resume))  # type: ignore[misc]
        for resume in (False, True)
    )
    for (one, sent, _), (other, resent, _) in zip(straight, again, strict=True):
        assert sent == resent
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)
    fast, other = simulated(name, network, channel), simulated(name, network, channel)
    fast.advance(4)
    other.restore(fast.snapshot(), fast.t, fast.costs)
    for sim in (fast, other):
        sim.advance(STEPS - sim.t)
    plain = simulated(name, network, channel)
    for _ in range(STEPS):
        plain.step()
    for key, value in plain.snapshot().items():
        assert torch.equal(fast.snapshot()[key], value), key
        assert torch.equal(other.snapshot()[key], value), key


@pytest.mark.slow
def test_it_is_compiled() -> None:
    name, network, channel = CASES[0]
    plain, fast = (simulated(name, network, channel) for _ in range(2))
    fast.settings = replace(SETTINGS, compile="always")
    fast.advance(STEPS)
    for _ in range(STEPS):
        plain.step()
    for key, value in plain.snapshot().items():
        torch.testing.assert_close(fast.snapshot()[key], value, rtol=1e-9, atol=1e-11)


# In a configuration, and what is refused


def test_it_is_written_in_a_configuration_and_resumed(tmp_path: Path) -> None:
    """`lost` and `late` of `[network]`; a run that is stopped and continued ends in the same bytes."""
    links = {"network": {"lost": 0.3, "late": 2}, "algorithm": {"name": "depositum-directed", "alpha": 0.1}}
    file = small_runs.write_config(tmp_path / "run.toml", **links)
    small_runs.train(file, tmp_path / "straight")
    with pytest.raises(small_runs.Killed):
        small_runs.train(file, tmp_path / "parts", small_runs.KillAt(9))
    small_runs.train(file, tmp_path / "parts")
    assert small_runs.outcome(tmp_path / "straight") == small_runs.outcome(tmp_path / "parts")


def make(**arguments: Any) -> dp.Network:
    return dp.network(arguments.pop("topology", "ring"), 4, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lost": 1.0}, r"^lost: 1.0 given; the probability of a lost message is in \[0, 1\)"),
        ({"lost": "half"}, "^lost: 'half' given"),
        ({"lost": True}, "^lost: True given"),
        ({"late": True}, "^late: True given"),
        ({"late": -1}, "^late: -1 given; it must be a whole number of phases from 0 to 100"),
        ({"late": 1.5}, "^late: 1.5 given"),
        ({"lost": 0.1, "drop": 0.1}, "^lost: given, but the links of this network come and go"),
        ({"late": 1, "topology": "one-peer-exponential"}, "^late: given, but the links of this network come and go"),
    ],
)
def test_losses_that_cannot_be_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(dp.ConfigError, match=message):
        make(**arguments)


@pytest.mark.parametrize(
    ("name", "channel", "message"),
    [
        ("depositum", "exact", r"^lost: given, but 'depositum' needs W\^t 1 = 1 .* use 'depositum-directed', or drop"),
        ("gut", "exact", "^lost: given, but 'gut' needs"),
        ("depositum-directed", "float16", "^channel: 'float16' given, but messages can be lost"),
        ("depositum-directed", {"top-k": 0.5}, "^channel: 'top-k' given, but messages can be lost"),
    ],
)
def test_methods_and_channels_that_losses_would_make_wrong_refuse_them(name: str, channel: Any, message: str) -> None:
    data = [(torch.ones(4, 3), torch.arange(4) % 2) for _ in range(4)]
    arguments = {"algorithm": name, "network": make(lost=0.2), "channel": channel}
    with pytest.raises(dp.ConfigError, match=message):
        dp.fit(torch.nn.Linear(3, 2), data, steps=1, progress=False, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("network", "method", "message"),
    [
        ({"lost": 0.2}, "depositum", "^network.lost: given, but 'depositum' needs"),
        ({"late": 2}, "extra", "^network.late: given, but 'extra' needs"),
        ({"topology": "directed-ring"}, "depositum", "^network: directed, but 'depositum' mixes"),
        ({"lost": 0.2, "channel": "float16"}, "sonata", "^network.channel: 'float16' given, but messages can be lost"),
        ({"drop": 0.2, "channel": "top-k"}, "depositum", "^network.channel: 'top-k' given, but the links"),
    ],
)
def test_a_network_that_does_not_fit_is_refused_before_data_is_read(
    network: dict[str, Any], method: str, message: str
) -> None:
    """A sweep would otherwise train the cells before it."""
    table = {"problem": {"dataset": "synthetic"}, "network": network, "algorithm": {"name": method}}
    with pytest.raises(dp.ConfigError, match=message):
        resolve(parse(table))


def test_what_is_printed() -> None:
    assert str(make(lost=0.2)).endswith(", each message lost with probability 0.2")
    assert str(make(lost=0.2, late=3)).endswith("lost with probability 0.2 or up to 3 phases late")
    assert "up to 1 phases late" not in str(make())
