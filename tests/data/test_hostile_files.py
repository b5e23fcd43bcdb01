"""Data files from strangers: each is one line, at once, in little memory."""

import gzip
import io
import os
import socket
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from depositum import bounded_reading
from depositum.data import load
from depositum.errors import DataError
from depositum.language.instruction_records import parse_records, read_records
from tests.benchmarks.test_peers import BENCHMARKS
from tests.benchmarks.test_peers import load as load_benchmark

hostile_data = load_benchmark(BENCHMARKS / "hostile_data.py", "benchmark_hostile_data")


def header(shape: str, descr: str = "'<f4'") -> bytes:
    """The beginning of a `.npy` file, with whatever text as the shape."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def archive(path: Path, x: bytes, y: bytes | None = None, kind: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", kind) as file:
        file.writestr("x.npy", x)
        file.writestr("y.npy", x if y is None else y)
    return path


def refused(path: Path, message: str) -> None:
    with pytest.raises(DataError) as error:
        load(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value).replace(str(path), "")) <= 300


@pytest.mark.parametrize(
    "x",
    [
        header("(3, 2)")[:20],
        header("(3, 2"),
        header("(3, 2)" + "(" * 500),
        header("(" * 3000 + ")" * 3000),
        header("(-3, 2)"),
        header("(3, 2.5)"),
        header("(True,)"),
        header("(3, 2)", "'<f400000'"),
        header("(3, 2)", "[('a', '<f4')]"),
        header("(3, 2)", "'V0'"),
        header(f"({'9' * 5000}, 2)"),
        header("(3, 2)") + bytes(23),
        header("(3, 2)") + bytes(25),
        b"\x93NUMPY\x07\x00" + bytes(50),
        b"",
    ],
)
def test_damaged_headers_of_arrays(tmp_path, x):
    """NumPy parses headers as Python: a truncated one ended in a TokenError, others in a SyntaxError or MemoryError."""
    with pytest.raises(DataError, match=r"damaged or not a \.npz file|not an array of numbers"):
        load(archive(tmp_path / "a.npz", x))


@pytest.mark.parametrize("shape", ["(1000000000000000, 1)", "(30000, 30000)", "(10000000000000000000000, 3)"])
def test_an_array_that_claims_to_be_large_is_refused_by_its_header(tmp_path, shape):
    refused(archive(tmp_path / "a.npz", header(shape)), "unpack to ")


def test_an_array_that_unpacks_to_gigabytes_is_refused_without_unpacking_it(tmp_path):
    """Fails if the limit is compared with the size of the archive's directory, which the file itself states."""
    path = tmp_path / "a.npz"
    rows = 3 << 27  # 3 GiB in 3 MiB
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file, file.open("x.npy", "w", force_zip64=True) as member:
        member.write(header(f"({rows}, 2)"))
        for _ in range(32):
            member.write(bytes(1 << 20))
    content = path.read_bytes()
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("y.npy", header(f"({rows},)"))
    refused(path, "unpack to 3.0 GiB or more; refused, since more than 100 times is unusual; save it with np.savez")
    assert len(content) < 1 << 20


def test_other_compressions_than_those_of_numpy_are_refused(tmp_path):
    """The memory that an LZMA decoder needs is set by the file."""
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((3, 2)))
    refused(archive(tmp_path / "a.npz", buffer.getvalue(), kind=zipfile.ZIP_LZMA), "damaged or not a .npz file")


@pytest.mark.parametrize("ending", ["csv.gz", "jsonl.gz"])
def test_a_small_file_that_unpacks_to_much_is_refused_while_it_is_unpacked(tmp_path, monkeypatch, ending):
    """Fails if everything is unpacked first: 40 MiB are read up to the limit of 1 MiB only."""
    monkeypatch.setattr(bounded_reading, "HARMLESS_SIZE", 1 << 20)
    path = tmp_path / f"a.{ending}"
    path.write_bytes(gzip.compress(b"\n" * (40 << 20)))
    with pytest.raises(DataError, match=r"its [0-9.]+ KiB unpack to [12]\.[0-9] MiB or more; refused, since more than"):
        read(path, ending)


def test_a_file_larger_than_memory_is_refused_before_it_is_read(tmp_path):
    """A sparse file of 8 TiB takes no space on disk."""
    for ending in ("jsonl", "csv"):
        path = tmp_path / f"a.{ending}"
        with path.open("wb") as file:
            try:
                file.truncate(1 << 43)
            except OSError:
                pytest.skip("the file system has no sparse files of this size")
        with pytest.raises(DataError, match=r"takes 8\.0 TiB of memory, but at most .* can be used"):
            read(path, ending)


def test_a_repeated_text_in_parquet_is_not_repeated_in_memory(tmp_path):
    """64 KiB in which one text of a mebibyte stands for 3 GiB; columns are read one at a time."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(3000, np.int32)), pa.array(["a" * (1 << 20)]))
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pa.table({"t": text, "y": np.zeros(3000)}), path, store_schema=False)
    assert path.stat().st_size < 1 << 17
    with pytest.raises(
        DataError, match=r"KiB unpack to 2\.9 GiB or more; refused, since more than 100 times is unusual"
    ):
        load({"table": {"path": str(path), "target": "y"}})


def test_rows_that_a_parquet_file_only_counts_are_refused(tmp_path):
    """A column of equal values: a few hundred bytes of any number of rows."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    schema = pa.schema([("a", pa.bool_()), ("y", pa.bool_())])
    with pyarrow.parquet.ParquetWriter(tmp_path / "a.parquet", schema) as writer:
        table = pa.table({name: pa.array(np.zeros(10**6, bool)) for name in ("a", "y")}, schema=schema)
        for _ in range(20):
            writer.write_table(table)
    with pytest.raises(DataError, match=r"KiB unpack to 305\.2 MiB or more; refused"):
        load({"table": {"path": str(tmp_path / "a.parquet"), "target": "y"}})


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of the address space is that of Linux")
def test_the_limit_follows_the_memory_of_the_process():
    """A process that is allowed 1 GiB more must not plan with the memory of the machine."""
    code = """
import resource
from depositum.bounded_reading import memory_limit
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30),) * 2)
print(memory_limit())
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0 < int(result.stdout) <= 1 << 29


def read(path: Path, ending: str) -> object:
    """Load files of this format, or all in a folder."""
    if ending.startswith("jsonl"):
        return read_records(path)
    return load(path if ending == "npz" else {"table": {"path": str(path), "target": "y"}})


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(path.parent)  # the path of a socket must be short
        server.bind(path.name)
        os.chdir(here)


@pytest.mark.parametrize("make", [make_pipe, make_socket, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize("ending", ["npz", "csv", "jsonl"])
def test_a_pipe_socket_or_device_among_the_files_is_refused(tmp_path, make, ending):
    """Opening a pipe waits for a writer, and reading a device never ends."""
    np.savez(tmp_path / "0.npz", x=np.zeros((2, 2)), y=[0, 1])
    (tmp_path / "0.csv").write_text("a,y\n1,0\n")
    make(tmp_path / f"1.{ending}")
    with pytest.raises(DataError, match=rf"1\.{ending}: is a pipe, socket or device, not a file"):
        read(tmp_path if ending != "jsonl" else tmp_path / "1.jsonl", ending)


def test_a_dataset_that_is_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "a.npz")
    refused(tmp_path / "a.npz", "a dataset is a .npz file")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"[" * 100_000, "is not JSON"),
        (b'{"a":' * 100_000, "is not JSON"),
        (b'{"instruction": ' + b"9" * 10_000 + b"}", "is not JSON"),
        (b'{"instruction": "a", "response": ' + b"9" * 4000 + b"}", "'response' is a whole number of more than"),
        (b'{"instruction": "a", "response": [' + b"1," * 5000 + b"1]}", "'response' is a list; it must be a string"),
        (b'{"' + b"a" * 10_000 + b'": 1}', "has no 'instruction'; it has 'aaa"),
        (b'{"instruction": "\\ud800", "response": "b"}', "'instruction' contains half of a surrogate pair"),
    ],
)
def test_lines_of_json_that_are_deep_or_long(line, message):
    with pytest.raises(DataError, match=message) as error:
        parse_records(line, "a.jsonl")
    assert str(error.value).startswith("a.jsonl, line 1: ")
    assert len(str(error.value)) <= 300


def test_line_numbers_count_empty_lines():
    with pytest.raises(DataError, match="a, line 5: "):
        parse_records(b'\n \n{"instruction": "a", "response": "b"}\r\n\n  x', "a")


@pytest.mark.parametrize("number", range(10))
def test_mutated_files_load_or_are_refused_in_one_line(tmp_path, number):
    """A slice of `benchmarks/hostile_data.py`, which mutates thousands of files of every format."""
    for i, (mutation, format, content) in enumerate(hostile_data.cases(11, seed=1000 + number)):
        path = tmp_path / str(i) / format.file
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        outcome = hostile_data.load_file(format.spec, tmp_path / str(i))
        assert outcome in ("loaded", "refused"), (format.name, mutation)
        assert outcome == "loaded" or mutation != "none", format.name


def test_mutations_are_the_same_every_time():
    first, second = ([content for _, _, content in hostile_data.cases(30, seed=3)] for _ in range(2))
    assert first[-30:] == second[-30:]
