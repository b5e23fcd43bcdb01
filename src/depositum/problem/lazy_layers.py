"""Lazy layers (`LazyLinear`, …): their parameters get a shape from the first sample that passes through the model."""

import copy

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, is_lazy

from depositum.errors import ConfigError, describe_exception
from depositum.randomness import seed_for


def materialized(model: nn.Module, inputs: Tensor, seed: int) -> nn.Module:
    """A copy of the model in which lazy parameters have been initialised; a model without them is returned itself.

    The copy is called once on the first samples of `inputs [N, ...]`, in evaluation mode, so that no buffer changes.
    The parameters depend on the seed only; torch's own generator is restored afterwards.
    """
    if not any(is_lazy(tensor) for tensor in [*model.parameters(), *model.buffers()]):
        return model
    # torch copies lazy parameters, but not lazy buffers.
    lazy_buffers = [buffer for buffer in model.buffers() if is_lazy(buffer)]
    new = [UninitializedBuffer(device=b.device, dtype=b.dtype) for b in lazy_buffers]  # type: ignore[call-arg]
    model = copy.deepcopy(model, {id(b): copied for b, copied in zip(lazy_buffers, new, strict=True)})
    sample = inputs[:2].to("cpu", torch.get_default_dtype() if inputs.is_floating_point() else inputs.dtype)
    training = {module: module.training for module in model.modules()}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(seed_for(seed, purpose="init"))
        try:
            model.eval()(sample)
        except Exception as error:  # code of the user
            problem = f"its lazy layers cannot be initialised with {list(sample.shape)} of {sample.dtype}"
            raise ConfigError("model", f"{problem}: {describe_exception(error)}") from error
    for module, mode in training.items():
        module.training = mode
    unused = next((name for name, tensor in model.named_parameters() if is_lazy(tensor)), None)
    if unused is not None:
        raise ConfigError("model", f"its lazy parameter {unused!r} is not used by the model; remove the layer")
    return model
