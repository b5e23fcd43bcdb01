"""Registered and user-defined losses: one value per sample; invalid ones are rejected before any work."""

import warnings
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from depositum.data import Samples
from depositum.errors import ConfigError
from depositum.layout import Layout
from depositum.problem import LOSSES, Loss, Oracle, Problem, Trial, as_loss
from depositum.problem.compatibility import check_per_sample


def oracle_of(model, loss, inputs, targets, test=None, **settings):
    start = Layout.of(model).row({k: p.detach() for k, p in model.named_parameters()})
    trial = Trial(0, start, np.array_split(np.arange(len(targets)), 2))
    problem = Problem(model, as_loss(loss), Samples(inputs, targets), (trial,), test=test)
    return Oracle(problem, 3, **settings)


OUTPUTS = torch.tensor([[2.0, -1.0, 0.5], [0.0, 0.0, 0.0], [-3.0, 1.0, 4.0], [1.0, 2.0, 1.5]], dtype=torch.float64)
LABELS = torch.tensor([0, 2, 1, 1])


def test_cross_entropy_equals_its_formula():
    """−log softmax at the label; correct if the label's output is the largest."""
    loss = as_loss("cross-entropy")
    expected = [np.log(np.exp(o).sum()) - o[y] for o, y in zip(OUTPUTS.numpy(), LABELS.numpy(), strict=True)]
    np.testing.assert_allclose(loss.per_sample(OUTPUTS, LABELS), expected, rtol=1e-14)
    assert loss.correct(OUTPUTS, LABELS).tolist() == [True, False, False, True]


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
@pytest.mark.parametrize("targets", [torch.tensor([1, 0, 1, 0]), torch.tensor([[1.0], [0.0], [1.0], [0.0]])])
def test_logistic_loss_equals_its_formula(shape, targets):
    """log(1 + exp(∓z)) for labels 1 and 0, for outputs `[B]` and `[B, 1]`."""
    z = np.array([2.0, -1.0, -0.5, 3.0])
    loss, outputs = as_loss("logistic"), torch.tensor(z).view(shape)
    expected = np.log1p(np.exp(-z * np.array([1, -1, 1, -1])))
    np.testing.assert_allclose(loss.per_sample(outputs, targets), expected, rtol=1e-14)
    assert loss.correct(outputs, targets).tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("outputs", "targets"), [((4,), (4,)), ((4, 1), (4,)), ((4,), (4, 1)), ((4, 3), (4, 3)), ((4, 2, 3), (4, 2, 3))]
)
def test_squared_error_equals_its_formula(outputs, targets):
    """½ Σ (output − target)² of each sample; `[B, 1]` and `[B]` are not broadcast to pairs of samples."""
    a, b = torch.randn(outputs, dtype=torch.float64), torch.randn(targets, dtype=torch.float64)
    expected = [0.5 * float(((a[i].flatten() - b[i].flatten()) ** 2).sum()) for i in range(4)]
    np.testing.assert_allclose(as_loss("mse").per_sample(a, b), expected, rtol=1e-14)
    assert as_loss("mse").correct is None


def test_losses_are_found_by_name():
    assert {as_loss(name).name for name in LOSSES} == {"cross-entropy", "logistic", "mse", "tokens"}
    with pytest.raises(ConfigError, match="^loss: 'cross_entropy' is not a loss; .* did you mean 'cross-entropy'?"):
        as_loss("cross_entropy")


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(reduction="sum"),
        nn.CrossEntropyLoss(reduction="none"),
        F.cross_entropy,
        partial(F.cross_entropy, reduction="sum"),
        lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none"),
        Loss("user-defined", as_loss("cross-entropy").per_sample),
    ],
)
def test_user_defined_cross_entropy_has_one_value_per_sample(loss):
    """A module, a function or a `Loss`, whatever its reduction."""
    expected = as_loss("cross-entropy").per_sample(OUTPUTS, LABELS)
    torch.testing.assert_close(as_loss(loss).per_sample(OUTPUTS, LABELS), expected, rtol=1e-14, atol=0)


def test_torch_cross_entropy_has_an_accuracy():
    """With labels, and with probabilities as targets, of which the largest counts."""
    for loss in (nn.CrossEntropyLoss(), F.cross_entropy):
        assert as_loss(loss).correct(OUTPUTS, LABELS).tolist() == [True, False, False, True]
        assert as_loss(loss).correct(OUTPUTS, F.one_hot(LABELS, 3).double()).tolist() == [True, False, False, True]
    assert as_loss(lambda outputs, targets: outputs.sum(1)).correct is None


def test_a_loss_module_of_the_user_is_not_changed():
    """A copy is used without reduction; the module itself still averages, and keeps its dtype."""
    module = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    model = nn.Linear(4, 3)
    oracle = oracle_of(model, module, torch.randn(6, 4), torch.arange(6) % 3, dtype=torch.float64)
    oracle.grad(oracle.start(), oracle.sample())
    assert module.reduction == "mean"
    assert module.weight.dtype == torch.float32
    assert module(OUTPUTS.float(), LABELS).dim() == 0


def test_class_weights_are_converted_to_the_dtype():
    """Float32 weights in a float64 run: the loss of a sample is the unweighted one times the weight of its label."""
    weights = torch.tensor([1.0, 2.0, 3.0])
    inputs, targets = torch.randn(6, 4, dtype=torch.float64), torch.arange(6) % 3
    model = nn.Linear(4, 3)
    oracle = oracle_of(model, nn.CrossEntropyLoss(weight=weights), inputs, targets, dtype=torch.float64)
    losses = F.cross_entropy(model.double()(inputs), targets, reduction="none") * weights.double()[targets]
    found, _ = oracle.evaluate(oracle.start()[:1], {}, "train")
    torch.testing.assert_close(found[0], losses.mean().detach(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize(
    ("loss", "reduce"),
    [
        (nn.MSELoss(), lambda e: e.square().mean(1)),
        (F.mse_loss, lambda e: e.square().mean(1)),
        (nn.MSELoss(reduction="sum"), lambda e: e.square().sum(1)),
        (nn.L1Loss(), lambda e: e.abs().mean(1)),
    ],
)
def test_elementwise_losses_of_torch_are_reduced_per_sample(loss, reduce, backend):
    """For `[B, k]` elements, a sample's value is the mean of its elements, so that the mean over samples is torch's."""
    inputs, targets = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 2, dtype=torch.float64)
    model = nn.Linear(4, 2).double()
    oracle = oracle_of(model, loss, inputs, targets, dtype=torch.float64, backend=backend)
    found, accuracy = oracle.evaluate(oracle.start(), {}, "train")
    expected = reduce((model(inputs) - targets).detach()).mean()
    torch.testing.assert_close(found, expected.expand(2), rtol=1e-12, atol=0)
    assert torch.isnan(accuracy).all()


INPUTS, TARGETS = torch.randn(6, 4), torch.arange(6) % 3


@pytest.mark.parametrize(
    ("loss", "shape"),
    [
        (lambda o, t: F.cross_entropy(o, t), r"\(\)"),
        (lambda o, t: F.cross_entropy(o, t, reduction="none")[:, None], r"\(2, 1\)"),
        (lambda o, t: F.softmax(o, 1).mean(0), r"\(3,\)"),
        (lambda o, t: F.softmax(o, 1).mean(0)[:2], r"\(2,\)"),
        (lambda o, t: 1.0, "float"),
    ],
    ids=["mean", "column", "mean over samples", "as many outputs as samples", "a number"],
)
def test_a_loss_that_averages_over_samples_is_rejected(loss, shape):
    """Full and weighted gradients need a value per sample; detected even if the shape is right by chance."""
    with pytest.raises(ConfigError, match=rf"loss: returned shape {shape} for [23] samples.*use reduction='none'"):
        oracle_of(nn.Linear(4, 3), loss, INPUTS, TARGETS)


def test_shapes_that_would_be_broadcast_are_rejected():
    """Torch would compare outputs `[B, 1]` and targets `[B]` for all pairs of samples."""
    message = r"^loss: outputs have shape \[2, 1\] and targets \[2\], .* give targets of shape \[N, 1\]$"
    for loss in (nn.MSELoss(), F.l1_loss, lambda o, t: F.mse_loss(o, t, reduction="none")):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch's own warning about the same, in two lines, must not appear
            with pytest.raises(ConfigError, match=message):
                oracle_of(nn.Linear(4, 1), loss, INPUTS, torch.randn(6))
    flat = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    with pytest.raises(ConfigError, match=r"outputs have shape \[2\] and targets \[2, 1\], .* of shape \[N\]$"):
        oracle_of(flat, nn.MSELoss(), INPUTS, torch.randn(6, 1))


def test_models_that_return_several_tensors_need_a_user_defined_loss():
    """A registered loss takes one tensor; a user-defined one may take whatever the model returns."""
    recurrent = nn.LSTM(4, 3, batch_first=True)
    sequences = torch.randn(6, 2, 4)
    for loss in ("cross-entropy", "mse", "logistic", nn.CrossEntropyLoss()):
        with pytest.raises(ConfigError, match="^model: returned a tuple, but .* takes one tensor; wrap it in"):
            oracle_of(recurrent, loss, sequences, TARGETS)
    oracle_of(recurrent, lambda o, t: F.cross_entropy(o[0][:, -1], t, reduction="none"), sequences, TARGETS)


@pytest.mark.parametrize("loss", [3, None, ["mse"]])
def test_values_that_are_not_losses_are_rejected(loss):
    with pytest.raises(ConfigError, match="loss: .* given; it must be a name, or a function or module"):
        as_loss(loss)


@pytest.mark.parametrize("loss", ["cross-entropy", nn.CrossEntropyLoss(), F.cross_entropy])
@pytest.mark.parametrize("label", [3, 17, -1])
def test_labels_beyond_the_outputs_are_rejected(loss, label):
    """Anywhere in the training or test data, not only when such a sample is drawn."""
    wrong = TARGETS.clone()
    wrong[-1] = label
    message = f"^model: it has 3 outputs, but there is a label {label}; labels are 0 … 2"
    with pytest.raises(ConfigError, match=message):
        oracle_of(nn.Linear(4, 3), loss, INPUTS, wrong)
    with pytest.raises(ConfigError, match=message):
        oracle_of(nn.Linear(4, 3), loss, INPUTS, TARGETS, test=Samples(INPUTS, wrong))


def test_ignored_labels_are_accepted():
    """Samples with torch's `ignore_index` have loss 0."""
    targets = torch.tensor([0, 1, 2, -100, 1, 7])
    oracle_of(nn.Linear(4, 3), nn.CrossEntropyLoss(ignore_index=7), INPUTS, targets.clamp(min=0))
    oracle_of(nn.Linear(4, 3), nn.CrossEntropyLoss(), INPUTS, targets.clamp(max=2))
    with pytest.raises(ConfigError, match="label 7"):
        oracle_of(nn.Linear(4, 3), nn.CrossEntropyLoss(), INPUTS, targets)


def test_logistic_loss_needs_labels_zero_and_one():
    """Labels −1 and +1, common for margin losses, would silently give a different loss."""
    with pytest.raises(ConfigError, match="^loss: 'logistic' needs labels 0 and 1, but there is a label -1"):
        oracle_of(nn.Linear(4, 1), "logistic", INPUTS, torch.tensor([1, -1, 1, -1, 1, 1]))


@pytest.mark.parametrize(
    ("model", "loss", "inputs", "targets", "message"),
    [
        (nn.Linear(5, 3), "cross-entropy", INPUTS, TARGETS, r"^model: fails on \[2, 4\] of torch.float32: "),
        (nn.Linear(4, 3), "cross-entropy", INPUTS.to(torch.uint8), TARGETS, r"^model: .*torch.uint8: "),
        (
            nn.Linear(4, 3),
            "mse",
            INPUTS,
            TARGETS,
            r"loss: 'mse' compares outputs with targets, but a sample has 1 target and 3 outputs; "
            r"use 'cross-entropy' for class labels$",
        ),
        (
            nn.Linear(4, 3),
            "mse",
            INPUTS,
            torch.randn(6, 2),
            r"loss: targets that are not whole numbers mean regression, but a sample has 2 targets and 3 outputs; "
            r"class labels must be integers$",
        ),
        (
            nn.Linear(4, 3),
            "cross-entropy",
            INPUTS,
            torch.randn(6),
            r"loss: cross-entropy needs labels that are integers .* but the targets are real numbers$",
        ),
        (
            nn.Linear(4, 3),
            nn.CrossEntropyLoss(),
            INPUTS,
            torch.randn(6),
            r"loss: cross-entropy needs labels that are integers",
        ),
        (
            nn.Linear(4, 2),
            "logistic",
            INPUTS,
            TARGETS % 2,
            r"^model: it has 2 outputs, but the loss 'logistic' needs one$",
        ),
    ],
)
def test_models_and_losses_that_do_not_fit_the_data_are_rejected(model, loss, inputs, targets, message):
    """With the shapes given and the error of torch, in one line."""
    with pytest.raises(ConfigError, match=message) as error:
        oracle_of(model, loss, inputs, targets)
    assert "\n" not in str(error.value)


def test_check_per_sample_accepts_one_value_per_sample():
    check_per_sample(torch.zeros(4), 4)
    with pytest.raises(ConfigError, match=r"shape \(3,\) for 4 samples"):
        check_per_sample(torch.zeros(3), 4)
