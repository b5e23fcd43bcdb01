"""Stepsizes given as functions of t: accepted if a compiled step can evaluate them, else refused in one line."""

import math

import pytest
import torch

import depositum as dp
from depositum.algorithms import Cosine, merge_methods
from depositum.algorithms.schedules import stored_stepsize
from tests.support.small_fits import small_fit


def test_function_of_t_equals_the_schedule():
    """The same trajectory to the bit as the schedule with the same formula."""
    function = dp.Depositum(alpha=lambda t: 0.2 * (1 + t / 4.0) ** -0.5)
    schedule = dp.Depositum(alpha={"power": {"start": 0.2, "power": 0.5, "offset": 4.0}})
    a, b = small_fit(algorithm=function), small_fit(algorithm=schedule)
    assert torch.equal(a.state["x"], b.state["x"])
    assert function.stepsize(12) == schedule.stepsize(12) == 0.1


@pytest.mark.parametrize("name", ["depositum", "d-psgd", "fedavg", "deepstorm"])
def test_function_is_accepted_by_name(name):
    """By the constructor and by `dp.algorithm`, which checks types."""
    method = dp.algorithm(name, alpha=lambda t: 0.1 / (1 + t).sqrt())
    assert (method.stepsize(0), method.stepsize(3)) == (0.1, 0.05)
    assert method.largest_alpha == 0.1


def test_weight_of_prox_dasa_may_be_a_function():
    method = dp.algorithm("prox-dasa", a=lambda t: 0.5 / (1 + t))
    assert small_fit(algorithm=method, regularizer=dp.L1(), beta=0.01).history["train_loss"].notna().all()


def test_constant_function_is_a_stepsize():
    assert dp.Depositum(alpha=lambda t: 0.25).stepsize(1000) == 0.25


def test_functions_of_several_trials_are_merged():
    """Trials with different functions share one step, as trials with different schedules do."""
    methods = [dp.Depositum(alpha=lambda t: 0.1 / (1 + t)), dp.Depositum(alpha=Cosine(0.2, 10)), dp.Depositum(0.3)]
    merged = merge_methods(methods, 2, torch.device("cpu"), torch.float64)
    expected = [[a] for a in (0.05, Cosine(0.2, 10).at(torch.tensor(1)).item(), 0.3) for _ in range(2)]
    torch.testing.assert_close(merged.alpha.at(torch.tensor(1)), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(
    "function",
    [
        lambda t: 0.1 / math.sqrt(t + 1),
        lambda t: 0.1 if t < 100 else 0.01,
        lambda t: [0.1, 0.05][int(t)],
        lambda t: "0.1",
        lambda t: None,
        lambda: 0.1,
        lambda t: 1 / 0,
    ],
)
def test_function_of_a_number_is_refused_with_the_schedules_named(function):
    with pytest.raises(
        dp.ConfigError, match=r"alpha: the function fails on a tensor t .*'cosine': .*'power' or 'step'"
    ) as e:
        dp.Depositum(alpha=function)
    assert "\n" not in str(e.value)
    assert len(str(e.value)) <= 300


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda t: 0.1 - 0.01 * t, "gives -0.01 at t = 11; it must be a number ≥ 0"),
        (lambda t: 0.1 / t, "gives inf at t = 0"),
        (lambda t: 0.1 * t, "gives 0 at t = 0; it must begin with a number > 0"),
        (lambda t: torch.stack([t, t]) + 1, r"returns shape \[2\]; it must return one number"),
    ],
)
def test_invalid_values_of_a_function_are_refused(function, message):
    with pytest.raises(dp.ConfigError, match=f"alpha: the function {message}"):
        dp.Depositum(alpha=function)


def test_error_names_the_argument():
    with pytest.raises(dp.ConfigError, match="^a: the function gives"):
        dp.algorithm("prox-dasa", a=lambda t: -1.0)


def test_step_beyond_the_weak_convexity_is_refused():
    """α = 2 at t = 50 violates αβρ < 1, although α is small at the start."""
    method = dp.Depositum(alpha=lambda t: torch.where(t == 50, 2.0, 0.1))
    with pytest.raises(dp.ConfigError, match="alpha"):
        small_fit(algorithm=method, regularizer=dp.MCP(theta=1.0), beta=1.0)


@pytest.mark.slow
def test_function_is_compiled():
    """In a compiled step the function is evaluated from t on the device, at every iteration."""
    from depositum.engines import EngineSettings, Loop, Simulator
    from tests.support.seeded_problems import N, seeded_problem

    rows = []
    for compile in ("always", "never"):
        settings = EngineSettings("cpu", "float64", backend="vmap", compile=compile)
        method = dp.Depositum(alpha=lambda t: 0.2 / (1 + t / 3) ** 0.5)
        engine = Simulator(seeded_problem((0,)), dp.ring(N), method, batch_size=4, settings=settings)
        rows.append(Loop(engine, 12).run().tensors["x"])
    torch.testing.assert_close(*rows, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("alpha", [lambda t: 0.1 / (1 + t), Cosine(0.1, 20), {"cosine": {"start": 0.1, "steps": 20}}])
def test_run_with_a_folder_is_resumed_with_the_same_schedule_only(alpha, tmp_path):
    """A folder stores some values of a function, by which another one is refused."""
    whole = small_fit(algorithm=dp.Depositum(alpha=alpha), steps=12)
    for steps in (6, 12):
        result = small_fit(algorithm=dp.Depositum(alpha=alpha), steps=steps, out=tmp_path / "run")
    assert torch.equal(result.state["x"], whole.state["x"])
    assert torch.equal(dp.load(tmp_path / "run", torch.nn.Linear(5, 3)).state["x"], whole.state["x"])
    with pytest.raises(dp.DepositumError, match="holds another run .alpha is "):
        small_fit(algorithm=dp.Depositum(alpha=lambda t: 0.1 / (2 + t)), steps=12, out=tmp_path / "run")


def test_configuration_of_a_function_cannot_be_run():
    """`config.toml` of a folder holds its values, not its code."""
    stored = stored_stepsize(dp.Depositum(alpha=lambda t: 0.1 / (1 + t)).alpha)
    with pytest.raises(dp.ConfigError, match="alpha: was given in Python as a function of t"):
        dp.Depositum(alpha=stored).stepsize(0)


@pytest.mark.parametrize("stored", [3, {}, {"values": 3}, {"values": ["a"] * 6}, {"values": [0.1]}])
def test_malformed_description_of_a_function_is_refused(stored):
    with pytest.raises(dp.ConfigError, match="alpha: .* given; it is not what a run folder stores"):
        dp.Depositum(alpha={"in-memory": stored})
