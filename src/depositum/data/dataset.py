"""Samples and datasets: what every data source returns and everything else takes."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from depositum.errors import DataError
from depositum.randomness import numpy_generator

#: Indices of samples, `[k]` int64.
Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs and their targets.

    >>> len(Samples(torch.zeros(5, 3), torch.zeros(5, dtype=torch.int64)))
    5
    """

    inputs: Tensor  #: `[N, features]`, or images `[N, channels, height, width]` with pixels in [0, 1]
    targets: Tensor  #: `[N]`: int64 labels 0…classes-1, or floating-point values for regression
    categories: tuple[str, ...] = ()  #: names of the categories, if measures are reported for each of them
    category: Tensor | None = None  #: `[N]` int64, the index of each sample's category in `categories`

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, indices: Indices | Tensor) -> Self:
        """The samples at these indices, in this order."""
        rows = torch.as_tensor(indices)
        category = None if self.category is None else self.category[rows]
        return replace(self, inputs=self.inputs[rows], targets=self.targets[rows], category=category)

    def padded_to(self, length: int) -> Self:
        """The samples with sequences padded to `length`; samples of a fixed shape are returned unchanged."""
        return self

    def without_unused_categories(self) -> Self:
        """The same samples, with the names of only those categories that occur among them."""
        if self.category is None:
            return self
        used, codes = np.unique(self.category.numpy(), return_inverse=True)
        return replace(self, categories=tuple(self.categories[k] for k in used), category=torch.from_numpy(codes))


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named dataset: training samples, and samples that are only evaluated on."""

    name: str
    train: Samples
    test: Samples | None = None
    classes: int | None = None  #: number of classes; None for regression
    clients: tuple[Indices, ...] | None = None  #: each client's training samples, if the data defines them
    class_names: tuple[str, ...] = ()  #: the class of each label, if the data has names instead of numbers
    feature_names: tuple[str, ...] = ()  #: what each input is, if the data is a table
    client_names: tuple[str, ...] = ()  #: what the data calls each of `clients`
    #: If every seed has its own split: maps a seed to its indices into `train` and into `test`.
    split: Callable[[int], tuple[Indices, Indices]] | None = None

    @property
    def class_labels(self) -> NDArray[np.int64] | None:
        """The classes `[N]` by which training samples are partitioned: labels, or the categories of texts."""
        if self.classes is not None:
            return self.train.targets.cpu().numpy()
        return None if self.train.category is None else self.train.category.cpu().numpy()


def encoding_digest(class_names: Sequence[str], feature_names: Sequence[str]) -> str:
    """A digest of how a table became numbers, by which processes compare their encodings without sending names."""
    return hashlib.sha256(repr((tuple(class_names), tuple(feature_names))).encode()).hexdigest()[:16]


class UntokenizedDataset(Protocol):
    """A dataset of text: it has samples only once a model's tokenizer is known."""

    def tokenize(self, tokenizer: str) -> Dataset:
        """The samples as token ids of the tokenizer with this name or path."""
        ...


def pixels_to_floats(pixels: NDArray[np.uint8]) -> Tensor:
    """Bytes 0…255 as float32 in [0, 1], of the same shape; not standardised, as in the paper's experiments.

    >>> pixels_to_floats(np.array([0, 51, 255], dtype=np.uint8))
    tensor([0.0000, 0.2000, 1.0000])
    """
    return torch.from_numpy(np.divide(pixels, 255, dtype=np.float32))


def hold_out(dataset: Dataset, share: float, seed: int) -> Dataset:
    """Replace the test data by `share` of the training samples, drawn from every class in proportion.

    Hyper-parameters are chosen on this part, so that the test data stays unseen. The same seed gives the same samples.
    If the data defines the clients, they keep their remaining samples.

    >>> from depositum.data import load
    >>> part = hold_out(load("digits"), 0.1, seed=0)
    >>> len(part.train), len(part.test)
    (1295, 142)
    """
    samples = len(dataset.train)
    held_out = _stratified_sample(dataset, share, numpy_generator(seed, purpose="holdout"))
    remaining = np.setdiff1d(np.arange(samples), held_out)
    if not len(held_out) or not len(remaining):
        raise DataError(f"a share of {share!r} of {samples} training samples leaves none to train on, or none to test")
    clients = dataset.clients
    if clients is not None:
        new_index = np.full(samples, -1)
        new_index[remaining] = np.arange(len(remaining))
        clients = tuple(new_index[part][new_index[part] >= 0] for part in clients)
    return replace(dataset, train=dataset.train.take(remaining), test=dataset.train.take(held_out), clients=clients)


def with_test_share(dataset: Dataset, share: float, seed: int) -> Dataset:
    """The dataset with `share` of its samples as test data (see `hold_out`); every client must keep at least one."""
    out = hold_out(dataset, share, seed)
    for i, part in enumerate(out.clients or ()):
        if not len(part):
            name = f" ({dataset.client_names[i]!r})" if dataset.client_names else ""
            raise DataError(f"{dataset.name}: client {i}{name} keeps no sample if {share:g} of all are test data")
    return out


def _stratified_sample(dataset: Dataset, share: float, rng: np.random.Generator) -> Indices:
    """Sorted indices of `share` of the training samples of each class, or of all of them if there are no classes."""
    targets = dataset.train.targets.numpy()
    stratified = dataset.classes is not None and targets.ndim == 1
    groups = (
        [np.flatnonzero(targets == label) for label in np.unique(targets)] if stratified else [np.arange(len(targets))]
    )
    return np.sort(np.concatenate([rng.permutation(group)[: round(share * len(group))] for group in groups]))
