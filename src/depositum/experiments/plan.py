"""Checking an experiment in full, before any work: its cells, tuning, figure, tables and claims."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from depositum.errors import ConfigError
from depositum.experiments.claims import check_claim, judge
from depositum.experiments.definition import Experiment
from depositum.experiments.figures import check_figure
from depositum.experiments.results import CellResult, Results, column_of
from depositum.experiments.sweep import SweepCell, SweepOptions, make_cells, matches, passes_filters
from depositum.experiments.tables import check_table, fill_table
from depositum.experiments.tuning import TuningTask, make_tasks
from depositum.metrics import COSTLY, MetricSettings
from depositum.runs.config import Config


@dataclass
class Plan:
    """A checked experiment: all its cells, those that are to be run, and the tuning that comes first."""

    experiment: Experiment
    options: SweepOptions
    cells: list[SweepCell]
    selected: list[SweepCell]
    tuning: list[TuningTask] = field(default_factory=list)


def make_plan(experiment: Experiment, options: SweepOptions, only: Sequence[str] = ()) -> Plan:
    """Check an experiment in full; `only` selects the cells to run (`passes_filters`)."""
    _check_axes(experiment)
    cells = make_cells(experiment, options)
    check_report(experiment, cells)
    tasks = make_tasks(experiment, cells, options)
    filters = [*only, *(experiment.quick.only if options.quick and not only else [])]
    selected = [cell for cell in cells if passes_filters(cell.labels, filters, experiment)]
    if not selected:
        raise ConfigError("--only", f"{', '.join(filters)} given; no cell of {experiment.id!r} matches all of them")
    for cell in selected:
        _ = cell.checked
    _check_measured(experiment, cells)
    return Plan(experiment, options, cells, selected, tasks)


def _check_axes(experiment: Experiment) -> None:
    names = experiment.axes
    for name in names:
        labels = experiment.labels(name)
        if names.count(name) > 1 or len(set(labels)) < len(labels):
            raise ConfigError(f"{experiment.id}: sweep", f"axis {name!r} is defined twice, or has a label twice")
        if name in ("seed", "iteration"):
            raise ConfigError(
                f"{experiment.id}: sweep", f"an axis cannot be called {name!r}; that is a column of runs.csv"
            )
    if experiment.time_by is not None:
        experiment.check_axis(experiment.time_by, "time_by")
    for number, entry in enumerate(experiment.omit, start=1):
        experiment.check_where(entry, f"omit {number}")
    for number, combination in enumerate(experiment.combination, start=1):
        experiment.check_where(combination.where, f"combination {number}.where")


def _check_measured(experiment: Experiment, cells: Sequence[SweepCell]) -> None:
    """Raise if none of the cells of a panel evaluates its measure: the panel would be empty."""
    default = MetricSettings().costly_every
    for number, panel in enumerate(experiment.figure.panel if experiment.figure else (), start=1):
        metrics = [cell.table.get("metrics", {}) for cell in cells if matches(cell.labels, panel.where)]
        for axis, measure in (("y", panel.y), ("x", panel.x)):
            costly = column_of(measure).removesuffix("_mean") in COSTLY
            if costly and metrics and not any(section.get("costly_every", default) for section in metrics):
                raise ConfigError(
                    f"{experiment.id}: figure.panel {number}.{axis}",
                    f"{measure!r} given, but no cell evaluates it; set metrics.costly_every",
                )


def check_report(experiment: Experiment, cells: list[SweepCell]) -> None:
    """Raise if a figure, table or claim could not be made from these cells, by making it from cells without results."""
    order = {axis: experiment.labels(axis) for axis in experiment.axes}
    not_run = Results([CellResult(cell.labels, Config(), None, variance=experiment.variance) for cell in cells], order)
    if experiment.figure is not None:
        check_figure(experiment.figure, experiment, [cell.labels for cell in cells])
    for number, table in enumerate(experiment.table, start=1):
        check_table(table, experiment, f"table {number}")
        with _naming(f"{experiment.id}: table {number}"):
            fill_table(table, experiment, not_run)
    for number, claim in enumerate(experiment.claim, start=1):
        check_claim(claim, experiment, f"claim {number}")
        with _naming(f"{experiment.id}: claim {number}"):
            judge(claim, not_run)


@contextmanager
def _naming(key: str) -> Iterator[None]:
    """Put the key in front of configuration errors."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(key, str(error)) from None
