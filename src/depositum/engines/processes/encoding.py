"""What rows look like on a link.

A message holds the rows that one rank's clients send to another's in one mixing, of all trials: `[trials, k, d]`.
Lossless encodings give back what was put in. Lossy ones give back Q(z), and the sender uses its own Q(z) too:
`links.py` says why.
"""

from math import prod
from typing import Literal, Protocol

import torch
from torch import Tensor

from depositum.errors import ConfigError, listing, nearest

EncodingName = Literal["float32", "float16", "bfloat16", "sparse"]


class Encoding(Protocol):
    """How rows become messages."""

    #: Whether what arrives can differ from what was sent.
    lossy: bool
    #: Whether a message's length depends on its values, so that it must be announced.
    variable: bool

    def transmitted(self, z: Tensor) -> Tensor:
        """Q(z): what others make of z, in z's own dtype."""
        ...

    def encode(self, rows: Tensor) -> Tensor:
        """The message `[length]` that carries rows."""
        ...

    def room(self, rows: torch.Size, dtype: torch.dtype, length: int | None = None) -> tuple[int, torch.dtype]:
        """How many numbers of which dtype a message with rows of this shape is, or one of an announced length."""
        ...

    def decode(self, message: Tensor, rows: torch.Size, dtype: torch.dtype) -> Tensor:
        """The rows that a message carries."""
        ...


class Whole:
    """Rows as they are, in the state's own dtype."""

    lossy = False
    variable = False

    def transmitted(self, z: Tensor) -> Tensor:
        return z

    def encode(self, rows: Tensor) -> Tensor:
        return rows.contiguous().view(-1)

    def room(self, rows: torch.Size, dtype: torch.dtype, length: int | None = None) -> tuple[int, torch.dtype]:
        return prod(rows), dtype

    def decode(self, message: Tensor, rows: torch.Size, dtype: torch.dtype) -> Tensor:
        return message.view(rows)


class Half:
    """Rows in 16 bits: half the bytes of float32."""

    lossy = True
    variable = False

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def transmitted(self, z: Tensor) -> Tensor:
        return z.to(self.dtype).to(z.dtype)

    def encode(self, rows: Tensor) -> Tensor:
        return rows.to(self.dtype).contiguous().view(-1)

    def room(self, rows: torch.Size, dtype: torch.dtype, length: int | None = None) -> tuple[int, torch.dtype]:
        return prod(rows), self.dtype

    def decode(self, message: Tensor, rows: torch.Size, dtype: torch.dtype) -> Tensor:
        return message.to(dtype).view(rows)


class Sparse:
    """The values that are not zero, and where they are; or whole rows where that is not smaller.

    Where they are is told by a bit for each position, or by the positions (4 bytes each) where they are so few that
    this is smaller. Which of the three forms a message has follows from its length.
    """

    lossy = False
    variable = True

    def transmitted(self, z: Tensor) -> Tensor:
        return z

    def encode(self, rows: Tensor) -> Tensor:
        flat = rows.contiguous().view(-1)
        there = flat != 0
        values, size = flat[there], flat.element_size()
        bits = _bytes_of_bits(flat.numel())
        if len(values) * size + min(bits, 4 * len(values)) >= flat.numel() * size or flat.numel() > 1 << 31:
            return flat.view(torch.uint8)
        where = there.nonzero().view(-1).to(torch.int32).view(torch.uint8) if 4 * len(values) < bits else _packed(there)
        # Values first: they then begin at a multiple of their own size.
        return torch.cat([values.view(torch.uint8), where])

    def room(self, rows: torch.Size, dtype: torch.dtype, length: int | None = None) -> tuple[int, torch.dtype]:
        assert length is not None, "the length of a sparse message is announced"
        return length, torch.uint8

    def decode(self, message: Tensor, rows: torch.Size, dtype: torch.dtype) -> Tensor:
        size, total, length = dtype.itemsize, prod(rows), message.numel()
        if length == total * size:
            return message.view(dtype).view(rows)
        bits = _bytes_of_bits(total)
        flat = torch.zeros(total, dtype=dtype, device=message.device)
        # k positions take 4 k < bits, so such a message has k (size + 4) < bits (size + 4) / 4; one with bits has more.
        if 4 * length < bits * (size + 4):
            end = length // (size + 4) * size
            flat[message[end:].view(torch.int32).long()] = message[:end].view(dtype)
        else:
            end = length - bits
            flat.masked_scatter_(_unpacked(message[end:], total), message[:end].view(dtype))
        return flat.view(rows)


def _bytes_of_bits(count: int) -> int:
    return (count + 7) // 8


def _packed(there: Tensor) -> Tensor:
    """Truth values `[count]` as bits, eight to a byte."""
    eights = torch.nn.functional.pad(there, (0, -len(there) % 8)).view(-1, 8).to(torch.uint8)
    return (eights << torch.arange(8, dtype=torch.uint8, device=there.device)).sum(1, dtype=torch.uint8)


def _unpacked(packed: Tensor, count: int) -> Tensor:
    """The truth values `[count]` of `_packed`."""
    eights = packed[:, None] >> torch.arange(8, dtype=torch.uint8, device=packed.device)
    return (eights & 1).bool().view(-1)[:count]


def encoding(name: str, key: str = "processes.send") -> Encoding:
    """The encoding of a name; `key` is what a configuration calls it."""
    known: dict[str, Encoding] = {
        "float32": Whole(),
        "float16": Half(torch.float16),
        "bfloat16": Half(torch.bfloat16),
        "sparse": Sparse(),
    }
    if name not in known:
        raise ConfigError(key, f"{name!r} given; it can be {listing(known)}{nearest(name, known)}")
    return known[name]
