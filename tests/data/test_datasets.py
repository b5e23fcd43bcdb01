"""Datasets by name: embedded and synthetic ones, published ones if their files are present, and invalid names."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from depositum.data import DATASETS, check, datasets, load, status
from depositum.errors import ConfigError, DataError


def test_digits_are_complete_with_a_fixed_stratified_split():
    """Fails if a digit is lost or duplicated, scaling is not by 16, or a class is not split in proportion."""
    data, again = load("digits"), load("digits")
    x, y = load_digits(return_X_y=True)
    assert data.train.inputs.shape == (1437, 1, 8, 8)
    assert data.test.inputs.shape == (360, 1, 8, 8)
    assert (data.train.inputs.dtype, data.train.targets.dtype, data.classes) == (torch.float32, torch.int64, 10)
    inputs = np.concatenate([data.train.inputs.reshape(-1, 64), data.test.inputs.reshape(-1, 64)])
    labels = np.concatenate([data.train.targets, data.test.targets])
    ours = sorted(map(tuple, np.column_stack([inputs * 16, labels]).tolist()))
    assert ours == sorted(map(tuple, np.column_stack([x, y]).tolist()))
    assert np.abs(np.bincount(data.test.targets) - np.bincount(y) / 5).max() < 1
    assert torch.equal(data.train.inputs, again.train.inputs)
    assert torch.equal(data.test.targets, again.test.targets)


def test_synthetic_follows_its_parameters():
    """Sizes, balance, unit variance around the centres, and centres at distance `separation` from the origin."""
    data = load({"synthetic": {"samples": 40_000, "features": 6, "classes": 4, "separation": 5.0, "seed": 3}})
    assert data.train.inputs.shape == (40_000, 6)
    assert data.test.inputs.shape == (8_000, 6)
    assert data.classes == 4
    assert data.train.targets.bincount().tolist() == [10_000] * 4
    assert data.test.targets.bincount().tolist() == [2_000] * 4
    for k in range(4):
        cluster = data.train.inputs[data.train.targets == k]
        assert abs(float(cluster.mean(0).norm()) - 5.0) < 0.05
        assert torch.allclose(torch.cov(cluster.T), torch.eye(6), atol=0.06)
        # The test part has the same centres.
        assert torch.allclose(data.test.inputs[data.test.targets == k].mean(0), cluster.mean(0), atol=0.12)


def test_synthetic_depends_on_its_seed_only():
    first, again, other = (load({"synthetic": {"seed": seed}}) for seed in (1, 1, 2))
    assert torch.equal(first.train.inputs, again.train.inputs)
    assert not torch.equal(first.train.inputs, other.train.inputs)
    assert not torch.equal(first.train.targets, other.train.targets)


def test_synthetic_without_separation_cannot_be_learnt():
    """Fails if labels leak into the inputs other than through the centres."""
    data = load({"synthetic": {"samples": 20_000, "separation": 0.0, "classes": 2, "features": 3}})
    means = [data.train.inputs[data.train.targets == k].mean(0) for k in range(2)]
    assert (means[0] - means[1]).abs().max() < 0.06


@pytest.mark.parametrize(
    ("spec", "key", "message"),
    [
        ("mnits", "dataset", "did you mean 'mnist'"),
        ("cifar-10", "dataset", "did you mean 'cifar10'"),
        ("nothing at all", "dataset", "or a path to a .npz file or a folder"),
        ({"synthetic": {"sampels": 3}}, "dataset.synthetic.sampels", "did you mean 'samples'"),
        ({"synthetic": {"samples": 0}}, "dataset.synthetic.samples", "0 given"),
        ({"synthetic": {"classes": 1}}, "dataset.synthetic.classes", "1 given"),
        ({"synthetic": {"separation": float("inf")}}, "dataset.synthetic.separation", "inf given"),
        ({"synthetic": {"samples": "many"}}, "dataset.synthetic.samples", "'many' given"),
        ({"digits": {"split": 3}}, "dataset.digits.split", "no arguments are allowed"),
        ({"mnist": {}, "digits": {}}, "dataset", "with one name"),
        (5, "dataset", "5 given"),
    ],
)
def test_an_invalid_choice_is_rejected_before_anything_is_loaded(spec, key, message, monkeypatch):
    """Fails if `check` loads data, accepts the mistake, or names another key."""
    monkeypatch.setattr(datasets.downloads, "read", lambda name: pytest.fail("loaded"))
    with pytest.raises(ConfigError, match=message) as caught:
        check(spec)
    assert caught.value.key == key
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [n for n in DATASETS if not DATASETS.attribute(n, "path_arguments", ())])
def test_a_valid_name_is_accepted_without_loading(name, monkeypatch):
    monkeypatch.setattr(datasets.downloads, "read", lambda name: pytest.fail("loaded"))
    check(name)
    check({name: {}})


@pytest.mark.parametrize("spec", ["no/such.npz", "such.npz", "no/such", "./mnist", "no/{client}.npz"])
def test_an_error_names_the_path_that_does_not_exist(spec, tmp_path):
    with pytest.raises(DataError, match=str(tmp_path)):
        check(spec, base=tmp_path)
    with pytest.raises(DataError, match=str(tmp_path)):
        load(spec, base=tmp_path)


def test_a_pattern_is_checked_for_all_clients(tmp_path):
    for i in range(3):
        np.savez(tmp_path / f"{i}.npz", x=np.zeros((1, 1)), y=[0])
    check("{client}.npz", base=tmp_path, clients=3)
    with pytest.raises(DataError, match=r"3\.npz"):
        check("{client}.npz", base=tmp_path, clients=4)


def test_a_name_takes_precedence_over_a_folder(tmp_path):
    (tmp_path / "digits").mkdir()
    np.savez(tmp_path / "digits" / "0.npz", x=np.zeros((1, 1)), y=[0])
    assert len(load("digits", base=tmp_path).train) == 1437
    assert len(load("./digits", base=tmp_path).train) == 1


def real(name: str):
    """The dataset; the test is skipped if a file is missing, because tests download nothing."""
    [state] = [entry for entry in status() if entry.name == name]
    if state.missing:
        pytest.skip(f"{state.folder} has no {state.missing[0]} (set DEPOSITUM_DATA to another folder)")
    data = load(name)
    for samples in (data.train, data.test):
        assert samples.inputs.dtype == torch.float32
        assert samples.targets.dtype == torch.int64
        assert samples.inputs.min() == 0
        assert samples.inputs.max() == 1
    return data


def test_real_a9a():
    """The published counts; feature 123, which the test file never mentions, is the training file's last column."""
    data = real("a9a")
    assert data.train.inputs.shape == (32_561, 123)
    assert data.test.inputs.shape == (16_281, 123)
    assert data.train.targets.bincount().tolist() == [24_720, 7_841]
    assert data.test.targets.bincount().tolist() == [12_435, 3_846]
    assert data.train.inputs[:, 122].sum() == 1
    assert data.test.inputs[:, 122].sum() == 0
    # The file's first line: -1 3:1 11:1 14:1 19:1 39:1 42:1 55:1 64:1 67:1 73:1 75:1 76:1 80:1 83:1
    first = (data.train.inputs[0].nonzero().flatten() + 1).tolist()
    assert first == [3, 11, 14, 19, 39, 42, 55, 64, 67, 73, 75, 76, 80, 83]


def test_real_mnist():
    """The published counts, and the well-known moments 0.1307 and 0.3081 of the training pixels."""
    data = real("mnist")
    assert data.train.inputs.shape == (60_000, 1, 28, 28)
    assert data.test.inputs.shape == (10_000, 1, 28, 28)
    assert data.train.targets.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.test.targets.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert data.train.targets[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert data.train.inputs.mean().item() == pytest.approx(0.1307, abs=5e-5)
    assert data.train.inputs.std().item() == pytest.approx(0.3081, abs=5e-5)
    # A 5, with its bar at the top right and its bowl at the bottom left: rows and columns are not swapped.
    first = data.train.inputs[0, 0]
    assert first[5:8, 18:24].mean() > 0.5
    assert first[18:24, 18:24].mean() < 0.3


def test_real_fashion_mnist():
    """Balanced classes, and the well-known moments 0.2860 and 0.3530."""
    data = real("fashion-mnist")
    assert data.train.inputs.shape == (60_000, 1, 28, 28)
    assert data.test.inputs.shape == (10_000, 1, 28, 28)
    assert data.train.targets.bincount().tolist() == [6000] * 10
    assert data.test.targets.bincount().tolist() == [1000] * 10
    assert data.train.targets[:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]
    assert data.train.inputs.mean().item() == pytest.approx(0.2860, abs=5e-5)
    assert data.train.inputs.std().item() == pytest.approx(0.3530, abs=5e-5)


def test_real_cifar10():
    """Balanced classes, the well-known channel means in the order red, green, blue, and the first image's corner."""
    data = real("cifar10")
    assert data.train.inputs.shape == (50_000, 3, 32, 32)
    assert data.test.inputs.shape == (10_000, 3, 32, 32)
    assert data.train.targets.bincount().tolist() == [5000] * 10
    assert data.test.targets.bincount().tolist() == [1000] * 10
    assert data.train.targets[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert data.train.inputs.mean((0, 2, 3)).tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-5)
    assert (data.train.inputs[0, :, 0, 0] * 255).round().tolist() == [59, 62, 63]
