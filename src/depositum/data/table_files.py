"""Tables in CSV and Parquet files: one table with a column that names the clients, or one file per client."""

import csv
import io
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import torch
from pydantic import Field

from depositum.bounded_reading import (
    check_size,
    check_unpacked_size,
    open_regular_file,
    read_file,
)
from depositum.data.client_files import CLIENT_PLACEHOLDER, client_files, shared_test_file
from depositum.data.dataset import Dataset, with_test_share
from depositum.data.tables import IN_FILES, as_table, dataset_of_tables
from depositum.errors import ConfigError, DataError, short_repr
from depositum.validation import Description

if TYPE_CHECKING:
    import pandas as pd

#: How the names of files with tables end.
TABLE_ENDINGS = (".csv", ".csv.gz", ".parquet")
#: More columns than a table has that is meant to be one; reading a million takes minutes.
MOST_COLUMNS = 100_000
#: Bytes of memory that one byte of a CSV file takes while it is read.
_CSV_OVERHEAD = 8
#: The longest line of column names, in bytes.
_LONGEST_HEADER = 1 << 24
#: What to do about a Parquet file that is packed too well.
_UNPACKED_PARQUET = "save it without compression, or as CSV"
_PARQUET_INDEX = re.compile(r"__index_level_[0-9]+__")

Columns = Annotated[list[str] | None, Description("a list of columns")]
Share = Annotated[float, Field(gt=0, lt=1)]
Paths = Annotated[str | list[str], Description("a file, a folder, or a list of one file per client")]
TestRows = Annotated[str | Share | None, Description("a file, or a share of the rows between 0 and 1")]


def read_table(path: Path, separator: str = ",") -> "pd.DataFrame":
    """The table in a `.csv`, `.csv.gz` or `.parquet` file.

    The first line of a CSV file holds the names of the columns. The index of a frame that pandas saved is left out.
    """
    frame = _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path, separator)
    if not len(frame):
        raise DataError(f"{path}: has no rows")
    return frame


def table_files(path: Path, clients: int | None = None) -> tuple[list[Path], Path | None]:
    """The files that a path stands for, and the test data beside them; checked without opening them.

    A path is one file, a folder with one file per client, or a pattern with `{client}` in it.
    """
    if CLIENT_PLACEHOLDER not in str(path) and not path.exists():
        raise DataError(f"{path}: no such file or folder")
    if path.is_dir():
        return client_files(path, clients, TABLE_ENDINGS), shared_test_file(path, TABLE_ENDINGS)
    if not path.name.endswith(TABLE_ENDINGS):
        raise DataError(f"{path}: a table is a {', '.join(TABLE_ENDINGS[:-1])} or {TABLE_ENDINGS[-1]} file")
    if CLIENT_PLACEHOLDER in str(path):
        return client_files(path, clients), shared_test_file(path)
    return [path], None


def is_one_per_client(path: Path) -> bool:
    """Whether a path stands for one file per client: a folder or a pattern."""
    return CLIENT_PLACEHOLDER in str(path) or path.is_dir()


def user_tables(
    path: Paths,
    target: str,
    by: str | None = None,
    test: TestRows = None,
    classes: Annotated[list[str] | None, Description("a list of the names of all classes")] = None,
    categories: Columns = None,
    drop: Columns = None,
    regression: bool = False,
    separator: str = ",",
    test_seed: int = 0,
) -> Dataset:
    """Tables in files.

    Parameters
    ----------
    path
        One table, or a list with one per client. `load` also accepts a folder and a pattern with `{client}`.
    target
        The column to predict: text and whole numbers are classes, other numbers the values of a regression.
    by
        The column that names the client of each row, in one table for all clients.
    test
        A file with the same columns, or the share of the rows, of every class, that are test data.
    classes
        The names of the classes in order, instead of those that are found in the data.
    categories
        Columns that become one input per value.
    drop
        Columns that are not used.
    regression
        Whether whole numbers in `target` are values instead of classes.
    separator
        The character that separates the values of a CSV file.
    test_seed
        The seed by which the share of the rows is drawn.
    """
    files = [path] if isinstance(path, str) else path
    tables = [as_table(read_table(Path(file), separator), file, target, by, drop or ()) for file in files]
    held_out = None
    if isinstance(test, str):
        frame = read_table(Path(test), separator)
        unused = [column for column in (by, *(drop or ())) if column in frame.columns]
        held_out = as_table(frame, test, target, drop=[column for column in unused if column is not None])
    dataset = dataset_of_tables(
        files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more",
        tables,
        held_out,
        IN_FILES,
        client_names=[Path(file).name for file in files] if isinstance(path, list) else None,
        categories=categories or (),
        classes=classes,
        regression=regression,
        dtype=torch.float32,
    )
    return with_test_share(dataset, test, test_seed) if isinstance(test, float) else dataset


def _resolve_arguments(arguments: Mapping[str, Any], base: Path | None, clients: int | None) -> dict[str, Any]:
    """The arguments with absolute paths of existing files; a folder or a pattern becomes a list, a file per client."""
    base, given, by, test = base or Path(), arguments["path"], arguments.get("by"), arguments.get("test")
    if len(separator := arguments.get("separator", ",")) != 1:
        raise ConfigError("dataset.table.separator", f"{short_repr(separator)} given; it must be one character")
    if not given:
        raise ConfigError("dataset.table.path", f"{given!r} given; it must be a file, or one file per client")
    paths = [base / Path(file).expanduser() for file in ([given] if isinstance(given, str) else given)]
    found = [table_files(path, clients) for path in paths]
    files, shared = [file for part, _ in found for file in part], found[0][1]
    many = not isinstance(given, str) or is_one_per_client(paths[0])
    if many and by is not None:
        problem = f"{short_repr(by)} given, but there is one file per client; leave it out"
        raise ConfigError("dataset.table.by", problem)
    if isinstance(test, float) and CLIENT_PLACEHOLDER in given:
        problem = f"{test!r} given, but processes read the files of their own clients only; give a file"
        raise ConfigError("dataset.table.test", problem)
    if isinstance(test, str):
        shared = base / Path(test).expanduser()
        table_files(shared)
    resolved = {**arguments, "path": [str(file) for file in files] if many else str(files[0])}
    return resolved if shared is None or isinstance(test, float) else {**resolved, "test": str(shared)}


user_tables.path_arguments = ("path", "test")  # type: ignore[attr-defined]
user_tables.resolve_arguments = _resolve_arguments  # type: ignore[attr-defined]


def _read_csv(path: Path, separator: str) -> "pd.DataFrame":
    import pandas as pd

    content = read_file(path)
    check_size(f"{path}: as a table", _CSV_OVERHEAD * len(content))
    if not content.strip():
        raise DataError(f"{path}: is empty")
    try:
        names = _column_names(path, content, separator)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # pandas would ignore surplus values of a row
            frame = pd.read_csv(
                io.BytesIO(content), sep=separator, encoding="utf-8-sig", index_col=False, low_memory=False
            )
        if len(frame.columns) != len(names):
            raise ValueError(f"{len(names)} names of columns, but {len(frame.columns)} columns")
    except (UnicodeDecodeError, MemoryError):
        raise DataError(f"{path}: is not a CSV file in UTF-8") from None
    except (ValueError, OverflowError, RecursionError, csv.Error, pd.errors.ParserWarning) as error:
        reason = " ".join(str(error).split()).removeprefix("Error tokenizing data. C error: ")
        raise DataError(f"{path}: is not a CSV file ({short_repr(reason, 120).strip(chr(39))})") from None
    frame.columns = pd.Index(names)  # pandas renames the second of two equal names
    return frame


def _column_names(path: Path, content: bytes, separator: str) -> list[str]:
    """The names in the first line of a CSV file."""
    if content.find(b"\n", 0, _LONGEST_HEADER) < 0 < len(content) - _LONGEST_HEADER:
        raise DataError(f"{path}: is not a CSV file (its first line is longer than {_LONGEST_HEADER >> 20} MiB)")
    with io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="") as lines:
        names = next(row for row in csv.reader(lines, delimiter=separator) if row)
    _check_column_count(path, len(names))
    if "" in names:
        problem = f"column {names.index('')} has no name; give it one, or save the table with index=False"
        raise DataError(f"{path}: {problem}")
    return names


def _read_parquet(path: Path) -> "pd.DataFrame":
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        raise DataError(f"{path}: Parquet files need pyarrow: pip install 'depositum[tables]'") from None
    with open_regular_file(path) as file:
        packed = os.fstat(file.fileno()).st_size
        check_size(str(path), packed)
        try:
            metadata = pa.parquet.read_metadata(file)
            _check_column_count(path, metadata.num_columns)
            # A column of equal values takes a few bytes, however many rows it has.
            check_unpacked_size(str(path), 8 * metadata.num_rows * metadata.num_columns, packed, _UNPACKED_PARQUET)
            table = _bounded_parquet_table(path, file, packed)
            frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
        except DataError:
            raise
        except Exception:  # pyarrow raises errors of many types for damaged files
            raise DataError(f"{path}: is damaged or not a Parquet file") from None
    return frame.drop(columns=[column for column in frame.columns if _PARQUET_INDEX.fullmatch(str(column))])


def _bounded_parquet_table(path: Path, file: BinaryIO, packed: int) -> Any:
    """The Arrow table in a Parquet file, read column by column so that what is unpacked at once is bounded."""
    import pyarrow as pa
    import pyarrow.parquet

    schema = pa.parquet.read_schema(file)
    text = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
    # A text that is repeated is in the file once; it is repeated in memory only after its size is known.
    parquet = pa.parquet.ParquetFile(file, read_dictionary=text)
    columns, size = [], 0
    for field in schema:
        pieces = []
        for batch in parquet.iter_batches(batch_size=1 << 14, columns=[field.name], use_threads=False):
            piece = batch.column(field.name)
            size += _expanded_size(piece)
            check_unpacked_size(str(path), size, packed, _UNPACKED_PARQUET)
            pieces.append(piece.cast(field.type))
        columns.append(pa.chunked_array(pieces, field.type))
    return pa.table(columns, schema=schema)


def _expanded_size(values: Any) -> int:
    """Bytes of an Arrow array in which each repeated text is stored each time."""
    import pyarrow as pa
    import pyarrow.compute

    if not pa.types.is_dictionary(values.type) or not pa.types.is_string(values.type.value_type):
        return int(values.nbytes)
    lengths = pa.compute.binary_length(values.dictionary).cast(pa.int64())
    return int(values.nbytes) + (pa.compute.sum(lengths.take(values.indices)).as_py() or 0)


def _check_column_count(path: Path, count: int) -> None:
    if count > MOST_COLUMNS:
        raise DataError(f"{path}: has {count} columns; at most {MOST_COLUMNS} are read")
