"""Results of experiments that nobody ran, for what is made of them."""

from pathlib import Path
from typing import Any

import pandas as pd

from depositum.experiments.cache import Kept
from depositum.experiments.results import Outcome, Results
from depositum.runs import Config, parse

CONFIG = parse({"run": {"steps": 40, "period": 10}, "problem": {"clients": 4}})


def outcome(
    values: dict[str, Any],
    *,
    diverged: bool = False,
    missing: bool = False,
    config: Config = CONFIG,
    trace: Any = None,
    **labels: str,
) -> Outcome:
    """A cell whose measures are, over t = 0, 10, …, a pair of seeds' values each, or one pair throughout.

    Of one that diverged, the first seed did, and has nothing after t = 20.
    """
    if missing:
        return Outcome(labels, config, None)
    rows = []
    for seed in (0, 1):
        last = 20 if diverged and seed == 0 else 40
        for k, t in enumerate(range(0, last + 10, 10)):
            row: dict[str, Any] = {"seed": seed, "iteration": t, "phases": t / 10}
            for name, given in values.items():
                row[name] = given[k][seed] if isinstance(given[0], (list, tuple)) else given[seed]
            rows.append(row)
    kept = Kept(Path(), [0, 1], ["seed 0 diverged: x"] if diverged else [], 1.0, "CPU", {})
    frame = None if trace is None else pd.DataFrame(trace, columns=["seed", "iteration", "consensus_x"])
    return Outcome(labels, config, kept, pd.DataFrame(rows), frame)


def along(*pairs: tuple[float, float], measure: str = "train_loss", **labels: str) -> Results:
    """Cells a, b, c, … of an axis, each with a final value per seed."""
    names = ["a", "b", "c", "d", "e"][: len(pairs)]
    return Results(
        [outcome({measure: pair}, axis=k, **labels) for k, pair in zip(names, pairs, strict=True)], {"axis": names}
    )
