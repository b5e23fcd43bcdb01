"""Model + loss + client data + (h, β): the problem, and the oracle that algorithms see of it."""

from depositum.problem.losses import LOSSES, Loss, as_loss
from depositum.problem.oracle import Batch, Oracle, mean_buffer
from depositum.problem.problem import Problem, Trial, Weighting, from_client_data
from depositum.problem.rows import BatchSize

__all__ = [
    "LOSSES",
    "Batch",
    "BatchSize",
    "Loss",
    "Oracle",
    "Problem",
    "Trial",
    "Weighting",
    "as_loss",
    "from_client_data",
    "mean_buffer",
]
