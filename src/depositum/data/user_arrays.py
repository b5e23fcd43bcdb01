"""The user's arrays in `.npz` files, validated before anything is trained on them.

Pickles are never loaded: a file that contains one is rejected.
"""

import os
import warnings
import zipfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from depositum.bounded_reading import is_regular, open_regular_file, read_array
from depositum.data.client_files import CLIENT_PLACEHOLDER, client_files, shared_test_file
from depositum.data.dataset import Dataset, Indices, Samples, pixels_to_floats
from depositum.data.table_files import TABLE_ENDINGS
from depositum.errors import DataError, listing, nearest, short_repr


@dataclass(frozen=True)
class _Arrays:
    """The inputs and targets of one file or client, and their names in error messages."""

    x: NDArray[Any]
    y: NDArray[Any]
    x_name: str
    y_name: str


def load_arrays(name: str, path: Path, clients: int | None = None) -> Dataset:
    """Load a `.npz` file, a folder with one per client, or a pattern of paths with `{client}` in it."""
    if path.is_file() and CLIENT_PLACEHOLDER not in str(path):
        return _load_file(name, path)
    files, test = client_files(path, clients), shared_test_file(path)
    return _concatenate(name, [_read_pair(file) for file in files], _read_pair(test) if test else None, owned=True)


def with_integer_labels(dataset: Dataset) -> Dataset:
    """The same data with class labels as targets: integers from 0, whatever type they were saved as."""
    if dataset.classes is not None:
        return dataset
    train = replace(dataset.train, targets=_labels(dataset.train.targets.numpy(), f"{dataset.name}: y"))
    return replace(dataset, train=train, classes=1 + int(train.targets.max()))


def observed_labels(dataset: Dataset) -> list[int]:
    """The labels that occur in the training or test data, in order."""
    parts = [part.targets for part in (dataset.train, dataset.test) if part is not None]
    return [] if dataset.classes is None else torch.cat(parts).unique().tolist()  # type: ignore[no-untyped-call]


def check_labels(name: str, labels: Collection[int], quiet: bool = False) -> None:
    """Warn if a label between 0 and the largest does not occur; reject a few labels among thousands of numbers.

    `labels` are those that occur in the files of all clients. A model has one output for each number up to the largest.
    """
    if not labels or len(labels) == 1 + max(labels):
        return
    missing = min(set(range(len(labels) + 1)) - set(labels))
    found = f"{len(labels)} different labels, from {min(labels)} to {max(labels)}, but none is {missing}"
    if max(labels) >= max(1000, 10 * len(labels)):
        raise DataError(f"{name}: has {found}; labels are class indices: number them 0 … {len(labels) - 1}")
    if not quiet:
        message = f"{name}: has {found}; the model has an output for each number from 0"
        warnings.warn(message, RuntimeWarning, stacklevel=2)


def check_path(path: Path, clients: int | None = None) -> None:
    """Reject a path without usable data, before any file is opened."""
    if CLIENT_PLACEHOLDER not in str(path):
        if not path.exists():
            raise DataError(f"{path}: no such file or folder")
        if not path.is_dir():
            if not is_regular(path) or path.suffix != ".npz":
                raise _not_arrays(path)
            return
        if next(path.glob("*.jsonl*"), None) is not None and next(path.glob("*.npz"), None) is None:
            pattern = f"{path.name}/{CLIENT_PLACEHOLDER}.jsonl"
            raise DataError(f'{path}: contains text files; use {{ instructions = "{pattern}" }}')
        names = [file.name for file in path.iterdir()]
        if any(name.endswith(TABLE_ENDINGS) for name in names) and not any(name.endswith(".npz") for name in names):
            raise DataError(f"{path}: contains tables; use {{ table = {{ path = …, target = … }} }}")
    elif path.suffix != ".npz":
        raise _not_arrays(path)
    client_files(path, clients)


def _not_arrays(path: Path) -> DataError:
    allowed = f"a dataset is a .npz file, a folder of them, or a pattern with {CLIENT_PLACEHOLDER} in it"
    if path.name.endswith(TABLE_ENDINGS):
        advice = "for a table, use { table = { path = …, target = … } }"
    elif path.name.endswith((".jsonl", ".jsonl.gz")):
        advice = "for text, use { instructions = … }"
    else:
        advice = "convert the file to .npz: docs/data.md"
    return DataError(f"{path}: {allowed}; {advice}")


def _load_file(name: str, path: Path) -> Dataset:
    arrays = _read(path, required=("x", "y"), optional=("x_test", "y_test", "client"))
    train = _Arrays(arrays["x"], arrays["y"], f"{path}: x", f"{path}: y")
    test = None
    if "x_test" in arrays or "y_test" in arrays:
        for key in ("x_test", "y_test"):
            if key not in arrays:
                raise DataError(f"{path}: no array {key!r}; 'x_test' and 'y_test' must be given together")
        test = _Arrays(arrays["x_test"], arrays["y_test"], f"{path}: x_test", f"{path}: y_test")
    dataset = _concatenate(name, [train], test, owned=False)
    if "client" not in arrays:
        return dataset
    return replace(dataset, clients=_samples_of_clients(arrays["client"], len(dataset.train), f"{path}: client"))


def _read_pair(path: Path) -> _Arrays:
    arrays = _read(path, required=("x", "y"))
    return _Arrays(arrays["x"], arrays["y"], f"{path}: x", f"{path}: y")


def _read(path: Path, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """The arrays of a `.npz` file, which must have these names and contain no pickle."""
    with open_regular_file(path) as file:
        packed = os.fstat(file.fileno()).st_size
        if file.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX:
            raise DataError(f"{path}: contains a single array; save x and y in one file with np.savez")
        with _damage_reported(path), zipfile.ZipFile(file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            _check_names(path, list(members), required, optional)
            out = {}
            for name, info in members.items():
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise ValueError("not what NumPy writes, and decoders of other formats may need any memory")
                with archive.open(info) as member:
                    out[name] = read_array(member, f"{path}: {name}", packed)
            return out


@contextmanager
def _damage_reported(path: Path) -> Iterator[None]:
    """One line for whatever NumPy and zipfile raise for a file that is truncated, damaged or of another format.

    zipfile alone raises a dozen types; so every exception means the same here.
    """
    try:
        yield
    except DataError:
        raise
    except Exception:
        raise DataError(f"{path}: is damaged or not a .npz file") from None


def _check_names(path: Path, names: Sequence[str], required: Sequence[str], optional: Sequence[str]) -> None:
    allowed = [*required, *optional]
    for name in required:
        if name not in names:
            raise DataError(
                f"{path}: no array {name!r}; the file contains {', '.join(map(short_repr, names[:5])) or 'none'}"
            )
    for name in names:
        if name not in allowed:  # a misspelt `client` would otherwise be ignored silently
            near = nearest(name[:100], allowed)
            raise DataError(f"{path}: unknown array {short_repr(name)}; it can be {listing(allowed)}{near}")


def _concatenate(
    name: str, train: Sequence[_Arrays], test: _Arrays | None, owned: bool, dtype: torch.dtype = torch.float32
) -> Dataset:
    """Join validated arrays into one dataset; with `owned`, each of them is one client's."""
    pairs = [*train, *([test] if test else [])]
    # Integer types are labels; if one pair has labels, the others must have labels too.
    labelled = any(pair.y.dtype.kind in "iub" for pair in pairs)
    samples = [_samples(pair, labelled, dtype) for pair in pairs]
    for pair, part in zip(pairs, samples, strict=True):
        if part.inputs.shape[1:] != samples[0].inputs.shape[1:]:
            shape, first = tuple(part.inputs.shape[1:]), tuple(samples[0].inputs.shape[1:])
            raise DataError(f"{pair.x_name} has samples of shape {shape}, but {pairs[0].x_name} of {first}")
    classes = 1 + max(int(part.targets.max()) for part in samples) if labelled else None
    parts = samples[: len(train)]
    joined = Samples(torch.cat([part.inputs for part in parts]), torch.cat([part.targets for part in parts]))
    ends = np.cumsum([len(part) for part in parts])
    clients = tuple(np.split(np.arange(ends[-1]), ends[:-1])) if owned else None
    return Dataset(name, joined, samples[-1] if test else None, classes, clients)


def _samples(arrays: _Arrays, labelled: bool, dtype: torch.dtype) -> Samples:
    if arrays.x.ndim < 2:
        raise DataError(f"{arrays.x_name} has shape {arrays.x.shape}; it must be [samples, features] or images")
    if arrays.y.ndim == 0 or arrays.y.shape[1:] not in ((), (1,)):
        raise DataError(f"{arrays.y_name} has shape {arrays.y.shape}; it must be [samples]")
    if len(arrays.x) != len(arrays.y):
        raise DataError(f"{arrays.x_name} has {len(arrays.x)} rows, but {arrays.y_name} has {len(arrays.y)}")
    if not len(arrays.x):
        raise DataError(f"{arrays.x_name} has no rows")
    y = arrays.y.reshape(-1)
    targets = _labels(y, arrays.y_name) if labelled else _finite_tensor(y, arrays.y_name, dtype)
    return Samples(_inputs(arrays.x, arrays.x_name, dtype), targets)


def _inputs(x: NDArray[Any], name: str, dtype: torch.dtype) -> Tensor:
    """Floating-point inputs; bytes in three or four dimensions are the pixels of images."""
    if x.dtype == np.uint8 and x.ndim == 4 and x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        warnings.warn(
            f"{name} has shape {x.shape}, read as [samples, channels, height, width]; if channels are last, save "
            "x.transpose(0, 3, 1, 2)",
            RuntimeWarning,
            stacklevel=2,
        )
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        pixels = pixels_to_floats(x).to(dtype)
        return pixels.unsqueeze(1) if x.ndim == 3 else pixels
    return _finite_tensor(x, name, dtype)


def _finite_tensor(values: NDArray[Any], name: str, dtype: torch.dtype) -> Tensor:
    if values.dtype.kind not in "biuf":
        raise DataError(f"{name} has type {values.dtype}; it must contain numbers")
    # NumPy converts types that torch does not have (uint16, big-endian); float64 represents all of them.
    tensor = torch.from_numpy(values.astype(np.float32 if values.dtype == np.float32 else np.float64)).to(dtype)
    bad = ~torch.isfinite(tensor).reshape(len(tensor), -1).all(dim=1)
    if bad.any():
        row = int(bad.int().argmax())
        too_large = f"too large for {str(dtype).removeprefix('torch.')}"
        problem = too_large if np.isfinite(values[row]).all() else "not finite"
        raise DataError(f"{name} has a value that is {problem}, first in row {row}")
    return tensor


def _labels(y: NDArray[Any], name: str) -> Tensor:
    values = _finite_tensor(y, name, torch.float64)
    labels = values.long()
    wrong = (labels != values) | (labels < 0)
    if wrong.any():
        row = int(wrong.int().argmax())
        raise DataError(f"{name} has {values[row]:g} in row {row}; labels are whole numbers from 0")
    return labels


def _samples_of_clients(client: NDArray[Any], samples: int, name: str) -> tuple[Indices, ...]:
    """The rows of each client, from the client index of every row, `[samples]`."""
    if client.shape != (samples,) or client.dtype.kind not in "iu":
        raise DataError(f"{name} has shape {client.shape} and type {client.dtype}; it must be one whole number per row")
    ids, sizes = np.unique(client, return_counts=True)
    if not np.array_equal(ids, np.arange(len(ids))):
        missing = next(i for i in range(len(ids) + 1) if i not in ids)
        gap = f" without {missing}" if missing < ids[-1] else ""
        raise DataError(f"{name} goes from {ids[0]} to {ids[-1]}{gap}; n clients are numbered 0 … n−1 without gaps")
    return tuple(np.split(np.argsort(client, kind="stable"), np.cumsum(sizes)[:-1]))
