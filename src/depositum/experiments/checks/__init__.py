"""Checks on results: each can fail, and gives the numbers that decide it.

A check is written `{ name = { argument = … } }`; `measure` is a column of the history (or `consensus_trace`), `at` a
statistic of `results.STATISTICS`. Means are over seeds; deviations are sample standard deviations.
"""

from depositum.experiments.checks import along, pairs, ranges  # each registers its checks
from depositum.experiments.checks.finding import CHECKS, Finding, moments
from depositum.experiments.checks.pairs import difference

__all__ = ["CHECKS", "Finding", "along", "difference", "moments", "pairs", "ranges"]
