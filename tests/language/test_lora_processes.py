"""Language models with one process per organisation: each reads its own file, and the adapters are the simulator's."""

import csv
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")
import torch
from safetensors.torch import load_file

from tests.support.language_models import make_base, records, run_with_changed_base, write_config, write_lines
from tests.support.rank_processes import launch
from tests.support.rank_runs import run
from tests.support.small_runs import train

pytestmark = pytest.mark.slow


def write_client_files(folder: Path) -> None:
    """Three clients of different sizes, and common test data."""
    for client, size in enumerate((5, 8, 6)):
        write_lines(folder / f"{client}.jsonl", records(size, first=20 * client))
    write_lines(folder / "test.jsonl", records(7, first=90))


def perplexities(folder: Path) -> list[dict[str, float]]:
    with (folder / "perplexity.csv").open(newline="") as file:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]


def test_three_processes_equal_a_simulator(tmp_path: Path) -> None:
    """The same adapters, perplexities and measures to rounding, although no process opens another's file.

    Fails if samples, weights or shares of the test data are counted differently in processes.
    """
    base = make_base(tmp_path / "base")
    write_client_files(tmp_path / "data")
    model = {"lora": {"base": str(base), "rank": 2, "client_adapters": True}}
    path = write_config(
        tmp_path / "c.toml",
        base,
        {"file": "data/{client}.jsonl"},
        problem={"model": model},
        network={"topology": "ring"},
    )
    train(path, tmp_path / "simulated")
    results = launch(run, 3, str(path), "--out", str(tmp_path / "together"))
    assert [one.code for one in results] == [0, 0, 0], results
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


def test_both_engines_write_the_same_perplexity_columns(tmp_path: Path) -> None:
    """A run that is resumed by the other engine, with a category that is not in the test data, and different lengths.

    Fails if the engines measure different categories, or write values into the wrong columns.
    """
    base = make_base(tmp_path / "base")
    write_client_files(tmp_path / "data")
    long = [{**record, "category": "mine", "response": "yes " * 12} for record in records(4)]
    write_lines(tmp_path / "data" / "1.jsonl", long)
    path = write_config(tmp_path / "c.toml", base, {"file": "data/{client}.jsonl"}, run={"evaluate_every": 1})
    for mixed, steps in (("simulator", 2), ("processes", 4), ("simulator", 6)):
        more = ["--out", str(tmp_path / "mixed"), "--set", f"run.steps={steps}"]
        results = launch(run, 3, str(path), *more) if mixed == "processes" else [run(str(path), *more)]
        assert [one.code for one in results] == [0] * len(results), results
    assert run(str(path), "--out", str(tmp_path / "whole"), "--set", "run.steps=6").code == 0
    for ours, theirs in zip(perplexities(tmp_path / "mixed"), perplexities(tmp_path / "whole"), strict=True):
        assert set(ours) == {"seed", "iteration", "overall", "arithmetic", "naming", "spelling"}
        assert ours == pytest.approx(theirs, rel=1e-4)


def test_different_bases_are_rejected(tmp_path: Path) -> None:
    """Organisations with different weights under the same name would train an adapter that fits none of them."""
    base = make_base(tmp_path / "base")
    write_client_files(tmp_path / "data")
    path = write_config(tmp_path / "c.toml", base, {"file": "data/{client}.jsonl"})
    arguments = [str(path), "--out", str(tmp_path / "out")]
    results = launch(run_with_changed_base, 3, arguments, per_rank=[0.0, 0.0, 1e-3])
    assert all(one.code == 2 for one in results)
    assert "problem.model.lora.base: the weights differ between rank 2" in results[2].err
    assert "rank 2" in results[0].err
    assert not (tmp_path / "out").exists()
