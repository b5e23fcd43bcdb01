"""Two processes never write into one run's folder: the second is refused, and nothing is left behind."""

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
AT_WORK = "another process is at work there"


@contextmanager
def somebody_else(folder: Path) -> Iterator[None]:
    """A lock as another process has it: the kernel tells apart who opened the folder, not which process did."""
    place = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails where a run has not let go
        yield
    finally:
        os.close(place)


def test_a_folder_at_work_is_refused_and_left_alone(tmp_path: Path) -> None:
    config = write_config(tmp_path / "c.toml")
    result, _ = train(config, tmp_path / "run", StopAt(8))
    assert not result.finished
    before = files(tmp_path / "run")
    with somebody_else(tmp_path / "run"), pytest.raises(RunError, match=AT_WORK):
        train(config, tmp_path / "run")
    assert files(tmp_path / "run") == before
    assert train(config, tmp_path / "run")[0].finished


def test_a_new_folder_is_locked_from_its_making_to_the_end(tmp_path: Path) -> None:
    """Two that begin while there is none: who makes it has it."""
    tried: list[str] = []

    class Other(Callback):
        def on_start(self, loop: Loop) -> None:
            with pytest.raises(BlockingIOError), somebody_else(tmp_path / "run"):
                pass
            tried.append("under way")

    train(write_config(tmp_path / "c.toml"), tmp_path / "run", Other())
    assert tried == ["under way"]
    with somebody_else(tmp_path / "run"):
        assert (tmp_path / "run" / "config.toml").exists()


@pytest.mark.slow
def test_a_folder_made_while_a_run_was_being_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that begin where there is no folder, the slower leaves the other's run as it is, the same or not."""
    config = write_config(tmp_path / "c.toml")
    other = write_config(tmp_path / "other.toml", algorithm={"alpha": 0.2})
    build = execution.build_problem
    for slower, said in ((other, "holds another run (algorithm.alpha is 0.1"), (config, "another process ran this")):
        folder = tmp_path / f"run-{slower.stem}"
        left: dict[str, bytes] = {}

        def meanwhile(*given: Any, folder: Path = folder, left: dict[str, bytes] = left) -> Any:
            monkeypatch.setattr(execution, "build_problem", build)
            with command("run", config, "--out", folder) as quicker:
                assert quicker.wait(120) == 0
            left |= files(folder)
            return build(*given)

        monkeypatch.setattr(execution, "build_problem", meanwhile)
        with pytest.raises(RunError, match=re.escape(said)):
            train(slower, folder)
        assert files(folder) == left


def test_cells_of_a_sweep(tmp_path: Path) -> None:
    """One cell that is at work elsewhere stops a sweep before it begins; all are let go."""
    folders = run_folders(tmp_path, 4)
    folders[2].mkdir()
    with somebody_else(folders[2]), pytest.raises(RunError, match=AT_WORK):
        execute_all(small_sweep(), folders)
    assert [folder.exists() for folder in folders] == [False, False, True, False]
    assert all(result.finished for result in execute_all(small_sweep(), folders))
    for folder in folders:
        with somebody_else(folder):
            assert (folder / "config.toml").exists()


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    """A double submit: the second ends in one line, the first's history is whole; killed, it lets go."""
    config = write_config(tmp_path / "c.toml", run={"steps": 1_000_000, "checkpoint_every": 50, "compile": "never"})
    out = tmp_path / "run"
    first = command("run", config, "--out", out)
    try:
        deadline = time.monotonic() + 60
        while not (out / "state.safetensors").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        second = command("run", config, "--out", out)
        _, said = second.communicate(timeout=60)
        assert second.returncode == 2
        assert AT_WORK in said
        assert len(said.strip().splitlines()) == 1
    finally:
        first.kill()
        first.communicate(timeout=60)
    history = (out / "history.csv").read_text().splitlines()[1:]
    iterations = [int(line.split(",")[1]) for line in history]
    assert iterations == sorted(set(iterations))
    assert iterations[-1] >= 50
    with somebody_else(out):
        assert (out / "state.safetensors").exists()
