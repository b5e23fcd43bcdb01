"""Publishers' files: found, checked, fetched whole or not at all. No test here reaches a network."""

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

TEXT = b"what the publisher wrote\n" * 100


def one_file(download: str, content: bytes, text: bytes = TEXT) -> PublishedFiles:
    return PublishedFiles(
        folder="toy-folder",
        url="https://example.invalid/data/",
        files={"toy.txt": hashlib.sha256(text).hexdigest()},
        downloads={download: "md5:" + hashlib.md5(content).hexdigest()},
    )


class Response:
    """As much of a `requests` response as a download uses."""

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
    """Answers by address; an address it does not know cannot be reached. It keeps what was asked for."""
    answers: dict[str, Response] = {}
    asked: list[str] = []

    def get(url: str, **_):
        asked.append(url)
        if url not in answers:
            raise requests.ConnectionError("HTTPSConnectionPool(…): a very long text\nof several lines")
        return answers[url]

    monkeypatch.setattr(requests, "get", get)
    return answers, asked


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
def test_packed_files_are_checked_by_what_is_in_them(folder, level, server):
    """Breaks if the checksum is taken of the packed bytes, which differ with the packer (level, time)."""
    put(folder / "toy.txt.gz", gzip.compress(TEXT, level, mtime=level))
    assert downloads.read("toy") == {"toy.txt": TEXT}
    assert server[1] == []


def test_unpacked_files_are_used_as_they_are(folder, server):
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
def test_a_damaged_file_is_named_and_kept(folder, name, content, server):
    """Breaks if damage passes, if the message does not name the file and the way out, or if the file is touched."""
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


def test_an_archive_without_a_wanted_member_is_damaged(folder, monkeypatch):
    content = tar_gz("other.txt", TEXT)
    monkeypatch.setitem(PUBLISHED, "toy", one_file("toy.tar.gz", content))
    put(folder / "toy.tar.gz", content)
    with pytest.raises(DataError, match="checksum"):
        downloads.read("toy")


def test_a_missing_file_is_fetched_checked_and_kept_packed(folder, server):
    """Breaks if the download is asked for at another address, kept under another name, or leaves anything beside it."""
    answers, asked = server
    answers["https://example.invalid/data/toy.txt.gz"] = Response(gzip.compress(TEXT, mtime=0))
    assert fetch("toy") == folder
    assert downloads.read("toy") == {"toy.txt": TEXT}
    assert asked == ["https://example.invalid/data/toy.txt.gz"]
    assert [path.name for path in folder.iterdir()] == ["toy.txt.gz"]


def test_fetching_shows_progress_on_stderr(folder, server, capsys):
    server[0]["https://example.invalid/data/toy.txt.gz"] = Response(gzip.compress(TEXT, mtime=0))
    fetch("toy")
    captured = capsys.readouterr()
    assert "toy.txt.gz" in captured.err
    assert captured.out == ""


def test_without_a_network_one_line_says_what_from_where_and_whither(folder):
    """Breaks if the person is not told the file, its address or the folder, or gets requests' paragraphs instead."""
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
    ("answer", "reason"),
    [
        (Response(b"<html>", 404), "HTTP 404"),
        (Response(b"<html>"), "checksum of the downloaded file is not"),
    ],
)
def test_a_wrong_answer_leaves_nothing_behind(folder, server, answer, reason):
    """Breaks if an error page or a foreign file is kept as if it were the data."""
    server[0]["https://example.invalid/data/toy.txt.gz"] = answer
    with pytest.raises(DataError, match=reason):
        fetch("toy")
    assert list(folder.iterdir()) == []


def test_status_lists_what_is_here_and_what_is_missing_without_reading(folder, monkeypatch):
    """Breaks if a packed file counts as missing, or if asking costs a checksum."""
    two = PublishedFiles(
        "toy-folder", "https://example.invalid/", {"a": "0", "b": "0"}, {"a.gz": "md5:0", "b": "md5:0"}
    )
    monkeypatch.setitem(PUBLISHED, "toy", two)
    put(folder / "a.gz", b"12345")
    [toy] = [entry for entry in status() if entry.name == "toy"]
    assert (toy.folder, toy.present, toy.missing, toy.size) == (folder, ("a",), ("b",), 5)
    assert {"a9a", "mnist", "fashion-mnist", "cifar10"} <= {entry.name for entry in status()}


def test_an_archive_counts_once_however_many_files_it_holds(folder, monkeypatch):
    whole = PublishedFiles("toy-folder", "https://example.invalid/", {"a": "0", "b": "0"}, {"all.tar.gz": "md5:0"})
    monkeypatch.setitem(PUBLISHED, "toy", whole)
    put(folder / "all.tar.gz", b"12345")
    [toy] = [entry for entry in status() if entry.name == "toy"]
    assert (toy.present, toy.missing, toy.size) == (("a", "b"), (), 5)


@pytest.mark.parametrize(("name", "near"), [("mnits", "did you mean 'mnist'"), ("digits", "no files to download")])
def test_fetching_what_has_no_files_is_refused(name, near):
    with pytest.raises(ConfigError, match=near):
        fetch(name)


def test_the_folder_is_the_variable_or_a_cache(monkeypatch, tmp_path):
    """An empty variable is as good as none: otherwise files would land in the current folder."""
    monkeypatch.setenv("DEPOSITUM_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    monkeypatch.setenv("DEPOSITUM_DATA", "")
    cache = data_folder()
    monkeypatch.delenv("DEPOSITUM_DATA")
    assert data_folder() == cache
    assert cache.is_absolute()
    assert "depositum" in cache.name


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_every_published_file_can_be_fetched_by_some_download(name):
    """Breaks if a file is listed that nothing brings, or a checksum is not one."""
    published = PUBLISHED[name]
    assert {published.download(file) for file in published.files} == set(published.downloads)
    assert all(len(bytes.fromhex(sum_)) == 32 for sum_ in published.files.values())
    for sum_ in published.downloads.values():
        kind, digits = sum_.split(":")
        assert len(bytes.fromhex(digits)) == {"md5": 16, "sha256": 32}[kind]
