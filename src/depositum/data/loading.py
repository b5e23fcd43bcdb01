"""From the user's choice of a dataset to the dataset: a registered name, a table, or a path to arrays."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from depositum.data import user_arrays
from depositum.data.client_files import CLIENT_PLACEHOLDER
from depositum.data.dataset import Dataset, UntokenizedDataset
from depositum.data.datasets import DATASETS
from depositum.errors import ConfigError, listing, nearest
from depositum.registry import Choice, Spec

DatasetChoice = Choice[Dataset | UntokenizedDataset]


def load(
    spec: Spec | os.PathLike[str], base: Path | None = None, clients: int | None = None, tokenizer: str | None = None
) -> Dataset:
    """Load a dataset by name, `{ name = { … } }` or path; the data has been validated when this returns.

    Parameters
    ----------
    spec
        A name in `DATASETS`, or a path: a `.npz` file, a folder with one per client, a pattern with `{client}`.
    base
        The folder that relative paths start from (default: the current folder).
    clients
        How many clients' files a pattern stands for (default: all that exist, from 0).
    tokenizer
        Name or path of the language model's tokenizer, for datasets of text.

    >>> data = load("digits")
    >>> tuple(data.train.inputs.shape), len(data.test), data.classes
    ((1437, 1, 8, 8), 360, 10)
    """
    chosen = _resolve(spec, base, clients)
    if isinstance(chosen, Path):
        return user_arrays.load_arrays(str(spec), chosen, clients)
    if needs_tokenizer(chosen.name) and tokenizer is None:
        problem = f"{chosen.name!r} is text, for a language model: use {{ lora = … }}, or in Python pass a tokenizer"
        raise ConfigError("model", problem)
    dataset = chosen.make()
    return dataset if isinstance(dataset, Dataset) else dataset.tokenize(str(tokenizer))


def check(spec: Spec | os.PathLike[str], base: Path | None = None, clients: int | None = None) -> None:
    """Reject a name, argument or path that `load` could not use, before anything is loaded."""
    _resolve(spec, base, clients)


def is_user_data(spec: Spec) -> bool:
    """Whether a dataset is read from the user's files."""
    return bool(_path_arguments(spec)) or (isinstance(spec, str) and spec not in DATASETS)


def needs_tokenizer(spec: object) -> bool:
    """Whether a dataset is text, for language models only."""
    return DATASETS.attribute(spec, "needs_tokenizer", False)


def client_pattern(spec: Spec) -> str | None:
    """The pattern with `{client}` in it by which every client has its own file; None for any other dataset."""
    arguments = _file_arguments(spec)
    path = spec if arguments is None else arguments.get(_path_arguments(spec)[0])
    return path if isinstance(path, str) and CLIENT_PLACEHOLDER in path else None


def for_one_file(spec: Spec, file: str) -> str | dict[str, Any]:
    """The dataset that consists of one of a pattern's files, without test data."""
    arguments = _file_arguments(spec)
    if arguments is None:
        return file
    name, (data, *others) = next(iter(spec)), _path_arguments(spec)
    one_path = DATASETS.attribute(spec, "one_path", False)
    return {name: {**{k: v for k, v in arguments.items() if k not in others}, data: file if one_path else [file]}}


def explicit_test_file(spec: Spec) -> str | None:
    """The test data's path that the user gave as an argument of the dataset."""
    arguments = _file_arguments(spec) or {}
    given = [arguments.get(name) for name in _path_arguments(spec)[1:]]
    return next((path for path in given if isinstance(path, str) and path), None)


def arguments_without_paths(spec: Spec) -> dict[str, Any]:
    """The arguments of a dataset of the user's files, except for the paths: those that all processes must agree on."""
    arguments, paths = _file_arguments(spec) or {}, _path_arguments(spec)
    return {name: value for name, value in sorted(arguments.items()) if name not in paths}


def _path_arguments(spec: Spec) -> tuple[str, ...]:
    return DATASETS.attribute(spec, "path_arguments", ())


def _file_arguments(spec: Spec) -> dict[str, Any] | None:
    """The arguments of a registered dataset that reads the user's files; None for any other dataset."""
    if not isinstance(spec, Mapping) or not (paths := _path_arguments(spec)):
        return None
    (given,) = spec.values()
    return dict(given) if isinstance(given, Mapping) else {paths[0]: given}


def _resolve(spec: Spec | os.PathLike[str], base: Path | None, clients: int | None) -> DatasetChoice | Path:
    """The registered dataset or the path to arrays that is meant, checked as far as possible without reading it.

    A name takes precedence over a path, so a folder called `mnist` is written `./mnist`.
    """
    if isinstance(spec, Mapping) or (isinstance(spec, str) and spec in DATASETS):
        choice = DATASETS.parse(spec, "dataset")
        resolve = DATASETS.attribute(choice.name, "resolve_arguments", None)
        return choice if resolve is None else replace(choice, arguments=resolve(choice.arguments, base, clients))
    if not isinstance(spec, str | os.PathLike):
        raise ConfigError("dataset", f"{spec!r} given; it must be a name, a table {{ name = {{ … }} }} or a path")
    path = (base or Path()) / Path(spec).expanduser()
    if isinstance(spec, str) and not (_looks_like_path(spec) or path.exists()):
        allowed = f"it can be {listing(DATASETS)}, or a path to a .npz file or a folder (docs/data.md)"
        raise ConfigError("dataset", f"{spec!r} is not a dataset; {allowed}{nearest(spec, DATASETS)}")
    user_arrays.check_path(path, clients)
    return path


def _looks_like_path(text: str) -> bool:
    return text.endswith(".npz") or CLIENT_PLACEHOLDER in text or os.path.basename(text) != text
