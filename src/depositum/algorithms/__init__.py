"""The methods: one file per family, pure steps on rows, each opening with the equations it implements."""

from depositum.algorithms.base import ALGORITHMS, About, Algorithm, Mix, Oracle, RoundBased, State, algorithm
from depositum.algorithms.depositum import Depositum, DepositumState
from depositum.algorithms.rounds import repeated
from depositum.algorithms.schedules import SCHEDULES, Constant, Cosine, Power, Schedule, Step, Stepsize, as_schedule

__all__ = [
    "ALGORITHMS",
    "SCHEDULES",
    "About",
    "Algorithm",
    "Constant",
    "Cosine",
    "Depositum",
    "DepositumState",
    "Mix",
    "Oracle",
    "Power",
    "RoundBased",
    "Schedule",
    "State",
    "Step",
    "Stepsize",
    "algorithm",
    "as_schedule",
    "repeated",
]
