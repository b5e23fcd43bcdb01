"""The problem (model, loss, client data, h and β), and the oracle through which algorithms access it."""

from depositum.problem.lazy_layers import materialized
from depositum.problem.losses import LOSSES, Loss, as_loss
from depositum.problem.oracle import Batch, BatchSize, Oracle, Sampling, mean_buffer
from depositum.problem.problem import Problem, Trial, Weighting, from_client_data

__all__ = [
    "LOSSES",
    "Batch",
    "BatchSize",
    "Loss",
    "Oracle",
    "Problem",
    "Sampling",
    "Trial",
    "Weighting",
    "as_loss",
    "from_client_data",
    "materialized",
    "mean_buffer",
]
