"""The datasets that are selected by name, and the file formats of their publishers.

Bytes come from `downloads.read`, which has verified their checksums: a file that does not parse here is a bug of this
module, not the user's mistake.
"""

import io
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from depositum.data import downloads
from depositum.data.dataset import Dataset, Samples, UntokenizedDataset, pixels_to_floats
from depositum.data.image_folders import user_images
from depositum.data.table_files import user_tables
from depositum.errors import ConfigError
from depositum.memory import available_memory, format_bytes
from depositum.randomness import numpy_generator
from depositum.registry import Registry

#: Factories of datasets. A factory may declare about itself (`Registry.attribute`):
#: `needs_tokenizer`: it returns an `UntokenizedDataset`, which only a language model can be trained on;
#: `default_loss`: the name of the loss, unless the user chooses one;
#: `path_arguments`: the names of its arguments that are paths: the data first (which may be a pattern with `{client}`),
#: then the test data;
#: `resolve_arguments(arguments, base, clients)`: its arguments with paths resolved and checked before they are read.
DATASETS = Registry[Dataset | UntokenizedDataset]("dataset")


@DATASETS.register("digits")
def digits() -> Dataset:
    """8×8 handwritten digits, included in scikit-learn, with a fixed split: 1,437 for training, 360 for testing."""
    from sklearn.datasets import load_digits  # slow to import, and few runs need it
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.2, stratify=y, random_state=0)
    return Dataset("digits", _samples(x_train, y_train), _samples(x_test, y_test), classes=10)


@DATASETS.register("a9a")
def a9a() -> Dataset:
    """Census records: 123 binary features, two classes (1: an income over 50,000)."""
    contents = downloads.read("a9a")
    train, test = (_samples(*parse_libsvm(contents[name], features=123)) for name in ("a9a", "a9a.t"))
    return Dataset("a9a", train, test, classes=2)


@DATASETS.register("mnist")
def mnist() -> Dataset:
    """28×28 handwritten digits."""
    return _idx_dataset("mnist")


@DATASETS.register("fashion-mnist")
def fashion_mnist() -> Dataset:
    """28×28 images of clothing."""
    return _idx_dataset("fashion-mnist")


@DATASETS.register("cifar10")
def cifar10() -> Dataset:
    """32×32 colour photographs of ten kinds of objects."""
    contents = downloads.read("cifar10")

    def part(*names: str) -> Samples:
        batches = [parse_cifar(contents[f"cifar-10-batches-bin/{name}.bin"]) for name in names]
        pixels, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
        return _image_samples(pixels, labels)

    train = part(*(f"data_batch_{i}" for i in range(1, 6)))
    return Dataset("cifar10", train, part("test_batch"), classes=10)


@DATASETS.register("synthetic")
def synthetic(
    samples: Annotated[int, Field(ge=1)] = 1000,
    features: Annotated[int, Field(ge=1)] = 20,
    classes: Annotated[int, Field(ge=2)] = 10,
    separation: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 4.0,
    seed: int = 0,
) -> Dataset:
    """Gaussian clusters: class k is N(c_k, I), with centres c_k drawn on the sphere of radius `separation`.

    Class sizes differ by one at most. There are `samples` training samples and a fifth as many test samples.
    """
    needed, available = 8 * features * (classes + 3 * samples) + 16 * samples, available_memory()
    if needed > available:
        what = f"{features} features in {classes} classes take {format_bytes(needed)} of memory"
        raise ConfigError("samples", f"{samples} given, which with {what}; {format_bytes(available)} are available")
    rng = numpy_generator(seed, purpose="synthetic")
    centres = rng.standard_normal((classes, features))
    centres *= separation / np.linalg.norm(centres, axis=1, keepdims=True)

    def draw(count: int) -> Samples:
        labels = rng.permutation(np.arange(count) % classes)
        return _samples((centres[labels] + rng.standard_normal((count, features))).astype(np.float32), labels)

    return Dataset("synthetic", draw(samples), draw(max(1, samples // 5)), classes=classes)


DATASETS.register("table")(user_tables)
DATASETS.register("images")(user_images)
DATASETS.register_path("dolly", "depositum.language.instruction_datasets:Dolly")
DATASETS.register_path("instructions", "depositum.language.instruction_datasets:InstructionFiles")


def parse_idx(content: bytes) -> NDArray[np.uint8]:
    """Unsigned bytes in the idx format of MNIST: two zero bytes, type 8, the rank, big-endian sizes, the values.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]))
    array([7, 8, 9], dtype=uint8)
    """
    assert content[:3] == b"\0\0\x08", "not an idx file of unsigned bytes"
    rank = content[3]
    shape = np.frombuffer(content, ">u4", count=rank, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)


def parse_cifar(content: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """One file of CIFAR-10's binary version: pixels `[N, 3, 32, 32]` and labels `[N]`.

    A record is one label byte and 3,072 pixel bytes: the red plane, then green, then blue, each row by row.
    """
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def parse_libsvm(content: bytes, features: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    r"""LIBSVM text with labels ±1: dense inputs `[N, features]` and labels `[N]`, 0 for -1 and 1 for +1.

    `features` is given because a file need not mention the last ones (`a9a.t` stops at 122 of 123).

    >>> parse_libsvm(b"-1 1:1 3:1\n+1 2:0.5\n", features=4)
    (array([[1. , 0. , 1. , 0. ],
           [0. , 0.5, 0. , 0. ]], dtype=float32), array([0, 1]))
    """
    from sklearn.datasets import load_svmlight_file  # slow to import, and few runs need it

    x, y = load_svmlight_file(io.BytesIO(content), n_features=features, dtype=np.float32, zero_based=False)
    return x.toarray(), (y > 0).astype(np.int64)


def _samples(x: NDArray[np.float32], y: NDArray[np.integer[Any]]) -> Samples:
    return Samples(torch.from_numpy(x), torch.from_numpy(y.astype(np.int64)))


def _image_samples(pixels: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Samples:
    return Samples(pixels_to_floats(pixels), torch.from_numpy(labels.astype(np.int64)))


def _idx_dataset(name: str) -> Dataset:
    arrays = {file: parse_idx(content) for file, content in downloads.read(name).items()}
    train, test = (
        _image_samples(arrays[f"{part}-images-idx3-ubyte"][:, None], arrays[f"{part}-labels-idx1-ubyte"])
        for part in ("train", "t10k")
    )
    return Dataset(name, train, test, classes=10)
