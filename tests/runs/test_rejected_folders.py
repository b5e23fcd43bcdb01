"""Where a run may be written: folders that are something else are refused, and left as they are."""

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


def foreign(folder: Path) -> Path:
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
        (below_a_file, "cannot be made, since .* is a file"),
        (foreign, "is not empty and holds no run; choose another folder"),
        (with_config("[run\nsteps"), r"its config.toml is no run's \(.*line 1"),
        (with_config("problem = 3"), "its config.toml is no run's"),
        (with_config("[tool.black]\nline-length = 9"), "its config.toml is no run's"),
        (with_config("\x00\xff"), "its config.toml is no run's"),
        (lambda folder: Path("/proc/depositum"), "cannot be written to"),
    ],
)
def test_folders_that_are_refused(tmp_path: Path, make: Any, problem: str) -> None:
    """Nothing that is not a run's own is written over, and nothing is written beside it."""
    config = write_config(tmp_path / "c.toml")
    out = make(tmp_path / "out")
    before = files(tmp_path)
    with pytest.raises(RunError, match=problem) as error:
        train(config, out)
    assert str(error.value).startswith(f"--out {out}: ")
    assert "\n" not in str(error.value)
    assert files(tmp_path) == before


def test_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root everything is permitted, so what the system would say is put in its mouth."""
    config = write_config(tmp_path / "c.toml")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(RunError, match=f"out: cannot be written to \\(no permission in {tmp_path}"):
        train(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("override", "differs"),
    [
        ("algorithm.alpha=0.2", "algorithm.alpha is 0.1 there and 0.2 here"),
        ("problem.partition_seed=4", "problem.partition_seed is not set there and 4 here"),
        ("run.seeds=[0, 1]", r"run.seeds is \[0\] there and \[0, 1\] here"),
    ],
)
def test_folder_of_another_run(tmp_path: Path, override: str, differs: str) -> None:
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "run", StopAt(8))
    before = files(tmp_path / "run")
    with pytest.raises(RunError, match=rf"holds another run \({differs}\)"):
        train(config, tmp_path / "run", overrides=(override, "run.steps=30"))
    assert files(tmp_path / "run") == before


def test_folder_left_by_a_run_killed_at_its_beginning(tmp_path: Path) -> None:
    """Half a config.toml under its working name does not make the folder foreign."""
    config = write_config(tmp_path / "c.toml")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml.part").write_text("[run]\nst")
    assert train(config, tmp_path / "run")[0].finished


def test_disk_that_cannot_be_written(tmp_path: Path) -> None:
    """What goes wrong in the midst of a run is one line too (here: a folder where the next checkpoint should go)."""
    config = write_config(tmp_path / "c.toml")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / f"{CURRENT}.part").mkdir()
    with pytest.raises(RunError, match=f"{CURRENT}: cannot be written"):
        train(config, tmp_path / "run")
