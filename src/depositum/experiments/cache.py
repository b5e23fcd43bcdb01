"""Finished cells, kept by what they are: `CACHE/HASH/seeds-0-1-2`, HASH being of a cell's complete configuration.

A folder is an ordinary run's until its cell is finished: a stopped sweep goes on from its checkpoints. Then `cell.json`
says so, and checkpoints and models go: of a ResNet-18 they are gigabytes. What does not change results is not part of
the hash: where a cell runs, how often it is kept, and how it is labelled, drawn and judged. Arguments of what is chosen
by name are in it where they are given: whoever changes such a default raises `RESULTS`.
"""

import hashlib
import json
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from depositum.errors import RunError
from depositum.metrics import PERPLEXITY
from depositum.models import MODELS
from depositum.problem.precision import resolve
from depositum.runs.config import Config
from depositum.runs.execute import RunResult
from depositum.runs.folder import CONSENSUS, PERPLEXITIES, RunFolder

#: Raised whenever a change of the package changes what runs give: what was kept before is then run anew.
RESULTS = 1
#: Keys of `[run]` that say where and how often, not what; seeds are told apart by the folder's name.
LEFT_OUT = ("device", "checkpoint_every", "seeds")
#: Keys of `[run]` that came after cells were kept, with what those were run with: left out where they say the same.
LATER = {"evaluate_from": 0}
DONE, SPENT = "cell.json", "seconds.txt"


@dataclass(frozen=True)
class Kept:
    """A finished cell: its histories, what diverged, what it cost and where."""

    folder: Path
    seeds: list[int]
    diverged: list[str]
    seconds: float
    machine: str
    versions: dict[str, str]

    @property
    def history(self) -> pd.DataFrame:
        """The history; of a language model, with a column `perplexity:NAME` for each of its perplexities."""
        frame = RunFolder(self.folder).history().frame
        path = self.folder / PERPLEXITIES
        if not path.exists():
            return frame
        keys = ["seed", "iteration"]
        table = pd.read_csv(path).set_index(keys).add_prefix(PERPLEXITY).reset_index()
        return frame.merge(table, on=keys, how="left")

    @property
    def trace(self) -> pd.DataFrame | None:
        path = self.folder / CONSENSUS
        return pd.read_csv(path) if path.exists() else None


def identity(config: Config) -> str:
    """What a cell is, as 16 hexadecimal digits: the same for the same results, whatever their seeds."""
    table = config.complete()
    table["run"] = {k: v for k, v in table["run"].items() if k not in LEFT_OUT and (k not in LATER or v != LATER[k])}
    text = json.dumps({"results": RESULTS, "config": table}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def place(cache: Path, config: Config) -> Path:
    """The folder of a cell."""
    seeds = "-".join(map(str, config.run.seeds))
    if len(seeds) > 100:
        seeds = f"{len(config.run.seeds)}-{hashlib.sha256(seeds.encode()).hexdigest()[:8]}"
    return cache / identity(config) / f"seeds-{seeds}"


def find(folder: Path, trace: bool = False) -> Kept | None:
    """The finished cell of a folder, if there is one (with its trace, where that is needed)."""
    try:
        told: dict[str, Any] = json.loads((folder / DONE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunError(f"{folder / DONE}: cannot be read ({error}); remove the folder to run its cell anew") from None
    if trace and not (folder / CONSENSUS).exists():
        return None
    return Kept(folder, told["seeds"], told["diverged"], told["seconds"], told["machine"], dict(told["versions"]))


def find_exact(cache: Path, config: Config, trace: bool = False) -> Kept | None:
    """The finished cell with these seeds."""
    return find(place(cache, config), trace)


def find_any(cache: Path, config: Config, trace: bool = False) -> Kept | None:
    """The finished cell with these seeds, or else that with the most."""
    exact = find_exact(cache, config, trace)
    if exact is not None:
        return exact
    others = [find(folder, trace) for folder in sorted((cache / identity(config)).glob("seeds-*"))]
    return max((kept for kept in others if kept is not None), key=lambda kept: len(kept.seeds), default=None)


def spend(folder: Path, seconds: float) -> None:
    """Add to the time that a cell has taken, whether or not it is finished."""
    if (folder / "config.toml").exists():
        part = folder / f"{SPENT}.part"
        part.write_text(f"{_spent(folder) + seconds:.3f}\n", encoding="utf-8")
        part.replace(folder / SPENT)


def _spent(folder: Path) -> float:
    path = folder / SPENT
    return float(path.read_text(encoding="utf-8")) if path.exists() else 0.0


def finish(result: RunResult, config: Config, trace: bool) -> None:
    """Mark a cell as finished, and keep what is small."""
    folder = result.folder
    told = {
        "seeds": list(config.run.seeds),
        "diverged": [str(divergence) for divergence in result.diverged],
        "seconds": _spent(folder),
        "machine": machine(config),
        "versions": versions(),
    }
    if not trace:
        (folder / CONSENSUS).unlink(missing_ok=True)
    part = folder / f"{DONE}.part"
    part.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    part.replace(folder / DONE)
    (folder / SPENT).unlink(missing_ok=True)
    tidy(folder)


def tidy(folder: Path) -> None:
    """Remove checkpoints, models and adapters of a finished cell."""
    for path in folder.glob("adapter*"):
        shutil.rmtree(path)
    for path in folder.rglob("*.safetensors*"):
        path.unlink()


def renew(folder: Path) -> None:
    """Empty the folder of a finished cell that lacks what is needed now, so that it is run anew."""
    if (folder / DONE).exists():
        shutil.rmtree(folder)


def machine(config: Config) -> str:
    """Where a cell runs, in words, and in which precision its models' passes are there."""
    settings = config.engine_settings()
    device = settings.resolve_device()
    frozen = MODELS.attribute(config.problem.model, "frozen_follows_precision", False)
    precision = resolve(settings.precision, settings.resolve_dtype(), device, frozen=frozen)
    name = f"CPU ({platform.machine()}, {os.cpu_count()} cores)"
    return f"{torch.cuda.get_device_name(device) if device.type == 'cuda' else name}, {precision}"


def versions() -> dict[str, str]:
    from depositum import __version__

    return {"depositum": __version__, "torch": torch.__version__, "python": ".".join(map(str, sys.version_info[:3]))}
