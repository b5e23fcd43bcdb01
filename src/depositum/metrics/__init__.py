"""The paper's measures: what each is, and when it is recorded."""

from depositum.metrics.ended_worse import ended_worse
from depositum.metrics.functions import MetricFunction, dry_run, evaluate_functions
from depositum.metrics.history import COLUMNS, COSTS, History, user_columns
from depositum.metrics.measures import (
    CHEAP,
    COSTLY,
    OVERALL,
    OWN,
    PERPLEXITY,
    TRAINING,
    Average,
    Sharing,
    as_records,
    averaged,
    cheap,
    costly,
    mean_buffers,
    mean_row,
    own,
    proximal_gradient_mapping,
    with_perplexities,
)
from depositum.metrics.per_client import client_records, per_client
from depositum.metrics.reduction import SINGLE_PROCESS, Reduction, SingleProcess
from depositum.metrics.settings import NOT_AMONG_PROCESSES, Evaluations, MetricSettings

__all__ = [
    "CHEAP",
    "COLUMNS",
    "COSTLY",
    "COSTS",
    "NOT_AMONG_PROCESSES",
    "OVERALL",
    "OWN",
    "PERPLEXITY",
    "SINGLE_PROCESS",
    "TRAINING",
    "Average",
    "Evaluations",
    "History",
    "MetricFunction",
    "MetricSettings",
    "Reduction",
    "Sharing",
    "SingleProcess",
    "as_records",
    "averaged",
    "cheap",
    "client_records",
    "costly",
    "dry_run",
    "ended_worse",
    "evaluate_functions",
    "mean_buffers",
    "mean_row",
    "own",
    "per_client",
    "proximal_gradient_mapping",
    "user_columns",
    "with_perplexities",
]
