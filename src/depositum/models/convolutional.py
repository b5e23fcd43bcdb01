"""The paper's small convolutional network, on images of 32×32 pixels."""

from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn

from depositum.errors import ConfigError

#: Height and width of the images that `cnn` takes.
CNN_SIZE = (32, 32)

#: Images are resized this many at a time, so that the memory of the interpolation is small beside the dataset.
_CHUNK = 4096


class ResizingCNN(nn.Sequential):
    """Layers that take 32×32 images; other images are resized when the data is loaded."""

    def prepare_samples(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Images `[N, C, H, W]` resized to 32×32."""
        image_channels("cnn", tuple(images.shape[1:]))
        return resize(images), targets


def cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two 3×3 convolutions (16 and 32 channels), each with a ReLU and 2×2 max pooling, then 2048 → 128 → `classes`.

    It takes 32×32 images, and its `prepare_samples` resizes others; only the channels of `input_shape` matter here.
    This size follows from the paper's parameter counts (268,362 on MNIST).

    >>> sum(p.numel() for p in cnn((1, 28, 28), classes=10).parameters())
    268362
    """
    features = 32 * (CNN_SIZE[0] // 4) * (CNN_SIZE[1] // 4)
    layers = OrderedDict[str, nn.Module](
        conv1=nn.Conv2d(image_channels("cnn", input_shape), 16, kernel_size=3, padding=1),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(16, 32, kernel_size=3, padding=1),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        linear1=nn.Linear(features, 128),
        relu3=nn.ReLU(),
        linear2=nn.Linear(128, classes),
    )
    return ResizingCNN(layers)


def image_channels(model: str, input_shape: tuple[int, ...]) -> int:
    """The number of channels of images `(channels, height, width)`; inputs of any other shape are rejected."""
    if len(input_shape) != 3:
        raise ConfigError(
            "model",
            f"{model!r} takes images (channels, height, width), but an input here has shape {tuple(input_shape)}; "
            "use 'linear' or 'mlp'",
        )
    return input_shape[0]


def resize(images: Tensor, size: tuple[int, int] = CNN_SIZE) -> Tensor:
    """Images `[N, C, H, W]` resized by bilinear interpolation with half-pixel centres.

    >>> import torch
    >>> resize(torch.rand(5, 1, 28, 28)).shape
    torch.Size([5, 1, 32, 32])
    """
    assert images.is_floating_point(), "pixels must be scaled to [0, 1] before they are resized"
    if images.shape[-2:] == size:
        return images
    resized = images.new_empty(*images.shape[:2], *size)
    for start in range(0, len(images), _CHUNK):
        part = slice(start, start + _CHUNK)
        resized[part] = F.interpolate(images[part], size=size, mode="bilinear", align_corners=False)
    return resized
