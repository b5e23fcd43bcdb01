"""ResNet-18 (He, Zhang, Ren, Sun, "Deep residual learning for image recognition", 2016).

Implemented here because torchvision is not a dependency; modules have torchvision's names, so that its weights can be
loaded by name. The initialisation is PyTorch's default, as in the paper's experiments, not He's.
"""

from pydantic import PositiveInt
from torch import Tensor, nn

from depositum.models.convolutional import image_channels


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    # No bias: the batch norm that follows has its own.
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a skip connection, with a projection if the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, outputs, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.conv2 = _conv3x3(outputs, outputs)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """`[B, inputs, H, W]` to `[B, outputs, H / stride, W / stride]`."""
        skip = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + skip)  # type: ignore[no-any-return]


class ResNet18(nn.Module):
    """A 7×7 stem, four stages of two blocks, the average over the image, and the scores."""

    def __init__(self, channels: int, classes: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = self._stage(width, width, stride=1)
        self.layer2 = self._stage(width, 2 * width, stride=2)
        self.layer3 = self._stage(2 * width, 4 * width, stride=2)
        self.layer4 = self._stage(4 * width, 8 * width, stride=2)
        self.fc = nn.Linear(8 * width, classes)

    @staticmethod
    def _stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        return nn.Sequential(BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, stride=1))

    def forward(self, x: Tensor) -> Tensor:
        """`[B, channels, H, W]` to scores `[B, classes]`, for images of any size."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean(dim=(-2, -1)))  # type: ignore[no-any-return]


def resnet18(input_shape: tuple[int, ...], classes: int, width: PositiveInt = 64) -> nn.Module:
    """ResNet-18 with the standard ImageNet stem, on images of any size; `width` is the channels of its first stage.

    >>> sum(p.numel() for p in resnet18((3, 32, 32), classes=10).parameters())
    11181642
    """
    return ResNet18(image_channels("resnet18", input_shape), classes, width)
