"""Choosing a model by name or by the import path of a user-defined factory, and building it from a seed."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from depositum.errors import ConfigError, describe_exception, short_repr, with_article
from depositum.memory import available_memory, format_bytes
from depositum.models.convolutional import cnn
from depositum.models.feedforward import linear, mlp
from depositum.models.resnet import resnet18
from depositum.randomness import seed_for
from depositum.registry import Choice, Registry, Spec
from depositum.user_code import Folder, import_path, import_user_object

#: Factories of (input_shape, classes), followed by the user's arguments. A factory may declare about itself
#: (`Registry.attribute`):
#: `path_arguments`: the names of its arguments that may be paths;
#: `resolve_arguments(arguments, base)`: its arguments with paths resolved and checked, before anything is read;
#: `tokenizer_path(arguments)`: where a language model's tokenizer is read from.
MODELS = Registry[nn.Module]("model", supplied=2)
MODELS.register("linear")(linear)
MODELS.register("mlp")(mlp)
MODELS.register("cnn")(cnn)
MODELS.register("resnet18")(resnet18)
MODELS.register_path("lora", "depositum.language.lora:LoraModel")


def check(spec: Spec, base: Folder | None = None) -> Choice[nn.Module]:
    """Validate the user's choice of a model, its name and arguments, without building it.

    A name with a colon, `"package.module:factory"`, is user-defined: its module is imported, from `base` (the
    configuration's folder), the current folder or the installed packages.

    >>> check({"mlp": {"hidden": [32]}}).arguments
    {'hidden': [32]}
    >>> check("resnet")
    Traceback (most recent call last):
    depositum.errors.ConfigError: model: 'resnet' is not a model; it can be 'linear', 'mlp', 'cnn', 'resnet18' \
or 'lora'; did you mean 'resnet18'?
    """
    if ":" in _name(spec):
        return _user_defined(spec, base)
    choice = MODELS.parse(spec, "model")
    resolve: Callable[..., dict[str, Any]] | None = MODELS.attribute(choice.name, "resolve_arguments", None)
    return choice if resolve is None else replace(choice, arguments=resolve(choice.arguments, base))


def is_built_in(spec: Spec) -> bool:
    """Whether a model is registered by name, not user-defined."""
    return _name(spec) in MODELS


def tokenizer_path(spec: Spec, base: Folder | None = None) -> str | None:
    """Name or path of a language model's tokenizer; None if the model is not a language model."""
    path: Callable[[Mapping[str, Any]], str] | None = MODELS.attribute(spec, "tokenizer_path", None)
    return None if path is None else path(check(spec, base).arguments)


def build(spec: Spec, input_shape: tuple[int, ...], classes: int, seed: int, base: Folder | None = None) -> nn.Module:
    """Build a model on the CPU; its initial parameters depend on `seed` only.

    Layers are initialised with torch's default CPU generator, which is seeded here and restored afterwards: what the
    user draws from it before and after is not affected.

    >>> one, same, other = (build("linear", (3,), 2, seed).get_parameter("linear.weight") for seed in (0, 0, 1))
    >>> bool((one == same).all()), bool((one == other).all())
    (True, False)
    """
    choice = check(spec, base)
    if is_built_in(spec) and not MODELS.attribute(spec, "path_arguments", ()):
        _check_memory(choice, tuple(input_shape), classes)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), import_path(base):
        # Not torch.manual_seed, which would also seed the generators of the GPUs.
        torch.default_generator.manual_seed(seed_for(seed, purpose="init"))
        model = choice.make(tuple(input_shape), classes)
    if not isinstance(model, nn.Module):
        raise ConfigError(
            "model", f"{choice.name!r} returned {with_article(type(model).__name__)}, not a torch.nn.Module"
        )
    return model


def _check_memory(choice: Choice[nn.Module], input_shape: tuple[int, ...], classes: int) -> None:
    """Refuse a model that does not fit into memory, after building it without storage."""
    try:
        with torch.device("meta"):
            size = sum(p.numel() * p.element_size() for p in choice.make(input_shape, classes).parameters())
    except (RuntimeError, TypeError):  # a number of parameters that torch cannot count
        raise ConfigError("model", f"{choice.name!r} with these arguments is too large") from None
    if size > (available := available_memory()):
        problem = f"takes {format_bytes(size)} of memory; {format_bytes(available)} are available"
        raise ConfigError("model", f"{choice.name!r} with these arguments {problem}")


def _name(spec: Spec) -> str:
    return str(next(iter(spec), "")) if isinstance(spec, Mapping) else str(spec)


def _user_defined(spec: Spec, base: Folder | None) -> Choice[nn.Module]:
    """Check `"module:factory"` or `{ "module:factory" = { width = 3 } }`, without calling the factory.

    The factory is called as `factory(input_shape, classes, **arguments)` if it has two or more positional parameters,
    and as `factory(**arguments)` otherwise.
    """
    name, arguments = _split(spec)
    factory = import_user_object(name, "model", "model", base)
    if not callable(factory):
        raise ConfigError(
            "model", f"{name!r} is {with_article(type(factory).__name__)}, not a function that returns a model"
        )
    signature = inspect.signature(factory)
    supplied = _supplied(signature)
    call = f"{name.partition(':')[2]}({', '.join([*supplied, '…'])})"
    try:
        signature.bind(*supplied, **arguments)
    except TypeError as error:
        raise ConfigError("model", f"{name!r}, called as {call}: {error}") from None

    def make(input_shape: tuple[int, ...], classes: int, **given: Any) -> nn.Module:
        try:
            return factory(*(input_shape, classes)[: len(supplied)], **given)  # type: ignore[no-any-return]
        except Exception as error:
            raise ConfigError("model", f"{name!r}, called as {call}, failed: {describe_exception(error)}") from error

    return Choice(name, make, arguments)


def _split(spec: Spec) -> tuple[str, dict[str, Any]]:
    if isinstance(spec, str):
        return spec, {}
    name, arguments = next(iter(spec.items()))
    if len(spec) != 1 or not isinstance(arguments, Mapping):
        raise ConfigError("model", f'{short_repr(dict(spec))} given; write {{ "{name}" = {{ argument = … }} }}')
    return str(name), dict(arguments)


def _supplied(signature: inspect.Signature) -> tuple[str, ...]:
    """The names of the arguments that the package passes to a user-defined factory."""
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    positional = sum(k in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for k in kinds)
    takes_both = positional >= 2 or inspect.Parameter.VAR_POSITIONAL in kinds
    return ("input_shape", "classes") if takes_both else ()
