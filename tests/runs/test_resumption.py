"""A run that was killed, stopped, extended or damaged resumes, and ends as an uninterrupted one."""

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
from depositum.runs import load, parse, resolve
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
    "epochs": {"run": {"sampling": "epochs", "seeds": [0, 3]}},
    "cosine": {"algorithm": {"alpha": COSINE}},
    "power": {"algorithm": {"alpha": {"power": {"start": 0.2, "power": 0.5}}}},
    "shifted": {"run": {"evaluate_from": 1}, "metrics": {"train_every": 8}},
    "step": {"algorithm": {"alpha": {"step": {"start": 0.2, "factor": 0.5, "every": 4}}}},
}
EVERYTHING: dict[str, dict[str, Any]] = {
    "problem": {"model": "user_model:normalised"},
    "algorithm": {"momentum": "nesterov", "alpha": {"cosine": {"start": 0.2, "steps": 40}}},
    # Fixed, since each process would measure which backend is fastest, and another backend rounds differently.
    "run": {"seeds": [3, 5], "steps": 60, "backend": "vmap"},
}


# Killed and stopped


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "moment"),
    [*((name, "on_step") for name in VARIANTS), ("seeds", "on_evaluation"), ("seeds", "on_checkpoint")],
)
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, name: str, moment: str) -> None:
    """Fails if a part of the state is not in the checkpoint, or if anything depends on where a session began."""
    config = write_config(tmp_path / "c.toml", **VARIANTS[name])
    train(config, tmp_path / "uninterrupted")
    # After the second checkpoint; at an evaluation; just after a checkpoint was written.
    at = {"on_step": 15, "on_evaluation": 16, "on_checkpoint": 12}[moment]
    with pytest.raises(Killed):
        train(config, tmp_path / "killed", KillAt(at, moment))
    _, lines = train(config, tmp_path / "killed")
    assert lines == [f"{tmp_path / 'killed'}: resuming from iteration 12"]
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "uninterrupted")


def test_a_resumed_run_uses_the_backend_that_was_measured_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second measurement may give another result, and another backend rounds differently."""
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


@pytest.mark.slow
def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    """Records of the first attempt are removed."""
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "uninterrupted")
    with pytest.raises(Killed):
        train(config, tmp_path / "killed", KillAt(5))
    train(config, tmp_path / "killed")
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "uninterrupted")


@pytest.mark.slow
@pytest.mark.parametrize("stops", [(1, 12), (7, 8, 19)])
def test_a_run_stopped_at_any_iteration_resumes_to_the_same_bytes(tmp_path: Path, stops: tuple[int, ...]) -> None:
    """Ctrl-C saves a checkpoint at an iteration that has none otherwise."""
    config = write_config(tmp_path / "c.toml", **EVERYTHING)
    train(config, tmp_path / "uninterrupted")
    for t in stops:
        result, _ = train(config, tmp_path / "stopped", StopAt(t))
        assert (result.snapshot.t, result.finished) == (t, False)
    train(config, tmp_path / "stopped")
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "uninterrupted")


def wait_for(path: Path, process: Any) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"{path} never appeared"
        time.sleep(0.005)


@pytest.mark.slow
def test_a_process_killed_between_checkpoints_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    """A real process, killed by SIGKILL, and another one that resumes the run."""
    config = write_config(tmp_path / "c.toml", **EVERYTHING)
    train(config, tmp_path / "uninterrupted")
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
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "uninterrupted")


@pytest.mark.slow
def test_ctrl_c_stops_with_130_and_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    """SIGINT during training: the iteration is reported, without a traceback."""
    config = write_config(tmp_path / "c.toml", **EVERYTHING)
    train(config, tmp_path / "uninterrupted")
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

    _, lines = train(config, tmp_path / "stopped")
    assert lines == [f"{tmp_path / 'stopped'}: resuming from iteration {t}"]
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "uninterrupted")


@pytest.mark.slow
def test_ctrl_c_before_training_writes_nothing(tmp_path: Path) -> None:
    """SIGINT while the problem is being built: exit code 130 and one word."""
    config = write_config(tmp_path / "c.toml", problem={"model": "user_model:never_ready"})
    building = tmp_path / "building"
    process = command("run", config, "--out", tmp_path / "out", BUILDING=str(building))
    wait_for(building, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")
    assert not (tmp_path / "out").exists()


# Finished and extended runs


def test_a_finished_run_is_unchanged(tmp_path: Path) -> None:
    config = write_config(tmp_path / "c.toml")
    first, _ = train(config, tmp_path / "run")
    before, times = files(tmp_path / "run"), {p: p.stat().st_mtime_ns for p in (tmp_path / "run").iterdir()}
    second, lines = train(config, tmp_path / "run")
    assert lines == [f"{tmp_path / 'run'}: nothing to do, 20 iterations are done"]
    assert files(tmp_path / "run") == before
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "run").iterdir()} == times
    assert second.finished
    assert second.history.frame.equals(first.history.frame)
    # The same with fewer steps than are done.
    _, lines = train(config, tmp_path / "run", overrides=("run.steps=5",))
    assert lines == [f"{tmp_path / 'run'}: nothing to do, 20 iterations are done"]
    assert files(tmp_path / "run") == before


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 8, 12, 13, 16])
@pytest.mark.parametrize("evaluate_from", [0, 1])
def test_an_extended_run_equals_one_that_had_its_length_from_the_start(
    tmp_path: Path, first: int, evaluate_from: int
) -> None:
    """The last evaluation of the shorter run must not remain where the longer run has none (13), and neither must the
    measures that only a last iteration has (12). With `evaluate_from = 1`, 12 and 13 change roles.
    """
    run = {"seeds": [0, 1], "evaluate_from": evaluate_from}
    config = write_config(tmp_path / "c.toml", run=run, metrics={"train_every": 8})
    train(config, tmp_path / "uninterrupted")
    train(config, tmp_path / "extended", overrides=(f"run.steps={first}",))
    assert read_history(tmp_path / "extended")["iteration"].max() == first
    train(config, tmp_path / "extended")
    assert outcome(tmp_path / "extended") == outcome(tmp_path / "uninterrupted")
    assert (tmp_path / "extended" / "config.toml").read_text() == (
        tmp_path / "uninterrupted" / "config.toml"
    ).read_text()


def test_evaluate_from_shifts_evaluations_and_all_strides(tmp_path: Path) -> None:
    """Records at t = 0, 1, 6, 11, … and the last; measures with another stride are counted from 1 too.

    Counted from t = 0, they would appear in the first and last records only.
    """
    run, metrics = {"steps": 23, "evaluate_every": 5, "evaluate_from": 1}, {"costly_every": 10, "train_every": 10}
    train(write_config(tmp_path / "c.toml", run=run, metrics=metrics), tmp_path / "run")
    history = read_history(tmp_path / "run").set_index("iteration")
    assert history.index.tolist() == [0, 1, 6, 11, 16, 21, 23]
    for column in ("train_loss", "phi", "stationarity", "stationarity_mean", "gradient_error"):
        assert history.index[history[column].notna()].tolist() == [0, 1, 11, 21, 23], column
    assert history["test_loss"].notna().all()
    assert history["stationarity_mean"].iloc[-1] == pytest.approx(history["stationarity"].mean())


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["evaluate_from = 0\n", 'channel = "exact"\n'])
def test_the_run_of_an_earlier_version_without_a_key_resumes(tmp_path: Path, missing: str) -> None:
    """A folder whose `config.toml` was written before the key existed has the same run."""
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "uninterrupted")
    train(config, tmp_path / "run", StopAt(9))
    written = tmp_path / "run" / "config.toml"
    assert missing in written.read_text()
    written.write_text(written.read_text().replace(missing, ""))
    train(config, tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "uninterrupted")


@pytest.mark.slow
@pytest.mark.parametrize(("send", "channel"), [("float32", "exact"), ("bfloat16", "bfloat16"), ("sparse", "sparse")])
def test_the_earlier_key_processes_send_sets_the_channel(tmp_path: Path, send: str, channel: str) -> None:
    """In a configuration file, and in the `config.toml` of a run that an earlier version left."""
    old = write_config(tmp_path / "old.toml", processes={"send": send})
    new = write_config(tmp_path / "new.toml", network={"channel": channel})
    assert load(old).config.network.channel == channel
    assert load(old).dump() == load(new).dump()
    train(new, tmp_path / "uninterrupted")
    train(new, tmp_path / "run", StopAt(9))
    written = tmp_path / "run" / "config.toml"
    earlier = written.read_text().replace(f'channel = "{channel}"\n', "")
    written.write_text(earlier.replace("[processes]\n", f'[processes]\nsend = "{send}"\n'))
    _, lines = train(old, tmp_path / "run")
    assert lines == [f"{tmp_path / 'run'}: resuming from iteration 9"]
    assert outcome(tmp_path / "run") == outcome(tmp_path / "uninterrupted")
    assert written.read_text() == (tmp_path / "uninterrupted" / "config.toml").read_text()


def test_the_earlier_key_processes_send_has_no_effect_for_a_method_with_a_server(tmp_path: Path) -> None:
    """Such a method has no links, and its configurations no network."""
    table = {**SMALL, "algorithm": {"name": "fedmid", "alpha": 0.1}}
    old, new = ({**table, "processes": processes} for processes in ({"send": "float16"}, {}))
    assert resolve(parse(old)).dump() == resolve(parse(new)).dump()


def test_a_run_of_zero_steps_is_finished(tmp_path: Path) -> None:
    """The start is evaluated and saved, and not run again."""
    config = write_config(tmp_path / "c.toml", run={"steps": 0})
    result, _ = train(config, tmp_path / "run")
    assert result.history.frame["iteration"].tolist() == [0]
    assert (tmp_path / "run" / "model.safetensors").exists()
    _, lines = train(config, tmp_path / "run")
    assert lines == [f"{tmp_path / 'run'}: nothing to do, 0 iterations are done"]


@pytest.mark.slow
def test_a_run_resumes_with_other_checkpoints_and_another_device(tmp_path: Path) -> None:
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "uninterrupted")
    train(config, tmp_path / "run", StopAt(5))
    train(config, tmp_path / "run", overrides=("run.checkpoint_every=1", "run.device=cpu:0"))
    assert outcome(tmp_path / "run") == outcome(tmp_path / "uninterrupted")


# Damaged files


def truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


@pytest.mark.slow
def test_a_truncated_checkpoint_does_not_replace_the_complete_one(tmp_path: Path) -> None:
    """The run resumes from the checkpoint before, to the same bytes."""
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "uninterrupted")
    folder = tmp_path / "run"
    train(config, folder, StopAt(15))
    truncate(folder / CURRENT)
    with pytest.raises(Killed):
        train(config, folder, KillAt(12 + 1))  # before another checkpoint: both files must still be usable
    assert not (folder / PREVIOUS).exists() or load_file(folder / PREVIOUS)
    assert load_file(folder / CURRENT)
    _, lines = train(config, folder)
    assert lines == [f"{folder}: resuming from iteration 12"]
    assert outcome(folder) == outcome(tmp_path / "uninterrupted")


def test_a_truncated_checkpoint_is_reported(tmp_path: Path) -> None:
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "run")
    truncate(tmp_path / "run" / CURRENT)
    _, lines = train(config, tmp_path / "run")
    assert len(lines) == 1
    assert lines[0].startswith(f"{tmp_path / 'run' / CURRENT}: is not a complete checkpoint")
    assert lines[0].endswith("resuming from iteration 18")


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", [truncate, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"x" * 99)]
)
def test_a_run_without_a_complete_checkpoint_is_rejected(tmp_path: Path, damage: Any) -> None:
    """If both are damaged, the run is rejected, even if it is to be extended, and no file changes."""
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "run")
    for name in (CURRENT, PREVIOUS):
        damage(tmp_path / "run" / name)
    before = files(tmp_path / "run")
    with pytest.raises(
        RunError, match="is not a complete checkpoint .* the one before is damaged too; remove the folder"
    ):
        train(config, tmp_path / "run", overrides=("run.steps=30",))
    assert files(tmp_path / "run") == before


def test_the_checkpoint_of_another_model_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user-defined model can change under the same name; its checkpoint then has another shape."""
    config = write_config(tmp_path / "c.toml", problem={"model": "user_model:normalised"})
    train(config, tmp_path / "run", StopAt(3))
    module = tmp_path / "user_model.py"
    module.write_text(module.read_text().replace("5", "6"))
    monkeypatch.delitem(sys.modules, "user_model")  # as in a new process
    before = files(tmp_path / "run")
    with pytest.raises(RunError, match=r"models of shape \(4, 53\), but the configuration's are \(4, 63\)"):
        train(config, tmp_path / "run")
    assert files(tmp_path / "run") == before


@pytest.mark.slow
def test_an_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    """A kill can leave half a line; its iteration is run again, and half a number is never read."""
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "uninterrupted")
    with pytest.raises(Killed):
        train(config, tmp_path / "killed", KillAt(15))
    for name in ("history.csv", "consensus.csv"):
        complete = (tmp_path / "uninterrupted" / name).read_text().splitlines()
        with (tmp_path / "killed" / name).open("a") as file:
            file.write(complete[-1][:-3])  # every column exists, but the last number is truncated
    assert read_history(tmp_path / "killed")["iteration"].tolist() == [0, 4, 8, 12]
    train(config, tmp_path / "killed")
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "uninterrupted")


def test_evaluations_and_checkpoints_of_the_small_configuration_do_not_coincide() -> None:
    """Otherwise half of what is tested here would be hidden."""
    run = SMALL["run"]
    assert run["checkpoint_every"] % run["evaluate_every"]
    assert run["steps"] % run["checkpoint_every"]
