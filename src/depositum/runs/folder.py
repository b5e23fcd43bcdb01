"""A run's folder: `config.toml`, `history.csv`, `consensus.csv`, checkpoints and the averaged models.

`environment.toml` says which versions computed which iterations, and on which device.

At the end, `clients.csv` has measures of each client on its own data.
For a language model, `perplexity.csv` has its perplexities at every evaluation: over all test tokens, and by category.
"""

import csv
import io
import os
import tomllib
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w
from torch import nn

from depositum.errors import ConfigError, RunError, short_repr
from depositum.metrics import (
    COLUMNS,
    COSTLY,
    OWN,
    PERPLEXITY,
    TRAINING,
    Evaluations,
    History,
    MetricSettings,
    user_columns,
)
from depositum.metrics.history import AVERAGED
from depositum.provenance import describe_device, versions
from depositum.runs import checkpoint, folder_lock, tensor_file
from depositum.runs.config_file import differences, parse
from depositum.runs.config_keys import setting_name
from depositum.runs.given_problem import same_but_for_the_start
from depositum.runs.resolved import ResolvedConfig, build_method, complete_table, with_default_arguments
from depositum.toml_file import check_values, read_toml

if TYPE_CHECKING:
    import pandas as pd

#: Keys that may change when a run is resumed: how long it is, where it runs, how long processes wait for each other.
MAY_CHANGE = ("run.steps", "run.checkpoint_every", "run.stop", "run.device", "processes.timeout")
TRACE = ("seed", "iteration", "consensus_x")
INTEGER_COLUMNS = ("seed", "iteration", "phases")
#: Suffix of the name of a file until it is complete.
PART = ".part"
HISTORY, CONSENSUS, PERPLEXITIES = "history.csv", "consensus.csv", "perplexity.csv"
CLIENTS = "clients.csv"
MODEL = "model.safetensors"
ENVIRONMENT = "environment.toml"
#: The files of a stepsize that was chosen by tuning, which is done before the run begins.
TUNING_RESULT, TUNING_TABLE, TUNING_FIGURE = "tuning.toml", "tuning.csv", "tuning.png"


class RunFolder:
    """The files of one run. Nothing that does not belong to a run is ever overwritten."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: The description of the model that the run in the folder began with, if another one is given now.
        self._first_model: Any = None
        self._state_there = (path / checkpoint.CURRENT).exists()
        #: The columns of the history: those that every run has, and the user's.
        self._columns = COLUMNS

    @property
    def config_path(self) -> Path:
        return self.path / "config.toml"

    def check(self, spec: ResolvedConfig, may_differ: Collection[str] = ()) -> None:
        """Refuse a folder that cannot be written to, or that holds something else or another run; nothing is written.

        `may_differ` are further keys in which the run that is there may differ.
        """
        path = self.path
        existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
        if not existing.is_dir():
            what = "is a file" if existing == path else f"cannot be created, since {existing} is a file"
            raise RunError(f"--out {path}: {what}; it must be a folder")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise RunError(f"--out {path}: cannot be written to (no permission in {existing})")
        if not path.exists():
            return
        if not self.config_path.exists():
            before = (TUNING_RESULT, TUNING_TABLE, TUNING_FIGURE)
            if any(not file.name.endswith(PART) and file.name not in before for file in path.iterdir()):
                raise RunError(f"--out {path}: is not empty and holds no run; choose another folder")
            return
        for key, (old, new) in differences(self._existing_table(), tomllib.loads(spec.dump())).items():
            if key == "problem.model" and same_but_for_the_start(old, new):
                self._first_model = old
                warnings.warn(
                    f"{setting_name(key)}: the run in {path} began with other initial parameters; it is resumed from "
                    "its checkpoint, and those given now are not used",
                    RuntimeWarning,
                    stacklevel=2,
                )
            elif key not in (*MAY_CHANGE, *may_differ):
                here = f"{setting_name(key)} is {_shown(old)} there and {_shown(new)} here"
                raise RunError(f"--out {path}: holds another run ({here}); choose another folder")

    def _existing_table(self) -> dict[str, Any]:
        """The complete configuration of the run in the folder."""
        try:
            if not self.config_path.is_file():
                raise ConfigError("", "it is not a file")
            stored = read_toml(self.config_path)
            check_values(stored)
            config = parse(stored)
            table = with_default_arguments(complete_table(config, build_method(config)))
        except ConfigError as error:
            raise RunError(
                f"--out {self.path}: its config.toml is not that of a run ({error}); choose another folder"
            ) from None
        return tomllib.loads(tomli_w.dumps(table))

    def history(self) -> History:
        """The records in the folder."""
        return History(_read(self.path / HISTORY))

    def write_config(self, spec: ResolvedConfig) -> None:
        """Make a checked folder this run's."""
        self.create()
        text = spec.dump()
        if self._first_model is not None:
            table = tomllib.loads(text)
            table["problem"]["model"] = self._first_model
            text = tomli_w.dumps(table)
        self._write("config.toml", text)

    def write_text(self, name: str, text: str) -> None:
        """Write a text file beside those of the run, completely or not at all."""
        self.create()
        self._write(name, text)

    def create(self) -> None:
        """Create the folder if it does not exist."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"--out {self.path}: cannot be written to ({error.strerror})") from None

    def tables(self) -> dict[str, str]:
        """The content of the tables that a run appends to, by name, as another host of the run can copy it."""
        names = (name for name in (HISTORY, PERPLEXITIES) if (self.path / name).exists())
        return {name: (self.path / name).read_text(encoding="utf-8", errors="replace") for name in names}

    def copy_tables(self, tables: Mapping[str, str]) -> None:
        """Replace the tables of this folder by those of the host of rank 0, if they differ."""
        for name, text in tables.items():
            if self.tables().get(name) != text:
                self._write(name, text)

    def begin(
        self,
        spec: ResolvedConfig,
        t: int | None,
        traced: bool = True,
        may_differ: Collection[str] = (),
        measures: Sequence[str] = (),
    ) -> History:
        """Prepare a checked folder for a run that begins, or resumes from iteration t; return its history.

        Without `traced`, the consensus error of every iteration is not known, and has no file. `may_differ` is as for
        `check`. `measures` are columns of the history beside the usual ones and user-defined measures.

        The history is that of a run of this length that was never stopped. So rows after the checkpoint are removed
        and, of a run that is extended, the evaluation at its end, unless one is due there in the longer run.
        """
        self.create()
        folder_lock.acquire(self.path)
        self.check(
            spec, may_differ
        )  # a folder that did not exist could not be locked, and others may have used it since
        self.write_config(spec)
        self._write_environment(spec, t or 0)
        if t is None and not self._state_there and (self.path / checkpoint.CURRENT).exists():
            raise RunError(f"--out {self.path}: another process ran this meanwhile; the same command resumes it")
        last = -1 if t is None else t
        evaluations, metrics = spec.config.run.evaluations(), spec.metrics
        self._columns = (*COLUMNS, *measures, *metrics.functions)
        history = History(
            _as_not_last(record, metrics, evaluations)
            for record in _read(self.path / HISTORY, keep_damaged=True)
            if record["iteration"] <= last and evaluations.due(record["iteration"])
        )
        trace = [r for r in _read(self.path / CONSENSUS, keep_damaged=True) if r["iteration"] <= last]
        perplexities = [
            record
            for record in _read(self.path / PERPLEXITIES, keep_damaged=True)
            if record["iteration"] <= last and evaluations.due(record["iteration"])
        ]
        self._write(HISTORY, _csv(self._columns, history.records, header=True))
        (self.path / CLIENTS).unlink(missing_ok=True)  # it is of a run that has ended
        if perplexities:
            self._write(PERPLEXITIES, _csv(_columns(perplexities), perplexities, header=True))
        else:
            (self.path / PERPLEXITIES).unlink(missing_ok=True)
        if traced or trace:
            self._write(CONSENSUS, _csv(TRACE, trace, header=True))
        return history

    def _write_environment(self, spec: ResolvedConfig, t: int) -> None:
        """Record what computes the iterations after t, unless it is the same as before."""
        device = describe_device(str(spec.engine_settings.resolve_device()))
        own = {**versions(), "device": device}
        sessions = [session for session in self.sessions() if session["from_iteration"] < t]
        if not sessions or sessions[-1] != {**own, "from_iteration": sessions[-1]["from_iteration"]}:
            sessions.append({"from_iteration": t, **own})
        self._write(ENVIRONMENT, tomli_w.dumps({"session": sessions}))

    def sessions(self) -> list[dict[str, Any]]:
        """What computed the run's iterations: for each environment, its first iteration, versions and device.

        Empty for a run of a version that did not record it, and where the file cannot be read.
        """
        try:
            found = read_toml(self.path / ENVIRONMENT).get("session", [])
        except ConfigError:
            return []
        listed = found if isinstance(found, list) else []
        return [s for s in listed if isinstance(s, dict) and isinstance(s.get("from_iteration"), int)]

    def append_history(self, records: Sequence[dict[str, Any]]) -> None:
        """Append evaluated records; perplexities go to their own file, other unknown columns are left out."""
        self._append_perplexities(
            [
                {"seed": record["seed"], "iteration": record["iteration"], **found}
                for record in records
                if (found := {k.removeprefix(PERPLEXITY): v for k, v in record.items() if k.startswith(PERPLEXITY)})
            ]
        )
        self._append(HISTORY, _csv(self._columns, records))

    def _append_perplexities(self, records: Sequence[dict[str, Any]]) -> None:
        if not records:
            return
        existing = self.read_table(PERPLEXITIES)
        columns = _columns([*existing, *records])
        if existing and columns == tuple(existing[0]):
            self._append(PERPLEXITIES, _csv(columns, records))
        else:  # the first, or with categories that were not measured before
            self._write(PERPLEXITIES, _csv(columns, [*existing, *records], header=True))

    def append_trace(self, errors: Iterable[tuple[int, int, float]]) -> None:
        """Append (seed, iteration, consensus error) of some iterations."""
        self._append(CONSENSUS, _csv(TRACE, (dict(zip(TRACE, row, strict=True)) for row in errors)))

    def write_model(self, model: nn.Module, seed: int, first: bool) -> None:
        """Write the averaged model of a seed, by parameter name: the first seed's is `model.safetensors`."""
        path = self.path / seed_file_name(MODEL, seed, first)
        tensors = {k: v.detach().clone().contiguous() for k, v in model.state_dict().items()}
        tensor_file.write_part(path, tensors, {}).replace(path)

    def write_clients(self, records: Sequence[dict[str, Any]]) -> None:
        """Write the measures of each client at the end of the run, if there are any."""
        if records:
            self._write(CLIENTS, _csv(_columns(records), records, header=True))

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
        """The records of a CSV file; empty if the file does not exist."""
        return _read(self.path / name)

    def _write(self, name: str, text: str) -> None:
        """Write a file completely or not at all."""
        part = self.path / f"{name}{PART}"
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


def seed_file_name(name: str, seed: int, first: bool) -> str:
    """File name for a seed: the plain name for the first, `.seed-N` for the others.

    >>> seed_file_name("model.safetensors", 3, first=False)
    'model.seed-3.safetensors'
    """
    return name if first else f"{Path(name).stem}.seed-{seed}{Path(name).suffix}"


def read_history(path: Path) -> "pd.DataFrame":
    """The history of a run's folder, as a table."""
    import pandas as pd

    file = path / HISTORY
    if not file.exists():
        raise RunError(f"{path}: holds no run (there is no history.csv)")
    records = _read(file)
    if not records:
        raise RunError(f"{path}: its history is empty")
    return pd.DataFrame(records, columns=[*COLUMNS, *user_columns(records)])


def read_table(path: Path) -> dict[str, Any] | None:
    """The complete configuration in a run's folder as it is written there, without running any code that it names.

    None if the folder does not have one, or if it cannot be read.
    """
    if not (path / "config.toml").is_file():
        return None
    try:
        table = read_toml(path / "config.toml")
        check_values(table)
    except ConfigError:
        return None
    return table if all(isinstance(section, dict) for section in table.values()) else None


def _shown(value: Any) -> str:
    return "not set" if value is None else short_repr(value)


def _as_not_last(record: dict[str, Any], metrics: MetricSettings, evaluations: Evaluations) -> dict[str, Any]:
    """A record without what is measured at the end only, and without running means, which are computed anew."""
    removed, t = {f"{name}_mean" for name in AVERAGED}, record["iteration"]
    if not metrics.costly_at(t, last=False, evaluations=evaluations):
        removed |= set(COSTLY)
    if not metrics.train_at(t, last=False, evaluations=evaluations):
        removed |= {*TRAINING, *OWN}
    return {k: v for k, v in record.items() if k not in removed}


def _columns(records: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for record in records for name in record))


def _csv(columns: tuple[str, ...], records: Iterable[dict[str, Any]], header: bool = False) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    if header:
        writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def _read(path: Path, keep_damaged: bool = False) -> list[dict[str, Any]]:
    """Records of a CSV file; a last line cut off by a kill is left out (its iteration is run again).

    Complete lines that cannot be read are reported by a warning. With `keep_damaged`, such a file is renamed, since it
    is about to be replaced by one without them.
    """
    if not path.exists():
        return []
    if not path.is_file():
        raise RunError(f"{path}: is not a file")
    complete, newline, _ = path.read_text(encoding="utf-8", errors="replace").rpartition("\n")
    # In the file of perplexities, other columns are names of categories.
    integers = INTEGER_COLUMNS if path.name != PERPLEXITIES else INTEGER_COLUMNS[:2]
    out, unreadable = [], []
    reader = csv.DictReader(io.StringIO(complete + newline))
    while True:
        try:
            row = next(reader)
            record = {k: int(v) if k in integers else float(v) for k, v in row.items() if v != ""}
            if not record.keys() >= {"seed", "iteration"}:
                raise ValueError("it is not a record")
            out.append(record)
        except StopIteration:
            break
        except (ValueError, TypeError, csv.Error):  # not a number; more or fewer columns than the header; a huge field
            unreadable.append(reader.reader.line_num)
    if unreadable:
        more = f" and {len(unreadable) - 1} others are" if len(unreadable) > 1 else " is"
        kept = f"; the file is kept as {checkpoint.keep_damaged(path).name}" if keep_damaged else ""
        warnings.warn(f"{path}: damaged; line {unreadable[0]}{more} left out{kept}", RuntimeWarning, stacklevel=3)
    return out
