"""Checkpoints: a run's complete state in one file; the one before is kept until the new one is complete.

The file is a function of the run alone (no times, no paths), so that a resumed run ends in the same bytes. It has
checksums (`tensor_file`): a checkpoint whose bytes changed is not used, but the one before, and is kept under another
name.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from depositum.engines import Costs, Divergence, Snapshot
from depositum.errors import RunError
from depositum.runs import tensor_file
from depositum.validation import describe_errors

CURRENT, PREVIOUS = "state.safetensors", "state.previous.safetensors"

_Count = Annotated[int, Field(ge=0, lt=1 << 63)]


class _Metadata(BaseModel):
    """What a checkpoint holds besides tensors."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    iteration: _Count
    costs: Costs
    seeds: Annotated[tuple[_Count, ...], Field(min_length=1)]
    diverged: list[Divergence]
    backend: Annotated[str, Field(max_length=30)] = "auto"


class Latest(NamedTuple):
    """The newest checkpoint of a folder that can be used."""

    snapshot: Snapshot
    path: Path
    problem: str | None = None
    """A message if a newer one is damaged."""
    damaged: tuple[Path, ...] = ()
    """The newer files that are damaged."""

    def with_problem(self, line: str) -> str:
        """A line about what is done, after the damage if there is any."""
        return f"{self.problem}; {line}" if self.problem else line


def previous(current: Path) -> Path:
    """The path of the checkpoint before the current one."""
    return current.with_name(f"{current.stem}.previous{current.suffix}")


def write(current: Path, snapshot: Snapshot, keep_previous: bool = True) -> None:
    """Write the current checkpoint; the one that was current becomes the previous one, or is replaced."""
    metadata = {
        "iteration": snapshot.t,
        "costs": asdict(snapshot.costs),
        "seeds": list(snapshot.seeds),
        "diverged": [list(d) for d in snapshot.diverged.values()],
        "backend": snapshot.backend,
    }
    part = tensor_file.write_part(current, snapshot.tensors, metadata)
    if keep_previous and current.exists():
        current.replace(previous(current))
    part.replace(current)


def read(path: Path) -> Snapshot:
    """Read one checkpoint file; a damaged one is a RunError."""
    tensors, table = tensor_file.read(path)
    try:
        metadata = _Metadata.model_validate_json(json.dumps(table))
        _check_rows(tensors, metadata)
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc']))}: {describe_errors([first])}"
        raise RunError(f"{path}: is not a complete checkpoint ({problem})") from None
    except ValueError as error:
        raise RunError(f"{path}: is not a complete checkpoint ({error})") from None
    return Snapshot(
        seeds=metadata.seeds,
        t=metadata.iteration,
        costs=metadata.costs,
        tensors=tensors,
        diverged={divergence.seed: divergence for divergence in metadata.diverged},
        backend=metadata.backend,
    )


def _check_rows(tensors: Mapping[str, Tensor], metadata: _Metadata) -> None:
    """Refuse models x that are not rows of the trials."""
    if "x" not in tensors:
        raise ValueError("it holds no models x")
    x, seeds = tensors["x"], metadata.seeds
    if x.dim() != 2 or not x.is_floating_point() or len(set(seeds)) < len(seeds) or len(x) % len(seeds):
        raise ValueError(f"models x of {x.dtype} and shape {tuple(x.shape)} are not rows of {len(seeds)} seeds")


def by_iteration(paths: Iterable[Path]) -> dict[int, Path]:
    """Those of some files that are undamaged checkpoints, by iteration."""
    return {t: path for path, t in _examine(paths).items() if isinstance(t, int)}


def damaged(paths: Iterable[Path]) -> dict[Path, str]:
    """Those of some files that are not complete checkpoints, each with a message that says why."""
    return {path: problem for path, problem in _examine(paths).items() if isinstance(problem, str)}


def _examine(paths: Iterable[Path]) -> dict[Path, int | str]:
    """The iteration of every checkpoint that exists, or what is wrong with it."""
    found: dict[Path, int | str] = {}
    for path in paths:
        if path.exists():
            try:
                found[path] = read(path).t
            except RunError as error:
                found[path] = str(error)
    return found


def read_latest(folder: Path) -> Latest | None:
    """The newest undamaged checkpoint, or None if there are no checkpoints. Nothing is written or removed."""
    latest, problems = find_latest(folder)
    if latest is None and problems:
        raise unusable(problems)
    return latest


def find_latest(folder: Path) -> tuple[Latest | None, dict[Path, str]]:
    """The newest undamaged checkpoint, if any, and what is wrong with newer ones."""
    problems: dict[Path, str] = {}
    for path in (folder / CURRENT, folder / PREVIOUS):
        if not path.exists():
            continue
        try:
            snapshot = read(path)
        except RunError as error:
            problems[path] = str(error)
            continue
        return Latest(snapshot, path, next(iter(problems.values()), None), tuple(problems)), problems
    return None, problems


def unusable(problems: Mapping[Path, str]) -> RunError:
    """The error of a folder all of whose checkpoints are damaged."""
    others = "the one before is damaged too" if len(problems) > 1 else "there is no earlier one"
    return RunError(f"{next(iter(problems.values()))}, and {others}; remove the folder to start again")


def make_current(latest: Latest) -> None:
    """Make the newest undamaged checkpoint the current one; damaged files are kept under another name.

    Otherwise a damaged file would become the previous checkpoint, and push out the undamaged one, at the next.
    """
    for path in latest.damaged:
        keep_damaged(path)
    current = latest.path.with_name(CURRENT)
    if latest.path != current:
        latest.path.replace(current)


def keep_damaged(path: Path) -> Path:
    """Rename a damaged file to `NAME.damaged.SUFFIX`, or `NAME.damaged-2.SUFFIX` and so on if that exists."""
    names = (f"{path.stem}.damaged{f'-{k}' if k > 1 else ''}{path.suffix}" for k in count(1))
    return path.replace(next(new for name in names if not (new := path.with_name(name)).exists()))
