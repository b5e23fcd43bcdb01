"""One data file per client: the files of a folder, or of a pattern of paths with `{client}` in it."""

import re
from collections.abc import Sequence
from pathlib import Path

from depositum.errors import DataError

#: Stands for the client's index in a pattern of paths.
CLIENT_PLACEHOLDER = "{client}"


def client_files(path: Path, clients: int | None = None, endings: Sequence[str] = (".npz",)) -> list[Path]:
    """The clients' files in order: those of a folder by name, 2 before 10, or those of a pattern, from client 0.

    A pattern stands for the files of `clients` clients, or for all that exist if no number is given. Of a folder, only
    files with one of the `endings` count, and not the test data.
    """
    if CLIENT_PLACEHOLDER not in str(path):
        files = [
            file for file in path.iterdir() if file.name.endswith(tuple(endings)) and not file.name.startswith(".")
        ]
        files = sorted(
            (file for file in files if file.name not in _test_names(endings)), key=lambda f: natural_order(f.name)
        )
        if not files:
            raise DataError(f"{path}: no {' or '.join(endings)} file in this folder; it must contain one per client")
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


def shared_test_file(path: Path, endings: Sequence[str] = (".npz",)) -> Path | None:
    """The test data beside the clients' files: `test.npz` in a folder, or the pattern's file for the client `test`."""
    in_folder = [path / name for name in _test_names(endings)]
    files = [client_file(path, "test")] if CLIENT_PLACEHOLDER in str(path) else in_folder
    return next((file for file in files if file.is_file()), None)


def unused_file(pattern: Path, clients: int) -> Path | None:
    """The file for one client more than there are, if it exists."""
    file = client_file(pattern, clients)
    return file if file.is_file() else None


def natural_order(name: str) -> list[int | str]:
    """A sort key that compares numbers within names by value; every second part of the split is a number.

    >>> sorted(["10", "2", "a"], key=natural_order)
    ['2', '10', 'a']
    """
    # Longer numbers are compared as text: Python refuses to convert thousands of digits.
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"([0-9]{1,18})", name))]


def _test_names(endings: Sequence[str]) -> list[str]:
    return [f"test{ending}" for ending in endings]
