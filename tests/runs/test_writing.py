"""The writer of a run's folder, in a loop of that run alone or of several runs."""

import csv
from pathlib import Path

import torch

from depositum.engines import Divergence, Loop
from depositum.metrics import History
from depositum.runs import RunFolder, build_engine, checkpoint
from depositum.runs.execution import make_loop
from depositum.runs.resolved import ResolvedConfig
from depositum.runs.writing import RunWriter
from tests.support.small_runs import files
from tests.support.small_sweeps import small_config


def run_with_writers(specs: list[ResolvedConfig], writers: list[RunWriter], steps: int | None = None) -> Loop:
    """One loop of all configurations, with a writer for each."""
    for spec, writer in zip(specs, writers, strict=True):
        writer.folder.begin(spec, None)
    loop = make_loop(specs[0], build_engine(specs), None, History(), writers)
    loop.run(steps)
    return loop


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [{key: value for key, value in row.items() if key != "seconds"} for row in csv.DictReader(file)]


def two_configs() -> list[ResolvedConfig]:
    """Two runs with a seed in common: labels 0 and 1 are seeds 0 and 3, label 2 is seed 3."""
    run = {"dtype": "float64", "steps": 8}
    return [
        small_config(run={**run, "seeds": [0, 3]}),
        small_config(algorithm={"alpha": 0.03}, run={**run, "seeds": [3]}),
    ]


def test_the_writer_of_a_single_run_uses_the_loops_snapshot(tmp_path: Path) -> None:
    """Labels are seeds, so nothing is copied."""
    spec = two_configs()[0]
    writer = RunWriter(RunFolder(tmp_path / "run"), {0: 0, 3: 3})
    loop = run_with_writers([spec], [writer])
    assert writer.snapshot is loop.snapshot
    saved = checkpoint.read(tmp_path / "run" / checkpoint.CURRENT)
    assert (saved.seeds, saved.t) == ((0, 3), 8)
    assert all(torch.equal(saved.tensors[name], tensor) for name, tensor in loop.snapshot.tensors.items())
    assert [record["seed"] for record in writer.records] == [0, 3] * 3
    assert [row["seed"] for row in table(tmp_path / "run" / "history.csv")] == ["0", "3"] * 3
    assert {"model.safetensors", "model.seed-3.safetensors"} <= set(files(tmp_path / "run"))


def test_the_writers_of_a_sweep_map_labels_to_the_seeds_of_their_runs(tmp_path: Path) -> None:
    """Each folder has the rows, records and trace of its own trials, by seed, as the run alone has them."""
    specs = two_configs()
    names, seeds = ("first", "second"), ({0: 0, 1: 3}, {2: 3})
    writers = [RunWriter(RunFolder(tmp_path / name), own) for name, own in zip(names, seeds, strict=True)]
    loop = run_with_writers(specs, writers)
    assert loop.snapshot.seeds == (0, 1, 2)
    for spec, name, own, writer in zip(specs, names, seeds, writers, strict=True):
        alone = RunWriter(RunFolder(tmp_path / f"{name}-alone"), {seed: seed for seed in own.values()})
        run_with_writers([spec], [alone])
        saved = checkpoint.read(tmp_path / name / checkpoint.CURRENT)
        assert saved.seeds == writer.snapshot.seeds == tuple(own.values())
        for key, tensor in loop.snapshot.rows_of(list(own)).items():
            assert torch.equal(saved.tensors[key], tensor), key
            torch.testing.assert_close(tensor, alone.snapshot.tensors[key], rtol=1e-10, atol=1e-12)
        assert [record["trial"] for record in writer.records] == list(own) * 3
        for file in ("history.csv", "consensus.csv"):
            found, expected = (table(tmp_path / folder / file) for folder in (name, f"{name}-alone"))
            columns = ("seed", "iteration", "phases")
            assert [[row.get(c) for c in columns] for row in found] == [
                [row.get(c) for c in columns] for row in expected
            ]
        assert set(files(tmp_path / name)) == set(files(tmp_path / f"{name}-alone"))


def test_a_writer_reports_the_divergence_of_its_own_trials_by_seed(tmp_path: Path) -> None:
    """A run whose trials have all diverged is written at once; the other run is not concerned."""
    specs = two_configs()
    first, second = (RunWriter(RunFolder(tmp_path / name), own) for name, own in (("a", {0: 0, 1: 3}), ("b", {2: 3})))
    loop = run_with_writers(specs, [first, second], steps=4)
    before = files(tmp_path / "a")
    for writer in (first, second):
        writer.on_divergence(loop, Divergence(2, 4, 1, "y"))
    assert files(tmp_path / "a") == before
    assert (first.snapshot.diverged, first.snapshot.live) == ({}, [0, 3])
    assert (second.snapshot.diverged, second.snapshot.live) == ({3: Divergence(3, 4, 1, "y")}, [])
    assert checkpoint.read(tmp_path / "b" / checkpoint.CURRENT).diverged == second.snapshot.diverged
    second.on_checkpoint(loop)
    assert second.snapshot.diverged == {3: Divergence(3, 4, 1, "y")}, "a run that has ended is not written again"


def test_a_writer_without_its_end_writes_neither_last_state_nor_models(tmp_path: Path) -> None:
    """The checkpoint before the end, and the history up to it, are written as always."""
    spec = two_configs()[0]
    writer = RunWriter(RunFolder(tmp_path / "run"), {0: 0, 3: 3}, keep_end=False)
    run_with_writers([spec], [writer])
    assert checkpoint.read(tmp_path / "run" / checkpoint.CURRENT).t == 6
    assert [row["iteration"] for row in table(tmp_path / "run" / "history.csv")] == ["0", "0", "4", "4", "8", "8"]
    assert writer.snapshot.t == 8
