"""`problem.holdout`: a share of the training data replaces the test data."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from depositum.data import Dataset, Samples, hold_out, load
from depositum.errors import ConfigError, DataError
from depositum.runs import build_problem, parse, resolve
from tests.support.small_runs import train, write_config


def numbered(labels: list[int], clients: list[list[int]] | None = None) -> Dataset:
    """Samples whose only feature is their index."""
    inputs = torch.arange(len(labels), dtype=torch.float32)[:, None]
    samples = Samples(inputs, torch.tensor(labels))
    test = Samples(torch.full((3, 1), -1.0), torch.zeros(3, dtype=torch.int64))
    owned = tuple(np.array(own) for own in clients) if clients else None
    return Dataset("numbered", samples, test, classes=max(labels) + 1, clients=owned)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=8, max_size=60), st.floats(0.1, 0.6), st.integers(0, 5))
def test_every_sample_is_either_trained_on_or_held_out(labels: list[int], share: float, seed: int) -> None:
    """No sample is in both parts or in neither, each class contributes its share, targets stay with their inputs."""
    dataset = numbered(labels)
    counts = np.bincount(labels)
    if not any(round(share * int(c)) for c in counts) or all(round(share * int(c)) == c for c in counts):
        with pytest.raises(DataError, match="leaves none"):
            hold_out(dataset, share, seed)
        return
    part = hold_out(dataset, share, seed)
    assert part.test is not None
    trained, held_out = part.train.inputs[:, 0].long().tolist(), part.test.inputs[:, 0].long().tolist()
    assert sorted(trained + held_out) == list(range(len(labels)))
    assert [labels[k] for k in trained] == part.train.targets.tolist()
    assert [labels[k] for k in held_out] == part.test.targets.tolist()
    for label, count in enumerate(counts):
        assert (part.test.targets == label).sum() == round(share * int(count))


def test_the_same_seed_holds_out_the_same_samples() -> None:
    data = load("digits")
    one, same, other = (hold_out(data, 0.1, seed) for seed in (0, 0, 1))
    assert torch.equal(one.test.inputs, same.test.inputs)
    assert not torch.equal(one.test.inputs, other.test.inputs)


def test_clients_defined_by_the_data_keep_their_remaining_samples() -> None:
    dataset = numbered([0] * 12, clients=[[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]])
    part = hold_out(dataset, 0.5, 0)
    trained = part.train.inputs[:, 0].long().numpy()
    assert part.clients is not None
    assert [set(trained[own]) for own in part.clients] == [
        set(trained) & set(range(6)),
        set(trained) & set(range(6, 12)),
    ]


def test_all_seeds_hold_out_the_same_samples() -> None:
    """No client of any seed has a held-out sample."""
    config = parse({"problem": {"holdout": 0.2, "clients": 3}, "run": {"seeds": [0, 1]}})
    problem = build_problem([resolve(config)])
    digits = load("digits")
    assert len(problem.train) + len(problem.test) == len(digits.train)
    for trial in problem.trials:
        assert sum(map(len, trial.parts)) == len(problem.train)
    unseen = {row.numpy().tobytes() for row in digits.test.inputs}
    assert sum(row.numpy().tobytes() in unseen for row in problem.test.inputs) < 5  # the test data is not used


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5])
def test_an_invalid_share_is_rejected(share: float) -> None:
    with pytest.raises(ConfigError, match=r"problem.holdout: .* given; it must be a number in \[0, 1\)"):
        resolve(parse({"problem": {"holdout": share}}))


@pytest.mark.slow
def test_a_share_of_zero_changes_nothing(tmp_path: Path) -> None:
    """The history is that of a run without the setting; that of another share is different."""
    config = write_config(tmp_path / "c.toml")
    plain, _ = train(config, tmp_path / "a")
    zero, _ = train(config, tmp_path / "b", overrides=("problem.holdout=0.0",))
    some, _ = train(config, tmp_path / "c", overrides=("problem.holdout=0.25",))
    columns = ["train_loss", "test_loss"]
    assert plain.history.frame[columns].equals(zero.history.frame[columns])
    assert not plain.history.frame[columns].equals(some.history.frame[columns])
