"""Writing a figure to a file, completely or not at all."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from depositum.errors import RunError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure to `path`, in the format of its suffix; an existing file is replaced only once all is written."""
    part = path.with_name(path.stem + ".part" + path.suffix)
    try:
        figure.savefig(part, dpi=140)
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise RunError(f"{path}: cannot be written ({error.strerror or error})") from None
