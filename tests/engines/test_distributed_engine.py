"""One process per client, or per two: the simulator's trajectory, over real links."""

from typing import Any

import numpy as np
import pytest
import torch

import depositum as dp
from depositum.engines import Simulator
from depositum.engines.distributed import Placement, restrict_data
from depositum.engines.distributed.async_tensor import AsyncTensor, awaited
from depositum.engines.distributed.engine import AwaitingOracle
from depositum.engines.mixing import MatrixMix
from tests.support.rank_engines import (
    CHANGING,
    SEEDS,
    SETTINGS,
    STEPS,
    cases,
    changing,
    measured,
    measures,
    networks,
    normed_model,
    poisoned,
    problem,
    resumed,
    simulated,
    trajectories,
)
from tests.support.rank_processes import launch


@pytest.mark.slow
@pytest.mark.parametrize("share", [1, 2])
def test_every_method_has_the_simulators_trajectory(share: int) -> None:
    """All variables of all methods, of two seeds, to 1e-10, at the same cost: a row sent to the wrong rank, or lost,
    would break it.
    """
    size = 4
    n = size * share
    ranks = launch(trajectories, size, n)
    for name, period in cases():
        sim = simulated(name, period, n)
        for key, whole in sim.snapshot().items():
            parts = [tensors[key] for tensors, _ in (found[name, period] for found in ranks)]
            expected = whole.numpy()
            if expected.ndim and len(expected) == len(SEEDS) * n:
                blocks = [part.reshape(len(SEEDS), share, *part.shape[1:]) for part in parts]
                together = np.concatenate(blocks, axis=1).reshape(expected.shape)
            else:
                together = parts[0]
            scale = np.abs(expected).max(initial=1e-300)
            assert np.abs(together - expected).max() <= 1e-10 * scale, (name, period, key)
        for _, (phases, sent, evaluations) in (found[name, period] for found in ranks):
            assert phases == sim.costs.phases
            assert evaluations == pytest.approx(sim.costs.gradient_evaluations)
            if share == 1:  # clients of one process send each other nothing
                assert sent == sim.costs.bytes_sent


@pytest.mark.slow
def test_changing_networks_give_the_simulators_trajectory() -> None:
    """Links that are dropped, and one partner at a time: phases that are counted otherwise would break it."""
    ranks = launch(changing, 4, 8)
    for k, (network, name, period) in enumerate(CHANGING):
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
def test_measures_are_the_simulators() -> None:
    """Losses, accuracies, consensus, sparsity, ‖G‖², estimation error, s and ζ² of a model with buffers, to 1e-9.

    Data is weighted by samples; a sum over one rank's clients only would break it.
    """
    size, n = 2, 4
    sim = Simulator(
        problem(n, model=normed_model(), weighting="samples"),
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


def test_a_snapshot_holds_a_ranks_whole_part() -> None:
    """Restored half-way, a run of two ranks ends in the same bytes; one seed of it goes on as before."""
    assert launch(resumed, 2, 4) == [True, True]


def test_all_ranks_agree_on_what_was_not_finite_first() -> None:
    """Seed, iteration, client and variable, on the ranks that saw nothing of it too."""
    assert launch(poisoned, 2, 4) == [[(SEEDS[1], 3, 3, "y")]] * 2


def test_other_clients_data_is_not_kept() -> None:
    """A process's problem has its own clients' samples, which draw the same batches, and of others their number."""
    whole = problem(4)
    part = restrict_data(whole, range(2, 4))
    kept = {int(i) for trial in whole.trials for i in np.concatenate(trial.parts[2:])}
    assert len(part.train) == len(kept) < len(whole.train)
    for trial, own in zip(whole.trials, part.trials, strict=True):
        assert [len(p) for p in own.parts] == [len(p) for p in trial.parts]
        for client in (2, 3):
            assert torch.equal(part.train.inputs[own.parts[client]], whole.train.inputs[trial.parts[client]])
    again = restrict_data(part, range(2, 4))
    assert torch.equal(again.train.inputs, part.train.inputs)


@pytest.mark.parametrize(("n", "size"), [(4, 5), (10, 4)])
def test_shares_are_equal_or_refused(n: int, size: int) -> None:
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
def test_a_method_goes_on_while_its_rows_travel(name: str, events: list[str]) -> None:
    """The order of things in one step, as documented; a promise that is looked at too early would break it."""
    sim = simulated(name, 1, 4)
    seen: list[str] = []

    class Travelling(MatrixMix):
        def __call__(self, z: torch.Tensor) -> torch.Tensor:
            z = awaited(z)
            seen.append("send")
            return AsyncTensor(z, lambda: seen.append("wait") or super(Travelling, self).__call__(z))

    class Noting(AwaitingOracle):
        def sample(self, size: Any = None) -> Any:
            seen.append("draw")
            return sim.oracle.sample(size)

        def grad(self, x: torch.Tensor, batch: Any) -> torch.Tensor:
            x = awaited(x)
            seen.append("gradient")
            return super().grad(x, batch)

    sim.oracle.begin(sim.state.t + 1)
    mix = Travelling(sim.network, len(SEEDS), sim.device, sim.dtype)
    awaited(sim.algorithm.step(sim.state, Noting(sim.oracle), mix, "exchange"))
    assert seen == events


def test_a_promise_is_kept_when_it_is_used() -> None:
    """Not before: an algorithm that goes on with other things must not wait; and once only."""
    made = []

    def finish() -> torch.Tensor:
        made.append(1)
        return torch.ones(3)

    promise = AsyncTensor(torch.zeros(3), finish)
    other = torch.arange(3.0) * 2
    assert not made
    assert torch.equal(other - promise, other - 1)
    assert torch.equal(torch.stack([promise, promise]), torch.ones(2, 3))
    assert len(made) == 1
    assert type(promise + 0) is torch.Tensor
