"""Hyper-parameters, β and weightings with one value per row: each row equals that of a separate run."""

import dataclasses
import json
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import depositum as dp
from depositum.algorithms import (
    About,
    Algorithm,
    FedDualAvg,
    Power,
    differing_parameters,
    merge_key,
    merge_methods,
    row_parameters,
)
from depositum.engines import EngineSettings, Simulator
from depositum.metrics import cheap
from depositum.problem import Oracle
from tests.support.registered_methods import METHODS, beta_for, method_class, network_for, supported_period
from tests.support.seeded_problems import N, seeded_problem
from tests.support.small_sweeps import RELATIVE

# Every numeric hyper-parameter of every method

#: Two values for hyper-parameters whose default is not a number.
CHOSEN = {("deepstorm", "c_b"): (1.0, 30.0), ("dsmt", "b"): (0.3, 0.6), ("sppdm", "eta"): (0.2, 0.5)}
PARAMETERS = [(name, parameter) for name in METHODS for parameter in row_parameters(method_class(name))]


def two_values(name: str, parameter: str) -> tuple[float, float]:
    if (name, parameter) in CHOSEN:
        return CHOSEN[name, parameter]
    default = getattr(dp.algorithm(name), parameter)
    return default, 0.7 * default


def simulate(
    methods: list[Algorithm], seeds: list[int], dtype: str, *, period: int, steps: int = 7, advance: bool = False
) -> Any:
    """The state after some steps of trials with these methods and seeds."""
    first = methods[0]
    problem = seeded_problem(tuple(dict.fromkeys(seeds)), beta=beta_for(first))
    trial_of = {trial.seed: trial for trial in problem.trials}
    trials = tuple(dataclasses.replace(trial_of[seed], label=index) for index, seed in enumerate(seeds))
    problem = dataclasses.replace(problem, trials=trials)
    settings = EngineSettings("cpu", dtype, backend="vmap")  # type: ignore[arg-type]
    simulator = Simulator(problem, network_for(first), methods, period=period, batch_size=4, settings=settings)
    simulator.start()
    if advance:
        simulator.advance(steps)
    else:
        for _ in range(steps):
            simulator.step()
    return simulator.state


def rows_of(trial: int) -> slice:
    return slice(trial * N, (trial + 1) * N)


def assert_rows_equal(state: Any, alone: Any, rows: slice, dtype: str) -> None:
    """Some rows of a state equal another state, to rounding."""
    for key, value in alone._asdict().items():
        if isinstance(value, Tensor):
            actual = getattr(state, key)
            assert actual.dtype == value.dtype, key
            actual = actual[rows] if value.dim() else actual
            scale = max(1.0, float(value.abs().max()))
            torch.testing.assert_close(actual, value, rtol=RELATIVE[dtype], atol=RELATIVE[dtype] * scale, msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
def test_a_value_per_row_equals_that_value_in_a_separate_run(name: str, parameter: str, dtype: str) -> None:
    """Fails if a step needs the value as a plain number, or promotes rows to the dtype of the column."""
    methods = [dp.algorithm(name, **{parameter: value}) for value in two_values(name, parameter)]
    period = supported_period(name)
    state = simulate(methods, [0, 0], dtype, period=period)
    fast = simulate(methods, [0, 0], dtype, period=period, advance=True)
    for index, method in enumerate(methods):
        alone = simulate([method], [0], dtype, period=period)
        assert_rows_equal(state, alone, rows_of(index), dtype)
        assert_rows_equal(fast, alone, rows_of(index), dtype)
    assert not torch.equal(state.x[:N], state.x[N:]), "the hyper-parameter has no effect, so nothing was tested"


def test_every_float_is_a_row_parameter_unless_declared_scalar() -> None:
    """A new hyper-parameter is tested by being there; an exception must be declared by the class and listed here."""
    for name in METHODS:
        method = method_class(name)
        types = {f.name: str(f.type) for f in dataclasses.fields(method)}  # type: ignore[arg-type]
        floats = {name for name, kind in types.items() if "float" in kind and "Literal" not in kind}
        assert floats - set(row_parameters(method)) == ({"keep"} if name == "cdproxsgt" else set())


@pytest.mark.parametrize("name", ["depositum", "fedmid", "gut", "deepstorm", "prox-dasa-gt", "zhang-composite"])
def test_trials_may_have_different_schedules(name: str) -> None:
    """Two different schedules beside a constant."""
    key = "a" if name == "prox-dasa-gt" else "alpha"
    chosen: list[Any] = [0.04, {"cosine": {"start": 0.05, "steps": 6, "end": 0.01}}, Power(0.05, 0.5)]
    methods = [dp.algorithm(name, **{key: value}) for value in chosen]
    period = supported_period(name)
    state = simulate(methods, [0, 1, 0], "float64", period=period)
    for index, (method, seed) in enumerate(zip(methods, [0, 1, 0], strict=True)):
        alone = simulate([method], [seed], "float64", period=period)
        assert_rows_equal(state, alone, rows_of(index), "float64")


def test_equal_methods_are_not_changed_by_merging() -> None:
    """An ordinary run does not pay for columns it does not use."""
    method = dp.algorithm("depositum")
    assert merge_methods([method, dp.algorithm("depositum")], 3, torch.device("cpu"), torch.float32) is method


# User-defined methods


class ModelState(NamedTuple):
    t: Tensor
    x: Tensor


@dataclasses.dataclass(frozen=True)
class UserDefined(Algorithm):
    """Proximal SGD, mixed: as a user would write it, with numbers that may be columns."""

    name = "user-defined"
    about = About("user-defined", "")
    alpha: float = 0.1
    decay: float = 0.01

    def init(self, x0: Tensor, oracle: Any, mix: Any) -> ModelState:
        return ModelState(torch.zeros((), dtype=torch.int64), x0)

    def step(self, s: Any, oracle: Any, mix: Any, kind: str) -> ModelState:
        x = (1 - self.decay) * s.x - self.alpha * oracle.grad(s.x, oracle.sample())
        return ModelState(s.t + 1, mix(oracle.prox(x, self.alpha)))

    def vectors(self) -> int:
        return 1


@dataclasses.dataclass(frozen=True)
class Branching(UserDefined):
    """Its step needs `decay` as a plain number, and says so."""

    scalar_parameters = ("decay",)

    def step(self, s: Any, oracle: Any, mix: Any, kind: str) -> ModelState:
        state = super().step(s, oracle, mix, kind)
        return state if self.decay > 0.5 else state._replace(x=0.5 * state.x)


@dataclasses.dataclass(frozen=True)
class Deriving(UserDefined):
    """It computes an attribute from a hyper-parameter, which merging cannot do for each row."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "half", self.alpha / 2)


@pytest.mark.parametrize("advance", [False, True])
@pytest.mark.parametrize("method", [UserDefined, Branching])
def test_a_user_defined_method_swept_over_its_stepsize_equals_single_runs(
    method: type[UserDefined], advance: bool
) -> None:
    methods: list[Algorithm] = [method(alpha) for alpha in (0.05, 0.1, 0.2)]
    assert all(merge_key(one) == merge_key(methods[0]) for one in methods)
    state = simulate(methods, [0, 1, 0], "float64", period=3, advance=advance)
    for index, (one, seed) in enumerate(zip(methods, [0, 1, 0], strict=True)):
        assert_rows_equal(state, simulate([one], [seed], "float64", period=3), rows_of(index), "float64")
    assert not torch.equal(state.x[rows_of(0)], state.x[rows_of(2)])


def test_scalar_parameters_are_not_merged() -> None:
    assert row_parameters(UserDefined) == ["alpha", "decay"]
    assert row_parameters(Branching) == ["alpha"]
    assert merge_key(UserDefined(decay=0.1)) == merge_key(UserDefined(decay=0.2))
    assert merge_key(Branching(decay=0.1)) != merge_key(Branching(decay=0.2))
    assert differing_parameters([UserDefined(), UserDefined(0.2), UserDefined(decay=0.2)]) == ["alpha", "decay"]


def test_types_of_postponed_annotations_are_resolved() -> None:
    """Unresolvable types, imported for type checkers only, are not an error: the method is not merged."""
    Postponed = dataclasses.make_dataclass("Postponed", [("rate", "float", 0.1)], bases=(UserDefined,), frozen=True)
    Unresolvable = dataclasses.make_dataclass(
        "Unresolvable", [("rate", "Rate", 0.1)], bases=(UserDefined,), frozen=True
    )
    assert row_parameters(Postponed) == ["alpha", "decay", "rate"]
    assert "rate" not in row_parameters(Unresolvable)
    assert merge_key(Unresolvable(rate=0.1)) != merge_key(Unresolvable(rate=0.2))


def test_methods_with_derived_attributes_are_merged_only_if_these_are_equal() -> None:
    assert merge_key(Deriving(0.1)) != merge_key(Deriving(0.2))
    assert merge_key(Deriving(decay=0.1)) == merge_key(Deriving(decay=0.2))


def test_the_elapsed_step_of_dual_averaging_does_not_drift() -> None:
    """A plain float32 sum would make H, and with it the prox step, wrong by 1e-5 or more after thousands of rounds."""

    class NoData:
        def sample(self) -> None: ...

        def grad(self, x: Tensor, batch: None) -> Tensor:
            return torch.zeros_like(x)

        def prox(self, z: Tensor, step: Any) -> Tensor:
            return z

        def average(self, z: Tensor) -> Tensor:
            return z

    method: Any = FedDualAvg(alpha=0.03)
    state = method.init(torch.zeros(2, 3), NoData(), NoData())
    for _ in range(3000):
        state = method.step(state, NoData(), NoData(), "exchange")
    exact = torch.full((2, 1), 3000 * torch.tensor(0.03).double().item(), dtype=torch.float64)
    torch.testing.assert_close(state.H.double(), exact, rtol=1e-6, atol=0)


# β and weightings

REGULARIZERS: list[Any] = [
    "l1",
    "mcp",
    "elastic-net",
    "group-lasso",
    "nuclear",
    {"box": {"low": -0.05, "high": 0.05}},
    [{"l1": {}, "on": "*weight"}, {"nonnegative": {}, "on": "*bias"}],
]


@pytest.mark.parametrize("spec", REGULARIZERS, ids=lambda spec: json.dumps(spec)[:20])
def test_trials_may_have_different_betas(spec: Any) -> None:
    """β = 0 leaves a row unchanged, even if h is a constraint, and φ is the loss there."""
    betas = (0.0, 1e-2, 0.3)
    problem = seeded_problem((0, 1, 2))
    h = dp.regularizers.build(spec)
    trials = tuple(dataclasses.replace(t, beta=b) for t, b in zip(problem.trials, betas, strict=True))
    several = Oracle(dataclasses.replace(problem, trials=trials, regularizer=h), dtype=torch.float64)
    z = torch.randn(several.rows, problem.layout.size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    step = torch.linspace(0.1, 0.9, several.rows, dtype=torch.float64)[:, None]
    proxed, proxed_per_row = several.prox(z, 0.5), several.prox(z, step)
    state: Any = ModelState(torch.zeros(()), z)
    measured = cheap(state, several)
    for index, (trial, beta) in enumerate(zip(problem.trials, betas, strict=True)):
        rows = rows_of(index)
        alone = Oracle(dataclasses.replace(problem, trials=(trial,), regularizer=h, beta=beta), dtype=torch.float64)
        torch.testing.assert_close(proxed[rows], alone.prox(z[rows], 0.5), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(proxed_per_row[rows], alone.prox(z[rows], step[rows]), rtol=1e-12, atol=1e-14)
        expected = cheap(ModelState(torch.zeros(()), z[rows]), alone)  # type: ignore[arg-type]
        for key, value in expected.items():
            torch.testing.assert_close(measured[key][index : index + 1], value, rtol=1e-12, atol=0, msg=key)
    assert torch.equal(proxed[:N], z[:N])
