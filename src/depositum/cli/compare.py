"""`depositum compare`: runs side by side."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from depositum.cli.figure import FigureFile, Force, check_figure
from depositum.report import draw_curves, summaries
from depositum.runs.folder import read_history


def command(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Folders of runs.", show_default=False)],
    out: FigureFile = Path("compare.png"),
    against: Annotated[
        Literal["iteration", "phases", "bytes_sent", "gradient_evaluations", "seconds"],
        typer.Option(help="What the curves are drawn against."),
    ] = "iteration",
    force: Force = False,
) -> None:
    """Compare runs: a table of final measures, and their curves in one figure.

    Runs may be finished or still running. With several seeds, both show the mean and the standard deviation over them.
    """
    check_figure(out, force)
    runs = {name: read_history(folder) for name, folder in zip(_labels(folders), folders, strict=True)}
    draw_curves(runs, out, against=against)
    console = Console()
    for table in summaries(runs, console.width):
        console.print(table)
    typer.echo(f"curves: {out}")


def _labels(folders: list[Path]) -> list[str]:
    """The folders' names, or their paths where names repeat."""
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]
