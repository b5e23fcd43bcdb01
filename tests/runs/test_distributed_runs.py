"""Whole runs of several processes: their folder, killed, stopped, resumed by more or fewer, with files of their own."""

import csv
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

import depositum as dp
from depositum.engines import Costs, Snapshot
from depositum.runs import client_checkpoints
from tests.support.rank_processes import RankProcesses, launch
from tests.support.rank_runs import (
    arguments,
    client_data,
    fit,
    fit_with_changes,
    run,
    run_as_version,
    run_slowly,
    run_until_killed,
    run_with_arguments,
    run_without_peers,
    small_model,
)
from tests.support.small_runs import CommandResult, files, train, write_config

pytestmark = pytest.mark.slow

#: Float64, so that other orders of summation show below 1e-10 only; a model with buffers; two seeds.
CHANGES: dict[str, dict[str, Any]] = {
    "problem": {"model": "user_model:normalised"},
    "run": {"dtype": "float64", "seeds": [3, 5], "backend": "loop"},
    "processes": {"timeout": 10.0},
}


def written(folder: Path, **changes: dict[str, Any]) -> Path:
    merged = {s: {**CHANGES.get(s, {}), **changes.get(s, {})} for s in {*CHANGES, *changes}}
    return write_config(folder / "c.toml", **merged)


def history(folder: Path) -> list[dict[str, str]]:
    with (folder / "history.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def outcome(folder: Path) -> dict[str, Any]:
    """All of a run of processes that may not depend on when it was killed: all but wall time, logs, picture."""
    kept = {name: content for name, content in files(folder).items() if name.endswith(".safetensors")}
    return {k: v for k, v in kept.items() if "previous" not in k} | {"history": history(folder)}


def agree(one: Path, other: Path, tolerance: float = 1e-10) -> None:
    """The last states and models of two runs are the same, to rounding."""
    for name in ("state.safetensors", "model.safetensors", "model.seed-5.safetensors"):
        a, b = load_file(one / name), load_file(other / name)
        assert a.keys() == b.keys()
        for key in a:
            assert a[key].shape == b[key].shape
            assert torch.allclose(a[key], b[key], rtol=tolerance, atol=tolerance), (name, key)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes that nobody disturbed, as `2`, and the simulator's, as `1`; beside their `c.toml`."""
    folder = tmp_path_factory.mktemp("whole")
    config = written(folder)
    train(config, folder / "1")
    for said in launch(run, 2, str(config), "--out", str(folder / "2")):
        assert said.code == 0, said.err
    return folder


def test_the_folder_is_a_simulators(whole: Path) -> None:
    """The same files, but for the trace of every iteration, and the same numbers; and a log of each rank.

    A history from one rank's clients only, or rows in another order, would break it.
    """
    ours, theirs = set(files(whole / "2")), set(files(whole / "1"))
    assert {name for name in ours if "/" not in name} - {"curves.png"} == theirs - {
        "consensus.csv",
        "state.previous.safetensors",
    }
    assert {name for name in ours if name.startswith("logs/")} == {"logs/rank-0.log", "logs/rank-1.log"}
    assert {name for name in ours if name.startswith("clients/")} == {
        f"clients/{i}{which}.safetensors" for i in range(4) for which in ("", ".previous")
    }
    agree(whole / "2", whole / "1")
    assert (whole / "2" / "config.toml").read_bytes() == (whole / "1" / "config.toml").read_bytes()
    one, two = history(whole / "1"), history(whole / "2")
    assert len(one) == len(two)
    left_out = {"stationarity", "gradient_error", "s", "zeta2", "stationarity_mean", "gradient_error_mean"}
    for a, b in zip(one, two, strict=True):
        for key in a:
            if key in left_out:
                assert b[key] == ""
            elif key != "bytes_sent":  # clients of one process send each other nothing
                assert a[key] == b[key] or float(a[key]) == pytest.approx(float(b[key]), rel=1e-9), key
    assert (whole / "2" / "logs" / "rank-1.log").read_text().splitlines()[-1].endswith("ends at iteration 20")


@pytest.mark.parametrize(
    ("moment", "t", "victim"),
    [("on_start", 0, 1), ("on_evaluation", 16, 0), ("on_write", 12, 1), ("on_write", 18, 0), ("on_checkpoint", 20, 1)],
)
def test_killed_and_resumed(whole: Path, tmp_path: Path, moment: str, t: int, victim: int) -> None:
    """kill -9 of a rank, in the midst of a checkpoint too: the other names it, exits with 75, and the run, started
    again, ends in the bytes of one that was left alone. Ranks that go on from other iterations would break it.
    """
    config, out = whole / "c.toml", tmp_path / "out"
    with RankProcesses(run_until_killed, 2, victim, moment, t, str(config), "--out", str(out)) as started:
        said: CommandResult = started.receive(1 - victim)
        assert said.code == 75
        assert said.err.splitlines()[-1].startswith(f"error: rank {victim} (clients {2 * victim}–{2 * victim + 1}, ")
        started.processes[victim].join(10)
        assert started.processes[victim].exitcode == -signal.SIGKILL
    log = out / "logs" / f"rank-{1 - victim}.log"
    assert f"rank {victim} (clients" in log.read_text().splitlines()[-1]
    again = launch(run, 2, str(config), "--out", str(out))
    assert [said.code for said in again] == [0, 0], again
    if t > 6:
        kept = {12: 6, 16: 12, 18: 12, 20: 20}[t]
        done = "nothing to do, 20 iterations are done" if kept == 20 else f"resuming from iteration {kept}"
        assert again[0].err.startswith(f"{out}: {done}\n")
    assert outcome(out) == outcome(whole / "2")


def test_stopped_by_a_signal_to_one_rank(whole: Path, tmp_path: Path) -> None:
    """All stop at the same iteration, with 130; gone on with, nothing of it shows."""
    config, out = whole / "c.toml", tmp_path / "out"
    with RankProcesses(run_slowly, 2, "0.02", str(config), "--out", str(out)) as started:
        log = out / "logs" / "rank-1.log"
        while not (log.exists() and "iteration 6 kept" in log.read_text()):
            time.sleep(0.01)
        started.signal(1, signal.SIGTERM)
        said = started.results()
    assert [s.code for s in said] == [130, 130]
    assert "stopped at iteration" in said[0].err
    assert len({tuple(sorted(client_checkpoints.iterations(out, [i]))) for i in range(4)}) == 1
    assert max(client_checkpoints.iterations(out, range(4))) < 20, "stopped too late to show anything"
    assert [s.code for s in launch(run, 2, str(config), "--out", str(out))] == [0, 0]
    assert outcome(out) == outcome(whole / "2")


def test_on_any_number_of_processes(whole: Path, tmp_path: Path) -> None:
    """Begun by two processes, gone on with by four, then by the simulator, then by one process of torchrun's: the same
    trajectory, from each one's last iteration.
    """
    config, out = whole / "c.toml", tmp_path / "out"

    def on(size: int, steps: int) -> list[CommandResult]:
        return launch(run, size, str(config), "--out", str(out), "--set", f"run.steps={steps}")

    assert [said.code for said in on(2, 5)] == [0, 0]
    four = on(4, 11)
    assert [said.code for said in four] == [0] * 4, four
    assert "resuming from iteration 5" in four[0].err
    _, said = train(config, out, overrides=("run.steps=15",))
    assert said == [f"{out}: resuming from iteration 11"]
    (one,) = on(1, 20)
    assert one.code == 0
    assert "resuming from iteration 15" in one.err
    agree(out, whole / "1")
    # And where processes stopped half-way, the simulator takes up what each client kept.
    (out / "state.safetensors").unlink()
    (out / "state.previous.safetensors").unlink()
    _, said = train(config, out)
    assert said == [f"{out}: nothing to do, 20 iterations are done"]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_some_iteration_is_always_held_by_all(data: st.DataObject) -> None:
    """However far each client's writing came when a run ended, if all had finished the checkpoint before: the last or
    the one before is there for all, and taking it up leaves it so.
    """
    import tempfile

    clients = data.draw(st.integers(1, 4))
    with tempfile.TemporaryDirectory() as name:
        folder, last = Path(name), 0

        def write(t: int, who: Sequence[int]) -> None:
            for i in who:
                client_checkpoints.write(
                    folder, Snapshot((0,), t, Costs(t), {"x": torch.full((1, 2), 10.0 * t + i)}), [i]
                )

        for t in range(1, data.draw(st.integers(2, 5))):
            some = data.draw(st.sets(st.integers(0, clients - 1)))
            write(t, sorted(some))
            damaged = sorted(some)[:1] if data.draw(st.booleans()) else []
            for i in damaged:
                (folder / "clients" / f"{i}.safetensors").write_bytes(b"half")
            complete = len(some) == clients and not damaged
            common = client_checkpoints.iterations(folder, range(clients))
            last = t if complete else last
            assert max(common, default=0) == last
            if last:
                client_checkpoints.make_current(folder, range(clients), last)
                snapshot = client_checkpoints.read(folder, range(clients), last)
                assert snapshot.tensors["x"][:, 0].tolist() == [10.0 * last + i for i in range(clients)]
                assert (snapshot.t, snapshot.costs.phases) == (last, last)
            write(t, range(clients))  # the run goes on, and all finish it
            last = t


@pytest.mark.parametrize("evaluate", ["gather", "none"])
def test_what_is_measured(whole: Path, tmp_path: Path, evaluate: str) -> None:
    """All columns, as the simulator has them, or those alone that a client counts for itself; at the same iterations,
    shifted as they are.
    """
    out, length = tmp_path / "out", ("run.steps=8", "run.evaluate_from=1")
    train(whole / "c.toml", tmp_path / "1", overrides=length)
    settings = (f"processes.evaluate={evaluate}", "processes.send=sparse", *length)
    said = launch(run, 2, str(whole / "c.toml"), "--out", str(out), *(f"--set={setting}" for setting in settings))
    assert [s.code for s in said] == [0, 0], said
    for ours, theirs in zip(history(out), history(tmp_path / "1"), strict=True):
        for key, value in theirs.items():
            if evaluate == "none":
                counted = {"seed", "iteration", "phases", "bytes_sent", "gradient_evaluations"}
                assert (ours[key] != "") == (key in counted), key
            elif key != "bytes_sent":
                assert ours[key] == value or float(ours[key]) == pytest.approx(float(value), rel=1e-9), key
    agreed = load_file(out / "clients" / "3.safetensors")["x"]
    assert agreed.shape == (2, load_file(whole / "1" / "state.safetensors")["x"].shape[1])


# Own files


def write_files(folder: Path, clients: Sequence[int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i in clients:
        x, y = client_data(i)
        np.savez(folder / f"{i}.npz", x=x, y=y)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_a_process_needs_its_own_files_only(tmp_path: Path, weighting: str) -> None:
    """Each rank has a folder with nobody else's data in it; the result is the simulator's, which has all.

    No client has all the classes: a model by one's own labels would break it.
    """
    problem = {"dataset": "data/{client}.npz", "model": "linear", "partition": "natural", "weighting": weighting}
    together = written(tmp_path / "all", problem=problem)
    write_files(tmp_path / "all" / "data", range(4))
    x, y = client_data(3)
    np.savez(tmp_path / "all" / "data" / "3.npz", x=x, y=np.where(y == 2, 1, y))
    train(together, tmp_path / "simulated")
    own = []
    for rank in range(2):
        config = written(tmp_path / str(rank), problem=problem)
        for i in (2 * rank, 2 * rank + 1):
            (config.parent / "data").mkdir(exist_ok=True)
            shutil.copy(tmp_path / "all" / "data" / f"{i}.npz", config.parent / "data")
        own.append([str(config)])
    said = launch(run_with_arguments, 2, ["--out", str(tmp_path / "out")], per_rank=own)
    assert [s.code for s in said] == [0, 0], said
    for name in ("state.safetensors", "model.safetensors"):
        a, b = load_file(tmp_path / "out" / name), load_file(tmp_path / "simulated" / name)
        for key in b:
            assert torch.allclose(a[key], b[key], rtol=1e-10, atol=1e-12), (name, key)


def test_a_missing_file_is_said_by_its_own_rank(tmp_path: Path) -> None:
    """In one line, with the file's name; the others say who stopped, and nobody is left running."""
    config = written(tmp_path, problem={"dataset": "data/{client}.npz", "model": "linear", "partition": "natural"})
    write_files(tmp_path / "data", [0, 1, 3])
    first, second = launch(run, 2, str(config), "--out", str(tmp_path / "out"))
    assert (first.code, second.code) == (2, 2)
    assert second.err == f"error: problem.dataset: {tmp_path / 'data' / '2.npz'}: no such file or folder\n"
    assert first.err.startswith("error: rank 1 (host ")
    assert "2.npz" in first.err
    assert not (tmp_path / "out").exists()


# Refused


@pytest.mark.parametrize(
    ("size", "own", "said"),
    [
        (3, [], "problem.clients: 4 given, which 3 processes cannot share equally"),
        (5, [], "problem.clients: 4 given, but there are 5 processes"),
        (2, ["--set", "algorithm.alpha=-1"], "algorithm.alpha"),
        (2, ["--set", "metrics.smoothness=measure"], "metrics.smoothness: 'measure' given, but no process has all"),
        (2, ["--set", "processes.send=float23"], "processes.send: 'float23' given"),
        (2, ["--set", "processes.timeout=0.0"], "processes.timeout: 0.0 given"),
    ],
)
def test_what_no_rank_can_do(whole: Path, tmp_path: Path, size: int, own: list[str], said: str) -> None:
    for answer in launch(run, size, str(whole / "c.toml"), "--out", str(tmp_path / "out"), *own):
        assert answer.code == 2
        assert answer.err.startswith(f"error: {said}")
        assert answer.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_what_differs_between_ranks(whole: Path, tmp_path: Path) -> None:
    """The rank and the key are named, and nothing is written."""
    own = [["--set", "algorithm.alpha=0.1"], ["--set", "algorithm.alpha=0.2"]]
    first, second = launch(run_with_arguments, 2, [str(whole / "c.toml"), "--out", str(tmp_path / "out")], per_rank=own)
    assert second.err.startswith("error: algorithm.alpha: 0.2 on rank 1 (host ")
    assert first.err.startswith("error: rank 1 (host ")
    assert "algorithm.alpha" in first.err
    assert (first.code, second.code) == (2, 2)
    assert not (tmp_path / "out").exists()


def test_a_configuration_that_one_rank_cannot_read(whole: Path, tmp_path: Path) -> None:
    own = [["--set", "algorithm.alhpa=0.1"], []]
    first, second = launch(run_with_arguments, 2, [str(whole / "c.toml"), "--out", str(tmp_path / "out")], per_rank=own)
    assert "alhpa" in first.err
    assert second.err.startswith("error: rank 0 (host ")
    assert (first.code, second.code) == (2, 2)


def test_packages_of_other_versions(whole: Path, tmp_path: Path) -> None:
    arguments = [str(whole / "c.toml"), "--out", str(tmp_path / "out")]
    first, second = launch(run_as_version, 2, arguments, per_rank=["1.0", "1.1"])
    assert second.err.startswith('error: version of depositum: "1.1" on rank 1 (host ')
    assert "stopped: version of depositum" in first.err
    assert (first.code, second.code) == (2, 2)


def test_nobody_to_meet(whole: Path, tmp_path: Path) -> None:
    """An address where no one answers: one line, after the time-out, with the address."""
    settings = ("--set", "processes.timeout=1.0")
    (said,) = launch(run_without_peers, 1, str(whole / "c.toml"), "--out", str(tmp_path / "out"), *settings)
    assert said.code == 2
    assert said.err.splitlines()[-1].startswith("error: rank 1 of 2 (host ")
    assert "met no others at 127.0.0.1:" in said.err


def test_a_process_that_hangs(whole: Path, tmp_path: Path) -> None:
    """SIGSTOP of a rank in training: within the time-out and 2 s the other has named it, and exits with 75."""
    config, out, timeout = whole / "c.toml", tmp_path / "out", 2.0
    arguments = (str(config), "--out", str(out), "--set", f"processes.timeout={timeout}")
    with RankProcesses(run_slowly, 2, "0.02", *arguments) as started:
        log = out / "logs" / "rank-1.log"
        while not (log.exists() and "iteration 6 kept" in log.read_text()):
            time.sleep(0.01)
        began = time.monotonic()
        started.signal(1, signal.SIGSTOP)
        said: CommandResult = started.receive(0)
        assert time.monotonic() - began < timeout + 2
    assert said.code == 75
    assert said.err.splitlines()[-1].startswith("error: rank 1 (clients 2–3, host ")
    assert f"did not answer within {timeout:g} s" in said.err


# fit


@pytest.mark.parametrize(("n", "size"), [(3, 3), (4, 2)])
def test_fit_takes_this_processes_data(n: int, size: int) -> None:
    """A pair, or a list of pairs, on each rank: the simulator's result of all of them; history and model on every rank.

    A callback that sees every iteration changes nothing.
    """
    expected = dp.fit(small_model(), [client_data(i) for i in range(n)], **arguments(n))
    ranks = launch(fit, size, n, n == size)
    share = n // size
    for rank, found in enumerate(ranks):
        assert isinstance(found, dict), found
        assert found["steps"] == 30
        for key, rows in expected.state.items():
            own = rows[rank * share : (rank + 1) * share].numpy()
            assert np.allclose(found["state"][key], own, rtol=1e-10, atol=1e-12), key
        for key, value in expected.model.state_dict().items():
            assert np.allclose(found["model"][key], value.numpy(), rtol=1e-10, atol=1e-12), key
        losses = expected.history["train_loss"].tolist()
        assert found["history"]["train_loss"] == pytest.approx(losses, rel=1e-10)
        assert found["history"]["test_accuracy"] == pytest.approx(expected.history["test_accuracy"].tolist())
    assert all(found["history"]["phi"] == ranks[0]["history"]["phi"] for found in ranks)


@pytest.mark.parametrize(
    ("changes", "said"), [({"steps": 9}, "steps: 9 on rank 1 (host"), ({"beta": 0.5}, "beta: 0.5 on rank 1 (host")]
)
def test_fit_refuses_what_differs(changes: dict[str, Any], said: str) -> None:
    first, second = launch(fit_with_changes, 2, 2, per_rank=[{}, changes])
    assert second.startswith(f"ConfigError: {said}")
    assert first.startswith("GroupError: rank 1 (host ")
