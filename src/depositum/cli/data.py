"""`depositum data`: what is here, what is missing, fetch it."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from depositum import data
from depositum.report.tables import size


def command(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A dataset to fetch.")] = None,
) -> None:
    """List the datasets, what is here and what is missing; with NAME, fetch it.

    Files are kept in the folder that the environment variable DEPOSITUM_DATA names, or in a cache folder.
    """
    console = Console()
    if name is not None:
        data.fetch(name)
    table = Table(title=f"datasets in {data.data_folder()}", title_justify="left")
    for heading in ("dataset", "here", "missing"):
        table.add_column(heading)
    for entry in data.status():
        count = len(entry.present)
        here = f"{count} file{'s' if count > 1 else ''}, {size(entry.size)}" if count else "–"
        table.add_row(entry.name, here, ", ".join(entry.missing) or "–")
    console.print(table)
    typer.echo("digits and synthetic need no files; a path to your own data works too (docs/data.md)")
