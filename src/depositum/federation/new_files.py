"""Writing files that must not replace what the user has, and private ones that nobody else may ever read."""

import os
from pathlib import Path

from depositum.errors import RunError

PRIVATE, PUBLIC, PRIVATE_FOLDER = 0o600, 0o644, 0o700


def write_new(path: Path, content: bytes, mode: int = PUBLIC) -> None:
    """Write a file that does not exist yet; its mode holds from the beginning."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
    except FileExistsError:
        raise RunError(f"{path}: exists; it is not overwritten") from None
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror})") from None
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_own(path: Path, content: bytes, mode: int = PUBLIC) -> None:
    """Write or replace, as a whole, a file that only this package writes."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    write_new(temporary, content, mode)
    temporary.replace(path)


def new_folder(path: Path, mode: int = 0o755) -> None:
    """Create a folder that does not exist yet."""
    try:
        path.mkdir(mode=mode)
    except FileExistsError:
        raise RunError(f"{path}: exists; it is not overwritten") from None
    except OSError as error:
        raise RunError(f"{path}: cannot be created ({error.strerror})") from None
