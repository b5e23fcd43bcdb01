"""Layers as they are replaced on a GPU; what needs no GPU is tested here, the rest in `test_gpu.py`."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call

from depositum.problem.row_functions import RowFunctions
from depositum.problem.row_layers import with_row_layers

GPU = torch.device("cuda")


def test_recurrent_layers_do_not_flatten_their_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU that reads addresses of weights, which tensors under `vmap` do not have."""
    model = nn.LSTM(4, 3, batch_first=True).double()
    rows = with_row_layers(model, "float64", GPU)

    def reads_addresses(self: nn.RNNBase) -> None:
        raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")

    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", reads_addresses)
    weights = {name: torch.stack([p.detach(), 2 * p.detach()]) for name, p in model.named_parameters()}
    x, words = torch.randn(2, 5, 6, 4).double(), torch.zeros(2, dtype=torch.int64)

    def outputs(weights: dict[str, torch.Tensor], x: torch.Tensor, word: torch.Tensor) -> torch.Tensor:
        with RowFunctions(word, batched=True):
            return functional_call(rows, weights, (x,))[0]

    found = torch.vmap(outputs)(weights, x, words)
    monkeypatch.undo()
    torch.testing.assert_close(found[0], model(x[0])[0])


@pytest.mark.parametrize(
    "options", [{}, {"stride": (2, 1), "padding": (1, 2)}, {"dilation": 2, "bias": False}], ids=str
)
def test_depthwise_convolutions_equal_those_of_torch(options: dict[str, Any]) -> None:
    """Outputs and all gradients, to rounding; as a sum over taps, without a grouped convolution."""
    model = nn.Conv2d(3, 3, (3, 2), groups=3, **options).double()
    rows = with_row_layers(model, "float64", GPU)
    assert type(rows) is not nn.Conv2d
    weights = {name: torch.stack([p.detach(), 2 * p.detach()]).requires_grad_() for name, p in model.named_parameters()}
    x = torch.randn(2, 4, 3, 7, 8, dtype=torch.float64, requires_grad=True)
    leaves = [x, *weights.values()]
    found = torch.vmap(lambda weights, x: functional_call(rows, weights, (x,)))(weights, x)
    expected = torch.stack([functional_call(model, {k: w[i] for k, w in weights.items()}, (x[i],)) for i in range(2)])
    torch.testing.assert_close(found, expected)
    dy = torch.randn_like(expected)
    torch.testing.assert_close(torch.autograd.grad(found, leaves, dy), torch.autograd.grad(expected, leaves, dy))
