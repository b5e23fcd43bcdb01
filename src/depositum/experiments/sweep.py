"""The cells of a sweep: every combination of the axes' values, each with its configuration."""

import copy
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from depositum.errors import ConfigError, DepositumError, listing, nearest
from depositum.experiments.cache import CellConfig
from depositum.experiments.definition import Experiment, Settings
from depositum.runs.config_file import apply_override, from_table

Labels = dict[str, str]
Table = dict[str, dict[str, Any]]


class SweepCell:
    """One combination of the axes' values.

    Attributes
    ----------
    labels
        Its label on each axis.
    table
        The table of its configuration; once `checked` was used, change it by `set` only.
    """

    def __init__(self, labels: Labels, table: Table, experiment: Experiment) -> None:
        self.labels, self.table, self._experiment = labels, table, experiment
        self._checked: CellConfig | None = None

    @property
    def name(self) -> str:
        return ", ".join(f"{axis} = {label}" for axis, label in self.labels.items())

    @property
    def checked(self) -> CellConfig:
        """The configuration, checked in full when it is first used; an error names the cell."""
        if self._checked is None:
            try:
                self._checked = CellConfig(from_table(copy.deepcopy(self.table), self._experiment.folder))
            except DepositumError as error:
                raise ConfigError(f"{self._experiment.id}: {self.name}", str(error)) from None
        return self._checked

    def set(self, settings: Settings, key: str) -> None:
        """Change settings; the configuration is checked again only if that changes it."""
        before = copy.deepcopy(self.table)
        apply_settings(self.table, settings, key)
        if self.table != before:
            self._checked = None

    def copy(self) -> "SweepCell":
        """A cell with the same labels and an independent table."""
        return SweepCell(self.labels, copy.deepcopy(self.table), self._experiment)


@dataclass(frozen=True)
class SweepOptions:
    """Options of the command line: a quick run, the first `seeds` seeds, `--set` overrides, the device."""

    quick: bool = False
    seeds: int | None = None
    overrides: tuple[str, ...] = ()
    device: str | None = None


def make_cells(experiment: Experiment, options: SweepOptions) -> list[SweepCell]:
    """All cells of an experiment, in the order of its axes; tuned hyper-parameters are not set yet."""
    cells, without_options = [], []
    quick = experiment.quick if options.quick else None
    for values in itertools.product(*(axis.values for axis in experiment.sweep)):
        labels = {axis.axis: value.label for axis, value in zip(experiment.sweep, values, strict=True)}
        if any(matches(labels, entry) for entry in experiment.omit):
            continue
        table = copy.deepcopy(experiment.base)
        table.setdefault("run", {}).setdefault("seeds", list(experiment.seeds))
        for value in values:
            apply_settings(table, value.set, f"{experiment.id}: sweep {value.label!r}")
        for number, entry in enumerate(experiment.combination, start=1):
            if matches(labels, entry.where):
                apply_settings(table, entry.set, f"{experiment.id}: combination {number}")
        if quick is not None:
            apply_settings(table, quick.set, f"{experiment.id}: quick.set")
            for value in values:
                apply_settings(table, value.quick, f"{experiment.id}: sweep {value.label!r}")
            if quick.seeds is not None:
                table["run"]["seeds"] = list(quick.seeds)
        without_options.append(copy.deepcopy(table))
        apply_options(table, options)
        cells.append(SweepCell(labels, table, experiment))
    _check_distinct(cells, without_options, options)
    return cells


def _check_distinct(cells: Sequence[SweepCell], without_options: Sequence[Table], options: SweepOptions) -> None:
    """Raise if `--set` overrides what an axis sets: cells would no longer be what their labels say."""
    first_with: dict[str, int] = {}
    for index, cell in enumerate(cells):
        first = first_with.setdefault(json.dumps(cell.table, sort_keys=True, default=str), index)
        if without_options[first] != without_options[index]:
            raise ConfigError(
                f"--set {' '.join(options.overrides)}",
                f"{cells[first].name!r} and {cell.name!r} would be the same; leave out what the sweep sets",
            )


def apply_options(table: Table, options: SweepOptions) -> None:
    """Apply the options of the command line to a configuration's table."""
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


def apply_settings(table: Table, settings: Settings, key: str) -> None:
    """Set keys of a configuration's table, given as `"section.key"` or as tables of sections.

    Further dots name the keys of inner tables, so that two axes can set two arguments of one component.

    >>> table = {"run": {"steps": 5}}
    >>> apply_settings(table, {"run.period": 2, "network.channel.noise.sigma": 0.1, "algorithm": {"alpha": 0.1}}, "set")
    >>> table
    {'run': {'steps': 5, 'period': 2}, 'network': {'channel': {'noise': {'sigma': 0.1}}}, 'algorithm': {'alpha': 0.1}}
    """
    for name, value in settings.items():
        section, dot, inner = name.partition(".")
        if not dot and not isinstance(value, Mapping):
            raise ConfigError(
                f"{key}: {name}", f"{value!r} given; settings are written section.key, as algorithm.alpha"
            )
        target = table.setdefault(section, {})
        if not dot:
            target.update(copy.deepcopy(value))
            continue
        *path, last = inner.split(".")
        for part in path:
            if not isinstance(target.get(part), dict):
                target[part] = {}
            target = target[part]
        target[last] = copy.deepcopy(value)


def matches(labels: Mapping[str, str], where: Mapping[str, str | Sequence[str]]) -> bool:
    """Whether a cell's labels are among those of `where`, on every axis that it names."""
    return all(labels[axis] == ask if isinstance(ask, str) else labels[axis] in ask for axis, ask in where.items())


def passes_filters(labels: Labels, filters: Iterable[str], experiment: Experiment) -> bool:
    """Whether a cell passes every `--only` filter: `axis=label,label`, `axis!=label`, or a label of any axis.

    Case is ignored.
    """
    return all(_passes(labels, text, experiment) for text in filters)


def _passes(labels: Labels, text: str, experiment: Experiment) -> bool:
    axis, equals, asked = text.partition("=")
    if not equals:
        every = [label for name in experiment.axes for label in experiment.labels(name)]
        found = _find_labels([text.strip()], every, "--only")
        return any(label in found for label in labels.values())
    negated, axis = axis.endswith("!"), axis.removesuffix("!").strip()
    if axis not in experiment.axes:
        raise ConfigError(
            "--only", f"{axis!r} is not an axis; it can be {listing(experiment.axes)}{nearest(axis, experiment.axes)}"
        )
    found = _find_labels([part.strip() for part in asked.split(",")], experiment.labels(axis), f"--only {axis}")
    return (labels[axis] in found) is not negated


def _find_labels(asked: list[str], labels: list[str], key: str) -> set[str]:
    """The labels that are asked for, ignoring case."""
    known = {label.casefold(): label for label in labels}
    for name in asked:
        if name.casefold() not in known:
            raise ConfigError(
                key, f"{name!r} is not a label; it can be {listing(dict.fromkeys(labels))}{nearest(name, labels)}"
            )
    return {known[name.casefold()] for name in asked}
