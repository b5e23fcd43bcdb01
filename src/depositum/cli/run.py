"""`depositum run`: one run or several seeds; resumes, or extends, what the folder holds."""

import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from depositum.cli.interrupt import StopOnSignal
from depositum.engines import Callback
from depositum.report import ProgressBar, TensorBoard, draw_curves, summary
from depositum.runs import execute, load

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
    """
    checked = load(config, overrides or [])
    folder = out or Path("runs") / config.stem
    callbacks: list[Callback] = [ProgressBar()]
    if tensorboard:
        callbacks.append(TensorBoard(folder / "tensorboard"))
    with StopOnSignal() as stop:
        result = execute(
            checked,
            folder,
            base=config.parent,
            callbacks=callbacks,
            say=lambda line: typer.echo(line, err=True),
            on_loop=stop.attach,
        )
    runs, figure = {folder.resolve().name: result.history.frame}, folder / "curves.png"
    draw_curves(runs, figure, title=str(folder))
    if stop.requested and not result.finished:
        where = f"stopped at iteration {result.snapshot.t} of {checked.run.steps}"
        typer.echo(f"{where}; the same command goes on from there", err=True)
        raise typer.Exit(128 + signal.SIGINT)
    Console().print(summary(runs))
    typer.echo(f"curves: {figure}")
    result.raise_if_diverged(checked.complete()["algorithm"].get("alpha"))
