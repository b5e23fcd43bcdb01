"""The paper's measures: what each is, and when it is recorded."""

from depositum.metrics.ended_worse import ended_worse
from depositum.metrics.history import COLUMNS, COSTS, History
from depositum.metrics.measures import (
    CHEAP,
    COSTLY,
    OVERALL,
    PERPLEXITY,
    TRAINING,
    Sharing,
    as_records,
    cheap,
    costly,
    mean_buffers,
    mean_row,
    proximal_gradient_mapping,
    with_perplexities,
)
from depositum.metrics.reduction import SINGLE_PROCESS, Reduction, SingleProcess
from depositum.metrics.settings import NOT_AMONG_PROCESSES, Evaluations, MetricSettings

__all__ = [
    "CHEAP",
    "COLUMNS",
    "COSTLY",
    "COSTS",
    "NOT_AMONG_PROCESSES",
    "OVERALL",
    "PERPLEXITY",
    "SINGLE_PROCESS",
    "TRAINING",
    "Evaluations",
    "History",
    "MetricSettings",
    "Reduction",
    "Sharing",
    "SingleProcess",
    "as_records",
    "cheap",
    "costly",
    "ended_worse",
    "mean_buffers",
    "mean_row",
    "proximal_gradient_mapping",
    "with_perplexities",
]
