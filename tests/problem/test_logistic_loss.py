"""Runs with the logistic loss: registered models have one output, and metrics equal those computed by NumPy."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from depositum.runs import build_problem, load
from tests.support.small_runs import train, write_config

TRAIN, TEST = 64, 40


@pytest.fixture
def labelled(tmp_path: Path) -> dict[str, np.ndarray]:
    """`mine.npz`: four features, noisy labels of two half-spaces, 3/8 of them 1."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((TRAIN + TEST, 4))
    y = (x[:, 0] + 0.5 * rng.standard_normal(len(x)) > 0.3).astype(np.int64)
    arrays = {"x": x[:TRAIN], "y": y[:TRAIN], "x_test": x[TRAIN:], "y_test": y[TRAIN:]}
    np.savez(tmp_path / "mine.npz", **arrays)
    return arrays


def config(path: Path, **changes: object) -> Path:
    problem = {"dataset": "mine.npz", "loss": "logistic", "partition": "iid", **changes}
    return write_config(path / "c.toml", problem=problem, run={"dtype": "float64"}, metrics={"smoothness": "measure"})


def test_metrics_equal_those_of_numpy(labelled: dict[str, np.ndarray], tmp_path: Path) -> None:
    """The loss log(1 + e^∓z) over all samples, the accuracy by the sign of z, and h of the weights of one output."""
    result, _ = train(config(tmp_path), tmp_path / "run")
    model = load_file(tmp_path / "run" / "model.safetensors")
    assert {name: value.shape for name, value in model.items()} == {"linear.weight": (1, 4), "linear.bias": (1,)}

    def measured(part: str) -> tuple[float, float]:
        x, y = labelled[f"x{part}"].astype(np.float32).astype(np.float64), labelled[f"y{part}"]
        z = x @ model["linear.weight"][0] + model["linear.bias"][0]
        return float(np.mean(np.logaddexp(0, np.where(y == 1, -z, z)))), float(np.mean((z > 0) == (y == 1)))

    last = result.history.records[-1]
    assert last["iteration"] == 20
    assert last["train_loss"] == pytest.approx(measured("")[0], rel=1e-6)
    assert last["test_loss"] == pytest.approx(measured("_test")[0], rel=1e-6)
    assert last["test_accuracy"] == pytest.approx(measured("_test")[1], abs=1e-12)
    h = sum(float(np.abs(value).sum()) for value in model.values())
    assert last["phi"] == pytest.approx(last["train_loss"] + 1e-3 * h, rel=1e-6)
    assert last["test_accuracy"] > 0.7 > max(np.mean(labelled["y_test"]), 1 - np.mean(labelled["y_test"]))
    assert last["s"] > 0  # with L = ¼ λ_max in closed form


@pytest.mark.parametrize("model", ["linear", "mlp", "cnn", "resnet18"])
def test_every_registered_model_has_one_output(tmp_path: Path, model: str) -> None:
    """On 8×8 images: the last layer has one row, in the model and in the start of each seed."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "mine.npz", x=rng.random((12, 1, 8, 8)), y=np.arange(12) % 2)
    problem = build_problem([load(config(tmp_path, model=model))])
    assert list(problem.model.parameters())[-1].shape == (1,)
    assert all(len(trial.start) == problem.layout.size for trial in problem.trials)


def test_a_user_defined_model_is_given_the_number_of_classes(labelled: dict[str, np.ndarray], tmp_path: Path) -> None:
    """Not the number of outputs: it may need the classes for something else."""
    path = config(tmp_path, model="mymodel:model")
    (tmp_path / "mymodel.py").write_text(
        "from torch import nn\ndef model(shape, classes):\n    assert classes == 2\n    return nn.Linear(4, 1)\n"
    )
    assert build_problem([load(path)]).layout.size == 5


def test_combined_configurations_have_one_output(labelled: dict[str, np.ndarray], tmp_path: Path) -> None:
    """Seeds that only the second configuration has start with a model of the same size."""
    path = config(tmp_path)
    configs = [load(path, (f"run.seeds=[{seed}]",)) for seed in (0, 1)]
    assert [len(trial.start) for trial in build_problem(configs).trials] == [5, 5]
