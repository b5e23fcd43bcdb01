"""User-defined measures: functions of all outputs and targets, in the history of a run."""

import math
import warnings

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score
from torch import nn

import depositum as dp
from depositum.metrics import functions as user_functions
from depositum.metrics import user_columns
from tests.support.small_fits import client_pairs, small_fit


def macro_f1(outputs, targets):
    return f1_score(targets.numpy(), outputs.argmax(1).numpy(), average="macro")


def auc(outputs, targets):
    return roc_auc_score(targets.numpy(), outputs.softmax(1).numpy(), multi_class="ovr")


def test_functions_of_all_test_samples_are_in_the_history():
    """F1 and AUC are not means over samples: they equal scikit-learn's for the averaged model on all test data."""
    test = client_pairs(clients=1, size=50, seed=9)[0]
    result = small_fit(test=test, metrics=dp.MetricSettings(functions={"f1": macro_f1, "auc": auc}))
    assert list(result.history.columns[-2:]) == ["f1", "auc"]
    assert result.history["iteration"].tolist() == [0, 4, 8, 12]
    assert result.history[["f1", "auc"]].notna().all(axis=None)
    with torch.no_grad():
        outputs = result.model(test[0])
    last = result.history.iloc[-1]
    assert last["f1"] == macro_f1(outputs, test[1])
    assert last["auc"] == pytest.approx(auc(outputs, test[1]), abs=1e-12)


def test_without_test_data_functions_see_all_training_samples():
    """Every sample of every client once, and nothing else."""
    clients = client_pairs()
    seen = []

    def count(outputs, targets):
        seen.append((outputs.shape, targets))
        return float((outputs.argmax(1) == targets).double().mean())

    result = small_fit(clients=clients, metrics=dp.MetricSettings(functions={"accuracy": count}))
    targets = torch.cat([y for _, y in clients])
    shape, found = seen[-1]
    assert shape == (len(targets), 3)
    assert torch.equal(found.sort().values, targets.sort().values)
    with torch.no_grad():
        outputs = result.model(torch.cat([x for x, _ in clients]))
    expected = (outputs.argmax(1) == targets).double().mean().item()
    assert result.history["accuracy"].iloc[-1] == pytest.approx(expected)


def test_functions_change_neither_the_training_nor_each_other():
    """A function that overwrites its arguments gets copies."""

    def destroys(outputs, targets):
        outputs.zero_()
        targets.numpy()[:] = 0
        return 1.0

    plain = small_fit()
    result = small_fit(metrics=dp.MetricSettings(functions={"a": macro_f1, "b": destroys, "c": macro_f1}))
    assert torch.equal(result.state["x"], plain.state["x"])
    assert result.history["a"].equals(result.history["c"].rename("a"))
    columns = list(plain.history.columns.drop("seconds"))
    assert result.history[columns].equals(plain.history[columns])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda outputs, targets: outputs, r"returned \[126, 3\] of torch.float32; it must return one number"),
        (lambda outputs, targets: None, "returned None; it must return one number"),
        (lambda outputs: 0.0, r"fails on outputs \[126, 3\] .* TypeError: .* takes 1 positional argument"),
        (lambda outputs, targets: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda outputs, targets: [][int("x" * 10_000)], "ValueError: invalid literal"),
        (3.5, r"3.5 given; it must be a function of \(outputs, targets\)"),
    ],
)
def test_function_that_fails_is_reported_before_any_work(function, message):
    """On the initial model: no iteration is run, and the error is one line that names the function."""
    started = []

    class Started(dp.Callback):
        def on_start(self, loop):
            started.append(loop.t)

    with pytest.raises(dp.ConfigError, match=message) as error:
        small_fit(metrics=dp.MetricSettings(functions={"mine": function}), callbacks=[Started()])
    assert str(error.value).startswith("functions.mine: ")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) <= 300
    assert started == []


@pytest.mark.parametrize("name", ["train_loss", "seed", "seconds", "trial", "stationarity_mean"])
def test_name_of_an_existing_column_is_refused(name):
    with pytest.raises(dp.ConfigError, match=f"functions.{name}: is the name of a column"):
        dp.MetricSettings(functions={name: macro_f1})


@pytest.mark.parametrize("name", ["", "a,b", "1st", "with space", "perplexity:x", "x\n", 3])
def test_name_that_does_not_fit_a_table_is_refused(name):
    with pytest.raises(dp.ConfigError, match="functions: .* given; the name of a measure has letters"):
        dp.MetricSettings(functions={name: macro_f1})


def test_functions_must_be_a_mapping():
    with pytest.raises(dp.ConfigError, match=r'functions: .* it must be a dictionary .* such as \{"f1": f1\}'):
        dp.MetricSettings(functions=[macro_f1])


@pytest.mark.parametrize("value", [0.5, 1, np.float32(0.5), torch.tensor(0.5), torch.tensor([0.5]), np.array([[2]])])
def test_numbers_of_all_kinds_are_accepted(value):
    result = small_fit(metrics=dp.MetricSettings(functions={"mine": lambda outputs, targets: value}))
    assert set(result.history["mine"]) == {float(np.asarray(value).item())}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_value_that_is_not_finite_is_empty_with_one_warning(value):
    """One warning for the whole run, not one for each evaluation."""
    settings = dp.MetricSettings(functions={"mine": lambda outputs, targets: value, "one": lambda *_: 1.0})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        result = small_fit(metrics=settings)
    assert [str(w.message) for w in caught] == [
        "functions.mine: returned a value that is not finite; its column is empty there"
    ]
    assert "mine" not in result.history or result.history["mine"].isna().all()
    assert set(result.history["one"]) == {1.0}


def test_outputs_that_do_not_fit_in_memory_are_refused(monkeypatch):
    """A language model's outputs of all texts would take hundreds of gigabytes."""
    monkeypatch.setattr(user_functions, "LARGEST_OUTPUTS", 1000)
    with pytest.raises(dp.ConfigError, match=r"functions.f1: given, but the outputs of 126 samples take"):
        small_fit(metrics=dp.MetricSettings(functions={"f1": macro_f1}))


def test_buffers_of_the_averaged_model_are_used():
    """Batch norm in evaluation mode with averaged statistics, as in `result.model`."""
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    test = client_pairs(clients=1, size=50, seed=9)[0]
    collected = []

    def keep(outputs, targets):
        collected.append(outputs.clone())
        return 0.0

    result = small_fit(model, test=test, metrics=dp.MetricSettings(functions={"keep": keep}))
    with torch.no_grad():
        torch.testing.assert_close(result.model.eval()(test[0]), collected[-1], rtol=1e-5, atol=1e-6)


def test_user_columns_leave_out_labels_and_perplexities():
    assert user_columns([{"seed": 1, "trial": 1, "perplexity:x": 2.0}, {"seed": 1, "f1": 0.0}]) == ("f1",)
