"""A run's folder: configuration, history, checkpoints, resumption."""

from depositum.runs.build import build_problem, build_simulator
from depositum.runs.cells import execute_cells
from depositum.runs.config import Config
from depositum.runs.execute import RunResult, execute
from depositum.runs.folder import RunFolder
from depositum.runs.reading import apply_override, dump, load, parse
from depositum.runs.together import execute_together, meet

__all__ = [
    "Config",
    "RunFolder",
    "RunResult",
    "apply_override",
    "build_problem",
    "build_simulator",
    "dump",
    "execute",
    "execute_cells",
    "execute_together",
    "load",
    "meet",
    "parse",
]
