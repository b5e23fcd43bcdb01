"""Models and problems for tests of the oracle, and reference gradients by plain torch, one client at a time."""

import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from depositum.data import Samples
from depositum.layout import Layout
from depositum.models import build
from depositum.problem import Oracle, Problem, Trial, as_loss

SIZES = (7, 4, 9)  # samples of the clients, unequal on purpose


class Tied(nn.Module):
    """An autoencoder-like model whose decoder is its encoder, with a scalar parameter."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.encode = nn.Linear(6, 6, bias=False)
        self.decode = nn.Linear(6, 6, bias=False)
        self.decode.weight = self.encode.weight
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.scale * self.decode(torch.tanh(self.encode(x))))


class Residual(nn.Module):
    """A small residual block with batch norm."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = torch.tanh(self.bn1(self.conv1(x)))
        x = torch.tanh(x + self.bn2(self.conv2(x)))
        return self.head(x.mean((-2, -1)))


class FunctionalDropout(nn.Module):
    """Draws random numbers without a module that indicates it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        return F.dropout(self.linear(x), 0.5, self.training)


class Permuting(nn.Module):
    """Draws random numbers that only torch's generators give."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        return self.linear(x[:, torch.randperm(6)] if self.training else x)


class Branching(nn.Module):
    """Has control flow that depends on values, which cannot be batched over parameters."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        out = self.linear(x)
        return out if out.sum() > 0 else 2 * out


def frozen():
    model = build("mlp", (6,), 3, 1)
    model.linear1.requires_grad_(False)
    return model


#: The input shape and the factory of each model.
MODELS = {
    "linear": ((6,), lambda: build("linear", (6,), 3, 1)),
    "mlp": ((6,), lambda: build({"mlp": {"hidden": [5, 4]}}, (6,), 3, 1)),
    "cnn": ((1, 32, 32), lambda: build("cnn", (1, 32, 32), 3, 1)),
    "residual": ((1, 6, 6), Residual),
    "tied": ((6,), Tied),
    "frozen": ((6,), frozen),
    "branching": ((6,), Branching),
    "spectral": ((6,), lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3))),
}


def samples(count, shape=(6,), seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return Samples(
        torch.randn(count, *shape, generator=generator, dtype=dtype), torch.randint(0, 3, (count,), generator=generator)
    )


def start_of(model):
    """A model's parameters as a row."""
    return Layout.of(model).row({k: p.detach() for k, p in model.named_parameters()})


def make_problem(model, shape=(6,), seeds=(0,), sizes=SIZES, test=5, **settings):
    """A problem in which every trial has its own partition and start."""
    trials = []
    for seed in seeds:
        order = np.random.default_rng(seed).permutation(sum(sizes))
        start = start_of(model).double() * (1 + 0.1 * seed)
        trials.append(Trial(seed, start, np.split(order, np.cumsum(sizes)[:-1])))
    return Problem(
        model=model,
        loss=settings.pop("loss", as_loss("cross-entropy")),
        train=samples(sum(sizes), shape),
        trials=tuple(trials),
        test=samples(test, shape, seed=9) if test else None,
        **settings,
    )


def oracle_of(name, batch_size=4, seeds=(0,), backend="auto", **settings):
    shape, factory = MODELS[name]
    torch.manual_seed(3)
    problem = make_problem(factory(), shape, seeds, **settings)
    return Oracle(problem, batch_size, dtype=torch.float64, backend=backend)


def points(oracle, seed=0):
    """A different model for every row."""
    generator = torch.Generator().manual_seed(seed)
    start = oracle.start()
    return start + 0.1 * torch.randn(start.shape, generator=generator, dtype=start.dtype)


def plain_model(oracle, row, buffers):
    """A plain module with the parameters and buffers of one row."""
    model = copy.deepcopy(oracle.problem.model).double()
    nn.utils.vector_to_parameters(row, [p for p in model.parameters() if p.requires_grad])
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    return model


def plain_gradient(model, inputs, targets, weights=None):
    """The gradient of the (weighted) mean cross-entropy in the trainable parameters, by `backward`, flattened."""
    model.zero_grad()
    losses = F.cross_entropy(model(inputs), targets, reduction="none")
    (losses.mean() if weights is None else (losses * weights).sum()).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad])


def row_buffers(oracle, row):
    return {k: b[row].clone() for k, b in oracle.buffers.items()}


def begin(oracle, t):
    oracle.begin(torch.tensor(t))
