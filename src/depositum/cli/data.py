"""`depositum data`: which datasets are present, which files are missing, and downloading them."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from depositum import data
from depositum.report.units import format_bytes


def command(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A dataset to download.")] = None,
) -> None:
    """List the datasets, and which files are present or missing; with NAME, download one.

    Files are stored in the folder that the environment variable DEPOSITUM_DATA names, or in a cache folder.
    """
    if name is not None:
        data.fetch(name)
    table = Table(title=f"datasets in {data.data_folder()}", title_justify="left")
    for heading in ("dataset", "present", "missing"):
        table.add_column(heading)
    for entry in data.status():
        count = len(entry.present)
        present = f"{count} file{'s' if count > 1 else ''}, {format_bytes(entry.size)}" if count else "–"
        table.add_row(entry.name, present, ", ".join(entry.missing) or "–")
    Console().print(table)
    typer.echo("digits and synthetic need no files; a path to your own data works too (docs/data.md)")
