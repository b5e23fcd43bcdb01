"""Reading the user's files within bounds: a file that would block, or unpack to more than memory holds, is refused.

Two limits apply, and neither trusts what a file says about itself:

- what is read may take half of the memory that is available when reading starts (`memory_limit`);
- packed content that is larger than 256 MiB may be at most 100 times as large as what it was unpacked from, because a
  file beyond that is a mistake or an attack (`check_unpacked_size`).
"""

import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from depositum.errors import DataError
from depositum.memory import available_memory, format_bytes

#: Content up to this size may be packed at any ratio.
HARMLESS_SIZE = 1 << 28
#: Beyond it, content may be at most this many times as large as the file.
LARGEST_RATIO = 100
#: Bytes that are unpacked at once.
_CHUNK = 1 << 20


class DamagedFile(DataError):
    """A packed file that cannot be unpacked."""


def memory_limit() -> int:
    """Bytes that data may take: half of the memory that is available now, to this process and its container."""
    return available_memory() // 2


def check_size(name: str, size: int) -> None:
    """Refuse content of `size` bytes that does not fit into memory; `name` says whose it is."""
    limit = memory_limit()
    if size > limit:
        problem = f"takes {format_bytes(size)} of memory, but at most {format_bytes(limit)} can be used"
        raise DataError(f"{name}: {problem} (half of what is available)")


def check_unpacked_size(name: str, size: int, packed: int, advice: str) -> None:
    """Refuse packed content that is suspiciously large, or larger than memory; `packed` is the size of the file."""
    if size > HARMLESS_SIZE and size > LARGEST_RATIO * packed:
        problem = f"its {format_bytes(packed)} unpack to {format_bytes(size)} or more"
        raise DataError(f"{name}: {problem}; refused, since more than {LARGEST_RATIO} times is unusual; {advice}")
    check_size(name, size)


@contextmanager
def open_regular_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading; a pipe, socket or device, on which reading could block for ever, is refused."""
    try:
        # Opening a pipe blocks until it has a writer, unless this flag is set; it does not matter for regular files.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _not_regular(path)
            yield file
    except OSError as error:
        if path.exists() and not is_regular(path):
            raise _not_regular(path) from None  # a socket cannot even be opened
        raise DataError(f"{path}: cannot be read ({error.strerror or type(error).__name__})") from None


def is_regular(path: Path) -> bool:
    """Whether a path is an ordinary file, or a link to one."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def read_file(path: Path) -> bytes:
    """The content of a file; that of a `.gz` file is unpacked piece by piece, so that the limits always hold."""
    with open_regular_file(path) as file:
        packed = os.fstat(file.fileno()).st_size
        check_size(str(path), packed)
        if path.suffix != ".gz":
            return file.read(packed)
        pieces, size, unchecked = [], 0, min(memory_limit(), HARMLESS_SIZE)
        try:
            with gzip.GzipFile(fileobj=file) as unpacked:
                while piece := unpacked.read(_CHUNK):
                    pieces.append(piece)
                    size += len(piece)
                    if size > unchecked:  # compared with the part of the file that has been read so far
                        check_unpacked_size(str(path), size, file.tell(), "unpack the file with gunzip")
        except (gzip.BadGzipFile, EOFError, zlib.error):
            raise DamagedFile(f"{path}: is damaged or not a gzip file") from None
        return b"".join(pieces)


def read_array(file: IO[bytes], name: str, packed: int) -> NDArray[Any]:
    """The array of numbers or text in NumPy's format; `name` names it in errors, `packed` is the size of its file.

    Its header is checked before anything else is read. Whatever is wrong with it otherwise ends in an exception of any
    type: NumPy parses headers as Python, which can raise a SyntaxError, TokenError or RecursionError as well.
    """
    version = np.lib.format.read_magic(file)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, fortran_order, dtype = read_header[version](file)
    if dtype.hasobject:
        raise DataError(f"{name}: contains Python objects (a pickle), which are never loaded; save numbers")
    if dtype.kind not in "biufcSUM" or not dtype.itemsize:
        raise DataError(f"{name}: is not an array of numbers")
    size = prod(shape) * dtype.itemsize
    check_unpacked_size(name, size, packed, "save it with np.savez, uncompressed")
    if min(shape, default=0) < 0 or len(content := file.read(size + 1)) != size:
        raise ValueError("the shape is not that of the values")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran_order else "C")


def _not_regular(path: Path) -> DataError:
    kind = "a folder" if path.is_dir() else "a pipe, socket or device"
    return DataError(f"{path}: is {kind}, not a file")
