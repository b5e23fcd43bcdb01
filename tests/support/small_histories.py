"""Synthetic histories with values that are easy to predict."""

import pandas as pd

from depositum.metrics import COLUMNS
from depositum.report.curves import PANELS


def history(seeds: int = 3, points: int = 5, scale: float = 1.0) -> pd.DataFrame:
    """A history in which every measure (except counters) is `scale`·(1 + seed)·(1 + iteration).

    The test loss is empty: it is shown only where another measure is missing.
    """
    rows = [
        {
            "seed": s,
            "iteration": 10 * t,
            "phases": t,
            "bytes_sent": 100.0 * t,
            "seconds": 0.1 * t,
            "gradient_evaluations": t,
        }
        | {name: scale * (1 + s) * (1 + 10 * t) for name, *_ in PANELS if name != "test_loss"}
        for t in range(points)
        for s in range(seeds)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))
