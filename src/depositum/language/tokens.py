"""Sequences of tokens: the samples of a language model, and the loss of predicting them."""

from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor
from torch.nn import functional as F

from depositum.data import Samples
from depositum.errors import ConfigError
from depositum.problem.losses import Loss

#: The target at positions that predict nothing: in the prompt, or in the padding. Torch's default `ignore_index`.
IGNORED = -100


@dataclass(frozen=True, eq=False)
class TokenSamples(Samples):
    """Token ids `[N, L]`, and as targets `[N, L]` the token that each position predicts, or `IGNORED`.

    Sequences shorter than L are padded at their end, which earlier positions of a causal model do not see.
    """

    @property
    def terms(self) -> Tensor:
        """The number of tokens to predict in each sample, `[N]`."""
        return (self.targets != IGNORED).sum(1)

    def padded_to(self, length: int) -> Self:
        """The same sequences, padded to a greater length."""
        padding = (0, length - self.inputs.shape[1])
        return replace(self, inputs=F.pad(self.inputs, padding), targets=F.pad(self.targets, padding, value=IGNORED))


def token_loss() -> Loss:
    """Cross-entropy of the next token, over the tokens to predict: the loss of a language model.

    The value of a sample is the sum over its tokens, and its correct answers are the tokens with the largest score.
    """

    def per_sample(outputs: Tensor, targets: Tensor) -> Tensor:
        values = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=IGNORED)
        return values.view(targets.shape).sum(1)

    return Loss(
        "tokens",
        per_sample,
        lambda outputs, targets: (outputs.argmax(-1) == targets).sum(1),
        _check_targets,
        lambda targets: (targets != IGNORED).sum(-1),
    )


def check_vocabulary(largest: int, vocabulary: int) -> None:
    """Reject tokens that the model does not know; on a GPU they would abort the process."""
    if largest >= vocabulary:
        problem = f"the base has tokens 0 … {vocabulary - 1}, but the tokenizer produces token {largest}"
        raise ConfigError("model.lora.tokenizer", f"{problem}; use the base's own tokenizer")


def _check_targets(outputs: Tensor, targets: Tensor) -> None:
    """Reject targets that are not tokens of the model, and samples without a token to predict."""
    if targets.is_floating_point() or targets.dim() != 2 or outputs.dim() != 3:
        raise ConfigError("loss", "'tokens' needs token ids [N, L], and a language model's scores of every token")
    if (targets != IGNORED).sum(1).min() == 0:
        raise ConfigError("dataset", "contains a sequence without a token to predict")
    check_vocabulary(int(targets.max()), outputs.shape[2])
