"""The paper's small convolutional network."""

from collections import OrderedDict

from torch import nn

from depositum.models.images import CNN_SIZE, channels_of


def cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two 3×3 convolutions (16 and 32 channels), each with a ReLU and a 2×2 maximum, then 2048 → 128 → `classes`.

    It takes 32×32 images; `prepare` resizes others, and only the channels of `input_shape` matter here. That size is
    what the paper's parameter counts (268,362 on MNIST) ask for.

    >>> sum(p.numel() for p in cnn((1, 28, 28), classes=10).parameters())
    268362
    """
    features = 32 * (CNN_SIZE[0] // 4) * (CNN_SIZE[1] // 4)
    layers = OrderedDict[str, nn.Module](
        conv1=nn.Conv2d(channels_of("cnn", input_shape), 16, kernel_size=3, padding=1),
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
    return nn.Sequential(layers)
