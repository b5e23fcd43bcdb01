"""Published data files: where they are on disk, whether they are intact, and downloading those that are missing.

The folder is `$DEPOSITUM_DATA`, or the user's cache folder. A file may be there packed or unpacked; in both cases it is
verified by the sha256 of its unpacked bytes every time it is read. No existing file is ever changed or deleted.
"""

import gzip
import hashlib
import logging
import os
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from depositum.bounded_reading import DamagedFile, check_unpacked_size, read_file
from depositum.errors import ConfigError, DataError, listing, nearest

if TYPE_CHECKING:
    from rich.progress import Progress


@dataclass(frozen=True)
class PublishedFiles:
    """The files of one dataset, as its publisher offers them."""

    folder: str  #: name of the folder inside the data folder
    url: str  #: prefix of the downloads' addresses
    files: Mapping[str, str]  #: sha256 of each unpacked file
    downloads: Mapping[str, str]  #: the publisher's checksum of each download, in pooch's notation ("md5:…")

    @property
    def archive(self) -> str | None:
        """The download that contains all files, if there is one."""
        return next((name for name in self.downloads if name.endswith(".tar.gz")), None)

    def download(self, file: str) -> str:
        """The download that contains `file`."""
        name = next((name for name in (file, f"{file}.gz", self.archive) if name in self.downloads), None)
        assert name is not None, f"no download contains {file}"
        return name


@dataclass(frozen=True)
class DownloadStatus:
    """Which files of a dataset are on this machine; determined without opening any of them."""

    name: str
    folder: Path
    present: tuple[str, ...]  #: unpacked names of the files that are present, packed or unpacked
    missing: tuple[str, ...]
    size: int  #: bytes on disk


def data_folder() -> Path:
    """`$DEPOSITUM_DATA`, or the package's folder in the user's cache folder."""
    chosen = os.environ.get("DEPOSITUM_DATA")
    if chosen:
        return Path(chosen).expanduser()
    import pooch  # slow to import, and few runs need it

    return Path(pooch.os_cache("depositum"))


def status() -> list[DownloadStatus]:
    """Which files are present and which are missing, for every dataset that is downloaded."""
    return [_status(name, published) for name, published in PUBLISHED.items()]


def _status(name: str, published: PublishedFiles) -> DownloadStatus:
    found = {file: _find(published, file) for file in published.files}
    return DownloadStatus(
        name=name,
        folder=_folder(published),
        present=tuple(file for file, path in found.items() if path),
        missing=tuple(file for file, path in found.items() if not path),
        size=sum(path.stat().st_size for path in {path for path in found.values() if path}),
    )


def fetch(name: str) -> Path:
    """Download the missing files of a dataset, verify all of them, and return their folder."""
    if name not in PUBLISHED:
        problem = f"{name!r} has no files to download; it can be {listing(PUBLISHED)}{nearest(name, PUBLISHED)}"
        raise ConfigError("", problem)
    read(name)
    return _folder(PUBLISHED[name])


def read(name: str) -> dict[str, bytes]:
    """The unpacked, verified content of each file of a dataset; missing files are downloaded first."""
    published = PUBLISHED[name]
    missing = [file for file in published.files if not _find(published, file)]
    for download in dict.fromkeys(map(published.download, missing)):
        _download(name, published, download)
    contents = {}
    for file, path, content in _unpack(published):
        if hashlib.sha256(content).hexdigest() != published.files[file]:
            raise _corrupted(path)
        contents[file] = content
    return contents


def _folder(published: PublishedFiles) -> Path:
    return data_folder() / published.folder


def _find(published: PublishedFiles, file: str) -> Path | None:
    """The path of a file on this machine: unpacked, packed, or the archive that contains it."""
    names = [file, f"{file}.gz", *([published.archive] if published.archive else [])]
    return next((path for name in names if (path := _folder(published) / name).is_file()), None)


def _unpack(published: PublishedFiles) -> Iterator[tuple[str, Path, bytes]]:
    """Each file, the path where it was found, and its unpacked content."""
    archived = []
    for file in published.files:
        path = _find(published, file)
        assert path is not None
        if path.name == published.archive:
            archived.append(file)
            continue
        try:
            yield file, path, read_file(path)
        except DamagedFile:
            raise _corrupted(path) from None
    if archived:
        assert published.archive is not None
        yield from _archive_members(_folder(published) / published.archive, archived)


def _archive_members(archive: Path, files: list[str]) -> Iterator[tuple[str, Path, bytes]]:
    """These members of an archive, in the archive's order: read as a stream and never extracted to disk."""
    remaining = set(files)
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for member in tar:
                if member.name in remaining and (content := tar.extractfile(member)):
                    check_unpacked_size(str(archive), member.size, archive.stat().st_size, "delete it")
                    remaining.remove(member.name)
                    yield member.name, archive, content.read()
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error):
        raise _corrupted(archive) from None
    except OSError as error:
        raise DataError(f"{archive}: cannot be read ({error.strerror})") from None
    if remaining:
        raise _corrupted(archive)


def _corrupted(path: Path) -> DataError:
    return DataError(
        f"{path}: its checksum is not the published one, so it is damaged or another file; "
        "delete it to have it downloaded again"
    )


def _download(name: str, published: PublishedFiles, download: str) -> None:
    """Download a file completely or not at all: pooch verifies it under a temporary name before renaming it."""
    import pooch
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    url = published.url + download
    pooch.get_logger().setLevel(logging.WARNING)  # the progress bar shows the same
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    try:
        with Progress(*columns, console=Console(stderr=True)) as progress:
            pooch.retrieve(
                url,
                known_hash=published.downloads[download],
                fname=download,
                path=_folder(published),
                downloader=pooch.HTTPDownloader(progressbar=_ProgressBar(progress, f"{name}: {download}")),
            )
    except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong checksum is a ValueError
        raise DataError(
            f"{name}: {download!r} is not in {_folder(published)} and could not be downloaded from {url} "
            f"({_reason(error)}); download it on another machine and copy it there"
        ) from None


def _reason(error: Exception) -> str:
    """Why a download failed, in a few words: the messages of requests are paragraphs."""
    if isinstance(error, ValueError) and not isinstance(error, OSError):
        return "the checksum of the downloaded file is not the published one"
    if (response := getattr(error, "response", None)) is not None:
        return f"HTTP {response.status_code}"
    return getattr(error, "strerror", None) or type(error).__name__


class _ProgressBar:
    """A rich progress bar with the four members that pooch expects."""

    def __init__(self, progress: "Progress", description: str) -> None:
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


def _idx_files(folder: str, url: str, sha256: tuple[str, ...], md5: tuple[str, ...]) -> PublishedFiles:
    names = (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    )
    files = dict(zip(names, sha256, strict=True))
    downloads = {f"{name}.gz": f"md5:{checksum}" for name, checksum in zip(names, md5, strict=True)}
    return PublishedFiles(folder, url, files, downloads)


_A9A = {
    "a9a": "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
    "a9a.t": "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
}

_DOLLY = {"databricks-dolly-15k.jsonl": "2df9083338b4abd6bceb5635764dab5d833b393b55759dffb0959b6fcbf794ec"}

#: By the name of the dataset in a configuration. The checksums of unpacked files were computed from genuine copies;
#: those of packed downloads are the publishers'.
PUBLISHED: dict[str, PublishedFiles] = {
    "a9a": PublishedFiles(
        folder="a9a",
        url="https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/",
        files=_A9A,
        downloads={name: f"sha256:{checksum}" for name, checksum in _A9A.items()},  # published unpacked
    ),
    "mnist": _idx_files(
        folder="mnist",
        url="https://ossci-datasets.s3.amazonaws.com/mnist/",
        sha256=(
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        md5=(
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    "fashion-mnist": _idx_files(
        folder="fashion-mnist",
        url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        sha256=(
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        md5=(
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    "cifar10": PublishedFiles(
        folder="cifar-10",
        url="https://www.cs.toronto.edu/~kriz/",
        files={
            "cifar-10-batches-bin/data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "cifar-10-batches-bin/data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "cifar-10-batches-bin/data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "cifar-10-batches-bin/data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "cifar-10-batches-bin/data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "cifar-10-batches-bin/test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        },
        downloads={"cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530"},
    ),
    "dolly": PublishedFiles(
        folder="dolly",
        url="https://huggingface.co/datasets/databricks/databricks-dolly-15k/resolve/main/",
        files=_DOLLY,
        downloads={name: f"sha256:{checksum}" for name, checksum in _DOLLY.items()},
    ),
}
