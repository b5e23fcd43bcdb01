"""One process per organisation: each reads its own file, and all end with the adapters that a simulator gives."""

import csv
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")
import torch
from safetensors.torch import load_file

from tests.support.language_models import make_base, records, run_with_another_base, write_config, write_lines
from tests.support.processes_launch import launch
from tests.support.processes_runs import run
from tests.support.small_runs import train


def own_files(folder: Path) -> None:
    """Three clients of unequal size, and test data that all of them have."""
    for client, size in enumerate((5, 8, 6)):
        write_lines(folder / f"{client}.jsonl", records(size, first=20 * client))
    write_lines(folder / "test.jsonl", records(7, first=90))


def perplexities(folder: Path) -> list[dict[str, float]]:
    with (folder / "perplexity.csv").open(newline="") as file:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]


def test_three_processes_and_a_simulator(tmp_path: Path) -> None:
    """The same adapters, perplexities and measures to rounding, though no process opens another's file.

    Breaks if samples, weights or the test data's shares are counted differently in processes.
    """
    base = make_base(tmp_path / "base")
    own_files(tmp_path / "data")
    model = {"lora": {"base": str(base), "rank": 2, "client_adapters": True}}
    path = write_config(
        tmp_path / "c.toml",
        base,
        {"file": "data/{client}.jsonl"},
        problem={"model": model},
        network={"topology": "ring"},
    )
    train(path, tmp_path / "simulated")
    said = launch(run, 3, str(path), "--out", str(tmp_path / "together"))
    assert [one.code for one in said] == [0, 0, 0], said
    for name in ("adapter", "adapter/clients/0", "adapter/clients/2"):
        ours, theirs = (
            load_file(tmp_path / how / name / "adapter_model.safetensors") for how in ("together", "simulated")
        )
        assert set(ours) == set(theirs)
        for key in ours:
            assert torch.allclose(ours[key], theirs[key], atol=1e-5)
    for ours, theirs in zip(perplexities(tmp_path / "together"), perplexities(tmp_path / "simulated"), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    together, simulated = (
        list(csv.DictReader((tmp_path / how / "history.csv").open(newline=""))) for how in ("together", "simulated")
    )
    for ours, theirs in zip(together, simulated, strict=True):
        for column in ("train_loss", "test_loss", "test_accuracy"):
            assert float(ours[column]) == pytest.approx(float(theirs[column]), rel=1e-5)


def test_perplexities_of_both_engines_stand_in_one_table(tmp_path: Path) -> None:
    """A run that goes on in the other engine, of clients with a category that is not tested and files of other lengths.

    Breaks if the two measure other categories, or write rows under another's columns.
    """
    base = make_base(tmp_path / "base")
    own_files(tmp_path / "data")
    long = [{**record, "category": "mine", "response": "yes " * 12} for record in records(4)]
    write_lines(tmp_path / "data" / "1.jsonl", long)
    path = write_config(tmp_path / "c.toml", base, {"file": "data/{client}.jsonl"}, run={"evaluate_every": 1})
    for mixed, steps in (("simulator", 2), ("processes", 4), ("simulator", 6)):
        more = ["--out", str(tmp_path / "mixed"), "--set", f"run.steps={steps}"]
        said = launch(run, 3, str(path), *more) if mixed == "processes" else [run(str(path), *more)]
        assert [one.code for one in said] == [0] * len(said), said
    assert run(str(path), "--out", str(tmp_path / "whole"), "--set", "run.steps=6").code == 0
    for ours, theirs in zip(perplexities(tmp_path / "mixed"), perplexities(tmp_path / "whole"), strict=True):
        assert set(ours) == {"seed", "iteration", "overall", "arithmetic", "naming", "spelling"}
        assert ours == pytest.approx(theirs, rel=1e-4)


def test_bases_that_differ_are_refused(tmp_path: Path) -> None:
    """Two organisations with other weights under the same name would train an adapter of neither."""
    base = make_base(tmp_path / "base")
    own_files(tmp_path / "data")
    path = write_config(tmp_path / "c.toml", base, {"file": "data/{client}.jsonl"})
    arguments = [str(path), "--out", str(tmp_path / "out")]
    said = launch(run_with_another_base, 3, arguments, per_rank=[0.0, 0.0, 1e-3])
    assert all(one.code == 2 for one in said)
    assert "problem.model.lora.base: the weights on rank 2" in said[2].err
    assert "rank 2" in said[0].err
    assert not (tmp_path / "out").exists()
