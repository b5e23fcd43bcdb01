"""Runs as their folders have them, whatever part of a folder is missing."""

from collections.abc import Callable, Sequence
from pathlib import Path

from depositum.engines import describe_divergences
from depositum.errors import RunError
from depositum.report.compared_runs import ComparedRun
from depositum.runs import checkpoint
from depositum.runs.folder import HISTORY, read_history, read_table


def read_run(name: str, folder: Path, warn: Callable[[str], None] = lambda _: None) -> ComparedRun:
    """A run in a folder, as far as it can be read: its configuration or checkpoint may be missing.

    `warn` is called with one line for each thing that could not be read.
    """
    history = read_history(folder)
    try:
        latest = checkpoint.read_latest(folder)
    except RunError as error:
        warn(f"{error}; whether seeds diverged is not known")
        latest = None
    if latest is not None and latest.problem:
        warn(latest.problem)
    snapshot = None if latest is None else latest.snapshot
    diverged = "" if snapshot is None else describe_divergences([*snapshot.diverged.values()], len(snapshot.seeds))
    return ComparedRun(name, history, read_table(folder), diverged)


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """The folders' names, or their paths if names repeat."""
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def run_folders_in(folder: Path) -> list[Path]:
    """The folder itself if it holds a run; otherwise its subfolders that do, as `compare CONFIG.toml` leaves them."""
    if (folder / HISTORY).exists() or not folder.is_dir():
        return [folder]
    return sorted(path.parent for path in folder.glob(f"*/{HISTORY}"))
