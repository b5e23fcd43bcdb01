"""`depositum run`: one run or several seeds; resumes, or extends, what the folder holds."""

import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from depositum.cli.interrupt import StopOnSignal, StopTogether
from depositum.engines import Callback
from depositum.engines.processes import launched
from depositum.errors import DivergedError
from depositum.report import ProgressBar, TensorBoard, draw_curves, summary
from depositum.runs import Config, RunResult, execute, execute_together, load, meet

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one setting, as in algorithm.alpha=0.1; repeatable."),
]
ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The configuration file.", show_default=False)]


def command(
    config: ConfigFile,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run's folder. Default: runs/ and the file's name.")
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write TensorBoard files into the run's folder.")
    ] = False,
) -> None:
    """Train as CONFIG.toml says.

    The run's folder holds config.toml (complete, every default written out), history.csv (measures at every evaluated
    iteration), consensus.csv (the consensus error at every iteration), state.safetensors (the last checkpoint),
    model.safetensors (the averaged model) and curves.png. If DIR holds this run already, it goes on from the last
    checkpoint; with more steps (--set run.steps=1000) it is extended. Ctrl-C keeps a checkpoint and exits with 130.

    Started by torchrun (torchrun --nproc-per-node 10 -m depositum run CONFIG.toml), each process holds its own clients.
    """
    folder = out or Path("runs") / config.stem
    if launched():
        _run_together(config, overrides or [], folder, tensorboard)
        return
    checked = load(config, overrides or [])
    with StopOnSignal() as stop:
        result = execute(
            checked,
            folder,
            base=config.parent,
            callbacks=_callbacks(folder, tensorboard),
            say=_say,
            on_loop=stop.attach,
        )
    _show(result, checked, folder, stop.requested)


def _run_together(config: Path, overrides: list[str], folder: Path, tensorboard: bool) -> None:
    """The same as one process among many, of which the first shows what there is to see."""
    stop = StopTogether()
    group, checked = meet(config, overrides)
    result = execute_together(
        checked,
        group,
        folder,
        base=config.parent,
        callbacks=_callbacks(folder, tensorboard) if group.rank == 0 else [],
        say=_say,
        on_loop=stop.attach,
    )
    if group.rank == 0:
        _show(result, checked, folder, not result.finished)
    elif not result.finished:
        raise typer.Exit(128 + signal.SIGINT)
    elif result.diverged:
        raise typer.Exit(DivergedError.exit_code)  # the first says why


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _callbacks(folder: Path, tensorboard: bool) -> list[Callback]:
    return [ProgressBar(), *([TensorBoard(folder / "tensorboard")] if tensorboard else [])]


def _show(result: RunResult, checked: Config, folder: Path, stopped: bool) -> None:
    """Curves and a table, or where the run was stopped."""
    runs, figure = {folder.resolve().name: result.history.frame}, folder / "curves.png"
    draw_curves(runs, figure, title=str(folder))
    if stopped and not result.finished:
        where = f"stopped at iteration {result.snapshot.t} of {checked.run.steps}"
        typer.echo(f"{where}; the same command goes on from there", err=True)
        raise typer.Exit(128 + signal.SIGINT)
    Console().print(summary(runs))
    typer.echo(f"curves: {figure}")
    result.raise_if_diverged(checked)
