"""Low-rank adapters on a frozen language model (Hu et al., "LoRA", 2022), with the library `peft`.

A row contains one client's adapters and nothing else. The weights of the base are in memory once, for all clients.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from safetensors.torch import save
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from depositum.errors import ConfigError, nearest
from depositum.language.model_card import model_card
from depositum.language.pretrained import FrozenBase, check_name, load_base, load_tokenizer, quiet
from depositum.language.tokens import IGNORED, check_vocabulary
from depositum.layout import Layout
from depositum.user_code import Folder
from depositum.validation import Description

WEIGHTS_FILE, CARD_FILE = "adapter_model.safetensors", "README.md"


class LoraModel(nn.Module):
    """A pretrained causal language model with adapters: token ids `[B, L]` to scores `[B, L, vocabulary]`.

    It is always in evaluation mode: the base's dropout, if it has any, is off. Its buffers (of rotary positions) are
    constants like the base's weights and are not reported, because the buffers of a model become rows of the clients.

    Parameters
    ----------
    input_shape, classes
        Given to every model by the package; not used.
    base
        A folder, a `.gguf` file, or the name of a model on the Hugging Face hub.
    rank, alpha
        An adapter adds (alpha / rank)·B A to a layer's weight, with A `[rank, inputs]` and B `[outputs, rank]`. B is
        initially 0, so that x_0 is the base itself.
    targets
        The layers, by the end of their names (default: those that `peft` lists for the architecture).
    tokenizer
        Where the tokenizer is read from (default: the base).
    client_adapters
        Whether to export each client's adapter as well as their average.

    Attributes
    ----------
    adapted
        `peft`'s model.
    """

    #: Frozen weights may be stored in the precision of the forward and backward passes.
    frozen_follows_precision: ClassVar[bool] = True
    path_arguments: ClassVar[tuple[str, ...]] = ("base", "tokenizer")
    export_folder = "adapter"

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        base: str,
        rank: Annotated[int, Field(ge=1)] = 8,
        alpha: Annotated[float, Field(gt=0)] = 16.0,
        targets: Annotated[list[str], Description("a list of layer names")] | Literal["all-linear"] | None = None,
        tokenizer: str | None = None,
        client_adapters: bool = False,
    ) -> None:
        from peft import LoraConfig, get_peft_model

        super().__init__()
        self.base = load_base(base, "base")
        self.tokenizer, self.exports_clients = tokenizer or base, client_adapters
        config = LoraConfig(
            r=rank,
            lora_alpha=int(alpha) if float(alpha).is_integer() else alpha,  # type: ignore[arg-type]
            lora_dropout=0.0,
            target_modules=_target_modules(targets, self.base),
            bias="none",
            task_type="CAUSAL_LM",
            base_model_name_or_path=base,
        )
        with quiet():
            self.adapted: nn.Module = get_peft_model(self.base.copy_with_shared_weights(), config)
        self._folded = FoldedShape()
        for name, module in self.adapted.named_modules():
            if type(module) is nn.Linear and ".lora_" in f".{name}":
                module.__class__ = RowLinear
                module.folded = self._folded  # type: ignore[assignment]
        self.eval()

    @staticmethod
    def tokenizer_path(arguments: Mapping[str, Any]) -> str:
        """Where the tokenizer is read from."""
        return str(arguments.get("tokenizer") or arguments["base"])

    @staticmethod
    def resolve_arguments(arguments: Mapping[str, Any], base: Folder | None) -> dict[str, Any]:
        """The arguments with absolute paths, starting from the folder `base`, where they exist."""
        resolved = dict(arguments)
        for key in LoraModel.path_arguments:
            if resolved.get(key) is None:
                continue
            path = Path(base or ".") / Path(resolved[key]).expanduser()
            if path.exists():
                resolved[key] = str(path.resolve())
            check_name(resolved[key], f"model.lora.{key}")
        return resolved

    def forward(self, ids: Tensor) -> Tensor:
        """`[B, L]` token ids to `[B, L, vocabulary]`."""
        return self.base.scores(self.adapted.base_model.model, ids)  # type: ignore[union-attr, arg-type]

    def forward_rows(self, parameters: Mapping[str, Tensor], ids: Tensor) -> Tensor:
        """The scores of all rows: `[r, B, L]` ids, adapters `[r, *shape]` by name, to `[r, B, L, vocabulary]`.

        The base sees all rows' sequences as one batch and reads its weights once; the products of an adapter are
        batched over rows.
        """
        rows, size, length = ids.shape
        self._folded.shape = (rows * size, length)
        out: Tensor = functional_call(self, dict(parameters), (ids.flatten(0, 1),))
        return out.view(rows, size, *out.shape[1:])

    def train(self, mode: bool = True) -> "LoraModel":
        """Training mode is the same as evaluation mode."""
        return super().train(False)

    def named_buffers(self, *_: Any, **__: Any) -> Any:
        """No buffers: they are constants."""
        return iter(())

    def prepare_samples(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Sequences `[N, L]` without padding beyond the context of the base; longer texts are rejected."""
        check_vocabulary(int(ids.max()), self.base.vocabulary)
        context = self.base.context
        if context is None or ids.shape[1] <= context:
            return ids, targets
        longest = 1 + int((targets != IGNORED).nonzero()[:, 1].max())
        if longest > context:
            problem = f"texts have up to {longest + 1} tokens, but the context of the base is {context}"
            raise ConfigError("dataset", f"{problem}; set max_length to {context} or less")
        return ids[:, :context], targets[:, :context]

    def frozen_digest(self) -> str:
        """A digest of the base's weights."""
        return self.base.digest()

    def export(
        self,
        folder: Path,
        row: Tensor,
        *,
        iterations: int,
        perplexities: Mapping[str, tuple[float, float]],
        settings: str,
    ) -> None:
        """Write the adapters of a row `[d]` in the format of `peft`, with the tokenizer and a model card."""
        self.export_client(folder, row)
        load_tokenizer(self.tokenizer).save_pretrained(str(folder))
        card = model_card(self.base.name, row, iterations, perplexities, settings)
        (folder / CARD_FILE).write_text(card, encoding="utf-8")

    def export_client(self, folder: Path, row: Tensor) -> None:
        """Write the adapters of a row `[d]` in the format of `peft`."""
        adapted: Any = self.adapted
        adapted.peft_config["default"].save_pretrained(str(folder))
        (folder / WEIGHTS_FILE).write_bytes(save(self.adapter_tensors(row), {"format": "pt"}))

    def adapter_tensors(self, row: Tensor) -> dict[str, Tensor]:
        """The adapters of a row `[d]`, by their names in a file of `peft`."""
        from peft import get_peft_model_state_dict

        named = {name.removeprefix("adapted."): view for name, view in Layout.of(self).views(row).items()}
        chosen: dict[str, Tensor] = get_peft_model_state_dict(self.adapted, named, save_embedding_layers=False)
        return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in chosen.items()}


class FoldedShape:
    """The shape `[r·B, L]` of the sequences while all rows are one batch."""

    shape: tuple[int, int] = (0, 0)


class RowLinear(nn.Linear):
    """A linear layer without bias, whose weight may be that of several rows, `[r, outputs, inputs]`.

    Inputs are then `[r·B, L, inputs]`, row after row. Inputs of another shape are rejected: if a model reorders tokens
    before this layer (a mixture of experts), their rows are unknown.
    """

    folded: FoldedShape

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        if weight.dim() == 2:
            return F.linear(x, weight)
        if x.shape[:-1] != self.folded.shape:
            raise ValueError(f"a layer with an adapter received inputs of shape {list(x.shape)}, not whole sequences")
        rows = x.reshape(len(weight), -1, x.shape[-1])
        return torch.bmm(rows, weight.transpose(1, 2)).view(*x.shape[:-1], -1)


def _target_modules(targets: Sequence[str] | str | None, base: FrozenBase) -> str | list[str]:
    """The layers that have adapters, as `peft` takes them; names that match no layer are rejected."""
    if isinstance(targets, str):
        return targets
    layers = base.linear_layers()
    names = sorted({layer.rpartition(".")[2] for layer in layers})
    if targets is None:
        return _default_targets(base, names)
    for target in targets:  # `peft` ignores such a name if another one matches
        if not any(f".{layer}".endswith(f".{target}") for layer in layers):
            raise ConfigError(
                "targets",
                f"{target!r} is not a layer of the base; it can be {', '.join(names)}{nearest(target, names)}",
            )
    if not targets:
        raise ConfigError("targets", f"the list is empty; it can contain {', '.join(names)}")
    return list(targets)


def _default_targets(base: FrozenBase, names: Sequence[str]) -> list[str]:
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as DEFAULTS

    config: Any = base.model.config
    if config.model_type not in DEFAULTS:
        problem = f"missing; {config.model_type!r} has no default layers: choose among {', '.join(names)}"
        raise ConfigError("targets", problem)
    return list(DEFAULTS[config.model_type])
