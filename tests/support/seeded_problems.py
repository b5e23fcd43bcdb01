"""A small problem with several seeds, which tests of engines and methods share."""

import numpy as np
import torch
from torch import nn

import depositum as dp
from depositum.data import Samples
from depositum.layout import Layout
from depositum.problem import Problem, Trial, as_loss

N, D_IN, CLASSES = 4, 5, 3


def seeded_problem(seeds: tuple[int, ...], *, model: nn.Module | None = None, beta: float = 1e-3) -> Problem:
    """Classification of 60 samples by 4 clients; each seed has its own partition and initial model."""
    rng = np.random.default_rng(7)
    inputs, labels = rng.normal(size=(60, D_IN)), rng.integers(0, CLASSES, 60)
    model = model or nn.Linear(D_IN, CLASSES)
    size = Layout.of(model).size
    trials = []
    for seed in seeds:
        own = np.random.default_rng(seed)
        parts = [np.sort(p) for p in np.array_split(own.permutation(60), [9, 25, 41])]
        trials.append(Trial(seed, torch.tensor(own.normal(size=size) * 0.1), parts))
    return Problem(
        model,
        as_loss("cross-entropy"),
        Samples(torch.tensor(inputs), torch.tensor(labels)),
        tuple(trials),
        test=Samples(torch.tensor(inputs[:20]), torch.tensor(labels[:20])),
        regularizer=dp.L1(),
        beta=beta,
    )
