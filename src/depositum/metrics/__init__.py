"""The paper's measures: what each is, and when it is recorded."""

from depositum.metrics.evaluation import (
    CHEAP,
    COSTLY,
    TRAINING,
    Evaluations,
    MetricSettings,
    cheap,
    costly,
    proximal_gradient_mapping,
    record,
)
from depositum.metrics.history import COLUMNS, COSTS, History

__all__ = [
    "CHEAP",
    "COLUMNS",
    "COSTLY",
    "COSTS",
    "TRAINING",
    "Evaluations",
    "History",
    "MetricSettings",
    "cheap",
    "costly",
    "proximal_gradient_mapping",
    "record",
]
