"""Runs under torchrun itself: killed and restarted by it, and rejected."""

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
    """The benchmark that kills processes at random: its functions start runs, find ranks and read results."""
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
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `c.toml` and an uninterrupted run of it in `out`."""
    folder = tmp_path_factory.mktemp("torchrun")
    config = write_config(folder / "c.toml", **CHANGES)
    assert [result.code for result in launch(run, 2, str(config), "--out", str(folder / "out"))] == [0, 0]
    return folder


@pytest.mark.parametrize(("victim", "when"), [(1, "saved iteration 12"), (0, "evaluated iteration 20")])
def test_torchrun_restarts_a_killed_run_to_the_same_bytes(
    kill_test: ModuleType, uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: int, when: str
) -> None:
    """SIGKILL of a rank: the other rank still names it although torchrun ends it, and the restart resumes from the
    last checkpoint. `benchmarks/kill_test.py` does the same at random times.
    """
    monkeypatch.setenv("PAUSE", "0.01")
    out = tmp_path / "out"
    started = kill_test.start(uninterrupted / "c.toml", out, 2, restarts=1)
    log = out / "logs" / f"rank-{1 - victim}.log"
    deadline = time.monotonic() + 120
    while not (log.exists() and when in log.read_text()):
        assert started.poll() is None, started.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(kill_test.ranks(started.pid)[victim], signal.SIGKILL)
    output, _ = started.communicate(timeout=120)
    assert started.returncode == 0, output
    assert re.search(rf"^error: rank {victim} \(clients {2 * victim}–{2 * victim + 1}, host .*\) is gone", output, re.M)
    assert re.search(r"resuming from iteration (12|18|24|30|36)$", output, re.M)
    assert kill_test.outcome(out) == kill_test.outcome(uninterrupted / "out")


def test_more_processes_than_clients_are_rejected(kill_test: ModuleType, uninterrupted: Path, tmp_path: Path) -> None:
    """Ranks report it in one line each, nothing is written, and no process is left running.

    torchrun ends the other ranks once one has failed, so not all of them may report it;
    `test_an_invalid_configuration_is_reported_by_every_rank` in test_distributed_runs.py tests that each would.
    """
    started = kill_test.start(uninterrupted / "c.toml", tmp_path / "out", 5, restarts=0)
    pids: dict[int, int] = {}
    while started.poll() is None:
        pids |= kill_test.ranks(started.pid)
        time.sleep(0.05)
    output, _ = started.communicate()
    assert started.returncode == 1
    errors = re.findall(r"^error: .*", output, re.M)
    assert 1 <= len(errors) <= 5
    assert all(error.startswith("error: problem.clients: 4 given, but there are 5 processes") for error in errors)
    assert output.count("Traceback") == 1, "torchrun's, and none of a rank"
    assert not (tmp_path / "out").exists()
    assert set(pids) == set(range(5))
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())
