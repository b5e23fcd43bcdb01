"""Choosing a model by name, or naming a factory of one's own, and building it from a seed."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from depositum.errors import ConfigError
from depositum.models.convolutional import cnn
from depositum.models.feedforward import linear, mlp
from depositum.models.images import channels_of, resize
from depositum.models.lora import located, lora
from depositum.models.own import own_choice
from depositum.models.resnet import resnet18
from depositum.randomness import seed_for
from depositum.registry import Choice, Registry, Spec
from depositum.user_code import Folder, import_path

#: The paper's models by name: factories of (input_shape, classes), then a person's own parameters.
MODELS = Registry[nn.Module]("model", supplied=2)
MODELS.register("linear")(linear)
MODELS.register("mlp")(mlp)
MODELS.register("cnn")(cnn)
MODELS.register("resnet18")(resnet18)
MODELS.register("lora")(lora)


def _name(spec: Spec) -> str:
    return str(next(iter(spec), "")) if isinstance(spec, Mapping) else str(spec)


def check(spec: Spec, key: str = "problem.model", base: Folder | None = None) -> Choice[nn.Module]:
    """Check a person's choice of model, its name and arguments, without building it.

    A name with a colon, `"package.module:factory"`, is a person's own: its module is imported, with `base` (the
    configuration's folder) and the current folder importable.

    >>> check({"mlp": {"hidden": [32]}}).arguments
    {'hidden': [32]}
    >>> check("resnet")
    Traceback (most recent call last):
    depositum.errors.ConfigError: problem.model: 'resnet' is no model; it can be 'linear', 'mlp', 'cnn', 'resnet18' or \
'lora'; did you mean 'resnet18'?
    """
    if ":" in _name(spec):
        return own_choice(spec, key, base)
    choice = MODELS.parse(spec, key)
    return replace(choice, arguments=located(choice.arguments, base)) if choice.name == "lora" else choice


def is_built_in(spec: Spec) -> bool:
    """Whether a model is one of those by name, and no factory of a person's own."""
    return _name(spec) in MODELS


def tokenizer_of(spec: Spec, base: Folder | None = None) -> str | None:
    """Where a language model's tokenizer is read from; None if the model is none."""
    if _name(spec) != "lora":
        return None
    arguments = check(spec, base=base).arguments
    return str(arguments.get("tokenizer") or arguments["base"])


def build(spec: Spec, input_shape: tuple[int, ...], classes: int, seed: int, base: Folder | None = None) -> nn.Module:
    """Build a model on the CPU; its initial parameters depend on `seed` alone.

    Torch's own CPU generator is what initialises layers, so it is seeded for the while and then put back: whatever a
    person draws from it before and after is as if no model had been built.

    >>> one, same, other = (build("linear", (3,), 2, seed).get_parameter("linear.weight") for seed in (0, 0, 1))
    >>> bool((one == same).all()), bool((one == other).all())
    (True, False)
    """
    choice = check(spec, base=base)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), import_path(base):
        # Not torch.manual_seed, which would seed the GPUs' generators as well.
        torch.default_generator.manual_seed(seed_for(seed, purpose="init"))
        model = choice.make(tuple(input_shape), classes)
    if not isinstance(model, nn.Module):
        raise ConfigError("problem.model", f"{choice.name!r} returned a {type(model).__name__}, not a torch.nn.Module")
    return model


def prepare(spec: Spec, inputs: Tensor) -> Tensor:
    """The inputs `[N, *input_shape]` as the model takes them: for `cnn`, images resized to 32×32; else unchanged.

    Done once, when the data are loaded, so that no step pays for it.
    """
    if _name(spec) != "cnn":
        return inputs
    channels_of("cnn", tuple(inputs.shape[1:]))
    return resize(inputs)
