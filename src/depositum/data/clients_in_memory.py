"""The user's data in Python, in whatever form it is there, as a dataset with one part per client."""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import data as torch_data

from depositum.bounded_reading import check_size
from depositum.data.client_files import CLIENT_PLACEHOLDER
from depositum.data.dataset import Dataset, Samples
from depositum.data.table_files import TABLE_ENDINGS, is_one_per_client, read_table, table_files
from depositum.data.tables import IN_MEMORY, Table, as_table, dataset_of_tables, with_declared_classes
from depositum.data.user_arrays import check_path, load_arrays
from depositum.errors import ConfigError, DataError, describe_exception, short_repr, with_article
from depositum.validation import as_list, as_path

if TYPE_CHECKING:
    import pandas as pd

#: What `clients` may be, in error messages.
_EXPECTED = "a list of (inputs, targets), one per client"
#: How one dataset becomes one per client, in error messages.
_SPLIT = "give one per client, as torch.utils.data.random_split(dataset, [1 / n] * n) makes them"


@contextmanager
def _named(argument: str) -> Iterator[None]:
    """Begin errors about files with the argument that named them; others begin with it already."""
    try:
        yield
    except DataError as error:
        text = str(error)
        raise DataError(text if re.match(r"(clients|test)[:\[]", text) else f"{argument}: {text}") from None


@_named("clients")
def from_clients(clients: Any, test: Any = None, *, by: str | None = None, target: str | None = None) -> Dataset:
    """A dataset from the clients' data; `Dataset.clients` are each client's samples.

    Parameters
    ----------
    clients
        One item per client, as a sequence or a mapping from their names: a pair (inputs, targets) of arrays, a table,
        or a torch `Dataset` or `DataLoader` of such pairs. Or one table for all, with `by`. A table is a pandas
        `DataFrame`, an object with `to_pandas()` (Hugging Face `datasets`, Polars, Arrow), or a path to a CSV or
        Parquet file. A path may also be a folder or a pattern with one file per client, or a `.npz` file.
    test
        Data that is evaluated and never trained on, in any of the forms of one client.
    by
        The column of the table that names the client of each row.
    target
        The column of the tables to predict.

    >>> data = from_clients([(np.zeros((3, 2)), [0, 1, 0]), (np.ones((1, 2)), [1])])
    >>> data.classes, [part.tolist() for part in data.clients]
    (2, [[0, 1, 2], [3]])
    """
    for key, column in (("by", by), ("target", target)):
        if column is not None and not isinstance(column, str):
            raise ConfigError(key, f"{short_repr(column)} given; it must be the name of a column")
    if isinstance(clients, str | os.PathLike):
        return _from_path(as_path(os.fspath(clients), "clients", _EXPECTED), test, by, target)
    if (frame := _as_frame(clients, target)) is not None:
        if by is None:
            problem = "missing; it names the column of the table that says which client a row belongs to"
            raise ConfigError("by", f"{problem}; or give a list of tables, one per client")
        return _from_tables([_table(frame, "clients", target, by)], _test_table(test, target, by))
    names, items = _items(clients)
    if by is not None:
        problem = f"{short_repr(by)} given, but the data is not one table for all clients"
        raise ConfigError("by", f"{problem}; leave it out")
    keys = [f"clients[{name!r}]" if isinstance(clients, Mapping) else f"clients[{i}]" for i, name in enumerate(names)]
    if any(_is_table(item) for item in items):
        tables = [_client_table(item, key, target) for item, key in zip(items, keys, strict=True)]
        return _from_tables(tables, _test_table(test, target), names)
    if target is not None:
        problem = f"{short_repr(target)} given, but the clients' data are not tables with named columns"
        raise ConfigError("target", f"{problem}; leave it out")
    pairs = [_samples(item, key) for item, key in zip(items, keys, strict=True)]
    return _from_samples(pairs, keys, None if test is None else _samples(test, "test"), names)


def _items(clients: Any) -> tuple[list[str], list[Any]]:
    """The clients' names and data; the names are empty where the user gave none."""
    if isinstance(clients, torch_data.Dataset | torch_data.DataLoader):
        raise ConfigError("clients", f"{with_article(type(clients).__name__)} given, one for all; {_SPLIT}")
    if isinstance(clients, Mapping):
        if _is_collection_of_splits(clients):
            problem = f"{with_article(type(clients).__name__)} with the splits {', '.join(map(repr, clients))} given"
            raise ConfigError("clients", f"{problem}; give one of them, and another as test")
        names, items = list(map(str, clients)), list(clients.values())
    else:
        items = as_list(clients, "clients", _EXPECTED)
        names = [""] * len(items)
    if not items:
        raise ConfigError("clients", f"no client given; it must be {_EXPECTED}")
    return names, items


# Tables


def _from_tables(tables: Sequence[Table], test: Table | None, names: Sequence[str] = ()) -> Dataset:
    named = list(names) if any(names) else [table.name for table in tables]
    dataset = dataset_of_tables("user data", tables, test, IN_MEMORY, named)
    return dataset if any(names) or tables[0].owners is not None else replace(dataset, client_names=())


def _is_table(item: Any) -> bool:
    """Whether a client's data is a table, or a pair of a table of inputs and a column of targets."""
    if _is_pair(item):
        item = item[0]
    return isinstance(item, str | os.PathLike) or _is_frame(item)


def _client_table(item: Any, key: str, target: str | None) -> Table:
    """The table of one client, named `key` in errors."""
    import pandas as pd

    if _is_pair(item) and _is_frame(item[0]):
        if target is not None:
            raise ConfigError(
                "target", f"{short_repr(target)} given, but {key} is a pair (inputs, targets); leave it out"
            )
        targets = item[1].detach().cpu().numpy() if isinstance(item[1], Tensor) else item[1]
        try:
            series = pd.Series(targets).reset_index(drop=True)
        except (TypeError, ValueError) as error:
            raise ConfigError(key, f"targets must be one column: {describe_exception(error)}") from None
        features = _frame_of(item[0])
        if len(features) != len(series):
            raise ConfigError(key, f"{len(features)} inputs but {len(series)} targets")
        if not len(series):
            raise ConfigError(key, "has no samples; every client needs at least one")
        return Table(features, series.rename(str(series.name or "target")), key)
    frame = read_table(_table_file(item, key)) if isinstance(item, str | os.PathLike) else _as_frame(item, target)
    if frame is None:
        raise ConfigError(key, f"{with_article(type(item).__name__)} given, but other clients' data are tables")
    return _table(frame, key, target)


def _test_table(test: Any, target: str | None, by: str | None = None) -> Table | None:
    if test is None:
        return None
    if not _is_table(test):
        raise ConfigError("test", f"{with_article(type(test).__name__)} given, but the clients' data are tables")
    if _is_pair(test):
        return _client_table(test, "test", None)
    with _named("test"):
        frame = (
            read_table(_table_file(test, "test")) if isinstance(test, str | os.PathLike) else _as_frame(test, target)
        )
    assert frame is not None
    return _table(frame.drop(columns=[by] if by in frame.columns else []), "test", target)


def _table(frame: "pd.DataFrame", key: str, target: str | None, by: str | None = None) -> Table:
    if target is None:
        columns = ", ".join(short_repr(column) for column in frame.columns[:8])
        raise ConfigError("target", f"missing; it names the column to predict; {key} has {columns or 'no columns'}")
    if not len(frame):
        raise ConfigError(key, "has no samples; every client needs at least one")
    return as_table(frame, key, target, by)


def _as_frame(item: Any, target: str | None) -> "pd.DataFrame | None":
    """A table as a frame with the class names that it declares; None for anything else."""
    if not _is_frame(item):
        return None
    features = getattr(item, "features", None)
    frame = _frame_of(item)
    return with_declared_classes(frame, target, features) if target and isinstance(features, Mapping) else frame


def _frame_of(item: Any) -> "pd.DataFrame":
    import pandas as pd

    if isinstance(item, pd.DataFrame):
        return item.reset_index(drop=True)
    frame = item.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    return frame.reset_index(drop=True)


def _is_frame(item: Any) -> bool:
    """Whether an object is a table: a pandas frame, or one that can be converted to it."""
    pandas = sys.modules.get("pandas")  # without pandas loaded there are no frames of it
    if pandas is not None and isinstance(item, pandas.DataFrame):
        return True
    return hasattr(item, "to_pandas") and (hasattr(item, "column_names") or hasattr(item, "columns"))


def _is_collection_of_splits(clients: Mapping[Any, Any]) -> bool:
    """Whether a mapping is a `DatasetDict` of Hugging Face, whose keys are not clients."""
    return hasattr(clients, "column_names") and bool(clients)


def _is_pair(item: Any) -> bool:
    return isinstance(item, tuple | list) and len(item) == 2


# Files


def _from_path(path: Path, test: Any, by: str | None, target: str | None) -> Dataset:
    """The clients' files: tables, or arrays."""
    is_table = path.name.endswith(TABLE_ENDINGS)
    if path.is_dir():
        is_table = any(file.name.endswith(TABLE_ENDINGS) for file in path.iterdir())
    if not is_table:
        check_path(path)
        return _arrays_of_clients(path, test, by, target)
    files, shared = table_files(path)
    test = shared if test is None else test
    if is_one_per_client(path):
        if by is not None:
            raise ConfigError("by", f"{short_repr(by)} given, but there is one file per client; leave it out")
        tables = [_table(read_table(file), str(file), target) for file in files]
        return _from_tables(tables, _test_table(test, target), [file.name for file in files])
    if by is None:
        problem = f"missing; it names the column of {path} that says which client a row belongs to"
        raise ConfigError("by", f"{problem}; or give one file per client")
    return _from_tables([_table(read_table(path), str(path), target, by)], _test_table(test, target, by))


def _arrays_of_clients(path: Path, test: Any, by: str | None, target: str | None) -> Dataset:
    for key, column in (("by", by), ("target", target)):
        if column is not None:
            raise ConfigError(key, f"{short_repr(column)} given, but {path} does not contain tables; leave it out")
    dataset = load_arrays(str(path), path)
    if dataset.clients is None:
        raise DataError(f"{path}: no array 'client', which says whose each row is; or give one file per client")
    if test is None:
        return dataset
    samples = _samples(test, "test")
    _check_consistent(samples, dataset.train, "test", "the clients")
    return replace(dataset, test=samples)


def _table_file(path: str | os.PathLike[str], key: str) -> Path:
    """One client's file, or that of the test data."""
    file = as_path(os.fspath(path), key, "the path of a table")
    if CLIENT_PLACEHOLDER in str(file) or file.is_dir():
        raise DataError(f"{file}: is not one file, but stands for several")
    table_files(file)
    return file


# Arrays and torch datasets


def _from_samples(
    samples: Sequence[Samples], keys: Sequence[str], test: Samples | None, names: Sequence[str]
) -> Dataset:
    for one, key in zip(samples, keys, strict=True):
        _check_consistent(one, samples[0], key, keys[0])
    if test is not None:
        _check_consistent(test, samples[0], "test", keys[0])
    train = Samples(torch.cat([s.inputs for s in samples]), torch.cat([s.targets for s in samples]))
    ends = np.cumsum([len(s) for s in samples])
    labels = [s.targets for s in (train, *([test] if test is not None else []))]
    labelled = not train.targets.is_floating_point() and train.targets.dim() == 1
    return Dataset(
        "user data",
        train,
        test,
        classes=max(1, 1 + max(int(part.max()) for part in labels)) if labelled else None,
        clients=tuple(np.arange(end - len(s), end) for end, s in zip(ends, samples, strict=True)),
        client_names=tuple(names) if any(names) else (),
    )


def _samples(item: Any, key: str) -> Samples:
    """One client's (inputs, targets), as they are; `key` names them in errors."""
    if isinstance(item, torch_data.Dataset | torch_data.DataLoader):
        item = _read_torch_dataset(item, key)
    if not _is_pair(item):
        raise ConfigError(key, f"a {type(item).__name__} given; it must be a pair (inputs, targets)")
    try:
        inputs, targets = (_tensor(part) for part in item)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ConfigError(key, f"must be two arrays of numbers: {' '.join(str(error).split())}") from None
    for name, part in (("inputs", inputs), ("targets", targets)):
        if part.layout != torch.strided:
            raise ConfigError(key, f"{name} are sparse ({part.layout}); convert them with .to_dense()")
        if part.is_meta:
            raise ConfigError(key, f"{name} are on the device 'meta', which holds no values")
        if part.is_complex():
            raise ConfigError(key, f"{name} are {part.dtype}; they must be real numbers")
    if not (inputs.dim() and targets.dim()):
        raise ConfigError(key, "must be arrays of samples, not single numbers")
    if len(inputs) != len(targets):
        raise ConfigError(key, f"{len(inputs)} inputs but {len(targets)} targets")
    if len(inputs) == 0:
        raise ConfigError(key, "has no samples; every client needs at least one")
    for name, part in (("inputs", inputs), ("targets", targets)):
        if part.is_floating_point() and not torch.isfinite(part).all():
            bad = int((~torch.isfinite(part.flatten(1) if part.dim() > 1 else part[:, None])).any(1).nonzero()[0])
            raise ConfigError(key, f"{name} of sample {bad} are not finite")
    return Samples(inputs, targets if targets.is_floating_point() else targets.long())


def _tensor(values: Any) -> Tensor:
    """Numbers as a tensor, which shares the memory of an array where torch can use it."""
    if isinstance(values, np.ma.MaskedArray):
        raise ValueError("a masked array has values that are missing; fill them in, or leave out these samples")
    if isinstance(values, np.ndarray) and not (values.flags.writeable and all(s >= 0 for s in values.strides)):
        values = values.copy()
    return torch.as_tensor(values).detach()


def _check_consistent(samples: Samples, first: Samples, key: str, first_key: str) -> None:
    """Reject samples that differ from the first client's in shape, or in being integers or floating-point."""
    for name in ("inputs", "targets"):
        one, other = getattr(samples, name), getattr(first, name)
        if one.shape[1:] != other.shape[1:]:
            shapes = f"{tuple(one.shape[1:])} per sample, but those of {first_key} {tuple(other.shape[1:])}"
            raise ConfigError(key, f"{name} have shape {shapes}")
        if one.is_floating_point() != other.is_floating_point():
            raise ConfigError(key, f"{name} are {one.dtype}, but those of {first_key} are {other.dtype}")


def _read_torch_dataset(source: Any, key: str) -> tuple[Tensor, Tensor]:
    """All samples of a torch dataset, or of the one that a loader reads; each is read once."""
    indices: Sequence[int] | None = None
    if isinstance(source, torch_data.DataLoader):
        indices, source = _indices_of_loader(source, key), source.dataset
    if isinstance(source, torch_data.IterableDataset) or not hasattr(source, "__len__"):
        problem = f"{with_article(type(source).__name__)} given, which has no length"
        raise ConfigError(key, f"{problem}; training draws samples at random, so give a dataset with __len__")
    if isinstance(source, torch_data.TensorDataset) and len(source.tensors) == 2 and indices is None:
        inputs, targets = source.tensors
        return inputs, targets
    try:
        order = range(len(source)) if indices is None else indices
    except Exception as error:  # code of the user
        raise ConfigError(key, f"its length cannot be read: {describe_exception(error)}") from error
    if not len(order):
        raise ConfigError(key, "has no samples; every client needs at least one")
    first = _sample(source, order[0], key)
    size = len(order) * sum(part.numel() * part.element_size() for part in first)
    check_size(f"{key}: {len(order)} samples", size)
    out = tuple(part.new_empty((len(order), *part.shape)) for part in first)
    for position, index in enumerate(order):
        for name, whole, part in zip(("inputs", "targets"), out, _sample(source, index, key), strict=True):
            if part.shape != whole.shape[1:] or part.is_floating_point() != whole.is_floating_point():
                differs = f"{list(part.shape)} of {part.dtype}, but those of the first {list(whole.shape[1:])}"
                raise ConfigError(key, f"{name} of sample {index} are {differs} of {whole.dtype}")
            whole[position] = part
    return out[0], out[1]


def _sample(source: Any, index: int, key: str) -> tuple[Tensor, Tensor]:
    """One sample of a torch dataset."""
    try:
        sample = source[index]
    except Exception as error:  # code of the user
        raise ConfigError(key, f"reading sample {index} fails: {describe_exception(error)}") from error
    if not _is_pair(sample):
        given = with_article(type(sample).__name__)
        raise ConfigError(key, f"sample {index} is {given}; it must be a pair (inputs, targets)")
    try:
        inputs, targets = (torch.as_tensor(part).detach().cpu() for part in sample)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        kinds = " and ".join(with_article(type(part).__name__) for part in sample)
        problem = f"sample {index} is {kinds}; it must be two arrays of numbers"
        raise ConfigError(key, f"{problem}: give the dataset a transform, such as ToTensor()") from None
    return inputs, targets


def _indices_of_loader(loader: Any, key: str) -> Sequence[int] | None:
    """The samples that a loader reads (None: all); its batches and their order do not matter here."""
    if loader.collate_fn is not torch_data.default_collate and loader.batch_size is not None:
        raise ConfigError(
            key, "its collate_fn is not the default one; give a dataset that returns samples ready for use"
        )
    sampler = loader.sampler
    if isinstance(sampler, torch_data.SubsetRandomSampler):
        return [int(index) for index in sampler.indices]
    replaced = isinstance(loader.dataset, torch_data.IterableDataset)
    batched = loader.batch_sampler is None or type(loader.batch_sampler) is torch_data.BatchSampler
    if replaced or (batched and type(sampler) in (torch_data.SequentialSampler, torch_data.RandomSampler)):
        return None
    kind = type(sampler if batched else loader.batch_sampler).__name__
    raise ConfigError(key, f"its samples are chosen by {with_article(kind)}; give a dataset (torch.utils.data.Subset)")
