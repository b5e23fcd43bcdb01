"""Low-rank adapters on a frozen language model (Hu et al., "LoRA", 2022), by the library `peft`.

A row is one client's adapters and nothing else. The weights of the base are there once, for all clients.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from depositum import pretrained
from depositum.errors import ConfigError, nearest
from depositum.models.base import Base, read_base
from depositum.user_code import Folder
from depositum.validation import Description

KEY = "problem.model.lora"


class LoraModel(nn.Module):
    """A frozen base with adapters, from token ids `[B, L]` to scores `[B, L, vocabulary]` of the next token.

    It is in evaluation mode always: the base's own dropout, if it has any, stays off. Its buffers (of rotary positions)
    are constants like the base's weights, so it shows none: those that a model shows become rows of the clients'.

    Attributes
    ----------
    adapted
        `peft`'s model.
    tokenizer
        Where the tokenizer is read from.
    client_adapters
        Whether each client's own adapter is to be kept too, and not only their average.
    """

    #: Frozen weights may be held in the precision of the model's passes.
    frozen_follows_precision = True

    def __init__(self, base: Base, adapted: nn.Module, tokenizer: str, client_adapters: bool = False) -> None:
        super().__init__()
        self.base, self.adapted = base, adapted
        self.tokenizer, self.client_adapters = tokenizer, client_adapters
        self._fold = Fold()
        for name, module in adapted.named_modules():
            if type(module) is nn.Linear and ".lora_" in f".{name}":
                module.__class__ = RowLinear
                module.fold = self._fold  # type: ignore[assignment]
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        """`[B, L]` token ids to `[B, L, vocabulary]`."""
        return self.base.scores(self.adapted.base_model.model, ids)  # type: ignore[union-attr, arg-type]

    def forward_rows(self, parameters: Mapping[str, Tensor], ids: Tensor) -> Tensor:
        """The scores of all rows at once: `[r, B, L]` ids, adapters `[r, *shape]` by name, to `[r, B, L, vocabulary]`.

        All rows' sequences are one batch to the base, which reads its weights once; each adapter's products are batched
        over rows.
        """
        rows, size, length = ids.shape
        self._fold.shape = (rows * size, length)
        out: Tensor = functional_call(self, dict(parameters), (ids.flatten(0, 1),))
        return out.view(rows, size, *out.shape[1:])

    def train(self, mode: bool = True) -> "LoraModel":
        """Nothing here differs in training."""
        return super().train(False)

    def named_buffers(self, *_: Any, **__: Any) -> Any:
        """None: they are constants."""
        return iter(())


class Fold:
    """The shape `[r·B, L]` in which the sequences of all rows lie, while they are one batch."""

    shape: tuple[int, int] = (0, 0)


class RowLinear(nn.Linear):
    """A linear layer without bias whose weight may be that of several rows, `[r, outputs, inputs]`.

    Inputs are then `[r·B, L, inputs]`, row after row. Anything else is refused: of a model that reorders tokens before
    they come here (a mixture of experts), nobody could tell whose they are.
    """

    fold: Fold

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        if weight.dim() == 2:
            return F.linear(x, weight)
        if x.shape[:-1] != self.fold.shape:
            raise ValueError(f"a layer with an adapter is given {list(x.shape)}, and not one sequence after another")
        rows = x.reshape(len(weight), -1, x.shape[-1])
        return torch.bmm(rows, weight.transpose(1, 2)).view(*x.shape[:-1], -1)


def lora(
    input_shape: tuple[int, ...],
    classes: int,
    base: str,
    rank: Annotated[int, Field(ge=1)] = 8,
    alpha: Annotated[float, Field(gt=0)] = 16.0,
    targets: Annotated[list[str], Description("a list of names of layers")] | Literal["all-linear"] | None = None,
    tokenizer: str | None = None,
    client_adapters: bool = False,
) -> nn.Module:
    """A pretrained causal language model with adapters beside its layers.

    Parameters
    ----------
    base
        A folder, a `.gguf` file, or a model's name on the Hugging Face hub.
    rank, alpha
        An adapter adds (alpha / rank)·B A to a layer's weight, with A `[rank, inputs]` and B `[outputs, rank]`. B is 0
        at the start, so that x_0 is the base itself.
    targets
        The layers, by the end of their names; those that `peft` knows to be usual for the architecture, if not given.
    tokenizer
        Where the tokenizer is read from, if not from the base.
    client_adapters
        Whether to keep each client's own adapter too.
    """
    from peft import LoraConfig, get_peft_model

    frozen = read_base(base, f"{KEY}.base")
    chosen: str | list[str] | None = targets
    if isinstance(targets, list):
        _check_targets(targets, frozen.linear())
    elif targets is None:
        chosen = _usual_targets(frozen)
    whole = int(alpha) if float(alpha).is_integer() else alpha
    settings = LoraConfig(
        r=rank,
        lora_alpha=whole,  # type: ignore[arg-type]
        lora_dropout=0.0,
        target_modules=chosen,
        bias="none",
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
    )
    with pretrained.quiet():
        adapted = get_peft_model(frozen.twin(), settings)
    return LoraModel(frozen, adapted, tokenizer or base, client_adapters)


def _check_targets(targets: Sequence[str], layers: Sequence[str]) -> None:
    """Refuse a name that no layer has; the library would pass over it if another has one."""
    short = sorted({layer.rpartition(".")[2] for layer in layers})
    for target in targets:
        if not any(f".{layer}".endswith(f".{target}") for layer in layers):
            raise ConfigError(
                f"{KEY}.targets",
                f"{target!r} is no layer of the base; there are {', '.join(short)}{nearest(target, short)}",
            )
    if not targets:
        raise ConfigError(f"{KEY}.targets", f"no layer given; there are {', '.join(short)}")


def _usual_targets(base: Base) -> list[str]:
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as USUAL

    config: Any = base.model.config
    if config.model_type not in USUAL:
        short = sorted({layer.rpartition(".")[2] for layer in base.linear()})
        raise ConfigError(
            f"{KEY}.targets", f"missing; for {config.model_type!r} none are usual: choose among {', '.join(short)}"
        )
    return list(USUAL[config.model_type])


def located(arguments: Mapping[str, Any], folder: Folder | None) -> dict[str, Any]:
    """The arguments with files named in full, from `folder` on, and known to be there."""
    out = dict(arguments)
    for key in ("base", "tokenizer"):
        if out.get(key) is None:
            continue
        path = Path(folder or ".") / Path(out[key]).expanduser()
        if path.exists():
            out[key] = str(path.resolve())
        pretrained.check(out[key], f"{KEY}.{key}")
    return out
