"""The oracle: mini-batches, evaluation against a plain loop, and invalid problems."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

from depositum.data import Samples
from depositum.errors import ConfigError
from depositum.problem import Oracle, Problem, Trial, as_loss
from depositum.regularizers import L1, MCP
from tests.support.oracle_problems import (
    MODELS,
    SIZES,
    Tied,
    begin,
    make_problem,
    oracle_of,
    plain_model,
    points,
    row_buffers,
    samples,
    start_of,
)
from tests.support.seeded_problems import CLASSES, D_IN, seeded_problem

# Mini-batches


def test_batches_contain_the_clients_samples():
    """No client ever draws another client's sample; each of its own is drawn eventually."""
    oracle = oracle_of("linear", batch_size=50, seeds=(0, 1))
    parts = [set(part.tolist()) for trial in oracle.problem.trials for part in trial.parts]
    seen = [set() for _ in parts]
    for t in range(6):
        begin(oracle, t)
        for row, indices in enumerate(oracle.sample().indices.tolist()):
            seen[row] |= set(indices)
    assert seen == parts


def test_sampling_is_uniform_and_with_replacement():
    """Chi-square test of the counts over 400 batches; and batches contain repetitions, unlike a permutation."""
    oracle = oracle_of("linear", batch_size=9)
    counts = np.zeros(sum(SIZES))
    repeats = 0
    for t in range(400):
        begin(oracle, t)
        indices = oracle.sample().indices
        repeats += sum(len(set(row)) < 9 for row in indices.tolist())
        counts += np.bincount(indices.flatten().numpy(), minlength=sum(SIZES))
    for part in oracle.problem.trials[0].parts:
        assert stats.chisquare(counts[part]).pvalue > 1e-3
    assert repeats > 1190  # of 1,200; nine draws from nine without a repeat have probability 0.0009


def test_batches_of_clients_iterations_and_draws_differ():
    """Clients of equal size draw equal positions only by chance: (client, iteration, draw) share no randomness."""
    oracle = oracle_of("linear", batch_size=64, sizes=(50, 50, 50))
    owned = {int(index): k for part in oracle.problem.trials[0].parts for k, index in enumerate(part)}
    seen = []
    for t in (1, 2):
        begin(oracle, t)
        for _ in range(2):
            seen += [tuple(owned[i] for i in row) for row in oracle.sample().indices.tolist()]
    assert len(set(seen)) == 2 * 2 * 3
    table = np.corrcoef(np.array(seen)) - np.eye(12)
    assert np.abs(table).max() < 0.55  # 4.4 standard deviations of 64 independent pairs


def test_a_batch_depends_only_on_seed_client_iteration_and_draw():
    """The same for seeds run jointly or separately, for a subset of the clients, in any order of calls."""
    shape, factory = MODELS["linear"]
    model = factory()
    joint = Oracle(make_problem(model, shape, seeds=(5, 2, 8)), 6)
    n = len(SIZES)

    def draw(oracle, t, number):
        begin(oracle, t)
        for _ in range(number):
            oracle.sample()
        return oracle.sample().indices

    expected = {(t, number): draw(joint, t, number) for t in (0, 3, 70_000) for number in (0, 1)}
    separate = [Oracle(make_problem(model, shape, seeds=(seed,)), 6) for seed in (5, 2, 8)]
    some = Oracle(make_problem(model, shape, seeds=(5, 2, 8)), 6, clients=[1, 2])
    for (t, number), indices in reversed(expected.items()):
        for k, oracle in enumerate(separate):
            assert torch.equal(draw(oracle, t, number), indices[k * n : (k + 1) * n])
        assert torch.equal(draw(some, t, number), indices.view(3, n, 6)[:, 1:].reshape(6, 6))


def test_a_larger_batch_starts_with_the_smaller_one():
    """`size` overrides the batch size; samples depend on draw and column only, so the first columns agree."""
    oracle = oracle_of("linear", batch_size=3)
    small = oracle.sample().indices
    begin(oracle, 0)
    assert torch.equal(oracle.sample(8).indices[:, :3], small)
    begin(oracle, 0)
    assert oracle.sample("full").indices is None
    assert not torch.equal(oracle.sample().indices, small)  # the second draw, whatever the first was


# Evaluation


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("per_pass", [1, 3, 1000])
@pytest.mark.parametrize("backend", ["loop", "channels-last", "vmap"])
def test_evaluation_equals_a_plain_loop(backend, per_pass, weighting):
    """The training loss is weighted as f, test loss and accuracy are means; one model or several per trial."""
    oracle = oracle_of("residual", seeds=(0, 1), backend=backend, weighting=weighting)
    oracle.grad(oracle.start(), oracle.sample())
    oracle.samples_per_pass = per_pass
    x = points(oracle)
    train, test = oracle.problem.train, oracle.problem.test
    train_loss, train_accuracy = oracle.evaluate(x, oracle.buffers, "train")
    test_loss, test_accuracy = oracle.evaluate(x, oracle.buffers, "test")
    for row in range(oracle.rows):
        model = plain_model(oracle, x[row], row_buffers(oracle, row)).eval()
        with torch.no_grad():
            train_outputs, test_outputs = model(train.inputs), model(test.inputs)
        losses = F.cross_entropy(train_outputs, train.targets, reduction="none")
        parts = oracle.problem.trials[row // 3].parts
        f = losses.mean() if weighting == "samples" else sum(losses[part].mean() for part in parts) / 3
        torch.testing.assert_close(train_loss[row], f, rtol=1e-12, atol=0)
        torch.testing.assert_close(test_loss[row], F.cross_entropy(test_outputs, test.targets), rtol=1e-12, atol=0)
        assert train_accuracy[row] == (train_outputs.argmax(1) == train.targets).double().mean()
        assert test_accuracy[row] == (test_outputs.argmax(1) == test.targets).double().mean()
    means = x.view(2, 3, -1).mean(1)
    once, _ = oracle.evaluate(means, oracle.average_buffers(), "test")
    assert once.shape == (2,)


@pytest.mark.parametrize("per_pass", [1, 1000])
def test_trials_are_evaluated_on_their_own_test_samples(per_pass):
    """A trial without test indices is evaluated on all samples; the shares of all processes add up to the total.

    Fails if a trial is evaluated on another's samples, or a share is divided by its own size.
    """
    test_indices = [np.array([4, 1]), None]
    plain = oracle_of("residual", seeds=(0, 1))
    pairs = zip(plain.problem.trials, test_indices, strict=True)
    trials = tuple(replace(trial, test_indices=indices) for trial, indices in pairs)
    oracle = Oracle(replace(plain.problem, trials=trials), 4, dtype=torch.float64)
    oracle.samples_per_pass = per_pass
    x, test = points(oracle), oracle.problem.test
    loss, accuracy = oracle.evaluate(x, oracle.buffers, "test")
    for row in range(oracle.rows):
        model, indices = plain_model(oracle, x[row], row_buffers(oracle, row)).eval(), test_indices[row // 3]
        mine = test if indices is None else test.take(indices)
        with torch.no_grad():
            scores = model(mine.inputs)
        torch.testing.assert_close(loss[row], F.cross_entropy(scores, mine.targets), rtol=1e-12, atol=0)
        assert accuracy[row] == pytest.approx(float((scores.argmax(1) == mine.targets).double().mean()), rel=1e-12)
    for some in (oracle, plain):
        complete = some.evaluate(x, some.buffers, "test")
        for size in (2, 5):
            shares = [some.evaluate(x, some.buffers, "test", (rank, size)) for rank in range(size)]
            for total, parts in zip(complete, zip(*shares, strict=True), strict=True):
                torch.testing.assert_close(sum(parts), total, rtol=1e-12, atol=0)


def test_losses_are_summed_in_float64():
    """For float32 models too: a million float32 additions of 0.1 are off by a percent."""
    count = 200_000
    model = nn.Linear(1, 1, bias=False)
    train = Samples(torch.ones(count, 1), torch.full((count,), 0.5) ** 0.5)
    problem = Problem(model, as_loss("mse"), train, (Trial(0, torch.zeros(1), [np.arange(count)]),))
    oracle = Oracle(problem, 1)
    oracle.samples_per_pass = 64
    loss, accuracy = oracle.evaluate(oracle.start(), {}, "train")
    assert loss.dtype == torch.float64
    torch.testing.assert_close(loss.item(), 0.25, rtol=1e-6, atol=0)
    assert torch.isnan(accuracy).all()  # the squared error does not define correct answers


def test_buffers_are_averaged_within_each_trial():
    """Batch-norm statistics by the mean over clients; counters, which are integers, by the rounded mean."""
    oracle = oracle_of("residual", seeds=(0, 1))
    for t in range(3):
        begin(oracle, t)
        oracle.grad(points(oracle, t), oracle.sample())
    oracle.buffers["bn1.num_batches_tracked"][:3] = torch.tensor([3, 4, 4])
    mean = oracle.average_buffers()
    for trial in range(2):
        rows = slice(3 * trial, 3 * trial + 3)
        torch.testing.assert_close(mean["bn1.running_mean"][trial], oracle.buffers["bn1.running_mean"][rows].mean(0))
    assert mean["bn1.num_batches_tracked"].tolist() == [4, 3]
    assert mean["bn1.num_batches_tracked"].dtype == torch.int64


@pytest.mark.parametrize("backend", ["loop", "channels-last", "vmap"])
def test_evaluation_does_not_change_buffers(backend):
    """Not even for a model that writes to its buffers in evaluation mode."""

    class Careless(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 3)
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls += 1
            return self.linear(x)

    oracle = Oracle(make_problem(Careless()), 2, backend=backend)
    x = oracle.start()
    oracle.evaluate(x, oracle.buffers, "train")
    oracle.evaluate(x, oracle.buffers, "test")
    oracle.full_grad(x)
    oracle.global_grad(x)
    assert oracle.buffers["calls"].tolist() == [[0.0]] * 3


# Subsets of clients


def test_a_subset_of_clients_has_the_rows_of_all():
    """Gradients of clients [1, 2] in both trials equal those rows of all clients; partial losses add up to f."""
    shape, factory = MODELS["residual"]
    problem = make_problem(factory(), shape, seeds=(0, 1), weighting="samples")
    every = Oracle(problem, 4, dtype=torch.float64)
    some = Oracle(problem, 4, dtype=torch.float64, clients=[1, 2])
    rest = Oracle(problem, 4, dtype=torch.float64, clients=[0])
    keep = [1, 2, 4, 5]
    x = points(every)
    for oracle in (every, some):
        begin(oracle, 7)
    g = every.grad(x, every.sample())
    torch.testing.assert_close(some.grad(x[keep], some.sample()), g[keep], rtol=1e-12, atol=1e-12)
    for name, buffer in some.buffers.items():
        torch.testing.assert_close(buffer, every.buffers[name][keep], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(some.full_grad(x[keep]), every.full_grad(x)[keep], rtol=1e-12, atol=1e-12)
    mean, buffers = x.view(2, 3, -1).mean(1), every.average_buffers()
    parts = [oracle.evaluate(mean, buffers, "train")[0] for oracle in (some, rest)]
    torch.testing.assert_close(parts[0] + parts[1], every.evaluate(mean, buffers, "train")[0], rtol=1e-12, atol=0)


# Prox, dtype, and invalid settings


def test_prox_has_parameter_step_times_beta():
    """The prox of αβh: soft thresholding at αβ for l1, also with a step per row; the identity if β = 0."""
    model = nn.Linear(6, 3)
    z = torch.randn(3, 21, dtype=torch.float64)
    oracle = Oracle(make_problem(model, regularizer=L1(), beta=0.2), 2, dtype=torch.float64)
    soft = z.sign() * (z.abs() - 0.5 * 0.2).clamp(min=0)
    torch.testing.assert_close(oracle.prox(z, 0.5), soft, rtol=1e-14, atol=0)
    steps = torch.tensor([[0.5], [0.0], [1.0]], dtype=torch.float64)
    expected = z.sign() * (z.abs() - steps * 0.2).clamp(min=0)
    torch.testing.assert_close(oracle.prox(z, steps), expected, rtol=1e-14, atol=0)
    off = Oracle(make_problem(model, regularizer=MCP(), beta=0.0), 2, dtype=torch.float64)
    assert off.prox(z, 100.0) is z
    assert off.problem.prox_modulus == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_everything_is_in_the_state_dtype(dtype):
    """Whatever the dtype of the model and data; integer inputs (tokens) and targets stay integers."""
    model = nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(12, 3), nn.BatchNorm1d(3)).double()
    train = Samples(torch.arange(80).view(20, 4) % 9, torch.arange(20) % 3)
    problem = Problem(model, as_loss("cross-entropy"), train, (Trial(0, start_of(model), [np.arange(20)]),), test=train)
    oracle = Oracle(problem, 4, dtype=dtype)
    x = oracle.start()
    for z in (x, oracle.grad(x, oracle.sample()), oracle.full_grad(x), oracle.global_grad(x)):
        assert z.dtype == dtype
    assert oracle.buffers["3.running_mean"].dtype == dtype
    assert oracle.buffers["3.num_batches_tracked"].dtype == torch.int64
    assert oracle.inputs.dtype == torch.int64


def test_averaged_model_has_the_row_and_buffers():
    """Frozen parameters and ties are preserved; the problem's model is unchanged."""
    model = Tied()
    model.head.bias.requires_grad_(False)
    model.register_buffer("constant", torch.ones(2))
    problem = make_problem(model)
    row = torch.randn(problem.layout.size, dtype=torch.float64)
    plain = problem.averaged_model(row, {"constant": torch.tensor([3.0, 4.0])})
    assert torch.equal(start_of(plain), row)
    assert plain.decode.weight is plain.encode.weight
    assert torch.equal(plain.head.bias, model.head.bias.double())
    assert plain.constant.tolist() == [3.0, 4.0]
    assert model.constant.tolist() == [1.0, 1.0]


def test_frozen_parameters_are_shared_and_constant():
    """They are not part of a row, and no gradient or step changes them."""
    oracle = oracle_of("frozen")
    assert oracle.start().shape[1] == sum(p.numel() for p in oracle.problem.model.parameters() if p.requires_grad)
    before = oracle.model.model.linear1.weight.clone()
    oracle.grad(points(oracle), oracle.sample())
    assert torch.equal(oracle.model.model.linear1.weight, before)
    assert oracle.model.model.linear1.weight.grad is None


def test_batch_norm_needs_minibatches():
    """Full gradients use evaluation mode, in which statistics would never be updated; layer norm has none."""
    with pytest.raises(ConfigError, match="^batch_size: 'full' given, but the model has batch norm"):
        oracle_of("residual", batch_size="full")
    for norm in (nn.LayerNorm(6), nn.Sequential(nn.Unflatten(1, (1, 6)), nn.InstanceNorm1d(1), nn.Flatten())):
        Oracle(make_problem(nn.Sequential(norm, nn.Linear(6, 3))), "full")


@pytest.mark.parametrize("size", [0, -3, 2.5, "32", "Full", None])
def test_invalid_batch_sizes_are_rejected(size):
    with pytest.raises(ConfigError, match=r"^batch_size: .* given; it must be a whole number ≥ 1, or 'full'"):
        Oracle(make_problem(nn.Linear(6, 3)), size)


def test_a_batch_of_one_with_batch_norm_is_rejected():
    with pytest.raises(ConfigError, match=r"^model: fails in training on \[1, 6\].*more than 1 value per chan"):
        Oracle(make_problem(nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))), 1)


@pytest.mark.parametrize("beta", [-1.0, float("nan"), float("inf")])
def test_beta_must_be_finite_and_nonnegative(beta):
    with pytest.raises(ConfigError, match="^beta: "):
        make_problem(nn.Linear(6, 3), beta=beta)


def test_invalid_problems_are_rejected():
    """Each with its own message."""
    model = nn.Linear(6, 3)
    with pytest.raises(ConfigError, match=r"^weighting: 'sample' given; it can be 'uniform' or 'samples'; did you"):
        make_problem(model, weighting="sample")
    with pytest.raises(ConfigError, match="a client has no samples"):
        make_problem(model, sizes=(3, 0, 2))
    with pytest.raises(ConfigError, match="no trainable parameters"):
        Problem(nn.Linear(2, 2).requires_grad_(False), as_loss("mse"), samples(3), (Trial(0, torch.zeros(0), [[0]]),))
    trials = make_problem(model).trials
    with pytest.raises(ConfigError, match="same number of clients"):
        Problem(model, as_loss("mse"), samples(20), (*trials, Trial(1, trials[0].start, trials[0].parts[:2])))


def test_restriction_to_trials_preserves_everything_else():
    """The order of trials, and a regularizer bound to some of the parameters."""
    problem = make_problem(nn.Linear(6, 3), seeds=(3, 1, 2), regularizer=L1().on("weight"), beta=0.1)
    smaller = problem.restricted_to([2, 3])
    assert smaller.seeds == (3, 2)
    z = torch.ones(1, 21, dtype=torch.float64)
    assert torch.equal(smaller.regularizer.prox(z, 0.1), problem.regularizer.prox(z, 0.1))
    assert smaller.regularizer.prox(z, 0.1)[0, -1] == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", MODELS)
def test_gpu_and_cpu_agree(name):
    """The same sample indices, and the same gradients to rounding."""
    shape, factory = MODELS[name]
    torch.manual_seed(3)
    problem = make_problem(factory(), shape, seeds=(0, 1))
    here, there = (Oracle(problem, 4, device=device, dtype=torch.float64) for device in ("cpu", "cuda"))
    x = points(here)
    for oracle in (here, there):
        oracle.begin(torch.tensor(3, device=oracle.device))
    batch, same = here.sample(), there.sample()
    assert torch.equal(batch.indices, same.indices.cpu())
    torch.testing.assert_close(here.grad(x, batch), there.grad(x.cuda(), same).cpu(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(here.full_grad(x), there.full_grad(x.cuda()).cpu(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(here.global_grad(x), there.global_grad(x.cuda()).cpu(), rtol=1e-9, atol=1e-9)


def test_rows_that_do_not_fit_in_memory_are_evaluated_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same gradients and buffers, so that no group uses the samples of another."""

    def gradients() -> tuple[torch.Tensor, dict[str, torch.Tensor], float]:
        model = nn.Sequential(nn.Linear(D_IN, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, CLASSES))
        oracle = Oracle(seeded_problem((0, 5), model=model), 6, dtype=torch.float64)
        g = oracle.grad(oracle.start(), oracle.sample())
        return g, oracle.buffers, oracle.evaluations

    ungrouped, buffers, evaluations = gradients()
    monkeypatch.setattr("depositum.problem.oracle.TRAINING_SHARE", 0.3)  # 0.3 of 64 samples: three rows of six
    grouped, grouped_buffers, same = gradients()
    assert (ungrouped - grouped).abs().max() <= 1e-14
    assert all((buffers[k] - grouped_buffers[k]).abs().max() <= 1e-14 for k in buffers)
    assert evaluations == same
