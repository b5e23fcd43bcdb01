"""Publishers' files on disk: where they are, whether they are whole, and fetching those that are missing.

The folder is `$DEPOSITUM_DATA`, or a cache folder of the person's. A file may lie there packed or unpacked; either
way it is checked by the sha256 of its unpacked bytes, each time it is read. Nothing here changes or deletes a file.
"""

import gzip
import hashlib
import logging
import os
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from depositum.data.published import PUBLISHED, Published
from depositum.errors import ConfigError, DataError, listing, nearest


@dataclass(frozen=True)
class Status:
    """What is on this machine of one dataset; nothing has been opened to find out."""

    name: str
    folder: Path
    present: tuple[str, ...]  #: unpacked names of the files that are here, packed or not
    missing: tuple[str, ...]
    size: int  #: bytes on disk


def data_folder() -> Path:
    """`$DEPOSITUM_DATA`, or the person's cache folder for this package."""
    chosen = os.environ.get("DEPOSITUM_DATA")
    if chosen:
        return Path(chosen).expanduser()
    import pooch  # slow to import, and few runs need it

    return Path(pooch.os_cache("depositum"))


def _root(published: Published) -> Path:
    return data_folder() / published.folder


def _found(published: Published, file: str) -> Path | None:
    """Where a file is on this machine: as it is, packed, or within the archive."""
    names = [file, f"{file}.gz", *([published.archive] if published.archive else [])]
    return next((path for name in names if (path := _root(published) / name).is_file()), None)


def status() -> list[Status]:
    """What is here and what is missing, for every dataset that comes in files."""
    return [_status(name, published) for name, published in PUBLISHED.items()]


def _status(name: str, published: Published) -> Status:
    found = {file: _found(published, file) for file in published.files}
    paths = {path for path in found.values() if path}
    return Status(
        name=name,
        folder=_root(published),
        present=tuple(file for file, path in found.items() if path),
        missing=tuple(file for file, path in found.items() if not path),
        size=sum(path.stat().st_size for path in paths),
    )


def fetch(name: str) -> Path:
    """Fetch what is missing of a dataset, check all of it, and return its folder."""
    if name not in PUBLISHED:
        problem = f"{name!r} has no files to fetch; it can be {listing(PUBLISHED)}{nearest(name, PUBLISHED)}"
        raise ConfigError("", problem)
    read(name)
    return _root(PUBLISHED[name])


def read(name: str) -> dict[str, bytes]:
    """The unpacked, checked bytes of each file of a dataset; what is missing is fetched first."""
    published = PUBLISHED[name]
    missing = [file for file in published.files if not _found(published, file)]
    for download in dict.fromkeys(map(published.download, missing)):
        _download(name, published, download)
    contents = {}
    for file, path, content in _unpacked(published):
        if hashlib.sha256(content).hexdigest() != published.files[file]:
            raise _corrupted(path)
        contents[file] = content
    return contents


def _unpacked(published: Published) -> Iterator[tuple[str, Path, bytes]]:
    """Each file, where it was found, and its bytes as they are once unpacked."""
    archived = []
    for file in published.files:
        path = _found(published, file)
        assert path is not None
        if path.name == published.archive:
            archived.append(file)
            continue
        try:
            content = path.read_bytes()
            yield file, path, gzip.decompress(content) if path.name == f"{Path(file).name}.gz" else content
        except (gzip.BadGzipFile, EOFError, zlib.error):
            raise _corrupted(path) from None
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    if archived:
        assert published.archive is not None
        yield from _members(_root(published) / published.archive, archived)


def _members(archive: Path, wanted: list[str]) -> Iterator[tuple[str, Path, bytes]]:
    """The wanted members of an archive, in its own order: read as a stream, and never extracted to disk."""
    left = set(wanted)
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for member in tar:
                if member.name in left and (content := tar.extractfile(member)):
                    left.remove(member.name)
                    yield member.name, archive, content.read()
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error):
        raise _corrupted(archive) from None
    except OSError as error:
        raise DataError(f"{archive}: cannot be read ({error.strerror})") from None
    if left:
        raise _corrupted(archive)


def _corrupted(path: Path) -> DataError:
    return DataError(
        f"{path}: its checksum is not the published one, so it is damaged or another file; delete it to fetch it again"
    )


def _download(name: str, published: Published, download: str) -> None:
    """Fetch one download whole or not at all: pooch checks it beside its place and then renames it."""
    import pooch

    url = published.url + download
    pooch.get_logger().setLevel(logging.WARNING)  # the bar says the same
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    try:
        with Progress(*columns, console=Console(stderr=True)) as progress:
            pooch.retrieve(
                url,
                known_hash=published.downloads[download],
                fname=download,
                path=_root(published),
                downloader=pooch.HTTPDownloader(progressbar=_Bar(progress, f"{name}: {download}")),
            )
    except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong checksum is a ValueError
        raise DataError(
            f"{name}: {download!r} is not in {_root(published)} and could not be fetched from {url} "
            f"({_reason(error)}); fetch it on another machine and put it there"
        ) from None


def _reason(error: Exception) -> str:
    """Why a download failed, in a word or two: requests' own texts are paragraphs."""
    if isinstance(error, ValueError) and not isinstance(error, OSError):
        return "what came has another checksum"
    if (response := getattr(error, "response", None)) is not None:
        return f"HTTP {response.status_code}"
    return getattr(error, "strerror", None) or type(error).__name__


class _Bar:
    """A rich progress bar with the four members that pooch expects of one."""

    def __init__(self, progress: Progress, description: str) -> None:
        self._progress = progress
        self._task = progress.add_task(description, total=None)

    @property
    def total(self) -> float | None:
        return self._progress.tasks[self._task].total

    @total.setter
    def total(self, size: int) -> None:
        self._progress.update(self._task, total=size or None)

    def update(self, size: int) -> None:
        self._progress.advance(self._task, size)

    def reset(self) -> None:
        self._progress.reset(self._task, total=self.total)

    def close(self) -> None:
        self._progress.stop_task(self._task)
