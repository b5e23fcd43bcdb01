"""CSV and Parquet files of the user, read by configurations: one table for all clients, or one file per client."""

import gzip
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from depositum.data import load, partition
from depositum.errors import ConfigError, DataError, DepositumError
from tests.support.small_runs import cli, write_config

RNG = np.random.default_rng(0)


def patients(rows: int = 24) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "age": RNG.integers(20, 80, rows),
            "dose": RNG.normal(size=rows),
            "city": [f"c{i % 3}" for i in range(rows)],
            "hospital": [f"H{i % 4 * 5}" for i in range(rows)],
            "outcome": [("well", "ill")[i % 2] for i in range(rows)],
        }
    )


def save(frame: pd.DataFrame, path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    return path


def table(**arguments):
    return {"table": {"path": "p.csv", "target": "outcome", "categories": ["city"], **arguments}}


@pytest.mark.parametrize("name", ["p.csv", "p.csv.gz", "p.parquet"])
def test_a_table_with_a_column_of_clients(tmp_path, name):
    """Fails if a row goes to another client, the file's order is lost, or formats differ."""
    frame = patients()
    save(frame, tmp_path / name)
    data = load(table(path=name, by="hospital"), tmp_path)
    assert data.client_names == ("H0", "H5", "H10", "H15")
    assert data.class_names == ("ill", "well")
    assert data.feature_names == ("age", "dose", "city=c0", "city=c1", "city=c2")
    assert np.allclose(data.train.inputs[:, 0], frame["age"])
    assert np.allclose(data.train.inputs[:, 1], frame["dose"])
    for name, part in zip(data.client_names, partition(None, data, 4, 0), strict=True):
        assert part.tolist() == np.flatnonzero(frame["hospital"] == name).tolist()


@pytest.mark.parametrize("path", ["each", "each/{client}.csv", ["each/0.csv", "each/1.csv", "each/2.csv"]])
def test_one_table_per_client(tmp_path, path):
    """A folder, a pattern or a list; `test.csv` beside them is the test data."""
    frame = patients().drop(columns="hospital")
    for i in range(3):
        save(frame[8 * i : 8 * i + 8], tmp_path / "each" / f"{i}.csv")
    save(frame[:5], tmp_path / "each" / "test.csv")
    data = load(table(path=path, **({"test": "each/test.csv"} if isinstance(path, list) else {})), tmp_path)
    assert [part.tolist() for part in data.clients] == np.arange(24).reshape(3, 8).tolist()
    assert len(data.test) == 5
    assert np.allclose(data.train.inputs[:, 0], frame["age"])


def test_test_data_from_a_file_or_a_share(tmp_path):
    """The test file may have the column of clients too; a share is drawn from every class, the same each time."""
    save(patients(), tmp_path / "p.csv")
    save(patients(10), tmp_path / "t.csv")
    data = load(table(by="hospital", test="t.csv"), tmp_path)
    assert (len(data.train), len(data.test)) == (24, 10)
    data, again, other = (load(table(by="hospital", test=0.25, test_seed=seed), tmp_path) for seed in (0, 0, 1))
    assert (len(data.train), len(data.test)) == (18, 6)
    assert data.test.targets.sum() == 3
    assert np.array_equal(data.test.inputs, again.test.inputs)
    assert not np.array_equal(data.test.inputs, other.test.inputs)
    assert sorted(np.concatenate(data.clients)) == list(range(18))


def test_a_share_that_leaves_a_client_without_samples_is_refused(tmp_path):
    save(patients().assign(hospital=[f"H{i}" for i in range(24)]), tmp_path / "p.csv")
    with pytest.raises(DataError, match=r"client [0-9]+ \('H[0-9]+'\) keeps no sample if 0.9 of all are test data"):
        load(table(by="hospital", test=0.9), tmp_path)


def test_labels_by_list_and_whole_numbers_as_values(tmp_path):
    """`classes` fixes the order, also for numbers; `regression` reads whole numbers as values."""
    save(patients().assign(outcome=[-1, 1] * 12), tmp_path / "p.csv")
    with pytest.raises(DataError, match="has -1; labels are whole numbers from 0: list them in 'classes', or for regr"):
        load(table(by="hospital"), tmp_path)
    data = load(table(by="hospital", classes=["1", "-1"]), tmp_path)
    assert data.train.targets.tolist() == [1, 0] * 12
    data = load(table(by="hospital", regression=True), tmp_path)
    assert data.classes is None
    assert data.train.targets.tolist() == [-1.0, 1.0] * 12
    with pytest.raises(
        DataError, match="column 'outcome' has the value '-1', which is not in the list 'classes', first"
    ):
        load(table(by="hospital", classes=["1", "2"]), tmp_path)


def test_separators_and_byte_order_marks(tmp_path):
    (tmp_path / "p.csv").write_text("\ufeffa;b;outcome\n1;2;0\n3;4;1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"target: 'outcome' given, .* it can be 'a;b;outcome'"):
        load({"table": {"path": "p.csv", "target": "outcome"}}, tmp_path)
    data = load({"table": {"path": "p.csv", "target": "outcome", "separator": ";"}}, tmp_path)
    assert data.feature_names == ("a", "b")
    assert data.train.inputs.tolist() == [[1, 2], [3, 4]]


BAD = {
    "missing": ("a,b,y\n1,2,0\n,3,1\n4,,1\n", r"p\.csv: column 'a' has 1 missing value, first in row 1; fill them in"),
    "text": ("a,b,y\n1,hello,0\n", r"p\.csv: column 'b' contains text, such as 'hello'; list it in 'categories' or"),
    "ragged": ("a,y\n1,0\n1,2,3\n", r"p\.csv: is not a CSV file \(Expected 2 fields in line 3, saw 3\)"),
    "wider than its names": ("a,y\n1,0,5\n2,0,5\n", r"p\.csv: is not a CSV file \("),
    "same names": ("a,a,y\n1,2,0\n", r"p\.csv: has two columns called 'a'"),
    "index": (",a,y\n0,1,0\n", r"p\.csv: column 0 has no name; give it one, or save the table with index=False"),
    "empty": ("", r"p\.csv: is empty"),
    "only names": ("a,y\n", r"p\.csv: has no rows"),
    "no features": ("y\n1\n", r"p\.csv: has no column besides 'y'"),
    "infinite": ("a,y\n1e400,0\n", r"p\.csv: column 'a' has a value that is not finite in float32, first in row 0"),
    "too large": ("a,y\n1e300,0\n", r"p\.csv: column 'a' has a value that is not finite in float32, first in row 0"),
    "many digits": (f"a,y\n{'9' * 10000},0\n", r"p\.csv: column 'a' (contains text|has a value)"),
    "not UTF-8": (b"a,y\n\xff\xfe,0\n", r"p\.csv: is not a CSV file in UTF-8"),
    "zeros": (b"\0" * 100, r"p\.csv: "),
    "quote": ('a,y\n"1,0\n', r"p\.csv: is not a CSV file"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_invalid_files_are_rejected_in_one_line(case, tmp_path):
    content, message = BAD[case]
    (tmp_path / "p.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message) as error:
        load({"table": {"path": "p.csv", "target": "y"}}, tmp_path)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) <= 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": "outcom"}, r"dataset\.table\.target: 'outcom' given, .* did you mean 'outcome'"),
        ({"by": "hopsital"}, r"dataset\.table\.by: 'hopsital' given, .* did you mean 'hospital'"),
        ({"categories": ["cty"]}, r"dataset\.table\.categories: 'cty' given, which is not a feature.*'city'"),
        ({"drop": ["age", "x"]}, r"dataset\.table\.drop: 'x' given, which is not a column"),
        ({"path": "q.csv"}, r"q\.csv: no such file or folder"),
        ({"path": "p.xlsx"}, r"p\.xlsx: a table is a \.csv, \.csv\.gz or \.parquet file"),
        ({"path": "no"}, r"no: no \.csv or \.csv\.gz or \.parquet file in this folder"),
        ({"path": "{client}.csv"}, r"0\.csv: no such file; the pattern"),
        ({"path": []}, r"dataset\.table\.path: \[\] given; it must be a file"),
        ({"path": 3}, r"dataset\.table\.path: 3 given; it must be a file, a folder"),
        ({"path": ["p.csv"], "by": "hospital"}, r"dataset\.table\.by: 'hospital' given, but there is one file per"),
        ({"test": "q.csv"}, r"q\.csv: no such file"),
        ({"test": 1.5}, r"dataset\.table\.test: 1\.5 given; it must be a file, or a share"),
        ({"separator": ", "}, r"dataset\.table\.separator: ', ' given; it must be one character"),
        ({"tagret": "y"}, r"dataset\.table\.tagret: unknown key; .* did you mean 'target'"),
    ],
)
def test_invalid_arguments_are_rejected_by_name(arguments, message, tmp_path):
    save(patients(), tmp_path / "p.csv")
    (tmp_path / "p.xlsx").touch()
    (tmp_path / "no").mkdir()
    with pytest.raises(DepositumError, match=message):
        load(table(**arguments), tmp_path)


def test_files_of_clients_must_have_the_same_columns(tmp_path):
    frame = patients().drop(columns=["hospital", "city"])
    save(frame, tmp_path / "each" / "0.csv")
    save(frame.rename(columns={"dose": "doze"}), tmp_path / "each" / "1.csv")
    with pytest.raises(DataError, match=r"1\.csv: no column 'dose', which .*0\.csv has; did you mean 'doze'"):
        load(table(path="each", categories=[]), tmp_path)


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    save(patients(), tmp_path / "p.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"p\.parquet: Parquet files need pyarrow: pip install 'depositum\[tables\]'"):
        load(table(path="p.parquet"), tmp_path)


def test_the_index_that_pandas_saves_in_parquet_is_not_a_feature(tmp_path):
    patients().iloc[::-1].to_parquet(tmp_path / "p.parquet")
    assert "age" in load(table(path="p.parquet", by="hospital"), tmp_path).feature_names
    assert len(load(table(path="p.parquet", by="hospital"), tmp_path).feature_names) == 5


def run_table(tmp_path: Path, **problem):
    config = write_config(tmp_path / "c.toml", problem={"partition": "natural", "model": "linear", **problem})
    return cli("run", str(config), "--out", str(tmp_path / "out"))


def test_a_configuration_trains_on_a_csv(tmp_path):
    """The saved configuration has an absolute path, so that the run is resumed from any folder."""
    save(patients(), tmp_path / "p.csv")
    result = run_table(tmp_path, dataset=table(by="hospital", test=0.25))
    assert result.code == 0, result.err
    assert f'path = "{tmp_path / "p.csv"}"' in (tmp_path / "out" / "config.toml").read_text()


def test_a_wrong_number_of_clients_is_reported_with_their_names(tmp_path):
    save(patients(), tmp_path / "p.csv")
    result = run_table(tmp_path, dataset=table(by="hospital"), clients=10)
    assert result.code == 2
    found = f"'{tmp_path / 'p.csv'}' has the data of 4 clients: 'H0', 'H5', 'H10', 'H15'"
    assert result.err == f"error: problem.clients: 10 given, but {found}\n"


def test_whole_numbers_that_are_not_labels_are_refused(tmp_path):
    save(patients().assign(outcome=np.arange(24) * 1000), tmp_path / "p.csv")
    result = run_table(tmp_path, dataset=table(by="hospital"))
    assert result.code == 2
    assert "has 24 different labels, from 0 to 23000, but none is 1; labels are class indices" in result.err


def test_a_plain_gzip_is_read_once(tmp_path):
    """Two members in one file are one table, as gunzip has it."""
    content = patients().to_csv(index=False).encode()
    (tmp_path / "p.csv.gz").write_bytes(gzip.compress(content[:100]) + gzip.compress(content[100:]))
    assert len(load(table(path="p.csv.gz", by="hospital"), tmp_path).train) == 24
