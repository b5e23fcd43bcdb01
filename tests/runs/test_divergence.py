"""A seed that diverges is reported, its last finite state is saved, and the others continue."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from depositum import models
from depositum.engines import Callback, Loop
from depositum.runs import build_engine, load
from depositum.runs.checkpoint import CURRENT
from depositum.runs.folder import read_history
from tests.support import rank_runs
from tests.support.rank_processes import launch
from tests.support.small_runs import SIXTH_POWER, KillAt, Killed, LimitedMemory, files, outcome, train, write_config


def regression(folder: Path) -> str:
    """Twelve samples of y = 0; the loss of a linear model is quadratic, and diverges for a large stepsize."""
    x = np.linspace(-1, 1, 12)[:, None]
    np.savez(folder / "line.npz", x=x, y=np.zeros(12))
    return "line.npz"


def all_finite(file: Path) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in load_file(file).values())


def test_divergence_is_reported_and_the_last_finite_state_saved(tmp_path: Path) -> None:
    """α far beyond 2/L: the iteration, client and variable are the first that are not finite, step by step."""
    config = write_config(
        tmp_path / "c.toml",
        problem={"dataset": regression(tmp_path), "partition": "iid", "beta": 0.0},
        algorithm={"alpha": 1e6},
        run={"batch_size": "full", "period": 1, "steps": 50, "evaluate_every": 5, "checkpoint_every": 5},
        metrics={"costly_every": 5},
    )
    result, _ = train(config, tmp_path / "run")
    (divergence,) = result.diverged

    simulator = build_engine([load(config)])
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
    assert all_finite(tmp_path / "run" / CURRENT)
    assert all_finite(tmp_path / "run" / "model.safetensors")

    # The trace ends before that iteration, and running again changes nothing.
    last = (tmp_path / "run" / "consensus.csv").read_text().splitlines()[-1]
    assert last.split(",")[1] == str(found[1] - 1)
    before = files(tmp_path / "run")
    again, lines = train(config, tmp_path / "run")
    assert lines == [f"{tmp_path / 'run'}: nothing to do, every seed has diverged"]
    assert again.diverged == [divergence]
    assert files(tmp_path / "run") == before


@pytest.fixture
def one_diverging_seed(tmp_path: Path) -> tuple[Path, int, int]:
    """A configuration of two seeds, the seed that diverges, and the one that does not."""
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


@pytest.mark.slow
def test_other_seeds_continue(tmp_path: Path, one_diverging_seed: tuple[Path, int, int]) -> None:
    """The seed that diverges stops; the other seed has the trajectory of a run alone."""
    config, bad, good = one_diverging_seed
    result, _ = train(config, tmp_path / "both")
    alone, _ = train(config, tmp_path / "alone", overrides=(f"run.seeds=[{good}]",))
    assert [d.seed for d in result.diverged] == [bad]
    assert (result.snapshot.t, result.finished) == (20, True)
    assert all_finite(tmp_path / "both" / CURRENT)
    own = result.snapshot.rows_of([good])
    for name, rows in alone.snapshot.tensors.items():
        torch.testing.assert_close(own[name], rows, rtol=1e-12, atol=1e-15)
    frame = read_history(tmp_path / "both")
    assert frame[frame.seed == bad]["iteration"].tolist() == [0]
    found, expected = frame[frame.seed == good].reset_index(drop=True), read_history(tmp_path / "alone")
    assert found["iteration"].tolist() == expected["iteration"].tolist() == [0, 4, 8, 12, 16, 20]
    np.testing.assert_allclose(found["train_loss"], expected["train_loss"], rtol=1e-12)
    assert (tmp_path / "both" / "model.safetensors").exists()
    assert (tmp_path / "both" / f"model.seed-{good}.safetensors").exists()


@pytest.mark.slow
def test_a_seed_can_diverge_in_a_group_of_seeds(tmp_path: Path, one_diverging_seed: tuple[Path, int, int]) -> None:
    """Where not all seeds fit in memory, the seed stops at the same iteration, and the other groups run."""
    config, bad, _ = one_diverging_seed
    at_once, _ = train(config, tmp_path / "both")
    result, _ = train(config, tmp_path / "groups", LimitedMemory(1))
    assert [d.seed for d in result.diverged] == [bad]
    assert (result.snapshot.t, result.finished, result.diverged) == (20, True, at_once.diverged)
    columns = ["seed", "iteration"]
    found, expected = (read_history(tmp_path / name)[columns] for name in ("groups", "both"))
    assert found.equals(expected)
    again, lines = train(config, tmp_path / "groups")
    assert lines == [f"{tmp_path / 'groups'}: nothing to do, 20 iterations are done"]
    assert again.diverged == at_once.diverged


@pytest.mark.slow
def test_processes_agree_on_a_diverged_seed(tmp_path: Path, one_diverging_seed: tuple[Path, int, int]) -> None:
    """All ranks report the same, the other seed continues, and the simulator's state is saved; also when extended."""
    config, bad, _ = one_diverging_seed
    out = tmp_path / "out"
    result, _ = train(config, tmp_path / "simulated")
    results = launch(rank_runs.run, 2, str(config), "--out", str(out))
    assert [one.code for one in results] == [2, 2], results
    assert str(result.diverged[0]) in results[0].err.splitlines()[-1]
    found, expected = (load_file(folder / "state.safetensors") for folder in (out, tmp_path / "simulated"))
    for key, value in expected.items():
        assert torch.allclose(found[key], value, rtol=1e-10, atol=1e-13), key
    histories = [read_history(folder)[["seed", "iteration"]] for folder in (out, tmp_path / "simulated")]
    assert histories[0].equals(histories[1])
    again = launch(rank_runs.run, 2, str(config), "--out", str(out), "--set", "run.steps=24")
    assert [one.code for one in again] == [2, 2]
    assert f"seed {bad} diverged" in again[0].err.splitlines()[-1]
    assert "resuming from iteration 20" in again[0].err


@pytest.mark.slow
def test_a_diverged_seed_stays_stopped_when_the_run_resumes(
    tmp_path: Path, one_diverging_seed: tuple[Path, int, int]
) -> None:
    """Its rows stay as they are, however often the run is resumed."""
    config, bad, _ = one_diverging_seed
    train(config, tmp_path / "uninterrupted")
    with pytest.raises(Killed):
        train(config, tmp_path / "killed", KillAt(15))
    for _ in range(2):
        result, _ = train(config, tmp_path / "killed")
    assert [d.seed for d in result.diverged] == [bad]
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "uninterrupted")


def test_a_start_that_is_not_finite_is_reported_at_iteration_0(tmp_path: Path) -> None:
    """Gradients that are not finite at x0 are not attributed to the first step."""
    config = write_config(
        tmp_path / "c.toml",
        problem={"dataset": regression(tmp_path), "partition": "iid", "beta": 0.0, "model": "sixth:power"},
    )
    (tmp_path / "sixth.py").write_text(SIXTH_POWER.replace("1000.0", "1e30").replace("0.1,", "1e30,"))
    result, _ = train(config, tmp_path / "run")
    assert [(d.iteration, d.client, d.variable) for d in result.diverged] == [(0, 0, "y")]
    assert math.isfinite(float(load_file(tmp_path / "run" / "model.safetensors")["w"]))


def test_callbacks_are_called_on_divergence_before_the_seed_is_removed(
    tmp_path: Path, one_diverging_seed: tuple[Path, int, int]
) -> None:
    config, bad, good = one_diverging_seed
    calls: list[tuple[int, tuple[int, ...]]] = []

    class Recorder(Callback):
        def on_divergence(self, loop: Loop, divergence: Any) -> None:
            calls.append((divergence.seed, loop.engine.problem.seeds))

        def on_end(self, loop: Loop) -> None:
            calls.append((-1, loop.engine.problem.seeds))

    train(config, tmp_path / "run", Recorder())
    assert calls == [(bad, (bad, good)), (-1, (good,))]
