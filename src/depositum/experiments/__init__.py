"""The paper's experiments as data (TOML files), what runs them, and the figures, tables and verdicts made from them."""

from depositum.experiments.definition import Experiment, experiment_names, load_experiment
from depositum.experiments.plan import Plan, make_plan
from depositum.experiments.reproduction_page import reproduction_page
from depositum.experiments.results_folder import redraw, write_results
from depositum.experiments.runner import SweepObserver, SweepStopped, run_experiment
from depositum.experiments.sweep import SweepOptions

__all__ = [
    "Experiment",
    "Plan",
    "SweepObserver",
    "SweepOptions",
    "SweepStopped",
    "experiment_names",
    "load_experiment",
    "make_plan",
    "redraw",
    "reproduction_page",
    "run_experiment",
    "write_results",
]
