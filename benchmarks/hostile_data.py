"""Mutated data files: each must load, or end in one line of at most 300 characters, quickly and in bounded memory.

    python benchmarks/hostile_data.py [--files 2400] [--seed 0] [--memory-gib 4] [--seconds 20]

Valid files of every format (`.npz`, CSV, Parquet, JSON lines, images, plain and packed) are truncated, have bits
flipped, bytes overwritten, blocks swapped and repeated, headers edited, sizes falsified and values nested; others are
made to unpack to gigabytes. Worker processes whose address space is limited load them through `depositum.data.load`.
The table printed counts what became of them; the exit code is 1 if any file broke a rule: another exception than a
`DepositumError`, a longer message, more time than allowed, or a process that died.
"""

import argparse
import gzip
import io
import json
import multiprocessing
import random
import re
import resource
import struct
import sys
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

#: The longest message.
LONGEST = 300


@dataclass(frozen=True)
class DataFormat:
    """A valid file, and how it is loaded."""

    name: str
    file: str  #: its path in the folder of one case
    content: bytes
    spec: Any  #: what `load` is given


def formats() -> list[DataFormat]:
    """One valid file of each format, small, so that mutations hit headers as often as values."""
    import pandas as pd
    from PIL import Image

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 3)).astype(np.float32), np.arange(12) % 3
    arrays = {"x": x, "y": y, "x_test": x[:4], "y_test": y[:4], "client": np.arange(12) % 2}
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(
        sex=["f", "m"] * 6, hospital=["Bern", "Rome", "Oslo"] * 4, outcome=["ill", "well"] * 6
    )
    table = {"target": "outcome", "by": "hospital", "categories": ["sex"]}
    records = [{"instruction": f"add {i}", "response": str(i), "category": "sum"} for i in range(6)]
    lines = "".join(json.dumps(record) + "\n" for record in records).encode()
    picture = Image.fromarray(rng.integers(0, 256, (9, 7, 3), dtype=np.uint8))

    def written(write: Callable[[io.BytesIO], object]) -> bytes:
        buffer = io.BytesIO()
        write(buffer)
        return buffer.getvalue()

    csv = frame.to_csv(index=False).encode()
    out = [
        DataFormat("npz", "d.npz", written(lambda file: np.savez(file, **arrays)), "d.npz"),
        DataFormat("npz packed", "d.npz", written(lambda file: np.savez_compressed(file, **arrays)), "d.npz"),
        DataFormat("csv", "d.csv", csv, {"table": {"path": "d.csv", **table}}),
        DataFormat("csv.gz", "d.csv.gz", gzip.compress(csv), {"table": {"path": "d.csv.gz", **table}}),
        DataFormat("jsonl", "d.jsonl", lines, {"instructions": {"file": "d.jsonl", "test": 0.0, "validation": 0.0}}),
        DataFormat(
            "jsonl.gz", "d.jsonl.gz", gzip.compress(lines), {"instructions": {"file": "d.jsonl.gz", "test": 0.0}}
        ),
    ]
    try:
        import pyarrow  # noqa: F401

        parquet = written(lambda file: frame.to_parquet(file))
        out.append(DataFormat("parquet", "d.parquet", parquet, {"table": {"path": "d.parquet", **table}}))
    except ImportError:
        print("without pyarrow: no Parquet files", file=sys.stderr)
    for kind in ("png", "jpeg", "bmp", "webp"):
        content = written(lambda file, kind=kind: picture.save(file, format=kind))
        out.append(DataFormat(kind, f"photos/cat/1.{kind}", content, {"images": {"path": "photos", "size": 4}}))
    return out


# Mutations


def truncate(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def flip_bits(content: bytes, rng: random.Random) -> bytes:
    out = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def overwrite(content: bytes, rng: random.Random) -> bytes:
    """A run of bytes replaced by zeros, ones or noise."""
    start = rng.randrange(len(content))
    length = min(rng.choice((1, 4, 8, 64, 512)), len(content) - start)
    fill = rng.choice((b"\0" * length, b"\xff" * length, rng.randbytes(length)))
    return content[:start] + fill + content[start + length :]


def swap_blocks(content: bytes, rng: random.Random) -> bytes:
    a, b, c = sorted(rng.randrange(len(content) + 1) for _ in range(3))
    return content[:a] + content[b:c] + content[a:b] + content[c:]


def repeat_block(content: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(content))
    block = content[start : start + rng.choice((1, 16, 256))]
    return content[:start] + block * rng.choice((2, 50, 5000)) + content[start:]


def insert(content: bytes, rng: random.Random) -> bytes:
    """Something that parsers treat specially, at some position."""
    special = (
        b"\0", b"\n", b"\r", b'"', b",", b"'", b"\\", b"(" * 3000, b"[" * 100_000, b'{"a":' * 100_000, b"9" * 10_000,
        b"-" * 5000, b"nan", b"inf", b"1e999", b"NA", b"\xff\xfe", "é\u2028\ud7ff".encode(), b"\\ud800", b"=cmd()",
        b"1" * 400 + b".", b"\x1b[2J", b"," * 5000, b"\n" * 5000,
    )  # fmt: skip
    position = rng.randrange(len(content) + 1)
    return content[:position] + rng.choice(special) + content[position:]


def falsify_sizes(content: bytes, rng: random.Random) -> bytes:
    """Four or eight bytes become a huge, negative or zero number."""
    width, letter = rng.choice(((4, "I"), (8, "Q"), (2, "H")))
    value = rng.choice(
        (0, 1, (1 << 8 * width) - 1, 1 << (8 * width - 1), (1 << (8 * width - 1)) - 1, 10 ** min(15, 2 * width))
    )
    packed = struct.pack(rng.choice("<>") + letter, value % (1 << 8 * width))
    start = rng.randrange(max(1, len(content) - width))
    return content[:start] + packed + content[start + width :]


def edit_numbers(content: bytes, rng: random.Random) -> bytes:
    """A number in the text of a file (a shape, a value) becomes another."""
    numbers = [match.span() for match in re.finditer(rb"[0-9]+", content)]
    if not numbers:
        return flip_bits(content, rng)
    start, end = rng.choice(numbers)
    new = rng.choice(
        (b"0", b"-1", b"999999999999999", b"1" * 5000, b"1e308", b"0x10", b"1_0", b"nan", b"(3,)", b"True")
    )
    return content[:start] + new + content[end:]


GENERAL = (truncate, flip_bits, overwrite, swap_blocks, repeat_block, insert, falsify_sizes, edit_numbers)


def mutate_inside(format: DataFormat, rng: random.Random) -> bytes:
    """A mutation of what is packed, packed again with valid checksums, so that decoders get to see it."""
    mutate = rng.choice(GENERAL)
    if format.file.endswith(".gz"):
        return gzip.compress(mutate(gzip.decompress(format.content), rng))
    if format.file.endswith(".npz"):
        out = io.BytesIO()
        with (
            zipfile.ZipFile(io.BytesIO(format.content)) as archive,
            zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new,
        ):
            names = archive.namelist()
            victim = rng.choice(names)
            for name in names:
                content = archive.read(name)
                new.writestr(name, mutate(content, rng) if name == victim else content)
        return out.getvalue()
    return mutate(format.content, rng)


def bombs(size: int) -> Iterator[DataFormat]:
    """Small files that unpack to `size` bytes, or claim to hold more than any machine."""
    chunk = 1 << 20

    def gz(piece: bytes, head: bytes = b"") -> bytes:
        out = io.BytesIO()
        with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1) as file:
            file.write(head)
            for _ in range(size // len(piece)):
                file.write(piece)
        return out.getvalue()

    def npz(header: dict[str, Any], data: int = 0, declared: int | None = None) -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name in ("x", "y"):
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array_header_1_0(member, header)  # type: ignore[arg-type]
                    for _ in range(data // chunk):
                        member.write(bytes(chunk))
        content = out.getvalue()
        return content if declared is None else content.replace(struct.pack("<Q", data), struct.pack("<Q", declared))

    huge = {"descr": "<f4", "fortran_order": False, "shape": (10**9, 10**6)}
    large = {"descr": "<f4", "fortran_order": False, "shape": (size // 4 // 8, 8)}
    table = {"target": "y", "by": "b"}
    yield DataFormat("bomb", "d.npz", npz(huge), "d.npz")
    yield DataFormat("bomb", "d.npz", npz(large, size), "d.npz")
    yield DataFormat("bomb", "d.npz", npz(large, size, declared=100), "d.npz")
    yield DataFormat("bomb", "d.npz", npz({**large, "shape": (10**15, 0)}), "d.npz")
    yield DataFormat("bomb", "d.csv.gz", gz(b"1,2,0\n" * 10_000, b"a,b,y\n"), {"table": {"path": "d.csv.gz", **table}})
    yield DataFormat("bomb", "d.csv.gz", gz(b"1," * 10_000, b"a,b,y\n"), {"table": {"path": "d.csv.gz", **table}})
    yield DataFormat("bomb", "d.csv.gz", gz(b"," * 10_000), {"table": {"path": "d.csv.gz", **table}})
    for piece in (b"\n" * chunk, b" " * chunk, b"[" * chunk, b'{"instruction":"a","response":"b"}\n' * 10_000):
        yield DataFormat("bomb", "d.jsonl.gz", gz(piece), {"instructions": {"file": "d.jsonl.gz"}})
    yield DataFormat("bomb", "d.csv", b"," * 5_000_000 + b"\n", {"table": {"path": "d.csv", **table}})
    yield DataFormat("bomb", "d.csv", b"a,b,y\n" + b"1,x,0\n" * 300_000, {"table": {"path": "d.csv", **table}})
    yield DataFormat("bomb", "d.jsonl", b"[" * 5_000_000, {"instructions": {"file": "d.jsonl"}})


def cases(count: int, seed: int, bomb_size: int = 0) -> Iterator[tuple[str, DataFormat, bytes]]:
    """The mutation, the format and the content of each file."""
    rng = random.Random(seed)
    for bomb in bombs(bomb_size) if bomb_size else ():
        yield "bomb", bomb, bomb.content
    valid = formats()
    for format in valid:
        yield "none", format, format.content
    for number in range(count):
        format = valid[number % len(valid)]
        if rng.random() < 0.4 and format.file.endswith((".gz", ".npz")):
            yield "inside", format, mutate_inside(format, rng)
        else:
            mutate = rng.choice(GENERAL)
            yield mutate.__name__, format, mutate(format.content, rng)


# Loading


def load_file(spec: Any, folder: Path) -> str:
    """`"loaded"`, `"refused"`, or what is wrong with how the file was refused."""
    from depositum.data import load
    from depositum.errors import DepositumError
    from depositum.language.instruction_datasets import InstructionFiles

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if isinstance(spec, dict) and "instructions" in spec:  # all that is done without a tokenizer
                arguments = InstructionFiles.resolve_arguments(spec["instructions"], folder, None)
                InstructionFiles(**arguments).read()
            else:
                load(spec, folder)
    except DepositumError as error:
        message = str(error).replace(str(folder), "")
        if "\n" in message or len(message) > LONGEST:
            return f"message of {len(message)} characters: {message[:100]!r}"
        return "refused"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:200]
    return "loaded"


def _work(requests: Connection, memory: int) -> None:
    """Load the files that are asked for, in a process with little memory."""
    import pandas as pd  # noqa: F401
    import torch

    import depositum.language.instruction_datasets  # noqa: F401

    torch.set_num_threads(1)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
    requests.send("ready")  # importing does not count as loading a file
    while (request := requests.recv()) is not None:
        requests.send(load_file(*request))


class Worker:
    """A process that loads files, and is replaced if one of them ends or stops it."""

    def __init__(self, memory: int, seconds: float) -> None:
        self.memory, self.seconds = memory, seconds
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_work, args=(there, self.memory), daemon=True)
        self._process.start()
        there.close()
        self._here.recv()

    def load(self, spec: Any, folder: Path) -> str:
        """What became of one file."""
        try:
            self._here.send((spec, folder))
            if self._here.poll(self.seconds):
                return str(self._here.recv())
            outcome = f"more than {self.seconds:g} s"
        except (EOFError, OSError):
            self._process.join()
            outcome = f"the process died ({self._process.exitcode})"
        self._process.kill()
        self._start()
        return outcome

    def close(self) -> None:
        self._here.send(None)
        self._process.join()


def main() -> int:
    parser = argparse.ArgumentParser(description="Load mutated data files.")
    parser.add_argument("--files", type=int, default=2400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory-gib", type=float, default=4.0, help="address space of a worker beyond its start")
    parser.add_argument("--seconds", type=float, default=20.0, help="time limit of one file")
    parser.add_argument("--bomb-gib", type=float, default=3.0, help="what bombs unpack to")
    parser.add_argument("--keep", type=Path, help="folder for the files that break a rule")
    options = parser.parse_args()
    worker = Worker(int(options.memory_gib * (1 << 30)), options.seconds)
    counts: Counter[tuple[str, str]] = Counter()
    broken, slowest, total = [], 0.0, 0
    with tempfile.TemporaryDirectory() as scratch:
        for number, (mutation, format, content) in enumerate(
            cases(options.files, options.seed, int(options.bomb_gib * (1 << 30)))
        ):
            folder = Path(scratch) / str(number)
            file = folder / format.file
            file.parent.mkdir(parents=True)
            file.write_bytes(content)
            begin = time.perf_counter()
            outcome = worker.load(format.spec, folder)
            slowest = max(slowest, time.perf_counter() - begin)
            total += 1
            rule_kept = outcome in ("loaded", "refused")
            counts[format.name, outcome if rule_kept else "violation"] += 1
            if not rule_kept:
                broken.append(f"{number} {format.name} {mutation}: {outcome}")
                if options.keep:
                    options.keep.mkdir(parents=True, exist_ok=True)
                    (options.keep / f"{number}-{file.name}").write_bytes(content)
            file.unlink()
    worker.close()
    print(f"{'format':<12}{'loaded':>8}{'refused':>9}{'violation':>11}")
    for name in dict.fromkeys(name for name, _ in counts):
        print(f"{name:<12}{counts[name, 'loaded']:>8}{counts[name, 'refused']:>9}{counts[name, 'violation']:>11}")
    print(f"{total} files, seed {options.seed}; slowest {slowest:.1f} s; {len(broken)} violations")
    print("\n".join(broken))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
