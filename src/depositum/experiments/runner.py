"""Running a planned experiment: tuning, then the sweep; cells that are not in the cache run in groups."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Protocol

from depositum.engines import Callback, Loop
from depositum.experiments import cache
from depositum.experiments.cache import CachedCell, CellConfig
from depositum.experiments.definition import Experiment
from depositum.experiments.jobs import CellJob, JobSettings, run_jobs
from depositum.experiments.plan import Plan
from depositum.experiments.results import CellResult, Results
from depositum.experiments.sweep import SweepCell
from depositum.experiments.tuning import TuningTask
from depositum.runs import compatible, execute_all
from depositum.runs.config import Config
from depositum.runs.folder_lock import FolderInUse, exclusive

#: Seconds between two tries to lock a cell that another process is running.
LOCK_SECONDS = 0.5


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


def run_experiment(plan: Plan, store: Path, observer: SweepObserver, parallel: JobSettings | None = None) -> Results:
    """Tune and run what is not in the cache `store`; return the results of all cells, also those of earlier calls.

    With `parallel`, groups of cells are jobs of a cluster.
    """
    experiment, selected = plan.experiment, set(plan.selected)
    needed = [task for task in plan.tuning if selected.intersection(task.targets)]
    runner = _GroupRunner(plan, store, observer, parallel)
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

    def __init__(self, plan: Plan, store: Path, observer: SweepObserver, parallel: JobSettings | None) -> None:
        self.experiment, self.store, self.observer, self.parallel = plan.experiment, store, observer, parallel

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
        most = None if self.parallel is None else self.parallel.cells_per_job
        groups = [[unfinished[folder].cell for folder in folders] for folders in _groups(unfinished, most)]
        self.observer.begin(f"{self.experiment.id}, {stage}", total)
        try:
            if self.parallel is not None:
                if not run_jobs(self.parallel, [CellJob(cells, self.store, trace) for cells in groups], self.observer):
                    raise SweepStopped
                return
            for cells in groups:
                if self.observer.stopped():
                    raise SweepStopped
                run_cells(cells, self.store, trace, self.observer)
        finally:
            self.observer.end()


def run_cells(cells: Sequence[CellConfig], store: Path, trace: bool, observer: SweepObserver) -> None:
    """Run cells that share a simulator, unless another process does, which is then waited for."""
    folders = {cell.folder(store): cell for cell in cells}
    with ExitStack() as locks:
        for folder in sorted(folders):  # in one order, so that no two processes wait for each other
            folder.mkdir(parents=True, exist_ok=True)
            _lock(folder, locks, observer)
        group = {folder: cell for folder, cell in folders.items() if cache.find(folder, trace) is None}
        if group:
            _run_group(group, trace, observer)


def _lock(folder: Path, locks: ExitStack, observer: SweepObserver) -> None:
    waits = False
    while True:
        try:
            locks.enter_context(exclusive(folder))
            return
        except FolderInUse:
            if observer.stopped():
                raise SweepStopped from None
            if not waits:
                observer.message(f"{folder}: another process is running this cell; waiting for it")
            waits = True
            time.sleep(LOCK_SECONDS)


def _run_group(group: dict[Path, CellConfig], trace: bool, observer: SweepObserver) -> None:
    configs = [cell.config for cell in group.values()]
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


def _groups(unfinished: dict[Path, _Job], most: int | None) -> Iterator[list[Path]]:
    """The folders of cells that run in one simulator, at most so many."""
    folders, jobs = list(unfinished), list(unfinished.values())
    for group in compatible([job.cell.spec for job in jobs]):
        limits = [limit for limit in (most, *(jobs[index].at_once for index in group)) if limit]
        limit = min(limits, default=len(group))
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
