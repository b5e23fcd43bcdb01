"""What the convolutional models ask of their inputs: images `[channels, height, width]`, and of which size."""

import torch.nn.functional as F
from torch import Tensor

from depositum.errors import ConfigError

#: The size of the images that `cnn` is built for.
CNN_SIZE = (32, 32)

#: Resized this many at a time, so that the interpolation's working memory stays small beside the data set.
_CHUNK = 4096


def channels_of(model: str, input_shape: tuple[int, ...]) -> int:
    """The number of channels of the images; data that are not images are refused, in `model`'s name."""
    if len(input_shape) != 3:
        raise ConfigError(
            "problem.model",
            f"{model!r} takes images (channels, height, width), but an input here has shape {tuple(input_shape)}; "
            "use 'linear' or 'mlp'",
        )
    return input_shape[0]


def resize(images: Tensor, size: tuple[int, int] = CNN_SIZE) -> Tensor:
    """Images `[N, C, H, W]` at another size: bilinear, with half-pixel centres.

    >>> import torch
    >>> resize(torch.rand(5, 1, 28, 28)).shape
    torch.Size([5, 1, 32, 32])
    """
    assert images.is_floating_point(), "pixels are scaled to [0, 1] before they are resized"
    if images.shape[-2:] == size:
        return images
    resized = images.new_empty(*images.shape[:2], *size)
    for start in range(0, len(images), _CHUNK):
        part = slice(start, start + _CHUNK)
        resized[part] = F.interpolate(images[part], size=size, mode="bilinear", align_corners=False)
    return resized
