"""Hyper-parameters that the paper does not state: chosen from a grid in the file, on held-out training data."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from depositum.errors import ConfigError
from depositum.experiments.cache import CachedCell, CellConfig
from depositum.experiments.definition import Experiment, Tuning
from depositum.experiments.results import check_measure
from depositum.experiments.sweep import Labels, SweepCell, SweepOptions, apply_options, apply_settings, matches


@dataclass
class GridPoint:
    """One point of a grid: its settings, and a configuration with them for each cell that it is run on."""

    settings: dict[str, Any]
    configs: list[CellConfig]


@dataclass
class TuningTask:
    """One choice from a grid: the cells it is for, the grid points and, once they were run, their values.

    The value of a point is the worst of its values on the cells it is run on.
    """

    labels: Labels  #: the labels that all cells of the task share, on the `where` and `per` axes
    tuning: Tuning
    targets: list[SweepCell]
    points: list[GridPoint]
    values: list[float] | None = None
    seconds: float = 0.0

    @property
    def best(self) -> int:
        """The index of the point with the lowest value."""
        assert self.values is not None
        return int(np.argmin(self.values))

    @property
    def name(self) -> str:
        return ", ".join(self.labels.values())

    @property
    def edges(self) -> list[str]:
        """The keys whose chosen value is the first or last of several: the grid may be too narrow there."""
        chosen = self.points[self.best].settings
        return [key for key, grid in self.tuning.grid.items() if len(grid) > 1 and chosen[key] in (grid[0], grid[-1])]

    def decide(self, finished: Sequence[Sequence[CachedCell]]) -> None:
        """Store the values of the points, and set the best one in the target cells; a diverged point is never best.

        Parameters
        ----------
        finished
            For each point, the finished runs of its configurations.
        """
        values = [max(_last_value(cell, self.tuning.by) for cell in cells) for cells in finished]
        if not np.isfinite(values).any():
            raise ConfigError(f"tune: {self.name}", "diverges at every point of its grid; choose smaller stepsizes")
        self.values = values
        self.seconds = sum({cell.folder: cell.seconds for cells in finished for cell in cells}.values())
        for target in self.targets:
            target.set(self.points[self.best].settings, "tune.grid")


def make_tasks(experiment: Experiment, cells: list[SweepCell], options: SweepOptions) -> list[TuningTask]:
    """The tuning tasks of an experiment, with every configuration checked.

    Sets the first point of the grid in the target cells, so that they can be checked before the choice is made.
    """
    tasks = []
    max_values = experiment.quick.grid if options.quick else None
    for number, tuning in enumerate(experiment.tune, start=1):
        key = f"tune {number}"
        _check(tuning, experiment, key)
        groups: dict[tuple[str, ...], list[SweepCell]] = {}
        for cell in cells:
            if matches(cell.labels, tuning.where):
                groups.setdefault(tuple(cell.labels[axis] for axis in tuning.per), []).append(cell)
        for per_labels, targets in groups.items():
            labels = {axis: label for axis, label in tuning.where.items() if isinstance(label, str)}
            labels |= dict(zip(tuning.per, per_labels, strict=True))
            run_on = [cell for cell in targets if matches(cell.labels, tuning.cell)]
            expected = math.prod(1 if isinstance(label, str) else len(label) for label in tuning.cell.values())
            if len(run_on) != expected:
                raise ConfigError(
                    f"{experiment.id}: {key}.cell",
                    f"{tuning.cell} given; it must select {expected} of the cells to tune, not {len(run_on)}",
                )
            points = [
                GridPoint(settings, [_config(experiment, tuning, cell, settings, options) for cell in run_on])
                for settings in _grid(tuning, max_values)
            ]
            tasks.append(TuningTask(labels, tuning, targets, points))
    for task in tasks:
        for cell in task.targets:
            cell.set(task.points[0].settings, "tune.grid")
    return tasks


def _check(tuning: Tuning, experiment: Experiment, key: str) -> None:
    experiment.check_where(tuning.where, f"{key}.where")
    experiment.check_where(tuning.cell, f"{key}.cell")
    for axis in tuning.per:
        experiment.check_axis(axis, f"{key}.per")
    check_measure(tuning.by, f"{experiment.id}: {key}.by")
    for name, values in tuning.grid.items():
        if not values or "." not in name:
            raise ConfigError(
                f"{experiment.id}: {key}.grid.{name}", f"{values!r} given; it must be section.key = [value, …]"
            )


def _grid(tuning: Tuning, max_values: int | None) -> list[dict[str, Any]]:
    """The settings of all points: every combination of the grid's values, or of the first `max_values` of each key."""
    values = [each[:max_values] for each in tuning.grid.values()]
    return [dict(zip(tuning.grid, point, strict=True)) for point in itertools.product(*values)]


def _config(
    experiment: Experiment, tuning: Tuning, cell: SweepCell, settings: dict[str, Any], options: SweepOptions
) -> CellConfig:
    """The configuration of a grid point on a cell."""
    point = cell.copy()
    apply_settings(point.table, tuning.set, "tune.set")
    if options.quick:
        apply_settings(point.table, experiment.quick.tune, "quick.tune")
    point.table["run"]["seeds"] = [tuning.seed]
    apply_options(point.table, SweepOptions(overrides=options.overrides, device=options.device))
    if tuning.part is not None:
        _evaluate_on(point.table["problem"], tuning.part)
    apply_settings(
        point.table, {"problem.holdout": tuning.holdout, "run.seeds": [tuning.seed], **settings}, "tune.grid"
    )
    return point.checked


def _evaluate_on(problem: dict[str, Any], part: str) -> None:
    """Evaluate a text dataset on another part than the test part."""
    dataset = problem.get("dataset")
    if not isinstance(dataset, dict) or len(dataset) != 1:
        dataset = {dataset: {}}
    ((name, arguments),) = dataset.items()
    problem["dataset"] = {name: {**arguments, "evaluate": part}}


def _last_value(cell: CachedCell, measure: str) -> float:
    """The last value of a measure; infinite if the run diverged."""
    if cell.diverged:
        return float("inf")
    value = float(cell.history.sort_values("iteration")[measure].iloc[-1])
    return value if np.isfinite(value) else float("inf")
