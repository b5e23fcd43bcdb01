"""A run whose seeds do not fit the memory together: one half of them after the other, and one folder in the end.

Until then each half is a run of its own in `seeds/`, which goes on like any other where it was stopped, and may be
halved again. What the folder holds in the end is what it holds of a run at once, to rounding.
"""

import shutil
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

from depositum.engines import Snapshot
from depositum.errors import RunError
from depositum.metrics import COLUMNS
from depositum.runs import checkpoint, parts
from depositum.runs.config import Config
from depositum.runs.folder import CONSENSUS, HISTORY, MODEL, PART, PERPLEXITIES, TRACE, RunFolder, of_seed
from depositum.runs.reading import dump

FOLDER = "seeds"
ADAPTER = "adapter"


def divided(config: Config, out: Path) -> bool:
    """Whether a folder's run was divided before, and has not come further as a whole since.

    As a whole it may have: among processes, or side by side with others where there is more memory.
    """
    whole = max(_iteration(out), *parts.iterations(out, range(config.problem.clients)), -1)
    return _has_halves(config, out) and whole <= min(_reached(config, out))


def _has_halves(config: Config, out: Path) -> bool:
    """Whether there are halves of this run, and not something of a person's under the same name."""
    own = halves(config, out / FOLDER)
    return all(RunFolder(path).config_path.exists() for path in own) and {*own} == {*(out / FOLDER).iterdir()}


def _reached(config: Config, out: Path) -> list[int]:
    """The iterations that the halves of a divided run have come to; −1 where one has not begun."""
    return [
        t
        for path, own in halves(config, out / FOLDER).items()
        for t in (_reached(own, path) if divided(own, path) else [_iteration(path)])
    ]


def _iteration(folder: Path) -> int:
    for name in (checkpoint.CURRENT, checkpoint.PREVIOUS):
        if (folder / name).exists():
            with suppress(RunError):  # of a broken one, which is said by whoever needs it
                return checkpoint.iteration(folder / name)
    return -1


def check_steps(config: Config, out: Path) -> None:
    """Refuse fewer steps than one half has made already: the other would end before it."""
    if config.run.steps < (furthest := max(_reached(config, out))):
        raise RunError(
            f"--out {out}: some of its seeds have come to iteration {furthest}, but run.steps is {config.run.steps}; "
            "all must come there first"
        )


def divide(config: Config, out: Path, snapshot: Snapshot | None) -> None:
    """Make a folder's run one of two halves, which go on from where it is."""
    folder, part = RunFolder(out), out / f"{FOLDER}{PART}"
    if (out / FOLDER).exists():
        raise RunError(f"{out / FOLDER}: is there already, and is no part of the run; its place is needed, move it")
    folder.take(config)
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
    folders = halves(config, out / FOLDER)
    try:
        for name in (HISTORY, CONSENSUS, PERPLEXITIES):
            records = [record for path in folders for record in RunFolder(path).read_table(name)]
            if records:
                records.sort(key=lambda record: record["iteration"])
                RunFolder(out).write_table(name, _columns(name, records), records)
        for path, own in folders.items():
            for seed, name in product(own.run.seeds, (MODEL, ADAPTER)):
                source = path / of_seed(name, seed, first=seed == own.run.seeds[0])
                if source.exists():
                    _copy(source, target := out / of_seed(name, seed, first=seed == config.run.seeds[0]))
                    _rewrite_settings(target, before=dump(own), after=dump(config))
        RunFolder(out).claim(config)  # its steps may be others than when it was divided
        checkpoint.write(out / checkpoint.CURRENT, snapshot)
        _remove(out / FOLDER)
    except OSError as error:
        raise RunError(f"--out {out}: cannot be written to ({error.strerror or error})") from None


def _rewrite_settings(folder: Path, before: str, after: str) -> None:
    """Replace the settings in the model card of an exported model, if there is one."""
    card = folder / "README.md"
    if card.exists():
        card.write_text(card.read_text(encoding="utf-8").replace(before.strip(), after.strip()), encoding="utf-8")


def _columns(table: str, records: list[dict[str, Any]]) -> tuple[str, ...]:
    return {HISTORY: COLUMNS, CONSENSUS: TRACE}.get(table) or tuple(records[0])


def forget(config: Config, out: Path) -> None:
    """Remove the halves of a run that has come further as a whole."""
    if _has_halves(config, out):
        _remove(out / FOLDER)


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
