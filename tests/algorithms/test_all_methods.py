"""Tests that run for every registered method: a new method is tested by being registered.

They cover rows, seeds, snapshots, precision and declared properties; the equations of each method are tested in the
file of its family.
"""

import dataclasses
import inspect

import numpy as np
import pytest
import torch

import depositum as dp
from depositum.algorithms import ALGORITHMS
from depositum.engines import Simulator
from tests.support.registered_methods import METHODS, advanced, method_class, started
from tests.support.seeded_problems import CLASSES, D_IN, N, seeded_problem

#: The names that configurations rely on.
# fmt: off
EXPECTED_NAMES = [
    "depositum", "deepstorm", "prox-dasa", "prox-dasa-gt", "fedmid", "feddualavg", "feddr", "fedadmm", "gut",
    "d-psgd", "dsgt", "sppdm", "proxgt-sa", "proxgt-sr-o", "proxgt-sr-e", "dproxsgt", "cdproxsgt", "fedavg",
    "fedavg-m", "scaffold", "scaffold-m", "extra", "pg-extra", "exact-diffusion", "d2", "k-gt", "led", "fednmut",
    "momentum-tracking", "dsmt", "heavy-ball-gt", "quasi-global", "fast-fedda", "zhang-composite",
    "prox-dgd", "dfedavgm",
    "depositum-directed", "push-pull", "sonata",
]
# fmt: on


def test_every_expected_method_is_registered() -> None:
    assert sorted(METHODS) == sorted(EXPECTED_NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_batched_seeds_equal_separate_seeds(name: str) -> None:
    """Fails if a method mixes, averages or samples across seeds, or has state that is not a row."""
    both = advanced(started(name, (3, 11)), 14)
    for index, seed in enumerate((3, 11)):
        alone = advanced(started(name, (seed,)), 14)
        rows = both.state.x.view(2, N, -1)[index]
        assert (rows - alone.state.x).abs().max() <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_run_resumed_from_a_snapshot_ends_in_the_same_bytes(name: str) -> None:
    """Fails if a method stores anything outside its state."""
    full, half = advanced(started(name, (0, 1)), 13), advanced(started(name, (0, 1)), 7)
    resumed = started(name, (0, 1))
    resumed.restore(half.snapshot(), half.t, half.costs)
    advanced(resumed, 6)
    assert resumed.costs == full.costs
    for key, tensor in full.snapshot().items():
        assert torch.equal(tensor, resumed.snapshot()[key]), key


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_defaults_lower_the_loss(name: str) -> None:
    """With default hyper-parameters and mini-batches the loss decreases and remains finite."""
    sim = started(name, (0,))
    before = sim.oracle.evaluate(sim.state.x[:1], {}, "train")[0].item()
    advanced(sim, 120)
    after = sim.oracle.evaluate(sim.state.x.mean(0, keepdim=True), {}, "train")[0].item()
    assert np.isfinite(after)
    assert after < before


@pytest.mark.parametrize("name", METHODS)
def test_float32_variables_are_not_promoted(name: str) -> None:
    """A variable that is promoted to float64 would halve the speed of a GPU."""
    sim = advanced(started(name, (0,), "float32"), 5)
    for key, value in sim.state._asdict().items():
        if isinstance(value, torch.Tensor) and value.dim() == 2:
            assert value.dtype == torch.float32, key


@pytest.mark.parametrize("name", METHODS)
def test_a_step_does_not_change_its_input(name: str) -> None:
    """A step is a pure function: the state it is given does not change, bit for bit."""
    sim = advanced(started(name, (0,)), 4)
    state = sim.state
    copies = {k: v.clone() for k, v in state._asdict().items() if isinstance(v, torch.Tensor)}
    advanced(sim, 4)
    for key, value in copies.items():
        assert torch.equal(value, getattr(state, key)), key


@pytest.mark.parametrize("name", METHODS)
def test_bytes_sent_match_the_declared_vectors(name: str) -> None:
    """In a phase a client sends the declared vectors to each neighbour (two on a ring) or to the server."""
    sim = started(name, (0,))
    method = sim.algorithm
    per_phase = []
    for _ in range(12):
        before = sim.costs
        sim.step()
        if sim.costs.phases > before.phases:
            per_phase.append(sim.costs.bytes_sent - before.bytes_sent)
        else:
            assert sim.costs.bytes_sent == before.bytes_sent
    row = (D_IN + 1) * CLASSES * 8
    copies = 1 if method.server else 2
    if name == "cdproxsgt":  # compressed: fewer bytes than its vectors have
        assert all(0 < sent < method.vectors() * copies * row for sent in per_phase)
    else:
        assert set(per_phase) == {method.vectors() * copies * row}


@pytest.mark.parametrize("name", METHODS)
def test_every_hyperparameter_has_a_default_and_a_description(name: str) -> None:
    """The file of a method starts with its equations."""
    method = method_class(name)
    assert method.name == name
    assert method.about.title
    assert method.about.citation
    text = inspect.getdoc(method) or ""
    for field in dataclasses.fields(method):
        assert field.default is not dataclasses.MISSING, field.name
        assert field.name in text, field.name
    assert "=" in (inspect.getdoc(inspect.getmodule(method)) or "")


@pytest.mark.parametrize("name", METHODS)
def test_unsupported_settings_are_rejected(name: str) -> None:
    """A period or a regularizer that the method does not support, and a topology beside a server."""
    method = dp.algorithm(name)
    if method.periods is not None:
        with pytest.raises(dp.ConfigError, match="^period: "):
            method.check(7, composite=False, prox_modulus=0.0)
    if method.handles == "smooth":
        with pytest.raises(dp.ConfigError, match="smooth problems"):
            method.check(1, composite=True, prox_modulus=0.0)
    if method.handles == "convex":
        with pytest.raises(dp.ConfigError, match="convex h"):
            method.check(1, composite=True, prox_modulus=1e-9)
    if method.handles != "smooth":
        with pytest.raises(dp.ConfigError):
            method.check(1, composite=True, prox_modulus=1e9)
    if method.server:
        with pytest.raises(dp.ConfigError, match="has a server"):
            Simulator(seeded_problem((0,), beta=0.0), dp.ring(N), method)
    with pytest.raises(dp.ConfigError, match="unknown key"):
        dp.algorithm(name, stepsise=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in METHODS if "alpha" in ALGORITHMS.parameters(name)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_stepsize_schedule_may_end_at_zero(name: str, dtype: str) -> None:
    """All variables remain finite, although many methods divide by the sum of the stepsizes of a round."""
    sim = advanced(started(name, (0,), dtype, alpha={"cosine": {"start": 0.02, "steps": 6}}), 30)
    assert all(tensor.isfinite().all() for tensor in sim.snapshot().values())


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("prox-dasa", {"a": {"power": {"start": -1.0}}}, "a.power.start: -1.0 given"),
        ("depositum", {"alpha": {"cosine": {"start": 0.1, "steps": 5, "end": 0.2}}}, "alpha.cosine.end: 0.2"),
        ("depositum", {"alpha": {"step": {"start": 0.1, "factor": 2.0, "every": 3}}}, "alpha.step.factor: 2"),
    ],
)
def test_the_error_of_a_schedule_names_its_complete_key(name: str, wrong: dict[str, object], message: str) -> None:
    with pytest.raises(dp.ConfigError) as error:
        dp.algorithm(name, **wrong)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("name", METHODS)
def test_a_string_is_rejected_for_every_number(name: str) -> None:
    """The class itself also checks, in one line with the key: no configuration has validated its arguments."""
    numbers = [f for f in dataclasses.fields(method_class(name)) if isinstance(f.default, int | float)]  # type: ignore[arg-type]
    for field in numbers:
        if isinstance(field.default, bool):
            continue
        with pytest.raises(dp.ConfigError, match=rf"^{field.name}: 'x' given; "):
            method_class(name)(**{field.name: "x"})


def test_every_method_names_the_hyper_parameter_that_makes_its_steps_shorter() -> None:
    """Advice after a divergence: SPPDM's `eta` is a momentum, and its steps shrink as `s` grows."""
    for name in METHODS:
        kind = method_class(name)
        assert kind.stepsize_key in {field.name for field in dataclasses.fields(kind)}, name
    assert dp.Depositum.shorter_steps("algorithm.") == "a smaller algorithm.alpha"
    assert method_class("sppdm").shorter_steps() == "a larger s"
    assert method_class("prox-dasa").shorter_steps() == "a smaller eta"
