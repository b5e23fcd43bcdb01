"""The paper's measures: what each is, and when it is recorded."""

from depositum.metrics.evaluation import (
    CHEAP,
    COSTLY,
    NOT_AMONG_PROCESSES,
    OVERALL,
    PERPLEXITY,
    TRAINING,
    Evaluations,
    MetricSettings,
    cheap,
    costly,
    proximal_gradient_mapping,
    record,
    with_perplexities,
)
from depositum.metrics.history import COLUMNS, COSTS, History

__all__ = [
    "CHEAP",
    "COLUMNS",
    "COSTLY",
    "COSTS",
    "NOT_AMONG_PROCESSES",
    "OVERALL",
    "PERPLEXITY",
    "TRAINING",
    "Evaluations",
    "History",
    "MetricSettings",
    "cheap",
    "costly",
    "proximal_gradient_mapping",
    "record",
    "with_perplexities",
]
