"""`depositum compare`: runs side by side, or all methods on one configuration."""

import signal
from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
import typer
from rich.console import Console

from depositum.algorithms import ALGORITHMS
from depositum.cli.figure import Force, check_figure
from depositum.cli.interrupt import StopOnSignal
from depositum.cli.run import Overrides
from depositum.errors import ConfigError, RunError, listing, nearest
from depositum.report import ProgressBar, comparison, draw_curves
from depositum.runs import execute, load
from depositum.runs.folder import read_history


def command(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="DIR… | CONFIG.toml", help="Folders of runs, or a configuration.", show_default=False),
    ],
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="With CONFIG.toml: methods to run on it, with commas between (default all)."
        ),
    ] = None,
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Where the figure goes (default compare.png); with CONFIG.toml, the folder for runs and figure "
            "(default runs/ and the file's name).",
        ),
    ] = None,
    against: Annotated[
        Literal["iteration", "phases", "bytes_sent", "gradient_evaluations", "seconds"],
        typer.Option(help="What the curves are drawn against."),
    ] = "iteration",
    force: Force = False,
) -> None:
    """Compare runs: a table of final measures, and their curves in one figure.

    With folders, what they hold, finished or still running. With CONFIG.toml, every method is run on it (or gone on
    with), from the same seeds, partitions and initial models, with what the file's [override.METHOD] parts say of it; a
    method that diverges is reported and the rest goes on. `depositum methods` lists the methods.
    """
    if len(runs) == 1 and runs[0].suffix == ".toml":
        folder = out or Path("runs") / runs[0].stem
        figure = folder / "compare.png"
        if not any((folder / name / "config.toml").exists() for name in ALGORITHMS) and figure.exists():
            check_figure(figure, force)  # it is none of this command's
        frames = run_methods(runs[0], _chosen(methods or "all"), overrides or [], folder)
    else:
        for option, given in (("--methods", methods), ("--set", " ".join(overrides or []))):
            if given:
                raise ConfigError(option, f"{given} given; folders hold runs as they are, it is for CONFIG.toml")
        figure = out or Path("compare.png")
        check_figure(figure, force)
        frames = {name: read_history(path) for name, path in zip(_labels(runs), runs, strict=True)}
    draw_curves(frames, figure, against=against)
    console = Console()
    console.print(comparison(frames, console.width))
    typer.echo(f"curves: {figure}")


def run_methods(config: Path, methods: list[str], overrides: list[str], folder: Path) -> dict[str, pd.DataFrame]:
    """The histories of these methods on one configuration, each run in a folder of its own name."""
    # All are checked before the first is run.
    checked = {name: load(config, overrides, name) for name in methods}
    if folder.exists() and not folder.is_dir():
        raise RunError(f"--out {folder}: is a file; it must be a folder")
    frames = {}
    for place, (name, own) in enumerate(checked.items(), start=1):
        typer.echo(f"{place}/{len(methods)} {name}", err=True)
        with StopOnSignal() as stop:
            result = execute(own, folder / name, base=config.parent, callbacks=[ProgressBar()], on_loop=stop.attach)
        if stop.requested and not result.finished:
            typer.echo(
                f"{name} stopped at iteration {result.snapshot.t}; the same command goes on from there", err=True
            )
            raise typer.Exit(128 + signal.SIGINT)
        for divergence in result.diverged:
            typer.echo(f"{name}: {divergence}", err=True)
        label = name if not result.diverged else f"{name} (diverged)"
        frames[label] = result.history.frame
    return frames


def _chosen(methods: str) -> list[str]:
    if methods == "all":
        return list(ALGORITHMS)
    names = [name.strip() for name in methods.split(",")]
    for name in names:
        if name not in ALGORITHMS:
            raise ConfigError(
                "--methods", f"{name!r} is no method; it can be {listing(ALGORITHMS)}{nearest(name, ALGORITHMS)}"
            )
    return names


def _labels(folders: list[Path]) -> list[str]:
    """The folders' names, or their paths where names repeat."""
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]
