"""The option that says where a figure goes, alike in every command that draws one."""

import os
from pathlib import Path
from typing import Annotated

import typer

from depositum.errors import ConfigError

FORMATS = (".png", ".pdf", ".svg")

FigureFile = Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the figure goes (.png, .pdf or .svg).")]
Force = Annotated[bool, typer.Option("--force", help="Write over a figure that is there already.")]


def check_figure(out: Path, force: bool) -> None:
    """Refuse, before any work, a place where no figure can go, or where something is already."""
    if out.suffix not in FORMATS:
        raise ConfigError("--out", f"{str(out)!r} given; it must end in .png, .pdf or .svg")
    if out.is_dir() or not out.parent.is_dir():
        raise ConfigError("--out", f"{str(out)!r} given; it must be a file in a folder that is there")
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise ConfigError("--out", f"{str(out)!r} cannot be written (no permission in {str(out.parent)!r})")
    if out.exists() and not force:
        raise ConfigError("--out", f"{str(out)!r} exists; name another file, or give --force to write over it")
