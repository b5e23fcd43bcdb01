"""Running a planned experiment: tuning, then the sweep; cells that are not in the cache run in groups."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from depositum.engines import Callback, Loop
from depositum.experiments import cache
from depositum.experiments.cache import CachedCell, CellConfig
from depositum.experiments.definition import Experiment
from depositum.experiments.plan import Plan
from depositum.experiments.results import CellResult, Results
from depositum.experiments.sweep import SweepCell
from depositum.experiments.tuning import TuningTask
from depositum.runs import compatible, execute_all
from depositum.runs.config import Config


class SweepStopped(Exception):
    """The sweep was asked to stop; finished cells are cached."""


class SweepObserver(Protocol):
    """Is informed about the progress of a sweep, and can stop it."""

    #: A callback for every loop of the sweep.
    callback: Callback

    def begin(self, title: str, work: float) -> None:
        """A sweep starts, with this much work (iterations × rows)."""

    def group(self, name: str, cells: int, work: float) -> None:
        """The next group of cells starts."""

    def attach(self, loop: Loop) -> None:
        """A loop starts, which can be asked to stop."""

    def message(self, line: str) -> None:
        """Something the user should know."""

    def end(self) -> None:
        """The sweep is complete, or was stopped."""

    def stopped(self) -> bool:
        """Whether the sweep is to stop."""


def run_experiment(plan: Plan, store: Path, observer: SweepObserver) -> Results:
    """Tune and run what is not in the cache `store`; return the results of all cells, also those of earlier calls."""
    experiment, selected = plan.experiment, set(plan.selected)
    needed = [task for task in plan.tuning if selected.intersection(task.targets)]
    runner = _GroupRunner(plan, store, observer)
    runner.run([job for task in needed for job in _tuning_jobs(task, experiment)], "tuning")
    for task in plan.tuning:
        finished = _finished_points(task, store)
        if finished is None:
            continue  # a task of cells that are not selected
        task.decide(finished)
        if task.ended_worse:
            observer.message(f"{experiment.id}: {task.name}: ends worse than it began at every point of its grid")
        for key in task.edges if task in needed else []:
            value = task.points[task.best].settings[key]
            observer.message(f"{experiment.id}: {task.name}: {key} = {value} is at the edge of its grid")
    jobs = [_Job(cell.checked, _max_at_once(cell, experiment)) for cell in plan.selected]
    runner.run(jobs, "sweep", experiment.trace)
    return collect(plan, store)


def collect(plan: Plan, store: Path) -> Results:
    """The cached results of an experiment: with the seeds asked for or, for cells not selected, with most seeds."""
    experiment, selected = plan.experiment, set(plan.selected)
    # Until a choice is made, the configurations of its target cells are placeholders.
    undecided = {cell for task in plan.tuning if task.values is None for cell in task.targets}
    results = []
    for cell in plan.cells:
        find = cache.find_exact if cell in selected else cache.find_any
        found = find(store, cell.checked, experiment.trace) if cell not in undecided else None
        config = cell.checked.config
        history, trace = (found.history, found.trace) if found else (None, None)
        results.append(CellResult(cell.labels, config, found, history, trace, experiment.variance))
    return Results(results, {axis: experiment.labels(axis) for axis in experiment.axes})


class _Job(NamedTuple):
    """A configuration to run, and how many like it may run in one simulator (None: any number)."""

    cell: CellConfig
    at_once: int | None


def _tuning_jobs(task: TuningTask, experiment: Experiment) -> list[_Job]:
    limit = _max_at_once(task.targets[0], experiment)
    return [_Job(config, limit) for point in task.points for config in point.configs]


def _finished_points(task: TuningTask, store: Path) -> list[list[CachedCell]] | None:
    """For each grid point, the finished runs of its configurations; None if one is missing."""
    finished = []
    for point in task.points:
        cells = [cache.find_exact(store, config) for config in point.configs]
        present = [cell for cell in cells if cell is not None]
        if len(present) < len(cells):
            return None
        finished.append(present)
    return finished


def _max_at_once(cell: SweepCell, experiment: Experiment) -> int | None:
    """How many cells like this one may run in one simulator."""
    values = [value for axis in experiment.sweep for value in axis.values if cell.labels[axis.axis] == value.label]
    return min((value.at_once for value in values if value.at_once is not None), default=None)


class _GroupRunner:
    """Runs the configurations that are not in the cache, compatible ones in one simulator."""

    def __init__(self, plan: Plan, store: Path, observer: SweepObserver) -> None:
        self.experiment, self.store, self.observer = plan.experiment, store, observer

    def run(self, jobs: Sequence[_Job], stage: str, trace: bool = False) -> None:
        unfinished: dict[Path, _Job] = {}
        for job in jobs:
            folder = job.cell.folder(self.store)
            if cache.find(folder, trace) is None:
                unfinished[folder] = job
            else:
                cache.delete_models(folder)
        if not unfinished:
            return
        for folder in unfinished:
            cache.delete_finished(folder)
        total = sum(_work(job.cell.config) for job in unfinished.values())
        self.observer.begin(f"{self.experiment.id}, {stage}", total)
        try:
            for folders in _groups(unfinished):
                if self.observer.stopped():
                    raise SweepStopped
                self._run_group({folder: unfinished[folder].cell for folder in folders}, trace)
        finally:
            self.observer.end()

    def _run_group(self, group: dict[Path, CellConfig], trace: bool) -> None:
        observer, configs = self.observer, [cell.config for cell in group.values()]
        observer.group(_describe(configs[0]), len(configs), sum(map(_work, configs)))
        start = time.perf_counter()
        try:
            results = execute_all(
                [cell.spec for cell in group.values()],
                list(group),
                callbacks=[observer.callback],
                on_loop=observer.attach,
                keep_end=False,  # only the history of a cell is kept
            )
        finally:  # the time is divided equally among the cells of the group
            for folder in group:
                cache.add_time(folder, (time.perf_counter() - start) / len(group))
        for config, result in zip(configs, results, strict=True):
            if result.damage is not None:
                observer.message(f"{_describe(config)}: {result.damage}")
            if not result.finished:
                continue
            cache.finish(result, config, trace)
            for divergence in result.diverged:
                observer.message(f"{_describe(config)}: {divergence}")
        if not all(result.finished for result in results):
            raise SweepStopped


def _groups(unfinished: dict[Path, _Job]) -> Iterator[list[Path]]:
    """The folders of cells that run in one simulator."""
    folders, jobs = list(unfinished), list(unfinished.values())
    for group in compatible([job.cell.spec for job in jobs]):
        limit = min((job.at_once for job in (jobs[index] for index in group) if job.at_once), default=len(group))
        for start in range(0, len(group), limit):
            yield [folders[index] for index in group[start : start + limit]]


def _work(config: Config) -> float:
    """The work of a configuration: iterations × rows."""
    return float(config.run.steps * config.problem.clients * len(config.run.seeds))


def _describe(config: Config) -> str:
    """What the cells of a group have in common: dataset, model, method, and its hyper-parameters that are strings."""
    problem, algorithm = config.problem, config.algorithm
    named = [spec if isinstance(spec, str) else str(next(iter(spec))) for spec in (problem.dataset, problem.model)]
    variants = [value for value in (algorithm.model_extra or {}).values() if isinstance(value, str)]
    return " ".join((*named, algorithm.name, *variants))
