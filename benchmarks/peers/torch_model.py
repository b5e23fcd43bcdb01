"""Models and data of the settings for peers that train torch modules."""

from itertools import pairwise

import torch
from timed_settings import Setting, client_data
from torch import Tensor, nn


def model_of(setting: Setting) -> nn.Sequential:
    """Return the setting's model with torch's default initialisation from a fixed seed."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    if setting.cnn:
        for channels, filters in ((setting.shape[0], 16), (16, 32)):
            layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        layers.append(nn.Flatten())
    for wide, narrow in pairwise(setting.widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])  # no ReLU on the scores


def client_tensors(setting: Setting, client: int) -> tuple[Tensor, Tensor]:
    """Return the inputs and labels of a client."""
    inputs, labels = client_data(setting, client)
    return torch.from_numpy(inputs), torch.from_numpy(labels)
