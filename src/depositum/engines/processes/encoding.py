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

    def room(self, rows: torch.Size, like: Tensor, length: int | None = None) -> Tensor:
        """An empty message for rows of this shape, with the dtype and device of `like`, or of an announced length."""
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

    def room(self, rows: torch.Size, like: Tensor, length: int | None = None) -> Tensor:
        return like.new_empty(prod(rows))

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

    def room(self, rows: torch.Size, like: Tensor, length: int | None = None) -> Tensor:
        return like.new_empty(prod(rows), dtype=self.dtype)

    def decode(self, message: Tensor, rows: torch.Size, dtype: torch.dtype) -> Tensor:
        return message.to(dtype).view(rows)


class Sparse:
    """The values that are not zero and their positions (4 bytes each), or whole rows where that is not smaller."""

    lossy = False
    variable = True

    def transmitted(self, z: Tensor) -> Tensor:
        return z

    def encode(self, rows: Tensor) -> Tensor:
        flat = rows.contiguous().view(-1)
        positions = flat.nonzero().view(-1)
        whole = flat.numel() * flat.element_size()
        if len(positions) * (flat.element_size() + 4) >= whole or flat.numel() > 1 << 31:
            return flat.view(torch.uint8)
        # Values first: they then begin at a multiple of their own size.
        return torch.cat([flat[positions].view(torch.uint8), positions.to(torch.int32).view(torch.uint8)])

    def room(self, rows: torch.Size, like: Tensor, length: int | None = None) -> Tensor:
        assert length is not None, "the length of a sparse message is announced"
        return like.new_empty(length, dtype=torch.uint8)

    def decode(self, message: Tensor, rows: torch.Size, dtype: torch.dtype) -> Tensor:
        size = dtype.itemsize
        if message.numel() == prod(rows) * size:
            return message.view(dtype).view(rows)
        count = message.numel() // (size + 4)
        flat = torch.zeros(prod(rows), dtype=dtype, device=message.device)
        flat[message[count * size :].view(torch.int32).long()] = message[: count * size].view(dtype)
        return flat.view(rows)


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
