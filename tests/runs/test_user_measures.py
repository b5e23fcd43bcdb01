"""User-defined measures, measures of each client, early stopping and the best model in a run's folder."""

import csv
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import depositum as dp
from depositum.metrics import COLUMNS
from depositum.report.client_spread import client_spread
from depositum.runs import execute_all, load
from depositum.runs.folder import read_history
from tests.support.small_fits import client_pairs, small_fit
from tests.support.small_runs import KillAt, Killed, cli, files, outcome, train, write_config

MEASURES = """
from sklearn.metrics import f1_score

def f1(outputs, targets):
    return f1_score(targets.numpy(), outputs.argmax(1).numpy(), average="macro")

def confidence(outputs, targets):
    return outputs.softmax(1).amax(1).mean()

def fails(outputs, targets):
    raise RuntimeError("not today")

not_a_function = 3
"""
FUNCTIONS = {"functions": {"f1": "own_measures:f1", "confidence": "own_measures:confidence"}}


def config_with_measures(folder: Path, metrics: dict[str, Any] = FUNCTIONS, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "own_measures.py").write_text(MEASURES)
    return write_config(folder / "config.toml", metrics=metrics, **changes)


def test_measures_of_a_configuration_are_in_history_csv(tmp_path: Path) -> None:
    """As the last columns, read back with the same values."""
    config = config_with_measures(tmp_path / "configs", run={"seeds": [0, 3]})
    result, _ = train(config, tmp_path / "run")
    with (tmp_path / "run" / "history.csv").open(newline="") as file:
        assert next(csv.reader(file)) == [*COLUMNS, "f1", "confidence"]
    frame = read_history(tmp_path / "run")
    assert frame[["f1", "confidence"]].notna().all(axis=None)
    pd.testing.assert_frame_equal(frame, result.history.frame)


def test_a_history_without_own_measures_has_no_further_columns(tmp_path: Path) -> None:
    train(write_config(tmp_path / "config.toml"), tmp_path / "run")
    header = (tmp_path / "run" / "history.csv").read_text().splitlines()[0]
    assert header == ",".join(COLUMNS)
    assert "functions" not in (tmp_path / "run" / "config.toml").read_text()


@pytest.mark.parametrize("t", [3, 9, 17])
def test_a_killed_run_with_own_measures_ends_with_the_same_history(t: int, tmp_path: Path) -> None:
    config = config_with_measures(tmp_path / "configs")
    train(config, tmp_path / "whole")
    with pytest.raises(Killed):
        train(config, tmp_path / "killed", KillAt(t))
    train(config, tmp_path / "killed")
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")
    assert (tmp_path / "killed" / "clients.csv").read_bytes() == (tmp_path / "whole" / "clients.csv").read_bytes()


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("own_measures:fails", r"metrics.functions.mine: fails on outputs \[12, 3\] .*RuntimeError: not today"),
        ("own_measures:f2", r"metrics.functions.mine: module 'own_measures' has no 'f2'; did you mean 'f1'"),
        ("own_measurs:f1", "metrics.functions.mine: no module 'own_measurs'"),
        ("own_measures:not_a_function", "metrics.functions.mine: 3 given; it must be a function of"),
        ("f1", "metrics.functions.mine: 'f1' given; a user-defined measure is written 'package.module:name'"),
    ],
)
def test_a_measure_that_cannot_be_used_is_one_line_before_the_folder(
    reference: str, message: str, tmp_path: Path
) -> None:
    config = config_with_measures(tmp_path / "configs", {"functions": {"mine": reference}})
    with pytest.raises(dp.ConfigError, match=message) as error:
        train(config, tmp_path / "run")
    assert len(str(error.value)) <= 300 + len(str(tmp_path))
    assert not (tmp_path / "run").exists()


def test_the_name_of_a_column_is_refused_with_the_key(tmp_path: Path) -> None:
    config = config_with_measures(tmp_path / "configs", {"functions": {"phi": "own_measures:f1"}})
    with pytest.raises(dp.ConfigError, match=r"metrics.functions.phi: is the name of a column"):
        load(config)


def test_own_measures_are_shown_by_run_and_compare(tmp_path: Path) -> None:
    """In the summary; a comparison with a run that does not have them shows them too."""
    config = config_with_measures(tmp_path / "configs")
    shown = cli("run", config, "--out", tmp_path / "a")
    assert shown.code == 0, shown.err
    assert "f1" in shown.out
    plain = write_config(tmp_path / "plain.toml")
    assert cli("run", plain, "--out", tmp_path / "b").code == 0
    compared = cli("compare", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "figure.png")
    assert compared.code == 0, compared.err
    assert "f1" in compared.out


# Each client's own data


def test_measures_of_clients_equal_those_by_hand(tmp_path: Path) -> None:
    """The averaged model and each client's own, on each client's own samples, with buffers."""
    clients = client_pairs()
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))

    def hits(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return float((outputs.argmax(1) == targets).sum())

    settings: dict[str, Any] = {"metrics": {"hits": hits}, "seeds": [0, 3], "weighting": "samples"}
    result = small_fit(model, clients, out=tmp_path / "run", **settings)
    frame = result.client_metrics
    assert frame.columns.tolist() == [
        *("seed", "client", "samples", "averaged_loss", "averaged_accuracy", "averaged_hits"),
        *("own_loss", "own_accuracy", "own_hits"),
    ]
    assert frame["seed"].tolist() == [0] * 4 + [3] * 4
    for _, row in frame.iterrows():
        client, seed = int(row["client"]), int(row["seed"])
        x, y = clients[client]
        assert row["samples"] == len(y)
        for prefix, own in (("averaged", result.models[seed]), ("own", result.client_model(client, seed))):
            with torch.no_grad():
                outputs = own(x)
            assert row[f"{prefix}_loss"] == pytest.approx(nn.functional.cross_entropy(outputs, y).item(), rel=1e-5)
            assert row[f"{prefix}_accuracy"] == pytest.approx((outputs.argmax(1) == y).float().mean().item())
            assert row[f"{prefix}_hits"] == hits(outputs, y)
    in_memory = small_fit(model, clients, **settings).client_metrics
    pd.testing.assert_frame_equal(in_memory, frame, check_dtype=False, rtol=1e-6)


def test_a_measure_that_is_not_defined_for_a_client_is_empty() -> None:
    """A client with one class has no AUC: the run does not fail at its end for it."""
    from sklearn.metrics import roc_auc_score

    clients = [(x, (y > 0).long()) for x, y in client_pairs()]
    clients[1] = (clients[1][0], torch.zeros(len(clients[1][1]), dtype=torch.long))

    def auc(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        if len(targets.unique()) < 2:
            raise ValueError("one class only")
        return float(roc_auc_score(targets.numpy(), outputs[:, 1].numpy()))

    result = small_fit(nn.Linear(5, 2), clients, metrics={"auc": auc})
    with pytest.warns(RuntimeWarning, match=r"auc: fails on .* ValueError: one class only"):
        frame = result.client_metrics
    assert frame["own_auc"].notna().tolist() == [True, False, True, True]


def test_clients_csv_is_of_the_end_of_a_run(tmp_path: Path) -> None:
    """Not before it; an extended run replaces it."""
    config = write_config(tmp_path / "config.toml", run={"seeds": [0, 3]})
    with pytest.raises(Killed):
        train(config, tmp_path / "run", KillAt(13))
    assert not (tmp_path / "run" / "clients.csv").exists()
    train(config, tmp_path / "run")
    first = pd.read_csv(tmp_path / "run" / "clients.csv")
    assert (len(first), first["samples"].sum()) == (8, 2 * 60)
    train(config, tmp_path / "run", overrides=("run.steps=28",))
    second = pd.read_csv(tmp_path / "run" / "clients.csv")
    assert not np.allclose(first["own_loss"], second["own_loss"])
    loaded = dp.load(tmp_path / "run").client_metrics
    pd.testing.assert_frame_equal(loaded, second)


def test_run_prints_the_worst_client(tmp_path: Path) -> None:
    """Mean, spread and worst client of the accuracy on their own data; of a regression, of the loss."""
    (tmp_path / "clients.csv").write_text(
        "seed,client,samples,averaged_loss,averaged_accuracy\n0,0,5,1.0,0.9\n0,1,5,2.0,0.5\n1,0,5,1.0,0.7\n1,1,5,2.0,0.7\n"
    )
    start = "clients' own training data"
    assert client_spread(tmp_path) == f"{start}, accuracy %: mean 70.00 ± 10.00, worst 60.00 (client 1)"
    (tmp_path / "clients.csv").write_text("seed,client,samples,averaged_loss\n0,0,5,3.0\n0,1,5,2.0\n")
    assert client_spread(tmp_path) == f"{start}, loss: mean 2.5000 ± 0.5000, worst 3.0000 (client 0)"
    shown = cli("run", write_config(tmp_path / "config.toml"), "--out", tmp_path / "run")
    assert start in shown.out


# Stopping early and keeping the best


def test_a_run_that_was_stopped_early_can_be_resumed(tmp_path: Path) -> None:
    """The same criterion: nothing more is trained. More patience: as if it had been given at once."""

    def fit(patience: int, out: str) -> Any:
        stopping = dp.EarlyStopping("train_loss", patience=patience, min_delta=1.0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return small_fit(steps=100, out=tmp_path / out, callbacks=[stopping])

    first = fit(2, "run")
    assert (first.iterations, first.finished) == (8, False)
    before = files(tmp_path / "run")
    assert "clients.csv" in before
    again = fit(2, "run")
    assert again.iterations == 8
    assert torch.equal(again.state["x"], first.state["x"])
    assert again.history["iteration"].tolist() == [0, 4, 8]
    assert fit(5, "run").iterations == fit(5, "at once").iterations == 20
    assert outcome(tmp_path / "run") == outcome(tmp_path / "at once")


@pytest.mark.parametrize("callback", [dp.EarlyStopping("tran_loss"), dp.KeepBest("tran_loss")])
def test_an_unknown_measure_is_refused_before_the_folder_is_written(callback: dp.Callback, tmp_path: Path) -> None:
    with pytest.raises(dp.ConfigError, match="monitor: 'tran_loss' given; .* did you mean 'train_loss'"):
        small_fit(out=tmp_path / "run", callbacks=[callback])
    assert not (tmp_path / "run").exists()


def test_the_best_model_is_part_of_the_result(tmp_path: Path) -> None:
    """Of the call, of a loaded run, and after a resumption."""
    test = client_pairs(clients=1, size=40, seed=9)[0]
    settings: dict[str, Any] = {"test": test, "out": tmp_path / "run"}
    result = small_fit(**settings, callbacks=[keep := dp.KeepBest("test_accuracy")])
    assert keep.best[0].value == result.history["test_accuracy"].max()
    loaded = dp.load(tmp_path / "run", nn.Linear(5, 3)).best_model
    for model in (result.best_model, loaded):
        assert not model.training
        with torch.no_grad():
            accuracy = (model(test[0]).argmax(1) == test[1]).double().mean().item()
        assert accuracy == pytest.approx(keep.best[0].value)
    small_fit(**settings, steps=20, callbacks=[later := dp.KeepBest("test_accuracy")])
    assert later.best[0].value >= keep.best[0].value


def test_a_result_without_a_best_model_says_how_to_keep_one() -> None:
    with pytest.raises(dp.ConfigError, match=r"callbacks: no best model was kept; add dp.KeepBest"):
        _ = small_fit().best_model


def test_a_configuration_can_stop_early(tmp_path: Path) -> None:
    """Exit code 0 and the reason; again, nothing is trained; with more patience it continues."""
    stop = {"monitor": "train_loss", "patience": 2, "min_delta": 5.0}
    config = write_config(tmp_path / "config.toml", run={"stop": stop})
    shown = cli("run", config, "--out", tmp_path / "run")
    assert shown.code == 0, shown.err
    reason = "train_loss has not improved since iteration 0"
    assert f"{tmp_path / 'run'}: stopped at iteration 8 of 20: {reason}" in shown.err
    assert "train loss" in shown.out
    before = outcome(tmp_path / "run")
    again = cli("run", config, "--out", tmp_path / "run")
    assert (again.code, outcome(tmp_path / "run")) == (0, before)
    longer = cli("run", config, "--out", tmp_path / "run", "--set", "run.stop.patience=3")
    assert "stopped at iteration 12 of 20" in longer.err


def test_runs_of_a_sweep_stop_each_at_its_own_iteration(tmp_path: Path) -> None:
    """Not at that of the mean over all of them."""
    stop = {"monitor": "train_loss", "patience": 1, "min_delta": 0.02}
    config = write_config(tmp_path / "config.toml", run={"stop": stop})
    specs = [load(config, [f"algorithm.alpha={alpha}"]) for alpha in (1e-6, 0.3)]
    results = execute_all(specs, [tmp_path / "small", tmp_path / "large"])
    assert results[0].snapshot.t == 4 < results[1].snapshot.t


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        ({"patince": 3}, "run.stop.patince: unknown key; it can be .*; did you mean 'patience'"),
        ({"patience": 0}, "run.stop.patience: 0 given; it must be a whole number ≥ 1"),
        ({"monitor": "test_los"}, "run.stop.monitor: 'test_los' given; no measure has this name; did you mean"),
        ({"monitor": "stationarity"}, "run.stop.monitor: 'stationarity' given, but costly_every = 0"),
    ],
)
def test_a_criterion_that_cannot_be_used_is_refused_with_its_key(
    stop: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "config.toml", run={"stop": stop}, metrics={"costly_every": 0})
    with pytest.raises(dp.ConfigError, match=message):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
