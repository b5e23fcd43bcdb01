"""A person's own code, named in a configuration as `"package.module:name"`: their models, their methods."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from os import PathLike, getcwd
from pathlib import Path
from types import ModuleType
from typing import Any

from depositum.errors import ConfigError, nearest

Folder = str | PathLike[str]


@contextmanager
def importable(base: Folder | None) -> Iterator[list[str]]:
    """Let modules in `base` (the configuration's folder) and in the current folder be imported, for a while."""
    folders = [str(Path(base).resolve())] if base is not None else []
    folders.append(getcwd())
    sys.path[:0] = folders
    try:
        yield folders
    finally:
        for folder in folders:
            sys.path.remove(folder)


def own(name: str, key: str, what: str, base: Folder | None = None) -> Any:
    """What `"package.module:name"` names, imported from `base`, the current folder or what is installed.

    `what` is what it should be, for messages: `"model"`.
    """
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), attribute]):
        raise ConfigError(key, f"{name!r} given; a {what} of your own is written 'package.module:name'")
    module = _import(module_name, key, base)
    if not hasattr(module, attribute):
        near = nearest(attribute, [public for public in vars(module) if not public.startswith("_")])
        raise ConfigError(key, f"module {module_name!r} has no {attribute!r}{near}")
    return getattr(module, attribute)


def _import(name: str, key: str, base: Folder | None) -> ModuleType:
    with importable(base) as folders:
        _forget_namesakes(name, folders)
        importlib.invalidate_caches()
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise ConfigError(key, f"importing {name!r} failed: {one_line(error)}") from error
            where = " or ".join(dict.fromkeys(folders))
            raise ConfigError(key, f"no module {name!r}, neither installed nor in {where}") from None
        except Exception as error:
            raise ConfigError(key, f"importing {name!r} failed: {one_line(error)}") from error


def _forget_namesakes(name: str, folders: list[str]) -> None:
    """Drop a module imported from another folder under the same name: each configuration means its own `model.py`."""
    top = name.partition(".")[0]
    found = PathFinder.find_spec(top, folders)
    imported = sys.modules.get(top)
    if found is None or found.origin is None or imported is None or imported.__file__ == found.origin:
        return
    for other in [m for m in sys.modules if m == top or m.startswith(f"{top}.")]:
        del sys.modules[other]


def one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
