"""A run's folder: killed, stopped, extended, damaged, diverged; and what is left of it each time."""

import math
import os
import signal
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from depositum import models
from depositum.engines import Callback, Loop
from depositum.errors import RunError
from depositum.problem.gradients import RowModel
from depositum.runs import build_simulator, load
from depositum.runs.checkpoint import CURRENT, PREVIOUS
from depositum.runs.folder import read_history
from tests import processes_runs
from tests.processes_launch import launch
from tests.small_runs import SMALL, Killed, KilledAt, Short, StoppedAt, command, files, outcome, train, write_config

COSINE = {"cosine": {"start": 0.2, "steps": 20}}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "plain": {},
    "seeds": {"run": {"seeds": [0, 3, 7]}},
    "nesterov": {"algorithm": {"momentum": "nesterov", "start": "mixed"}},
    "buffers": {"problem": {"model": "own_model:normalised"}},
    "float64, full gradients": {"run": {"dtype": "float64", "batch_size": "full"}},
    "cosine": {"algorithm": {"alpha": COSINE}},
    "power": {"algorithm": {"alpha": {"power": {"start": 0.2, "power": 0.5}}}},
    "shifted": {"run": {"evaluate_from": 1}, "metrics": {"train_every": 8}},
    "step": {"algorithm": {"alpha": {"step": {"start": 0.2, "factor": 0.5, "every": 4}}}},
}
EVERYTHING: dict[str, dict[str, Any]] = {
    "problem": {"model": "own_model:normalised"},
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
        train(config, tmp_path / "killed", KilledAt(at, moment))
    _, said = train(config, tmp_path / "killed")
    assert said == [f"{tmp_path / 'killed'}: going on from iteration 12"]
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
        train(config, tmp_path / "killed", KilledAt(15))
    train(config, tmp_path / "killed")
    assert len(choices) == 1


def test_killed_before_the_first_checkpoint(tmp_path: Path) -> None:
    """A run with no checkpoint begins again, and rows of the first attempt must not stay."""
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "whole")
    with pytest.raises(Killed):
        train(config, tmp_path / "killed", KilledAt(5))
    train(config, tmp_path / "killed")
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("stops", [(1, 12), (7, 8, 19)])
def test_stopped_at_any_iteration(tmp_path: Path, stops: tuple[int, ...]) -> None:
    """Ctrl-C keeps a checkpoint where no other would be; it must not show afterwards."""
    config = write_config(tmp_path / "c.toml", **EVERYTHING)
    train(config, tmp_path / "whole")
    for t in stops:
        result, _ = train(config, tmp_path / "stopped", StoppedAt(t))
        assert (result.snapshot.t, result.finished) == (t, False)
    train(config, tmp_path / "stopped")
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")


def wait_for(path: Path, process: Any) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"{path} never appeared"
        time.sleep(0.005)


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
    assert "going on from iteration" in err
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


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
    assert err.splitlines()[-1] == f"stopped at iteration {t} of 60; the same command goes on from there"
    assert "Traceback" not in err

    _, said = train(config, tmp_path / "stopped")
    assert said == [f"{tmp_path / 'stopped'}: going on from iteration {t}"]
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")


def test_ctrl_c_before_training(tmp_path: Path) -> None:
    """SIGINT while the problem is being built: 130 and one word; nothing has been written."""
    config = write_config(tmp_path / "c.toml", problem={"model": "own_model:never_ready"})
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
    train(config, tmp_path / "run", StoppedAt(9))
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
    train(config, tmp_path / "run", StoppedAt(5))
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
    train(config, folder, StoppedAt(15))
    cut(folder / CURRENT)
    with pytest.raises(Killed):
        train(config, folder, KilledAt(12 + 1))  # before another checkpoint: both files must still be usable
    assert not (folder / PREVIOUS).exists() or load_file(folder / PREVIOUS)
    assert load_file(folder / CURRENT)
    _, said = train(config, folder)
    assert said == [f"{folder}: going on from iteration 12"]
    assert outcome(folder) == outcome(tmp_path / "whole")


def test_truncated_checkpoint_is_said(tmp_path: Path) -> None:
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "run")
    cut(tmp_path / "run" / CURRENT)
    _, said = train(config, tmp_path / "run")
    assert len(said) == 1
    assert said[0].startswith(f"{tmp_path / 'run' / CURRENT}: is no whole checkpoint")
    assert said[0].endswith("going on from iteration 18")


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
    config = write_config(tmp_path / "c.toml", problem={"model": "own_model:normalised"})
    train(config, tmp_path / "run", StoppedAt(3))
    own = tmp_path / "own_model.py"
    own.write_text(own.read_text().replace("5", "6"))
    monkeypatch.delitem(sys.modules, "own_model")  # as in a new process
    before = files(tmp_path / "run")
    with pytest.raises(RunError, match=r"models of shape \(4, 53\), but the configuration's are \(4, 63\)"):
        train(config, tmp_path / "run")
    assert files(tmp_path / "run") == before


def test_rows_cut_off_by_a_kill(tmp_path: Path) -> None:
    """A kill can leave half a line; the iteration is run again, and half a number is never taken for one."""
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "whole")
    with pytest.raises(Killed):
        train(config, tmp_path / "killed", KilledAt(15))
    for name in ("history.csv", "consensus.csv"):
        whole = (tmp_path / "whole" / name).read_text().splitlines()
        with (tmp_path / "killed" / name).open("a") as file:
            file.write(whole[-1][:-3])  # every column is there, but the last number is not the one it was
    assert read_history(tmp_path / "killed")["iteration"].tolist() == [0, 4, 8, 12]
    train(config, tmp_path / "killed")
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


# Folders that are something else


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
    train(config, tmp_path / "run", StoppedAt(8))
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


# Diverged


def regression(folder: Path) -> str:
    """Twelve samples of y = 0; squared error of a linear model is a quadratic, which a large stepsize blows up."""
    x = np.linspace(-1, 1, 12)[:, None]
    np.savez(folder / "line.npz", x=x, y=np.zeros(12))
    return "line.npz"


#: One weight that starts at 0.1 or at 1000, as the seed has it; the loss is w⁶/2, so that 1000 is too far to come back.
SIXTH_POWER = """
import torch
from torch import nn

class Power(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.where(torch.rand(1) < 0.5, 0.1, 1000.0))

    def forward(self, x):
        return self.w**3 + 0 * x

def power(shape, classes):
    return Power()
"""


def finite(folder: Path) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in load_file(folder / CURRENT).values())


def test_divergence_is_said_and_the_finite_state_kept(tmp_path: Path) -> None:
    """α far beyond 2/L: the iteration, client and variable are the first that are not finite, by another count."""
    config = write_config(
        tmp_path / "c.toml",
        problem={"dataset": regression(tmp_path), "partition": "iid", "beta": 0.0},
        algorithm={"alpha": 1e6},
        run={"batch_size": "full", "period": 1, "steps": 50, "evaluate_every": 5, "checkpoint_every": 5},
        metrics={"costly_every": 5},
    )
    result, _ = train(config, tmp_path / "run")
    (divergence,) = result.diverged

    simulator = build_simulator(load(config), tmp_path)
    simulator.start()
    found = None
    while found is None:
        simulator.step()
        for variable in ("x", "y", "nu"):
            bad = ~torch.isfinite(getattr(simulator.state, variable)).all(1)
            if found is None and bad.any():
                found = (0, simulator.t, int(bad.nonzero()[0]), variable)
    assert tuple(divergence) == found
    assert str(divergence) == (
        f"seed 0 diverged: {found[3]} of client {found[2]} is not finite at iteration {found[1]}"
    )
    assert found[1] > 5, "there should be a checkpoint before it"
    assert finite(tmp_path / "run")
    assert finite_model(tmp_path / "run")

    # The trace ends before it, and running again changes nothing.
    last = (tmp_path / "run" / "consensus.csv").read_text().splitlines()[-1]
    assert last.split(",")[1] == str(found[1] - 1)
    before = files(tmp_path / "run")
    again, said = train(config, tmp_path / "run")
    assert said == [f"{tmp_path / 'run'}: nothing to do, every seed has diverged"]
    assert again.diverged == [divergence]
    assert files(tmp_path / "run") == before


def finite_model(folder: Path) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in load_file(folder / "model.safetensors").values())


@pytest.fixture
def half_diverging(tmp_path: Path) -> tuple[Path, int, int]:
    """A configuration of two seeds, and which of them diverges and which does not."""
    config = write_config(
        tmp_path / "c.toml",
        problem={"dataset": regression(tmp_path), "partition": "iid", "beta": 0.0, "model": "sixth:power"},
        run={"dtype": "float64", "period": 2},
    )
    (tmp_path / "sixth.py").write_text(SIXTH_POWER)
    starts = {
        seed: models.build("sixth:power", (1,), 1, seed, tmp_path).get_parameter("w").item() for seed in range(20)
    }
    bad = next(seed for seed, w in starts.items() if w > 1)
    good = next(seed for seed, w in starts.items() if w < 1)
    text = config.read_text().replace("[run]", f"[run]\nseeds = [{bad}, {good}]")
    config.write_text(text)
    return config, bad, good


def test_other_seeds_go_on(tmp_path: Path, half_diverging: tuple[Path, int, int]) -> None:
    """The seed that diverges stops there; the other's trajectory is that of running alone."""
    config, bad, good = half_diverging
    result, _ = train(config, tmp_path / "both")
    alone, _ = train(config, tmp_path / "alone", overrides=(f"run.seeds=[{good}]",))
    assert [d.seed for d in result.diverged] == [bad]
    assert (result.snapshot.t, result.finished) == (20, True)
    assert finite(tmp_path / "both")
    together = result.snapshot.rows_of([good])
    for name, rows in alone.snapshot.tensors.items():
        torch.testing.assert_close(together[name], rows, rtol=1e-12, atol=1e-15)
    frame = read_history(tmp_path / "both")
    assert frame[frame.seed == bad]["iteration"].tolist() == [0]
    mine, other = frame[frame.seed == good].reset_index(drop=True), read_history(tmp_path / "alone")
    assert mine["iteration"].tolist() == other["iteration"].tolist() == [0, 4, 8, 12, 16, 20]
    np.testing.assert_allclose(mine["train_loss"], other["train_loss"], rtol=1e-12)
    assert (tmp_path / "both" / "model.safetensors").exists()
    assert (tmp_path / "both" / f"model.seed-{good}.safetensors").exists()


def test_a_seed_diverges_in_a_half_of_its_own(tmp_path: Path, half_diverging: tuple[Path, int, int]) -> None:
    """Where seeds do not fit the memory together, it ends there just so, and the other half begins all the same."""
    config, bad, _ = half_diverging
    at_once, _ = train(config, tmp_path / "both")
    result, _ = train(config, tmp_path / "halves", Short(1))
    assert [d.seed for d in result.diverged] == [bad]
    assert (result.snapshot.t, result.finished, result.diverged) == (20, True, at_once.diverged)
    columns = ["seed", "iteration"]
    ours, theirs = (read_history(tmp_path / name)[columns] for name in ("halves", "both"))
    assert ours.equals(theirs)
    again, said = train(config, tmp_path / "halves")
    assert said == [f"{tmp_path / 'halves'}: nothing to do, 20 iterations are done"]
    assert again.diverged == at_once.diverged


def test_a_seed_diverges_among_processes(tmp_path: Path, half_diverging: tuple[Path, int, int]) -> None:
    """All ranks agree where, the other seed goes on, and what is kept is what the simulator keeps; once more, too."""
    config, bad, _ = half_diverging
    out = tmp_path / "out"
    result, _ = train(config, tmp_path / "simulated")
    said = launch(processes_runs.run, 2, str(config), "--out", str(out))
    assert [s.code for s in said] == [2, 2], said
    assert str(result.diverged[0]) in said[0].err.splitlines()[-1]
    found, expected = (load_file(folder / "state.safetensors") for folder in (out, tmp_path / "simulated"))
    for key, value in expected.items():
        assert torch.allclose(found[key], value, rtol=1e-10, atol=1e-13), key
    ours, theirs = (read_history(folder)[["seed", "iteration"]] for folder in (out, tmp_path / "simulated"))
    assert ours.equals(theirs)
    again = launch(processes_runs.run, 2, str(config), "--out", str(out), "--set", "run.steps=24")
    assert [s.code for s in again] == [2, 2]
    assert f"seed {bad} diverged" in again[0].err.splitlines()[-1]
    assert "going on from iteration 20" in again[0].err


def test_resuming_after_divergence(tmp_path: Path, half_diverging: tuple[Path, int, int]) -> None:
    """The seed that diverged stays stopped, and what it left stays, however often the run is resumed."""
    config, bad, _ = half_diverging
    train(config, tmp_path / "whole")
    with pytest.raises(Killed):
        train(config, tmp_path / "killed", KilledAt(15))
    for _ in range(2):
        result, _ = train(config, tmp_path / "killed")
    assert [d.seed for d in result.diverged] == [bad]
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


def test_not_finite_from_the_start(tmp_path: Path) -> None:
    """Gradients that are not finite at x0 are found at iteration 0, not blamed on the first step."""
    config = write_config(
        tmp_path / "c.toml",
        problem={"dataset": regression(tmp_path), "partition": "iid", "beta": 0.0, "model": "sixth:power"},
    )
    (tmp_path / "sixth.py").write_text(SIXTH_POWER.replace("1000.0", "1e30").replace("0.1,", "1e30,"))
    result, _ = train(config, tmp_path / "run")
    assert [(d.iteration, d.client, d.variable) for d in result.diverged] == [(0, 0, "y")]
    assert math.isfinite(float(load_file(tmp_path / "run" / "model.safetensors")["w"]))


# What a run leaves


def test_config_is_complete_and_reproduces_the_run(tmp_path: Path) -> None:
    """Every default is written out; the file is the same configuration, and running it gives the same bytes."""
    config = tmp_path / "c.toml"
    config.write_text(
        '[problem]\ndataset = "digits"\n'
        "[run]\nsteps = 3\n"
        "[algorithm]\nalpha = { cosine = { start = 0.1, steps = 3 } }\n"
    )
    train(config, tmp_path / "first")
    written = tomllib.loads((tmp_path / "first" / "config.toml").read_text())
    assert written == {
        "problem": {
            "dataset": "digits",
            "model": "linear",
            "clients": 10,
            "weighting": "uniform",
            "regularizer": "zero",
            "beta": 1e-5,
            "holdout": 0.0,
        },
        "network": {"topology": "ring", "mixing": "metropolis", "drop": 0.0},
        "algorithm": {
            "name": "depositum",
            "alpha": {"cosine": {"start": 0.1, "steps": 3}},
            "gamma": 0.5,
            "momentum": "polyak",
            "start": "average",
        },
        "run": {
            "steps": 3,
            "period": 1,
            "batch_size": 32,
            "seeds": [0],
            "device": "auto",
            "dtype": "float32",
            "precision": "auto",
            "backend": "auto",
            "compile": "auto",
            "evaluate_every": 10,
            "evaluate_from": 0,
            "checkpoint_every": 100,
        },
        "metrics": {"costly_every": 0},
        "processes": {"timeout": 30.0, "send": "float32", "evaluate": "scalars"},
    }
    assert load(tmp_path / "first" / "config.toml").complete() == load(config).complete()
    train(tmp_path / "first" / "config.toml", tmp_path / "second")
    assert outcome(tmp_path / "second") == outcome(tmp_path / "first")
    assert (tmp_path / "second" / "config.toml").read_text() == (tmp_path / "first" / "config.toml").read_text()


@pytest.mark.parametrize("model", ["linear", "own_model:normalised"])
def test_averaged_model_gives_the_recorded_accuracy(tmp_path: Path, model: str) -> None:
    """The file loads strictly into the plain module, one per seed, and is the model that the history speaks of."""
    config = write_config(
        tmp_path / "c.toml", problem={"model": model}, run={"seeds": [2, 5], "dtype": "float64", "checkpoint_every": 50}
    )
    result, _ = train(config, tmp_path / "run")
    problem = build_simulator(load(config), tmp_path).problem
    test = problem.test
    assert test is not None
    names = {2: "model.safetensors", 5: "model.seed-5.safetensors"}
    assert {p.name for p in (tmp_path / "run").glob("model*")} == set(names.values())
    for seed, name in names.items():
        plain = models.build(model, (4,), 3, seed=9, base=tmp_path).double().eval()
        plain.load_state_dict(load_file(tmp_path / "run" / name), strict=True)
        with torch.no_grad():
            outputs = plain(test.inputs.double())
        accuracy = (outputs.argmax(1) == test.targets).double().mean()
        loss = torch.nn.functional.cross_entropy(outputs, test.targets)
        last = result.history.last(seed)
        assert last is not None
        assert last["iteration"] == 20
        assert float(accuracy) == pytest.approx(last["test_accuracy"], abs=1e-12)
        assert float(loss) == pytest.approx(last["test_loss"], rel=1e-9)


def test_models_are_there_whenever_the_run_is_finished(tmp_path: Path) -> None:
    """Killed after the last checkpoint, a run is finished: it will not be run again, so nothing may be missing."""
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "whole")
    with pytest.raises(Killed):
        train(config, tmp_path / "killed", KilledAt(20, "on_checkpoint"))
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


def test_files_are_as_readable_as_others(tmp_path: Path) -> None:
    """Others who may read a folder may read its tensors too."""
    config = write_config(tmp_path / "c.toml", run={"steps": 1})
    train(config, tmp_path / "run")
    assert len({path.stat().st_mode for path in (tmp_path / "run").iterdir()}) == 1


def test_what_is_not_trained_is_the_same_in_every_batch_of_seeds(tmp_path: Path) -> None:
    """Frozen random parameters are shared by all seeds, so seed 1 alone must have those of seeds 0 and 1 together."""
    config = write_config(tmp_path / "c.toml", problem={"model": "frozen:features"}, run={"dtype": "float64"})
    (tmp_path / "frozen.py").write_text(
        "from torch import nn\n"
        "def features(shape, classes):\n"
        "    model = nn.Sequential(nn.Linear(shape[0], 6), nn.Tanh(), nn.Linear(6, classes))\n"
        "    model[0].requires_grad_(False)\n"
        "    return model\n"
    )
    both, _ = train(config, tmp_path / "both", overrides=("run.seeds=[1, 0]",))
    alone, _ = train(config, tmp_path / "alone", overrides=("run.seeds=[1]",))
    torch.testing.assert_close(both.snapshot.rows_of([1])["x"], alone.snapshot.tensors["x"], rtol=1e-12, atol=1e-14)


def test_stationarity_where_the_schedule_ends_at_zero(tmp_path: Path) -> None:
    """G^α is not defined for α = 0: it is left out there, and does not spoil the running mean."""
    config = write_config(tmp_path / "c.toml", algorithm={"alpha": COSINE})
    result, _ = train(config, tmp_path / "run")
    frame = result.history.frame
    measured = frame[frame["gradient_error"].notna()]
    assert measured["iteration"].tolist() == [0, 8, 16, 20]
    assert measured["stationarity"].notna().tolist() == [True, True, True, False]
    assert "nan" not in (tmp_path / "run" / "history.csv").read_text()
    assert frame["stationarity"].dropna().mean() == pytest.approx(frame["stationarity_mean"].dropna().iloc[-1])


# Callbacks


def test_callbacks_are_asked_in_order(tmp_path: Path) -> None:
    moments: list[tuple[str, int]] = []

    class Witness(Callback):
        def on_start(self, loop: Loop) -> None:
            moments.append(("start", loop.t))

        def on_step(self, loop: Loop) -> None:
            moments.append(("step", loop.t))

        def on_evaluation(self, loop: Loop, records: list[dict[str, object]]) -> None:
            assert [r["iteration"] for r in records] == [loop.t] * 2
            assert [r["seed"] for r in records] == [0, 1]
            moments.append(("evaluation", loop.t))

        def on_trace(self, loop: Loop, errors: list[tuple[int, int, float]]) -> None:
            moments.extend(("trace", t) for seed, t, _ in errors if seed == 0)

        def on_checkpoint(self, loop: Loop) -> None:
            assert loop.snapshot.t == loop.t
            moments.append(("checkpoint", loop.t))

        def on_end(self, loop: Loop) -> None:
            moments.append(("end", loop.t))

    changes = {"steps": 4, "evaluate_every": 2, "checkpoint_every": 3, "seeds": [0, 1]}
    train(write_config(tmp_path / "c.toml", run=changes), tmp_path / "run", Witness())
    assert moments == [
        ("start", 0),
        ("evaluation", 0),
        ("step", 1),
        ("step", 2),
        ("trace", 1),
        ("trace", 2),
        ("evaluation", 2),
        ("step", 3),
        ("trace", 3),
        ("checkpoint", 3),
        ("step", 4),
        ("trace", 4),
        ("evaluation", 4),
        ("checkpoint", 4),
        ("end", 4),
    ]


def test_callbacks_end_even_when_one_fails(tmp_path: Path) -> None:
    """A progress bar must give the terminal back, and a tracker write its last lines, whatever happens."""
    ended: list[int] = []

    class Ends(Callback):
        def on_end(self, loop: Loop) -> None:
            ended.append(loop.t)

    with pytest.raises(Killed):
        train(write_config(tmp_path / "c.toml"), tmp_path / "run", KilledAt(3), Ends())
    assert ended == [3]


def test_divergence_is_a_moment_of_its_own(tmp_path: Path, half_diverging: tuple[Path, int, int]) -> None:
    config, bad, good = half_diverging
    seen: list[tuple[int, tuple[int, ...]]] = []

    class Witness(Callback):
        def on_divergence(self, loop: Loop, divergence: Any) -> None:
            seen.append((divergence.seed, loop.engine.problem.seeds))

        def on_end(self, loop: Loop) -> None:
            seen.append((-1, loop.engine.problem.seeds))

    train(config, tmp_path / "run", Witness())
    assert seen == [(bad, (bad, good)), (-1, (good,))]


def test_small_config_is_what_these_tests_assume() -> None:
    """Evaluations and checkpoints that coincide would hide half of what is tested here."""
    run = SMALL["run"]
    assert run["checkpoint_every"] % run["evaluate_every"]
    assert run["steps"] % run["checkpoint_every"]
