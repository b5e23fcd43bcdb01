"""Train your own model on your own data: ten clients on a ring, a sparse model, early stopping, a metric of your own.

    python examples/own_model.py [FOLDER]

With a folder, the run can be interrupted (Ctrl-C) and resumed by the same command.
"""

import sys

import torch
from sklearn.datasets import load_digits
from sklearn.metrics import f1_score
from torch import nn

import depositum as dp


def main(out: str | None = None) -> dp.FitResult:
    """Train a sparse network on scikit-learn's digits, divided among ten clients by label, and print the result."""
    inputs, labels = load_digits(return_X_y=True)
    inputs = torch.tensor(inputs, dtype=torch.float32) / 16
    labels = torch.tensor(labels)
    order = labels[:1500].argsort(stable=True)  # heterogeneous: a client has samples of two or three digits
    clients = [(inputs[part], labels[part]) for part in order.chunk(10)]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    keep = dp.KeepBest("test_loss")
    result = dp.fit(
        model,
        clients,
        network="ring",
        regularizer=[{"mcp": {"theta": 5.0}, "on": "*.weight"}],
        beta=1e-3,
        algorithm=dp.Depositum(alpha=0.2, gamma=0.8),
        period=5,
        steps=600,
        test=(inputs[1500:], labels[1500:]),
        metrics={"f1": lambda outputs, targets: f1_score(targets, outputs.argmax(1), average="macro")},
        callbacks=[keep, dp.EarlyStopping("test_loss", patience=10)],
        out=out,
    )
    last = result.history.iloc[-1]
    print(f"{result.iterations} iterations: test accuracy {last.test_accuracy:.3f}, F1 {last.f1:.3f}")
    print(f"weights that are zero: {last.sparsity:.1%}; best test loss at iteration {keep.best[0].iteration}")
    return result


if __name__ == "__main__":
    main(*sys.argv[1:2])
