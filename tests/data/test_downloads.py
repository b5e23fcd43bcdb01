"""Published files: found, verified, downloaded completely or not at all. No test here uses the network."""

import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import pytest
import requests

from depositum.data import PUBLISHED, data_folder, downloads, fetch, status
from depositum.data.downloads import PublishedFiles
from depositum.errors import ConfigError, DataError

TEXT = b"published content\n" * 140


def one_file(download: str, content: bytes, text: bytes = TEXT) -> PublishedFiles:
    return PublishedFiles(
        folder="toy-folder",
        url="https://example.invalid/data/",
        files={"toy.txt": hashlib.sha256(text).hexdigest()},
        downloads={download: "md5:" + hashlib.md5(content).hexdigest()},
    )


class Response:
    """The part of a `requests` response that a download uses."""

    def __init__(self, content: bytes, code: int = 200) -> None:
        self.content, self.status_code = content, code
        self.headers = {"content-length": str(len(content))}

    def raise_for_status(self) -> None:
        if self.status_code != 200:
            raise requests.HTTPError("a long text", response=self)

    def iter_content(self, chunk_size: int):
        yield self.content[:10]
        yield self.content[10:]


@pytest.fixture
def server(monkeypatch):
    """Responses by URL, and the list of requested URLs; any other URL cannot be reached."""
    responses: dict[str, Response] = {}
    requested: list[str] = []

    def get(url: str, **_):
        requested.append(url)
        if url not in responses:
            raise requests.ConnectionError("HTTPSConnectionPool(…): a very long text\nof several lines")
        return responses[url]

    monkeypatch.setattr(requests, "get", get)
    return responses, requested


@pytest.fixture
def folder(tmp_path, monkeypatch, server) -> Path:
    monkeypatch.setenv("DEPOSITUM_DATA", str(tmp_path))
    monkeypatch.setitem(PUBLISHED, "toy", one_file("toy.txt.gz", gzip.compress(TEXT, mtime=0)))
    return tmp_path / "toy-folder"


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("level", [1, 9])
def test_packed_files_are_verified_by_their_content(folder, level, server):
    """Fails if the checksum is that of the packed bytes, which depend on the compression level and time."""
    put(folder / "toy.txt.gz", gzip.compress(TEXT, level, mtime=level))
    assert downloads.read("toy") == {"toy.txt": TEXT}
    assert server[1] == []


def test_unpacked_files_are_used_unchanged(folder, server):
    put(folder / "toy.txt", TEXT)
    assert downloads.read("toy") == {"toy.txt": TEXT}
    assert server[1] == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("toy.txt", TEXT[:-1]),
        ("toy.txt", b""),
        ("toy.txt.gz", gzip.compress(TEXT + b"!")),
        ("toy.txt.gz", gzip.compress(TEXT)[:-9]),
        ("toy.txt.gz", b"<html>404</html>"),
        ("toy.txt.gz", gzip.compress(TEXT)[:20] + b"\xff" * 20),
    ],
    ids=("cut", "empty", "other bytes packed", "packed cut", "a web page", "packed garbage"),
)
def test_a_damaged_file_is_named_and_not_changed(folder, name, content, server):
    """Fails if damage is not detected, the message lacks the file or the remedy, or the file is changed."""
    path = put(folder / name, content)
    with pytest.raises(DataError) as caught:
        downloads.read("toy")
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "checksum" in message
    assert "delete it to have it downloaded again" in message
    assert "\n" not in message
    assert path.read_bytes() == content
    assert server[1] == []


def tar_gz(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@pytest.mark.parametrize("damage", [lambda tar: tar[: len(tar) // 2], lambda tar: b"no archive", lambda tar: b""])
def test_a_damaged_archive_is_named(folder, damage, monkeypatch):
    content = tar_gz("toy.txt", TEXT * 1000)
    monkeypatch.setitem(PUBLISHED, "toy", one_file("toy.tar.gz", content, TEXT * 1000))
    path = put(folder / "toy.tar.gz", damage(content))
    with pytest.raises(DataError, match="checksum") as caught:
        downloads.read("toy")
    assert str(path) in str(caught.value)


def test_an_archive_without_a_required_member_is_damaged(folder, monkeypatch):
    content = tar_gz("other.txt", TEXT)
    monkeypatch.setitem(PUBLISHED, "toy", one_file("toy.tar.gz", content))
    put(folder / "toy.tar.gz", content)
    with pytest.raises(DataError, match="checksum"):
        downloads.read("toy")


def test_a_missing_file_is_downloaded_verified_and_stored_packed(folder, server):
    """Fails if another URL is requested, or the folder contains anything but the file under its name."""
    responses, requested = server
    responses["https://example.invalid/data/toy.txt.gz"] = Response(gzip.compress(TEXT, mtime=0))
    assert fetch("toy") == folder
    assert downloads.read("toy") == {"toy.txt": TEXT}
    assert requested == ["https://example.invalid/data/toy.txt.gz"]
    assert [path.name for path in folder.iterdir()] == ["toy.txt.gz"]


def test_downloading_shows_progress_on_stderr(folder, server, capsys):
    server[0]["https://example.invalid/data/toy.txt.gz"] = Response(gzip.compress(TEXT, mtime=0))
    fetch("toy")
    captured = capsys.readouterr()
    assert "toy.txt.gz" in captured.err
    assert captured.out == ""


def test_without_a_network_the_error_names_file_url_and_folder(folder):
    """Fails if one of them is missing, or if the message is that of requests, which is several lines long."""
    with pytest.raises(DataError) as caught:
        fetch("toy")
    message = str(caught.value)
    assert "'toy.txt.gz'" in message
    assert str(folder) in message
    assert "https://example.invalid/data/toy.txt.gz" in message
    assert "ConnectionError" in message
    assert "\n" not in message
    assert len(message) < 400


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (Response(b"<html>", 404), "HTTP 404"),
        (Response(b"<html>"), "checksum of the downloaded file is not"),
    ],
)
def test_a_wrong_response_leaves_nothing_behind(folder, server, response, reason):
    """Fails if an error page or another file is stored as the data."""
    server[0]["https://example.invalid/data/toy.txt.gz"] = response
    with pytest.raises(DataError, match=reason):
        fetch("toy")
    assert list(folder.iterdir()) == []


def test_status_lists_present_and_missing_files_without_reading(folder, monkeypatch):
    """Fails if a packed file counts as missing, or if checksums are computed."""
    two = PublishedFiles(
        "toy-folder", "https://example.invalid/", {"a": "0", "b": "0"}, {"a.gz": "md5:0", "b": "md5:0"}
    )
    monkeypatch.setitem(PUBLISHED, "toy", two)
    put(folder / "a.gz", b"12345")
    [toy] = [entry for entry in status() if entry.name == "toy"]
    assert (toy.folder, toy.present, toy.missing, toy.size) == (folder, ("a",), ("b",), 5)
    assert {"a9a", "mnist", "fashion-mnist", "cifar10"} <= {entry.name for entry in status()}


def test_the_size_of_an_archive_counts_once(folder, monkeypatch):
    archived = PublishedFiles("toy-folder", "https://example.invalid/", {"a": "0", "b": "0"}, {"all.tar.gz": "md5:0"})
    monkeypatch.setitem(PUBLISHED, "toy", archived)
    put(folder / "all.tar.gz", b"12345")
    [toy] = [entry for entry in status() if entry.name == "toy"]
    assert (toy.present, toy.missing, toy.size) == (("a", "b"), (), 5)


@pytest.mark.parametrize(("name", "near"), [("mnits", "did you mean 'mnist'"), ("digits", "no files to download")])
def test_fetching_a_dataset_without_files_is_rejected(name, near):
    with pytest.raises(ConfigError, match=near):
        fetch(name)


def test_the_data_folder_is_the_variable_or_a_cache(monkeypatch, tmp_path):
    """An empty variable counts as not set: otherwise files would be stored in the current folder."""
    monkeypatch.setenv("DEPOSITUM_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    monkeypatch.setenv("DEPOSITUM_DATA", "")
    cache = data_folder()
    monkeypatch.delenv("DEPOSITUM_DATA")
    assert data_folder() == cache
    assert cache.is_absolute()
    assert "depositum" in cache.name


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_every_published_file_is_in_a_download(name):
    """Fails if a file is in no download, or a checksum has the wrong length."""
    published = PUBLISHED[name]
    assert {published.download(file) for file in published.files} == set(published.downloads)
    assert all(len(bytes.fromhex(checksum)) == 32 for checksum in published.files.values())
    for checksum in published.downloads.values():
        kind, digits = checksum.split(":")
        assert len(bytes.fromhex(digits)) == {"md5": 16, "sha256": 32}[kind]


def test_a_packed_file_that_unpacks_to_much_is_refused_while_it_is_unpacked(folder, server, monkeypatch):
    """A stranger's file under a published name must not fill the memory before its checksum is found to be wrong."""
    monkeypatch.setattr("depositum.bounded_reading.HARMLESS_SIZE", 1 << 20)
    put(folder / "toy.txt.gz", gzip.compress(bytes(30 << 20)))
    with pytest.raises(DataError, match=r"toy\.txt\.gz: its .* KiB unpack to [12]\.[0-9] MiB or more; refused"):
        downloads.read("toy")
