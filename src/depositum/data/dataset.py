"""What every source gives and everything else takes: samples, and who owns them if the data says so."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: Positions of samples in a part of a dataset, `[k]` int64.
Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs with their targets, row by row.

    >>> len(Samples(torch.zeros(5, 3), torch.zeros(5, dtype=torch.int64)))
    5
    """

    inputs: Tensor  #: `[N, features]`, or images `[N, channels, height, width]` with pixels in [0, 1]
    targets: Tensor  #: `[N]`: int64 labels 0…classes-1, or floating-point values for regression
    categories: tuple[str, ...] = ()  #: names of kinds of samples, where measures are to be told apart by them
    category: Tensor | None = None  #: `[N]` int64, the place of a sample's kind in `categories`

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, places: Indices | Tensor) -> Self:
        """Some of the samples, in this order."""
        rows = torch.as_tensor(places)
        category = None if self.category is None else self.category[rows]
        return replace(self, inputs=self.inputs[rows], targets=self.targets[rows], category=category)

    def with_own_categories(self) -> Self:
        """The same samples with the names of those categories alone that some of them have."""
        if self.category is None:
            return self
        there, codes = np.unique(self.category.numpy(), return_inverse=True)
        return replace(self, categories=tuple(self.categories[k] for k in there), category=torch.from_numpy(codes))


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named dataset: what is trained on, and what is only evaluated."""

    name: str
    train: Samples
    test: Samples | None = None
    classes: int | None = None  #: how many labels there are; None for regression
    clients: tuple[Indices, ...] | None = None  #: each client's training samples, where the data itself says
    #: Where every seed has a split of its own: the places in `train` and in `test` that are a seed's.
    split: Callable[[int], tuple[Indices, Indices]] | None = None

    @property
    def kinds(self) -> NDArray[np.int64] | None:
        """What partitions by class go by, `[N]`: the training samples' labels, or the categories of texts."""
        if self.classes is not None:
            return self.train.targets.cpu().numpy()
        return None if self.train.category is None else self.train.category.cpu().numpy()


def images(pixels: NDArray[np.uint8]) -> Tensor:
    """Bytes 0…255 as float32 in [0, 1], of the same shape; not standardised, as in the paper's experiments.

    >>> images(np.array([0, 51, 255], dtype=np.uint8))
    tensor([0.0000, 0.2000, 1.0000])
    """
    return torch.from_numpy(np.divide(pixels, 255, dtype=np.float32))
