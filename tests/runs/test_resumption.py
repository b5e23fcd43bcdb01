"""A run killed, stopped, extended or damaged goes on, and ends as one that never was."""

import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load_file

from depositum.errors import RunError
from depositum.problem.row_model import RowModel
from depositum.runs.checkpoint import CURRENT, PREVIOUS
from depositum.runs.folder import read_history
from tests.support.small_runs import SMALL, KillAt, Killed, StopAt, command, files, outcome, train, write_config

COSINE = {"cosine": {"start": 0.2, "steps": 20}}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "plain": {},
    "seeds": {"run": {"seeds": [0, 3, 7]}},
    "nesterov": {"algorithm": {"momentum": "nesterov", "start": "mixed"}},
    "buffers": {"problem": {"model": "user_model:normalised"}},
    "float64, full gradients": {"run": {"dtype": "float64", "batch_size": "full"}},
    "cosine": {"algorithm": {"alpha": COSINE}},
    "power": {"algorithm": {"alpha": {"power": {"start": 0.2, "power": 0.5}}}},
    "shifted": {"run": {"evaluate_from": 1}, "metrics": {"train_every": 8}},
    "step": {"algorithm": {"alpha": {"step": {"start": 0.2, "factor": 0.5, "every": 4}}}},
}
EVERYTHING: dict[str, dict[str, Any]] = {
    "problem": {"model": "user_model:normalised"},
    "algorithm": {"momentum": "nesterov", "alpha": {"cosine": {"start": 0.2, "steps": 40}}},
    # Named, because processes that each measure for themselves may find another backend faster, and round otherwise.
    "run": {"seeds": [3, 5], "steps": 60, "backend": "vmap"},
}


# Killed and stopped


@pytest.mark.parametrize(
    ("name", "moment"),
    [*((name, "on_step") for name in VARIANTS), ("seeds", "on_evaluation"), ("seeds", "on_checkpoint")],
)
def test_resumed_equals_uninterrupted(tmp_path: Path, name: str, moment: str) -> None:
    """Fails if anything of the state is not in the checkpoint, or anything depends on where a sitting began."""
    config = write_config(tmp_path / "c.toml", **VARIANTS[name])
    train(config, tmp_path / "whole")
    # In the midst of things: after the second checkpoint; at an evaluation; just after a checkpoint was written.
    at = {"on_step": 15, "on_evaluation": 16, "on_checkpoint": 12}[moment]
    with pytest.raises(Killed):
        train(config, tmp_path / "killed", KillAt(at, moment))
    _, said = train(config, tmp_path / "killed")
    assert said == [f"{tmp_path / 'killed'}: resuming from iteration 12"]
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


def test_a_resumed_run_keeps_the_backend_that_was_found_fastest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopwatch may say otherwise the second time, and another backend rounds otherwise."""
    config = write_config(tmp_path / "c.toml")
    choices: list[str] = []

    def fastest(self: RowModel, candidates: Sequence[str], *_: object) -> str:
        choices.append(candidates[-len(choices) % len(candidates)])
        return choices[-1]

    monkeypatch.setattr(RowModel, "_fastest", fastest)
    with pytest.raises(Killed):
        train(config, tmp_path / "killed", KillAt(15))
    train(config, tmp_path / "killed")
    assert len(choices) == 1


def test_killed_before_the_first_checkpoint(tmp_path: Path) -> None:
    """A run with no checkpoint begins again, and rows of the first attempt must not stay."""
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "whole")
    with pytest.raises(Killed):
        train(config, tmp_path / "killed", KillAt(5))
    train(config, tmp_path / "killed")
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("stops", [(1, 12), (7, 8, 19)])
def test_stopped_at_any_iteration(tmp_path: Path, stops: tuple[int, ...]) -> None:
    """Ctrl-C keeps a checkpoint where no other would be; it must not show afterwards."""
    config = write_config(tmp_path / "c.toml", **EVERYTHING)
    train(config, tmp_path / "whole")
    for t in stops:
        result, _ = train(config, tmp_path / "stopped", StopAt(t))
        assert (result.snapshot.t, result.finished) == (t, False)
    train(config, tmp_path / "stopped")
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")


def wait_for(path: Path, process: Any) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"{path} never appeared"
        time.sleep(0.005)


@pytest.mark.slow
def test_kill_9(tmp_path: Path) -> None:
    """A real process, really killed between two checkpoints, and another that goes on from what it left."""
    config = write_config(tmp_path / "c.toml", **EVERYTHING)
    train(config, tmp_path / "whole")
    process = command("run", config, "--out", tmp_path / "killed", PAUSE="0.05")
    wait_for(tmp_path / "killed" / CURRENT, process)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    with safe_open(tmp_path / "killed" / CURRENT, "pt") as file:
        assert '"iteration": 60' not in file.metadata()["depositum"], "killed too late to show anything"

    again = command("run", config, "--out", tmp_path / "killed")
    _, err = again.communicate(timeout=60)
    assert again.returncode == 0, err
    assert "resuming from iteration" in err
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


@pytest.mark.slow
def test_ctrl_c(tmp_path: Path) -> None:
    """SIGINT in training: 130, where it stopped, no traceback, and the same bytes after resuming."""
    config = write_config(tmp_path / "c.toml", **EVERYTHING)
    train(config, tmp_path / "whole")
    process = command("run", config, "--out", tmp_path / "stopped", PAUSE="0.05")
    wait_for(tmp_path / "stopped" / CURRENT, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    with safe_open(tmp_path / "stopped" / CURRENT, "pt") as file:
        t = int(file.metadata()["depositum"].split('"iteration": ')[1].split(",")[0])
    assert 6 <= t < 60
    assert err.splitlines()[-1] == f"stopped at iteration {t} of 60; run the same command to resume"
    assert "Traceback" not in err

    _, said = train(config, tmp_path / "stopped")
    assert said == [f"{tmp_path / 'stopped'}: resuming from iteration {t}"]
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")


@pytest.mark.slow
def test_ctrl_c_before_training(tmp_path: Path) -> None:
    """SIGINT while the problem is being built: 130 and one word; nothing has been written."""
    config = write_config(tmp_path / "c.toml", problem={"model": "user_model:never_ready"})
    building = tmp_path / "building"
    process = command("run", config, "--out", tmp_path / "out", BUILDING=str(building))
    wait_for(building, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")
    assert not (tmp_path / "out").exists()


# Finished, extended


def test_finished_run_is_left_alone(tmp_path: Path) -> None:
    config = write_config(tmp_path / "c.toml")
    first, _ = train(config, tmp_path / "run")
    before, times = files(tmp_path / "run"), {p: p.stat().st_mtime_ns for p in (tmp_path / "run").iterdir()}
    second, said = train(config, tmp_path / "run")
    assert said == [f"{tmp_path / 'run'}: nothing to do, 20 iterations are done"]
    assert files(tmp_path / "run") == before
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "run").iterdir()} == times
    assert second.finished
    assert second.history.frame.equals(first.history.frame)
    # Asking for fewer steps than are done is no reason to write either.
    _, said = train(config, tmp_path / "run", overrides=("run.steps=5",))
    assert said == [f"{tmp_path / 'run'}: nothing to do, 20 iterations are done"]
    assert files(tmp_path / "run") == before


@pytest.mark.parametrize("first", [0, 8, 12, 13, 16])
@pytest.mark.parametrize("evaluate_from", [0, 1])
def test_extended_equals_as_long_from_the_start(tmp_path: Path, first: int, evaluate_from: int) -> None:
    """The shorter run's last evaluation (13: between evaluations; 12: costly measures, and a training loss, of its own)
    must not stay. Shifted by 1, it is 12 that is between, and 13 that has measures of its own.
    """
    run = {"seeds": [0, 1], "evaluate_from": evaluate_from}
    config = write_config(tmp_path / "c.toml", run=run, metrics={"train_every": 8})
    train(config, tmp_path / "whole")
    train(config, tmp_path / "extended", overrides=(f"run.steps={first}",))
    assert read_history(tmp_path / "extended")["iteration"].max() == first
    train(config, tmp_path / "extended")
    assert outcome(tmp_path / "extended") == outcome(tmp_path / "whole")
    assert (tmp_path / "extended" / "config.toml").read_text() == (tmp_path / "whole" / "config.toml").read_text()


def test_evaluations_shifted(tmp_path: Path) -> None:
    """Rows at t = 0, 1, 6, 11, … and the last; measures with a stride of their own count from 1 too.

    A stride that counts from t = 0 would leave them to the first and last rows alone.
    """
    run, metrics = {"steps": 23, "evaluate_every": 5, "evaluate_from": 1}, {"costly_every": 10, "train_every": 10}
    train(write_config(tmp_path / "c.toml", run=run, metrics=metrics), tmp_path / "run")
    history = read_history(tmp_path / "run").set_index("iteration")
    assert history.index.tolist() == [0, 1, 6, 11, 16, 21, 23]
    for column in ("train_loss", "phi", "stationarity", "stationarity_mean", "gradient_error"):
        assert history.index[history[column].notna()].tolist() == [0, 1, 11, 21, 23], column
    assert history["test_loss"].notna().all()
    assert history["stationarity_mean"].iloc[-1] == pytest.approx(history["stationarity"].mean())


def test_run_of_an_earlier_version(tmp_path: Path) -> None:
    """A folder whose configuration has no `run.evaluate_from` yet is the same run's, and goes on."""
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "whole")
    train(config, tmp_path / "run", StopAt(9))
    written = tmp_path / "run" / "config.toml"
    assert "evaluate_from = 0\n" in written.read_text()
    written.write_text(written.read_text().replace("evaluate_from = 0\n", ""))
    train(config, tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_run_of_no_steps(tmp_path: Path) -> None:
    """Zero steps are a run too: the start, evaluated, kept and not run again."""
    config = write_config(tmp_path / "c.toml", run={"steps": 0})
    result, _ = train(config, tmp_path / "run")
    assert result.history.frame["iteration"].tolist() == [0]
    assert (tmp_path / "run" / "model.safetensors").exists()
    _, said = train(config, tmp_path / "run")
    assert said == [f"{tmp_path / 'run'}: nothing to do, 0 iterations are done"]


def test_checkpoints_and_device_may_change_on_the_way(tmp_path: Path) -> None:
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "whole")
    train(config, tmp_path / "run", StopAt(5))
    train(config, tmp_path / "run", overrides=("run.checkpoint_every=1", "run.device=cpu:0"))
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


# Damaged


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def test_truncated_checkpoint(tmp_path: Path) -> None:
    """The one before is used and said; the end is the same; the broken one never replaces the whole one."""
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "whole")
    folder = tmp_path / "run"
    train(config, folder, StopAt(15))
    cut(folder / CURRENT)
    with pytest.raises(Killed):
        train(config, folder, KillAt(12 + 1))  # before another checkpoint: both files must still be usable
    assert not (folder / PREVIOUS).exists() or load_file(folder / PREVIOUS)
    assert load_file(folder / CURRENT)
    _, said = train(config, folder)
    assert said == [f"{folder}: resuming from iteration 12"]
    assert outcome(folder) == outcome(tmp_path / "whole")


def test_truncated_checkpoint_is_said(tmp_path: Path) -> None:
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "run")
    cut(tmp_path / "run" / CURRENT)
    _, said = train(config, tmp_path / "run")
    assert len(said) == 1
    assert said[0].startswith(f"{tmp_path / 'run' / CURRENT}: is no whole checkpoint")
    assert said[0].endswith("resuming from iteration 18")


@pytest.mark.parametrize("damage", [cut, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"x" * 99)])
def test_no_whole_checkpoint(tmp_path: Path, damage: Any) -> None:
    """With both broken the run is refused, even when it is also to be extended, and every byte stays."""
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "run")
    for name in (CURRENT, PREVIOUS):
        damage(tmp_path / "run" / name)
    before = files(tmp_path / "run")
    with pytest.raises(RunError, match="is no whole checkpoint .* there is no earlier one; remove the folder"):
        train(config, tmp_path / "run", overrides=("run.steps=30",))
    assert files(tmp_path / "run") == before


def test_checkpoint_of_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person's own model can change under the same name; its checkpoint then fits nothing."""
    config = write_config(tmp_path / "c.toml", problem={"model": "user_model:normalised"})
    train(config, tmp_path / "run", StopAt(3))
    own = tmp_path / "user_model.py"
    own.write_text(own.read_text().replace("5", "6"))
    monkeypatch.delitem(sys.modules, "user_model")  # as in a new process
    before = files(tmp_path / "run")
    with pytest.raises(RunError, match=r"models of shape \(4, 53\), but the configuration's are \(4, 63\)"):
        train(config, tmp_path / "run")
    assert files(tmp_path / "run") == before


def test_rows_cut_off_by_a_kill(tmp_path: Path) -> None:
    """A kill can leave half a line; the iteration is run again, and half a number is never taken for one."""
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "whole")
    with pytest.raises(Killed):
        train(config, tmp_path / "killed", KillAt(15))
    for name in ("history.csv", "consensus.csv"):
        whole = (tmp_path / "whole" / name).read_text().splitlines()
        with (tmp_path / "killed" / name).open("a") as file:
            file.write(whole[-1][:-3])  # every column is there, but the last number is not the one it was
    assert read_history(tmp_path / "killed")["iteration"].tolist() == [0, 4, 8, 12]
    train(config, tmp_path / "killed")
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


def test_small_config_is_what_these_tests_assume() -> None:
    """Evaluations and checkpoints that coincide would hide half of what is tested here."""
    run = SMALL["run"]
    assert run["checkpoint_every"] % run["evaluate_every"]
    assert run["steps"] % run["checkpoint_every"]
