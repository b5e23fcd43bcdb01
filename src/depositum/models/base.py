"""A pretrained causal language model, frozen: one copy of its weights, whoever uses it.

Everything in here is Hugging Face's `transformers`, so that any causal language model there works.
"""

import copy
import zlib
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from depositum import pretrained
from depositum.errors import ConfigError

#: Whole numbers as long as a weight of so many bytes.
_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Base:
    """The weights of a language model as they were read, and what is known of how it computes.

    Attributes
    ----------
    name
        The folder, `.gguf` file or hub name that it was read from.
    masked
        Whether it takes an explicit mask `[1, 1, L, L]`. Given one, the library need not look at values to find out
        which it needs, which would make a device wait, and cannot be captured or compiled.
    """

    def __init__(self, name: str, model: nn.Module) -> None:
        self.name, self.model = name, model.eval().requires_grad_(False)
        self.masked = False
        self.masked = self._takes_mask()

    def twin(self) -> Any:
        """A model of the same weights, to which adapters may be added."""
        shared = {id(t): t for t in [*self.model.parameters(), *self.model.buffers()]}
        return copy.deepcopy(self.model, shared)

    def linear(self) -> list[str]:
        """The names of the layers that adapters can be put beside: the products, but for the last, over all tokens."""
        from transformers.pytorch_utils import Conv1D  # GPT-2's name for a product

        last = self.model.get_output_embeddings()  # type: ignore[operator]
        kinds = (nn.Linear, Conv1D)
        return [name for name, part in self.model.named_modules() if isinstance(part, kinds) and part is not last]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Base":
        return self  # weights are never written to

    def scores(self, model: nn.Module, ids: Tensor) -> Tensor:
        """What a twin says of the token after each position: `[B, L]` ids to `[B, L, vocabulary]`."""
        mask = causal_mask(model, ids) if self.masked else None
        out: Tensor = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        return out

    def _takes_mask(self) -> bool:
        """Try it on a few tokens: a model that cannot take the mask, or means another by it, is asked without."""
        ids = torch.arange(8)[None] % self.vocabulary
        with torch.no_grad():
            plain = self.scores(self.model, ids)
            self.masked = True
            try:
                given = self.scores(self.model, ids)
            except Exception:  # whatever another architecture makes of it
                return False
        scale = plain.abs().max()
        return bool((plain - given).abs().max() <= 1e-2 * scale) and self._window() is None

    def _window(self) -> int | None:
        """The number of tokens that a position sees, where that is limited: such a model makes its masks itself."""
        config: Any = self.model.config
        return getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None

    def digest(self) -> str:
        """A few digits that differ where any weight does, the same on every machine."""
        total = 0
        for name, weight in self.model.named_parameters():
            bits = weight.detach().contiguous().view(_INTEGER[weight.element_size()]).sum(dtype=torch.int64)
            total = (total * 31 + int(bits) + zlib.crc32(name.encode())) % (1 << 64)
        return f"{total:016x}"

    @property
    def context(self) -> int | None:
        """How many tokens it reads at most, where it says so."""
        most = getattr(self.model.config, "max_position_embeddings", None)
        return most if isinstance(most, int) else None

    @property
    def vocabulary(self) -> int:
        """How many tokens the model knows."""
        return int(self.model.get_input_embeddings().weight.shape[0])  # type: ignore[operator]


@lru_cache(maxsize=1)
def read_base(name: str, key: str) -> Base:
    """The model of a name, kept until another is read: a run makes a model per seed, and all share the weights."""
    safe = {} if name.endswith(".gguf") else {"use_safetensors": True}  # a pickle may hold any code
    with torch.random.fork_rng(devices=[]):  # whatever the library draws, adapters are drawn from their seed
        model, report = pretrained.read(
            "AutoModelForCausalLM", name, key, dtype="auto", output_loading_info=True, **safe
        )
    if report["missing_keys"]:
        lacking = sorted(report["missing_keys"])
        raise ConfigError(key, f"{name!r} lacks weights, such as {lacking[0]!r} ({len(lacking)} in all)")
    return Base(name, model)


def causal_mask(model: nn.Module, ids: Tensor) -> Tensor:
    """Who sees whom, `[1, 1, L, L]`: each position itself and those before it, in the form that attention takes."""
    length = ids.shape[1]
    seen = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()[None, None]
    config: Any = model.config
    if config._attn_implementation == "sdpa":
        return seen
    zero = torch.zeros((), dtype=torch.get_default_dtype(), device=ids.device)
    return torch.where(seen, zero, torch.finfo(zero.dtype).min)
