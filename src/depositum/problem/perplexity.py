"""Perplexity: e to the mean loss of the tokens that are to be predicted, over all test data and kind by kind."""

from dataclasses import dataclass

import torch
from torch import Tensor

from depositum.data import TokenSamples
from depositum.problem.oracle import Oracle

#: The name of all test tokens pooled, beside the categories'.
OVERALL = "overall"


@dataclass(frozen=True)
class TokenLosses:
    """Sums over the tokens of each category, `[categories]`, or over all tokens `[1]` where no category has a name.

    Sums of parts of the data add up to those of the whole.
    """

    names: tuple[str, ...]
    loss: Tensor
    tokens: Tensor

    def perplexities(self) -> dict[str, float]:
        """By category, and overall with all tokens pooled; that of a category with no tokens is NaN."""
        pooled = {OVERALL: self.loss.sum() / self.tokens.sum()}
        each = dict(zip(self.names, self.loss / self.tokens, strict=False))
        return {name: float(mean.exp()) for name, mean in (pooled | each).items()}


def token_losses(oracle: Oracle, row: Tensor, samples: TokenSamples, first: int = 0, step: int = 1) -> TokenLosses:
    """The losses of one model `[d]` on every `step`-th sample from `first` on: the share of one process among many."""
    names = samples.categories
    codes = torch.zeros(len(samples), dtype=torch.int64) if samples.category is None else samples.category
    places = torch.arange(first, len(samples), step)
    loss, tokens = (torch.zeros(max(1, len(names)), dtype=torch.float64) for _ in range(2))
    x = row.to(oracle.device, oracle.dtype)[None]
    for chunk in torch.split(places, max(1, 2 * oracle.samples_per_pass)):
        targets = samples.targets[chunk].to(oracle.device)
        values, _ = oracle.model.evaluate(x, samples.inputs[chunk].to(oracle.device), targets, {})
        loss.index_add_(0, codes[chunk], values[0].to("cpu", torch.float64))
        tokens.index_add_(0, codes[chunk], samples.terms[chunk].to(torch.float64))
    return TokenLosses(names, loss, tokens)
