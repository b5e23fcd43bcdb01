"""Seeds that do not fit in memory at once run in groups, in turn, and end as a run of all seeds at once does."""

import itertools
import weakref
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from depositum.engines import Loop
from depositum.errors import RunError
from depositum.report.tensorboard import TensorBoard
from depositum.runs import RunResult, execute, execute_all, load
from tests.support import rank_runs
from tests.support.rank_processes import launch
from tests.support.small_runs import KillAt, Killed, LimitedMemory, StopAt, files, outcome, train, write_config

pytestmark = pytest.mark.slow

SEEDS = [3, 0, 5, 1, 2]


class KillInSecondGroup(KillAt):
    """Kills the run while its second group of seeds is trained."""

    def _kill(self, loop: Loop, *_: object) -> None:
        if loop.engine.problem.seeds == (5, 1, 2):
            super()._kill(loop)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path / "c.toml", run={"seeds": SEEDS, "dtype": "float64"})


@pytest.fixture
def at_once(config: Path, tmp_path: Path) -> RunResult:
    return train(config, tmp_path / "at-once")[0]


def assert_same_run(one: RunResult, other: RunResult) -> None:
    """Assert that seeds, states, histories, models and file names are the same, up to rounding."""
    a, b = one.snapshot, other.snapshot
    assert (a.seeds, a.t, a.costs, a.diverged) == (b.seeds, b.t, b.costs, b.diverged)
    assert one.finished
    for key, value in b.tensors.items():
        torch.testing.assert_close(a.tensors[key], value, rtol=1e-10, atol=1e-12, msg=key)
    names = [set(files(result.folder)) - {"state.previous.safetensors"} for result in (one, other)]
    assert names[0] == names[1]
    assert (one.folder / "config.toml").read_text() == (other.folder / "config.toml").read_text()
    for table in ("history.csv", "consensus.csv"):
        frames = [
            pd.read_csv(result.folder / table).drop(columns="seconds", errors="ignore") for result in (one, other)
        ]
        pd.testing.assert_frame_equal(*frames, rtol=1e-8, atol=1e-12)
    for name in names[0]:
        if name.endswith(".safetensors"):
            found, expected = (load_file(result.folder / name) for result in (one, other))
            for key, value in expected.items():
                torch.testing.assert_close(found[key], value, rtol=1e-10, atol=1e-12)
    pd.testing.assert_frame_equal(
        *(result.history.frame.drop(columns="seconds") for result in (one, other)), rtol=1e-8, atol=1e-12
    )


@pytest.mark.parametrize(("room", "t"), [(3, 0), (1, 0), (2, 8), (2, 20)])
def test_groups_of_seeds_end_as_all_seeds_at_once(
    config: Path, at_once: RunResult, tmp_path: Path, room: int, t: int
) -> None:
    """Whether memory runs out at the start, in the middle or at the very end: groups resume from the last checkpoint.

    Fails if rows, records or models of seeds are confused, or if iterations before a checkpoint run again.
    """
    loops: list[tuple[int, int]] = []
    lines: list[str] = []

    class RecordingMemory(LimitedMemory):
        def on_start(self, loop: Loop) -> None:
            loops.append((len(loop.engine.problem.trials), loop.t))

    out = tmp_path / "run"
    result = execute(load(config), out, callbacks=[RecordingMemory(room, t)], say=lines.append)
    assert_same_run(result, at_once)
    sizes = {3: [2, 3], 2: [2, 1, 2], 1: [1, 1, 1, 1, 1]}[room]
    boundaries = [b for b in (0, 6, 12, 18) if t == 0 or b >= {8: 6, 20: 18}[t]]
    fitting = [(size, b) for b in boundaries for size in sizes]
    assert [loop for loop in loops if loop[0] <= room or loop[1] + 6 < t][-len(fitting) :] == fitting
    divided = [line for line in lines if line.startswith(f"{out}: 5 seeds at once do not fit in memory; running ")]
    assert divided[0].partition("; running ")[2].startswith("2 + 3 in turn")
    assert divided[-1].partition("; running ")[2].startswith(" + ".join(map(str, sizes)) + " in turn")
    if t:
        assert f"{out}: resuming from iteration {6 if t == 8 else 18}" in lines


@pytest.mark.parametrize("t", [0, 4, 11, 20])
def test_a_run_killed_in_its_second_group_resumes_to_the_same_bytes(config: Path, tmp_path: Path, t: int) -> None:
    """All groups resume from the last checkpoint, which holds all seeds at one iteration."""
    train(config, tmp_path / "uninterrupted", LimitedMemory(3))
    moment = "on_evaluation" if t in (0, 20) else "on_step"
    with pytest.raises(Killed):
        train(config, tmp_path / "killed", LimitedMemory(3), KillInSecondGroup(t, moment))
    result, lines = train(config, tmp_path / "killed", LimitedMemory(3))
    assert result.finished
    last = max((b for b in (6, 12, 18) if b < t), default=None)
    assert any(line.endswith(f"resuming from iteration {last}") for line in lines) == (last is not None)
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "uninterrupted")


def test_a_run_in_groups_can_be_stopped_and_extended(config: Path, at_once: RunResult, tmp_path: Path) -> None:
    """When it is asked to stop, all groups reach the same iteration; later it resumes, and can be extended."""
    stopped, _ = train(config, tmp_path / "run", LimitedMemory(3), StopAt(7))
    assert (stopped.finished, stopped.snapshot.t, stopped.snapshot.seeds) == (False, 7, tuple(SEEDS))
    assert set(stopped.history.frame["seed"]) == set(SEEDS)
    assert_same_run(train(config, tmp_path / "run", LimitedMemory(3))[0], at_once)
    longer = ("run.steps=30",)
    result, _ = train(config, tmp_path / "run", LimitedMemory(3, t=21), overrides=longer)
    assert_same_run(result, train(config, tmp_path / "at-once", overrides=longer)[0])


def test_a_single_seed_that_does_not_fit_is_reported(tmp_path: Path) -> None:
    """It cannot be divided further: one line names what is too large."""
    path = write_config(tmp_path / "c.toml", run={"seeds": [0]})
    with pytest.raises(
        RunError, match=r"run\.device: 4 clients of 'linear' do not fit in the memory of cpu; use fewer"
    ):
        train(path, tmp_path / "run", LimitedMemory(0))


def test_a_run_in_groups_resumes_among_processes(config: Path, tmp_path: Path) -> None:
    """Its checkpoints are those of any run, and a run that processes have finished is finished."""
    with pytest.raises(Killed):
        train(config, tmp_path / "run", LimitedMemory(3), KillInSecondGroup(11))
    results = launch(rank_runs.run, 2, str(config), "--out", str(tmp_path / "run"))
    assert [one.code for one in results] == [0, 0], results
    before = outcome(tmp_path / "run", traced=False)
    _, lines = train(config, tmp_path / "run", LimitedMemory(3))
    assert lines == [f"{tmp_path / 'run'}: nothing to do, 20 iterations are done"]
    assert outcome(tmp_path / "run", traced=False) == before


def test_a_configuration_of_a_sweep_runs_in_groups(config: Path, at_once: RunResult, tmp_path: Path) -> None:
    """First with fewer configurations at once, then with fewer seeds; memory is freed before each attempt."""
    configs = [load(config), load(config, ["algorithm.alpha=0.05"])]
    folders, loops = [tmp_path / "0", tmp_path / "1"], []

    def record(loop: Loop) -> None:
        assert all(earlier() is None for earlier in loops), "an earlier loop is still in memory"
        loops.append(weakref.ref(loop))

    results = execute_all(configs, folders, callbacks=[LimitedMemory(3)], on_loop=record)
    assert len(loops) == 1 + 2 * (1 + 2 * 4), "both, each alone, and two groups for each of four checkpoints"
    assert_same_run(results[0], at_once)
    assert_same_run(results[1], train(config, tmp_path / "other", overrides=("algorithm.alpha=0.05",))[0])


def test_tensorboard_has_all_seeds_of_a_run_in_groups(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every evaluation of every seed once, although a seed's events are in several files."""
    # Files are read in the order of the seconds in their names, so each file gets another second.
    ticks = itertools.count(10**9)
    monkeypatch.setattr(event_file_writer, "time", SimpleNamespace(time=lambda: next(ticks)))
    board = tmp_path / "run" / "tensorboard"
    with pytest.raises(Killed):
        train(config, tmp_path / "run", TensorBoard(board), LimitedMemory(3), KillInSecondGroup(11))
    train(config, tmp_path / "run", TensorBoard(board), LimitedMemory(3))
    for seed in SEEDS:
        events = EventAccumulator(str(board / f"seed-{seed}"))
        events.Reload()
        assert [event.step for event in events.Scalars("train_loss")] == [0, 4, 8, 12, 16, 20]
