"""Estimates of L and σ², against dense Hessians and exact enumeration."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from depositum.data import Samples
from depositum.layout import Layout
from depositum.problem import Oracle, Problem, Trial, as_loss
from depositum.problem.constants import smoothness, smoothness_of_trials, variance

SIZES = (12, 7, 20)
PER_SAMPLE = {
    "cross-entropy": lambda o, y: F.cross_entropy(o, y, reduction="none"),
    "logistic": lambda o, y: F.binary_cross_entropy_with_logits(o.squeeze(-1), y.double(), reduction="none"),
    "mse": lambda o, y: 0.5 * (o - y).square().sum(-1),
}


def oracle_of(model, loss, weighting="uniform", features=4, start=None, batch_size=2, seeds=(0,), dtype=torch.float64):
    rng = np.random.default_rng(0)
    total = sum(SIZES)
    outputs = model(torch.zeros(2, features)).shape[1]
    targets = {
        "cross-entropy": torch.tensor(rng.integers(0, outputs, total)),
        "logistic": torch.tensor(rng.integers(0, 2, total)),
        "mse": torch.tensor(rng.standard_normal((total, outputs))),
    }[loss]
    inputs = torch.tensor(rng.standard_normal((total, features)) * rng.uniform(0.5, 2, features) + 0.3)
    if start is None:
        start = Layout.of(model).row({k: p.detach() for k, p in model.named_parameters()}).double()
    trials = tuple(
        Trial(s, start, np.split(np.random.default_rng(s).permutation(total), np.cumsum(SIZES)[:-1])) for s in seeds
    )
    problem = Problem(model, as_loss(loss), Samples(inputs, targets), trials, weighting=weighting)
    return Oracle(problem, batch_size, dtype=dtype)


def hessians(oracle, x):
    """The dense Hessian of every client's f_i at x `[d]`, by torch.autograd.functional."""
    problem = oracle.problem
    model, layout = copy.deepcopy(problem.model).double().eval(), oracle.model.layout
    loss = PER_SAMPLE[problem.loss.name]
    out = []
    for trial in problem.trials:
        for part in trial.parts:
            inputs, targets = problem.train.inputs[part], problem.train.targets[part]

            def f(row, inputs=inputs, targets=targets):
                return loss(torch.func.functional_call(model, layout.views(row), (inputs,)), targets).mean()

            share = problem.n * len(part) / sum(SIZES) if problem.weighting == "samples" else 1.0
            out.append(share * torch.autograd.functional.hessian(f, x))
    return out


def norm(hessian):
    return float(torch.linalg.eigvalsh(hessian).abs().max())


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("bias", [True, False])
def test_smoothness_of_the_squared_error_is_exact(bias, weighting):
    """The Hessian is constant: L is its largest eigenvalue over clients, the same for every output."""
    oracle = oracle_of(nn.Linear(4, 3, bias=bias), "mse", weighting)
    found = smoothness(oracle)
    assert found.how == "closed form"
    assert found.value == pytest.approx(max(map(norm, hessians(oracle, oracle.start()[0]))), rel=1e-10)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (nn.Linear(4, 2), "cross-entropy"),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 5)), "cross-entropy"),
        (nn.Linear(4, 1), "logistic"),
    ],
)
def test_smoothness_of_linear_classifiers_is_a_global_bound(model, loss, weighting):
    """The Hessian exceeds the closed form nowhere: at random points near and far, and at 0, where it is largest."""
    oracle = oracle_of(model, loss, weighting)
    bound = smoothness(oracle)
    assert bound.how == "closed form"
    generator = torch.Generator().manual_seed(0)
    d = oracle.model.layout.size
    for scale in (0.0, 0.1, 0.5, 1.0, 3.0):
        x = scale * torch.randn(d, generator=generator, dtype=torch.float64)
        assert max(map(norm, hessians(oracle, x))) <= bound.value * (1 + 1e-12)


@pytest.mark.parametrize(("model", "loss"), [(nn.Linear(4, 2), "cross-entropy"), (nn.Linear(4, 1), "logistic")])
def test_two_classes_attain_the_smoothness_bound_at_zero(model, loss):
    """p(1 − p) = ¼ there; with two outputs, ¼ [[1, −1], [−1, 1]] has norm ½. The bound cannot be smaller."""
    oracle = oracle_of(model, loss)
    at_zero = hessians(oracle, torch.zeros(oracle.model.layout.size, dtype=torch.float64))
    assert smoothness(oracle).value == pytest.approx(max(map(norm, at_zero)), rel=1e-10)


def test_smoothness_with_more_features_than_samples():
    """The smaller Gram matrix has the same norm."""
    oracle = oracle_of(nn.Linear(30, 2), "mse", features=30)
    assert smoothness(oracle).value == pytest.approx(max(map(norm, hessians(oracle, oracle.start()[0]))), rel=1e-10)


class Squashed(nn.Module):
    """A user-defined module that applies more than the linear layer inside."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return 10 * torch.tanh(self.linear(x))


class DerivedLinear(nn.Linear):
    """A linear layer by inheritance only."""

    def forward(self, x):
        return 10 * torch.tanh(super().forward(x))


def frozen_bias():
    model = nn.Linear(4, 2)
    model.bias.requires_grad_(False)
    return model


def fixed(factory):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return factory()


MODELS = {
    "mlp": lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)),
    "relu": lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)),
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)),
    "squashed": Squashed,
    "derived": lambda: DerivedLinear(4, 2),
    "frozen bias": frozen_bias,
}


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("name", MODELS)
def test_power_iteration_finds_the_largest_eigenvalue(name, weighting):
    """Within 1 % of the dense Hessian's at the start, and never above; for all models but one plain linear layer."""
    oracle = oracle_of(fixed(MODELS[name]), "cross-entropy", weighting)
    found = smoothness(oracle)
    assert found.how.startswith("at the start")
    largest = max(map(norm, hessians(oracle, oracle.start()[0])))
    assert 0.99 * largest <= found.value <= largest * (1 + 1e-9)


def test_power_iteration_in_chunks_and_on_several_trials():
    """Chunks that do not divide the samples give the same Hessian; L is the maximum over all trials' clients."""
    oracle = oracle_of(fixed(MODELS["mlp"]), "cross-entropy", seeds=(0, 1))
    in_one_pass = smoothness(oracle).value
    assert in_one_pass >= 0.99 * max(map(norm, hessians(oracle, oracle.start()[0])))
    oracle.samples_per_pass = 5
    assert smoothness(oracle).value == pytest.approx(in_one_pass, rel=1e-9)


def test_power_iteration_works_for_convolutions():
    """Second derivatives through convolution and pooling."""
    model = fixed(
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 4, 4)),
            nn.Conv2d(1, 2, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(8, 3),
        )
    )
    oracle = oracle_of(model, "cross-entropy", features=16)
    largest = max(map(norm, hessians(oracle, oracle.start()[0])))
    assert 0.99 * largest <= smoothness(oracle).value <= largest * (1 + 1e-9)


def test_estimates_are_repeatable_and_do_not_change_buffers():
    oracle = oracle_of(fixed(MODELS["batch norm"]), "cross-entropy")
    oracle.grad(oracle.start(), oracle.sample())
    before = {k: b.clone() for k, b in oracle.buffers.items()}
    assert smoothness(oracle) == smoothness(oracle)
    assert variance(oracle) == variance(oracle)
    assert all(torch.equal(b, before[k]) for k, b in oracle.buffers.items())


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_variance_is_the_variance_of_single_samples(weighting):
    """σ² is the maximum over clients of the mean of ‖∇F_i(x, ξ) − ∇f_i(x)‖² over a client's samples."""
    model = fixed(MODELS["mlp"])
    oracle = oracle_of(model, "cross-entropy", weighting)
    problem, exact, spreads = oracle.problem, [], []
    plain = copy.deepcopy(problem.model).double()
    for part in problem.trials[0].parts:
        single = []
        for k in part:
            plain.zero_grad()
            F.cross_entropy(plain(problem.train.inputs[k : k + 1]), problem.train.targets[k : k + 1]).backward()
            single.append(torch.cat([p.grad.flatten() for p in plain.parameters()]))
        share = 3 * len(part) / sum(SIZES) if weighting == "samples" else 1.0
        gradients = share * torch.stack(single)
        distances = (gradients - gradients.mean(0)).square().sum(1)
        exact.append(float(distances.mean()))
        spreads.append(float(distances.std()))
    draws = 400
    found = variance(oracle, draws)
    assert "400 samples" in found.how
    worst = int(np.argmax(exact))
    assert abs(found.value - exact[worst]) < 5 * max(spreads) / draws**0.5
    assert 5 * max(spreads) / draws**0.5 < 0.5 * exact[worst]  # the tolerance is meaningful


def test_identical_samples_have_no_variance():
    oracle = oracle_of(nn.Linear(4, 2), "mse")
    oracle.inputs[:] = oracle.inputs[0]
    oracle.targets[:] = oracle.targets[0]
    assert variance(oracle).value < 1e-25


@pytest.mark.parametrize("model", [lambda: nn.Linear(4, 3), MODELS["mlp"]], ids=["linear", "mlp"])
def test_the_smoothness_of_a_trial_does_not_depend_on_the_others(model):
    """It is the maximum over the trial's rows; otherwise L of a seed, and thus its s, would depend on other seeds."""
    oracles = [oracle_of(fixed(model), "cross-entropy", seeds=seeds) for seeds in ((0, 1, 2), (1,))]
    three, one = map(smoothness_of_trials, oracles)
    assert three[1:2] == pytest.approx(one, rel=1e-12)
    assert len({round(value, 9) for value in three}) == 3
    assert max(three) == pytest.approx(smoothness(oracles[0]).value, rel=1e-12)
