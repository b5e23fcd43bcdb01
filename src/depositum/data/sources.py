"""Datasets by name, and what a person may write instead of a name."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from depositum.data import files, formats, own, text
from depositum.data.dataset import Dataset, Samples, images
from depositum.data.text import Text
from depositum.errors import ConfigError, DataError, listing, nearest
from depositum.randomness import numpy_generator
from depositum.registry import Choice, Registry, Spec

#: Factories of datasets, or of texts, which the model's tokenizer makes one of.
DATASETS = Registry[Dataset | Text]("dataset")
DATASETS.register("dolly")(text.dolly)
DATASETS.register("instructions")(text.own_instructions)


def load(
    spec: Spec | os.PathLike[str], base: Path | None = None, clients: int | None = None, tokenizer: str | None = None
) -> Dataset:
    """Load a dataset by name, `{ name = { … } }`, or path; the data has been checked when this returns.

    Parameters
    ----------
    spec
        A name of `DATASETS`, or a path: a `.npz` file, a folder of one per client, a pattern with `{client}`.
    base
        The folder that relative paths start from; the current one if not given.
    clients
        How many clients' files a pattern stands for; all there are, from 0 on, if not given.
    tokenizer
        The name of the language model's tokenizer, for datasets of text.

    >>> data = load("digits")
    >>> tuple(data.train.inputs.shape), len(data.test), data.classes
    ((1437, 1, 8, 8), 360, 10)
    """
    chosen = _choice(spec, "problem.dataset", base)
    if isinstance(chosen, Choice):
        made = _located(chosen, base, clients).make()
        if isinstance(made, Dataset):
            return made
        if tokenizer is None:
            said = f"{chosen.name!r} is text, for a language model: {{ lora = … }}, or in Python a tokenizer"
            raise ConfigError("problem.model", said)
        return made.tokenised(tokenizer)
    own.check_exists(chosen, clients)
    return own.load_own(str(spec), chosen, clients)


def check(
    spec: Spec | os.PathLike[str], key: str = "problem.dataset", base: Path | None = None, clients: int | None = None
) -> None:
    """Refuse, before anything is loaded, a name, argument or path that `load` could not use."""
    chosen = _choice(spec, key, base)
    if isinstance(chosen, Path):
        own.check_exists(chosen, clients)
    else:
        _located(chosen, base, clients)


def is_text(spec: object) -> bool:
    """Whether a dataset is of text, which only a language model takes."""
    name = next(iter(spec), None) if isinstance(spec, Mapping) else spec
    return name in ("dolly", "instructions")


def _located(chosen: "Choice[Dataset | Text]", base: Path | None, clients: int | None) -> "Choice[Dataset | Text]":
    """A choice whose files of instructions are named in full, and are there: of a pattern, one per client."""
    if chosen.name != "instructions":
        return chosen
    given = dict(chosen.arguments)
    file = given["file"]
    paths = [(base or Path()) / Path(path).expanduser() for path in ([file] if isinstance(file, str) else file)]
    if isinstance(file, str) and own.CLIENT in file:
        test = own.test_file(paths[0])
        paths = own.client_files(paths[0], clients)
        given.setdefault("test_file", None if test is None else str(test))
        file = [file]
    if given.get("test_file") is not None:
        given["test_file"] = str((base or Path()) / Path(given["test_file"]).expanduser())
    for path in (*paths, *([Path(given["test_file"])] if given.get("test_file") else [])):
        if not path.is_file():
            raise DataError(f"{path}: there is no such file")
    given["file"] = str(paths[0]) if isinstance(file, str) else [str(path) for path in paths]
    return Choice(chosen.name, chosen.factory, given)


def _choice(spec: Spec | os.PathLike[str], key: str, base: Path | None) -> "Choice[Dataset | Text] | Path":
    """The dataset or the path that is meant: a name comes first, so a folder `mnist` is written `./mnist`."""
    if isinstance(spec, Mapping) or (isinstance(spec, str) and spec in DATASETS):
        return DATASETS.parse(spec, key)
    if not isinstance(spec, str | os.PathLike):
        raise ConfigError(key, f"{spec!r} given; it must be a name, a table {{ name = {{ … }} }} or a path")
    path = (base or Path()) / Path(spec).expanduser()
    text = os.fspath(spec)
    looks_so = text.endswith(".npz") or own.CLIENT in text or os.path.basename(text) != text or path.exists()
    if isinstance(spec, str) and not looks_so:
        paths = "or a path to a .npz file or a folder (docs/data.md)"
        problem = f"{spec!r} is no dataset; it can be {listing(DATASETS)}, {paths}"
        raise ConfigError(key, problem + nearest(spec, DATASETS))
    return path


@DATASETS.register("digits")
def digits() -> Dataset:
    """8×8 handwritten digits that come with scikit-learn, in one fixed split: 1,437 to train on, 360 to test."""
    from sklearn.datasets import load_digits  # slow to import, and few runs need it
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.2, stratify=y, random_state=0)
    return Dataset("digits", _samples(x_train, y_train), _samples(x_test, y_test), classes=10)


@DATASETS.register("a9a")
def a9a() -> Dataset:
    """Census records, 123 binary features, two classes (1: an income over 50,000)."""
    contents = files.read("a9a")
    train, test = (_samples(*formats.libsvm(contents[name], features=123)) for name in ("a9a", "a9a.t"))
    return Dataset("a9a", train, test, classes=2)


@DATASETS.register("mnist")
def mnist() -> Dataset:
    """28×28 handwritten digits."""
    return _idx_images("mnist")


@DATASETS.register("fashion-mnist")
def fashion_mnist() -> Dataset:
    """28×28 pictures of clothing."""
    return _idx_images("fashion-mnist")


@DATASETS.register("cifar10")
def cifar10() -> Dataset:
    """32×32 colour photographs of ten kinds of things."""
    contents = files.read("cifar10")

    def part(*names: str) -> Samples:
        batches = [formats.cifar(contents[f"cifar-10-batches-bin/{name}.bin"]) for name in names]
        pixels, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
        return _images(pixels, labels)

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

    Classes are as equal as they can be. A fifth as many samples again are for testing.
    """
    rng = numpy_generator(seed, purpose="synthetic")
    centres = rng.standard_normal((classes, features))
    centres *= separation / np.linalg.norm(centres, axis=1, keepdims=True)

    def draw(count: int) -> Samples:
        labels = rng.permutation(np.arange(count) % classes)
        return _samples((centres[labels] + rng.standard_normal((count, features))).astype(np.float32), labels)

    return Dataset("synthetic", draw(samples), draw(max(1, samples // 5)), classes=classes)


def _samples(x: NDArray[np.float32], y: NDArray[np.integer[Any]]) -> Samples:
    return Samples(torch.from_numpy(x), torch.from_numpy(y.astype(np.int64)))


def _images(pixels: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Samples:
    return Samples(images(pixels), torch.from_numpy(labels.astype(np.int64)))


def _idx_images(name: str) -> Dataset:
    arrays = {file: formats.idx(content) for file, content in files.read(name).items()}
    train, test = (
        _images(arrays[f"{part}-images-idx3-ubyte"][:, None], arrays[f"{part}-labels-idx1-ubyte"])
        for part in ("train", "t10k")
    )
    return Dataset(name, train, test, classes=10)
