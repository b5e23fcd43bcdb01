"""The simulator: seeds as rows, costs, the monitor, snapshots, and the loop around it."""

import pytest
import torch
from torch import nn

import depositum as dp
from depositum.engines import Callback, EngineSettings, Loop, Monitor, Simulator
from depositum.problem import Problem
from tests.support.seeded_problems import CLASSES, D_IN, N, seeded_problem


def simulate(problem: Problem, *, steps: int, algorithm=None, dtype: str = "float64", period: int = 2, **keywords):
    sim = Simulator(
        problem,
        dp.ring(N),
        algorithm or dp.Depositum(0.1, 0.5),
        period=period,
        batch_size=keywords.pop("batch_size", 4),
        settings=EngineSettings(device="cpu", dtype=dtype, **keywords),
    )
    sim.start()
    for _ in range(steps):
        sim.step()
    return sim


@pytest.mark.parametrize("momentum", ["polyak", "nesterov"])
def test_several_seeds_equal_each_seed_alone(momentum: str) -> None:
    """S runs as rows of one matrix give each seed's trajectory. Fails if rows are mixed or sampled across seeds."""
    method = dp.Depositum(0.1, 0.5, momentum)
    several = simulate(seeded_problem((3, 11, 4)), steps=30, algorithm=method)
    for index, seed in enumerate((3, 11, 4)):
        alone = simulate(seeded_problem((seed,)), steps=30, algorithm=method)
        for name in ("x", "y", "nu"):
            rows = getattr(several.state, name).view(3, N, -1)[index]
            assert (rows - getattr(alone.state, name)).abs().max() <= 1e-13


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_backends_give_one_trajectory(backend: str) -> None:
    """The plain loop over clients is the reference; the batched backend differs by rounding only."""
    model = nn.Sequential(nn.Linear(D_IN, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    first = simulate(seeded_problem((0, 1), model=model), steps=40, backend="loop")
    second = simulate(seeded_problem((0, 1), model=model), steps=40, backend=backend)
    assert (first.state.x - second.state.x).abs().max() <= 1e-12


def test_float32_follows_float64() -> None:
    """For 50 iterations, a run in float32 stays within rounding of the same run in float64."""
    single = simulate(seeded_problem((0,)), steps=50, dtype="float32")
    double = simulate(seeded_problem((0,)), steps=50)
    assert single.state.x.dtype == torch.float32
    assert (single.state.x - double.state.x).abs().max() <= 1e-4


@pytest.mark.parametrize(("period", "start", "first"), [(1, "average", 1), (5, "local", 0), (5, "mixed", 2)])
def test_costs_are_counted_as_in_the_paper(period: int, start: str, first: int) -> None:
    """Two vectors to each neighbour per phase, phases at t ∈ {0, T0, …}, B gradients per iteration and the start."""
    steps, size = 12, 4
    sim = simulate(seeded_problem((0,)), steps=steps, algorithm=dp.Depositum(start=start), period=period)
    phases = len(range(0, steps, period))
    row = (D_IN + 1) * CLASSES * 8
    assert sim.costs.phases == phases
    assert sim.costs.bytes_sent == phases * 2 * 2 * row + first * row
    assert sim.costs.gradient_evaluations == (steps + 1) * size


def test_full_gradients_count_every_sample() -> None:
    sim = simulate(seeded_problem((0,)), steps=3, batch_size="full")
    assert sim.costs.gradient_evaluations == 4 * 60 / N


def test_a_snapshot_contains_the_complete_state() -> None:
    """A run with batch norm that is restored half-way ends in the same bytes."""
    model = nn.Sequential(nn.Linear(D_IN, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, CLASSES))
    uninterrupted = simulate(seeded_problem((0, 1), model=model), steps=20, batch_size=6)
    half = simulate(seeded_problem((0, 1), model=model), steps=8, batch_size=6)
    other = simulate(seeded_problem((0, 1), model=model), steps=0, batch_size=6)
    other.restore(half.snapshot(), half.t, half.costs)
    for _ in range(12):
        other.step()
    assert other.costs == uninterrupted.costs
    for name, tensor in uninterrupted.snapshot().items():
        assert torch.equal(tensor, other.snapshot()[name]), name
    assert {name for name in uninterrupted.snapshot() if name.startswith("buffer.")}


class Explosive(nn.Module):
    """A linear model whose outputs overflow where its first bias is large."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(D_IN, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs) * torch.exp(self.layer.bias[0] - 40.0).clamp(min=1.0)


def test_a_diverged_seed_stops_and_the_others_continue() -> None:
    """The diverged seed is named with variable, client and iteration, and its rows stay finite."""
    model = Explosive()
    problem = seeded_problem((0, 1), model=model, beta=0.0)
    problem.trials[1].start[-CLASSES] = 200.0  # this seed's outputs overflow at once
    sim = Simulator(problem, dp.ring(N), dp.Depositum(0.1, 0.5), batch_size=4, settings=EngineSettings("cpu"))
    reported = []

    class Recorder(Callback):
        def on_divergence(self, loop: Loop, divergence) -> None:
            reported.append(divergence)

    loop = Loop(sim, 20, evaluate_every=5, checkpoint_every=5, callbacks=[Recorder()])
    final = loop.run()
    assert [d.seed for d in reported] == [1]
    assert reported[0].iteration == 0  # its start already overflows
    assert reported[0].variable in ("x", "y", "nu")
    assert "seed 1 diverged" in str(reported[0])
    assert final.live == [0]
    assert final.t == 20
    assert torch.isfinite(final.rows_of([0])["x"]).all()
    assert torch.isfinite(final.rows_of([1])["x"]).all()
    alone = seeded_problem((0,), model=Explosive(), beta=0.0)
    only = Simulator(alone, dp.ring(N), dp.Depositum(0.1, 0.5), batch_size=4, settings=EngineSettings("cpu"))
    assert torch.equal(Loop(only, 20).run().tensors["x"], final.rows_of([0])["x"])
    assert set(loop.history.frame["seed"]) == {0}


def test_the_monitor_reports_the_first_non_finite_value() -> None:
    """It observes every iteration, not only those at which it is read: iteration and client are exact."""
    sim = simulate(seeded_problem((0,)), steps=0)
    monitor = Monitor((0,), range(N), N, 10, sim.state)
    for t in range(1, 7):
        sim.step()
        if t == 4:
            sim.state.y[2, 1] = float("nan")
        monitor.observe(sim.state)
    assert monitor.diverged() == [(0, 4, 2, "y")]


def test_consensus_is_traced_at_every_iteration() -> None:
    """The trace has one value per iteration, (1/n)‖Jx − x‖² computed from the states."""
    errors: dict[int, float] = {}

    class Trace(Callback):
        def on_trace(self, loop: Loop, rows: list[tuple[int, int, float]]) -> None:
            errors.update({t: e for _, t, e in rows})

    expected = {}

    class States(Callback):
        def on_step(self, loop: Loop) -> None:
            x = loop.engine.state.x
            expected[loop.t] = float(((x - x.mean(0)) ** 2).sum()) / N

    sim = Simulator(
        seeded_problem((0,)), dp.ring(N), dp.Depositum(), period=3, settings=EngineSettings("cpu", "float64")
    )
    Loop(sim, 17, evaluate_every=5, checkpoint_every=4, callbacks=[Trace(), States()]).run()
    assert sorted(errors) == list(range(1, 18))
    assert errors == pytest.approx(expected, rel=1e-12, abs=1e-30)


def test_a_network_of_another_size_is_rejected() -> None:
    with pytest.raises(dp.ConfigError, match="5 clients"):
        Simulator(seeded_problem((0,)), dp.ring(5), dp.Depositum())


def test_unknown_devices_are_rejected() -> None:
    with pytest.raises(dp.ConfigError, match="^device: "):
        EngineSettings("gpu9").resolve_device()
