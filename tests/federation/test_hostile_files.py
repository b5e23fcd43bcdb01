"""Requests, invitations and folders that are damaged or hostile: one short line, quickly, and nothing written."""

import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from depositum.errors import MAX_MESSAGE, DepositumError
from depositum.federation.enrolment import Invitation, Request
from depositum.federation.joining import accept
from depositum.federation.member_folder import FILES, MemberFolder
from depositum.federation.organiser_folder import OrganiserFolder
from depositum.federation.status import STATUS_FILE, Status
from tests.support.federations import enrolled
from tests.support.small_runs import files


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two enrolled members; tests must not change them."""
    root = tmp_path_factory.mktemp("hostile")
    enrolled(root, {"a": "a.example.org:7443", "b": None})
    return root


def mutated(content: bytes, rng: random.Random) -> bytes:
    """The content with a few pieces replaced, removed, repeated or exchanged."""
    out = bytearray(content)
    for _ in range(rng.randint(1, 5)):
        at, length = rng.randrange(len(out)), rng.randint(1, 40)
        kind = rng.randrange(6)
        if kind == 0:
            out[at : at + length] = rng.randbytes(length)
        elif kind == 1:
            del out[at : at + length]
        elif kind == 2:
            out[at:at] = bytes(out[at : at + length]) * rng.randint(1, 50)
        elif kind == 3:
            out[at : at + 1] = rng.choice(
                [b"0", b'"', b"[", b"]", b"{}", b"=", b"-1", b"inf", b"\n", b"\x00", b"\\u0000"]
            )
        elif kind == 4:
            out[at] ^= 1 << rng.randrange(8)
        else:
            other = rng.randrange(len(out))
            out[at : at + 8], out[other : other + 8] = out[other : other + 8], out[at : at + 8]
        out = out or bytearray(b"#")
    return bytes(out)


def problems(read: Callable[[], Any], count: int, write: Callable[[random.Random], None]) -> list[str]:
    """What went wrong in so many attempts, one line each; anything but an error of ours is a failure of the test."""
    messages = []
    for number in range(count):
        write(random.Random(number))
        began = time.process_time()
        try:
            read()
        except DepositumError as error:
            messages.append(str(error))
        assert time.process_time() - began < 2
    return messages


def check(messages: list[str], least: int) -> None:
    assert len(messages) >= least
    assert [m for m in messages if not m.isprintable() or not 0 < len(m) <= MAX_MESSAGE] == []


def test_mutated_requests(study: Path, tmp_path: Path) -> None:
    """None is approved but those that still say the same."""
    original = Request.load(study / "a" / "a.request")
    content = (study / "a" / "a.request").read_bytes()
    file = tmp_path / "x.request"

    def read() -> None:
        assert Request.load(file) == original

    check(problems(read, 300, lambda rng: file.write_bytes(mutated(content, rng)) and None), 250)


def test_mutated_invitations(study: Path, tmp_path: Path) -> None:
    """None gives another member, agreement or key; most are refused, and those leave nothing behind."""
    known = OrganiserFolder(study / "study").authority.fingerprint
    content = (study / "study" / "invitations" / "a.invitation").read_bytes()
    agreed = Invitation.load(study / "study" / "invitations" / "a.invitation").agreement
    file, key, out = tmp_path / "x.invitation", study / "a" / "a.key", tmp_path / "out"

    def read() -> None:
        joined = accept(file, known, key, out)
        assert (joined.folder.name, joined.folder.agreement) == ("a", agreed)
        shutil.rmtree(out)

    def write(rng: random.Random) -> None:
        assert not out.exists()
        file.write_bytes(mutated(content, rng))

    check(problems(read, 150, write), 120)
    assert [path.name for path in tmp_path.iterdir()] == ["x.invitation"]


def test_mutated_folders(study: Path, tmp_path: Path) -> None:
    """Whatever happens to a member's file, the folder is refused, or it is the same member of the same study."""
    original = MemberFolder.open(study / "a" / "study")
    folder = tmp_path / "study"
    shutil.copytree(study / "a" / "study", folder)
    contents = {name: (folder / name).read_bytes() for name in FILES}

    def write(rng: random.Random) -> None:
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        name = rng.choice(FILES)
        (folder / name).write_bytes(mutated(contents[name], rng))

    def read() -> None:
        found = MemberFolder.open(folder)
        assert (found.name, found.agreement) == (original.name, original.agreement)

    check(problems(read, 120, write), 80)


@pytest.mark.parametrize("read", [Request.load, Invitation.load], ids=["request", "invitation"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a"),
        (b"\x80\x04\x95", "cannot be read"),
        (b"#" * 1_100_000, "more than 1000000 bytes"),
        (b"x = " + b"[" * 100_000, "is not valid TOML: it is nested deeper"),
        (b"a." * 100_000 + b"a = 1", "a key has more than 32 parts"),
        (b"format = 1\nname = 1979-05-27", "cannot be a date"),
        (b"format = true\nname = 'a'\nmember = 'a'", "unknown key|missing"),
        (b"format = " + b"9" * 5000, "thousands of digits"),
        (b"format = 1\nmember = 'a'\nname = '" + b"x" * 100_000 + b"'", "at most 4096 characters"),
    ],
    ids=["empty", "a pickle", "large", "deep", "long key", "date", "format", "number", "text"],
)
def test_files_beyond_all_bounds(read: Any, content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(content)
    began = time.process_time()
    with pytest.raises(DepositumError, match=message) as caught:
        read(file)
    assert time.process_time() - began < 2
    assert len(str(caught.value)) <= MAX_MESSAGE


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_does_not_block(study: Path, tmp_path: Path) -> None:
    """A named pipe in the place of any file: reading it would block for ever."""
    folder = tmp_path / "study"
    for name in FILES:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(study / "a" / "study", folder)
        (folder / name).unlink()
        os.mkfifo(folder / name, 0o600)
        with pytest.raises(DepositumError, match="a pipe, socket or device|not a file"):
            MemberFolder.open(folder)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for read in (Request.load, Invitation.load):
        with pytest.raises(DepositumError, match="a pipe, socket or device|not a file"):
            read(pipe)


def test_a_request_of_every_key_with_every_type(study: Path, tmp_path: Path) -> None:
    """Each key of each file with values of types that it never has."""
    values: list[Any] = [0, -1, 2.5, float("inf"), True, "", "\n", [], [[]], {}, {"a": {}}, ["a"] * 50, "é" * 90]
    for path, read in (
        (study / "a" / "a.request", Request.load),
        (study / "study" / "invitations" / "a.invitation", Invitation.load),
    ):
        import tomllib

        table = tomllib.loads(path.read_text())
        for key in table:
            for value in values:
                file = tmp_path / "x"
                file.write_text(tomli_w.dumps({**table, key: value}))
                try:
                    read(file)
                except DepositumError as error:
                    check([str(error)], 1)
                else:
                    # What is only text for now is judged when it is accepted.
                    assert key in ("certificate", "authority", "signature", "format"), (key, value)


def test_damaged_statuses(tmp_path: Path) -> None:
    """`federation status` reads what another process wrote: refused in one line, or shown."""
    Status("a", "training").write(tmp_path)
    content = (tmp_path / STATUS_FILE).read_bytes()
    messages = problems(
        lambda: Status.read(tmp_path),
        200,
        lambda rng: (tmp_path / STATUS_FILE).write_bytes(mutated(content, rng)) and None,
    )
    check(messages, 100)
    assert files(tmp_path).keys() == {STATUS_FILE}
