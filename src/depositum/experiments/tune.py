"""Hyper-parameters that the paper does not state: chosen once, from a grid in the file, on held-out training data."""

import copy
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from depositum.errors import ConfigError
from depositum.experiments.cache import Kept
from depositum.experiments.definition import Experiment, Tune
from depositum.experiments.results import check_measure
from depositum.experiments.sweep import (
    Cell,
    Labels,
    Options,
    apply,
    check_axis,
    check_where,
    checked,
    matches,
    override,
)
from depositum.runs.config import Config


@dataclass
class Point:
    """One point of a grid: what it sets, and the configurations it is tried with, one for each cell it is tried on."""

    settings: dict[str, Any]
    configs: list[Config]


@dataclass
class Choice:
    """What is chosen together: the cells it is for, the points, and, once they are run, their values and the best.

    A point's value is the worst of those on the cells it is tried on.
    """

    labels: Labels  #: of the `where` and `per` axes that are one label
    tune: Tune
    targets: list[Cell]
    points: list[Point]
    values: list[float] | None = None
    seconds: float = 0.0

    @property
    def tried(self) -> list[tuple[Cell, Config]]:
        """What is run to choose, each with a cell that it is for."""
        return [(self.targets[0], config) for point in self.points for config in point.configs]

    @property
    def best(self) -> int:
        assert self.values is not None
        return int(np.argmin(self.values))

    @property
    def name(self) -> str:
        return ", ".join(self.labels.values())

    @property
    def edges(self) -> list[str]:
        """The keys whose chosen value is the first or last of several: the grid may be too narrow there."""
        chosen = self.points[self.best].settings
        return [key for key, grid in self.tune.grid.items() if len(grid) > 1 and chosen[key] in (grid[0], grid[-1])]

    def decide(self, kept: Sequence[Sequence[Kept]]) -> None:
        """Take over what the points gave, and set the best in the cells it is for; what diverged is never best."""
        values = [max(_last(own, self.tune.by) for own in each) for each in kept]
        if not np.isfinite(values).any():
            raise ConfigError(f"tune: {self.name}", "diverges at every point of its grid; choose smaller stepsizes")
        self.values = values
        self.seconds = sum({own.folder: own.seconds for each in kept for own in each}.values())
        for cell in self.targets:
            apply(cell.table, self.points[self.best].settings, "tune.grid")


def plan(experiment: Experiment, cells: list[Cell], options: Options) -> list[Choice]:
    """What is to be chosen, with every point's configuration checked.

    Until it is, the cells it is for have the first point of the grid, so that they can be checked too.
    """
    choices = []
    few = experiment.quick.grid if options.quick else None
    for place, tune in enumerate(experiment.tune, start=1):
        key = f"tune {place}"
        _check(tune, experiment, key)
        groups: dict[tuple[str, ...], list[Cell]] = {}
        for cell in cells:
            if matches(cell.labels, tune.where):
                groups.setdefault(tuple(cell.labels[axis] for axis in tune.per), []).append(cell)
        for labels, targets in groups.items():
            own = {axis: label for axis, label in tune.where.items() if isinstance(label, str)}
            own |= dict(zip(tune.per, labels, strict=True))
            tried = [cell for cell in targets if matches(cell.labels, tune.cell)]
            asked = math.prod(1 if isinstance(label, str) else len(label) for label in tune.cell.values())
            if len(tried) != asked:
                raise ConfigError(
                    f"{experiment.id}: {key}.cell",
                    f"{tune.cell} given; it must name {asked} of the cells to choose for, not {len(tried)}",
                )
            points = [_point(experiment, tune, tried, settings, options) for settings in _grid(tune, few)]
            choices.append(Choice(own, tune, targets, points))
    for choice in choices:
        for cell in choice.targets:
            apply(cell.table, choice.points[0].settings, "tune.grid")
    return choices


def _check(tune: Tune, experiment: Experiment, key: str) -> None:
    check_where(tune.where, experiment, f"{key}.where")
    check_where(tune.cell, experiment, f"{key}.cell")
    for axis in tune.per:
        check_axis(axis, experiment, f"{key}.per")
    check_measure(tune.by, f"{experiment.id}: {key}.by")
    for name, values in tune.grid.items():
        if not values or "." not in name:
            raise ConfigError(
                f"{experiment.id}: {key}.grid.{name}", f"{values!r} given; it must be section.key = [value, …]"
            )


def _grid(tune: Tune, few: int | None) -> list[dict[str, Any]]:
    """Every combination of the grid's values, or of the first few of each."""
    values = [own[:few] for own in tune.grid.values()]
    return [dict(zip(tune.grid, point, strict=True)) for point in itertools.product(*values)]


def _point(experiment: Experiment, tune: Tune, cells: list[Cell], settings: dict[str, Any], options: Options) -> Point:
    return Point(settings, [_tried(experiment, tune, cell, settings, options) for cell in cells])


def _tried(experiment: Experiment, tune: Tune, cell: Cell, settings: dict[str, Any], options: Options) -> Config:
    tried = Cell(cell.labels, copy.deepcopy(cell.table))
    apply(tried.table, tune.set, "tune.set")
    if options.quick:
        apply(tried.table, experiment.quick.tune, "quick.tune")
    tried.table["run"]["seeds"] = [tune.seed]
    override(tried.table, Options(overrides=options.overrides, device=options.device))
    if tune.part is not None:
        _evaluate_on(tried.table["problem"], tune.part)
    apply(tried.table, {"problem.holdout": tune.holdout, "run.seeds": [tune.seed], **settings}, "tune.grid")
    return checked(tried, experiment)


def _evaluate_on(problem: dict[str, Any], part: str) -> None:
    """Have texts, whichever they are, evaluated on another part than the test part."""
    dataset = problem.get("dataset")
    if not isinstance(dataset, dict) or len(dataset) != 1:
        dataset = {dataset: {}}
    ((name, arguments),) = dataset.items()
    problem["dataset"] = {name: {**arguments, "evaluate": part}}


def _last(kept: Kept, measure: str) -> float:
    """The last value of a measure; infinite where the run diverged."""
    if kept.diverged:
        return float("inf")
    value = float(kept.history.sort_values("iteration")[measure].iloc[-1])
    return value if np.isfinite(value) else float("inf")
