"""The paper's models, and user-defined ones.

A model is a plain `nn.Module` that maps a batch `[batch, *input_shape]` to scores `[batch, classes]`; it flattens its
inputs itself if it needs to. Every model can be stacked over clients with `torch.func`: it uses no in-place activations
and no Python branches on values, and its batch-norm buffers can be passed in and returned as one row per client.

A model may define further methods that the package calls if they exist: see `depositum.models.hooks`.
"""

from depositum.models.building import MODELS, build, check, is_built_in, tokenizer_path
from depositum.models.convolutional import cnn
from depositum.models.feedforward import linear, mlp
from depositum.models.hooks import ExportableModel, frozen_digest, prepare_samples
from depositum.models.resnet import resnet18

__all__ = [
    "MODELS",
    "ExportableModel",
    "build",
    "check",
    "cnn",
    "frozen_digest",
    "is_built_in",
    "linear",
    "mlp",
    "prepare_samples",
    "resnet18",
    "tokenizer_path",
]
