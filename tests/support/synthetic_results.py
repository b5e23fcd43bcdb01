"""Synthetic results of experiments."""

from pathlib import Path
from typing import Any

import pandas as pd

from depositum.experiments.cache import CachedCell
from depositum.experiments.results import CellResult, Results
from depositum.runs import Config, parse

CONFIG = parse({"run": {"steps": 40, "period": 10}, "problem": {"clients": 4}})


def cell_result(
    values: dict[str, Any],
    *,
    diverged: bool = False,
    missing: bool = False,
    config: Config = CONFIG,
    trace: Any = None,
    **labels: str,
) -> CellResult:
    """A cell with two seeds: a measure is one pair of values, or a pair for each of t = 0, 10, …, 40.

    If it diverged, the first seed did, and has no values after t = 20.
    """
    if missing:
        return CellResult(labels, config, None)
    rows = []
    for seed in (0, 1):
        last = 20 if diverged and seed == 0 else 40
        for k, t in enumerate(range(0, last + 10, 10)):
            row: dict[str, Any] = {"seed": seed, "iteration": t, "phases": t / 10}
            for name, given in values.items():
                row[name] = given[k][seed] if isinstance(given[0], (list, tuple)) else given[seed]
            rows.append(row)
    cached = CachedCell(Path(), [0, 1], ["seed 0 diverged: x"] if diverged else [], 1.0, "CPU", {})
    frame = None if trace is None else pd.DataFrame(trace, columns=["seed", "iteration", "consensus_x"])
    return CellResult(labels, config, cached, pd.DataFrame(rows), frame)


def along(*pairs: tuple[float, float], measure: str = "train_loss", **labels: str) -> Results:
    """Cells a, b, c, … of an axis, each with one value per seed."""
    names = ["a", "b", "c", "d", "e"][: len(pairs)]
    return Results(
        [cell_result({measure: pair}, axis=k, **labels) for k, pair in zip(names, pairs, strict=True)], {"axis": names}
    )
