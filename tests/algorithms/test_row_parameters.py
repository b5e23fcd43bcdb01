"""Numbers, β and weightings that differ from row to row: each row is as in a run alone."""

import dataclasses
import json
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from depositum.algorithms.row_parameters import row_parameters
from torch import Tensor

import depositum as dp
from depositum.algorithms import About, Algorithm, FedDualAvg, Power, merge_methods, merge_key
from depositum.engines import EngineSettings, Simulator
from depositum.metrics import cheap
from depositum.problem import Oracle
from tests.algorithms.test_all_methods import METHODS, kind_of, period_of
from tests.engines.test_simulator import N, seeded_problem
from tests.support.small_sweeps import RELATIVE

# Every number of every method

#: Two values of the numbers whose default is another choice.
CHOSEN = {("deepstorm", "c_b"): (1.0, 30.0), ("dsmt", "b"): (0.3, 0.6), ("sppdm", "eta"): (0.2, 0.5)}
COLUMNS = [(name, number) for name in METHODS for number in row_parameters(kind_of(name))]


def values(name: str, number: str) -> tuple[float, float]:
    if (name, number) in CHOSEN:
        return CHOSEN[name, number]
    default = getattr(dp.algorithm(name), number)
    return default, 0.7 * default


def simulate(methods: list[Algorithm], seeds: list[int], dtype: str, *, steps: int = 7, advance: bool = False) -> Any:
    """The state after some steps, of trials with these seeds and methods."""
    first = methods[0]
    problem = seeded_problem(tuple(dict.fromkeys(seeds)), beta=0.0 if first.handles == "smooth" else 1e-3)
    own = {trial.seed: trial for trial in problem.trials}
    trials = tuple(dataclasses.replace(own[seed], label=place) for place, seed in enumerate(seeds))
    problem = dataclasses.replace(problem, trials=trials)
    network = None if first.server else dp.ring(N, mixing="lazy-metropolis")
    settings, period = EngineSettings("cpu", dtype, backend="vmap"), period_of(first.name)  # type: ignore[arg-type]
    simulator = Simulator(problem, network, methods, period=period, batch_size=4, settings=settings)
    simulator.start()
    if advance:
        simulator.advance(steps)
    else:
        for _ in range(steps):
            simulator.step()
    return simulator.state


def assert_rows(state: Any, alone: Any, rows: slice, dtype: str) -> None:
    """Rows of a state are those of another."""
    for key, value in alone._asdict().items():
        if isinstance(value, Tensor):
            there = getattr(state, key)
            assert there.dtype == value.dtype, key
            there = there[rows] if value.dim() else there
            scale = max(1.0, float(value.abs().max()))
            torch.testing.assert_close(there, value, rtol=RELATIVE[dtype], atol=RELATIVE[dtype] * scale, msg=key)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("name", "number"), COLUMNS)
def test_a_number_per_row_is_that_number_in_a_run_alone(name: str, number: str, dtype: str) -> None:
    """A step that asks a number on the host, or promotes rows to the column's dtype, fails here."""
    methods = [dp.algorithm(name, **{number: value}) for value in values(name, number)]
    state = simulate(methods, [0, 0], dtype)
    fast = simulate(methods, [0, 0], dtype, advance=True)
    for place, method in enumerate(methods):
        alone = simulate([method], [0], dtype)
        assert_rows(state, alone, slice(place * N, (place + 1) * N), dtype)
        assert_rows(fast, alone, slice(place * N, (place + 1) * N), dtype)
    assert not torch.equal(state.x[:N], state.x[N:]), "the number has no effect, so that nothing was tested"


def test_all_numbers_are_tried_but_those_a_step_needs_on_the_host() -> None:
    """A method's new number is tested by being there; one that is kept out of columns must be known here."""
    for name in METHODS:
        named = {f.name for f in dataclasses.fields(kind_of(name)) if "float" in str(f.type)}  # type: ignore[arg-type]
        assert named - set(row_parameters(kind_of(name))) == ({"keep"} if name == "cdproxsgt" else set())


@pytest.mark.parametrize("name", ["depositum", "fedmid", "gut", "deepstorm", "prox-dasa-gt", "zhang-composite"])
def test_schedules_side_by_side(name: str) -> None:
    """Stepsizes that change with t, each in its own way, beside one that does not."""
    key = "a" if name == "prox-dasa-gt" else "alpha"
    chosen: list[Any] = [0.04, {"cosine": {"start": 0.05, "steps": 6, "end": 0.01}}, Power(0.05, 0.5)]
    methods = [dp.algorithm(name, **{key: value}) for value in chosen]
    state = simulate(methods, [0, 1, 0], "float64")
    for place, (method, seed) in enumerate(zip(methods, [0, 1, 0], strict=True)):
        assert_rows(state, simulate([method], [seed], "float64"), slice(place * N, (place + 1) * N), "float64")


def test_equal_methods_make_no_columns() -> None:
    """An ordinary run must not pay for what it does not use."""
    method = dp.algorithm("depositum")
    assert merge_methods([method, dp.algorithm("depositum")], 3, torch.device("cpu"), torch.float32) is method


class OwnState(NamedTuple):
    t: Tensor
    x: Tensor


@dataclasses.dataclass(frozen=True)
class Own(Algorithm):
    """A person's own method, which asks its number on the host."""

    name: ClassVar[str] = "own"
    about: ClassVar[About] = About("own", "")
    alpha: float = 0.1

    def init(self, x0: Tensor, oracle: Any, mix: Any) -> OwnState:
        return OwnState(torch.zeros((), dtype=torch.int64), x0)

    def step(self, s: Any, oracle: Any, mix: Any, kind: str) -> OwnState:
        return OwnState(s.t + 1, mix(s.x) if self.alpha > 0.5 else s.x)

    def vectors(self) -> int:
        return 1


def test_a_persons_own_method_has_no_columns() -> None:
    """Nothing is known of its step: it may branch on the number."""
    assert row_parameters(Own) == []
    assert merge_key(Own(0.1)) != merge_key(Own(0.2))


def test_the_step_elapsed_in_dual_averaging_does_not_drift() -> None:
    """Summed plainly in float32, H is off by 1e-5 and more after thousands of rounds, and with it the threshold."""

    class Nothing:
        def sample(self) -> None: ...

        def grad(self, x: Tensor, batch: None) -> Tensor:
            return torch.zeros_like(x)

        def prox(self, z: Tensor, step: Any) -> Tensor:
            return z

        def average(self, z: Tensor) -> Tensor:
            return z

    method: Any = FedDualAvg(alpha=0.03)
    state = method.init(torch.zeros(2, 3), Nothing(), Nothing())
    for _ in range(3000):
        state = method.step(state, Nothing(), Nothing(), "exchange")
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
def test_beta_of_each_trial(spec: Any) -> None:
    """β = 0 leaves a row as it is, even where h is a constraint, and φ is the loss there."""
    betas = (0.0, 1e-2, 0.3)
    problem = seeded_problem((0, 1, 2))
    h = dp.regularizers.build(spec)
    own = tuple(dataclasses.replace(t, beta=b) for t, b in zip(problem.trials, betas, strict=True))
    several = Oracle(dataclasses.replace(problem, trials=own, regularizer=h), dtype=torch.float64)
    z = torch.randn(several.rows, problem.layout.size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    step = torch.linspace(0.1, 0.9, several.rows, dtype=torch.float64)[:, None]
    proxed, proxed_each = several.prox(z, 0.5), several.prox(z, step)
    state: Any = OwnState(torch.zeros(()), z)
    measured = cheap(state, several)
    for place, (trial, beta) in enumerate(zip(problem.trials, betas, strict=True)):
        rows = slice(place * N, (place + 1) * N)
        alone = Oracle(dataclasses.replace(problem, trials=(trial,), regularizer=h, beta=beta), dtype=torch.float64)
        torch.testing.assert_close(proxed[rows], alone.prox(z[rows], 0.5), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(proxed_each[rows], alone.prox(z[rows], step[rows]), rtol=1e-12, atol=1e-14)
        expected = cheap(OwnState(torch.zeros(()), z[rows]), alone)  # type: ignore[arg-type]
        for key, value in expected.items():
            torch.testing.assert_close(measured[key][place : place + 1], value, rtol=1e-12, atol=0, msg=key)
    assert torch.equal(proxed[:N], z[:N])
