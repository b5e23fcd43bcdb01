"""One data file per client: the files of a folder, or of a pattern of paths with `{client}` in it."""

import re
from pathlib import Path

from depositum.errors import DataError

#: Stands for the client's index in a pattern of paths.
CLIENT_PLACEHOLDER = "{client}"


def client_files(path: Path, clients: int | None = None) -> list[Path]:
    """The clients' files in order: those of a folder by name, 2 before 10, or those of a pattern, from client 0.

    A pattern stands for the files of `clients` clients, or for all that exist if no number is given.
    """
    if CLIENT_PLACEHOLDER not in str(path):
        files = sorted((file for file in path.glob("*.npz") if file.name != "test.npz"), key=_natural_order)
        if not files:
            raise DataError(f"{path}: no .npz file in this folder; it must contain one per client")
        return files
    files = []
    while (file := client_file(path, len(files))).is_file() and len(files) != clients:
        files.append(file)
    if len(files) < (clients or 1):
        raise DataError(f"{file}: no such file; the pattern {path} needs one for every client, from 0")
    return files


def client_file(pattern: Path, client: int | str) -> Path:
    """The file of one client."""
    return Path(str(pattern).replace(CLIENT_PLACEHOLDER, str(client)))


def shared_test_file(path: Path) -> Path | None:
    """The test data beside the clients' files: `test.npz` in a folder, or the pattern's file for the client `test`."""
    file = client_file(path, "test") if CLIENT_PLACEHOLDER in str(path) else path / "test.npz"
    return file if file.is_file() else None


def unused_file(pattern: Path, clients: int) -> Path | None:
    """The file for one client more than there are, if it exists."""
    file = client_file(pattern, clients)
    return file if file.is_file() else None


def _natural_order(file: Path) -> list[int | str]:
    """A sort key that compares numbers within names by value; every second part of the split is a number."""
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"([0-9]+)", file.name))]
