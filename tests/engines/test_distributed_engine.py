"""The distributed engine, with one or two clients per process: the simulator's trajectory over real links."""

from typing import Any

import numpy as np
import pytest
import torch

import depositum as dp
from depositum.engines import Simulator
from depositum.engines.distributed import Placement, restrict_data
from depositum.engines.distributed.async_tensor import AsyncTensor, awaited
from depositum.engines.distributed.awaiting_oracle import AwaitingOracle
from depositum.engines.mixing import MatrixMix
from tests.support.channel_cases import CHANNEL_CASES
from tests.support.rank_engines import (
    SEEDS,
    SETTINGS,
    STEPS,
    TIME_VARYING,
    batch_norm_model,
    cases,
    channel_cases,
    channel_trajectories,
    divergences,
    mean_costs,
    measured,
    measures,
    networks,
    problem,
    resumes_exactly,
    setting,
    simulated,
    time_varying_trajectories,
    trajectories,
)
from tests.support.rank_processes import launch


@pytest.mark.slow
@pytest.mark.parametrize("share", [1, 2])
def test_every_method_has_the_simulators_trajectory(share: int) -> None:
    """All variables of all methods for two seeds, to 1e-10, at the same cost. Fails if a row is lost or misdirected."""
    size = 4
    n = size * share
    ranks = launch(trajectories, size, n)
    for name, period in cases():
        sim = simulated(name, period, n)
        for key, complete in sim.snapshot().items():
            parts = [tensors[key] for tensors, _ in (found[name, period] for found in ranks)]
            expected = complete.numpy()
            if expected.ndim and len(expected) == len(SEEDS) * n:
                blocks = [part.reshape(len(SEEDS), share, *part.shape[1:]) for part in parts]
                gathered = np.concatenate(blocks, axis=1).reshape(expected.shape)
            else:
                gathered = parts[0]
            scale = np.abs(expected).max(initial=1e-300)
            assert np.abs(gathered - expected).max() <= 1e-10 * scale, (name, period, key)
        for _, (phases, sent, evaluations) in (found[name, period] for found in ranks):
            assert phases == sim.costs.phases
            assert evaluations == pytest.approx(sim.costs.gradient_evaluations)
            if share == 1:  # clients of one process do not send messages to each other
                assert sent == sim.costs.bytes_sent


@pytest.mark.slow
def test_every_channel_has_the_simulators_trajectory_with_every_way_of_mixing() -> None:
    """Four processes: all variables and the memory of the channel to 1e-10, and the same bytes."""
    size = 4
    ranks = launch(channel_trajectories, size, size)
    for index, (name, channel) in enumerate(channel_cases()):
        sim = Simulator(*setting(name, size), period=2, batch_size=4, settings=SETTINGS, channel=CHANNEL_CASES[channel])
        sim.start()
        for _ in range(STEPS):
            sim.step()
        what = (name, CHANNEL_CASES[channel])
        for key, complete in sim.snapshot().items():
            parts, expected = [tensors[key] for tensors, _ in (found[index] for found in ranks)], complete.numpy()
            if expected.ndim and len(expected) == len(SEEDS) * size:
                gathered = np.stack(parts, axis=1).reshape(expected.shape)
            else:
                gathered = parts[0]
            assert np.abs(gathered - expected).max() <= 1e-10 * np.abs(expected).max(initial=1e-300), (*what, key)
        assert {sent for _, sent in (found[index] for found in ranks)} == {mean_costs(sim).bytes_sent}, what


@pytest.mark.slow
def test_time_varying_networks_give_the_simulators_trajectory() -> None:
    """Dropped links, and one peer at a time. Fails if the engines count phases differently."""
    ranks = launch(time_varying_trajectories, 4, 8)
    for k, (network, name, period) in enumerate(TIME_VARYING):
        sim = Simulator(
            problem(8), networks(8)[network], dp.algorithm(name), period=period, batch_size=4, settings=SETTINGS
        )
        sim.start()
        for _ in range(STEPS):
            sim.step()
        expected = sim.state.x.view(len(SEEDS), 8, -1).numpy()
        found = np.concatenate([parts[k] for parts in ranks], axis=1)
        assert np.abs(found - expected).max() <= 1e-10 * np.abs(expected).max(), (network, name)


@pytest.mark.slow
def test_measures_equal_the_simulators() -> None:
    """Losses, accuracies, consensus, sparsity, ‖G‖², estimation error, s and ζ² of a model with buffers, to 1e-9.

    Clients are weighted by samples. Fails if a sum is over one rank's clients only.
    """
    size, n = 2, 4
    sim = Simulator(
        problem(n, model=batch_norm_model(), weighting="samples"),
        dp.ring(n),
        dp.Depositum(0.1),
        period=2,
        batch_size=6,
        settings=SETTINGS,
    )
    sim.start()
    for _ in range(7):
        sim.step()
    expected = measures(sim)
    for values, posted in launch(measured, size, n, "gather"):
        assert set(values) == set(expected)
        for name, value in expected.items():
            assert values[name] == pytest.approx(value.tolist(), rel=1e-9), name
        assert posted == 0
    gathered = {"stationarity", "gradient_error", "s", "zeta2"}
    for values, _ in launch(measured, size, n, "scalars"):
        assert set(values) == set(expected) - gathered
    assert launch(measured, size, n, "none") == [({}, 0)] * size


@pytest.mark.slow
def test_a_snapshot_contains_everything_that_a_rank_needs_to_resume() -> None:
    """A run of two ranks that is restored half-way ends in the same bytes; so does one seed of it."""
    assert launch(resumes_exactly, 2, 4) == [True, True]


@pytest.mark.slow
def test_all_ranks_agree_on_the_first_non_finite_value() -> None:
    """Seed, iteration, client and variable, also on the ranks that do not hold the client."""
    assert launch(divergences, 2, 4) == [[(SEEDS[1], 3, 3, "y")]] * 2


def test_a_process_does_not_hold_the_data_of_other_clients() -> None:
    """Its problem has the samples of its clients, in the same order, and only the number of the other clients'."""
    complete = problem(4)
    part = restrict_data(complete, range(2, 4))
    held = {int(i) for trial in complete.trials for i in np.concatenate(trial.parts[2:])}
    assert len(part.train) == len(held) < len(complete.train)
    for trial, own in zip(complete.trials, part.trials, strict=True):
        assert [len(p) for p in own.parts] == [len(p) for p in trial.parts]
        for client in (2, 3):
            assert torch.equal(part.train.inputs[own.parts[client]], complete.train.inputs[trial.parts[client]])
    again = restrict_data(part, range(2, 4))
    assert torch.equal(again.train.inputs, part.train.inputs)


@pytest.mark.parametrize(("n", "size"), [(4, 5), (10, 4)])
def test_clients_that_cannot_be_shared_equally_are_rejected(n: int, size: int) -> None:
    with pytest.raises(dp.ConfigError, match=f"^clients: {n} given.*--nproc-per-node"):
        Placement(n, size)


@pytest.mark.parametrize(
    ("name", "events"),
    [
        ("extra", ["send", "draw", "gradient", "wait"]),
        ("depositum", ["send", "draw", "wait", "gradient", "send", "wait"]),
        ("k-gt", ["draw", "gradient", "send", "send", "wait", "wait"]),
    ],
)
def test_a_method_continues_while_its_rows_travel(name: str, events: list[str]) -> None:
    """The order of events in one step, as documented. Fails if an asynchronous tensor is awaited too early."""
    sim = simulated(name, 1, 4)
    recorded: list[str] = []

    class AsyncMix(MatrixMix):
        def __call__(self, z: torch.Tensor) -> torch.Tensor:
            z = awaited(z)
            recorded.append("send")
            return AsyncTensor(z, lambda: recorded.append("wait") or super(AsyncMix, self).__call__(z))

    class RecordingOracle(AwaitingOracle):
        def sample(self, size: Any = None) -> Any:
            recorded.append("draw")
            return sim.oracle.sample(size)

        def grad(self, x: torch.Tensor, batch: Any) -> torch.Tensor:
            x = awaited(x)
            recorded.append("gradient")
            return super().grad(x, batch)

    sim.oracle.begin(sim.state.t + 1)
    mix = AsyncMix(sim.network, len(SEEDS), sim.device, sim.dtype)
    awaited(sim.algorithm.step(sim.state, RecordingOracle(sim.oracle), mix, "exchange"))
    assert recorded == events


def test_an_async_tensor_is_computed_once_when_it_is_first_used() -> None:
    """Not earlier: an algorithm that computes something else in the meantime must not wait."""
    calls = []

    def finish() -> torch.Tensor:
        calls.append(1)
        return torch.ones(3)

    pending = AsyncTensor(torch.zeros(3), finish)
    other = torch.arange(3.0) * 2
    assert not calls
    assert torch.equal(other - pending, other - 1)
    assert torch.equal(torch.stack([pending, pending]), torch.ones(2, 3))
    assert len(calls) == 1
    assert type(pending + 0) is torch.Tensor
