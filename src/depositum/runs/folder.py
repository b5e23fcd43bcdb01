"""A run's folder: `config.toml`, `history.csv`, `consensus.csv`, checkpoints and the averaged models.

Of a language model, `perplexity.csv` has its perplexities at every evaluation: over all test tokens, and by category.
"""

import csv
import io
import os
import tomllib
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from depositum.errors import ConfigError, RunError
from depositum.metrics import COLUMNS, COSTLY, PERPLEXITY, TRAINING, Evaluations, History, MetricSettings
from depositum.metrics.history import AVERAGED
from depositum.runs import checkpoint, lock
from depositum.runs.config import Config
from depositum.runs.reading import differences, dump, parse

#: Keys that may change when a run goes on: they say how long and where, not what.
FREE = ("run.steps", "run.checkpoint_every", "run.device")
#: And one that says how long processes wait for each other.
PATIENCE = "processes.timeout"
TRACE = ("seed", "iteration", "consensus_x")
WHOLE = ("seed", "iteration", "phases")
#: What a file is called until it is whole.
PART = ".part"
HISTORY, CONSENSUS, PERPLEXITIES = "history.csv", "consensus.csv", "perplexity.csv"
MODEL = "model.safetensors"


class RunFolder:
    """Files of one run. Nothing that is not a run's own is ever written over."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state_there = (path / checkpoint.CURRENT).exists()

    @property
    def config_path(self) -> Path:
        return self.path / "config.toml"

    def check(self, config: Config, elsewhere: Collection[str] = ()) -> None:
        """Refuse a folder that cannot be written to, or that holds something else or another run; nothing is written.

        What may differ from the run that is there is `FREE`, and the keys of files that lie `elsewhere`.
        """
        path = self.path
        existing = next(place for place in (path, *path.absolute().parents) if place.exists())
        if not existing.is_dir():
            what = "is a file" if existing == path else f"cannot be made, since {existing} is a file"
            raise RunError(f"--out {path}: {what}; it must be a folder")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise RunError(f"--out {path}: cannot be written to (no permission in {existing})")
        if not path.exists():
            return
        if not self.config_path.exists():
            if any(not file.name.endswith(PART) for file in path.iterdir()):
                raise RunError(f"--out {path}: is not empty and holds no run; choose another folder")
            return
        for key, (old, new) in differences(self._config_there(), tomllib.loads(dump(config))).items():
            if key not in (*FREE, PATIENCE, *elsewhere):
                raise RunError(
                    f"--out {path}: holds another run ({key} is {_said(old)} there and {_said(new)} here); "
                    "choose another folder"
                )

    def _config_there(self) -> dict[str, Any]:
        """The complete configuration of the run in the folder."""
        try:
            return tomllib.loads(dump(parse(tomllib.loads(self.config_path.read_text(encoding="utf-8")))))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError, ConfigError) as error:
            raise RunError(f"--out {self.path}: its config.toml is no run's ({error}); choose another folder") from None

    def history(self) -> History:
        """The records that the folder holds."""
        return History(_read(self.path / HISTORY))

    def claim(self, config: Config, by: str = "") -> None:
        """Make a checked folder this run's; `by` tells apart those who may do so at the same time."""
        self._make()
        self._write("config.toml", dump(config), by)

    def take(self, config: Config) -> None:
        """Make a checked folder this run's, and this process's until the end of `lock.alone_in`."""
        self._make()
        lock.hold(self.path)
        self.check(config)  # one that was not there yet could not be locked, and others may have been at work since
        self.claim(config)

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"--out {self.path}: cannot be written to ({error.strerror})") from None

    def begin(self, config: Config, until: int | None, traced: bool = True) -> History:
        """Make a checked folder ready for a run that begins, or goes on from iteration `until`; return its history.

        Without `traced`, the consensus error of every iteration is not known, and has no file.

        The history is that of a run of this length which never stopped. So rows after the checkpoint go, and of a
        run that is being extended, the evaluation that it ended with, where no evaluation is due in the longer run.
        """
        self.take(config)
        if until is None and not self._state_there and (self.path / checkpoint.CURRENT).exists():
            raise RunError(f"--out {self.path}: another process ran this meanwhile; the same command goes on from it")
        until = -1 if until is None else until
        evaluations, metrics = config.run.evaluations(), config.metrics.settings()
        history = History(
            _as_not_last(record, metrics, evaluations)
            for record in _read(self.path / HISTORY)
            if record["iteration"] <= until and evaluations.due(record["iteration"])
        )
        trace = [record for record in _read(self.path / CONSENSUS) if record["iteration"] <= until]
        perplexities = [
            record
            for record in _read(self.path / PERPLEXITIES)
            if record["iteration"] <= until and evaluations.due(record["iteration"])
        ]
        self._write(HISTORY, _csv(COLUMNS, history.records, header=True))
        if perplexities:
            self.write_table(PERPLEXITIES, _columns(perplexities), perplexities)
        else:
            (self.path / PERPLEXITIES).unlink(missing_ok=True)
        if traced or trace:
            self._write(CONSENSUS, _csv(TRACE, trace, header=True))
        return history

    def append_history(self, records: Sequence[dict[str, Any]]) -> None:
        """Add what was evaluated; what is no column of a history is a perplexity, or nothing to keep."""
        self._append_perplexities(
            [
                {"seed": record["seed"], "iteration": record["iteration"], **found}
                for record in records
                if (found := {k.removeprefix(PERPLEXITY): v for k, v in record.items() if k.startswith(PERPLEXITY)})
            ]
        )
        self._append(HISTORY, _csv(COLUMNS, records))

    def _append_perplexities(self, records: Sequence[dict[str, Any]]) -> None:
        if not records:
            return
        there = self.read_table(PERPLEXITIES)
        columns = _columns([*there, *records])
        if there and columns == tuple(there[0]):
            self._append(PERPLEXITIES, _csv(columns, records))
        else:  # the first, or of categories that were not measured before
            self.write_table(PERPLEXITIES, columns, [*there, *records])

    def append_trace(self, errors: Iterable[tuple[int, int, float]]) -> None:
        self._append(CONSENSUS, _csv(TRACE, (dict(zip(TRACE, row, strict=True)) for row in errors)))

    def write_model(self, model: nn.Module, seed: int, first: bool) -> None:
        """The averaged model of a seed, by parameter name: the first seed's is `model.safetensors`."""
        path = self.path / of_seed(MODEL, seed, first)
        tensors = {k: v.detach().clone().contiguous() for k, v in model.state_dict().items()}
        checkpoint.write_part(path, tensors).replace(path)

    def write_folder(self, name: str, write: Callable[[Path], None]) -> None:
        """Have `write` fill a temporary folder, then move each of its files into the folder `name`."""
        path = self.path / name
        part = path.with_name(path.name + PART)
        try:
            part.mkdir(parents=True, exist_ok=True)
            write(part)
            path.mkdir(exist_ok=True)
            for file in sorted(part.iterdir()):
                if file.is_file():
                    with file.open("rb") as content:
                        os.fsync(content.fileno())
                file.replace(path / file.name)
            part.rmdir()
        except OSError as error:
            raise RunError(f"{path}: cannot be written ({error.strerror or error})") from None

    def read_table(self, name: str) -> list[dict[str, Any]]:
        """The records of a CSV file; none if there is no such file."""
        return _read(self.path / name)

    def write_table(self, name: str, columns: tuple[str, ...], records: Iterable[dict[str, Any]]) -> None:
        """Write a CSV file whole."""
        self._write(name, _csv(columns, records, header=True))

    def _write(self, name: str, text: str, by: str = "") -> None:
        """Write a file whole or not at all."""
        part = self.path / f"{name}{by}{PART}"
        try:
            with part.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.path / name)
        except OSError as error:
            raise RunError(f"--out {self.path}: {name} cannot be written ({error.strerror})") from None

    def _append(self, name: str, text: str) -> None:
        try:
            with (self.path / name).open("a", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                # The rows up to a checkpoint must be there whenever the checkpoint is.
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(f"{self.path / name}: cannot be written ({error.strerror})") from None


def of_seed(name: str, seed: int, first: bool) -> str:
    """What is called so of the first seed of a run, and by its number of another.

    >>> of_seed("model.safetensors", 3, first=False)
    'model.seed-3.safetensors'
    """
    return name if first else f"{Path(name).stem}.seed-{seed}{Path(name).suffix}"


def read_history(path: Path) -> pd.DataFrame:
    """The history of a run's folder, as a table."""
    file = path / HISTORY
    if not file.exists():
        raise RunError(f"{path}: holds no run (there is no history.csv)")
    records = _read(file)
    if not records:
        raise RunError(f"{path}: its history is empty")
    return pd.DataFrame(records, columns=list(COLUMNS))


def _said(value: Any) -> str:
    return "not set" if value is None else repr(value)


def _as_not_last(record: dict[str, Any], metrics: MetricSettings, evaluations: Evaluations) -> dict[str, Any]:
    """A record without what is measured at the end only, and without running means: they are made anew."""
    gone, t = {f"{name}_mean" for name in AVERAGED}, record["iteration"]
    if not metrics.costly_at(t, last=False, evaluations=evaluations):
        gone |= set(COSTLY)
    if not metrics.train_at(t, last=False, evaluations=evaluations):
        gone |= set(TRAINING)
    return {k: v for k, v in record.items() if k not in gone}


def _columns(records: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for record in records for name in record))


def _csv(columns: tuple[str, ...], records: Iterable[dict[str, Any]], header: bool = False) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    if header:
        writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def _read(path: Path) -> list[dict[str, Any]]:
    """Records of a CSV file; a last line cut off by a kill is left out (its iteration is run again)."""
    if not path.exists():
        return []
    whole, newline, _ = path.read_text(encoding="utf-8", errors="replace").rpartition("\n")
    out = []
    for row in csv.DictReader(io.StringIO(whole + newline)):
        if None in row.values() or None in row:
            continue
        whole_numbers = WHOLE if path.name != PERPLEXITIES else WHOLE[:2]  # where others are names of categories
        try:
            out.append({k: int(v) if k in whole_numbers else float(v) for k, v in row.items() if v != ""})
        except ValueError:
            continue
    return [row for row in out if "seed" in row and "iteration" in row]
