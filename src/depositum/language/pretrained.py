"""Pretrained language models and tokenizers, read with Hugging Face's `transformers`.

A name is a folder written by `save_pretrained`, a `.gguf` file, or the name of a model on the Hugging Face hub.
"""

import copy
import importlib
import importlib.util
import re
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partialmethod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from depositum.errors import ConfigError

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
#: The integer type of the same size as a weight, by its size in bytes.
_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class FrozenBase:
    """A pretrained causal language model, frozen: a single copy of its weights, shared by all who use it.

    Attributes
    ----------
    name
        The folder, `.gguf` file or hub name that it was read from.
    takes_mask
        Whether the model accepts an explicit mask `[1, 1, L, L]`. Given one, `transformers` need not inspect values to
        find out which mask it needs, which would synchronise with the device and could not be captured or compiled.
    """

    def __init__(self, name: str, model: nn.Module) -> None:
        self.name, self.model = name, model.eval().requires_grad_(False)
        self.takes_mask = False
        self.takes_mask = self._accepts_mask()

    def copy_with_shared_weights(self) -> Any:
        """A model with the same weight tensors, to which adapters may be added."""
        shared = {id(t): t for t in [*self.model.parameters(), *self.model.buffers()]}
        return copy.deepcopy(self.model, shared)

    def linear_layers(self) -> list[str]:
        """The names of the layers that can have adapters: the linear ones, except for the output layer."""
        from transformers.pytorch_utils import Conv1D  # GPT-2's linear layer

        output = self.model.get_output_embeddings()  # type: ignore[operator]
        kinds = (nn.Linear, Conv1D)
        return [name for name, part in self.model.named_modules() if isinstance(part, kinds) and part is not output]

    def __deepcopy__(self, memo: dict[int, Any]) -> "FrozenBase":
        return self  # the weights are never modified

    def scores(self, model: nn.Module, ids: Tensor) -> Tensor:
        """The scores of the token after each position, `[B, L]` ids to `[B, L, vocabulary]`, by a copy of the model."""
        mask = causal_mask(model, ids) if self.takes_mask else None
        out: Tensor = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        return out

    def _accepts_mask(self) -> bool:
        """Try a few tokens with and without the mask; it is not used if the model rejects or misinterprets it."""
        ids = torch.arange(8)[None] % self.vocabulary
        with torch.no_grad():
            without = self.scores(self.model, ids)
            self.takes_mask = True
            try:
                given = self.scores(self.model, ids)
            except Exception:  # an architecture may raise anything
                return False
        scale = without.abs().max()
        return bool((without - given).abs().max() <= 1e-2 * scale) and self._window() is None

    def _window(self) -> int | None:
        """The number of tokens that a position attends to, if it is limited: such a model makes its own masks."""
        config: Any = self.model.config
        return getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None

    def digest(self) -> str:
        """A hexadecimal number that changes if any weight does, and is the same on every machine."""
        total = 0
        for name, weight in self.model.named_parameters():
            bits = weight.detach().contiguous().view(_INTEGER[weight.element_size()]).sum(dtype=torch.int64)
            total = (total * 31 + int(bits) + zlib.crc32(name.encode())) % (1 << 64)
        return f"{total:016x}"

    @property
    def context(self) -> int | None:
        """The maximal number of tokens of a sequence, if the model defines it."""
        length = getattr(self.model.config, "max_position_embeddings", None)
        return length if isinstance(length, int) else None

    @property
    def vocabulary(self) -> int:
        """The number of tokens that the model knows."""
        return int(self.model.get_input_embeddings().weight.shape[0])  # type: ignore[operator]


def causal_mask(model: nn.Module, ids: Tensor) -> Tensor:
    """The mask `[1, 1, L, L]` by which a position attends to itself and those before it, as the model takes it."""
    length = ids.shape[1]
    visible = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()[None, None]
    config: Any = model.config
    if config._attn_implementation == "sdpa":
        return visible
    zero = torch.zeros((), dtype=torch.get_default_dtype(), device=ids.device)
    return torch.where(visible, zero, torch.finfo(zero.dtype).min)


@lru_cache(maxsize=1)
def load_base(name: str, key: str) -> FrozenBase:
    """Read a model; the last one is cached, because a run builds a model per seed, all with the same weights."""
    safe = {} if name.endswith(".gguf") else {"use_safetensors": True}  # a pickle may contain any code
    with torch.random.fork_rng(devices=[]):  # adapters are drawn from their seed, whatever the library draws here
        model, report = from_pretrained(
            "AutoModelForCausalLM", name, key, dtype="auto", output_loading_info=True, **safe
        )
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise ConfigError(key, f"{name!r} lacks weights, such as {missing[0]!r} ({len(missing)} in total)")
    return FrozenBase(name, model)


@lru_cache(maxsize=1)
def load_tokenizer(name: str) -> Any:
    """Read the tokenizer of a pretrained model; the last one is cached."""
    return from_pretrained("AutoTokenizer", name, "model.lora")


def check_name(name: str, key: str) -> None:
    """Reject a name that cannot be read, or any name if the libraries are not installed, before anything is read."""
    missing = [library for library in ("transformers", "peft") if importlib.util.find_spec(library) is None]
    if missing:
        raise ConfigError(key, f"needs {' and '.join(missing)}; run: pip install 'depositum[llm]'")
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ConfigError(key, f"{name!r} given, but there is no such file")
        if importlib.util.find_spec("gguf") is None:
            raise ConfigError(key, "a .gguf file needs gguf; run: pip install 'depositum[llm]'")
    elif path.is_dir():
        if not any((path / file).is_file() for file in ("config.json", "tokenizer.json", "tokenizer_config.json")):
            raise ConfigError(key, f"{name!r} given, but the folder has no config.json; it is not a pretrained model")
    elif path.exists():
        raise ConfigError(key, f"{name!r} given; it must be a folder, a .gguf file or a name on the Hugging Face hub")
    elif not _HUB_NAME.fullmatch(name):
        raise ConfigError(key, f"{name!r} given, but there is no such folder or file")


def from_pretrained(class_name: str, name: str, key: str, **options: Any) -> Any:
    """Read a name with a class of `transformers`, such as `"AutoTokenizer"`; a failure is a one-line `ConfigError`."""
    check_name(name, key)
    import transformers

    path = Path(name).expanduser()
    source: Path | str = path if path.is_dir() else name
    if path.suffix == ".gguf":
        source, options = path.parent, {**options, "gguf_file": path.name}
    if unreachable := source == name and not _hub_answers(name):
        options = {**options, "local_files_only": True}
    try:
        with quiet(), _no_progress_bars() if path.suffix == ".gguf" else nullcontext():
            return getattr(transformers, class_name).from_pretrained(source, **options)
    except Exception as error:  # the files may contain anything
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, OSError) and unreachable:
            reason = (
                "the Hugging Face hub cannot be reached, and it was not downloaded before; use a folder or a .gguf file"
            )
        raise ConfigError(key, f"{name!r} cannot be read: {reason[:300]}") from error


def _hub_answers(name: str) -> bool:
    """Whether the hub responds to a request for this name; the libraries would retry for most of a minute."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().model_info(name, timeout=10)
    except HfHubHTTPError:
        return True
    except Exception:  # of the HTTP library, or because the user asked to stay offline
        return False
    return True


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the libraries' progress bars, and their messages about defaults and connections."""
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging as transformers_logging

    models: Any = transformers_logging
    hub: Any = hub_logging
    level, bars, hub_level = models.get_verbosity(), models.is_progress_bar_enabled(), hub.get_verbosity()
    models.set_verbosity_error()
    models.disable_progress_bar()
    hub.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        models.set_verbosity(level)
        hub.set_verbosity(hub_level)
        if bars:
            models.enable_progress_bar()


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Disable tqdm, for code that ignores the libraries' settings, such as the unpacking of a .gguf file."""
    tqdm: Any = importlib.import_module("tqdm.auto").tqdm
    init = tqdm.__init__
    tqdm.__init__ = partialmethod(init, disable=True)
    try:
        yield
    finally:
        tqdm.__init__ = init
