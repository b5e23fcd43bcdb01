"""The paper's experiments as data, what runs them, and what is made of them."""

from depositum.experiments.definition import Experiment, load, names
from depositum.experiments.output import write
from depositum.experiments.page import page
from depositum.experiments.perform import Plan, StoppedError, Watch, perform, plan
from depositum.experiments.sweep import Options

__all__ = [
    "Experiment",
    "Options",
    "Plan",
    "StoppedError",
    "Watch",
    "load",
    "names",
    "page",
    "perform",
    "plan",
    "write",
]
