"""The oracle's gradients against plain torch: one client at a time, with `nn.Module` and `loss.backward()`."""

import pytest
import torch
from torch import nn

from depositum.data import Samples
from depositum.errors import ConfigError
from depositum.problem import Oracle, Problem, row_model
from tests.support.oracle_problems import (
    MODELS,
    SIZES,
    FunctionalDropout,
    Permuting,
    begin,
    make_problem,
    oracle_of,
    plain_gradient,
    plain_model,
    points,
    row_buffers,
)

# Gradients


@pytest.mark.parametrize("backend", ["loop", "channels-last", "vmap"])
@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("branching", "spectral")])
def test_minibatch_gradients_equal_plain_autograd(name, backend):
    """For every row, at different points and on different samples, two trials at once; to 1e-12."""
    oracle = oracle_of(name, seeds=(0, 1), backend=backend)
    x, batch = points(oracle), oracle.sample()
    before = [row_buffers(oracle, row) for row in range(oracle.rows)]
    g = oracle.grad(x, batch)
    assert g.shape == x.shape
    assert oracle.evaluations == 4
    for row in range(oracle.rows):
        model = plain_model(oracle, x[row], before[row]).train()
        indices = batch.indices[row]
        expected = plain_gradient(model, oracle.problem.train.inputs[indices], oracle.problem.train.targets[indices])
        torch.testing.assert_close(g[row], expected, rtol=1e-12, atol=1e-12)
        for key, buffer in model.named_buffers():
            torch.testing.assert_close(oracle.buffers[key][row], buffer, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["branching", "spectral"])
def test_models_that_cannot_be_batched_run_in_the_loop(name):
    """`auto` detects them; gradients, and buffers that are assigned rather than written to, are those of torch."""
    with pytest.warns(RuntimeWarning, match="one after another"):
        oracle = oracle_of(name)
    assert oracle.model.backend == "loop"
    x, batch = points(oracle), oracle.sample()
    before = [row_buffers(oracle, row) for row in range(oracle.rows)]
    g = oracle.grad(x, batch)
    for row in range(oracle.rows):
        model = plain_model(oracle, x[row], before[row]).train()
        indices = batch.indices[row]
        expected = plain_gradient(model, oracle.problem.train.inputs[indices], oracle.problem.train.targets[indices])
        torch.testing.assert_close(g[row], expected, rtol=1e-12, atol=1e-12)
        for key, buffer in model.named_buffers():
            torch.testing.assert_close(oracle.buffers[key][row], buffer, rtol=1e-12, atol=1e-12)
    with pytest.raises(ConfigError, match="^backend: 'vmap' given, but the model needs 'loop'"):
        oracle_of(name, backend="vmap")


def test_only_applicable_backends_are_candidates(monkeypatch):
    """Fails if an image layout is measured for a model without images, or a loop is preferred to one batched call."""
    offered = {}

    def choose(run, candidates, rows):
        offered[rows] = candidates
        return candidates[0]

    monkeypatch.setattr(row_model, "fastest_backend", choose)
    monkeypatch.setattr(row_model, "_fastest_backends", {})
    assert oracle_of("mlp", seeds=(0,)).model.backend == "vmap"
    assert oracle_of("cnn", seeds=(0, 1)).model.backend == "vmap"
    assert list(offered.values()) == [["vmap", "loop"], ["vmap", "channels-last", "loop"]]


@pytest.mark.parametrize("backend", ["loop", "channels-last", "vmap"])
def test_a_batch_at_two_points_updates_buffers_once(backend):
    """For recursive momentum: the same samples at both points, batch statistics of the first only."""
    oracle = oracle_of("residual", backend=backend)
    x, other, batch = points(oracle), points(oracle, seed=1), oracle.sample()
    oracle.grad(x, batch)
    once = {k: b.clone() for k, b in oracle.buffers.items()}
    second = oracle.grad(other, batch)
    assert oracle.evaluations == 8
    for name, buffer in oracle.buffers.items():
        assert torch.equal(buffer, once[name])
    assert oracle.buffers["bn1.num_batches_tracked"].tolist() == [1, 1, 1]
    for row in range(oracle.rows):
        indices = batch.indices[row]
        model = plain_model(oracle, other[row], row_buffers(oracle, row)).train()
        expected = plain_gradient(model, oracle.problem.train.inputs[indices], oracle.problem.train.targets[indices])
        torch.testing.assert_close(second[row], expected, rtol=1e-12, atol=1e-12)
    oracle.grad(x, oracle.sample())
    assert oracle.buffers["bn1.num_batches_tracked"].tolist() == [2, 2, 2]


@pytest.mark.parametrize("backend", ["loop", "channels-last", "vmap"])
def test_buffers_that_are_assigned_are_updated(backend):
    """`self.seen = self.seen + 1` replaces the tensor instead of writing to it; each row still has its own count."""

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 3)
            self.register_buffer("seen", torch.zeros(()), persistent=False)

        def forward(self, x):
            if self.training:
                self.seen = self.seen + x.detach().sum()
            return self.linear(x)

    problem = make_problem(Counting())
    oracle = Oracle(problem, 4, dtype=torch.float64, backend=backend)
    totals = torch.zeros(3, dtype=torch.float64)
    for t in range(3):
        begin(oracle, t)
        batch = oracle.sample()
        oracle.grad(oracle.start(), batch)
        totals += problem.train.inputs[batch.indices].sum((1, 2))
    torch.testing.assert_close(oracle.buffers["seen"], totals)
    model = problem.averaged_model(oracle.start()[0], {k: b[0] for k, b in oracle.average_buffers().items()})
    torch.testing.assert_close(model.seen, totals.mean())


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_dropout_is_a_function_of_seed_client_and_iteration(backend):
    """Reproducible, different across clients and iterations, and the same for one batch evaluated twice."""
    model = nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.5), nn.Linear(40, 3))
    problem = make_problem(model, sizes=(5, 5, 5), seeds=(0, 1))
    same = Samples(problem.train.inputs[:1].expand(15, -1), problem.train.targets[:1].expand(15))
    problem = Problem(model, problem.loss, same, problem.trials)  # all samples are equal: only the masks differ

    def gradients(oracle, t):
        begin(oracle, t)
        batch = oracle.sample()
        first = oracle.grad(oracle.start()[:1].expand(oracle.rows, -1), batch)
        again = oracle.grad(oracle.start()[:1].expand(oracle.rows, -1), batch)
        assert torch.equal(first, again)
        return first

    oracle = Oracle(problem, 2, dtype=torch.float64, backend=backend)
    torch.manual_seed(0)
    one, two = gradients(oracle, 1), gradients(oracle, 2)
    drawn = torch.rand(3)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(3), drawn)  # torch's generator is unchanged
    every = torch.cat([one, two])
    assert len(torch.unique(every, dim=0)) == 12
    other = Oracle(problem, 2, dtype=torch.float64, backend=backend, clients=[1, 2])
    torch.manual_seed(17)
    assert torch.equal(gradients(other, 2), two.view(2, 3, -1)[:, 1:].reshape(4, -1))
    assert torch.equal(gradients(other, 1), one.view(2, 3, -1)[:, 1:].reshape(4, -1))


def test_dropout_is_off_in_evaluation():
    """Full gradients and losses are those of the model in evaluation mode."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    oracle = Oracle(make_problem(model), 2, dtype=torch.float64)
    x = points(oracle)
    full = oracle.full_grad(x)
    for row, part in enumerate(oracle.problem.trials[0].parts):
        plain = plain_model(oracle, x[row], {}).eval()
        expected = plain_gradient(plain, oracle.problem.train.inputs[part], oracle.problem.train.targets[part])
        torch.testing.assert_close(full[row], expected, rtol=1e-12, atol=1e-12)


def test_randomness_without_a_module_is_batched():
    """`F.dropout` in a user-defined forward draws the same masks in every backend, whatever torch's generator does."""
    found, problem = {}, make_problem(FunctionalDropout())
    for backend in ("loop", "vmap"):
        oracle = Oracle(problem, 4, dtype=torch.float64, backend=backend)
        assert oracle.model.is_random
        assert not oracle.model.uses_generators
        torch.manual_seed(1)
        found[backend] = oracle.grad(points(oracle), oracle.sample())
    torch.testing.assert_close(found["loop"], found["vmap"], rtol=1e-12, atol=1e-12)


def test_other_randomness_is_detected_and_seeded():
    """`torch.randperm` is detected by the state of torch's generator, which is seeded for each row in the loop."""
    with pytest.warns(RuntimeWarning, match="It draws random numbers from a generator"):
        oracle = Oracle(make_problem(Permuting()), 4, dtype=torch.float64)
    assert oracle.model.uses_generators
    assert oracle.model.backend == "loop"
    x, batch = points(oracle), oracle.sample()
    torch.manual_seed(1)
    first = oracle.grad(x, batch)
    torch.manual_seed(2)
    assert torch.equal(oracle.grad(x, batch), first)
    with pytest.raises(ConfigError, match="^backend: 'vmap' given, but the model needs 'loop': it draws random"):
        Oracle(make_problem(Permuting()), 4, backend="vmap")


def test_building_an_oracle_has_no_side_effects():
    """It does not change torch's generator, the user's model or its buffers."""
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    oracle = Oracle(make_problem(model), 2)
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert oracle.buffers["1.num_batches_tracked"].tolist() == [0, 0, 0]


# Full gradients


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("per_pass", [1, 5, 7, 12, 1000])
@pytest.mark.parametrize("name", ["linear", "residual"])
def test_full_gradients_are_means_over_the_clients_samples(name, per_pass, weighting):
    """For unequal clients, any chunking, in evaluation mode; with weighting by samples, times n·N_i/N."""
    oracle = oracle_of(name, seeds=(0, 1), weighting=weighting)
    begin(oracle, 1)
    oracle.grad(oracle.start(), oracle.sample())  # gives batch norm some statistics
    before = {k: b.clone() for k, b in oracle.buffers.items()}
    oracle.samples_per_pass = per_pass
    begin(oracle, 2)
    x = points(oracle)
    full = oracle.full_grad(x)
    assert oracle.evaluations == sum(SIZES) / 3
    assert all(torch.equal(b, before[k]) for k, b in oracle.buffers.items())
    parts = [part for trial in oracle.problem.trials for part in trial.parts]
    for row, part in enumerate(parts):
        model = plain_model(oracle, x[row], row_buffers(oracle, row)).eval()
        share = 3 * len(part) / sum(SIZES) if weighting == "samples" else 1.0
        expected = share * plain_gradient(model, oracle.problem.train.inputs[part], oracle.problem.train.targets[part])
        torch.testing.assert_close(full[row], expected, rtol=1e-12, atol=1e-12)


def test_a_full_batch_is_the_full_gradient():
    oracle = oracle_of("mlp", batch_size="full")
    x = points(oracle)
    assert torch.equal(oracle.grad(x, oracle.sample()), oracle.full_grad(x))


def test_weighting_by_samples_makes_the_uniform_average_the_pooled_gradient():
    """Σ (1/n) n·N_i/N ∇f_i is the gradient over all samples; mini-batches have the same scale."""
    pooled = oracle_of("mlp", weighting="samples")
    uniform = oracle_of("mlp", weighting="uniform")
    x = points(pooled)[:1].expand(3, -1)
    model = plain_model(pooled, x[0], {})
    expected = plain_gradient(model, pooled.problem.train.inputs, pooled.problem.train.targets)
    torch.testing.assert_close(pooled.full_grad(x).mean(0), expected, rtol=1e-12, atol=1e-12)
    shares = torch.tensor(SIZES, dtype=torch.float64)[:, None] * 3 / sum(SIZES)
    torch.testing.assert_close(pooled.grad(x, pooled.sample()), shares * uniform.grad(x, uniform.sample()))


def test_minibatch_gradients_are_unbiased():
    """The mean over 400 batches is the full gradient, within five standard errors (Assumption 3)."""
    oracle = oracle_of("linear", batch_size=4)
    x = points(oracle)
    draws = []
    for t in range(400):
        begin(oracle, t)
        draws.append(oracle.grad(x, oracle.sample()))
    draws = torch.stack(draws)
    error = (draws.mean(0) - oracle.full_grad(x)).abs() / (draws.std(0) / 400**0.5)
    assert error.max() < 5


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("per_pass", [1, 300, 700, 100_000])
@pytest.mark.parametrize("backend", ["loop", "channels-last", "vmap"])
def test_global_gradients_are_gradients_of_f_at_every_row(backend, per_pass, weighting):
    """∇f(x_i) of f = (1/n) Σ_j f_j, with the partition of each trial and the buffers of each row."""
    oracle = oracle_of("residual", seeds=(0, 1), backend=backend, weighting=weighting)
    oracle.grad(oracle.start(), oracle.sample())
    oracle.samples_per_pass = per_pass
    x = points(oracle)
    found = oracle.global_grad(x)
    train = oracle.problem.train
    for row in range(oracle.rows):
        model = plain_model(oracle, x[row], row_buffers(oracle, row)).eval()
        expected = torch.zeros_like(x[row])
        for part in oracle.problem.trials[row // 3].parts:
            share = len(part) / sum(SIZES) if weighting == "samples" else 1 / 3
            expected += share * plain_gradient(model, train.inputs[part], train.targets[part])
        torch.testing.assert_close(found[row], expected, rtol=1e-12, atol=1e-12)


def test_clients_that_agree_are_evaluated_once(monkeypatch):
    """After a mean, ∇f(x_i) costs one gradient per trial; if buffers differ, one per client."""
    oracle = oracle_of("residual", seeds=(0, 1), backend="vmap")
    x = points(oracle)[[0, 0, 0, 3, 3, 3]]
    counts = []
    plain = oracle.model.gradients
    monkeypatch.setattr(oracle.model, "gradients", lambda z, *a, **k: counts.append(len(z)) or plain(z, *a, **k))
    once = oracle.global_grad(x)
    assert set(counts) == {2}
    counts.clear()
    monkeypatch.setattr(oracle, "_clients_agree", lambda _: False)
    torch.testing.assert_close(once, oracle.global_grad(x), rtol=1e-12, atol=1e-12)
    assert set(counts) == {6}
    monkeypatch.undo()
    oracle.grad(x, oracle.sample())
    assert not oracle._clients_agree(x)
