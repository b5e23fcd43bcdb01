"""The paper's models, and a person's own: what maps a batch of inputs to scores.

A model is a plain `nn.Module` that takes a batch `[batch, *input_shape]` to scores `[batch, classes]`, any flattening
being its own business. Every one of them can be stacked over clients with `torch.func`: no in-place activations, no
Python branch on values, and batch-norm buffers that may be passed in and handed back as rows of their own.
"""

from depositum.models.choice import MODELS, build, check, is_built_in, prepare, tokenizer_of
from depositum.models.convolutional import cnn
from depositum.models.feedforward import linear, mlp
from depositum.models.lora import LoraModel, lora
from depositum.models.resnet import resnet18

__all__ = [
    "MODELS",
    "LoraModel",
    "build",
    "check",
    "cnn",
    "is_built_in",
    "linear",
    "lora",
    "mlp",
    "prepare",
    "resnet18",
    "tokenizer_of",
]
