"""Tuning: a stepsize, and other hyper-parameters, chosen on held-out parts of the clients' training data."""

from depositum.tuning.auto_stepsize import Tuned, automatic, tuned, write_result
from depositum.tuning.candidate_runs import TuningStopped
from depositum.tuning.judging import Candidate, Outcome, choose
from depositum.tuning.tuner import AUTO, tune
from depositum.tuning.tuning_result import TuningResult

__all__ = [
    "AUTO",
    "Candidate",
    "Outcome",
    "Tuned",
    "TuningResult",
    "TuningStopped",
    "automatic",
    "choose",
    "tune",
    "tuned",
    "write_result",
]
