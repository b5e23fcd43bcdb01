"""Runs: configuration, folder, checkpoints, resumption; many at once, or one process among many."""

from depositum.runs.config import Config
from depositum.runs.config_file import apply_override, from_table, load, parse
from depositum.runs.distributed_run import check_agreement, execute_distributed, join_run
from depositum.runs.execution import RunResult, compatible, execute, execute_all
from depositum.runs.folder import RunFolder
from depositum.runs.problems import build_engine, build_problem
from depositum.runs.resolved import ResolvedConfig, resolve

__all__ = [
    "Config",
    "ResolvedConfig",
    "RunFolder",
    "RunResult",
    "apply_override",
    "build_engine",
    "build_problem",
    "check_agreement",
    "compatible",
    "execute",
    "execute_all",
    "execute_distributed",
    "from_table",
    "join_run",
    "load",
    "parse",
    "resolve",
]
