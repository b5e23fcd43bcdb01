"""The status of a member: a complete file at any moment, and what `depositum federation status` makes of it."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from depositum.cli.federation.status_table import duration
from depositum.federation.status import STATUS_FILE, Neighbour, Status, Waiting
from tests.support.federations import enrolled
from tests.support.small_runs import cli


def waiting_status(now: float) -> Status:
    return Status(
        "a",
        "waiting",
        phase=17,
        iteration=51,
        steps=500,
        waiting_for=(Waiting("b", now - 130, "row of phase 18"),),
        neighbours=(
            Neighbour("b", False, now - 131, 1 << 20, 3 << 20, 17, 2),
            Neighbour("c", True, now - 7300, 1 << 20, 1 << 20, 18),
        ),
        loss=0.25,
    )


STATUS = waiting_status(time.time())


def test_a_file_gives_back_the_status(tmp_path: Path) -> None:
    assert Status.read(tmp_path) is None
    STATUS.write(tmp_path)
    assert Status.read(tmp_path) == STATUS
    assert [path.name for path in tmp_path.iterdir()] == [STATUS_FILE]


def test_a_reader_never_finds_half_a_file(tmp_path: Path) -> None:
    """One thread replaces the status as fast as it can while this one reads it."""
    Status("a").write(tmp_path)
    end = threading.Event()

    def write() -> None:
        number = 0
        while not end.is_set():
            number += 1
            Status("a", "training", number, neighbours=STATUS.neighbours * (1 + number % 50)).write(tmp_path)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = {found.phase for _ in range(300) if (found := Status.read(tmp_path)) is not None}
    finally:
        end.set()
        writer.join()
    assert len(seen) > 1


def test_a_process_that_died_is_not_running() -> None:
    """Its last status says that it trains; the process is gone."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert Status("a", "training").is_running()
    assert not Status("a", "training", process=gone.pid).is_running()
    assert not Status("a", "finished").is_running()


def test_the_command_shows_who_is_waited_for_and_since_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    folder = enrolled(tmp_path, {"a": "a.example.org:1", "b": None, "c": "c.example.org:1"})["a"]
    (folder / "run").mkdir()
    waiting_status(time.time()).write(folder / "run")
    done = cli("federation", "status", str(folder))
    assert (done.code, done.err) == (0, "")
    first, waiting, *table = done.out.splitlines()
    assert first.startswith("a: waiting, iteration 51 of 500, phase 17, loss 0.2500")
    assert waiting == "waiting for b (row of phase 18) since 2 min"
    assert table[0].split() == ["neighbour", "connection", "phase", "sent", "received", "without", "it"]
    assert table[1].split() == ["b", "away", "for", "2", "min", "17", "1.0", "MiB", "3.0", "MiB", "2", "phases"]
    assert table[2].split() == ["c", "connected", "for", "2", "h", "18", "1.0", "MiB", "1.0", "MiB", "–"]


def test_the_command_says_that_a_process_has_ended(tmp_path: Path) -> None:
    folder = enrolled(tmp_path, {"a": "a.example.org:1", "b": None})["a"]
    (folder / "run").mkdir()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    Status("a", "training", process=gone.pid).write(folder / "run")
    assert "its process has ended; run `depositum peer` again" in cli("federation", "status", str(folder)).out
    Status("a", "failed", reason="the other end has another run.steps").write(folder / "run")
    assert "the other end has another run.steps" in cli("federation", "status", str(folder)).out


def test_durations_in_their_largest_unit() -> None:
    assert [duration(s) for s in (-3, 0, 59.9, 60, 3599, 3600, 86400, 172800)] == [
        *("0 s", "0 s", "59 s", "1 min", "59 min", "1 h", "24 h", "2 days"),
    ]
