"""Finished cells, cached by their configuration: `CACHE/HASH/seeds-0-1-2`.

HASH is computed from the complete configuration. A folder is an ordinary run folder until its cell is finished, so that
a stopped sweep resumes from its checkpoints. Then `cell.json` is written, and checkpoints and models are deleted (for a
ResNet-18 they are gigabytes). The hash leaves out what does not change results: the device, the checkpoint interval,
and how the cell is labelled, drawn and judged. Arguments of registered choices (a partition, say) are part of it only
where they are given: whoever changes the default of such an argument increments `RESULTS`.
"""

import hashlib
import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from depositum.errors import RunError
from depositum.metrics import PERPLEXITY
from depositum.models import MODELS
from depositum.problem.precision import resolve
from depositum.provenance import describe_device, versions
from depositum.runs.config import Config
from depositum.runs.execution import RunResult
from depositum.runs.folder import CONSENSUS, PERPLEXITIES, RunFolder
from depositum.runs.resolved import ResolvedConfig

#: Incremented whenever a change of the package changes results: cells that were cached before are then run again.
RESULTS = 1
#: Keys that do not change results; seeds are in the folder's name.
LEFT_OUT = (("run", "device"), ("run", "checkpoint_every"), ("run", "seeds"))
#: Keys that were added after cells had been cached, with the value that those were run with: left out of the hash where
#: they have this value.
ADDED_LATER = {
    ("run", "evaluate_from"): 0,
    ("run", "sampling"): "replacement",
    ("network", "channel"): "exact",
    ("network", "lost"): 0.0,
    ("network", "late"): 0,
    ("algorithm", "server_weights"): "uniform",
}
#: Keys of `[processes]` that were removed after cells had been cached, with the value that those were run with.
REMOVED_LATER = {"send": "float32"}
FINISHED, SPENT = "cell.json", "seconds.txt"


class CellConfig:
    """The checked configuration of a cell, with the hash that it is cached under (computed once)."""

    def __init__(self, spec: ResolvedConfig) -> None:
        self.spec, self.config = spec, spec.config

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits, equal for configurations with equal results, whatever their seeds."""
        table = {
            section: {
                k: v for k, v in keys.items() if (section, k) not in LEFT_OUT and ADDED_LATER.get((section, k)) != v
            }
            for section, keys in self.spec.table.items()
        }
        table["processes"] |= REMOVED_LATER
        text = json.dumps({"results": RESULTS, "config": table}, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def folder(self, cache: Path) -> Path:
        """The folder of the cell."""
        seeds = "-".join(map(str, self.config.run.seeds))
        if len(seeds) > 100:
            seeds = f"{len(self.config.run.seeds)}-{hashlib.sha256(seeds.encode()).hexdigest()[:8]}"
        return cache / self.digest / f"seeds-{seeds}"


@dataclass(frozen=True)
class CachedCell:
    """A finished cell: its folder, seeds and divergences, and the time, machine and versions it was run with."""

    folder: Path
    seeds: list[int]
    diverged: list[str]
    seconds: float
    machine: str
    versions: dict[str, str]

    @property
    def history(self) -> pd.DataFrame:
        """The history; for a language model, with a column `perplexity:NAME` for each of its perplexities."""
        frame = RunFolder(self.folder).history().frame
        path = self.folder / PERPLEXITIES
        if not path.exists():
            return frame
        keys = ["seed", "iteration"]
        table = pd.read_csv(path).set_index(keys).add_prefix(PERPLEXITY).reset_index()
        return frame.merge(table, on=keys, how="left")

    @property
    def trace(self) -> pd.DataFrame | None:
        """The consensus error at every iteration, if it was kept."""
        path = self.folder / CONSENSUS
        return pd.read_csv(path) if path.exists() else None


def find(folder: Path, trace: bool = False) -> CachedCell | None:
    """The finished cell in a folder, or None; with `trace`, only if its trace was kept."""
    try:
        record: dict[str, Any] = json.loads((folder / FINISHED).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunError(
            f"{folder / FINISHED}: cannot be read ({error}); delete the folder to run its cell again"
        ) from None
    if trace and not (folder / CONSENSUS).exists():
        return None
    return CachedCell(
        folder, record["seeds"], record["diverged"], record["seconds"], record["machine"], dict(record["versions"])
    )


def find_exact(cache: Path, config: CellConfig, trace: bool = False) -> CachedCell | None:
    """The finished cell with exactly the seeds of the configuration."""
    return find(config.folder(cache), trace)


def find_any(cache: Path, config: CellConfig, trace: bool = False) -> CachedCell | None:
    """The finished cell with the seeds of the configuration, or else the one with most seeds."""
    exact = find_exact(cache, config, trace)
    if exact is not None:
        return exact
    others = [find(folder, trace) for folder in sorted((cache / config.digest).glob("seeds-*"))]
    return max((cell for cell in others if cell is not None), key=lambda cell: len(cell.seeds), default=None)


def add_time(folder: Path, seconds: float) -> None:
    """Add to the time that a cell has taken so far, finished or not."""
    if (folder / "config.toml").exists():
        part = folder / f"{SPENT}.part"
        part.write_text(f"{_time_spent(folder) + seconds:.3f}\n", encoding="utf-8")
        part.replace(folder / SPENT)


def _time_spent(folder: Path) -> float:
    path = folder / SPENT
    return float(path.read_text(encoding="utf-8")) if path.exists() else 0.0


def finish(result: RunResult, config: Config, trace: bool) -> None:
    """Mark a cell as finished, and delete its large files; the trace is kept if asked for."""
    folder = result.folder
    assert folder is not None
    record = {
        "seeds": list(config.run.seeds),
        "diverged": [str(divergence) for divergence in result.diverged],
        "seconds": _time_spent(folder),
        "machine": describe_machine(config),
        "versions": versions(),
    }
    if not trace:
        (folder / CONSENSUS).unlink(missing_ok=True)
    part = folder / f"{FINISHED}.part"
    part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    part.replace(folder / FINISHED)
    (folder / SPENT).unlink(missing_ok=True)
    delete_models(folder)


def delete_models(folder: Path) -> None:
    """Delete checkpoints, models and adapters of a finished cell."""
    for path in folder.glob("adapter*"):
        shutil.rmtree(path)
    for path in folder.rglob("*.safetensors*"):
        path.unlink()


def delete_finished(folder: Path) -> None:
    """Delete the folder of a finished cell that lacks its trace, so that it is run again."""
    if (folder / FINISHED).exists():
        shutil.rmtree(folder)


def describe_machine(config: Config) -> str:
    """The device that a configuration runs on, and the precision of its model's passes there."""
    settings = config.run.engine_settings()
    device = settings.resolve_device()
    frozen = MODELS.attribute(config.problem.model, "frozen_follows_precision", False)
    precision = resolve(settings.precision, settings.resolve_dtype(), device, frozen=frozen)
    return f"{describe_device(str(device))}, {precision}"
