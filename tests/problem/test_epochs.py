"""Mini-batches in epochs: every sample once before any of them again, as a function of seed, client and iteration."""

import pytest
import torch
from torch import nn

import depositum as dp
from depositum.errors import ConfigError
from depositum.problem import Oracle
from tests.support.oracle_problems import SIZES, begin, make_problem


def drawn(oracle: Oracle, iterations: range) -> list[list[int]]:
    """The samples of each row in these iterations, in order."""
    rows: list[list[int]] = [[] for _ in range(oracle.rows)]
    for t in iterations:
        begin(oracle, t)
        indices = oracle.sample().indices
        assert indices is not None
        for row, own in zip(rows, indices.tolist(), strict=True):
            row += own
    return rows


def oracle_with(size: int, seeds: tuple[int, ...] = (0, 1), clients: list[int] | None = None) -> Oracle:
    problem = make_problem(nn.Linear(6, 3), seeds=seeds)
    return Oracle(problem, size, dtype=torch.float64, sampling="epochs", clients=clients)


@pytest.mark.parametrize("size", [1, 3, 4, 10])
def test_an_epoch_contains_every_sample_once(size: int) -> None:
    """From the first iteration on, for clients of unequal sizes and batches that divide them or not."""
    oracle = oracle_with(size)
    every = drawn(oracle, range(1, 40))
    parts = [part for trial in oracle.problem.trials for part in trial.parts]
    for row, part in zip(every, parts, strict=True):
        epochs = [tuple(row[k : k + len(part)]) for k in range(0, len(row) - len(part) + 1, len(part))]
        assert len(epochs) >= 3
        for epoch in epochs:
            assert sorted(epoch) == sorted(part.tolist())
        if len(part) == max(SIZES):  # of 9! orders; fewer samples have orders that repeat
            assert len(set(epochs)) == len(epochs)


def test_the_start_and_later_draws_have_epochs_of_their_own() -> None:
    """The start's batch comes from an earlier epoch, and a second draw in a step does not take samples of the first."""
    oracle = oracle_with(4, seeds=(0,))
    begin(oracle, 0)
    start = oracle.sample().indices
    assert start is not None
    assert all(set(own) <= set(part) for own, part in zip(start.tolist(), oracle.problem.trials[0].parts, strict=True))
    second: list[list[int]] = [[] for _ in range(3)]
    for t in range(1, 12):
        begin(oracle, t)
        oracle.sample()
        indices = oracle.sample().indices
        assert indices is not None
        for row, own in zip(second, indices.tolist(), strict=True):
            row += own
    for row, part in zip(second, oracle.problem.trials[0].parts, strict=True):
        assert sorted(row[: len(part)]) == sorted(part.tolist())
    assert second != drawn(oracle, range(1, 12))


def test_epochs_are_those_of_seed_and_client() -> None:
    """The same for one seed alone and where a process holds only some clients, and in any order of iterations."""
    every = drawn(oracle_with(3), range(1, 12))
    assert drawn(oracle_with(3, seeds=(1,)), range(1, 12)) == every[3:]
    assert drawn(oracle_with(3, clients=[1, 2]), range(1, 12)) == [every[k] for k in (1, 2, 4, 5)]
    assert drawn(oracle_with(3), range(7, 12)) == [row[18:] for row in every]


def test_full_gradients_of_an_epoch_average_to_that_of_its_batches() -> None:
    """The mean of an epoch's mini-batch gradients is the full gradient, exactly: no sample is left out."""
    oracle = Oracle(make_problem(nn.Linear(6, 3), sizes=(8, 8)), 4, dtype=torch.float64, sampling="epochs")
    x = oracle.start()
    parts = []
    for t in (1, 2):
        begin(oracle, t)
        parts.append(oracle.grad(x, oracle.sample()))
    torch.testing.assert_close((parts[0] + parts[1]) / 2, oracle.full_grad(x), rtol=1e-12, atol=1e-12)


def test_fit_takes_the_key_and_refuses_others() -> None:
    torch.manual_seed(0)
    model, clients = nn.Linear(6, 3), [(torch.randn(8, 6), torch.randint(0, 3, (8,))) for _ in range(3)]
    runs = {
        sampling: dp.fit(model, clients, batch_size=4, steps=3, sampling=sampling, progress=False)  # type: ignore[arg-type]
        for sampling in ("replacement", "epochs")
    }
    weights = [run.model.state_dict()["weight"] for run in runs.values()]
    assert not torch.equal(*weights)
    with pytest.raises(ConfigError, match=r"^sampling: 'epoch' given.*'epochs'"):
        dp.fit(model, clients, steps=3, sampling="epoch", progress=False)  # type: ignore[arg-type]
