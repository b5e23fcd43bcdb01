"""`depositum federation demo` as a newcomer runs it, and as one who stops it."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from depositum.federation.member_folder import MemberFolder
from depositum.federation.status import Status

pytestmark = pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="processes are found by /proc")


def demo(folder: Path) -> "subprocess.Popen[str]":
    """Start the command in an empty folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "depositum", "federation", "demo"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def processes_in(folder: Path) -> list[int]:
    """The processes that work in a folder or below."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and Path(os.readlink(entry / "cwd")).is_relative_to(folder):
                found.append(int(entry.name))
        except OSError:  # ended meanwhile, or another user's
            continue
    return found


@pytest.mark.slow
def test_four_members_end_where_the_simulator_does(tmp_path: Path) -> None:
    """The verdict on the screen, what it compares, and what is left: folders of real members, and no process."""
    process = demo(tmp_path)
    out, err = process.communicate(timeout=500)
    assert (process.returncode, err) == (0, "")
    assert re.findall(r"^  ([\w-]+) +(\d\.\de-\d+)  \(nu, x, y\)  the same$", out, re.MULTILINE)
    assert out.count("  the same") == 4
    assert out.count("depositum peer demo --data digits.npz") == 4
    for name in ("hospital-a", "hospital-b", "laboratory", "university"):
        folder = MemberFolder.open(tmp_path / "federation-demo" / name / "demo")
        status = Status.read(folder.runs)
        assert status is not None
        assert (status.state, status.iteration) == ("finished", 300)
    assert processes_in(tmp_path) == []


@pytest.mark.slow
def test_ctrl_c_leaves_no_process_behind(tmp_path: Path) -> None:
    """Stopped while all four members run; and only this process gets the signal, as from `kill`."""
    (tmp_path / "federation-demo").mkdir()  # of an earlier demo: it is left alone
    process = demo(tmp_path)
    try:
        begun = time.monotonic()
        statuses = [tmp_path / "federation-demo-2" / name / "demo" / "run" for name in ("hospital-a", "university")]
        while not all((status / "status.json").exists() for status in statuses):
            assert time.monotonic() - begun < 300
            assert process.poll() is None
            time.sleep(0.1)
        assert len(processes_in(tmp_path)) >= 5
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert err.splitlines() == ["interrupted"]
    assert processes_in(tmp_path) == []
    assert list((tmp_path / "federation-demo").iterdir()) == []
