"""Several configurations as rows of one matrix: each has the files and numbers of a run alone."""

import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from depositum.algorithms import ALGORITHMS, row_parameters
from depositum.engines import Callback, Loop
from depositum.errors import DepositumError, RunError
from depositum.runs import checkpoint, compatible, execute, execute_all, parse, resolve
from tests.support.registered_methods import method_class
from tests.support.small_runs import SMALL, files
from tests.support.small_sweeps import RELATIVE, assert_same_results, run_folders, small_config, small_sweep, two_cells

# Complete runs


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "evaluate_from"), [("float64", 0), ("float32", 1)])
def test_cells_of_one_simulator_equal_runs_alone(tmp_path: Path, dtype: str, evaluate_from: int) -> None:
    """Every file of every cell, for cells with different numbers, β, partitions, weightings and seeds.

    Fails if a label is written for a seed, a measure uses another cell's α or β, or a record is in another cell's file.
    """
    configs, loops = small_sweep(dtype=dtype, evaluate_from=evaluate_from), []
    assert compatible(configs) == [[0, 1, 2, 3]]
    results = execute_all(configs, run_folders(tmp_path, 4), on_loop=loops.append)
    assert len(loops) == 1
    for one, folder, chosen in zip(results, run_folders(tmp_path, 4, "alone"), configs, strict=True):
        alone = execute(chosen, folder)
        assert_same_results(one, alone, dtype)
        there, here = (pd.read_csv(result.folder / "consensus.csv") for result in (one, alone))
        pd.testing.assert_frame_equal(there, here, rtol=RELATIVE[dtype] * 10)
        saved = checkpoint.read(one.folder / checkpoint.CURRENT)
        assert saved.seeds == tuple(chosen.config.run.seeds)
        assert torch.equal(saved.tensors["x"], one.snapshot.tensors["x"])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedmid", "feddr", "prox-dasa-gt", "deepstorm", "feddualavg"])
def test_cells_of_other_methods_equal_runs_alone(tmp_path: Path, method: str) -> None:
    """Methods with a server, with counters in their state, and without a stepsize named α."""
    first = {"name": method, "alpha": 0.1} if method != "prox-dasa-gt" else {"name": method, "a": 0.2}
    second = {k: v if k == "name" else v / 2 for k, v in first.items()}
    tables = [{**SMALL, "algorithm": algorithm} for algorithm in (first, second)]
    configs = [resolve(parse({**t, "run": {**SMALL["run"], "dtype": "float64", "backend": "vmap"}})) for t in tables]
    assert compatible(configs) == [[0, 1]]
    for one, chosen, folder in zip(
        execute_all(configs, run_folders(tmp_path, 2)), configs, run_folders(tmp_path, 2, "alone"), strict=True
    ):
        assert_same_results(one, execute(chosen, folder))


@pytest.mark.slow
def test_compiled_cells_equal_uncompiled_ones(tmp_path: Path) -> None:
    """Row parameters are constants of a traced iteration. Fails if the first row's number is used for all rows."""
    changes: dict[str, Any] = {"dtype": "float64", "steps": 4, "period": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # raised where an iteration cannot be compiled
        fast = execute_all(two_cells(**changes, compile="always"), run_folders(tmp_path, 2))
    plain = execute_all(two_cells(**changes, compile="never"), run_folders(tmp_path, 2, "plain"))
    for one, other in zip(fast, plain, strict=True):
        torch.testing.assert_close(one.snapshot.tensors, other.snapshot.tensors, rtol=1e-10, atol=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("compile", ["never", "always"])
def test_cells_on_a_gpu_equal_those_on_the_cpu(tmp_path: Path, compile: str) -> None:
    """Up to rounding; captured CUDA graphs read the row parameters at fixed addresses."""
    changes: dict[str, Any] = {"dtype": "float64", "steps": 40, "compile": compile}
    gpu = execute_all(small_sweep(**{**changes, "device": "cuda"}), run_folders(tmp_path, 4))
    cpu = execute_all(small_sweep(**{**changes, "compile": "never"}), run_folders(tmp_path, 4, "cpu"))
    for one, other in zip(gpu, cpu, strict=True):
        torch.testing.assert_close(one.snapshot.tensors, other.snapshot.tensors, rtol=1e-9, atol=1e-10)


# Groups of compatible configurations


def test_compatible_configurations_differ_in_numbers_only() -> None:
    """Settings that change the steps or their shapes separate cells; numbers, β, partition, weighting, seeds do not."""
    same = [
        small_config(),
        small_config(algorithm={"alpha": 0.2, "gamma": 0.0}),
        small_config(algorithm={"alpha": {"cosine": {"start": 0.1, "steps": 20}}}),
        small_config(problem={"beta": 0.0}),
        small_config(problem={"partition": "iid"}),
        small_config(problem={"partition_seed": 3, "weighting": "samples"}),
        small_config(run={"seeds": [4, 5]}),
    ]
    assert compatible(same) == [list(range(len(same)))]
    others = [
        small_config(algorithm={"momentum": "nesterov"}),
        small_config(algorithm={"start": "local"}),
        small_config(problem={"regularizer": "mcp"}),
        small_config(problem={"clients": 5}),
        small_config(problem={"dataset": "digits"}),
        small_config(problem={"holdout": 0.2}),
        small_config(problem={"holdout": 0.2, "partition_seed": 1}),
        small_config(network={"topology": "complete"}),
        small_config(run={"period": 2}),
        small_config(run={"batch_size": 5}),
        small_config(run={"steps": 21}),
        small_config(run={"evaluate_every": 8}),
        small_config(run={"evaluate_from": 1}),
        small_config(run={"dtype": "float64"}),
        small_config(metrics={"costly_every": 0}),
        small_config(metrics={"smoothness": "measure"}),
        small_config(metrics={"smoothness": "measure"}),
    ]
    groups = compatible([*others, *others[:2]])
    assert groups == [[0, 17], [1, 18], *([i] for i in range(2, len(others) - 2)), [15, 16]]
    assert compatible([same[0], others[0], same[1]]) == [[0, 2], [1]]
    assert compatible([]) == []


def test_hyper_parameters_that_are_not_numbers_separate_cells() -> None:
    """`None` and a number, or a word and a number, are different steps."""
    names = [{"name": "dsmt", "chebyshev": False}, {"name": "dsmt", "chebyshev": False, "b": 0.5}]
    table = {**SMALL, "problem": {**SMALL["problem"], "beta": 0.0}}
    assert compatible([resolve(parse({**table, "algorithm": algorithm})) for algorithm in names]) == [[0], [1]]
    keeps = [{"name": "cdproxsgt", "keep": keep} for keep in (0.3, 0.5)]
    assert compatible([resolve(parse({**SMALL, "algorithm": algorithm})) for algorithm in keeps]) == [[0], [1]]


def test_every_registered_method_has_a_row_parameter() -> None:
    """So that cells of every method can share a simulator."""
    assert all(row_parameters(method_class(name)) for name in ALGORITHMS)


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["estimate", "device", "rows"])
def test_cells_that_do_not_fit_run_in_smaller_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """By an estimate, by the device's error during a run, or by the number of rows that pays off on a CPU."""
    trials: list[int] = []

    class OutOfMemory(Callback):
        def on_checkpoint(self, loop: Loop) -> None:
            if limit == "device" and loop.t > 5 and len(loop.engine.problem.trials) > 4:
                raise torch.OutOfMemoryError

    if limit == "estimate":
        monkeypatch.setattr("depositum.runs.execution._fits", lambda problem, _: len(problem.trials) <= 4)
    if limit == "rows":
        monkeypatch.setattr("depositum.runs.execution.CPU_ROWS", 16)
    lines: list[str] = []
    results = execute_all(
        small_sweep(),
        run_folders(tmp_path, 4),
        callbacks=[OutOfMemory()],
        say=lines.append,
        on_loop=lambda loop: trials.append(len(loop.engine.problem.trials)),
    )
    expected = {"estimate": [4, 1 + 3], "device": [8, 4, 4], "rows": [4, 4]}
    assert trials == expected[limit]
    assert ("4 runs at once do not fit in memory; running 2 and 2 instead" in lines) == (limit != "rows")
    for one, other in zip(results, execute_all(small_sweep(), run_folders(tmp_path, 4, "at-once")), strict=True):
        assert_same_results(one, other, "float32")


# Invalid input


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
def test_an_invalid_cell_is_rejected_like_a_run_alone(tmp_path: Path, bad: dict[str, Any]) -> None:
    """With the same error, and before anything of any cell is written."""
    good = {section: dict(keys) for section, keys in bad.items()}
    for section, key in (("problem", "partition"), ("problem", "beta"), ("algorithm", "gamma")):
        good.get(section, {}).pop(key, None)
    with pytest.raises(DepositumError) as alone:
        execute(small_config(**bad), tmp_path / "alone")
    with pytest.raises(DepositumError) as among:
        execute_all([small_config(**good), small_config(**bad)], run_folders(tmp_path, 2))
    assert str(among.value) == str(alone.value)
    assert not any(folder.exists() for folder in run_folders(tmp_path, 2))


def test_folders_of_cells_are_checked_before_anything_is_written(tmp_path: Path) -> None:
    """One folder for two cells, or one that contains another run."""
    configs = small_sweep()[:2]
    with pytest.raises(RunError, match="same folder"):
        execute_all(configs, [tmp_path / "a", tmp_path / "a"])
    execute(configs[0], tmp_path / "b")
    before = files(tmp_path)
    with pytest.raises(RunError, match="holds another run"):
        execute_all(configs, [tmp_path / "c", tmp_path / "b"])
    assert files(tmp_path) == before
