"""Seeds that do not fit the memory together: a run in halves ends as a run at once does."""

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
from depositum.runs import RunResult, execute, execute_cells, load, seed_groups
from tests.support import processes_runs
from tests.support.processes_launch import launch
from tests.support.small_runs import Killed, KilledAt, Short, StoppedAt, files, outcome, train, write_config

SEEDS = [3, 0, 5, 1, 2]


class InSecond(KilledAt):
    """Ends the run in its second half."""

    def _end(self, loop: Loop, *_: object) -> None:
        if loop.engine.problem.seeds == (5, 1, 2):
            super()._end(loop)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path / "c.toml", run={"seeds": SEEDS, "dtype": "float64"})


@pytest.fixture
def whole(config: Path, tmp_path: Path) -> RunResult:
    return train(config, tmp_path / "whole")[0]


def assert_same_run(one: RunResult, other: RunResult) -> None:
    """Seeds, states, histories, models and files are the same, to rounding, and nothing else is left."""
    a, b = one.snapshot, other.snapshot
    assert (a.seeds, a.t, a.costs, a.diverged) == (b.seeds, b.t, b.costs, b.diverged)
    assert one.finished
    for key, value in b.tensors.items():
        torch.testing.assert_close(a.tensors[key], value, rtol=1e-10, atol=1e-12, msg=key)
    kept = [set(files(result.folder)) - {"state.previous.safetensors"} for result in (one, other)]
    assert kept[0] == kept[1]
    assert (one.folder / "config.toml").read_text() == (other.folder / "config.toml").read_text()
    for table in ("history.csv", "consensus.csv"):
        frames = [
            pd.read_csv(result.folder / table).drop(columns="seconds", errors="ignore") for result in (one, other)
        ]
        pd.testing.assert_frame_equal(*frames, rtol=1e-8, atol=1e-12)
    for name in kept[0]:
        if name.endswith(".safetensors"):
            ours, theirs = (load_file(result.folder / name) for result in (one, other))
            for key, value in theirs.items():
                torch.testing.assert_close(ours[key], value, rtol=1e-10, atol=1e-12)
    pd.testing.assert_frame_equal(
        *(result.history.frame.drop(columns="seconds") for result in (one, other)), rtol=1e-8, atol=1e-12
    )


@pytest.mark.parametrize(("room", "t"), [(2, 0), (3, 0), (1, 0), (2, 8), (2, 20)])
def test_in_halves_as_at_once(config: Path, whole: RunResult, tmp_path: Path, room: int, t: int) -> None:
    """Found at the start, in the midst or at the very end: the halves go on from the last checkpoint, halved again
    where they must be.

    Breaks if a seed's rows, lines or models are taken for another's, or something is begun anew that had a checkpoint.
    """
    loops: list[tuple[int, int]] = []
    said: list[str] = []
    result = execute(
        load(config),
        tmp_path / "run",
        base=tmp_path,
        callbacks=[Short(room, t)],
        say=said.append,
        on_loop=lambda loop: loops.append((len(loop.engine.problem.trials), loop.t)),
    )
    assert_same_run(result, whole)
    expected = {3: [5, 2, 3], 2: [5, 2, 3, 1, 2], 1: [5, 2, 1, 1, 3, 1, 2, 1, 1]}
    assert [seeds for seeds, _ in loops] == expected[room]
    out = tmp_path / "run"
    assert said[0] == f"{out}: 5 seeds at once do not fit the memory; one half is run after the other"
    assert len([line for line in said if "do not fit" in line]) == len(loops) // 2
    if t:
        assert f"{out / 'seeds' / '3-0'}: going on from iteration {6 if t == 8 else 18}" in said


@pytest.mark.parametrize("t", [0, 4, 11, 20])
def test_killed_in_the_second_half(config: Path, tmp_path: Path, t: int) -> None:
    """What is done is not done again, and all ends in the same bytes."""
    train(config, tmp_path / "straight", Short(3))

    moment = "on_evaluation" if t in (0, 20) else "on_step"
    with pytest.raises(Killed):
        train(config, tmp_path / "killed", Short(3), InSecond(t, moment))
    result, said = train(config, tmp_path / "killed", Short(3))
    assert result.finished
    assert f"{tmp_path / 'killed' / 'seeds' / '3-0'}: nothing to do, 20 iterations are done" in said
    assert not any("do not fit" in line for line in said), "it knows that from before"
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "straight")


def test_killed_while_they_are_put_together(
    config: Path, whole: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost whenever it happens: the halves are there until all is."""
    for name in ("_copy", "_remove"):
        with monkeypatch.context() as patched:
            patched.setattr(seed_groups, name, _killed)
            with pytest.raises(Killed):
                train(config, tmp_path / name, Short(3))
        assert_same_run(train(config, tmp_path / name, Short(3))[0], whole)


def _killed(*_: object) -> None:
    raise Killed


def test_stopped_and_extended(config: Path, whole: RunResult, tmp_path: Path) -> None:
    """Asked to stop, the second half does not begin; later the run goes on, and after its end it can be made longer."""
    stopped, _ = train(config, tmp_path / "run", Short(3), StoppedAt(7))
    assert (stopped.finished, stopped.snapshot.t, stopped.snapshot.seeds) == (False, 7, (3, 0))
    assert stopped.folder == tmp_path / "run"
    assert set(stopped.history.frame["seed"]) == {3, 0}
    assert_same_run(train(config, tmp_path / "run", Short(3))[0], whole)
    longer = ("run.steps=30",)
    result, _ = train(config, tmp_path / "run", Short(3, t=21), overrides=longer)
    assert_same_run(result, train(config, tmp_path / "whole", overrides=longer)[0])


def test_a_persons_own_folder_of_that_name(config: Path, tmp_path: Path) -> None:
    """Nothing that somebody put there is removed, or taken for halves of the run."""
    train(config, tmp_path / "run")
    (tmp_path / "run" / "seeds").mkdir()
    (tmp_path / "run" / "seeds" / "notes.txt").write_text("mine")
    _, said = train(config, tmp_path / "run")
    assert said == [f"{tmp_path / 'run'}: nothing to do, 20 iterations are done"]
    with pytest.raises(RunError, match=r"seeds: is there already, and is no part of the run"):
        train(config, tmp_path / "run", Short(3, t=21), overrides=("run.steps=30",))
    assert (tmp_path / "run" / "seeds" / "notes.txt").read_text() == "mine"


def test_one_seed_that_does_not_fit(tmp_path: Path) -> None:
    """There is nothing left to halve: one line says what is too large."""
    path = write_config(tmp_path / "c.toml", run={"seeds": [0]})
    with pytest.raises(RunError, match=r"run\.device: 4 clients of 'linear' do not fit the memory of cpu; use fewer"):
        train(path, tmp_path / "run", Short(0))


def test_fewer_steps_than_one_half_has_made(config: Path, tmp_path: Path) -> None:
    """Halves of unequal length would be put together as one: that is refused, and nothing is lost by asking."""
    longer = ("run.steps=30", "run.checkpoint_every=5")
    with pytest.raises(Killed):
        train(config, tmp_path / "run", Short(3), InSecond(11), overrides=longer)
    before = files(tmp_path / "run")
    with pytest.raises(
        RunError, match="some of its seeds have come to iteration 30, but run.steps is 20; all must come"
    ):
        train(config, tmp_path / "run", Short(3))
    assert files(tmp_path / "run") == before
    result, _ = train(config, tmp_path / "run", Short(3), overrides=longer)
    assert_same_run(result, train(config, tmp_path / "whole", overrides=longer)[0])


def test_settings_that_may_change_are_those_of_the_last_call(config: Path, tmp_path: Path) -> None:
    """Stopped, and then made longer: the folder's configuration says how long it is."""
    train(config, tmp_path / "run", Short(3), StoppedAt(7))
    longer = ("run.steps=30", "run.checkpoint_every=10")
    result, _ = train(config, tmp_path / "run", Short(3), overrides=longer)
    assert_same_run(result, train(config, tmp_path / "whole", overrides=longer)[0])


@pytest.mark.slow
def test_halves_of_a_run_that_came_further_as_a_whole(config: Path, tmp_path: Path) -> None:
    """Finished by processes, it is finished; what the halves had come to must not take its place."""
    with pytest.raises(Killed):
        train(config, tmp_path / "run", Short(3), InSecond(11))
    said = launch(processes_runs.run, 2, str(config), "--out", str(tmp_path / "run"))
    assert [one.code for one in said] == [0, 0], said
    before = {k: v for k, v in outcome(tmp_path / "run", traced=False).items() if not k.startswith("seeds/")}
    _, told = train(config, tmp_path / "run", Short(3))
    assert told == [f"{tmp_path / 'run'}: nothing to do, 20 iterations are done"]
    assert outcome(tmp_path / "run", traced=False) == before
    assert not (tmp_path / "run" / "seeds").exists()


def test_in_a_sweep(config: Path, whole: RunResult, tmp_path: Path) -> None:
    """A cell that was divided goes on so; and what did not fit is out of memory before a half of it is built."""
    configs = [load(config), load(config, ["algorithm.alpha=0.05"])]
    places, loops = [tmp_path / "0", tmp_path / "1"], []

    def note(loop: Loop) -> None:
        assert all(earlier() is None for earlier in loops), "memory is short"
        loops.append(weakref.ref(loop))

    with pytest.raises(Killed):
        execute_cells(configs[:1], places[:1], base=tmp_path, callbacks=[Short(3), InSecond(11)], on_loop=note)
    assert len(loops) == 3
    results = execute_cells(configs, places, base=tmp_path, callbacks=[Short(3)], on_loop=note)
    assert len(loops) == 3 + 1 + 3, "the rest of the second half, and the other cell"
    assert_same_run(results[0], whole)
    assert_same_run(results[1], train(config, tmp_path / "other", overrides=("algorithm.alpha=0.05",))[0])


def test_tensorboard_has_all_seeds(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of the half that was run first, in a sitting before."""
    # Files are read in the order of the seconds in their names: here, one is made in each.
    ticks = itertools.count(10**9)
    monkeypatch.setattr(event_file_writer, "time", SimpleNamespace(time=lambda: next(ticks)))
    board = tmp_path / "run" / "tensorboard"
    with pytest.raises(Killed):
        train(config, tmp_path / "run", TensorBoard(board), Short(3), InSecond(11))
    train(config, tmp_path / "run", TensorBoard(board), Short(3))
    for seed in SEEDS:
        events = EventAccumulator(str(board / f"seed-{seed}"))
        events.Reload()
        assert [event.step for event in events.Scalars("train_loss")] == [0, 4, 8, 12, 16, 20]
