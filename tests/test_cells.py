"""Several configurations as rows of one matrix: each must come out as if it had run alone, in every file it leaves."""

import copy
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pandas as pd
import pytest
import torch
from torch import Tensor

import depositum as dp
from depositum.algorithms import ALGORITHMS, About, Algorithm, FedDualAvg, Power, combined, kinds
from depositum.algorithms.columns import numbers
from depositum.engines import Callback, Divergence, EngineSettings, Loop, Simulator
from depositum.errors import DepositumError, RunError
from depositum.metrics import cheap
from depositum.problem import Oracle
from depositum.runs import Config, RunResult, checkpoint, execute, parse
from depositum.runs import cells as cells_module
from depositum.runs.cells import execute_cells, together
from tests.small_runs import SMALL, files, outcome
from tests.test_all_methods import METHODS, kind_of, period_of
from tests.test_simulator import N, seeded_problem

RELATIVE = {"float64": 1e-10, "float32": 1e-5}

# Every number of every method

#: Two values of the numbers whose default is another choice.
CHOSEN = {("deepstorm", "c_b"): (1.0, 30.0), ("dsmt", "b"): (0.3, 0.6), ("sppdm", "eta"): (0.2, 0.5)}
COLUMNS = [(name, number) for name in METHODS for number in numbers(kind_of(name))]


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
        assert named - set(numbers(kind_of(name))) == ({"keep"} if name == "cdproxsgt" else set())


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
    assert combined([method, dp.algorithm("depositum")], 3, torch.device("cpu"), torch.float32) is method


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
    assert numbers(Own) == []
    assert kinds(Own(0.1)) != kinds(Own(0.2))


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


# Whole runs


def config(**changes: dict[str, Any]) -> Config:
    table = copy.deepcopy(SMALL)
    table["run"]["backend"] = "vmap"  # found by a stopwatch otherwise, and another one rounds otherwise
    for section, keys in changes.items():
        table.setdefault(section, {}).update(keys)
    return parse(table)


def sweep(**run: Any) -> list[Config]:
    """Four cells that differ in all they may: numbers, β, partition, weighting, seeds."""
    return [
        config(run={"seeds": [0, 3], **run}),
        config(algorithm={"alpha": 0.03}, problem={"beta": 0.0, "weighting": "samples"}, run={"seeds": [0, 3], **run}),
        config(algorithm={"gamma": 0.9}, problem={"partition": "iid", "partition_seed": 7}, run={"seeds": [5], **run}),
        config(problem={"beta": 1e-2}, run={"seeds": [3, 1, 0], **run}),
    ]


def places(folder: Path, count: int, name: str = "cell") -> list[Path]:
    return [folder / f"{name}-{i}" for i in range(count)]


class Stop(Callback):
    """Asks a loop to stop after some iteration."""

    def __init__(self, t: int) -> None:
        self.t = t

    def on_step(self, loop: Loop) -> None:
        loop.stop_requested = loop.stop_requested or loop.t == self.t


def assert_alike(one: RunResult, other: RunResult, dtype: str = "float64") -> None:
    """Two runs have the same seeds, states, histories and complete configurations, to rounding."""
    a, b = one.snapshot, other.snapshot
    assert (a.seeds, a.t, a.costs, a.diverged) == (b.seeds, b.t, b.costs, b.diverged)
    assert one.finished == other.finished
    assert a.tensors.keys() == b.tensors.keys()
    for key, value in b.tensors.items():
        torch.testing.assert_close(a.tensors[key], value, rtol=RELATIVE[dtype], atol=RELATIVE[dtype], msg=key)
    frames = [result.history.frame.drop(columns="seconds") for result in (one, other)]
    pd.testing.assert_frame_equal(*frames, rtol=10 * RELATIVE[dtype], atol=10 * RELATIVE[dtype])
    texts = [(result.folder / "config.toml").read_text() for result in (one, other)]
    assert texts[0] == texts[1]
    assert set(files(one.folder)) == set(files(other.folder))


@pytest.mark.parametrize(("dtype", "evaluate_from"), [("float64", 0), ("float32", 1)])
def test_cells_at_once_equal_runs_alone(tmp_path: Path, dtype: str, evaluate_from: int) -> None:
    """Every file of every cell, with numbers, β, partition, weighting and seeds of its own.

    A label where a seed belongs, a measure with another cell's α or β, a row in another cell's file: all show here.
    """
    configs, loops = sweep(dtype=dtype, evaluate_from=evaluate_from), []
    assert together(configs) == [[0, 1, 2, 3]]
    results = execute_cells(configs, places(tmp_path, 4), on_loop=loops.append)
    assert len(loops) == 1
    for one, folder, chosen in zip(results, places(tmp_path, 4, "alone"), configs, strict=True):
        alone = execute(chosen, folder)
        assert_alike(one, alone, dtype)
        there, here = (pd.read_csv(result.folder / "consensus.csv") for result in (one, alone))
        pd.testing.assert_frame_equal(there, here, rtol=RELATIVE[dtype] * 10)
        saved = checkpoint.read(one.folder / checkpoint.CURRENT)
        assert saved.seeds == tuple(chosen.run.seeds)
        assert torch.equal(saved.tensors["x"], one.snapshot.tensors["x"])


@pytest.mark.parametrize("method", ["fedmid", "feddr", "prox-dasa-gt", "deepstorm", "feddualavg"])
def test_cells_of_other_methods(tmp_path: Path, method: str) -> None:
    """Methods with a server, with clocks in their state, and without a stepsize named α."""
    first = {"name": method, "alpha": 0.1} if method != "prox-dasa-gt" else {"name": method, "a": 0.2}
    second = {k: v if k == "name" else v / 2 for k, v in first.items()}
    tables = [{**SMALL, "algorithm": algorithm} for algorithm in (first, second)]
    configs = [parse({**t, "run": {**SMALL["run"], "dtype": "float64", "backend": "vmap"}}) for t in tables]
    assert together(configs) == [[0, 1]]
    for one, chosen, folder in zip(
        execute_cells(configs, places(tmp_path, 2)), configs, places(tmp_path, 2, "alone"), strict=True
    ):
        assert_alike(one, execute(chosen, folder))


def differing(**run: Any) -> list[Config]:
    """Two cells with columns of every kind: α, γ and β."""
    changed = {"algorithm": {"alpha": 0.03, "gamma": 0.9}, "problem": {"beta": 0.0}}
    return [config(run=run), config(**changed, run=run)]


def test_compiled(tmp_path: Path) -> None:
    """Columns are constants of a traced iteration; one that was taken for a number would be the first row's for all."""
    changes: dict[str, Any] = {"dtype": "float64", "steps": 4, "period": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # said where an iteration cannot be compiled
        fast = execute_cells(differing(**changes, compile="always"), places(tmp_path, 2))
    plain = execute_cells(differing(**changes, compile="never"), places(tmp_path, 2, "plain"))
    for one, other in zip(fast, plain, strict=True):
        torch.testing.assert_close(one.snapshot.tensors, other.snapshot.tensors, rtol=1e-10, atol=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("compile", ["never", "always"])
def test_on_a_gpu(tmp_path: Path, compile: str) -> None:
    """Captured in CUDA graphs, which read the columns where they were: the trajectories of the CPU, to rounding."""
    changes: dict[str, Any] = {"dtype": "float64", "steps": 40, "compile": compile}
    gpu = execute_cells(sweep(**{**changes, "device": "cuda"}), places(tmp_path, 4))
    cpu = execute_cells(sweep(**{**changes, "compile": "never"}), places(tmp_path, 4, "cpu"))
    for one, other in zip(gpu, cpu, strict=True):
        torch.testing.assert_close(one.snapshot.tensors, other.snapshot.tensors, rtol=1e-9, atol=1e-10)


# Stopped, killed, resumed


@pytest.mark.parametrize("t", [2, 6, 13])
def test_stopped_and_resumed_equals_never_stopped(tmp_path: Path, t: int) -> None:
    """To the byte, as for a run alone."""
    said: list[str] = []
    stopped = execute_cells(sweep(), places(tmp_path, 4), callbacks=[Stop(t)])
    assert [(result.finished, result.snapshot.t) for result in stopped] == [(False, t)] * 4
    resumed = execute_cells(sweep(), places(tmp_path, 4), say=said.append)
    assert said == [f"{folder}: going on from iteration {t}" for folder in places(tmp_path, 4)]
    for one, other in zip(resumed, execute_cells(sweep(), places(tmp_path, 4, "whole")), strict=True):
        assert one.finished
        assert outcome(one.folder) == outcome(other.folder)


@pytest.mark.parametrize("writes", [1, 6, 7])
def test_killed_between_the_checkpoints_of_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """Some cells are then a checkpoint ahead of the others; they go back to the one before, and all on together.

    Before there are two checkpoints, nothing can go back: those that are ahead stay ahead, in a group of their own.
    """
    real, done = checkpoint.write, []

    def write(*arguments: Any) -> None:
        if len(done) == writes:
            raise KeyboardInterrupt
        done.append(real(*arguments))

    monkeypatch.setattr(checkpoint, "write", write)
    with pytest.raises(KeyboardInterrupt):
        execute_cells(sweep(dtype="float64"), places(tmp_path, 4))
    monkeypatch.setattr(checkpoint, "write", real)
    loops: list[Loop] = []
    resumed = execute_cells(sweep(dtype="float64"), places(tmp_path, 4), on_loop=loops.append)
    assert len(loops) == (2 if writes < 4 else 1)
    for one, other in zip(resumed, execute_cells(sweep(dtype="float64"), places(tmp_path, 4, "whole")), strict=True):
        assert_alike(one, other)
        if len(loops) == 1:
            assert outcome(one.folder) == outcome(other.folder)


KILLED = """
import json, pathlib, sys, time
from depositum.engines import Callback
from depositum.runs import parse
from depositum.runs.cells import execute_cells

class Slow(Callback):
    def on_step(self, loop):
        time.sleep(0.02)

configs = [parse(table) for table in json.loads(sys.argv[1])]
execute_cells(configs, [pathlib.Path(folder) for folder in sys.argv[2:]], callbacks=[Slow()])
"""


def test_kill_9(tmp_path: Path) -> None:
    """A process that dies at any moment leaves folders that all go on to the same end."""
    configs, folders = sweep(dtype="float64", steps=60), places(tmp_path, 4)
    tables = json.dumps([chosen.model_dump(exclude_none=True) for chosen in configs])
    process = subprocess.Popen([sys.executable, "-c", KILLED, tables, *map(str, folders)], env={**os.environ})
    try:
        while not all((folder / checkpoint.PREVIOUS).exists() for folder in folders):
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not any(checkpoint.iteration(folder / checkpoint.PREVIOUS) >= 54 for folder in folders)
    resumed = execute_cells(configs, folders)
    for one, other in zip(resumed, execute_cells(configs, places(tmp_path, 4, "whole")), strict=True):
        assert outcome(one.folder) == outcome(other.folder)


def test_cells_go_on_alone_and_runs_go_on_as_cells(tmp_path: Path) -> None:
    """A cell's folder is a run's folder, both ways."""
    configs = sweep(dtype="float64")
    whole = execute_cells(configs, places(tmp_path, 4, "whole"))
    execute_cells(configs, places(tmp_path, 4), callbacks=[Stop(9)])
    for chosen, folder, other in zip(configs, places(tmp_path, 4), whole, strict=True):
        assert_alike(execute(chosen, folder), other)
    for chosen, folder in zip(configs, places(tmp_path, 4, "run"), strict=True):
        execute(chosen, folder, callbacks=[Stop(9)])
    loops: list[Loop] = []
    for one, other in zip(execute_cells(configs, places(tmp_path, 4, "run"), on_loop=loops.append), whole, strict=True):
        assert_alike(one, other)
    assert len(loops) == 1


def test_what_is_finished_is_left_alone(tmp_path: Path) -> None:
    """Not a byte of it changes; what is left over alone is run alone, and the results are in the order asked for."""
    configs, folders = sweep(), places(tmp_path, 4)
    for place in (0, 1, 3):
        execute(configs[place], folders[place])
    before = [files(folders[place]) for place in (0, 1, 3)]
    said: list[str] = []
    loops: list[Loop] = []
    results = execute_cells(configs, folders, say=said.append, on_loop=loops.append)
    assert said == [f"{folders[place]}: nothing to do, 20 iterations are done" for place in (0, 1, 3)]
    assert [files(folders[place]) for place in (0, 1, 3)] == before
    assert [len(loop.engine.problem.trials) for loop in loops] == [1]
    assert [result.folder for result in results] == folders
    assert all(result.finished for result in results)
    assert [len(result.history.records) for result in results] == [12, 12, 6, 18]


def test_extended(tmp_path: Path) -> None:
    """More steps, for all cells at once."""
    execute_cells(sweep(steps=10), places(tmp_path, 4))
    longer = execute_cells(sweep(), places(tmp_path, 4))
    for one, other in zip(longer, execute_cells(sweep(), places(tmp_path, 4, "whole")), strict=True):
        assert outcome(one.folder) == outcome(other.folder)


def test_once_asked_to_stop_later_groups_stop_too(tmp_path: Path) -> None:
    """A person who stops a sweep does not wait for the rest of it."""
    configs = [*sweep(), *sweep(period=2)]
    results = execute_cells(configs, places(tmp_path, 8), callbacks=[Stop(5)])
    assert [result.snapshot.t for result in results] == [5] * 4 + [0] * 4
    assert not any(result.finished for result in results)
    assert all(result.finished for result in execute_cells(configs, places(tmp_path, 8)))


# Diverged


class Told(Callback):
    """Notes what a person's callback is told."""

    def __init__(self) -> None:
        self.seeds: list[Any] = []
        self.traced: set[int] = set()
        self.diverged: list[Divergence] = []

    def on_evaluation(self, loop: Loop, records: list[dict[str, object]]) -> None:
        self.seeds.append([record["seed"] for record in records])

    def on_trace(self, loop: Loop, errors: list[tuple[int, int, float]]) -> None:
        self.traced |= {seed for seed, _, _ in errors}

    def on_divergence(self, loop: Loop, divergence: Divergence) -> None:
        self.diverged.append(divergence)


def test_a_cell_that_diverges_stops_alone(tmp_path: Path) -> None:
    """It is said in its own result; its files end as those of a run alone, and the others go on."""
    run = {"dtype": "float64", "seeds": [0, 3]}
    configs = [config(algorithm={"alpha": alpha}, run=run) for alpha in (0.1, 1.7e308, 0.05)]
    told = Told()
    results = execute_cells(configs, places(tmp_path, 3), callbacks=[told])
    assert [{d.seed for d in result.diverged} for result in results] == [set(), {0, 3}, set()]
    assert all(result.finished for result in results)
    for one, chosen, folder in zip(results, configs, places(tmp_path, 3, "alone"), strict=True):
        alone = execute(chosen, folder)
        assert_alike(one, alone)
        assert (one.folder / "consensus.csv").read_text().count("\n") == (folder / "consensus.csv").read_text().count(
            "\n"
        )
    assert told.traced == {0, 3}
    assert told.seeds[0] == [0, 3] * 3
    assert told.seeds[-1] == [0, 3] * 2
    assert told.diverged == results[1].diverged
    said: list[str] = []
    again = execute_cells(configs, places(tmp_path, 3), say=said.append)
    assert said[1].endswith("nothing to do, every seed has diverged")
    assert again[1].diverged == results[1].diverged


def test_a_seed_of_a_cell_that_diverges_stops_alone(tmp_path: Path) -> None:
    """The cell's other seed goes on, is resumed without it, and its own last finite rows are kept."""
    (tmp_path / "own.py").write_text(HALF)
    model = {"model": "own:half", "partition": "iid", "regularizer": "zero", "loss": "cross-entropy"}
    configs = [
        config(problem={**model, "beta": 0.0}, algorithm={"alpha": alpha}, run={"dtype": "float64", "seeds": [0, 1]})
        for alpha in (1e5, 1e-9)
    ]
    alone = [
        execute(chosen, folder, base=tmp_path)
        for chosen, folder in zip(configs, places(tmp_path, 2, "alone"), strict=True)
    ]
    assert [len(result.diverged) for result in alone] == [1, 0]
    whole = execute_cells(configs, places(tmp_path, 2), base=tmp_path)
    execute_cells(configs, places(tmp_path, 2, "stopped"), base=tmp_path, callbacks=[Stop(13)])
    resumed = execute_cells(configs, places(tmp_path, 2, "stopped"), base=tmp_path)
    for one, other, again in zip(whole, alone, resumed, strict=True):
        assert_alike(one, other)
        assert outcome(again.folder) == outcome(one.folder)


#: Weights that start at 0 or at 20, as the seed has it: from 20, their fourth power does not come back at large steps.
HALF = """
import torch
from torch import nn

class Half(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        far = torch.rand(1).item() < 0.5
        self.w = nn.Parameter(torch.full((features, classes), 20.0 if far else 0.0))

    def forward(self, x):
        return x @ self.w**4

def half(shape, classes):
    return Half(shape[0], classes)
"""


# Groups


def test_who_can_run_together() -> None:
    """Whatever changes the steps or their shapes parts cells; numbers, β, partition, weighting and seeds do not."""
    alike = [
        config(),
        config(algorithm={"alpha": 0.2, "gamma": 0.0}),
        config(algorithm={"alpha": {"cosine": {"start": 0.1, "steps": 20}}}),
        config(problem={"beta": 0.0}),
        config(problem={"partition": "iid"}),
        config(problem={"partition_seed": 3, "weighting": "samples"}),
        config(run={"seeds": [4, 5]}),
    ]
    assert together(alike) == [list(range(len(alike)))]
    others = [
        config(algorithm={"momentum": "nesterov"}),
        config(algorithm={"start": "local"}),
        config(problem={"regularizer": "mcp"}),
        config(problem={"clients": 5}),
        config(problem={"dataset": "digits"}),
        config(problem={"holdout": 0.2}),
        config(problem={"holdout": 0.2, "partition_seed": 1}),
        config(network={"topology": "complete"}),
        config(run={"period": 2}),
        config(run={"batch_size": 5}),
        config(run={"steps": 21}),
        config(run={"evaluate_every": 8}),
        config(run={"evaluate_from": 1}),
        config(run={"dtype": "float64"}),
        config(metrics={"costly_every": 0}),
        config(metrics={"smoothness": "measure"}),
        config(metrics={"smoothness": "measure"}),
    ]
    assert together([*others, *others[:2]]) == [[0, 17], [1, 18], *([i] for i in range(2, len(others)))]
    assert together([alike[0], others[0], alike[1]]) == [[0, 2], [1]]
    assert together([]) == []


def test_choices_that_are_no_numbers_part_cells() -> None:
    """`None` and a number, or a word and a number, are different steps."""
    names = [{"name": "dsmt", "chebyshev": False}, {"name": "dsmt", "chebyshev": False, "b": 0.5}]
    table = {**SMALL, "problem": {**SMALL["problem"], "beta": 0.0}}
    assert together([parse({**table, "algorithm": algorithm}) for algorithm in names]) == [[0], [1]]
    keeps = [{"name": "cdproxsgt", "keep": keep} for keep in (0.3, 0.5)]
    assert together([parse({**SMALL, "algorithm": algorithm}) for algorithm in keeps]) == [[0], [1]]


def test_registered_methods_can_all_be_swept() -> None:
    """Every method has some number by which its cells run together."""
    assert all(numbers(kind_of(name)) for name in ALGORITHMS)


@pytest.mark.parametrize("short", ["estimate", "device", "rows"])
def test_where_memory_is_short_groups_are_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: str) -> None:
    """By an estimate, when the device says so in the midst of a run, or by the rows that are worth it on a CPU."""
    trials: list[int] = []

    class Short(Callback):
        def on_checkpoint(self, loop: Loop) -> None:
            if short == "device" and loop.t > 5 and len(loop.engine.problem.trials) > 4:
                raise torch.OutOfMemoryError

    if short == "estimate":
        monkeypatch.setattr(cells_module, "_fits", lambda problem, _: len(problem.trials) <= 4)
    if short == "rows":
        monkeypatch.setattr(cells_module, "CPU_ROWS", 16)
    said: list[str] = []
    results = execute_cells(
        sweep(),
        places(tmp_path, 4),
        callbacks=[Short()],
        say=said.append,
        on_loop=lambda loop: trials.append(len(loop.engine.problem.trials)),
    )
    expected = {"estimate": [4, 1 + 3], "device": [8, 4, 4], "rows": [4, 4]}
    assert trials == expected[short]
    assert ("4 runs at once do not fit the memory; 2 and 2 instead" in said) == (short != "rows")
    for one, other in zip(results, execute_cells(sweep(), places(tmp_path, 4, "whole")), strict=True):
        assert_alike(one, other, "float32")


# Bad input


@pytest.mark.parametrize(
    "bad",
    [
        {"problem": {"partition": {"dirichlet": -1.0}}},
        {"problem": {"beta": 100.0, "regularizer": "mcp"}},
        {"problem": {"dataset": "digits", "clients": 2000}},
        {"algorithm": {"gamma": 1.5}},
    ],
    ids=["partition", "beta", "clients", "gamma"],
)
def test_what_a_run_alone_refuses_is_refused_alike(tmp_path: Path, bad: dict[str, Any]) -> None:
    """In the same words, and before anything of any cell is written."""
    good = {section: dict(keys) for section, keys in bad.items()}
    for section, key in (("problem", "partition"), ("problem", "beta"), ("algorithm", "gamma")):
        good.get(section, {}).pop(key, None)
    with pytest.raises(DepositumError) as alone:
        execute(config(**bad), tmp_path / "alone")
    with pytest.raises(DepositumError) as among:
        execute_cells([config(**good), config(**bad)], places(tmp_path, 2))
    assert str(among.value) == str(alone.value)
    assert not any(folder.exists() for folder in places(tmp_path, 2))


def test_folders_that_are_refused(tmp_path: Path) -> None:
    """One folder for two cells, or one that holds another run: nothing is run, and nothing written."""
    configs = sweep()[:2]
    with pytest.raises(RunError, match="same folder"):
        execute_cells(configs, [tmp_path / "a", tmp_path / "a"])
    execute(configs[0], tmp_path / "b")
    before = files(tmp_path)
    with pytest.raises(RunError, match="holds another run"):
        execute_cells(configs, [tmp_path / "c", tmp_path / "b"])
    assert files(tmp_path) == before
