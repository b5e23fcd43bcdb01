"""`depositum reproduce`: the paper's figures and tables next to ours, and which of its claims hold."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from depositum import experiments
from depositum.cli.interrupt import INTERRUPTED
from depositum.cli.options import Live, Overrides, Report
from depositum.cli.report import offer_report
from depositum.engines import Loop
from depositum.errors import ConfigError, DataError, RunError
from depositum.experiments import Plan, SweepOptions
from depositum.experiments.claims import JudgedClaim
from depositum.experiments.jobs import JobSettings, read_job_settings
from depositum.experiments.results_folder import QUICK_NOTE, check_folder, count_verdicts, make_folder
from depositum.interrupt import Interrupted, StopOnSignal
from depositum.report.live import LiveSweep, LiveView, screen
from depositum.report.progress import SweepProgress


class _Interruptible:
    """Ctrl-C asks the running loop of a sweep to stop."""

    _stop: StopOnSignal

    def attach(self, loop: Loop) -> None:
        self._stop.attach(loop)

    def stopped(self) -> bool:
        return self._stop.requested


class InterruptibleProgress(_Interruptible, SweepProgress):
    """Shows a sweep's progress in lines, or as a bar."""

    def __init__(self, stop: StopOnSignal) -> None:
        super().__init__()
        self._stop = stop


class InterruptibleScreen(_Interruptible, LiveSweep):
    """Shows a sweep's progress on a screen."""

    def __init__(self, stop: StopOnSignal, view: LiveView) -> None:
        super().__init__(view)
        self._stop = stop


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID | all | FILE.toml]", help="An experiment; without one, they are listed.", show_default=False
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small data, few steps and seeds: the same path, in seconds, on a CPU.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AXIS=LABEL",
            help="Run only these cells of the sweep, e.g. model=cnn, model!=ResNet-18 or method=FedDR,FedMiD; "
            "repeatable. Cells of earlier calls stay in the results.",
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(metavar="K", help="Only the first K seeds.")] = None,
    overrides: Overrides = None,
    device: Annotated[str | None, typer.Option(metavar="DEVICE", help="Where to run: auto, cpu, cuda, …")] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The results' folder. Default: results/ID (results/quick/ID with --quick)."),
    ] = None,
    cache: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder of finished cells, which are never run again.")
    ] = Path("runs/reproduce"),
    parallel: Annotated[
        Path | None,
        typer.Option(
            metavar="JOBS.toml",
            help="Run groups of cells as jobs of a cluster (Slurm, through submitit), as this file says.",
        ),
    ] = None,
    redraw: Annotated[
        bool,
        typer.Option(
            "--redraw", help="Figure, tables and claims again from the results in the folder; nothing is run."
        ),
    ] = False,
    live: Live = False,
    page: Annotated[
        bool, typer.Option("--page", help="Write docs/reproduction.md from the folder results/ (after running ID).")
    ] = False,
    report: Report = False,
) -> None:
    """Run an experiment of the paper, and compare the results with the paper's.

    results/ID then contains runs.csv (all measures), figure.svg (and .pdf, .png), table.md and table.tex (the paper's
    numbers next to ours), claims.md (the paper's claims, whether each holds, and the numbers), tuning.csv and
    summary.json. Finished cells are cached by their configuration: a stopped call resumes, and only cells that changed
    are run again.
    """
    if name is None and not (page or redraw):
        _list()
        return
    if redraw:
        given = {"--parallel": parallel, "--only": only, "--seeds": seeds, "--set": overrides, "--device": device}
        _redraw(name, quick, out, next((key for key, value in given.items() if value), None))
    elif name is not None:
        options = SweepOptions(quick, seeds, tuple(overrides or ()), device)
        if out is not None and name == "all":
            raise ConfigError("--out", "can only be used with one experiment; 'all' writes to results/")
        jobs = None if parallel is None else read_job_settings(parallel)
        # All experiments are checked before the first one runs.
        chosen = experiments.experiment_names() if name == "all" else [name]
        plans = [experiments.make_plan(experiments.load_experiment(each), options, only or ()) for each in chosen]
        for plan in plans:
            check_folder(plan, out or _default_folder(plan), cache)
        make_folder(cache, "--cache")
        if out is not None:
            make_folder(out, "--out")
        failed = []
        with StopOnSignal() as stop:
            for plan in plans:
                try:
                    _reproduce(plan, cache, out or _default_folder(plan), stop, jobs, live, report)
                except (ConfigError, DataError) as error:  # e.g. data or a pretrained model is missing
                    if name != "all":
                        raise
                    typer.echo(f"{plan.experiment.id} skipped: {error}", err=True)
                    failed.append(plan.experiment.id)
        if failed:
            raise RunError(f"{len(failed)} of {len(plans)} experiments could not be run: {', '.join(failed)}")
    if page:
        path = Path("docs/reproduction.md")
        path.parent.mkdir(exist_ok=True)
        path.write_text(experiments.reproduction_page(Path("results"), path), encoding="utf-8")
        typer.echo(f"page: {path}")


def _default_folder(plan: Plan) -> Path:
    return _folder_of(plan.experiment.id, plan.options.quick)


def _folder_of(name: str, quick: bool) -> Path:
    return Path("results") / ("quick" if quick else "") / name


def _redraw(name: str | None, quick: bool, out: Path | None, refused: str | None) -> None:
    """Draw the figures, fill the tables and judge the claims of experiments again from their folders."""
    if refused is not None:
        raise ConfigError(refused, "given with --redraw, which draws what the folder contains and runs nothing")
    if name is None or (name == "all" and out is not None):
        raise ConfigError("--redraw", "needs the ID of one experiment, or 'all' for those in results/")
    for each in experiments.experiment_names() if name == "all" else [name]:
        experiment = experiments.load_experiment(each)
        folder = out or _folder_of(experiment.id, quick)
        if name == "all" and not folder.exists():
            continue
        judged = experiments.redraw(experiment, folder)
        verdicts = count_verdicts(Counter(each.verdict for each in judged))
        typer.echo(f"{experiment.id}: {verdicts}; results: {folder}")


def _reproduce(
    plan: Plan, cache: Path, out: Path, stop: StopOnSignal, jobs: JobSettings | None, live: bool, report: bool
) -> None:
    try:
        with screen(f"depositum reproduce {plan.experiment.id}: {plan.experiment.title}", live) as view:
            progress = InterruptibleProgress(stop) if view is None else InterruptibleScreen(stop, view)
            results = experiments.run_experiment(plan, cache, progress, jobs)
    except (experiments.SweepStopped, Interrupted):
        typer.echo(f"{plan.experiment.id} stopped; run the same command to resume", err=True)
        raise typer.Exit(INTERRUPTED) from None
    judged = experiments.write_results(plan, results, out)
    Console().print(_claims_table(plan, judged))
    if plan.options.quick:
        typer.echo(QUICK_NOTE.strip())
    typer.echo(f"results: {out}")
    offer_report([out], out, report)


def _claims_table(plan: Plan, judged: list[JudgedClaim]) -> Table:
    table = Table(title=f"{plan.experiment.title} ({plan.experiment.paper})", title_justify="left")
    table.add_column("claim")
    table.add_column("verdict", no_wrap=True)
    for each in judged:
        table.add_row(each.claim.text, each.verdict)
    return table


def _list() -> None:
    table = Table(title="experiments", title_justify="left")
    for heading in ("id", "in the paper", "title"):
        table.add_column(heading)
    for name in experiments.experiment_names():
        experiment = experiments.load_experiment(name)
        table.add_row(name, experiment.paper, experiment.title)
    Console().print(table)
    typer.echo(
        "`depositum reproduce ID` runs one, `depositum reproduce all` every one; add --quick for a fast first try"
    )
