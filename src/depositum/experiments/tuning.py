"""Hyper-parameters that the paper does not state: chosen from a grid in the file, on held-out training data.

The decision is that of `depositum.tuning`: several seeds, of which the worst counts, and no stepsize beside an unstable
one. Grids are not refined, so a choice at the edge of its grid is reported.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from depositum.errors import ConfigError
from depositum.experiments.cache import CachedCell, CellConfig
from depositum.experiments.definition import Experiment, Tuning
from depositum.experiments.results import check_measure
from depositum.experiments.sweep import Labels, SweepCell, SweepOptions, apply_options, apply_settings, matches
from depositum.tuning import Candidate, Outcome, choose


@dataclass
class GridPoint:
    """One point of a grid: its settings, and a configuration with them for each cell that it is run on."""

    settings: dict[str, Any]
    configs: list[CellConfig]


@dataclass
class TuningTask:
    """One choice from a grid: the cells it is for, the grid points and, once they were run, their values.

    The value of a point is the worst of its values over seeds and cells; infinite if it is unstable.
    """

    labels: Labels  #: the labels that all cells of the task share, on the `where` and `per` axes
    tuning: Tuning
    targets: list[SweepCell]
    points: list[GridPoint]
    values: list[float] | None = None
    #: The index of the chosen point, once `values` are known.
    best: int = 0
    seconds: float = 0.0
    #: Whether every point ended worse than it began, so that the choice means little.
    ended_worse: bool = False

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
        outcomes = [_outcome(point, cells, self.tuning.by) for point, cells in zip(self.points, finished, strict=True)]
        chosen = choose(outcomes, safety=math.inf)
        if chosen is None:
            finite = [outcome for outcome in outcomes if not any(outcome.diverged)]
            if not finite:
                raise ConfigError(f"tune: {self.name}", "diverges at every point of its grid; choose smaller stepsizes")
            self.ended_worse = True  # a run of few steps may not get below its start at any stepsize
            chosen = min(finite, key=lambda outcome: max(outcome.held_out))
        self.values = [outcome.worst_held_out for outcome in outcomes]
        self.best = outcomes.index(chosen)
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
    check_measure(tuning.by, experiment, f"{key}.by")
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
    point.table["run"]["seeds"] = list(tuning.seeds)
    apply_options(point.table, SweepOptions(overrides=options.overrides, device=options.device))
    if tuning.part is not None:
        _evaluate_on(point.table["problem"], tuning.part)
    apply_settings(
        point.table, {"problem.holdout": tuning.holdout, "run.seeds": list(tuning.seeds), **settings}, "tune.grid"
    )
    return point.checked


def _evaluate_on(problem: dict[str, Any], part: str) -> None:
    """Evaluate a text dataset on another part than the test part."""
    dataset = problem.get("dataset")
    if not isinstance(dataset, dict) or len(dataset) != 1:
        dataset = {dataset: {}}
    ((name, arguments),) = dataset.items()
    problem["dataset"] = {name: {**arguments, "evaluate": part}}


def _outcome(point: GridPoint, cells: Sequence[CachedCell], measure: str) -> Outcome:
    """How a grid point ended: for each seed, the worst of the cells that it was run on."""
    method = point.configs[0].spec.algorithm
    others, step = dict(point.settings), None
    value = others.get(key := f"algorithm.{method.stepsize_key}")
    if isinstance(value, int | float):
        del others[key]
        step = 1 / value if method.stepsize_inverse else float(value)
    steps = point.configs[0].config.run.steps
    ends = [_values(cell, measure, steps) for cell in cells]
    objectives, starts = ([_values(cell, "phi", t) for cell in cells] for t in (steps, 0))
    known = all(math.isfinite(value) for values in (*starts, *objectives) for value in values)
    return Outcome(
        Candidate(tuple(others.items()), step),
        held_out=_worst(ends),
        # A language model's loss on all its training data may not have been evaluated.
        objective=_worst(objectives) if known else _worst(ends),
        initial=_worst(starts) if known else (),
    )


def _worst(values: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The largest value of each seed over cells."""
    return tuple(max(of_seed) for of_seed in zip(*values, strict=True))


def _values(cell: CachedCell, measure: str, iteration: int) -> list[float]:
    """A measure of each seed at an iteration; infinite where it is not finite, or the seed diverged before."""
    records = cell.history[cell.history["iteration"] == iteration].set_index("seed")[measure]
    values = [float(records.get(seed, math.inf)) for seed in cell.seeds]
    return [value if math.isfinite(value) else math.inf for value in values]
