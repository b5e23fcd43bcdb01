"""A person's own data: arrays in `.npz` files, or in memory, checked before anything is trained on them.

No pickle is ever loaded: a file that holds one is refused.
"""

import re
import warnings
import zipfile
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from depositum.data.dataset import Dataset, Indices, Samples, images
from depositum.errors import DataError, listing, nearest

#: What stands for a client's number in a pattern of file names.
CLIENT = "{client}"


@dataclass(frozen=True)
class _Piece:
    """Some rows of one owner or one part, and what to call their arrays in a message."""

    x: NDArray[Any]
    y: NDArray[Any]
    x_name: str
    y_name: str


def load_own(name: str, path: Path, clients: int | None = None) -> Dataset:
    """Load a `.npz` file, a folder of one per client, or a pattern of paths with `{client}` in it."""
    if path.is_file() and CLIENT not in str(path):
        return _load_file(name, path)
    files, test = client_files(path, clients), test_file(path)
    return _pool(name, [_piece(file) for file in files], _piece(test) if test else None, owned=True)


def from_clients(
    clients: Sequence[tuple[Any, Any]],
    test: tuple[Any, Any] | None = None,
    name: str = "own",
    dtype: torch.dtype = torch.float32,
) -> Dataset:
    """One (x, y) pair of arrays or tensors per client, as a dataset that knows who owns what.

    `dtype` is that of the inputs, and of regression targets.

    >>> data = from_clients([(np.zeros((3, 2)), [0, 1, 0]), (np.ones((1, 2)), [1])])
    >>> data.classes, [part.tolist() for part in data.clients]
    (2, [[0, 1, 2], [3]])
    """
    pieces = [_Piece(_array(x), _array(y), f"client {i}: x", f"client {i}: y") for i, (x, y) in enumerate(clients)]
    if not pieces:
        raise DataError("clients: there are none; give one (x, y) pair per client")
    last = _Piece(_array(test[0]), _array(test[1]), "test: x", "test: y") if test else None
    return _pool(name, pieces, last, owned=True, dtype=dtype)


def labelled(dataset: Dataset) -> Dataset:
    """The same data with labels for targets: whole numbers from 0 on, whatever type they were saved as."""
    if dataset.classes is not None:
        return dataset
    train = replace(dataset.train, targets=_labels(dataset.train.targets.numpy(), f"{dataset.name}: y"))
    return replace(dataset, train=train, classes=1 + int(train.targets.max()))


def labels_of(dataset: Dataset) -> list[int]:
    """The labels that some sample has, in order."""
    parts = [part.targets for part in (dataset.train, dataset.test) if part is not None]
    return [] if dataset.classes is None else torch.cat(parts).unique().tolist()  # type: ignore[no-untyped-call]


def check_labels(name: str, labels: Collection[int], quiet: bool = False) -> None:
    """Say that a label is missing, of all that a model gets an output for; refuse a few among thousands.

    `labels` are those that are there, in the files of all clients.
    """
    if not labels or len(labels) == 1 + max(labels):
        return
    missing = min(set(range(len(labels) + 1)) - set(labels))
    said = f"{len(labels)} different labels, from {min(labels)} to {max(labels)}, but none is {missing}"
    if max(labels) >= max(1000, 10 * len(labels)):
        raise DataError(f"{name}: has {said}; they count classes: number them 0 … {len(labels) - 1}")
    if not quiet:
        message = f"{name}: has {said}; the model has an output for each number from 0 on"
        warnings.warn(message, RuntimeWarning, stacklevel=2)


def check_exists(path: Path, clients: int | None = None) -> None:
    """Refuse a path that leads to no data, before any of it is opened."""
    text = path.suffix == ".jsonl" or path.name.endswith(".jsonl.gz")
    kinds = f"own data is a .npz file, a folder of them, or a pattern with {CLIENT} in it"
    made = "a text is { instructions = … }" if text else "make an .npz of it: docs/data.md"
    if CLIENT not in str(path):
        if not path.exists():
            raise DataError(f"{path}: there is no such file or folder")
        if path.is_file() and path.suffix != ".npz":
            raise DataError(f"{path}: {kinds}; {made}")
        if path.is_file():
            return
        if next(path.glob("*.jsonl*"), None) is not None and next(path.glob("*.npz"), None) is None:
            raise DataError(f'{path}: holds texts; they are {{ instructions = "{path.name}/{CLIENT}.jsonl" }}')
    elif path.suffix != ".npz":
        raise DataError(f"{path}: {kinds}; {made}")
    client_files(path, clients)


def client_files(path: Path, clients: int | None = None) -> list[Path]:
    """One file per client: those of a folder by name, 2 before 10, or those of a pattern from client 0 on."""
    if CLIENT not in str(path):
        files = sorted((file for file in path.glob("*.npz") if file.name != "test.npz"), key=_natural)
        if not files:
            raise DataError(f"{path}: there is no .npz file in this folder; it should hold one per client")
        return files
    files = []
    while (file := _of_client(path, len(files))).is_file() and len(files) != clients:
        files.append(file)
    if len(files) < (clients or 1):
        raise DataError(f"{file}: there is no such file; the pattern {path} needs one for every client, from 0")
    return files


def tell_of_left_out(pattern: Path, clients: int) -> None:
    """Say that there is a file for one client more than a run has."""
    file = _of_client(pattern, clients)
    if file.is_file():
        warnings.warn(f"{file} is left out: problem.clients is {clients}", RuntimeWarning, stacklevel=2)


def test_file(path: Path) -> Path | None:
    """The test data beside the clients': `test.npz` of a folder, or the pattern's file for the client `test`."""
    file = _of_client(path, "test") if CLIENT in str(path) else path / "test.npz"
    return file if file.is_file() else None


def _of_client(pattern: Path, client: int | str) -> Path:
    return Path(str(pattern).replace(CLIENT, str(client)))


def _natural(file: Path) -> list[int | str]:
    """A key that sorts numbers within names by their value; every second part of the split is a number."""
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"([0-9]+)", file.name))]


def _load_file(name: str, path: Path) -> Dataset:
    arrays = _read(path, required=("x", "y"), optional=("x_test", "y_test", "client"))
    train = _Piece(arrays["x"], arrays["y"], f"{path}: x", f"{path}: y")
    test = None
    if "x_test" in arrays or "y_test" in arrays:
        for key in ("x_test", "y_test"):
            if key not in arrays:
                raise DataError(f"{path}: no array {key!r}, though there is the other of 'x_test' and 'y_test'")
        test = _Piece(arrays["x_test"], arrays["y_test"], f"{path}: x_test", f"{path}: y_test")
    dataset = _pool(name, [train], test, owned=False)
    if "client" not in arrays:
        return dataset
    owners = _owners(arrays["client"], len(dataset.train), f"{path}: client")
    return Dataset(name, dataset.train, dataset.test, dataset.classes, owners)


def _piece(path: Path) -> _Piece:
    arrays = _read(path, required=("x", "y"))
    return _Piece(arrays["x"], arrays["y"], f"{path}: x", f"{path}: y")


def _read(path: Path, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """The arrays of a `.npz` file, which must have these names and hold no pickle."""
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise DataError(f"{path}: is one array alone; save x and y together with np.savez")
        with file:
            _check_names(path, file.files, required, optional)
            arrays = {name: file[name] for name in file.files}
        if not all(isinstance(array, np.ndarray) for array in arrays.values()):
            raise ValueError("a member of the archive that is no array comes as bytes")
        return arrays
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, MemoryError) as error:
        # What NumPy and zipfile raise for a file that is cut short, damaged, encrypted or something else altogether.
        if "Object arrays" in str(error):
            raise DataError(f"{path}: holds Python objects (a pickle), which are never loaded; save numbers") from None
        reason = getattr(error, "strerror", None)
        raise DataError(f"{path}: " + (f"cannot be read ({reason})" if reason else "is damaged or no .npz")) from None


def _check_names(path: Path, names: Sequence[str], required: Sequence[str], optional: Sequence[str]) -> None:
    allowed = [*required, *optional]
    for name in required:
        if name not in names:
            raise DataError(f"{path}: no array {name!r}; there is {', '.join(map(repr, names)) or 'none'}")
    for name in names:
        if name not in allowed:  # a misspelt `client` would otherwise be passed over in silence
            raise DataError(f"{path}: unknown array {name!r}; it can be {listing(allowed)}{nearest(name, allowed)}")


def _pool(
    name: str, train: Sequence[_Piece], test: _Piece | None, owned: bool, dtype: torch.dtype = torch.float32
) -> Dataset:
    """Lay pieces end to end; with `owned`, each piece is a client's."""
    pieces = [*train, *([test] if test else [])]
    # Whole-number types are labels, and a single such piece says what the others must be.
    labelled = any(piece.y.dtype.kind in "iub" for piece in pieces)
    samples = [_samples(piece, labelled, dtype) for piece in pieces]
    for piece, part in zip(pieces, samples, strict=True):
        if part.inputs.shape[1:] != samples[0].inputs.shape[1:]:
            shape, first = tuple(part.inputs.shape[1:]), tuple(samples[0].inputs.shape[1:])
            raise DataError(f"{piece.x_name} has samples of shape {shape}, but {pieces[0].x_name} of {first}")
    classes = 1 + max(int(part.targets.max()) for part in samples) if labelled else None
    parts = samples[: len(train)]
    whole = Samples(torch.cat([part.inputs for part in parts]), torch.cat([part.targets for part in parts]))
    ends = np.cumsum([len(part) for part in parts])
    owners = tuple(np.split(np.arange(ends[-1]), ends[:-1])) if owned else None
    return Dataset(name, whole, samples[-1] if test else None, classes, owners)


def _samples(piece: _Piece, labelled: bool, dtype: torch.dtype) -> Samples:
    if piece.x.ndim < 2:
        raise DataError(f"{piece.x_name} has shape {piece.x.shape}; it must be [samples, features] or images")
    if piece.y.ndim == 0 or piece.y.shape[1:] not in ((), (1,)):
        raise DataError(f"{piece.y_name} has shape {piece.y.shape}; it must be [samples]")
    if len(piece.x) != len(piece.y):
        raise DataError(f"{piece.x_name} has {len(piece.x)} rows, but {piece.y_name} has {len(piece.y)}")
    if not len(piece.x):
        raise DataError(f"{piece.x_name} has no rows")
    y = piece.y.reshape(-1)
    targets = _labels(y, piece.y_name) if labelled else _finite(y, piece.y_name, dtype)
    return Samples(_inputs(piece.x, piece.x_name, dtype), targets)


def _inputs(x: NDArray[Any], name: str, dtype: torch.dtype) -> Tensor:
    """Floating-point inputs; bytes in three or four dimensions are the pixels of images."""
    if x.dtype == np.uint8 and x.ndim == 4 and x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        taken = f"{name} has shape {x.shape}, taken as [samples, channels, height, width]"
        warnings.warn(f"{taken}; where channels are last, save x.transpose(0, 3, 1, 2)", RuntimeWarning, stacklevel=2)
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        pixels = images(x).to(dtype)
        return pixels.unsqueeze(1) if x.ndim == 3 else pixels
    return _finite(x, name, dtype)


def _finite(values: NDArray[Any], name: str, dtype: torch.dtype) -> Tensor:
    if values.dtype.kind not in "biuf":
        raise DataError(f"{name} has type {values.dtype}; it must be numbers")
    # NumPy converts what torch has no type for (uint16, big-endian); float64 holds all of them.
    tensor = torch.from_numpy(values.astype(np.float32 if values.dtype == np.float32 else np.float64)).to(dtype)
    bad = ~torch.isfinite(tensor).reshape(len(tensor), -1).all(dim=1)
    if bad.any():
        row = int(bad.int().argmax())
        large = f"too large for {str(dtype).removeprefix('torch.')}"
        what = large if np.isfinite(values[row]).all() else "not finite"
        raise DataError(f"{name} has a value that is {what}, first in row {row}")
    return tensor


def _labels(y: NDArray[Any], name: str) -> Tensor:
    values = _finite(y, name, torch.float64)
    labels = values.long()
    wrong = (labels != values) | (labels < 0)
    if wrong.any():
        row = int(wrong.int().argmax())
        raise DataError(f"{name} has {values[row]:g} in row {row}; labels are whole numbers from 0 on")
    return labels


def _owners(client: NDArray[Any], samples: int, name: str) -> tuple[Indices, ...]:
    """The rows of each client, from one client number per row."""
    if client.shape != (samples,) or client.dtype.kind not in "iu":
        raise DataError(f"{name} has shape {client.shape} and type {client.dtype}; it must be one whole number per row")
    ids, sizes = np.unique(client, return_counts=True)
    if not np.array_equal(ids, np.arange(len(ids))):
        missing = next(i for i in range(len(ids) + 1) if i not in ids)
        gap = f" without {missing}" if missing < ids[-1] else ""
        raise DataError(f"{name} goes from {ids[0]} to {ids[-1]}{gap}; the ids of n clients are 0 … n−1, with no gap")
    return tuple(np.split(np.argsort(client, kind="stable"), np.cumsum(sizes)[:-1]))


def _array(values: Any) -> NDArray[Any]:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
