"""Cells that are stopped, killed or extended, or that diverge: each ends as a run alone does."""

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


@pytest.mark.slow
@pytest.mark.parametrize("t", [2, 6, 13])
def test_a_stopped_sweep_resumes_to_the_same_bytes(tmp_path: Path, t: int) -> None:
    lines: list[str] = []
    stopped = execute_all(small_sweep(), run_folders(tmp_path, 4), callbacks=[StopAt(t)])
    assert [(result.finished, result.snapshot.t) for result in stopped] == [(False, t)] * 4
    resumed = execute_all(small_sweep(), run_folders(tmp_path, 4), say=lines.append)
    assert lines == [f"{folder}: resuming from iteration {t}" for folder in run_folders(tmp_path, 4)]
    for one, other in zip(resumed, execute_all(small_sweep(), run_folders(tmp_path, 4, "uninterrupted")), strict=True):
        assert one.finished
        assert outcome(one.folder) == outcome(other.folder)


@pytest.mark.slow
@pytest.mark.parametrize("writes", [1, 6, 7])
def test_a_sweep_killed_between_checkpoints_of_one_iteration_resumes_in_one_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """Cells that are one checkpoint ahead of the others go back to the one before, so that all resume in one group.

    At the first checkpoint there is none before: cells that are ahead stay ahead, in a separate group.
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
        resumed, execute_all(small_sweep(dtype="float64"), run_folders(tmp_path, 4, "uninterrupted")), strict=True
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
def test_a_killed_sweep_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    """A real process, killed by SIGKILL at an arbitrary moment."""
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
    assert not any(checkpoint.read(folder / checkpoint.PREVIOUS).t >= 54 for folder in folders)
    resumed = execute_all(configs, folders)
    for one, other in zip(resumed, execute_all(configs, run_folders(tmp_path, 4, "uninterrupted")), strict=True):
        assert outcome(one.folder) == outcome(other.folder)


@pytest.mark.slow
def test_a_cell_can_resume_as_a_run_alone_and_conversely(tmp_path: Path) -> None:
    """The folder of a cell is that of a run."""
    configs = small_sweep(dtype="float64")
    uninterrupted = execute_all(configs, run_folders(tmp_path, 4, "uninterrupted"))
    execute_all(configs, run_folders(tmp_path, 4), callbacks=[StopAt(9)])
    for chosen, folder, other in zip(configs, run_folders(tmp_path, 4), uninterrupted, strict=True):
        assert_same_results(execute(chosen, folder), other)
    for chosen, folder in zip(configs, run_folders(tmp_path, 4, "run"), strict=True):
        execute(chosen, folder, callbacks=[StopAt(9)])
    loops: list[Loop] = []
    for one, other in zip(
        execute_all(configs, run_folders(tmp_path, 4, "run"), on_loop=loops.append), uninterrupted, strict=True
    ):
        assert_same_results(one, other)
    assert len(loops) == 1


@pytest.mark.slow
def test_finished_cells_are_unchanged(tmp_path: Path) -> None:
    """A single unfinished cell runs alone, and the results are in the order of the configurations."""
    configs, folders = small_sweep(), run_folders(tmp_path, 4)
    for index in (0, 1, 3):
        execute(configs[index], folders[index])
    before = [files(folders[index]) for index in (0, 1, 3)]
    lines: list[str] = []
    loops: list[Loop] = []
    results = execute_all(configs, folders, say=lines.append, on_loop=loops.append)
    assert lines == [f"{folders[index]}: nothing to do, 20 iterations are done" for index in (0, 1, 3)]
    assert [files(folders[index]) for index in (0, 1, 3)] == before
    assert [len(loop.engine.problem.trials) for loop in loops] == [1]
    assert [result.folder for result in results] == folders
    assert all(result.finished for result in results)
    assert [len(result.history.records) for result in results] == [12, 12, 6, 18]


@pytest.mark.slow
def test_an_extended_sweep_equals_one_that_had_its_length_from_the_start(tmp_path: Path) -> None:
    execute_all(small_sweep(steps=10), run_folders(tmp_path, 4))
    longer = execute_all(small_sweep(), run_folders(tmp_path, 4))
    for one, other in zip(longer, execute_all(small_sweep(), run_folders(tmp_path, 4, "uninterrupted")), strict=True):
        assert outcome(one.folder) == outcome(other.folder)


@pytest.mark.slow
def test_a_request_to_stop_stops_later_groups_too(tmp_path: Path) -> None:
    """The user who stops a sweep does not wait for its other groups."""
    configs = [*small_sweep(), *small_sweep(period=2)]
    results = execute_all(configs, run_folders(tmp_path, 8), callbacks=[StopAt(5)])
    assert [result.snapshot.t for result in results] == [5] * 4 + [0] * 4
    assert not any(result.finished for result in results)
    assert all(result.finished for result in execute_all(configs, run_folders(tmp_path, 8)))


# Divergence


class Recorder(Callback):
    """Records what a user-defined callback receives."""

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


@pytest.mark.slow
def test_a_diverged_cell_stops_and_the_others_continue(tmp_path: Path) -> None:
    """Its result reports it, and its files are those of a run alone."""
    run = {"dtype": "float64", "seeds": [0, 3]}
    configs = [small_config(algorithm={"alpha": alpha}, run=run) for alpha in (0.1, 1.7e308, 0.05)]
    recorder = Recorder()
    results = execute_all(configs, run_folders(tmp_path, 3), callbacks=[recorder])
    assert [{d.seed for d in result.diverged} for result in results] == [set(), {0, 3}, set()]
    assert all(result.finished for result in results)
    for one, chosen, folder in zip(results, configs, run_folders(tmp_path, 3, "alone"), strict=True):
        alone = execute(chosen, folder)
        assert_same_results(one, alone)
        assert (one.folder / "consensus.csv").read_text().count("\n") == (folder / "consensus.csv").read_text().count(
            "\n"
        )
    assert recorder.traced == {0, 1, 4, 5}, "trials of several runs are known by their labels"
    assert recorder.seeds[0] == [0, 3] * 3
    assert recorder.seeds[-1] == [0, 3] * 2
    assert [d._replace(seed=(0, 3)[d.seed - 2]) for d in recorder.diverged] == results[1].diverged
    lines: list[str] = []
    again = execute_all(configs, run_folders(tmp_path, 3), say=lines.append)
    assert lines[1].endswith("nothing to do, every seed has diverged")
    assert again[1].diverged == results[1].diverged


@pytest.mark.slow
def test_a_diverged_seed_of_a_cell_stops_and_the_others_continue(tmp_path: Path) -> None:
    """The cell's other seed continues and resumes without it, and its own last finite rows are saved."""
    (tmp_path / "quartic.py").write_text(QUARTIC)
    model = {"model": "quartic:quartic", "partition": "iid", "regularizer": "zero", "loss": "cross-entropy"}
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
    uninterrupted = execute_all(configs, run_folders(tmp_path, 2))
    execute_all(configs, run_folders(tmp_path, 2, "stopped"), callbacks=[StopAt(13)])
    resumed = execute_all(configs, run_folders(tmp_path, 2, "stopped"))
    for one, other, again in zip(uninterrupted, alone, resumed, strict=True):
        assert_same_results(one, other)
        assert outcome(again.folder) == outcome(one.folder)


#: Weights that start at 0 or at 20, depending on the seed; from 20, their fourth power diverges for large stepsizes.
QUARTIC = """
import torch
from torch import nn

class Quartic(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        far = torch.rand(1).item() < 0.5
        self.w = nn.Parameter(torch.full((features, classes), 20.0 if far else 0.0))

    def forward(self, x):
        return x @ self.w**4

def quartic(shape, classes):
    return Quartic(shape[0], classes)
"""
