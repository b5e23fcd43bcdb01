"""Pretrained language models and tokenizers by name: where one lies, and whether the libraries that read it are here.

A name is a folder as Hugging Face's `save_pretrained` leaves it, a `.gguf` file, or a model's name on their hub.
"""

import importlib
import importlib.util
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partialmethod
from pathlib import Path
from typing import Any

from depositum.errors import ConfigError

_HUB = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def check(name: str, key: str) -> None:
    """Refuse, before anything is read, a name that leads nowhere, or any if the libraries are not installed."""
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
            raise ConfigError(key, f"{name!r} given, but that folder has no config.json; it holds no pretrained model")
    elif path.exists():
        raise ConfigError(key, f"{name!r} given; it must be a folder, a .gguf file or a name on the Hugging Face hub")
    elif not _HUB.fullmatch(name):
        raise ConfigError(key, f"{name!r} given, but there is no such folder or file")


def read(reader: str, name: str, key: str, **options: Any) -> Any:
    """What one of transformers' classes reads from a name (`"AutoTokenizer"`), or in one line why it cannot."""
    check(name, key)
    import transformers

    path = Path(name).expanduser()
    place: Path | str = path if path.is_dir() else name
    if path.suffix == ".gguf":
        place, options = path.parent, {**options, "gguf_file": path.name}
    if unreachable := place == name and not _answers(name):
        options = {**options, "local_files_only": True}
    try:
        with quiet(), without_bars() if path.suffix == ".gguf" else nullcontext():
            return getattr(transformers, reader).from_pretrained(place, **options)
    except Exception as error:  # files of others may hold anything
        said = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, OSError) and unreachable:
            said = (
                "the Hugging Face hub cannot be reached, and it was not fetched before; name a folder or a .gguf file"
            )
        raise ConfigError(key, f"{name!r} cannot be read: {said[:300]}") from error


def _answers(name: str) -> bool:
    """Whether the hub says anything of a name; left to themselves, the libraries ask again for most of a minute."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().model_info(name, timeout=10)
    except HfHubHTTPError:
        return True
    except Exception:  # of whatever carries the request, or because a person asked to stay offline
        return False
    return True


@contextmanager
def without_bars() -> Iterator[None]:
    """Keep bars from being drawn by code that asks nobody whether to, as that which unpacks a .gguf file."""
    bars: Any = importlib.import_module("tqdm.auto").tqdm
    begin = bars.__init__
    bars.__init__ = partialmethod(begin, disable=True)
    try:
        yield
    finally:
        bars.__init__ = begin


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the libraries from drawing progress bars and telling of their defaults."""
    from huggingface_hub.utils import logging as of_the_hub
    from transformers.utils import logging as theirs

    logging: Any = theirs
    hub: Any = of_the_hub  # tells of every attempt to connect
    level, bars, of_hub = logging.get_verbosity(), logging.is_progress_bar_enabled(), hub.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    hub.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        hub.set_verbosity(of_hub)
        if bars:
            logging.enable_progress_bar()
