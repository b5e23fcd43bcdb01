"""Runs of several processes: their folder, kills and stops, resumption by more or fewer processes, clients' files."""

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
from tests.support.rank_processes import RankProcesses, launch, wait_for_line
from tests.support.rank_runs import (
    client_data,
    fit,
    fit_arguments,
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

#: In float64, other orders of summation differ by less than 1e-10; a model with buffers; two seeds.
CHANGES: dict[str, dict[str, Any]] = {
    "problem": {"model": "user_model:normalised"},
    "run": {"dtype": "float64", "seeds": [3, 5], "backend": "loop"},
    "processes": {"timeout": 10.0},
}


def write_run_config(folder: Path, **changes: dict[str, Any]) -> Path:
    merged = {s: {**CHANGES.get(s, {}), **changes.get(s, {})} for s in {*CHANGES, *changes}}
    return write_config(folder / "c.toml", **merged)


def history(folder: Path) -> list[dict[str, str]]:
    with (folder / "history.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def outcome(folder: Path) -> dict[str, Any]:
    """Everything in the folder that must not depend on kills: all but wall time, logs and figure."""
    tensors = {name: content for name, content in files(folder).items() if name.endswith(".safetensors")}
    return {k: v for k, v in tensors.items() if "previous" not in k} | {"history": history(folder)}


def assert_same_states(one: Path, other: Path, tolerance: float = 1e-10) -> None:
    """Assert that the final states and models of two runs are the same, up to rounding."""
    for name in ("state.safetensors", "model.safetensors", "model.seed-5.safetensors"):
        a, b = load_file(one / name), load_file(other / name)
        assert a.keys() == b.keys()
        for key in a:
            assert a[key].shape == b[key].shape
            assert torch.allclose(a[key], b[key], rtol=tolerance, atol=tolerance), (name, key)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `c.toml`, the simulator's run of it in `1`, and an uninterrupted run of two processes in `2`."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    config = write_run_config(folder)
    train(config, folder / "1")
    for result in launch(run, 2, str(config), "--out", str(folder / "2")):
        assert result.code == 0, result.err
    return folder


def test_the_folder_has_the_simulators_files_and_numbers(uninterrupted: Path) -> None:
    """Except for the trace of every iteration and the measures of single clients, which are not sent; in addition, each
    rank has a log.

    Fails if the history is of one rank's clients only, or if rows are in another order.
    """
    ours, simulated = set(files(uninterrupted / "2")), set(files(uninterrupted / "1"))
    assert {name for name in ours if "/" not in name} - {"curves.png"} == simulated - {
        "consensus.csv",
        "clients.csv",
        "state.previous.safetensors",
    }
    assert {name for name in ours if name.startswith("logs/")} == {"logs/rank-0.log", "logs/rank-1.log"}
    assert {name for name in ours if name.startswith("clients/")} == {
        f"clients/{i}{which}.safetensors" for i in range(4) for which in ("", ".previous")
    } | {"clients/saved-by-all"}
    assert_same_states(uninterrupted / "2", uninterrupted / "1")
    assert (uninterrupted / "2" / "config.toml").read_bytes() == (uninterrupted / "1" / "config.toml").read_bytes()
    one, two = history(uninterrupted / "1"), history(uninterrupted / "2")
    assert len(one) == len(two)
    left_out = {"stationarity", "gradient_error", "s", "zeta2", "stationarity_mean", "gradient_error_mean"}
    for a, b in zip(one, two, strict=True):
        for key in a:
            if key in left_out:
                assert b[key] == ""
            elif key != "bytes_sent":  # clients of one process do not send messages to each other
                assert a[key] == b[key] or float(a[key]) == pytest.approx(float(b[key]), rel=1e-9), key
    assert (uninterrupted / "2" / "logs" / "rank-1.log").read_text().splitlines()[-1].endswith("ended at iteration 20")


@pytest.mark.parametrize(
    ("moment", "t", "victim"),
    [("on_start", 0, 1), ("on_evaluation", 16, 0), ("on_write", 12, 1), ("on_write", 18, 0), ("on_checkpoint", 20, 1)],
)
def test_a_killed_run_resumes_to_the_same_bytes(
    uninterrupted: Path, tmp_path: Path, moment: str, t: int, victim: int
) -> None:
    """SIGKILL of a rank, also during a checkpoint: the other rank names it and exits with 75, and the run, started
    again, ends in the bytes of an uninterrupted one. Fails if ranks resume from different iterations.
    """
    config, out = uninterrupted / "c.toml", tmp_path / "out"
    with RankProcesses(run_until_killed, 2, victim, moment, t, str(config), "--out", str(out)) as started:
        result: CommandResult = started.receive(1 - victim)
        assert result.code == 75
        assert result.err.splitlines()[-1].startswith(f"error: rank {victim} (clients {2 * victim}–{2 * victim + 1}, ")
        started.processes[victim].join(10)
        assert started.processes[victim].exitcode == -signal.SIGKILL
    log = out / "logs" / f"rank-{1 - victim}.log"
    assert f"rank {victim} (clients" in log.read_text().splitlines()[-1]
    again = launch(run, 2, str(config), "--out", str(out))
    assert [result.code for result in again] == [0, 0], again
    if t > 6:
        saved = {12: 6, 16: 12, 18: 12, 20: 20}[t]
        line = "nothing to do, 20 iterations are done" if saved == 20 else f"resuming from iteration {saved}"
        assert again[0].err.startswith(f"{out}: {line}\n")
    assert outcome(out) == outcome(uninterrupted / "2")


def test_a_signal_to_one_rank_stops_all_at_the_same_iteration(uninterrupted: Path, tmp_path: Path) -> None:
    """They exit with 130; the resumed run ends in the same bytes."""
    config, out = uninterrupted / "c.toml", tmp_path / "out"
    with RankProcesses(run_slowly, 2, "0.02", str(config), "--out", str(out)) as started:
        wait_for_line(out / "logs" / "rank-1.log", "saved iteration 6")
        started.signal(1, signal.SIGTERM)
        results = started.results()
    assert [result.code for result in results] == [130, 130]
    assert "stopped at iteration" in results[0].err
    assert len({tuple(sorted(client_checkpoints.iterations(out, [i]))) for i in range(4)}) == 1
    assert max(client_checkpoints.iterations(out, range(4))) < 20, "stopped too late to show anything"
    assert [result.code for result in launch(run, 2, str(config), "--out", str(out))] == [0, 0]
    assert outcome(out) == outcome(uninterrupted / "2")


def test_a_run_resumes_on_any_number_of_processes(uninterrupted: Path, tmp_path: Path) -> None:
    """Started by two processes, resumed by four, by the simulator, and by one process under torchrun: each continues
    from the last iteration of the one before, on the same trajectory.
    """
    config, out = uninterrupted / "c.toml", tmp_path / "out"

    def on(size: int, steps: int) -> list[CommandResult]:
        return launch(run, size, str(config), "--out", str(out), "--set", f"run.steps={steps}")

    assert [result.code for result in on(2, 5)] == [0, 0]
    four = on(4, 11)
    assert [result.code for result in four] == [0] * 4, four
    assert "resuming from iteration 5" in four[0].err
    _, lines = train(config, out, overrides=("run.steps=15",))
    assert lines == [f"{out}: resuming from iteration 11"]
    (one,) = on(1, 20)
    assert one.code == 0
    assert "resuming from iteration 15" in one.err
    assert_same_states(out, uninterrupted / "1")
    # The simulator can also read the checkpoints of the clients.
    (out / "state.safetensors").unlink()
    (out / "state.previous.safetensors").unlink()
    _, lines = train(config, out)
    assert lines == [f"{out}: nothing to do, 20 iterations are done"]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_all_clients_always_have_a_checkpoint_of_a_common_iteration(data: st.DataObject) -> None:
    """Whichever clients' checkpoints were written when a run was killed, if all had completed the one before: all have
    the last or the one before, also after resuming from it.
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
            write(t, range(clients))  # the run continues, and all complete this checkpoint
            last = t


@pytest.mark.parametrize("evaluate", ["gather", "none"])
def test_which_columns_are_measured_depends_on_what_may_be_shared(
    uninterrupted: Path, tmp_path: Path, evaluate: str
) -> None:
    """With `"gather"` all columns of the simulator, with `"none"` only those that a client counts by itself; at the
    same iterations, also with `run.evaluate_from`.
    """
    out, length = tmp_path / "out", ("run.steps=8", "run.evaluate_from=1")
    train(uninterrupted / "c.toml", tmp_path / "1", overrides=length)
    settings = (f"processes.evaluate={evaluate}", "network.channel=sparse", *length)
    results = launch(
        run, 2, str(uninterrupted / "c.toml"), "--out", str(out), *(f"--set={setting}" for setting in settings)
    )
    assert [result.code for result in results] == [0, 0], results
    for found, expected in zip(history(out), history(tmp_path / "1"), strict=True):
        for key, value in expected.items():
            if evaluate == "none":
                counted = {"seed", "iteration", "phases", "bytes_sent", "gradient_evaluations"}
                assert (found[key] != "") == (key in counted), key
            elif key != "bytes_sent":
                assert found[key] == value or float(found[key]) == pytest.approx(float(value), rel=1e-9), key
    rows = load_file(out / "clients" / "3.safetensors")["x"]
    assert rows.shape == (2, load_file(uninterrupted / "1" / "state.safetensors")["x"].shape[1])


# One file per client


def write_files(folder: Path, clients: Sequence[int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i in clients:
        x, y = client_data(i)
        np.savez(folder / f"{i}.npz", x=x, y=y)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_a_process_needs_only_the_files_of_its_clients(tmp_path: Path, weighting: str) -> None:
    """Each rank has a folder without the other clients' data; the result is that of a simulator with all files.

    Not every client has all classes. Fails if a model is built from the labels of one rank.
    """
    problem = {"dataset": "data/{client}.npz", "model": "linear", "partition": "natural", "weighting": weighting}
    complete = write_run_config(tmp_path / "all", problem=problem)
    write_files(tmp_path / "all" / "data", range(4))
    x, y = client_data(3)
    np.savez(tmp_path / "all" / "data" / "3.npz", x=x, y=np.where(y == 2, 1, y))
    train(complete, tmp_path / "simulated")
    own = []
    for rank in range(2):
        config = write_run_config(tmp_path / str(rank), problem=problem)
        for i in (2 * rank, 2 * rank + 1):
            (config.parent / "data").mkdir(exist_ok=True)
            shutil.copy(tmp_path / "all" / "data" / f"{i}.npz", config.parent / "data")
        own.append([str(config)])
    results = launch(run_with_arguments, 2, ["--out", str(tmp_path / "out")], per_rank=own)
    assert [result.code for result in results] == [0, 0], results
    for name in ("state.safetensors", "model.safetensors"):
        a, b = load_file(tmp_path / "out" / name), load_file(tmp_path / "simulated" / name)
        for key in b:
            assert torch.allclose(a[key], b[key], rtol=1e-10, atol=1e-12), (name, key)


def test_a_missing_file_is_reported_by_the_rank_that_needs_it(tmp_path: Path) -> None:
    """In one line with the path, the clients of this rank and how ranks are numbered, since the files may just be on
    another host than expected; the other rank reports which rank stopped, and no process is left running.
    """
    config = write_run_config(
        tmp_path, problem={"dataset": "data/{client}.npz", "model": "linear", "partition": "natural"}
    )
    write_files(tmp_path / "data", [0, 1, 3])
    first, second = launch(run, 2, str(config), "--out", str(tmp_path / "out"))
    assert (first.code, second.code) == (2, 2)
    missing = f"error: problem.dataset: {tmp_path / 'data' / '2.npz'}: no such file or folder; this process holds "
    assert second.err.startswith(f"{missing}clients 2–3: torchrun numbers hosts in the text order of their addresses")
    assert "; this is rank 1 (host " in second.err
    assert second.err.count("\n") == 1
    assert first.err.startswith("error: rank 1 (host ")
    assert "2.npz" in first.err
    assert not (tmp_path / "out").exists()


# Rejected configurations


@pytest.mark.parametrize(
    ("size", "own", "message"),
    [
        (3, [], "problem.clients: 4 given, which 3 processes cannot share equally"),
        (5, [], "problem.clients: 4 given, but there are 5 processes"),
        (2, ["--set", "algorithm.alpha=-1"], "algorithm.alpha"),
        (2, ["--set", "metrics.smoothness=measure"], "metrics.smoothness: 'measure' given, but no process has all"),
        (2, ["--set", "network.channel=float23"], "network.channel: 'float23' is not a channel"),
        (2, ["--set", "processes.timeout=0.0"], "processes.timeout: 0.0 given"),
    ],
)
def test_an_invalid_configuration_is_reported_by_every_rank(
    uninterrupted: Path, tmp_path: Path, size: int, own: list[str], message: str
) -> None:
    for result in launch(run, size, str(uninterrupted / "c.toml"), "--out", str(tmp_path / "out"), *own):
        assert result.code == 2
        assert result.err.startswith(f"error: {message}")
        assert result.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_setting_that_differs_between_ranks_is_rejected(uninterrupted: Path, tmp_path: Path) -> None:
    """The rank and the key are named, and nothing is written."""
    own = [["--set", "algorithm.alpha=0.1"], ["--set", "algorithm.alpha=0.2"]]
    first, second = launch(
        run_with_arguments, 2, [str(uninterrupted / "c.toml"), "--out", str(tmp_path / "out")], per_rank=own
    )
    assert second.err.startswith("error: algorithm.alpha: 0.2 on rank 1 (host ")
    assert first.err.startswith("error: rank 1 (host ")
    assert "algorithm.alpha" in first.err
    assert (first.code, second.code) == (2, 2)
    assert not (tmp_path / "out").exists()


def test_a_configuration_that_one_rank_cannot_read_stops_all(uninterrupted: Path, tmp_path: Path) -> None:
    own = [["--set", "algorithm.alhpa=0.1"], []]
    first, second = launch(
        run_with_arguments, 2, [str(uninterrupted / "c.toml"), "--out", str(tmp_path / "out")], per_rank=own
    )
    assert "alhpa" in first.err
    assert second.err.startswith("error: rank 0 (host ")
    assert (first.code, second.code) == (2, 2)


def test_different_versions_of_the_package_are_rejected(uninterrupted: Path, tmp_path: Path) -> None:
    arguments = [str(uninterrupted / "c.toml"), "--out", str(tmp_path / "out")]
    first, second = launch(run_as_version, 2, arguments, per_rank=["1.0", "1.1"])
    assert second.err.startswith('error: version of depositum: "1.1" on rank 1 (host ')
    assert "stopped: version of depositum" in first.err
    assert (first.code, second.code) == (2, 2)


def test_a_process_without_peers_reports_the_address(uninterrupted: Path, tmp_path: Path) -> None:
    """In one line, after the time-out, if nothing answers at the address; 75, since a restart may meet them."""
    settings = ("--set", "processes.timeout=1.0")
    (result,) = launch(run_without_peers, 1, str(uninterrupted / "c.toml"), "--out", str(tmp_path / "out"), *settings)
    assert result.code == 75
    assert result.err.splitlines()[-1].startswith("error: rank 1 of 2 (host ")
    assert "met no others at 127.0.0.1:" in result.err


def test_a_rank_that_hangs_is_named(uninterrupted: Path, tmp_path: Path) -> None:
    """SIGSTOP of a rank during training: within the time-out and 2 s, the other names it and exits with 75."""
    config, out, timeout = uninterrupted / "c.toml", tmp_path / "out", 2.0
    arguments = (str(config), "--out", str(out), "--set", f"processes.timeout={timeout}")
    with RankProcesses(run_slowly, 2, "0.02", *arguments) as started:
        wait_for_line(out / "logs" / "rank-1.log", "saved iteration 6")
        began = time.monotonic()
        started.signal(1, signal.SIGSTOP)
        result: CommandResult = started.receive(0)
        assert time.monotonic() - began < timeout + 2
    assert result.code == 75
    assert result.err.splitlines()[-1].startswith("error: rank 1 (clients 2–3, host ")
    assert f"did not answer within {timeout:g} s" in result.err


# fit


@pytest.mark.parametrize(("n", "size"), [(3, 3), (4, 2)])
def test_fit_with_each_ranks_data_equals_fit_with_all_data(n: int, size: int) -> None:
    """A pair, or a list of pairs, on each rank; every rank has the history and the model.

    A callback that is called at every iteration changes nothing.
    """
    expected = dp.fit(small_model(), [client_data(i) for i in range(n)], **fit_arguments(n))
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
    ("changes", "message"), [({"steps": 9}, "steps: 9 on rank 1 (host"), ({"beta": 0.5}, "beta: 0.5 on rank 1 (host")]
)
def test_fit_rejects_arguments_that_differ_between_ranks(changes: dict[str, Any], message: str) -> None:
    first, second = launch(fit_with_changes, 2, 2, per_rank=[{}, changes])
    assert second.startswith(f"ConfigError: {message}")
    assert first.startswith("GroupError: rank 1 (host ")


def test_fit_in_a_folder_is_extended_as_without_processes(tmp_path: Path) -> None:
    """Each rank's call has the same folder; a longer call resumes what a shorter one left."""
    expected = dp.fit(small_model(), [client_data(i) for i in range(4)], **fit_arguments(4))
    for steps in (9, 15):
        changes = {"out": tmp_path / "run", "steps": steps}
        ranks = launch(fit_with_changes, 2, 4, per_rank=[changes, changes])
        assert all(isinstance(found, dict) for found in ranks), ranks
    for rank, found in enumerate(ranks):
        assert found["steps"] == 6  # the second of its two calls has nothing to do
        own = expected.state["x"][2 * rank : 2 * rank + 2].numpy()
        assert np.allclose(found["state"]["x"], own, rtol=1e-10, atol=1e-12)
    loaded = dp.load(tmp_path / "run", small_model())
    assert np.allclose(loaded.state["x"].numpy(), expected.state["x"].numpy(), rtol=1e-10, atol=1e-12)
    assert loaded.history["iteration"].tolist() == expected.history["iteration"].tolist()
