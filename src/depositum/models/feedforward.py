"""Fully connected models, for inputs of any shape."""

from collections import OrderedDict
from collections.abc import Sequence
from math import prod
from typing import Annotated

from pydantic import PositiveInt
from torch import nn

from depositum.validation import Description


def linear(input_shape: tuple[int, ...], classes: int, bias: bool = True) -> nn.Module:
    """One layer: multinomial logistic regression under the cross-entropy loss.

    >>> sum(p.numel() for p in linear((123,), classes=2).parameters())
    248
    """
    layers = OrderedDict[str, nn.Module](flatten=nn.Flatten(), linear=nn.Linear(prod(input_shape), classes, bias=bias))
    return nn.Sequential(layers)


#: Widths of the hidden layers.
Widths = Annotated[Sequence[PositiveInt], Description("a list of whole numbers ≥ 1")]


def mlp(input_shape: tuple[int, ...], classes: int, hidden: Widths = (128, 64)) -> nn.Module:
    """Hidden layers of the widths `hidden`, each followed by a ReLU, then the scores.

    The paper's text puts a ReLU after the last layer too. With it, training collapses for some seeds, and the
    accuracies that the paper reports are those of the model without it, so it is omitted here.

    >>> sum(p.numel() for p in mlp((1, 28, 28), classes=10).parameters())
    109386
    """
    widths = [prod(input_shape), *hidden]
    layers = OrderedDict[str, nn.Module](flatten=nn.Flatten())
    for i, (inputs, outputs) in enumerate(zip(widths, hidden, strict=False), start=1):
        layers[f"linear{i}"] = nn.Linear(inputs, outputs)
        layers[f"relu{i}"] = nn.ReLU()
    layers[f"linear{len(widths)}"] = nn.Linear(widths[-1], classes)
    return nn.Sequential(layers)
