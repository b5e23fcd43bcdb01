"""An experiment as data: a base configuration, the axes of its sweep, and its figure, tables and claims.

An experiment file is TOML in the form of `Experiment` (docs/cli.md explains it). Names of axes, labels, measures and
checks, and all configurations, are checked before any work; each error is one line.
"""

import types
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from depositum.errors import ConfigError, listing, nearest
from depositum.toml_file import check_values, parse_toml
from depositum.validation import describe_errors

#: A subset of the cells of a sweep: for each named axis, the allowed label or labels.
Where = dict[str, str | list[str]]
#: Settings: `"section.key" = value`, or tables of sections.
Settings = dict[str, Any]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class AxisValue(_Part):
    """One value of an axis: its label and its settings (`quick`: additional settings of a quick run).

    `at_once` limits how many cells with this value run in one simulator, for models with checkpoints of gigabytes.
    """

    label: str
    set: Settings = {}
    quick: Settings = {}
    at_once: int | None = Field(default=None, ge=1)


class Axis(_Part):
    """One dimension of a sweep; the cells are all combinations of the axes' values, except those in `omit`."""

    axis: str
    values: list[AxisValue] = Field(min_length=1)


class Combination(_Part):
    """Settings of the cells that have these labels, where they depend on several axes."""

    where: Where
    set: Settings


class QuickRun(_Part):
    """What a quick run changes: settings of every cell, seeds, which cells (`only`), settings for tuning (`tune`), and
    how many values of each key of a tuning grid are used (`grid`).
    """

    set: Settings = {}
    seeds: list[int] | None = None
    only: list[str] = []
    tune: Settings = {}
    grid: int | None = Field(default=None, ge=1)


class Tuning(_Part):
    """Hyper-parameters chosen from a grid, once for each combination of the `per` axes, for the cells of `where`.

    The grid is run on the cell that `cell` names, with `seeds`, and with the share `holdout` of the training data held
    out. Of the points whose measure `by`, evaluated on the held-out data, ends within one standard deviation of the
    lowest, the one with the lowest training objective is chosen, unless the next larger stepsize is unstable. The worst
    seed counts and, with several cells (lists of labels), the worst cell. Text datasets have a validation part, and can
    be evaluated on that `part`.
    """

    where: Where
    per: list[str] = []
    cell: Where = {}
    grid: dict[str, list[Any]] = Field(min_length=1)
    set: Settings = {}
    seeds: list[int] = Field([97, 98, 99], min_length=1)
    holdout: float = 0.1
    part: Literal["validation"] | None = None
    by: str = "test_loss"


class Panel(_Part):
    """One panel of the figure.

    `curves` draws `y` against `x` at the evaluated iterations; `trace` the consensus error at every iteration (faint)
    and its maximum in each communication phase (thick); `points` the last `y` against the last `x`. `zoom` is the part
    of the run, as two shares in [0, 1], that is also drawn enlarged. `log` and `log_x` make an axis logarithmic.
    `against` is a second measure, such as a bound, that is drawn dotted in the same colours.
    """

    title: str
    y: str = "consensus_x"
    x: str = "iteration"
    kind: Literal["curves", "trace", "points"] = "curves"
    where: Where = {}
    log: bool = False
    log_x: bool = False
    ylabel: str | None = None
    against: str | None = None
    limits: list[float] | None = Field(None, min_length=2, max_length=2)
    zoom: list[float] | None = Field(None, min_length=2, max_length=2)


class FigureSpec(_Part):
    """The figure: panels in rows, one curve for every combination of the `series` axes, one legend on top."""

    series: list[str]
    columns: int = Field(4, ge=1)
    panel: list[Panel] = Field(min_length=1)


class TableLine(_Part):
    """One number of a list: the last `measure` of a cell, or by how much it is less than another cell's, per seed."""

    what: str
    cell: dict[str, str]
    measure: str
    less_than: dict[str, str] | None = None
    paper: str | None = None


class TableSpec(_Part):
    """A table: of one `measure` by `rows` and `columns` axes, of several `measures` by rows, or of single lines.

    `paper` has one entry per row: the row's labels, then the paper's number for each column, `"94.20±0.13"`. `at` is
    the statistic that is shown, by default the last value. `gaps_to` (the labels of one row) says that the paper's
    numbers are on another scale: a second table then shows the gaps to that row, ours and the paper's.
    """

    title: str
    rows: list[str] = []
    columns: list[str] = []
    measure: str | None = None
    measures: list[str] = []
    where: Where = {}
    at: str | dict[str, Any] = "final"
    paper: list[list[str]] = []
    line: list[TableLine] = []
    bold: Literal["highest", "lowest"] | None = None
    gaps_to: dict[str, str] = {}
    note: str = ""


class Claim(_Part):
    """A claim of the paper, paraphrased, and the check that decides it, for each combination of the `each` axes.

    `reason` is what was found to be the reason if it does not hold, or is undecided; it is shown only then.
    """

    text: str
    reason: str = ""
    check: str | dict[str, Any]
    each: list[str] = []
    where: Where = {}


class Experiment(_Part):
    """A complete experiment."""

    title: str
    paper: str
    about: str = ""
    seeds: list[int] = [0, 1, 2, 3, 4]
    #: σ², an upper limit on the variance of single samples' gradients at every point, for the measures of `bounds`.
    variance: float | None = Field(None, ge=0)
    trace: bool = False
    unstated: list[str] = []
    remarks: list[str] = []
    #: What the committed results are from, while they are from settings that this file no longer has.
    former: str = ""
    #: The axis by whose labels the device time is reported.
    time_by: str | None = None
    base: dict[str, dict[str, Any]] = {}
    sweep: list[Axis] = Field(min_length=1)
    combination: list[Combination] = []
    omit: list[Where] = []
    quick: QuickRun = QuickRun()
    tune: list[Tuning] = []
    figure: FigureSpec | None = None
    table: list[TableSpec] = []
    claim: list[Claim] = []
    #: The file's name without suffix, and the folder that relative paths in it refer to.
    id: str = Field("", exclude=True)
    folder: Path = Field(Path(), exclude=True)

    def labels(self, axis: str) -> list[str]:
        """The labels of an axis, in order."""
        return [value.label for each in self.sweep if each.axis == axis for value in each.values]

    @property
    def axes(self) -> list[str]:
        return [each.axis for each in self.sweep]

    def check_axis(self, axis: str, key: str) -> None:
        """Raise if there is no such axis."""
        if axis not in self.axes:
            raise ConfigError(
                f"{self.id}: {key}",
                f"{axis!r} is not an axis; it can be {listing(self.axes)}{nearest(axis, self.axes)}",
            )

    def check_where(self, where: Where, key: str) -> None:
        """Raise if there is no such axis, or no such label of it."""
        for axis, asked in where.items():
            self.check_axis(axis, key)
            labels = self.labels(axis)
            for label in [asked] if isinstance(asked, str) else asked:
                if label not in labels:
                    raise ConfigError(
                        f"{self.id}: {key}.{axis}",
                        f"{label!r} is not a label; it can be {listing(labels)}{nearest(label, labels)}",
                    )


def experiment_names() -> list[str]:
    """The experiments that come with the package."""
    order = (
        "stepsize",
        "momentum",
        "period",
        "sparsity",
        "topology",
        "clients",
        "llm",
        "accuracy",
        "ranking",
        "explained",
        "partitions",
        "theorem1",
        "corollary1",
        "compression",
        "direction",
        "loss",
        "noise",
        "participation",
    )
    files = [file.name for file in resources.files(__package__).iterdir()]
    present = {name.removesuffix(".toml") for name in files if name.endswith(".toml")}
    return [name for name in order if name in present] + sorted(present - set(order))


def load_experiment(name: str) -> Experiment:
    """An experiment of the package by its name, or a user-defined one by the path of its file."""
    if name in experiment_names():
        text = resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
        return parse_experiment(text, name, Path())
    path = Path(name)
    if path.suffix != ".toml":
        allowed = [*experiment_names(), "all"]
        raise ConfigError(
            "", f"{name!r} is not an experiment; it can be {listing(allowed)}, or a .toml file{nearest(name, allowed)}"
        )
    try:
        return parse_experiment(path.read_text(encoding="utf-8-sig"), path.stem, path.parent)
    except FileNotFoundError:
        raise ConfigError(name, "no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(name, f"cannot be read: {error}") from None


def parse_experiment(text: str, name: str, folder: Path) -> Experiment:
    """An experiment from the text of its file; `make_plan` checks what is in it."""
    table = parse_toml(text, name)
    check_values(table)
    for key in ("id", "folder"):
        if key in table:
            raise ConfigError(f"{name}: {key}", "unknown key")
    try:
        return Experiment.model_validate({**table, "id": name, "folder": folder})
    except ValidationError as error:
        raise _as_config_error(error, name) from None


def _as_config_error(error: ValidationError, name: str) -> ConfigError:
    """The first of pydantic's errors, as one line."""
    first = error.errors()[0]
    path = [str(part + 1) if isinstance(part, int) else part for part in first["loc"]]
    key = f"{name}: {'.'.join(path)}"
    known = [k for k in _known_keys(first["loc"][:-1]) if k not in ("id", "folder")]
    if first["type"] == "extra_forbidden":
        return ConfigError(key, f"unknown key; it can be {listing(known)}{nearest(path[-1], known)}")
    if first["type"] == "missing":
        return ConfigError(key, "missing")
    return ConfigError(key, describe_errors([first]))


def _known_keys(location: tuple[int | str, ...]) -> list[str]:
    """The keys that are allowed at a location of the file."""
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
