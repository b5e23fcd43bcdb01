"""A person's own model, named in a configuration as `"package.module:factory"`."""

import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import PathFinder
from os import PathLike, getcwd
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from depositum.errors import ConfigError, nearest
from depositum.registry import Choice, Spec

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


def own_choice(spec: Spec, key: str, base: Folder | None = None) -> Choice[nn.Module]:
    """Check `"module:factory"` or `{ "module:factory" = { width = 3 } }`, without calling the factory.

    The factory is called as `factory(input_shape, classes, **arguments)` if it takes two positional parameters or
    more, and as `factory(**arguments)` otherwise.
    """
    name, arguments = _split(spec, key)
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), attribute]):
        raise ConfigError(key, f"{name!r} given; a model of your own is written 'package.module:factory'")
    module = _import(module_name, key, base)
    if not hasattr(module, attribute):
        near = nearest(attribute, [public for public in vars(module) if not public.startswith("_")])
        raise ConfigError(key, f"module {module_name!r} has no {attribute!r}{near}")
    factory = getattr(module, attribute)
    if not callable(factory):
        raise ConfigError(key, f"{name!r} is a {type(factory).__name__}, not a function that returns a model")
    signature = inspect.signature(factory)
    supplied = _supplied(signature)
    call = f"{attribute}({', '.join([*supplied, '…'])})"
    try:
        signature.bind(*supplied, **arguments)
    except TypeError as error:
        raise ConfigError(key, f"{name!r}, called as {call}: {error}") from None

    def make(input_shape: tuple[int, ...], classes: int, **given: Any) -> nn.Module:
        try:
            return factory(*(input_shape, classes)[: len(supplied)], **given)  # type: ignore[no-any-return]
        except Exception as error:
            raise ConfigError(key, f"{name!r}, called as {call}, failed: {_one_line(error)}") from error

    return Choice(name, make, arguments)


def _split(spec: Spec, key: str) -> tuple[str, dict[str, Any]]:
    if isinstance(spec, str):
        return spec, {}
    name, arguments = next(iter(spec.items()))
    if len(spec) != 1 or not isinstance(arguments, Mapping):
        raise ConfigError(key, f'{dict(spec)!r} given; write {{ "{name}" = {{ argument = … }} }}')
    return str(name), dict(arguments)


def _import(name: str, key: str, base: Folder | None) -> ModuleType:
    with importable(base) as folders:
        _forget_namesakes(name, folders)
        importlib.invalidate_caches()
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise ConfigError(key, f"importing {name!r} failed: {_one_line(error)}") from error
            where = " or ".join(dict.fromkeys(folders))
            raise ConfigError(key, f"no module {name!r}, neither installed nor in {where}") from None
        except Exception as error:
            raise ConfigError(key, f"importing {name!r} failed: {_one_line(error)}") from error


def _forget_namesakes(name: str, folders: list[str]) -> None:
    """Drop a module imported from another folder under the same name: each configuration means its own `model.py`."""
    top = name.partition(".")[0]
    found = PathFinder.find_spec(top, folders)
    imported = sys.modules.get(top)
    if found is None or found.origin is None or imported is None or imported.__file__ == found.origin:
        return
    for other in [m for m in sys.modules if m == top or m.startswith(f"{top}.")]:
        del sys.modules[other]


def _supplied(signature: inspect.Signature) -> tuple[str, ...]:
    """The names of what the package passes to a factory."""
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    positional = sum(k in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for k in kinds)
    takes_both = positional >= 2 or inspect.Parameter.VAR_POSITIONAL in kinds
    return ("input_shape", "classes") if takes_both else ()


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
