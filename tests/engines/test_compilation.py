"""Traced, compiled and captured iterations are the algorithm's own, made fast: the same trajectory, in place."""

import dataclasses
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

import depositum as dp
from depositum.algorithms import State
from depositum.engines import EngineSettings, Monitor, Simulator
from depositum.engines.compilation import (
    MIN_COMPILED_STEPS,
    Accelerator,
    compilation_seconds,
    seconds_saved,
    trace,
)
from depositum.engines.graph_passes import split_at_models
from tests.support.registered_methods import METHODS, advanced, started
from tests.support.seeded_problems import CLASSES, D_IN, N, seeded_problem


def values(state: object) -> dict[str, torch.Tensor]:
    return {k: v for k, v in state._asdict().items() if isinstance(v, torch.Tensor)}  # type: ignore[attr-defined]


def apart(one: Simulator, other: Simulator) -> float:
    """The largest difference of two simulators' variables, relative to the variable."""
    pairs = [(value, values(other.state)[name]) for name, value in values(one.state).items()]
    return max(float((a - b).double().abs().max() / b.double().abs().max().clamp(min=1.0)) for a, b in pairs)


@pytest.mark.parametrize("name", METHODS)
def test_what_is_traced_is_the_whole_iteration(name: str) -> None:
    """Fails if a step depends on anything but the state, keeps anything outside of it, or writes in the wrong order.

    Also where the new models are written first.
    """
    plain, traced = advanced(started(name, (3, 11)), 14), started(name, (3, 11))
    traced.watch(Monitor((3, 11), 20, traced.state))
    traced.iteration.hold(traced.state)
    programs = {}
    for t in range(14):
        kind = traced.algorithm.kind(t, traced.period)
        if kind not in programs:
            programs[kind] = None  # the first of a kind is run as it is: what code keeps for later is there then
            traced.iteration(kind)
            continue
        programs[kind] = programs[kind] or split_at_models(trace(traced.iteration, kind), traced.iteration.place_of_x)
        for program in programs[kind]:
            program(*traced.iteration.tensors())
    traced.state = traced.iteration.state
    assert apart(plain, traced) == 0.0


@pytest.mark.parametrize(
    ("name", "parts"), [("depositum", 2), ("d-psgd", 2), ("heavy-ball-gt", 1), ("deepstorm", 1), ("extra", 1)]
)
def test_the_new_models_are_written_first_where_the_old_ones_are_not_needed(name: str, parts: int) -> None:
    """DEPOSITUM's gradients are at the new models; others keep the old ones, or need a gradient at both."""
    sim = started(name, (3, 11))
    kind = sim.algorithm.kind(0, sim.period)
    sim.iteration.hold(sim.state)
    sim.iteration(kind)
    programs = split_at_models(trace(sim.iteration, kind), sim.iteration.place_of_x)
    assert len(programs) == parts
    if parts == 2:
        written = {str(n.args[0]) for n in programs[0].graph.nodes if "copy_" in str(n.target)}
        assert len(written) == 1
        assert not any("copy_" in str(n.target) and str(n.args[0]) in written for n in programs[1].graph.nodes)


@pytest.mark.parametrize("name", METHODS)
def test_advance_equals_step(name: str) -> None:
    """In place or not, in one call or several, with the same costs and the same errors watched."""
    plain, fast = started(name, (3, 11)), started(name, (3, 11))
    monitors = [Monitor((3, 11), 20, plain.state) for _ in range(2)]
    for simulator, monitor in zip((plain, fast), monitors, strict=True):
        simulator.watch(monitor)
    advanced(plain, 14)
    for count in (1, 5, 8):
        fast.advance(count)
    assert apart(plain, fast) == 0.0
    assert (plain.t, plain.costs) == (fast.t, fast.costs)
    assert monitors[0].read_errors(14) == monitors[1].read_errors(14)


def test_step_and_advance_may_alternate() -> None:
    """A state put in by hand, or made by `step`, is the one that `advance` goes on from."""
    plain, mixed = advanced(started("depositum", (0,)), 12), started("depositum", (0,))
    mixed.advance(4)
    advanced(mixed, 3)
    mixed.advance(2)
    mixed.state = mixed.state._replace(x=mixed.state.x.clone())
    mixed.advance(3)
    assert apart(plain, mixed) == 0.0


def test_compiled_equals_plain() -> None:
    """To 1e-9 in float64; a compiler that reorders the in-place updates would be off by a step (GPU: every method)."""
    name = "pg-extra"  # one kind of step: compiling takes half a minute
    said: list[int] = []
    plain, compiled = advanced(started(name, (3, 11)), 20), started(name, (3, 11))
    compiled.settings = dataclasses.replace(compiled.settings, compile="always")
    compiled.watch(Monitor((3, 11), 20, compiled.state))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # it must not fall back
        compiled.advance(20, announce=lambda: said.append(compiled.t))
    assert said == [0], "told once, before the first iteration, as there is one kind of them"
    assert apart(plain, compiled) <= 1e-9
    assert plain.costs == compiled.costs


def test_a_resumed_run_is_compiled_from_its_first_iteration() -> None:
    """To the bit: an iteration run as it is, where one never stopped had compiled it, would round otherwise."""

    def made() -> Simulator:
        model = nn.Sequential(nn.Linear(D_IN, 16), nn.ReLU(), nn.Linear(16, CLASSES))
        settings = EngineSettings("cpu", "float32", compile="always")
        method, network = dp.Depositum(0.1, 0.5), dp.ring(N)
        sim = Simulator(seeded_problem((0, 5), model=model), network, method, batch_size=4, settings=settings)
        sim.start()
        return sim

    whole, resumed = made(), made()
    whole.advance(9)
    halfway, costs = {name: tensor.clone() for name, tensor in whole.snapshot().items()}, whole.costs
    whole.advance(6)
    resumed.restore(halfway, 9, costs)
    resumed.advance(6)
    assert apart(whole, resumed) == 0.0
    assert whole.costs == resumed.costs


def test_a_compiler_that_fails_halfway_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first part of an iteration has written is undone before the plain one is run in its place."""

    def breaks(self: Accelerator, kind: str) -> Callable[[], None]:
        def program() -> None:
            self.iteration.state.x.mul_(2)
            raise RuntimeError("no second part")

        return program

    plain, asked = started("depositum", (0,)), started("depositum", (0,))
    asked.settings = dataclasses.replace(asked.settings, compile="always")
    monkeypatch.setattr(Accelerator, "_compiled_program", breaks)
    plain = advanced(plain, 5)
    with pytest.warns(RuntimeWarning, match="no second part"):
        asked.advance(5)
    assert apart(plain, asked) == 0.0
    assert plain.costs == asked.costs


def test_trials_that_lack_memory_are_to_be_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several, and whoever runs them is told, to run fewer at once; one runs without what does not fit.

    Breaks if many seeds run slowly because the compiled form of all of them did not fit.
    """

    def short(self: Accelerator, kind: str) -> Callable[[], None]:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Accelerator, "_compiled_program", short)
    several, one = (started("depositum", seeds) for seeds in ((0, 5), (0,)))
    for sim in (several, one):
        sim.settings = dataclasses.replace(sim.settings, compile="always")
    with pytest.raises(torch.OutOfMemoryError):
        several.advance(3)
    with pytest.warns(RuntimeWarning, match="OutOfMemoryError"):
        one.advance(3)
    assert apart(advanced(started("depositum", (0,)), 3), one) == 0.0


class AsksForValues(Monitor):
    """Something that wants to know a number while the device works, which no compiler can follow."""

    def observe(self, state: State) -> None:
        if float(state.x.abs().max()) < 1e9:
            super().observe(state)


def test_what_cannot_be_compiled_runs_without_and_says_so_once() -> None:
    def made(compile: str) -> Simulator:
        settings = EngineSettings("cpu", "float64", compile=compile)  # type: ignore[arg-type]
        method = dp.Depositum(0.1, 0.5)
        sim = Simulator(seeded_problem((0,)), dp.ring(N), method, period=2, batch_size=4, settings=settings)
        sim.start()
        sim.watch(AsksForValues((0,), 20, sim.state))
        return sim

    plain, asked = made("never"), made("always")
    plain.advance(9)
    with pytest.warns(RuntimeWarning, match="cannot be compiled; continuing without") as said:
        asked.advance(9)
    assert len([w for w in said if "cannot be compiled" in str(w.message)]) == 1
    assert apart(plain, asked) == 0.0


def test_compiling_has_to_repay_itself() -> None:
    """Short runs are not even traced; long ones compile where there is much to fuse; nothing is timed."""
    sim = started("depositum", (0,))
    sim.iteration.hold(sim.state)
    sim.iteration("exchange")
    graph = trace(sim.iteration, "exchange")
    device = torch.device("cpu")
    saved, cost = seconds_saved(graph, device), compilation_seconds(graph, device)
    assert 0 < saved < 0.1 < cost
    never = Accelerator(sim.iteration, "float64", device, "auto", steps=MIN_COMPILED_STEPS - 1)
    assert not never.compiled
    for steps, repays in ((int(cost / saved), False), (int(3 * cost / saved), True)):
        assert Accelerator(sim.iteration, "float64", device, "auto", steps)._pays_off(graph) == repays
