"""Traced and compiled iterations give the trajectory of the plain steps, updated in place (GPU: `test_gpu.py`)."""

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
from tests.support.state_difference import relative_difference


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_traced_iteration_equals_the_step(name: str) -> None:
    """Fails if a step depends on anything but the state, stores anything outside it, or writes in the wrong order.

    Traced iterations are split where that is possible.
    """
    plain, traced = advanced(started(name, (3, 11)), 14), started(name, (3, 11))
    traced.watch(20)
    traced.iteration.hold(traced.state)
    programs = {}
    for t in range(14):
        kind = traced.algorithm.kind(t, traced.period)
        if kind not in programs:
            programs[kind] = None  # the first of each kind runs untraced, to fill caches
            traced.iteration(kind)
            continue
        programs[kind] = programs[kind] or split_at_models(trace(traced.iteration, kind), traced.iteration.index_of_x)
        for program in programs[kind]:
            program(*traced.iteration.tensors())
    traced.state = traced.iteration.state
    assert relative_difference(plain, traced) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_advance_equals_step(name: str) -> None:
    """In place or not, in one call or several, with the same costs and the same monitored errors."""
    plain, fast = started(name, (3, 11)), started(name, (3, 11))
    for simulator in (plain, fast):
        simulator.watch(20)
    advanced(plain, 14)
    for count in (1, 5, 8):
        fast.advance(count)
    assert relative_difference(plain, fast) == 0.0
    assert (plain.t, plain.costs) == (fast.t, fast.costs)
    assert plain.monitor.read_errors(14) == fast.monitor.read_errors(14)


def test_step_and_advance_may_alternate() -> None:
    """`advance` continues from a state that was assigned, or made by `step`."""
    plain, mixed = advanced(started("depositum", (0,)), 12), started("depositum", (0,))
    mixed.advance(4)
    advanced(mixed, 3)
    mixed.advance(2)
    mixed.state = mixed.state._replace(x=mixed.state.x.clone())
    mixed.advance(3)
    assert relative_difference(plain, mixed) == 0.0


@pytest.mark.slow
def test_compiled_iterations_equal_plain_ones() -> None:
    """To 1e-9 in float64; wrongly ordered in-place updates would be off by a step (GPU: every method)."""
    name = "pg-extra"  # it has one kind of step; compilation takes half a minute
    announced: list[int] = []
    plain, compiled = advanced(started(name, (3, 11)), 20), started(name, (3, 11))
    compiled.settings = dataclasses.replace(compiled.settings, compile="always")
    compiled.watch(20)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # it must not fall back
        compiled.advance(20, announce=lambda: announced.append(compiled.t))
    assert announced == [0], "once, before the first iteration, since there is one kind of step"
    assert relative_difference(plain, compiled) <= 1e-9
    assert plain.costs == compiled.costs


@pytest.mark.slow
def test_a_resumed_run_is_compiled_from_its_first_iteration_on() -> None:
    """It equals an uninterrupted run to the bit: an uncompiled iteration would round differently."""

    def made() -> Simulator:
        model = nn.Sequential(nn.Linear(D_IN, 16), nn.ReLU(), nn.Linear(16, CLASSES))
        settings = EngineSettings("cpu", "float32", compile="always")
        method, network = dp.Depositum(0.1, 0.5), dp.ring(N)
        sim = Simulator(seeded_problem((0, 5), model=model), network, method, batch_size=4, settings=settings)
        sim.start()
        return sim

    uninterrupted, resumed = made(), made()
    uninterrupted.advance(9)
    halfway, costs = {name: tensor.clone() for name, tensor in uninterrupted.snapshot().items()}, uninterrupted.costs
    uninterrupted.advance(6)
    resumed.restore(halfway, 9, costs)
    resumed.advance(6)
    assert relative_difference(uninterrupted, resumed) == 0.0
    assert uninterrupted.costs == resumed.costs


def test_a_failing_compiled_program_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its first part has written is restored before the plain iteration runs instead."""

    def failing(self: Accelerator, kind: str, before: object) -> Callable[[], None]:
        def program() -> None:
            self.iteration.state.x.mul_(2)
            raise RuntimeError("no second part")

        return program

    plain, fallback = started("depositum", (0,)), started("depositum", (0,))
    fallback.settings = dataclasses.replace(fallback.settings, compile="always")
    monkeypatch.setattr(Accelerator, "_compiled_program", failing)
    plain = advanced(plain, 5)
    with pytest.warns(RuntimeWarning, match="no second part"):
        fallback.advance(5)
    assert relative_difference(plain, fallback) == 0.0
    assert plain.costs == fallback.costs


def test_lack_of_memory_is_raised_for_several_trials_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller of several trials can run fewer at once; a single one runs uncompiled.

    Fails if many seeds run slowly because the compiled form of all of them did not fit.
    """

    def out_of_memory(self: Accelerator, kind: str, before: object) -> Callable[[], None]:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Accelerator, "_compiled_program", out_of_memory)
    several, one = (started("depositum", seeds) for seeds in ((0, 5), (0,)))
    for sim in (several, one):
        sim.settings = dataclasses.replace(sim.settings, compile="always")
    with pytest.raises(torch.OutOfMemoryError):
        several.advance(3)
    with pytest.warns(RuntimeWarning, match="OutOfMemoryError"):
        one.advance(3)
    assert relative_difference(advanced(started("depositum", (0,)), 3), one) == 0.0


class ReadsValues(Monitor):
    """Reads a value on the host in every iteration, which cannot be traced."""

    def observe(self, state: State) -> None:
        if float(state.x.abs().max()) < 1e9:
            super().observe(state)


def test_iterations_that_cannot_be_compiled_run_uncompiled_with_one_warning() -> None:
    def made(compile: str) -> Simulator:
        settings = EngineSettings("cpu", "float64", compile=compile)  # type: ignore[arg-type]
        method = dp.Depositum(0.1, 0.5)
        sim = Simulator(seeded_problem((0,)), dp.ring(N), method, period=2, batch_size=4, settings=settings)
        sim.start()
        sim.watch(20)
        sim.iteration.monitor = ReadsValues((0,), range(N), N, 20, sim.state)
        return sim

    plain, fallback = made("never"), made("always")
    plain.advance(9)
    with pytest.warns(RuntimeWarning, match="cannot be compiled; continuing without") as caught:
        fallback.advance(9)
    assert len([w for w in caught if "cannot be compiled" in str(w.message)]) == 1
    assert relative_difference(plain, fallback) == 0.0


def test_iterations_are_compiled_only_if_that_saves_time() -> None:
    """By an estimate, without a clock; short runs are not even traced."""
    sim = started("depositum", (0,))
    sim.iteration.hold(sim.state)
    sim.iteration("exchange")
    graph = trace(sim.iteration, "exchange")
    device = torch.device("cpu")
    saved, cost = seconds_saved(graph, device), compilation_seconds(graph, device)
    assert 0 < saved < 0.1 < cost
    short = Accelerator(sim.iteration, "float64", device, "auto", steps=MIN_COMPILED_STEPS - 1)
    assert not short.compiled
    for steps, pays_off in ((int(cost / saved), False), (int(3 * cost / saved), True)):
        assert Accelerator(sim.iteration, "float64", device, "auto", steps)._pays_off(graph) == pays_off
