"""Cells that are stopped, killed, extended or diverge: each ends as a run alone does."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from depositum.engines import Callback, Divergence, Loop
from depositum.runs import checkpoint, execute, execute_all
from tests.support.small_runs import StopAt, files, outcome
from tests.support.small_sweeps import assert_same_results, run_folders, small_config, small_sweep

# Stopped, killed, resumed


@pytest.mark.parametrize("t", [2, 6, 13])
def test_stopped_and_resumed_equals_never_stopped(tmp_path: Path, t: int) -> None:
    """To the byte, as for a run alone."""
    said: list[str] = []
    stopped = execute_all(small_sweep(), run_folders(tmp_path, 4), callbacks=[StopAt(t)])
    assert [(result.finished, result.snapshot.t) for result in stopped] == [(False, t)] * 4
    resumed = execute_all(small_sweep(), run_folders(tmp_path, 4), say=said.append)
    assert said == [f"{folder}: resuming from iteration {t}" for folder in run_folders(tmp_path, 4)]
    for one, other in zip(resumed, execute_all(small_sweep(), run_folders(tmp_path, 4, "whole")), strict=True):
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
        execute_all(small_sweep(dtype="float64"), run_folders(tmp_path, 4))
    monkeypatch.setattr(checkpoint, "write", real)
    loops: list[Loop] = []
    resumed = execute_all(small_sweep(dtype="float64"), run_folders(tmp_path, 4), on_loop=loops.append)
    assert len(loops) == (2 if writes < 4 else 1)
    for one, other in zip(
        resumed, execute_all(small_sweep(dtype="float64"), run_folders(tmp_path, 4, "whole")), strict=True
    ):
        assert_same_results(one, other)
        if len(loops) == 1:
            assert outcome(one.folder) == outcome(other.folder)


KILLED = """
import json, pathlib, sys, time
from depositum.engines import Callback
from depositum.runs import execute_all, parse, resolve

class Slow(Callback):
    def on_step(self, loop):
        time.sleep(0.02)

configs = [resolve(parse(table)) for table in json.loads(sys.argv[1])]
execute_all(configs, [pathlib.Path(folder) for folder in sys.argv[2:]], callbacks=[Slow()])
"""


@pytest.mark.slow
def test_kill_9(tmp_path: Path) -> None:
    """A process that dies at any moment leaves folders that all go on to the same end."""
    configs, folders = small_sweep(dtype="float64", steps=60), run_folders(tmp_path, 4)
    tables = json.dumps([chosen.config.model_dump(exclude_none=True) for chosen in configs])
    process = subprocess.Popen([sys.executable, "-c", KILLED, tables, *map(str, folders)], env={**os.environ})
    try:
        while not all((folder / checkpoint.PREVIOUS).exists() for folder in folders):
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not any(checkpoint.iteration(folder / checkpoint.PREVIOUS) >= 54 for folder in folders)
    resumed = execute_all(configs, folders)
    for one, other in zip(resumed, execute_all(configs, run_folders(tmp_path, 4, "whole")), strict=True):
        assert outcome(one.folder) == outcome(other.folder)


def test_cells_go_on_alone_and_runs_go_on_as_cells(tmp_path: Path) -> None:
    """A cell's folder is a run's folder, both ways."""
    configs = small_sweep(dtype="float64")
    whole = execute_all(configs, run_folders(tmp_path, 4, "whole"))
    execute_all(configs, run_folders(tmp_path, 4), callbacks=[StopAt(9)])
    for chosen, folder, other in zip(configs, run_folders(tmp_path, 4), whole, strict=True):
        assert_same_results(execute(chosen, folder), other)
    for chosen, folder in zip(configs, run_folders(tmp_path, 4, "run"), strict=True):
        execute(chosen, folder, callbacks=[StopAt(9)])
    loops: list[Loop] = []
    for one, other in zip(
        execute_all(configs, run_folders(tmp_path, 4, "run"), on_loop=loops.append), whole, strict=True
    ):
        assert_same_results(one, other)
    assert len(loops) == 1


def test_what_is_finished_is_left_alone(tmp_path: Path) -> None:
    """Not a byte of it changes; what is left over alone is run alone, and the results are in the order asked for."""
    configs, folders = small_sweep(), run_folders(tmp_path, 4)
    for place in (0, 1, 3):
        execute(configs[place], folders[place])
    before = [files(folders[place]) for place in (0, 1, 3)]
    said: list[str] = []
    loops: list[Loop] = []
    results = execute_all(configs, folders, say=said.append, on_loop=loops.append)
    assert said == [f"{folders[place]}: nothing to do, 20 iterations are done" for place in (0, 1, 3)]
    assert [files(folders[place]) for place in (0, 1, 3)] == before
    assert [len(loop.engine.problem.trials) for loop in loops] == [1]
    assert [result.folder for result in results] == folders
    assert all(result.finished for result in results)
    assert [len(result.history.records) for result in results] == [12, 12, 6, 18]


def test_extended(tmp_path: Path) -> None:
    """More steps, for all cells at once."""
    execute_all(small_sweep(steps=10), run_folders(tmp_path, 4))
    longer = execute_all(small_sweep(), run_folders(tmp_path, 4))
    for one, other in zip(longer, execute_all(small_sweep(), run_folders(tmp_path, 4, "whole")), strict=True):
        assert outcome(one.folder) == outcome(other.folder)


def test_once_asked_to_stop_later_groups_stop_too(tmp_path: Path) -> None:
    """A person who stops a sweep does not wait for the rest of it."""
    configs = [*small_sweep(), *small_sweep(period=2)]
    results = execute_all(configs, run_folders(tmp_path, 8), callbacks=[StopAt(5)])
    assert [result.snapshot.t for result in results] == [5] * 4 + [0] * 4
    assert not any(result.finished for result in results)
    assert all(result.finished for result in execute_all(configs, run_folders(tmp_path, 8)))


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
    configs = [small_config(algorithm={"alpha": alpha}, run=run) for alpha in (0.1, 1.7e308, 0.05)]
    told = Told()
    results = execute_all(configs, run_folders(tmp_path, 3), callbacks=[told])
    assert [{d.seed for d in result.diverged} for result in results] == [set(), {0, 3}, set()]
    assert all(result.finished for result in results)
    for one, chosen, folder in zip(results, configs, run_folders(tmp_path, 3, "alone"), strict=True):
        alone = execute(chosen, folder)
        assert_same_results(one, alone)
        assert (one.folder / "consensus.csv").read_text().count("\n") == (folder / "consensus.csv").read_text().count(
            "\n"
        )
    assert told.traced == {0, 1, 4, 5}, "trials of several runs are known by their labels"
    assert told.seeds[0] == [0, 3] * 3
    assert told.seeds[-1] == [0, 3] * 2
    assert [d._replace(seed=(0, 3)[d.seed - 2]) for d in told.diverged] == results[1].diverged
    said: list[str] = []
    again = execute_all(configs, run_folders(tmp_path, 3), say=said.append)
    assert said[1].endswith("nothing to do, every seed has diverged")
    assert again[1].diverged == results[1].diverged


def test_a_seed_of_a_cell_that_diverges_stops_alone(tmp_path: Path) -> None:
    """The cell's other seed goes on, is resumed without it, and its own last finite rows are kept."""
    (tmp_path / "own.py").write_text(HALF)
    model = {"model": "own:half", "partition": "iid", "regularizer": "zero", "loss": "cross-entropy"}
    configs = [
        small_config(
            tmp_path,
            problem={**model, "beta": 0.0},
            algorithm={"alpha": alpha},
            run={"dtype": "float64", "seeds": [0, 1]},
        )
        for alpha in (1e5, 1e-9)
    ]
    alone = [execute(chosen, folder) for chosen, folder in zip(configs, run_folders(tmp_path, 2, "alone"), strict=True)]
    assert [len(result.diverged) for result in alone] == [1, 0]
    whole = execute_all(configs, run_folders(tmp_path, 2))
    execute_all(configs, run_folders(tmp_path, 2, "stopped"), callbacks=[StopAt(13)])
    resumed = execute_all(configs, run_folders(tmp_path, 2, "stopped"))
    for one, other, again in zip(whole, alone, resumed, strict=True):
        assert_same_results(one, other)
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
