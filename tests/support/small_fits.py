"""Short calls of `depositum.fit`: the same data and settings, except for what a test changes."""

import numpy as np
import torch
from torch import nn

import depositum as dp


def client_pairs(clients=4, size=30, features=5, classes=3, seed=0):
    """One (inputs, targets) pair per client, with labels of a linear model; clients have shifted inputs."""
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal((features, classes))
    pairs = []
    for i in range(clients):
        x = rng.standard_normal((size + i, features)) + 0.2 * i
        pairs.append((torch.tensor(x, dtype=torch.float32), torch.tensor((x @ truth).argmax(1))))
    return pairs


def small_fit(model=None, clients=None, **settings):
    """Train for 12 iterations on the CPU."""
    settings = {"steps": 12, "evaluate_every": 4, "progress": False, "batch_size": 8, "device": "cpu", **settings}
    torch.manual_seed(0)
    return dp.fit(model or nn.Linear(5, 3), client_pairs() if clients is None else clients, **settings)
