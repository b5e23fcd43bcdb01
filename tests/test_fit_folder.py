"""`depositum.fit` with a folder: checkpoints, resumption, Ctrl-C, several seeds; and `depositum.load`."""

import os
import signal
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import depositum as dp
from depositum.algorithms import Cosine
from depositum.networks import Participation
from depositum.runs import execute, from_table
from tests.support.small_fits import client_pairs, small_fit


class StopAt(dp.Callback):
    """Asks the loop to stop after an iteration, or sends signals then."""

    def __init__(self, t: int, signals: int = 0) -> None:
        self.t, self.signals = t, signals

    def on_step(self, loop):
        if loop.t == self.t:
            for _ in range(self.signals):
                os.kill(os.getpid(), signal.SIGINT)
            loop.stop_requested = loop.stop_requested or not self.signals


def files(folder: Path) -> dict[str, bytes]:
    """The files of a run; of the history all but the seconds."""
    found = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    table = pd.read_csv(folder / "history.csv", dtype=str).drop(columns="seconds")
    return {**found, "history.csv": table.to_csv().encode()}


def test_a_stopped_run_is_resumed_to_the_same_bytes(tmp_path):
    """Fails if a call with the folder of an unfinished run begins anew, or resumes to other bytes."""
    small_fit(out=tmp_path / "whole", checkpoint_every=4)
    stopped = small_fit(out=tmp_path / "stopped", checkpoint_every=4, callbacks=[StopAt(7)])
    assert not stopped.finished
    assert stopped.iterations == 7
    resumed = small_fit(out=tmp_path / "stopped", checkpoint_every=4)
    assert resumed.finished
    one, other = files(tmp_path / "whole"), files(tmp_path / "stopped")
    for name in ("state.safetensors", "model.safetensors", "history.csv", "consensus.csv", "config.toml"):
        assert one[name] == other[name], name
    assert resumed.consensus.index.tolist() == list(range(1, 13))


def test_a_run_is_extended_to_the_same_bytes(tmp_path):
    small_fit(out=tmp_path / "long", steps=20)
    small_fit(out=tmp_path / "extended", steps=12)
    small_fit(out=tmp_path / "extended", steps=20)
    for name in ("state.safetensors", "model.safetensors", "history.csv"):
        assert files(tmp_path / "long")[name] == files(tmp_path / "extended")[name], name


def test_a_folder_does_not_change_the_run(tmp_path):
    in_memory, in_folder = small_fit(), small_fit(out=tmp_path / "run")
    assert all(torch.equal(in_memory.state[k], in_folder.state[k]) for k in in_memory.state)
    pd.testing.assert_frame_equal(in_memory.history.drop(columns="seconds"), in_folder.history.drop(columns="seconds"))
    pd.testing.assert_series_equal(in_memory.consensus, in_folder.consensus)


def test_the_folder_has_the_files_of_a_run_of_a_configuration(tmp_path):
    """So that `depositum compare` and whoever reads run folders can use it."""
    small_fit(out=tmp_path / "fit")
    execute(from_table({"run": {"steps": 2}}), tmp_path / "run")
    assert {*files(tmp_path / "run")} <= {*files(tmp_path / "fit")}


@pytest.mark.parametrize("alpha", [lambda t: 0.1 / (1 + t), Cosine(0.1, 10), np.float32(0.05)])
def test_any_stepsize_can_be_stored_and_resumed(tmp_path, alpha):
    """A function, a schedule and NumPy's numbers were not written to `config.toml`: fit with a folder failed."""
    method = dp.Depositum(alpha=alpha)
    small_fit(out=tmp_path / "run", algorithm=method, steps=4)
    resumed = small_fit(out=tmp_path / "run", algorithm=method, steps=8)
    assert torch.equal(resumed.state["x"], small_fit(algorithm=method, steps=8).state["x"])
    with pytest.raises(dp.DepositumError, match=r"holds another run \(alpha is "):
        small_fit(out=tmp_path / "run", algorithm=dp.Depositum(alpha=lambda t: 0.2 / (1 + t)), steps=8)


def test_ctrl_c_returns_what_there_is(tmp_path):
    """The first one; the run is resumable, and the handler of the caller is restored."""
    before = signal.getsignal(signal.SIGINT)
    with pytest.warns(RuntimeWarning, match="interrupted"):
        result = small_fit(out=tmp_path / "run", callbacks=[StopAt(5, signals=1)])
    assert not result.finished
    assert result.iterations == 5
    assert signal.getsignal(signal.SIGINT) is before
    assert torch.equal(small_fit(out=tmp_path / "run").state["x"], small_fit().state["x"])


def test_a_second_ctrl_c_raises():
    with pytest.raises(KeyboardInterrupt):
        small_fit(callbacks=[StopAt(5, signals=2)])


def test_other_data_are_refused(tmp_path):
    small_fit(out=tmp_path / "run")
    with pytest.raises(
        dp.DepositumError, match=r"^out: .*run: holds another run \(dataset is .* choose another folder"
    ):
        small_fit(clients=client_pairs(seed=1), out=tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": dp.Depositum(alpha=0.01)}, r"\(alpha is 0.05 there and 0.01 here\)"),
        ({"period": 2}, r"\(period is 1 there and 2 here\)"),
        ({"network": dp.complete(4)}, r"\(network is "),
        ({"network": replace(dp.ring(4), participation=Participation(cohort=2))}, r"\(network is "),
        ({"regularizer": dp.L1(), "beta": 0.1}, r"\(beta is 0.0 there and 0.1 here\)"),
        ({"model": nn.Sequential(nn.Linear(5, 3), nn.Identity())}, r"\(model is "),
    ],
)
def test_another_run_is_refused(tmp_path, settings, message):
    """In one line that names the argument; nothing in the folder changes."""
    small_fit(out=tmp_path / "run")
    before = files(tmp_path / "run")
    with pytest.raises(dp.DepositumError, match=f"holds another run {message}"):
        small_fit(out=tmp_path / "run", **settings)
    assert files(tmp_path / "run") == before


def test_a_folder_that_is_not_a_run_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(dp.DepositumError, match=r"^out: .* is not empty and holds no run; choose another folder"):
        small_fit(out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_another_start_of_the_same_model_resumes_with_a_warning(tmp_path):
    """A script that does not seed its model can resume; that its new parameters are not used is reported."""
    expected = small_fit(steps=20)
    small_fit(out=tmp_path / "run", steps=12)
    started = tomllib.loads((tmp_path / "run" / "config.toml").read_text())["problem"]["model"]
    torch.manual_seed(1)
    with pytest.warns(RuntimeWarning, match="model: the run in .* began with other initial parameters"):
        result = small_fit(nn.Linear(5, 3), out=tmp_path / "run", steps=20)
    assert torch.equal(result.state["x"], expected.state["x"])
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["problem"]["model"] == started


def test_seeds_are_trained_side_by_side():
    """Each as it would be alone, up to rounding."""
    model = nn.Linear(5, 3)
    both = small_fit(model, seeds=[3, 4], dtype="float64")
    assert both.seeds == (3, 4)
    assert both.state["x"].shape == (8, 18)
    for index, seed in enumerate((3, 4)):
        alone = small_fit(model, seed=seed, dtype="float64")
        torch.testing.assert_close(both.state["x"][4 * index : 4 * index + 4], alone.state["x"])
        torch.testing.assert_close(both.models[seed].weight, alone.model.weight)
        torch.testing.assert_close(both.client_model(2, seed).weight, alone.client_model(2).weight)
        assert both.consensus[seed].index.tolist() == list(range(1, 13))
    assert both.history.seed.unique().tolist() == [3, 4]


def test_client_models_have_their_own_rows_and_buffers():
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    result = small_fit(model, period=4)
    means = torch.stack([result.client_model(i)[1].running_mean for i in range(4)])
    assert not torch.equal(means[0], means[1])
    torch.testing.assert_close(means.mean(0), result.model[1].running_mean)
    for i in range(4):
        own = torch.cat([p.detach().flatten() for p in result.client_model(i).parameters()])
        assert torch.equal(own, result.state["x"][i])
    with pytest.raises(dp.ConfigError, match="client: 4 given; it must be a whole number from 0 to 3"):
        result.client_model(4)


@pytest.mark.parametrize(
    ("names", "objects"),
    [
        ({"algorithm": "fedavg"}, {"algorithm": dp.algorithm("fedavg")}),
        ({"algorithm": {"d-psgd": {"alpha": 0.2}}}, {"algorithm": dp.algorithm("d-psgd", alpha=0.2)}),
        ({"network": "star"}, {"network": dp.star(4)}),
        ({"network": {"ring": {"hops": 1}}}, {"network": dp.ring(4)}),
        ({"regularizer": {"mcp": {"theta": 3.0}}, "beta": 0.1}, {"regularizer": dp.MCP(theta=3.0), "beta": 0.1}),
        (
            {"regularizer": [{"l1": {}, "on": "weight"}, {"squared-l2": {}, "on": "bias"}], "beta": 0.1},
            {"regularizer": dp.L1().on("weight") + dp.SquaredL2().on("bias"), "beta": 0.1},
        ),
    ],
)
def test_names_stand_for_what_files_name(names, objects):
    assert torch.equal(small_fit(**names).state["x"], small_fit(**objects).state["x"])


def test_load_gives_the_result_back(tmp_path):
    trained = small_fit(out=tmp_path / "run", seeds=[0, 1])
    loaded = dp.load(tmp_path / "run", nn.Linear(5, 3))
    assert loaded.finished
    assert loaded.seeds == (0, 1)
    assert all(torch.equal(loaded.state[k], trained.state[k]) for k in trained.state)
    assert all(torch.equal(loaded.models[s].weight, trained.models[s].weight) for s in (0, 1))
    pd.testing.assert_frame_equal(loaded.history, trained.history, check_exact=False)
    pd.testing.assert_series_equal(loaded.consensus, trained.consensus)


def test_load_builds_the_model_of_a_configuration(tmp_path):
    execute(from_table({"run": {"steps": 3}, "problem": {"model": "mlp"}}), tmp_path / "run")
    loaded = dp.load(tmp_path / "run")
    own = torch.cat([p.detach().flatten() for p in loaded.model.parameters()])
    torch.testing.assert_close(own, loaded.state["x"].mean(0))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (None, "^model: missing; the model of the run in .* was given in Python: pass it to dp.load"),
        (nn.Linear(5, 4), "^model: it has 24 trainable parameters, but the run in .* is of 18"),
        (nn.Sequential(nn.Linear(5, 3)), "^model: its layers or its frozen parameters differ"),
        (3, "^model: 3 given; it must be a torch.nn.Module"),
    ],
)
def test_load_refuses_another_model(tmp_path, model, message):
    small_fit(out=tmp_path / "run")
    with pytest.raises(dp.ConfigError, match=message):
        print(dp.load(tmp_path / "run", model).model)


def test_load_refuses_what_is_not_a_run(tmp_path):
    with pytest.raises(dp.DepositumError, match=r"holds no run \(there is no history.csv\)"):
        dp.load(tmp_path)
