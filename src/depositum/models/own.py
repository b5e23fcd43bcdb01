"""A person's own model, named in a configuration as `"package.module:factory"`."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from depositum.errors import ConfigError, describe_exception
from depositum.registry import Choice, Spec
from depositum.user_code import Folder, import_user_object


def own_choice(spec: Spec, key: str, base: Folder | None = None) -> Choice[nn.Module]:
    """Check `"module:factory"` or `{ "module:factory" = { width = 3 } }`, without calling the factory.

    The factory is called as `factory(input_shape, classes, **arguments)` if it takes two positional parameters or
    more, and as `factory(**arguments)` otherwise.
    """
    name, arguments = _split(spec, key)
    factory = import_user_object(name, key, "model", base)
    if not callable(factory):
        raise ConfigError(key, f"{name!r} is a {type(factory).__name__}, not a function that returns a model")
    signature = inspect.signature(factory)
    supplied = _supplied(signature)
    call = f"{name.partition(':')[2]}({', '.join([*supplied, '…'])})"
    try:
        signature.bind(*supplied, **arguments)
    except TypeError as error:
        raise ConfigError(key, f"{name!r}, called as {call}: {error}") from None

    def make(input_shape: tuple[int, ...], classes: int, **given: Any) -> nn.Module:
        try:
            return factory(*(input_shape, classes)[: len(supplied)], **given)  # type: ignore[no-any-return]
        except Exception as error:
            raise ConfigError(key, f"{name!r}, called as {call}, failed: {describe_exception(error)}") from error

    return Choice(name, make, arguments)


def _split(spec: Spec, key: str) -> tuple[str, dict[str, Any]]:
    if isinstance(spec, str):
        return spec, {}
    name, arguments = next(iter(spec.items()))
    if len(spec) != 1 or not isinstance(arguments, Mapping):
        raise ConfigError(key, f'{dict(spec)!r} given; write {{ "{name}" = {{ argument = … }} }}')
    return str(name), dict(arguments)


def _supplied(signature: inspect.Signature) -> tuple[str, ...]:
    """The names of what the package passes to a factory."""
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    positional = sum(k in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for k in kinds)
    takes_both = positional >= 2 or inspect.Parameter.VAR_POSITIONAL in kinds
    return ("input_shape", "classes") if takes_both else ()
