"""Small sweeps, and what must be the same in two runs of one configuration."""

import copy
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from depositum.runs import ResolvedConfig, RunResult, parse, resolve
from tests.support.small_runs import SMALL, files

RELATIVE = {"float64": 1e-10, "float32": 1e-5}


def small_config(base: Path | None = None, **changes: dict[str, Any]) -> ResolvedConfig:
    """`SMALL` with some keys of its sections changed, checked and built."""
    table = copy.deepcopy(SMALL)
    table["run"]["backend"] = "vmap"  # chosen by measurement otherwise, and another backend rounds differently
    for section, keys in changes.items():
        table.setdefault(section, {}).update(keys)
    return resolve(parse(table), base)


def small_sweep(**run: Any) -> list[ResolvedConfig]:
    """Four cells that differ in everything that one simulator allows: numbers, β, partition, weighting, seeds."""
    return [
        small_config(run={"seeds": [0, 3], **run}),
        small_config(
            algorithm={"alpha": 0.03}, problem={"beta": 0.0, "weighting": "samples"}, run={"seeds": [0, 3], **run}
        ),
        small_config(
            algorithm={"gamma": 0.9}, problem={"partition": "iid", "partition_seed": 7}, run={"seeds": [5], **run}
        ),
        small_config(problem={"beta": 1e-2}, run={"seeds": [3, 1, 0], **run}),
    ]


def run_folders(folder: Path, count: int, name: str = "cell") -> list[Path]:
    """The paths `folder/name-0`, `folder/name-1`, …"""
    return [folder / f"{name}-{i}" for i in range(count)]


def assert_same_results(one: RunResult, other: RunResult, dtype: str = "float64") -> None:
    """Assert that two runs have the same seeds, states, histories and complete configurations, up to rounding."""
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


def two_cells(**run: Any) -> list[ResolvedConfig]:
    """Two cells that differ in every kind of row parameter: α, γ and β."""
    changed = {"algorithm": {"alpha": 0.03, "gamma": 0.9}, "problem": {"beta": 0.0}}
    return [small_config(run=run), small_config(**changed, run=run)]
