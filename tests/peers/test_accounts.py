"""Accounts of messages: chained, continued after a restart, and found out when changed. Messages that are kept."""

from pathlib import Path

import pytest
import torch

from depositum.engines.distributed import Subject
from depositum.errors import DataError, RunError
from depositum.peers import verify
from depositum.peers.account import Account
from depositum.peers.outbox import Outbox, Shelf


def write(path: Path, numbers: range) -> None:
    account = Account(path)
    for number in numbers:
        account.add("b", number // 2, "x", number, 100, f"{number:064x}")
    account.close()


def test_an_account_is_continued_and_what_is_sent_again_is_marked(tmp_path: Path) -> None:
    """Also if the last line was written in part when the member was killed."""
    path = tmp_path / "sent.csv"
    write(path, range(4))
    with path.open("a") as file:
        file.write("2026-01-01,b,7,x,9,1")
    write(path, range(2, 6))
    assert verify(path) == 8
    again = [line.split(",")[7] for line in path.read_text().splitlines()[1:]]
    assert again == ["", "", "", "", "again", "again", "", ""]
    assert Account(path).bytes == {"b": 800}


@pytest.mark.parametrize("change", ["edit", "remove", "insert", "swap"])
def test_a_changed_account_is_found_out(tmp_path: Path, change: str) -> None:
    path = tmp_path / "sent.csv"
    write(path, range(5))
    lines = path.read_text().splitlines(keepends=True)
    if change == "edit":
        lines[3] = lines[3].replace(",100,", ",1,")
    elif change == "remove":
        del lines[2]
    elif change == "insert":
        lines.insert(2, lines[1])
    else:
        lines[2], lines[3] = lines[3], lines[2]
    path.write_text("".join(lines))
    with pytest.raises(DataError, match=r"line \d: was changed"):
        verify(path)


def test_messages_beyond_a_bound_of_memory_are_kept_in_files(tmp_path: Path) -> None:
    """Once for several neighbours, freed when the last of them cannot need it; a file that changed is not sent."""
    shelf = Shelf(tmp_path, bound=3 << 20)
    one, other = Outbox(shelf), Outbox(shelf)
    contents = [torch.randint(0, 256, (1 << 20,), dtype=torch.uint8) for _ in range(8)]
    for content in contents:
        payload = shelf.payload(content)
        for outbox in (one, other):
            outbox.add(payload, Subject(0, "x"))
    files = sorted(tmp_path.glob("*.message"))
    assert len(files) == 5
    for number, content in enumerate(contents):
        assert bytes(one[number].payload.view()) == bytes(content.numpy())
    one.forget(8)
    assert sorted(tmp_path.glob("*.message")) == files
    other.forget(3)
    assert len(list(tmp_path.glob("*.message"))) == 2
    (changed := sorted(tmp_path.glob("*.message"))[0]).write_bytes(b"1")
    with pytest.raises(RunError, match="has changed since it was written"):
        other[3].payload.view()
    assert changed.exists()
    other.forget(8)
    assert not list(tmp_path.glob("*.message"))
    shelf.close()
