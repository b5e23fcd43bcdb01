"""The cells of a sweep: every combination of the axes' values, each with the table of its configuration."""

import copy
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from depositum.errors import ConfigError, DepositumError, listing, nearest
from depositum.experiments.definition import Experiment, Settings, Where
from depositum.runs.config import Config
from depositum.runs.reading import apply_override, from_table

Labels = dict[str, str]


@dataclass(eq=False)
class Cell:
    """One combination: its labels by axis, and the table of its configuration (not yet checked)."""

    labels: Labels
    table: dict[str, dict[str, Any]]

    @property
    def name(self) -> str:
        return ", ".join(f"{axis} = {label}" for axis, label in self.labels.items())


@dataclass(frozen=True)
class Options:
    """What a person asks of a reproduction beyond its file."""

    quick: bool = False
    seeds: int | None = None
    overrides: tuple[str, ...] = ()
    device: str | None = None


def cells(experiment: Experiment, options: Options) -> list[Cell]:
    """All cells of an experiment, in order of its axes; hyper-parameters that are tuned are not set yet."""
    made, without = [], []
    quick = experiment.quick if options.quick else None
    for values in itertools.product(*(axis.values for axis in experiment.sweep)):
        labels = {axis.axis: value.label for axis, value in zip(experiment.sweep, values, strict=True)}
        if any(matches(labels, entry) for entry in experiment.omit):
            continue
        table = copy.deepcopy(experiment.base)
        table.setdefault("run", {}).setdefault("seeds", list(experiment.seeds))
        for value in values:
            apply(table, value.set, f"{experiment.id}: sweep {value.label!r}")
        if quick is not None:
            apply(table, quick.set, f"{experiment.id}: quick.set")
            for value in values:
                apply(table, value.quick, f"{experiment.id}: sweep {value.label!r}")
            if quick.seeds is not None:
                table["run"]["seeds"] = list(quick.seeds)
        without.append(copy.deepcopy(table))
        override(table, options)
        made.append(Cell(labels, table))
    _check_apart(made, without, options)
    return made


def _check_apart(made: Sequence[Cell], without: Sequence[dict[str, Any]], options: Options) -> None:
    """Refuse `--set` of what an axis is about: cells would have labels that are not true of them."""
    found: dict[str, int] = {}
    for place, cell in enumerate(made):
        first = found.setdefault(json.dumps(cell.table, sort_keys=True, default=str), place)
        if without[first] != without[place]:
            raise ConfigError(
                f"--set {' '.join(options.overrides)}",
                f"{made[first].name!r} and {cell.name!r} would be the same; leave out what the sweep sets",
            )


def override(table: dict[str, Any], options: Options) -> None:
    """Apply what a person asked on the command line."""
    for text in options.overrides:
        apply_override(table, text)
    run = table.setdefault("run", {})
    if options.seeds is not None:
        seeds = run["seeds"]
        if not 1 <= options.seeds <= len(seeds):
            raise ConfigError("--seeds", f"{options.seeds} given; it must be from 1 to {len(seeds)}")
        run["seeds"] = seeds[: options.seeds]
    if options.device is not None:
        run["device"] = options.device


def apply(table: dict[str, Any], settings: Settings, key: str) -> None:
    """Set keys of a configuration's table, given as `"section.key"` or as tables of sections.

    >>> table = {"run": {"steps": 5}}
    >>> apply(table, {"run.period": 2, "algorithm": {"alpha": 0.1}}, "set"); table
    {'run': {'steps': 5, 'period': 2}, 'algorithm': {'alpha': 0.1}}
    """
    for name, value in settings.items():
        section, dot, inner = name.partition(".")
        if not dot and not isinstance(value, Mapping):
            raise ConfigError(
                f"{key}: {name}", f"{value!r} given; settings are written section.key, as algorithm.alpha"
            )
        table.setdefault(section, {}).update({inner: value} if dot else value)


def checked(cell: Cell, experiment: Experiment) -> Config:
    """The configuration of a cell, checked in full; what is wrong says of which cell."""
    try:
        return from_table(copy.deepcopy(cell.table), experiment.folder)
    except DepositumError as error:
        raise ConfigError(f"{experiment.id}: {cell.name}", str(error)) from None


# Which cells


def matches(labels: Mapping[str, str], where: Mapping[str, str | Sequence[str]]) -> bool:
    """Whether a cell's labels are among those asked for, on every axis that is named."""
    return all(labels[axis] == ask if isinstance(ask, str) else labels[axis] in ask for axis, ask in where.items())


def check_where(where: Where, experiment: Experiment, key: str) -> None:
    """Refuse axes and labels that the experiment does not have."""
    for axis, asked in where.items():
        check_axis(axis, experiment, key)
        for label in [asked] if isinstance(asked, str) else asked:
            labels = experiment.labels(axis)
            if label not in labels:
                raise ConfigError(
                    f"{experiment.id}: {key}.{axis}",
                    f"{label!r} is no value of it; it can be {listing(labels)}{nearest(label, labels)}",
                )


def check_axis(axis: str, experiment: Experiment, key: str) -> None:
    if axis not in experiment.axes:
        raise ConfigError(
            f"{experiment.id}: {key}",
            f"{axis!r} is no axis; it can be {listing(experiment.axes)}{nearest(axis, experiment.axes)}",
        )


def wanted(labels: Labels, filters: Iterable[str], experiment: Experiment) -> bool:
    """Whether a cell passes every filter: `axis=label,label`, `axis!=label`, or a label of any axis; in any case."""
    return all(_passes(labels, text, experiment) for text in filters)


def _passes(labels: Labels, text: str, experiment: Experiment) -> bool:
    axis, equals, asked = text.partition("=")
    if not equals:
        every = [label for name in experiment.axes for label in experiment.labels(name)]
        found = _found([text.strip()], every, "--only")
        return any(label in found for label in labels.values())
    negated, axis = axis.endswith("!"), axis.removesuffix("!").strip()
    if axis not in experiment.axes:
        raise ConfigError(
            "--only", f"{axis!r} is no axis; it can be {listing(experiment.axes)}{nearest(axis, experiment.axes)}"
        )
    found = _found([part.strip() for part in asked.split(",")], experiment.labels(axis), f"--only {axis}")
    return (labels[axis] in found) is not negated


def _found(asked: list[str], labels: list[str], key: str) -> set[str]:
    """The labels that are meant, whatever their case."""
    known = {label.casefold(): label for label in labels}
    for name in asked:
        if name.casefold() not in known:
            raise ConfigError(
                key, f"{name!r} is no value; it can be {listing(dict.fromkeys(labels))}{nearest(name, labels)}"
            )
    return {known[name.casefold()] for name in asked}
