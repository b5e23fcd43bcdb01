"""`depositum report`: one HTML page about runs, comparisons and reproduced experiments."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from depositum.cli.options import Force
from depositum.fitting.report_call import PAGE, page_of, page_path
from depositum.report.compared_runs import Table
from depositum.report.page_file import check_page_file, write_page
from depositum.report.units import format_bytes


def command(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR…",
            help="Folders of runs, of comparisons, or of an experiment's results.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html",
            help="The page's file. Default: report.html in DIR or, with several, in the working directory.",
            show_default=False,
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Write one HTML page about runs: curves, network, clients, settings, tables.

    The page opens in any browser and loads nothing from a network. It has the curves of all runs against iterations,
    phases, bytes, gradients or time, the graph with λ, who holds what, per-client results, settings with what differs,
    cost against quality, and tables that can be sorted and saved as CSV or LaTeX. DIR is the folder of a run, a folder
    of several (as `depositum compare CONFIG.toml` makes it), or a results folder of `depositum reproduce`, whose page
    also has the claims and the paper's numbers.

    Runs that diverged, were stopped, ended worse than they began or solve another problem are labelled as `depositum
    compare` does. An existing report is replaced; any other file only with --force.
    """
    path = out or page_path(folders)
    check_page_file(path, force)
    _write(folders, path)


def offer_report(folders: Sequence[Path], into: Path, wanted: bool, reference: Table | None = None) -> None:
    """At the end of a run, a comparison or an experiment: write its page into a folder, or print how it is written."""
    out = into / PAGE
    if not wanted:
        shown = [into] if _is_comparison(folders, into) else folders
        typer.echo(f"one page about it: depositum report {' '.join(shlex.quote(str(folder)) for folder in shown)}")
        return
    check_page_file(out, key="--report")
    _write(folders, out, into.resolve().name if _is_comparison(folders, into) else "", reference)


def _is_comparison(folders: Sequence[Path], into: Path) -> bool:
    """Whether a folder is that of a comparison, which has its runs in it."""
    return len(folders) > 1 and all(folder.parent == into for folder in folders)


def _write(folders: Sequence[Path], out: Path, title: str = "", reference: Table | None = None) -> None:
    """Write a page, and print where it is."""
    html = page_of(folders, title, reference)
    write_page(html, out)
    typer.echo(f"report: {out} ({format_bytes(len(html.encode()))})")
