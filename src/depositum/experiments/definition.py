"""An experiment as data: a base configuration, the axes of its sweep, and what is drawn, tabulated and claimed of it.

A file is TOML in the form below (docs/cli.md explains it); names of axes and values, measures, checks and
configurations are all checked before any work, in one line each.
"""

import tomllib
import types
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from depositum.errors import ConfigError, listing, nearest
from depositum.validation import describe_errors

#: Some cells of a sweep: for each axis named, the label or labels that belong.
Where = dict[str, str | list[str]]
#: Settings: `"section.key" = value`, or tables of sections.
Settings = dict[str, Any]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Value(Part):
    """One value of an axis: what it is called, and what it sets (in a quick run, also what `quick` says).

    `at_once` is how many of its cells run together at most: for models whose checkpoints are gigabytes.
    """

    label: str
    set: Settings = {}
    quick: Settings = {}
    at_once: int | None = Field(default=None, ge=1)


class Axis(Part):
    """One direction of a sweep; cells are all combinations of the axes' values but those of `omit`."""

    axis: str
    values: list[Value] = Field(min_length=1)


class Quick(Part):
    """What is otherwise in a quick run: settings of every cell, seeds, which cells; settings while tuning, and how many
    values of each key of a grid are tried.
    """

    set: Settings = {}
    seeds: list[int] | None = None
    only: list[str] = []
    tune: Settings = {}
    grid: int | None = Field(default=None, ge=1)


class Tune(Part):
    """Hyper-parameters chosen from a grid, once for each combination of the `per` axes, for the cells of `where`.

    The grid is run on the cell that `cell` names, with `seed`, without the held-out share of the training data; the
    choice is the point of which `by`, on that share, ends lowest. Of several cells, given as lists of labels, the worst
    counts. Texts, which have a validation part, can be evaluated on that `part` instead.
    """

    where: Where
    per: list[str] = []
    cell: Where = {}
    grid: dict[str, list[Any]] = Field(min_length=1)
    set: Settings = {}
    seed: int = 97
    holdout: float = 0.1
    part: Literal["validation"] | None = None
    by: str = "test_loss"


class Panel(Part):
    """One panel of the figure.

    `curves` draws `y` against `x` at the evaluated iterations; `trace` the consensus error at every iteration (faint)
    and its largest value in each communication phase (thick); `points` the last `y` against the last `x`. `zoom` is
    the part of the run, in shares, that is also drawn enlarged.
    """

    title: str
    y: str = "consensus_x"
    x: str = "iteration"
    kind: Literal["curves", "trace", "points"] = "curves"
    where: Where = {}
    log: bool = False
    ylabel: str | None = None
    limits: list[float] | None = Field(None, min_length=2, max_length=2)
    zoom: list[float] | None = Field(None, min_length=2, max_length=2)


class Figure(Part):
    """The figure: panels in rows, a curve for every combination of the `series` axes, one legend on top."""

    series: list[str]
    columns: int = Field(4, ge=1)
    panel: list[Panel] = Field(min_length=1)


class Line(Part):
    """One number of a list: the last `measure` of a cell, or how much less that is than another's, seed by seed."""

    what: str
    cell: dict[str, str]
    measure: str
    less_than: dict[str, str] | None = None
    paper: str | None = None


class Tabulated(Part):
    """A table: of `measure` by `rows` and `columns` axes, of several `measures` by rows, or of single lines.

    `paper` has a line per row: the row's labels, then what the paper prints in each column, `"94.20±0.13"`. `at` is the
    statistic that is shown, by default the last value. With `gaps_to`, the labels of a row, the paper's numbers are
    taken to be on another scale: a second table has the gaps to that row, ours and the paper's.
    """

    title: str
    rows: list[str] = []
    columns: list[str] = []
    measure: str | None = None
    measures: list[str] = []
    where: Where = {}
    at: str | dict[str, Any] = "final"
    paper: list[list[str]] = []
    line: list[Line] = []
    bold: Literal["highest", "lowest"] | None = None
    gaps_to: dict[str, str] = {}
    note: str = ""


class Claim(Part):
    """A sentence of the paper in our words, and the check that decides it, for each value of the `each` axes."""

    text: str
    check: str | dict[str, Any]
    each: list[str] = []
    where: Where = {}


class Experiment(Part):
    """An experiment, in full."""

    title: str
    paper: str
    about: str = ""
    seeds: list[int] = [0, 1, 2, 3, 4]
    trace: bool = False
    unstated: list[str] = []
    remarks: list[str] = []
    #: The axis by whose values the device time is told apart.
    time_by: str | None = None
    base: dict[str, dict[str, Any]] = {}
    sweep: list[Axis] = Field(min_length=1)
    omit: list[Where] = []
    quick: Quick = Quick()
    tune: list[Tune] = []
    figure: Figure | None = None
    table: list[Tabulated] = []
    claim: list[Claim] = []
    #: The file's name without its ending, and the folder that paths in it start from.
    id: str = Field("", exclude=True)
    folder: Path = Field(Path(), exclude=True)

    def labels(self, axis: str) -> list[str]:
        """The values of an axis, in order."""
        return [value.label for own in self.sweep if own.axis == axis for value in own.values]

    @property
    def axes(self) -> list[str]:
        return [own.axis for own in self.sweep]


def names() -> list[str]:
    """The experiments that come with the package."""
    order = ("stepsize", "momentum", "period", "sparsity", "topology", "clients", "llm", "accuracy")
    here = {Path(str(file.name)).stem for file in resources.files(__package__).iterdir() if file.name.endswith(".toml")}
    return [name for name in order if name in here] + sorted(here - set(order))


def load(name: str) -> Experiment:
    """An experiment by its name, or a person's own by the path of its file."""
    if name in names():
        text = resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
        return read(text, name, Path())
    path = Path(name)
    if path.suffix != ".toml":
        allowed = [*names(), "all"]
        raise ConfigError(
            "", f"{name!r} is no experiment; it can be {listing(allowed)}, or a .toml file{nearest(name, allowed)}"
        )
    try:
        return read(path.read_text(encoding="utf-8-sig"), path.stem, path.parent)
    except FileNotFoundError:
        raise ConfigError(name, "no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(name, f"cannot be read: {error}") from None


def read(text: str, name: str, folder: Path) -> Experiment:
    """An experiment from its text; `Plan` checks what it means."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(name, f"is not valid TOML: {error}") from None
    for key in ("id", "folder"):
        if key in table:
            raise ConfigError(f"{name}: {key}", "unknown key")
    try:
        return Experiment.model_validate({**table, "id": name, "folder": folder})
    except ValidationError as error:
        raise _one_line(error, name) from None


def _one_line(error: ValidationError, name: str) -> ConfigError:
    first = error.errors()[0]
    where = [str(part + 1) if isinstance(part, int) else part for part in first["loc"]]
    key = f"{name}: {'.'.join(where)}"
    known = [k for k in _fields(first["loc"][:-1]) if k not in ("id", "folder")]
    if first["type"] == "extra_forbidden":
        return ConfigError(key, f"unknown key; it can be {listing(known)}{nearest(where[-1], known)}")
    if first["type"] == "missing":
        return ConfigError(key, "missing")
    return ConfigError(key, describe_errors([first]))


def _fields(location: tuple[int | str, ...]) -> list[str]:
    """The keys that a place of the file may have."""
    kind: Any = Experiment
    for part in location:
        if isinstance(part, str) and isinstance(kind, type) and issubclass(kind, BaseModel):
            field = kind.model_fields.get(part)
            kind = field.annotation if field is not None else None
            if get_origin(kind) in (Union, types.UnionType):
                kind = next(inner for inner in get_args(kind) if inner is not type(None))
        elif isinstance(part, int) and get_origin(kind) is list:
            (kind,) = get_args(kind)
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []
