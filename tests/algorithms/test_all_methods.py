"""One battery over every registered method: a new one is tested by being registered.

Rows, seeds, snapshots, numbers and declarations; each method's own equations are tested in its family's file.
"""

import dataclasses
import inspect

import numpy as np
import pytest
import torch

import depositum as dp
from depositum.algorithms import ALGORITHMS, Algorithm
from depositum.engines import EngineSettings, Simulator
from tests.engines.test_simulator import CLASSES, D_IN, N, seeded_problem

#: The names the project promises (a misspelt or missing one breaks a person's configuration).
# fmt: off
PROMISED = [
    "depositum", "deepstorm", "prox-dasa", "prox-dasa-gt", "fedmid", "feddualavg", "feddr", "fedadmm", "gut",
    "d-psgd", "dsgt", "sppdm", "proxgt-sa", "proxgt-sr-o", "proxgt-sr-e", "dproxsgt", "cdproxsgt", "fedavg",
    "fedavg-m", "scaffold", "scaffold-m", "extra", "pg-extra", "exact-diffusion", "d2", "k-gt", "led", "fednmut",
    "momentum-tracking", "dsmt", "heavy-ball-gt", "quasi-global", "fast-fedda", "zhang-composite",
]
# fmt: on
METHODS = list(ALGORITHMS)


def kind_of(name: str) -> type[Algorithm]:
    kind = ALGORITHMS[name]
    assert isinstance(kind, type)
    return kind


def period_of(name: str) -> int:
    periods = dp.algorithm(name).periods
    return 3 if periods is None or 3 in periods else periods[0]


def start(name: str, seeds: tuple[int, ...], dtype: str = "float64") -> Simulator:
    method = dp.algorithm(name)
    problem = seeded_problem(seeds, beta=0.0 if method.handles == "smooth" else 1e-3)
    network = None if method.server else dp.ring(N, mixing="lazy-metropolis")
    sim = Simulator(
        problem, network, method, period=period_of(name), batch_size=4, settings=EngineSettings("cpu", dtype)
    )
    sim.start()
    return sim


def advanced(sim: Simulator, steps: int) -> Simulator:
    for _ in range(steps):
        sim.step()
    return sim


def test_every_promised_method_is_there() -> None:
    assert sorted(METHODS) == sorted(PROMISED)


@pytest.mark.parametrize("name", METHODS)
def test_seeds_together_equal_seeds_apart(name: str) -> None:
    """Mixing, averaging or sampling across seeds, or state that is not a row, would break it."""
    together = advanced(start(name, (3, 11)), 14)
    for place, seed in enumerate((3, 11)):
        alone = advanced(start(name, (seed,)), 14)
        rows = together.state.x.view(2, N, -1)[place]
        assert (rows - alone.state.x).abs().max() <= 1e-12


@pytest.mark.parametrize("name", METHODS)
def test_a_snapshot_holds_the_whole_run(name: str) -> None:
    """Restored half-way, everything ends in the same bytes: nothing is kept outside the state."""
    whole, half, other = advanced(start(name, (0, 1)), 13), advanced(start(name, (0, 1)), 7), start(name, (0, 1))
    other.restore(half.snapshot(), half.t, half.costs)
    advanced(other, 6)
    assert other.costs == whole.costs
    for key, tensor in whole.snapshot().items():
        assert torch.equal(tensor, other.snapshot()[key]), key


@pytest.mark.parametrize("name", METHODS)
def test_it_learns(name: str) -> None:
    """With its default hyper-parameters, mini-batches lower the loss and stay finite."""
    sim = start(name, (0,))
    before = sim.oracle.evaluate(sim.state.x[:1], {}, "train")[0].item()
    advanced(sim, 120)
    after = sim.oracle.evaluate(sim.state.x.mean(0, keepdim=True), {}, "train")[0].item()
    assert np.isfinite(after)
    assert after < before


@pytest.mark.parametrize("name", METHODS)
def test_single_precision_stays_single(name: str) -> None:
    """No variable is quietly promoted to float64 (which would halve the speed of a GPU)."""
    sim = advanced(start(name, (0,), "float32"), 5)
    for key, value in sim.state._asdict().items():
        if isinstance(value, torch.Tensor) and value.dim() == 2:
            assert value.dtype == torch.float32, key


@pytest.mark.parametrize("name", METHODS)
def test_inputs_are_left_alone(name: str) -> None:
    """A step is a pure function: the state it was given is unchanged, bit for bit."""
    sim = advanced(start(name, (0,)), 4)
    state = sim.state
    kept = {k: v.clone() for k, v in state._asdict().items() if isinstance(v, torch.Tensor)}
    advanced(sim, 4)
    for key, value in kept.items():
        assert torch.equal(value, getattr(state, key)), key


@pytest.mark.parametrize("name", METHODS)
def test_what_is_sent_is_what_is_declared(name: str) -> None:
    """Bytes per phase, as counted, are the declared vectors to each neighbour (two on a ring) or to the server."""
    sim = start(name, (0,))
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
def test_it_explains_itself(name: str) -> None:
    """Every hyper-parameter has a default and a description; the file opens with its equations."""
    kind = kind_of(name)
    assert kind.name == name
    assert kind.about.title
    assert kind.about.citation
    text = inspect.getdoc(kind) or ""
    for field in dataclasses.fields(kind):
        assert field.default is not dataclasses.MISSING, field.name
        assert field.name in text, field.name
    assert "=" in (inspect.getdoc(inspect.getmodule(kind)) or "")


@pytest.mark.parametrize("name", METHODS)
def test_it_refuses_what_it_cannot_have(name: str) -> None:
    """A period or a regularizer that the method does not support, and a topology beside a server, each in one line."""
    method = dp.algorithm(name)
    if method.periods is not None:
        with pytest.raises(dp.ConfigError, match="run.period"):
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


@pytest.mark.parametrize("name", [name for name in METHODS if "alpha" in ALGORITHMS.parameters(name)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_stepsize_that_ends_at_0(name: str, dtype: str) -> None:
    """The clients come to rest, in consensus at most; many methods divide by the steps of a round."""
    method = dp.algorithm(name, alpha={"cosine": {"start": 0.02, "steps": 6}})
    sim = start(name, (0,), dtype)
    sim = Simulator(
        sim.problem,
        None if method.server else sim.network,
        method,
        period=period_of(name),
        batch_size=4,
        settings=EngineSettings("cpu", dtype),
    )
    sim.start()
    advanced(sim, 30)
    assert all(tensor.isfinite().all() for tensor in sim.snapshot().values())


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("prox-dasa", {"a": {"power": {"start": -1.0}}}, "algorithm.a.power.start: -1.0 given"),
        ("depositum", {"alpha": {"cosine": {"start": 0.1, "steps": 5, "end": 0.2}}}, "algorithm.alpha.cosine.end: 0.2"),
        ("depositum", {"alpha": {"step": {"start": 0.1, "factor": 2.0, "every": 3}}}, "algorithm.alpha.step.factor: 2"),
    ],
)
def test_a_wrong_schedule_is_blamed_on_its_own_key(name: str, wrong: dict[str, object], said: str) -> None:
    with pytest.raises(dp.ConfigError) as error:
        dp.algorithm(name, **wrong)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize("name", METHODS)
def test_a_text_is_no_number(name: str) -> None:
    """By its class too, which no configuration has checked: in one line, by the key."""
    numbers = [f for f in dataclasses.fields(kind_of(name)) if isinstance(f.default, int | float)]  # type: ignore[arg-type]
    for field in numbers:
        if isinstance(field.default, bool):
            continue
        with pytest.raises(dp.ConfigError, match=rf"^algorithm\.{field.name}: 'x' given; "):
            kind_of(name)(**{field.name: "x"})
