"""Models and data for blazefl, in a module that its worker processes import."""

from copy import deepcopy
from enum import StrEnum
from functools import cache
from typing import Any

import torch
from benchmark_models import CASES
from blazefl.contrib import FedAvgPartitionType
from published_peer import client_data, device
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class ModelName(StrEnum):
    LENET = "lenet"
    RESNET18 = "resnet18"


@cache
def template(name: str) -> nn.Module:
    """The model with its initial weights; each process builds it once."""
    return CASES[name].model()


class Models:
    """Selects models as blazefl requires."""

    def select_model(self, model_name: ModelName) -> nn.Module:
        return deepcopy(template(model_name))


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Images on the device, of which the loader takes a batch at a time instead of stacking single images."""

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        self.inputs, self.labels = inputs, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        rows = torch.tensor(indices, device=self.labels.device)
        return self.inputs[rows], self.labels[rows]


def as_it_is(batch: Any) -> Any:
    """What a loader does with a batch that is complete."""
    return batch


class Partitioned:
    """The clients' images in files, and the test images, as blazefl requires; pickled without the test images."""

    def __init__(self, folder: str, test: Images | None) -> None:
        self.folder, self.test = folder, test

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "test": None}

    def get_dataset(self, type_: FedAvgPartitionType, cid: int | None) -> Images:
        if type_ is FedAvgPartitionType.TEST:
            assert self.test is not None
            return self.test
        assert cid is not None
        return Images(*client_data(self.folder, cid))

    def set_dataset(self, type_: FedAvgPartitionType, cid: int | None, dataset: Dataset[Any]) -> None:
        """Nothing: training leaves the images as they are."""

    def get_dataloader(
        self,
        type_: FedAvgPartitionType,
        cid: int | None,
        batch_size: int | None = None,
        generator: torch.Generator | None = None,
    ) -> DataLoader[tuple[Tensor, Tensor]]:
        images = self.get_dataset(type_, cid)
        shuffle = type_ is FedAvgPartitionType.TRAIN
        return DataLoader(images, batch_size or len(images), shuffle=shuffle, generator=generator, collate_fn=as_it_is)


def on_device(inputs: Tensor, labels: Tensor) -> Images:
    return Images(inputs.to(device()), labels.to(device()))
