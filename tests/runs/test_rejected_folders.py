"""Folders that a run cannot use are rejected and left unchanged."""

import os
from pathlib import Path
from typing import Any

import pytest

from depositum.errors import RunError
from depositum.runs.checkpoint import CURRENT
from tests.support.small_runs import StopAt, files, train, write_config


def a_file(folder: Path) -> Path:
    folder.write_text("mine")
    return folder


def below_a_file(folder: Path) -> Path:
    folder.write_text("mine")
    return folder / "run"


def with_other_files(folder: Path) -> Path:
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine")
    return folder


def with_config(text: str) -> Any:
    def make(folder: Path) -> Path:
        folder.mkdir()
        (folder / "config.toml").write_text(text)
        return folder

    return make


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (a_file, "is a file; it must be a folder"),
        (below_a_file, "cannot be created, since .* is a file"),
        (with_other_files, "is not empty and holds no run; choose another folder"),
        (with_config("[run\nsteps"), r"its config.toml is not that of a run \(.*line 1"),
        (with_config("problem = 3"), "its config.toml is not that of a run"),
        (with_config("[tool.black]\nline-length = 9"), "its config.toml is not that of a run"),
        (with_config("\x00\xff"), "its config.toml is not that of a run"),
        (lambda folder: Path("/proc/depositum"), "cannot be written to"),
    ],
)
def test_a_folder_that_is_not_a_runs_is_rejected(tmp_path: Path, make: Any, problem: str) -> None:
    """No other file is overwritten, and nothing is written beside it."""
    config = write_config(tmp_path / "c.toml")
    out = make(tmp_path / "out")
    before = files(tmp_path)
    with pytest.raises(RunError, match=problem) as error:
        train(config, out)
    assert str(error.value).startswith(f"--out {out}: ")
    assert "\n" not in str(error.value)
    assert files(tmp_path) == before


def test_a_folder_without_write_permission_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's answer is replaced, since root has every permission."""
    config = write_config(tmp_path / "c.toml")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(RunError, match=f"out: cannot be written to \\(no permission in {tmp_path}"):
        train(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "differs"),
    [
        ("algorithm.alpha=0.2", "algorithm.alpha is 0.1 there and 0.2 here"),
        ("problem.partition_seed=4", "problem.partition_seed is not set there and 4 here"),
        ("run.seeds=[0, 1]", r"run.seeds is \[0\] there and \[0, 1\] here"),
    ],
)
def test_the_folder_of_another_run_is_rejected(tmp_path: Path, override: str, differs: str) -> None:
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "run", StopAt(8))
    before = files(tmp_path / "run")
    with pytest.raises(RunError, match=rf"holds another run \({differs}\)"):
        train(config, tmp_path / "run", overrides=(override, "run.steps=30"))
    assert files(tmp_path / "run") == before


def test_the_folder_of_a_run_that_was_killed_at_its_start_is_used(tmp_path: Path) -> None:
    """It may contain an incomplete config.toml under its temporary name."""
    config = write_config(tmp_path / "c.toml")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml.part").write_text("[run]\nst")
    assert train(config, tmp_path / "run")[0].finished


def test_a_failure_to_write_during_a_run_is_reported_in_one_line(tmp_path: Path) -> None:
    """Here, a folder has the name of the next checkpoint's temporary file."""
    config = write_config(tmp_path / "c.toml")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / f"{CURRENT}.part").mkdir()
    with pytest.raises(RunError, match=f"{CURRENT}: cannot be written"):
        train(config, tmp_path / "run")
