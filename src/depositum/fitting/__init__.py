"""Training from Python: `fit` trains the user's model on the user's data, `load` reads what a run folder holds."""

from depositum.fitting.report_call import write_report
from depositum.fitting.result import FitResult, load
from depositum.fitting.training import fit
from depositum.fitting.tuning_call import tune

__all__ = ["FitResult", "fit", "load", "tune", "write_report"]
