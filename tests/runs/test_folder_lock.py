"""Two processes never write into one run's folder: the second is rejected, and no lock remains."""

import importlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from depositum.engines import Callback, Loop
from depositum.errors import RunError
from depositum.runs import execute_all
from tests.support.small_runs import StopAt, command, files, train, write_config
from tests.support.small_sweeps import run_folders, small_sweep

fcntl = pytest.importorskip("fcntl")
execution = importlib.import_module("depositum.runs.execution")
IN_USE = "another process is using this folder"


@contextmanager
def locked_by_another(folder: Path) -> Iterator[None]:
    """A lock like another process's: locks belong to open file descriptions, not to processes."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while a run holds the lock
        yield
    finally:
        os.close(descriptor)


def test_a_folder_in_use_is_rejected_and_unchanged(tmp_path: Path) -> None:
    config = write_config(tmp_path / "c.toml")
    result, _ = train(config, tmp_path / "run", StopAt(8))
    assert not result.finished
    before = files(tmp_path / "run")
    with locked_by_another(tmp_path / "run"), pytest.raises(RunError, match=IN_USE):
        train(config, tmp_path / "run")
    assert files(tmp_path / "run") == before
    assert train(config, tmp_path / "run")[0].finished


def test_a_new_folder_is_locked_from_its_creation_to_the_end_of_the_run(tmp_path: Path) -> None:
    """Of two processes that start before the folder exists, the one that creates it holds the lock."""
    attempts: list[str] = []

    class OtherProcess(Callback):
        def on_start(self, loop: Loop) -> None:
            with pytest.raises(BlockingIOError), locked_by_another(tmp_path / "run"):
                pass
            attempts.append("during the run")

    train(write_config(tmp_path / "c.toml"), tmp_path / "run", OtherProcess())
    assert attempts == ["during the run"]
    with locked_by_another(tmp_path / "run"):
        assert (tmp_path / "run" / "config.toml").exists()


@pytest.mark.slow
def test_a_folder_that_was_created_while_a_run_was_built_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two runs that start before the folder exists, the slower one leaves the other's files unchanged."""
    config = write_config(tmp_path / "c.toml")
    other = write_config(tmp_path / "other.toml", algorithm={"alpha": 0.2})
    build = execution.build_problem
    for slower, message in ((other, "holds another run (algorithm.alpha is 0.1"), (config, "another process ran this")):
        folder = tmp_path / f"run-{slower.stem}"
        written: dict[str, bytes] = {}

        def build_slowly(*given: Any, folder: Path = folder, written: dict[str, bytes] = written) -> Any:
            monkeypatch.setattr(execution, "build_problem", build)
            with command("run", config, "--out", folder) as faster:
                assert faster.wait(120) == 0
            written |= files(folder)
            return build(*given)

        monkeypatch.setattr(execution, "build_problem", build_slowly)
        with pytest.raises(RunError, match=re.escape(message)):
            train(slower, folder)
        assert files(folder) == written


def test_a_sweep_locks_all_folders_or_none(tmp_path: Path) -> None:
    """One cell whose folder is in use stops a sweep before it begins; afterwards no folder is locked."""
    folders = run_folders(tmp_path, 4)
    folders[2].mkdir()
    with locked_by_another(folders[2]), pytest.raises(RunError, match=IN_USE):
        execute_all(small_sweep(), folders)
    assert [folder.exists() for folder in folders] == [False, False, True, False]
    assert all(result.finished for result in execute_all(small_sweep(), folders))
    for folder in folders:
        with locked_by_another(folder):
            assert (folder / "config.toml").exists()


@pytest.mark.slow
def test_a_run_that_is_started_twice_is_rejected_once(tmp_path: Path) -> None:
    """The second process ends with one line, and the first's history is complete; a kill releases the lock."""
    config = write_config(tmp_path / "c.toml", run={"steps": 1_000_000, "checkpoint_every": 50, "compile": "never"})
    out = tmp_path / "run"
    first = command("run", config, "--out", out)
    try:
        deadline = time.monotonic() + 60
        while not (out / "state.safetensors").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        second = command("run", config, "--out", out)
        _, err = second.communicate(timeout=60)
        assert second.returncode == 2
        assert IN_USE in err
        assert len(err.strip().splitlines()) == 1
    finally:
        first.kill()
        first.communicate(timeout=60)
    history = (out / "history.csv").read_text().splitlines()[1:]
    iterations = [int(line.split(",")[1]) for line in history]
    assert iterations == sorted(set(iterations))
    assert iterations[-1] >= 50
    with locked_by_another(out):
        assert (out / "state.safetensors").exists()
