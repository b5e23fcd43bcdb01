"""A figure's file: written whole or not at all."""

from contextlib import suppress
from pathlib import Path

from matplotlib.figure import Figure

from depositum.errors import RunError


def save(figure: Figure, path: Path) -> None:
    """Write a figure into a file, in the form that the file's name ends in."""
    part = path.with_name(path.stem + ".part" + path.suffix)
    try:
        figure.savefig(part, dpi=140)
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise RunError(f"{path}: cannot be written ({error.strerror or error})") from None
