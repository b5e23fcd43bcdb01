"""Tables with named columns as samples: which column is what, and how text, categories and truth values become numbers.

Nothing is guessed: a missing value, a date or text that is not declared to be a category is refused, and the error
names the table, the column and the first row (counted from 0).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from depositum.bounded_reading import check_size
from depositum.data.client_files import natural_order
from depositum.data.dataset import Dataset, Indices, Samples
from depositum.errors import ConfigError, DataError, listing, nearest, short_repr

if TYPE_CHECKING:
    import pandas as pd

#: What the values of a column are.
Kind = Literal["number", "truth", "category", "text"]


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of one or several clients: a column per feature, a column of targets, and whose each row is."""

    features: "pd.DataFrame"  #: `[N, columns]`
    targets: "pd.Series[Any]"  #: `[N]`
    name: str  #: in error messages: a path, or an argument such as `clients[1]`
    owners: "pd.Series[Any] | None" = None  #: `[N]`, the column that names each row's client

    def problem(
        self, column: object, problem: str, rows: NDArray[np.bool_] | None = None, advice: str = ""
    ) -> DataError:
        """An error about a column; `rows [N]` are those that it concerns."""
        where = ""
        if rows is not None:
            row = int(rows.argmax())
            where = f", first in row {row}"
            if self.owners is not None:
                where += f" ({short_repr(self.owners.name)} is {short_repr(_plain(self.owners.iloc[row]))})"
        return DataError(f"{self.name}: column {short_repr(column)} {problem}{where}{advice and '; ' + advice}")


@dataclass(frozen=True)
class ColumnAdvice:
    """What the user can do about a column, in terms of where the table comes from."""

    category: str  #: text as a feature
    label: str  #: numbers as names of classes
    regression: str  #: whole numbers that are not labels
    class_list: str  #: classes that are declared


#: For tables in Python.
IN_MEMORY = ColumnAdvice(
    category="convert it with .astype('category'), or drop it",
    label="convert them with .astype(str)",
    regression="for regression convert them with .astype(float)",
    class_list="the categories of the column",
)
#: For tables in files, in terms of the arguments of the dataset.
IN_FILES = ColumnAdvice(
    category="list it in 'categories' or in 'drop'",
    label="list them in 'classes'",
    regression="for regression set regression = true",
    class_list="the list 'classes'",
)


@dataclass(frozen=True, eq=False)
class EncodedTables:
    """The samples of several tables in the same numbers."""

    samples: tuple[Samples, ...]
    feature_names: tuple[str, ...]
    class_names: tuple[str, ...]  #: empty for integer labels and for regression
    labelled: bool  #: whether the targets are labels


def as_table(frame: "pd.DataFrame", name: str, target: str, by: str | None = None, drop: Collection[str] = ()) -> Table:
    """Take a frame apart: the column to predict, that of the clients, and the features that remain.

    A wrong column is an error about the argument that names it: `target`, `by` or `drop`.
    """
    import pandas as pd

    columns = list(frame.columns)
    if isinstance(frame.columns, pd.MultiIndex):
        raise DataError(f"{name}: has columns of {frame.columns.nlevels} levels; give each column one name")
    duplicates = frame.columns[frame.columns.duplicated()]
    if len(duplicates):
        raise DataError(f"{name}: has two columns called {short_repr(duplicates[0])}; give each its own name")
    if not len(frame):
        raise DataError(f"{name}: has no rows")
    arguments = [("target", target), *([] if by is None else [("by", by)]), *(("drop", column) for column in drop)]
    for argument, column in arguments:
        if column not in columns:
            near = nearest(str(column), map(str, columns))
            problem = f"{short_repr(column)} given, which is not a column of {name}; it can be {listing(columns)}{near}"
            raise ConfigError(argument, problem)
    if by == target:
        raise ConfigError("by", f"{short_repr(by)} given, which is the target; the clients need a column of their own")
    features = frame.drop(columns=list({column for _, column in arguments}))
    if not len(features.columns):
        raise DataError(f"{name}: has no column besides {short_repr(target)}; a model needs features")
    table = Table(features, frame[target], name, None if by is None else frame[by])
    if table.owners is not None:
        _check_present(table, by, table.owners)
    return table


def dataset_of_tables(
    name: str,
    tables: Sequence[Table],
    test: Table | None,
    advice: ColumnAdvice,
    client_names: Sequence[str] | None = None,
    **settings: Any,
) -> Dataset:
    """A dataset from one table, whose clients are those of its column of owners, or from one table per client.

    `settings` are arguments of `encode`; without `client_names` the rows of several tables have no owners.
    """
    encoded = encode([*tables, *([test] if test is not None else [])], advice, **settings)
    parts = encoded.samples[: len(tables)]
    clients: tuple[Indices, ...] | None = None
    if tables[0].owners is not None:
        clients, client_names = clients_of(tables[0])
    elif client_names is not None:
        ends = np.cumsum([len(part) for part in parts])
        clients = tuple(np.split(np.arange(ends[-1]), ends[:-1]))
    classes = len(encoded.class_names) or 1 + max(int(part.targets.max()) for part in encoded.samples)
    return Dataset(
        name,
        Samples(torch.cat([part.inputs for part in parts]), torch.cat([part.targets for part in parts])),
        encoded.samples[-1] if test is not None else None,
        classes=classes if encoded.labelled else None,
        clients=clients,
        class_names=encoded.class_names,
        feature_names=encoded.feature_names,
        client_names=tuple(client_names or ()),
    )


def clients_of(table: Table) -> tuple[tuple[Indices, ...], tuple[str, ...]]:
    """The rows of each client and its name, in the order of the names (2 before 10)."""
    import pandas as pd

    assert table.owners is not None
    try:
        codes, values = pd.factorize(table.owners)
    except TypeError:  # lists and the like
        raise table.problem(table.owners.name, "contains values that cannot name a client") from None
    names = [str(_plain(value)) for value in values]
    numbers = pd.api.types.is_numeric_dtype(table.owners)
    order = np.argsort(np.asarray(values)) if numbers else _order(names)
    rows = np.argsort(codes, kind="stable")
    parts = np.split(rows, np.cumsum(np.bincount(codes, minlength=len(names)))[:-1])
    return tuple(parts[k].astype(np.int64) for k in order), tuple(names[k] for k in order)


def encode(
    tables: Sequence[Table],
    advice: ColumnAdvice,
    *,
    categories: Collection[str] = (),
    classes: Sequence[str] | None = None,
    regression: bool = False,
    dtype: torch.dtype = torch.float64,
) -> EncodedTables:
    """The tables as samples: all columns in the order of the first table, and one encoding for all tables.

    Numbers are converted to `dtype` and not scaled; truth values are 0 and 1. A category becomes one column of 0 and 1
    per value, called `column=value`. Targets that are text, categories or truth values become class indices, in the
    order of their categories, or else sorted.

    Parameters
    ----------
    categories
        Columns of text or numbers that are categories, besides those whose dtype says so.
    classes
        The names of all classes in order, if they are not to be collected from the data.
    regression
        Read whole numbers in the target column as values and not as class indices.
    """
    columns = list(tables[0].features.columns)
    for table in tables:
        _check_columns(table, tables[0])
    for column in categories:
        if column not in columns:
            problem = f"{short_repr(column)} given, which is not a feature; it can be {listing(columns)}"
            raise ConfigError("categories", problem + nearest(str(column), map(str, columns)))
    encoders = [_feature_encoder(tables, column, advice, column in categories) for column in columns]
    names = tuple(name for encoder in encoders for name in encoder.names)
    rows = sum(len(table.features) for table in tables)
    check_size(f"{tables[0].name}: {rows} rows of {len(names)} features", rows * len(names) * 8)
    targets, class_names, labelled = _encode_targets(tables, advice, classes, regression, dtype)
    samples = []
    for table, encoded_targets in zip(tables, targets, strict=True):
        inputs = np.empty((len(table.features), len(names)))
        start = 0
        for column, encoder in zip(columns, encoders, strict=True):
            end = start + len(encoder.names)
            encoder.write(table.features[column], inputs[:, start:end])
            start = end
        samples.append(Samples(torch.from_numpy(inputs).to(dtype), encoded_targets))
        _check_finite(table, columns, encoders, samples[-1].inputs, dtype)
    return EncodedTables(tuple(samples), names, class_names, labelled)


# Columns


@dataclass(frozen=True)
class _ColumnEncoder:
    """How one column becomes columns of numbers: their names, and a function that writes them into `[N, names]`."""

    names: tuple[str, ...]
    write: Callable[["pd.Series[Any]", NDArray[np.float64]], None]


def _feature_encoder(tables: Sequence[Table], column: Any, advice: ColumnAdvice, is_category: bool) -> _ColumnEncoder:
    kinds = set()
    for table in tables:
        values = table.features[column]
        _check_present(table, column, values)
        kind = _kind(table, column, values)
        if kind == "text" and not is_category:
            example = short_repr(_plain(values.iloc[0]), 30)
            raise table.problem(column, f"contains text, such as {example}", advice=advice.category)
        kinds.add("category" if is_category else kind)
    if "category" not in kinds:
        return _ColumnEncoder((str(column),), _write_numbers)
    names = _category_names([table.features[column] for table in tables])
    rows = sum(len(table.features) for table in tables)
    check_size(f"{tables[0].name}: column {short_repr(column)} with {len(names)} categories", rows * len(names) * 8)

    def write(values: "pd.Series[Any]", out: NDArray[np.float64]) -> None:
        out[:] = _codes(values, names)[:, None] == np.arange(len(names))

    return _ColumnEncoder(tuple(f"{column}={name}" for name in names), write)


def _write_numbers(values: "pd.Series[Any]", out: NDArray[np.float64]) -> None:
    out[:, 0] = _numbers(values)


def _encode_targets(
    tables: Sequence[Table], advice: ColumnAdvice, classes: Sequence[str] | None, regression: bool, dtype: torch.dtype
) -> tuple[list[Tensor], tuple[str, ...], bool]:
    """The targets of each table, the names of the classes, and whether the targets are labels."""
    series = [table.targets for table in tables]
    for table, values in zip(tables, series, strict=True):
        _check_present(table, values.name, values)
    kinds = [_kind(table, table.targets.name, table.targets) for table in tables]
    named = {"text", "category"} & set(kinds) or ("truth" in kinds and not regression)
    if classes is None and not named:
        return _numeric_targets(tables, advice, regression, dtype)
    if regression:
        table = next(
            table for table, kind in zip(tables, kinds, strict=True) if kind != "number" or classes is not None
        )
        raise table.problem(table.targets.name, "contains names of classes, but regression needs numbers")
    if classes is not None:
        names = tuple(classes)
    else:
        names = ("False", "True") if set(kinds) == {"truth"} else _category_names(series)
    rows = sum(map(len, series))
    if classes is None and len(names) > max(100, rows // 2):
        problem = f"has {len(names)} different values in {rows} rows; the target must be a class or a number"
        raise tables[0].problem(series[0].name, problem)
    out = []
    for table, values in zip(tables, series, strict=True):
        codes = _codes(values, names)
        if (codes < 0).any():
            value = short_repr(_text(values.iloc[int((codes < 0).argmax())]))
            raise table.problem(values.name, f"has the value {value}, which is not in {advice.class_list}", codes < 0)
        out.append(torch.from_numpy(codes))
    return out, names, True


def _numeric_targets(
    tables: Sequence[Table], advice: ColumnAdvice, regression: bool, dtype: torch.dtype
) -> tuple[list[Tensor], tuple[str, ...], bool]:
    arrays = [_numbers(table.targets) for table in tables]
    # As for arrays: whole numbers are labels, and if one table has labels, all must have.
    labelled = not regression and any(not _is_floating(table.targets) for table in tables)
    for table, values in zip(tables, arrays, strict=True):
        if not (finite := np.isfinite(values)).all():
            raise table.problem(table.targets.name, "has a value that is not finite", ~finite)
        if labelled and (wrong := (values != np.floor(values)) | (values < 0) | (values >= 2**53)).any():
            given = f"{values[wrong.argmax()]:g}"
            problem = f"has {given}; labels are whole numbers from 0: {advice.label}, or {advice.regression}"
            raise table.problem(table.targets.name, problem, wrong)
    return [torch.tensor(array).to(torch.int64 if labelled else dtype) for array in arrays], (), labelled


def _kind(table: Table, column: Any, values: "pd.Series[Any]") -> Kind:
    """What the values of a column are; dates and other objects are refused."""
    import pandas as pd

    kinds = pd.api.types
    if isinstance(values.dtype, pd.CategoricalDtype):
        return "category"
    if kinds.is_bool_dtype(values):
        return "truth"
    if kinds.is_numeric_dtype(values) and not kinds.is_complex_dtype(values):
        return "number"
    found = kinds.infer_dtype(values, skipna=True)
    if found == "string":
        return "text"
    if found == "boolean":
        return "truth"
    if found in ("integer", "floating", "mixed-integer-float", "decimal"):
        return "number"
    if "date" in found or "time" in found or found == "period":
        raise table.problem(column, "contains dates or times; convert them to numbers, such as days or years")
    example = short_repr(_plain(values.iloc[0]), 30)
    raise table.problem(column, f"contains values that are not numbers, such as {example}")


def _category_names(series: Sequence["pd.Series[Any]"]) -> tuple[str, ...]:
    """All values of a column in several tables: in the declared order if all tables declare the same, or sorted."""
    import pandas as pd

    declared = [
        tuple(map(_text, s.cat.categories)) if isinstance(s.dtype, pd.CategoricalDtype) else None for s in series
    ]
    if declared[0] is not None and all(names == declared[0] for names in declared):
        return declared[0]
    found = [
        list(names) if names is not None else list(map(_text, s.unique()))
        for names, s in zip(declared, series, strict=True)
    ]
    names = sorted({name for part in found for name in part}, key=natural_order)
    return tuple(names)


def _codes(values: "pd.Series[Any]", names: Sequence[str]) -> NDArray[np.int64]:
    """The index of each value's text in `names`, `[N]`; −1 if it is not there."""
    import pandas as pd

    codes, distinct = pd.factorize(values)
    position = {name: index for index, name in enumerate(names)}
    lookup = np.array([position.get(_text(value), -1) for value in distinct], dtype=np.int64)
    return lookup[codes]


def _check_columns(table: Table, first: Table) -> None:
    """Refuse a table whose features are not those of the first; their order may differ."""
    own, expected = list(table.features.columns), list(first.features.columns)
    known, present = set(expected), set(own)
    for column in expected:
        if column not in present:
            near = nearest(str(column), map(str, own))
            raise DataError(f"{table.name}: no column {short_repr(column)}, which {first.name} has{near}")
    for column in own:
        if column not in known:
            raise DataError(f"{table.name}: has a column {short_repr(column)}, which {first.name} does not have")


def _check_present(table: Table, column: Any, values: "pd.Series[Any]") -> None:
    missing = values.isna().to_numpy(dtype=bool)
    if missing.any():
        count = int(missing.sum())
        problem = f"has {count} missing value{'s' if count > 1 else ''}"
        raise table.problem(column, problem, missing, "fill them in, or leave out these rows")


def _check_finite(
    table: Table, columns: Sequence[Any], encoders: Sequence[_ColumnEncoder], inputs: Tensor, dtype: torch.dtype
) -> None:
    """Refuse infinite values, and those that are in `dtype`."""
    bad = ~torch.isfinite(inputs)
    if not bad.any():
        return
    position = int(bad.any(dim=0).int().argmax())
    widths = np.cumsum([len(encoder.names) for encoder in encoders])
    column = columns[int(np.searchsorted(widths, position, side="right"))]
    problem = f"has a value that is not finite in {str(dtype).removeprefix('torch.')}"
    raise table.problem(column, problem, bad[:, position].numpy())


def _numbers(values: "pd.Series[Any]") -> NDArray[np.float64]:
    """A column of numbers as float64, `[N]`; a number that is too large for it is infinite."""
    try:
        return values.to_numpy(dtype=np.float64)
    except OverflowError:
        return np.array([_as_float(value) for value in values])


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _is_floating(values: "pd.Series[Any]") -> bool:
    import pandas as pd

    if pd.api.types.is_object_dtype(values):
        return pd.api.types.infer_dtype(values, skipna=True) not in ("integer", "boolean")
    return pd.api.types.is_float_dtype(values)


def _order(names: Sequence[str]) -> list[int]:
    return sorted(range(len(names)), key=lambda k: natural_order(names[k]))


def _plain(value: Any) -> Any:
    """A value without NumPy's type, which its repr would show."""
    return value.item() if isinstance(value, np.generic) else value


def _text(value: Any) -> str:
    """A value as the name of a class or category; 1.0 is called `1`, as in a table where the column is whole."""
    plain = _plain(value)
    return str(int(plain)) if isinstance(plain, float) and plain.is_integer() else str(plain)


def with_declared_classes(frame: "pd.DataFrame", target: str, features: Mapping[str, Any]) -> "pd.DataFrame":
    """A frame of Hugging Face `datasets`, whose labels are integers, with the names that its features declare."""
    import pandas as pd

    names = getattr(features.get(target), "names", None)
    if not names or target not in frame.columns or not pd.api.types.is_integer_dtype(frame[target]):
        return frame
    codes = frame[target].to_numpy()
    if not len(codes) or codes.min() < 0 or codes.max() >= len(names):
        return frame
    return frame.assign(**{target: pd.Categorical.from_codes(codes, pd.Index(names))})
