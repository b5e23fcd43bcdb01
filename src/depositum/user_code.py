"""User-defined models, methods and regularizers, named in a configuration as `"package.module:name"`."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from os import PathLike, getcwd
from pathlib import Path
from types import ModuleType
from typing import Any

from depositum.errors import ConfigError, describe_exception, nearest, short_repr

Folder = str | PathLike[str]


@contextmanager
def import_path(base: Folder | None) -> Iterator[list[str]]:
    """Temporarily put `base` (the configuration's folder) and the current folder at the front of `sys.path`."""
    folders = [str(Path(base).resolve())] if base is not None else []
    folders.append(getcwd())
    sys.path[:0] = folders
    try:
        yield folders
    finally:
        for folder in folders:
            sys.path.remove(folder)


def import_user_object(name: str, key: str, kind: str, base: Folder | None = None) -> Any:
    """Import the object named `"package.module:name"` from `base`, the current folder or the installed packages.

    Parameters
    ----------
    name
        What the user wrote.
    key
        The configuration key or argument that it was given for, for error messages.
    kind
        What the object should be, for error messages: `"model"`.
    base
        The configuration's folder.
    """
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), attribute]):
        raise ConfigError(key, f"{short_repr(name)} given; a user-defined {kind} is written 'package.module:name'")
    module = _import(module_name, key, base)
    if not hasattr(module, attribute):
        near = nearest(attribute, [public for public in vars(module) if not public.startswith("_")])
        raise ConfigError(key, f"module {module_name!r} has no {attribute!r}{near}")
    return getattr(module, attribute)


def _import(name: str, key: str, base: Folder | None) -> ModuleType:
    with import_path(base) as folders:
        _forget_namesakes(name, folders)
        importlib.invalidate_caches()
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise ConfigError(key, f"importing {name!r} failed: {describe_exception(error)}") from error
            where = " or ".join(dict.fromkeys(folders))
            raise ConfigError(key, f"no module {name!r}, neither installed nor in {where}") from None
        except Exception as error:
            raise ConfigError(key, f"importing {name!r} failed: {describe_exception(error)}") from error


def _forget_namesakes(name: str, folders: list[str]) -> None:
    """Drop a module of the same name from another folder: each configuration means the `model.py` beside it."""
    top = name.partition(".")[0]
    found = PathFinder.find_spec(top, folders)
    imported = sys.modules.get(top)
    if found is None or found.origin is None or imported is None or imported.__file__ == found.origin:
        return
    for other in [m for m in sys.modules if m == top or m.startswith(f"{top}.")]:
        del sys.modules[other]
