"""Options and arguments that several commands share."""

import os
from pathlib import Path
from typing import Annotated

import typer

from depositum.errors import ConfigError

FIGURE_FORMATS = (".png", ".pdf", ".svg")

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The configuration file.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one setting, e.g. algorithm.alpha=0.1; repeatable."),
]
FigureFile = Annotated[Path, typer.Option("--out", metavar="FILE", help="The figure's file (.png, .pdf or .svg).")]
Live = Annotated[
    bool, typer.Option("--live", help="Show loss, accuracy, consensus, rate and remaining time on one steady screen.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]
Report = Annotated[
    bool, typer.Option("--report", help="Also write report.html, one page about everything, to open in a browser.")
]


def check_figure_file(out: Path, force: bool) -> None:
    """Raise, before any work, if no figure can be written to `out` or if a file exists there (without `force`)."""
    if out.suffix not in FIGURE_FORMATS:
        raise ConfigError("--out", f"{str(out)!r} given; it must end in .png, .pdf or .svg")
    if out.is_dir() or not out.parent.is_dir():
        raise ConfigError("--out", f"{str(out)!r} given; it must be a file in an existing folder")
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise ConfigError("--out", f"{str(out)!r} cannot be written (no permission in {str(out.parent)!r})")
    if out.exists() and not force:
        raise ConfigError("--out", f"{str(out)!r} exists; choose another file, or pass --force to overwrite it")
