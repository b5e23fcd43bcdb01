"""Run the cells of an experiment: tuning first, then the sweep, from the cache what is there, the rest in batches."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from depositum.engines import Callback, Loop
from depositum.errors import ConfigError, listing, nearest
from depositum.experiments import cache, tune
from depositum.experiments.claims import check_claim, judge
from depositum.experiments.definition import Experiment
from depositum.experiments.figures import check_figure
from depositum.experiments.results import Outcome, Results
from depositum.experiments.sweep import Cell, Options, cells, check_where, checked, matches, wanted
from depositum.experiments.tables import check_table, make
from depositum.metrics import COSTLY, MetricSettings
from depositum.runs.cells import execute_cells, together
from depositum.runs.config import Config


class StoppedError(Exception):
    """The sweep was asked to stop; what is done is kept."""


class Watch(Protocol):
    """Who is told how a sweep goes, and says whether it is to stop."""

    #: Told of every loop's progress.
    callback: Callback

    def begin(self, title: str, work: float) -> None:
        """There is so much to do (iterations of trials)."""

    def group(self, name: str, cells: int, work: float) -> None:
        """The next group begins."""

    def attach(self, loop: Loop) -> None:
        """A loop that can be asked to stop."""

    def message(self, line: str) -> None:
        """Something a person should know."""

    def end(self) -> None:
        """All is done, or was stopped."""

    def stopped(self) -> bool:
        """Whether a person asked to stop."""


@dataclass
class Plan:
    """An experiment with everything checked: its cells, which of them to run, and what is chosen first."""

    experiment: Experiment
    options: Options
    cells: list[Cell]
    only: list[Cell]
    choices: list[tune.Choice] = field(default_factory=list)


def plan(experiment: Experiment, options: Options, only: Sequence[str] = ()) -> Plan:
    """Check an experiment in full, before any work."""
    names = experiment.axes
    for name in names:
        labels = experiment.labels(name)
        if names.count(name) > 1 or len(set(labels)) < len(labels):
            raise ConfigError(f"{experiment.id}: sweep", f"axis {name!r} is there twice, or has a label twice")
        if name in ("seed", "iteration"):
            raise ConfigError(
                f"{experiment.id}: sweep", f"an axis cannot be called {name!r}; that is a column of runs.csv"
            )
    if experiment.time_by is not None and experiment.time_by not in names:
        near = nearest(experiment.time_by, names)
        raise ConfigError(
            f"{experiment.id}: time_by", f"{experiment.time_by!r} is no axis; it can be {listing(names)}{near}"
        )
    for place, entry in enumerate(experiment.omit, start=1):
        check_where(entry, experiment, f"omit {place}")
    made = cells(experiment, options)
    _check_report(experiment, made)
    choices = tune.plan(experiment, made, options)
    filters = [*only, *(experiment.quick.only if options.quick and not only else [])]
    chosen = [cell for cell in made if wanted(cell.labels, filters, experiment)]
    if not chosen:
        raise ConfigError("--only", f"{', '.join(filters)} given; no cell of {experiment.id!r} is all of that")
    for cell in chosen:
        checked(cell, experiment)
    _check_measured(experiment, made)
    return Plan(experiment, options, made, chosen, choices)


def _check_measured(experiment: Experiment, made: Sequence[Cell]) -> None:
    """Refuse a panel of a measure that none of its cells evaluates: it would be empty."""
    usual = MetricSettings().costly_every
    for place, panel in enumerate(experiment.figure.panel if experiment.figure else (), start=1):
        inside = [cell.table.get("metrics", {}) for cell in made if matches(cell.labels, panel.where)]
        for axis, measure in (("y", panel.y), ("x", panel.x)):
            costly = measure.removesuffix("/n") in COSTLY
            if costly and inside and not any(own.get("costly_every", usual) for own in inside):
                raise ConfigError(
                    f"{experiment.id}: figure.panel {place}.{axis}",
                    f"{measure!r} given, but no cell evaluates it; set metrics.costly_every",
                )


def _check_report(experiment: Experiment, made: list[Cell]) -> None:
    """Refuse a figure, table or claim that could not be made of these cells, by making it of cells not yet run."""
    order = {axis: experiment.labels(axis) for axis in experiment.axes}
    nothing = Results([Outcome(cell.labels, Config(), None) for cell in made], order)
    if experiment.figure is not None:
        check_figure(experiment.figure, experiment, [outcome.labels for outcome in nothing])
    for place, table in enumerate(experiment.table, start=1):
        check_table(table, experiment, f"table {place}")
        with _naming(f"{experiment.id}: table {place}"):
            make(table, experiment, nothing)
    for place, claim in enumerate(experiment.claim, start=1):
        check_claim(claim, experiment, f"claim {place}")
        with _naming(f"{experiment.id}: claim {place}"):
            judge(claim, nothing)


@contextmanager
def _naming(key: str) -> Iterator[None]:
    """Says of what a mistake is."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(key, str(error)) from None


def perform(plan: Plan, store: Path, watch: Watch) -> Results:
    """Tune and run what is not in the cache yet, and return what all cells gave, those of earlier calls included."""
    experiment, only = plan.experiment, set(plan.only)
    needed = [choice for choice in plan.choices if only.intersection(choice.targets)]
    run = _Runner(plan, store, watch)
    run([Job(config, at_once(cell, experiment)) for choice in needed for cell, config in choice.tried], "tuning")
    for choice in plan.choices:
        kept = [[cache.find(cache.place(store, config)) for config in point.configs] for point in choice.points]
        known = [[own for own in each if own is not None] for each in kept]
        if known != kept:
            continue  # of cells that are not asked for
        choice.decide(known)
        for key in choice.edges if choice in needed else []:
            chosen = choice.points[choice.best].settings[key]
            watch.message(f"{experiment.id}: {choice.name}: {key} = {chosen} is at the edge of its grid")
    run([Job(checked(cell, experiment), at_once(cell, experiment)) for cell in plan.only], "sweep", experiment.trace)
    return collect(plan, store)


def collect(plan: Plan, store: Path) -> Results:
    """What the cache has of an experiment: with the seeds asked for, or else with the most there are."""
    experiment, only = plan.experiment, set(plan.only)
    # Until what is tuned is chosen, a cell's configuration is only a placeholder.
    open_still = {cell for choice in plan.choices if choice.values is None for cell in choice.targets}
    outcomes = []
    for cell in plan.cells:
        config = checked(cell, experiment)
        find = cache.find_exact if cell in only else cache.find_any
        kept = find(store, config, experiment.trace) if cell not in open_still else None
        outcomes.append(
            Outcome(cell.labels, config, kept, kept.history if kept else None, kept.trace if kept else None)
        )
    return Results(outcomes, {axis: experiment.labels(axis) for axis in experiment.axes})


class Job(NamedTuple):
    """A configuration to run, and how many like it may run together."""

    config: Config
    at_once: int | None


def at_once(cell: Cell, experiment: Experiment) -> int | None:
    """How many cells may run together with this one."""
    values = [value for axis in experiment.sweep for value in axis.values if cell.labels[axis.axis] == value.label]
    return min((value.at_once for value in values if value.at_once is not None), default=None)


class _Runner:
    """Runs what the cache lacks, groups of compatible cells at once."""

    def __init__(self, plan: Plan, store: Path, watch: Watch) -> None:
        self.experiment, self.store, self.watch = plan.experiment, store, watch

    def __call__(self, jobs: Sequence[Job], stage: str, trace: bool = False) -> None:
        todo: dict[Path, Job] = {}
        for job in jobs:
            folder = cache.place(self.store, job.config)
            if cache.find(folder, trace) is None:
                todo[folder] = job
            else:
                cache.tidy(folder)
        if not todo:
            return
        for folder in todo:
            cache.renew(folder)
        self.watch.begin(f"{self.experiment.id}, {stage}", sum(work(job.config) for job in todo.values()))
        try:
            for folders in _groups(todo):
                if self.watch.stopped():
                    raise StoppedError
                self._run_group({folder: todo[folder].config for folder in folders}, trace)
        finally:
            self.watch.end()

    def _run_group(self, group: dict[Path, Config], trace: bool) -> None:
        watch, configs = self.watch, list(group.values())
        watch.group(_described(configs), len(configs), sum(map(work, configs)))
        began = time.perf_counter()
        try:
            results = execute_cells(
                configs,
                list(group),
                base=self.experiment.folder,
                callbacks=[watch.callback],
                on_loop=watch.attach,
                keep_end=False,  # what is kept of a cell is its history
            )
        finally:  # cells that run together share the time
            for folder in group:
                cache.spend(folder, (time.perf_counter() - began) / len(group))
        for config, result in zip(configs, results, strict=True):
            if not result.finished:
                continue
            cache.finish(result, config, trace)
            for divergence in result.diverged:
                watch.message(f"{_described([config])}: {divergence}")
        if not all(result.finished for result in results):
            raise StoppedError


def _groups(todo: dict[Path, Job]) -> Iterator[list[Path]]:
    """The folders of cells that run together."""
    folders, jobs = list(todo), list(todo.values())
    for group in together([job.config for job in jobs]):
        most = min((job.at_once for job in (jobs[place] for place in group) if job.at_once), default=len(group))
        for start in range(0, len(group), most):
            yield [folders[place] for place in group[start : start + most]]


def work(config: Config) -> float:
    """How much there is to do: iterations of clients of trials."""
    return float(config.run.steps * config.problem.clients * len(config.run.seeds))


def _described(configs: Sequence[Config]) -> str:
    """What a group of cells has in common, in a few words."""
    problem, algorithm = configs[0].problem, configs[0].algorithm
    momentum = (algorithm.model_extra or {}).get("momentum", "")
    named = [spec if isinstance(spec, str) else str(next(iter(spec))) for spec in (problem.dataset, problem.model)]
    return " ".join(part for part in (*named, algorithm.name, momentum) if part)
