"""Checkpoints: a run's complete state in one safetensors file; the one before is kept until the new one is complete.

The file is a function of the run alone (no times, no paths), so that a resumed run ends in the same bytes.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from depositum.engines import Costs, Divergence, Snapshot
from depositum.errors import RunError

CURRENT, PREVIOUS = "state.safetensors", "state.previous.safetensors"


class Latest(NamedTuple):
    """The newest complete checkpoint of a folder, and a message if a newer one is damaged."""

    snapshot: Snapshot
    path: Path
    problem: str | None = None


def previous(current: Path) -> Path:
    """The path of the checkpoint before the current one."""
    return current.with_name(f"{current.stem}.previous{current.suffix}")


def write(current: Path, snapshot: Snapshot) -> None:
    """Write the current checkpoint; the one that was current becomes the previous one."""
    metadata = {
        "iteration": snapshot.t,
        "costs": asdict(snapshot.costs),
        "seeds": list(snapshot.seeds),
        "diverged": [list(d) for d in snapshot.diverged.values()],
        "backend": snapshot.backend,
    }
    # One metadata key only: the library writes several in no fixed order.
    part = write_part(current, snapshot.tensors, {"depositum": json.dumps(metadata, sort_keys=True)})
    if current.exists():
        current.replace(previous(current))
    part.replace(current)


def write_part(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> Path:
    """Write tensors to a temporary file beside `path`, safely on disk, and return its path."""
    part = path.with_name(f"{path.name}.part")
    try:
        save_file(tensors, part, metadata=metadata)
        # The library creates files that only their owner can read; these get the user's default permissions.
        mask = os.umask(0)
        os.umask(mask)
        part.chmod(0o666 & ~mask)
        with part.open("rb") as file:
            os.fsync(file.fileno())
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path}: cannot be written ({error})") from None
    return part


def iteration(path: Path) -> int:
    """The iteration of a checkpoint file; a damaged one is a RunError."""
    try:
        with safe_open(path, framework="pt") as file:
            return int(json.loads((file.metadata() or {})["depositum"])["iteration"])
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise RunError(f"{path}: is not a complete checkpoint ({error})") from None


def by_iteration(paths: Iterable[Path]) -> dict[int, Path]:
    """Those of some files that are complete checkpoints, by iteration."""
    found = {}
    for path in paths:
        if path.exists():
            try:
                found[iteration(path)] = path
            except RunError:
                continue
    return found


def read(path: Path) -> Snapshot:
    """Read one checkpoint file; a damaged one is a RunError."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads((file.metadata() or {})["depositum"])
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if "x" not in tensors:
            raise ValueError("it holds no models x")
        return Snapshot(
            seeds=tuple(metadata["seeds"]),
            t=metadata["iteration"],
            costs=Costs(**metadata["costs"]),
            tensors=tensors,
            diverged={d[0]: Divergence(*d) for d in metadata["diverged"]},
            backend=metadata.get("backend", "auto"),
        )
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise RunError(f"{path}: is not a complete checkpoint ({error})") from None


def read_latest(folder: Path) -> Latest | None:
    """The newest complete checkpoint, or None if there are no checkpoints. Nothing is written or removed."""
    problem = None
    for path in (folder / CURRENT, folder / PREVIOUS):
        if not path.exists():
            continue
        try:
            snapshot = read(path)
        except RunError as error:
            problem = problem or str(error)
            continue
        return Latest(snapshot, path, problem)
    if problem:
        raise RunError(f"{problem}, and there is no earlier one; remove the folder to start again")
    return None


def make_current(latest: Latest) -> None:
    """Move the newest complete checkpoint to the path of the current one.

    Otherwise a damaged file would become the previous checkpoint, and push out the complete one, at the next.
    """
    current = latest.path.with_name(CURRENT)
    if latest.path != current:
        latest.path.replace(current)
