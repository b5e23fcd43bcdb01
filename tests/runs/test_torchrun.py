"""Under the real torchrun: killed and started again by it, and refused."""

import importlib.util
import os
import re
import signal
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.rank_processes import launch
from tests.support.rank_runs import run
from tests.support.small_runs import write_config

pytestmark = pytest.mark.slow

FILE = Path(__file__).parents[2] / "benchmarks" / "kill_test.py"


@pytest.fixture(scope="module")
def kill_test() -> ModuleType:
    """The benchmark that kills as often as one likes: how it starts runs, finds processes and compares."""
    spec = importlib.util.spec_from_file_location("kill_test", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CHANGES: dict[str, dict[str, Any]] = {
    "problem": {"model": "user_model:normalised"},
    "run": {"steps": 40, "seeds": [0, 1]},
    "processes": {"timeout": 10.0},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("torchrun")
    config = write_config(folder / "c.toml", **CHANGES)
    assert [said.code for said in launch(run, 2, str(config), "--out", str(folder / "out"))] == [0, 0]
    return folder


@pytest.mark.parametrize(("victim", "when"), [(1, "iteration 12 kept"), (0, "iteration 20 evaluated")])
def test_killed_and_restarted(
    kill_test: ModuleType, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: int, when: str
) -> None:
    """kill -9 of a rank: the other still says who it was, though torchrun tells it to end, and the restart goes on from
    the last checkpoint to the same bytes. `benchmarks/kill_test.py` does so at random times.
    """
    monkeypatch.setenv("PAUSE", "0.01")
    out = tmp_path / "out"
    started = kill_test.start(whole / "c.toml", out, 2, restarts=1)
    log = out / "logs" / f"rank-{1 - victim}.log"
    deadline = time.monotonic() + 120
    while not (log.exists() and when in log.read_text()):
        assert started.poll() is None, started.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(kill_test.ranks(started.pid)[victim], signal.SIGKILL)
    said, _ = started.communicate(timeout=120)
    assert started.returncode == 0, said
    assert re.search(rf"^error: rank {victim} \(clients {2 * victim}–{2 * victim + 1}, host .*\) is gone", said, re.M)
    assert re.search(r"resuming from iteration (12|18|24|30|36)$", said, re.M)
    assert kill_test.outcome(out) == kill_test.outcome(whole / "out")


def test_too_many_processes(kill_test: ModuleType, whole: Path, tmp_path: Path) -> None:
    """The ranks say so in one line each, nothing is written, and no process is left.

    How many ranks come to say it is torchrun's affair: it ends the others once one has failed. That each would is
    `test_what_no_rank_can_do` of test_processes_runs.py.
    """
    started = kill_test.start(whole / "c.toml", tmp_path / "out", 5, restarts=0)
    seen: dict[int, int] = {}
    while started.poll() is None:
        seen |= kill_test.ranks(started.pid)
        time.sleep(0.05)
    said, _ = started.communicate()
    assert started.returncode == 1
    errors = re.findall(r"^error: .*", said, re.M)
    assert 1 <= len(errors) <= 5
    assert all(error.startswith("error: problem.clients: 4 given, but there are 5 processes") for error in errors)
    assert said.count("Traceback") == 1, "torchrun's own, and no rank's"
    assert not (tmp_path / "out").exists()
    assert set(seen) == set(range(5))
    assert not any(Path(f"/proc/{pid}").exists() for pid in seen.values())
