"""A run whose seeds do not fit the memory together: one half of them after the other, and one folder in the end.

Until then each half is a run of its own in `seeds/`, which goes on like any other where it was stopped, and may be
halved again. What the folder holds in the end is what it holds of a run at once, to rounding.
"""

import shutil
from itertools import product
from pathlib import Path
from typing import Any

from depositum.engines import Snapshot
from depositum.errors import RunError
from depositum.metrics import COLUMNS
from depositum.runs import checkpoint
from depositum.runs.adapter import FOLDER as ADAPTER
from depositum.runs.config import Config
from depositum.runs.folder import CONSENSUS, HISTORY, MODEL, PART, PERPLEXITIES, TRACE, RunFolder, of_seed

FOLDER = "seeds"


def divided(out: Path) -> bool:
    """Whether a folder's run was divided before, and is not put together yet."""
    return (out / FOLDER).is_dir()


def divide(config: Config, out: Path, snapshot: Snapshot | None) -> None:
    """Make a folder's run one of two halves, which go on from where it is."""
    folder, part = RunFolder(out), out / f"{FOLDER}{PART}"
    folder.claim(config)
    shutil.rmtree(part, ignore_errors=True)
    for path, own in halves(config, part).items():
        half = RunFolder(path)
        half.claim(own)
        if snapshot is None:
            continue
        for table in (HISTORY, CONSENSUS, PERPLEXITIES):
            records = [record for record in folder.read_table(table) if record["seed"] in own.run.seeds]
            if records:
                half.write_table(table, _columns(table, records), records)
        checkpoint.write(half.path / checkpoint.CURRENT, snapshot.of_seeds(own.run.seeds))
    part.rename(out / FOLDER)


def halves(config: Config, place: Path) -> dict[Path, Config]:
    """Configurations of half the seeds each, by their folders in `place`."""
    seeds = config.run.seeds
    half = len(seeds) // 2
    return {
        place / "-".join(map(str, some))[:100]: config.model_copy(
            update={"run": config.run.model_copy(update={"seeds": some})}
        )
        for some in (seeds[:half], seeds[half:])
    }


def put_together(config: Config, out: Path, snapshot: Snapshot) -> None:
    """All files of both halves as those of one run. The checkpoint comes last: with it, the run is finished."""
    parts = halves(config, out / FOLDER)
    try:
        for name in (HISTORY, CONSENSUS, PERPLEXITIES):
            records = [record for path in parts for record in RunFolder(path).read_table(name)]
            if records:
                records.sort(key=lambda record: record["iteration"])
                RunFolder(out).write_table(name, _columns(name, records), records)
        for path, own in parts.items():
            for seed, name in product(own.run.seeds, (MODEL, ADAPTER)):
                source = path / of_seed(name, seed, first=seed == own.run.seeds[0])
                if source.exists():
                    _copy(source, out / of_seed(name, seed, first=seed == config.run.seeds[0]))
        checkpoint.write(out / checkpoint.CURRENT, snapshot)
        _remove(out / FOLDER)
    except OSError as error:
        raise RunError(f"--out {out}: cannot be written to ({error.strerror or error})") from None


def _columns(table: str, records: list[dict[str, Any]]) -> tuple[str, ...]:
    return {HISTORY: COLUMNS, CONSENSUS: TRACE}.get(table) or tuple(records[0])


def _remove(folder: Path) -> None:
    """Remove a folder at once: one that is half gone must not be taken for a divided run."""
    part = folder.with_name(f"{folder.name}{PART}")
    folder.rename(part)
    shutil.rmtree(part)


def _copy(source: Path, target: Path) -> None:
    """Copy a file or folder, in the place of one that is there."""
    part = target.with_name(f"{target.name}{PART}")
    if source.is_file():
        shutil.copyfile(source, part)
    else:
        shutil.copytree(source, part, dirs_exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
    part.replace(target)
