"""`depositum reproduce`: the paper's figures and tables, ours beside them, and which of its claims hold."""

import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from depositum import experiments
from depositum.cli.interrupt import Interrupted, StopOnSignal
from depositum.cli.run import Overrides
from depositum.engines import Loop
from depositum.errors import ConfigError, DataError, RunError
from depositum.experiments import Options
from depositum.experiments.claims import Judged
from depositum.experiments.output import QUICK, check_folder, make_folder
from depositum.report.progress import SweepProgress


class Watching(SweepProgress):
    """Shows a sweep's progress; Ctrl-C asks the loop that runs to stop."""

    def __init__(self, stop: StopOnSignal) -> None:
        super().__init__()
        self._stop = stop

    def attach(self, loop: Loop) -> None:
        self._stop.attach(loop)

    def stopped(self) -> bool:
        return self._stop.requested


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
            help="Run only these cells of the sweep, as in model=cnn, model!=ResNet-18 or method=FedDR,FedMiD; "
            "repeatable. Cells of earlier calls stay in the results.",
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(metavar="K", help="Only the first K seeds.")] = None,
    overrides: Overrides = None,
    device: Annotated[str | None, typer.Option(metavar="DEVICE", help="Where to run: auto, cpu, cuda, …")] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where results go. Default: results/ID (results/quick/ID with --quick)."),
    ] = None,
    cache: Annotated[
        Path, typer.Option(metavar="DIR", help="Where cells are kept: what is finished is never run again.")
    ] = Path("runs/reproduce"),
    page: Annotated[
        bool, typer.Option("--page", help="Write docs/reproduction.md from what results/ holds (afterwards, with ID).")
    ] = False,
) -> None:
    """Run an experiment of the paper, and compare.

    results/ID then has runs.csv (all measures), figure.pdf and figure.png, table.md and table.tex (the paper's numbers
    beside ours), claims.md (what the paper says of it, whether that holds, and the numbers), tuning.csv and
    summary.json. Cells are kept in the cache by what they are: a stopped call goes on where it was, and only cells that
    changed are run again.
    """
    if name is None and not page:
        _list()
        return
    if name is not None:
        options = Options(quick, seeds, tuple(overrides or ()), device)
        chosen = experiments.names() if name == "all" else [name]
        if out is not None and name == "all":
            raise ConfigError("--out", "is for one experiment; all of them go to results/")
        # All are checked before the first is run.
        plans = [experiments.plan(experiments.load(own), options, only or ()) for own in chosen]
        for plan in plans:
            check_folder(plan, out or _place(plan), cache)
        make_folder(cache, "--cache")
        if out is not None:
            make_folder(out, "--out")
        failed = []
        with StopOnSignal() as stop:
            for plan in plans:
                try:
                    _reproduce(plan, cache, out or _place(plan), Watching(stop))
                except (ConfigError, DataError) as mistake:  # data or a model that is not here
                    if name != "all":
                        raise
                    typer.echo(f"{plan.experiment.id} left out: {mistake}", err=True)
                    failed.append(plan.experiment.id)
        if failed:
            raise RunError(f"{len(failed)} of {len(plans)} experiments could not be run: {', '.join(failed)}")
    if page:
        where = Path("docs/reproduction.md")
        where.parent.mkdir(exist_ok=True)
        where.write_text(experiments.page(Path("results"), where), encoding="utf-8")
        typer.echo(f"page: {where}")


def _place(plan: experiments.Plan) -> Path:
    return Path("results") / ("quick" if plan.options.quick else "") / plan.experiment.id


def _reproduce(plan: experiments.Plan, cache: Path, out: Path, watch: Watching) -> None:
    try:
        results = experiments.perform(plan, cache, watch)
    except (experiments.StoppedError, Interrupted):
        typer.echo(f"{plan.experiment.id} stopped; the same command goes on from there", err=True)
        raise typer.Exit(128 + signal.SIGINT) from None
    judged = experiments.write(plan, results, out)
    console = Console()
    console.print(_claims(plan, judged))
    if plan.options.quick:
        typer.echo(QUICK.strip())
    typer.echo(f"results: {out}")


def _claims(plan: experiments.Plan, judged: list[Judged]) -> Table:
    table = Table(title=f"{plan.experiment.title} ({plan.experiment.paper})", title_justify="left")
    table.add_column("claim")
    table.add_column("verdict", no_wrap=True)
    for own in judged:
        table.add_row(own.claim.text, own.verdict)
    return table


def _list() -> None:
    table = Table(title="experiments", title_justify="left")
    for heading in ("id", "in the paper", "is"):
        table.add_column(heading)
    for name in experiments.names():
        experiment = experiments.load(name)
        table.add_row(name, experiment.paper, experiment.title)
    Console().print(table)
    typer.echo(
        "depositum reproduce ID runs one, depositum reproduce all every one; --quick first, to see that it works"
    )
