"""One CSV file per client, each read only by the process that holds the client."""

import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import depositum as dp
from tests.support.rank_processes import launch
from tests.support.rank_runs import run_with_arguments
from tests.support.small_runs import train, write_config

pytestmark = pytest.mark.slow

TABLE = {"path": "data/{client}.csv", "target": "outcome"}


def write_client(folder: Path, client: int, outcomes: tuple[str, ...]) -> None:
    rng = np.random.default_rng(client)
    frame = pd.DataFrame(rng.normal(size=(12, 3)), columns=["a", "b", "c"])
    (folder / "data").mkdir(parents=True, exist_ok=True)
    frame.assign(outcome=rng.choice(outcomes, 12)).to_csv(folder / "data" / f"{client}.csv", index=False)


def start(tmp_path: Path, outcomes: list[tuple[str, ...]], **arguments: object):
    """The same files in one folder for a simulator, and each rank's in its own."""
    table = {**TABLE, **arguments}
    settings = {
        "problem": {"dataset": {"table": table}, "partition": "natural", "model": "linear", "clients": 2},
        "run": {"dtype": "float64"},
    }
    own = []
    for rank, values in enumerate(outcomes):
        write_client(tmp_path / "all", rank, values)
        config = write_config(tmp_path / str(rank) / "c.toml", **settings)
        (config.parent / "data").mkdir()
        shutil.copy(tmp_path / "all" / "data" / f"{rank}.csv", config.parent / "data")
        own.append([str(config)])
    results = launch(run_with_arguments, 2, ["--out", str(tmp_path / "out")], per_rank=own)
    return results, write_config(tmp_path / "all" / "c.toml", **settings)


@pytest.mark.parametrize(
    ("outcomes", "arguments"),
    [
        ([("0", "2"), ("0", "1")], {}),
        ([("well",), ("well", "ill")], {"classes": ["well", "ill"]}),
        ([("well", "ill"), ("ill", "well")], {}),
    ],
)
def test_processes_read_their_own_tables(tmp_path: Path, outcomes, arguments) -> None:
    """The result is that of a simulator with all files; fails if a process numbers the classes of its own file."""
    results, complete = start(tmp_path, outcomes, **arguments)
    assert [result.code for result in results] == [0, 0], results
    train(complete, tmp_path / "simulated")
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in ("out", "simulated"))
    for key in b:
        assert torch.allclose(a[key], b[key], rtol=1e-10, atol=1e-12), key


def test_different_names_of_classes_are_refused_and_not_guessed(tmp_path: Path) -> None:
    """'well' alone would be class 0 of one process, and class 1 of the other."""
    results, _ = start(tmp_path, [("ill", "well"), ("well",)])
    assert [result.code for result in results] == [2, 2]
    assert "the columns, their categories or the classes on rank 1" in results[1].err
    assert "list all classes in 'classes'" in results[1].err


def fit_on_frames(outcomes: list[str]) -> str:
    """`fit` in one of two processes, each with one client's table; the error's text, or nothing."""
    rank = int(os.environ["RANK"])
    frame = pd.DataFrame({"a": np.arange(6.0), "outcome": [outcomes[rank], "well"] * 3})
    processes = dp.ProcessSettings(timeout=20.0)
    model = torch.nn.Linear(1, 2)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    try:
        dp.fit(model, [frame], target="outcome", steps=2, device="cpu", progress=False, processes=processes)
    except dp.DepositumError as error:
        return str(error)
    return ""


def test_fit_compares_the_classes_of_frames() -> None:
    """'ill' and 'well' on both ranks is trained; 'dead' and 'well' on one would be other classes of the same number."""
    assert launch(fit_on_frames, 2, ["ill", "ill"]) == ["", ""]
    _, second = launch(fit_on_frames, 2, ["ill", "dead"])
    assert second.startswith("clients: the columns, their categories or the classes on rank 1")
