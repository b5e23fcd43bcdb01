"""Channels: what happens to a row between its sender and its receivers.

A client does not mix the rows z of its neighbours but q, what arrives of them: z itself, a rounded z, or an estimate
that both ends of a link keep up to date by compressed differences. A channel consists of two pure functions on rows
and a memory that both ends of a link keep:

    m = send(z, memory)                   what the sender puts on the link
    q, memory = receive(m, memory)        what the sender and every receiver take z for

Both engines use the same channel: the simulator computes with q and counts the bytes of m, the distributed engine
encodes m, sends it and decodes it. If q = z always, a mixing is W z. Otherwise it is z + gain·(W − I) q, in which the
sender uses its own q too: what one end of a link gains the other end loses, so averages over clients (and with them
J y = J ν) are preserved.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from depositum.errors import ConfigError, short_repr
from depositum.registry import Registry, Spec

#: The rows that both ends of a link keep between exchanges, by name; each `[rows, d]`.
Memory = Mapping[str, Tensor]

CHANNELS: "Registry[Channel]" = Registry("channel")

#: Bytes that announce the size of a row to its receiver, where sizes depend on values.
ANNOUNCEMENT_BYTES = 8


class Channel(ABC):
    """What happens to a row between its sender and its receivers."""

    #: The name in a configuration.
    name: ClassVar[str]
    #: Whether receivers always get z itself, to the bit.
    exact: ClassVar[bool] = False
    #: The names of the rows in the channel's memory, all zero at the start.
    memory: ClassVar[tuple[str, ...]] = ()
    #: The factor of (W − I) q in a mixing.
    gain: float = 1.0

    def send(self, z: Tensor, memory: Memory) -> Tensor:
        """The rows `[rows, d]` to put on the link for rows z, in the dtype of z."""
        return z

    def receive(self, sent: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Q, what both ends take z for, and the new memory, from the rows that were sent; all `[rows, d]`."""
        return sent, memory

    @abstractmethod
    def row_bytes(self, d: int, dtype: torch.dtype) -> int | None:
        """The bytes that a row of d numbers takes on a link; None if they depend on its values."""

    def sizes(self, sent: Tensor) -> Tensor:
        """The bytes that each of the rows `[rows, d]` takes on a link, int64 `[rows]`; a function on the device."""
        fixed = self.row_bytes(sent.shape[-1], sent.dtype)
        assert fixed is not None, "a channel whose messages vary in size defines sizes"
        return torch.full(sent.shape[:-1], fixed, dtype=torch.int64, device=sent.device)

    @abstractmethod
    def encode(self, sent: Tensor) -> Tensor:
        """The message, uint8 `[bytes]`, that carries the rows `[k, d]`, one after another."""

    def largest_row(self, d: int, dtype: torch.dtype) -> int:
        """The most bytes that a row of d numbers can take on a link: a sender that announces more is refused."""
        fixed = self.row_bytes(d, dtype)
        return 2 * d * dtype.itemsize + 64 if fixed is None else fixed

    @abstractmethod
    def decode(self, message: Tensor, sizes: Sequence[int], d: int, dtype: torch.dtype) -> Tensor:
        """The rows `[k, d]` that a message carries, given the bytes of each; it may share the message's memory.

        The message comes from another process. One that `encode` cannot have made is a ValueError.
        """

    def __repr__(self) -> str:
        return self.name


@CHANNELS.register("exact")
class Exact(Channel):
    """Rows as they are, in the dtype of the state."""

    name = "exact"
    exact = True

    def row_bytes(self, d: int, dtype: torch.dtype) -> int:
        return d * dtype.itemsize

    def encode(self, sent: Tensor) -> Tensor:
        return sent.contiguous().view(-1).view(torch.uint8)

    def decode(self, message: Tensor, sizes: Sequence[int], d: int, dtype: torch.dtype) -> Tensor:
        return message.view(dtype).view(-1, d)


@torch.library.custom_op("depositum::rounded_to", mutates_args=())
def _rounded_to(z: Tensor, dtype: torch.dtype) -> Tensor:
    """The values of z rounded to another dtype; an operator, since compilers leave out a cast there and back."""
    return z.to(dtype).to(z.dtype)


@_rounded_to.register_fake
def _(z: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(z)


class _Half(Channel):
    """Rows rounded to 16 bits per number."""

    dtype: ClassVar[torch.dtype]

    def send(self, z: Tensor, memory: Memory) -> Tensor:
        rounded: Tensor = _rounded_to(z, self.dtype)
        return rounded

    def row_bytes(self, d: int, dtype: torch.dtype) -> int:
        return d * self.dtype.itemsize

    def encode(self, sent: Tensor) -> Tensor:
        return sent.to(self.dtype).contiguous().view(-1).view(torch.uint8)

    def decode(self, message: Tensor, sizes: Sequence[int], d: int, dtype: torch.dtype) -> Tensor:
        return message.view(self.dtype).to(dtype).view(-1, d)


@CHANNELS.register("float16")
class Float16(_Half):
    """Rows rounded to float16: half the bytes of float32, 11 significant bits, values up to 65,504."""

    name = "float16"
    dtype = torch.float16


@CHANNELS.register("bfloat16")
class BFloat16(_Half):
    """Rows rounded to bfloat16: half the bytes of float32, 8 significant bits, the range of float32."""

    name = "bfloat16"
    dtype = torch.bfloat16


#: Bytes of a position in a row.
_POSITION = 4


@CHANNELS.register("sparse")
class Sparse(Channel):
    """The values that are not zero and their positions, or the row as it is where that is not smaller.

    Positions are one bit per number, or 4 bytes per value where values are so few that this is smaller. Which of the
    three forms a row has follows from its size.
    """

    name = "sparse"
    exact = True

    def row_bytes(self, d: int, dtype: torch.dtype) -> None:
        return None

    def sizes(self, sent: Tensor) -> Tensor:
        d, width = sent.shape[-1], sent.element_size()
        values = (sent != 0).sum(-1)
        return (values * width + (values * _POSITION).clamp(max=_bytes_of_bits(d))).clamp(max=d * width)

    def largest_row(self, d: int, dtype: torch.dtype) -> int:
        return d * dtype.itemsize

    def encode(self, sent: Tensor) -> Tensor:
        return torch.cat([self._encode_row(row) for row in sent])

    def decode(self, message: Tensor, sizes: Sequence[int], d: int, dtype: torch.dtype) -> Tensor:
        return torch.stack([self._decode_row(part, d, dtype) for part in torch.split(message, list(sizes))])

    def _encode_row(self, row: Tensor) -> Tensor:
        nonzero = row != 0
        values, width, bits = row[nonzero], row.element_size(), _bytes_of_bits(len(row))
        if len(values) * width + min(bits, _POSITION * len(values)) >= len(row) * width:
            return row.contiguous().view(torch.uint8)
        if _POSITION * len(values) < bits:
            positions = nonzero.nonzero().view(-1).to(torch.int32).view(torch.uint8)
        else:
            positions = _pack_bits(nonzero)
        return torch.cat([values.view(torch.uint8), positions])

    def _decode_row(self, message: Tensor, d: int, dtype: torch.dtype) -> Tensor:
        width, bits, length = dtype.itemsize, _bytes_of_bits(d), len(message)
        # Messages are split at any byte; only a copy is sure to begin at a multiple of the width.
        message = message.clone()
        if length == d * width:
            return message.view(dtype)
        row = torch.zeros(d, dtype=dtype, device=message.device)
        # k positions take 4 k < bits, so such a row takes k (width + 4) < bits (width + 4) / 4; one with bits more.
        if _POSITION * length < bits * (width + _POSITION):
            count, rest = divmod(length, width + _POSITION)
            if rest:
                raise ValueError(f"{length} bytes cannot hold values of {width} bytes and their positions")
            end = count * width
            positions = _checked_positions(message[end:].clone(), d)
            row[positions] = message[:end].view(dtype)
        else:
            end = length - bits
            flags = _unpack_bits(message[end:], d)
            if end % width or int(flags.sum()) * width != end:
                raise ValueError(f"{int(flags.sum())} positions are marked, but there are {end / width:g} values")
            row.masked_scatter_(flags, message[:end].view(dtype))
        return row


class TopK(Channel):
    """Each row's k differences of largest magnitude to an estimate that both ends keep; q is the updated estimate.

    The numbers and their positions are sent, 4 bytes a position. `share` is k/d, in (0, 1].
    """

    name = "top-k"
    memory = ("estimate",)

    def __init__(self, share: float) -> None:
        self.share = share

    def kept(self, d: int) -> int:
        """k, the entries that are sent of a row of d numbers: at least one."""
        return max(1, round(self.share * d))

    def send(self, z: Tensor, memory: Memory) -> Tensor:
        difference = z - memory["estimate"]
        largest = difference.abs().topk(self.kept(z.shape[-1]), dim=-1).indices
        return torch.zeros_like(z).scatter(-1, largest, difference.gather(-1, largest))

    def receive(self, sent: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        estimate = memory["estimate"] + sent
        return estimate, {"estimate": estimate}

    def row_bytes(self, d: int, dtype: torch.dtype) -> int:
        return self.kept(d) * (dtype.itemsize + _POSITION)

    def encode(self, sent: Tensor) -> Tensor:
        positions = sent.abs().topk(self.kept(sent.shape[-1]), dim=-1).indices
        values = sent.gather(-1, positions).contiguous()
        parts = values.view(torch.uint8), positions.to(torch.int32).contiguous().view(torch.uint8)
        return torch.cat(parts, dim=-1).view(-1)

    def decode(self, message: Tensor, sizes: Sequence[int], d: int, dtype: torch.dtype) -> Tensor:
        end = self.kept(d) * dtype.itemsize
        rows = message.view(len(sizes), -1)
        # Flattened first: of a single row, torch takes a part for contiguous although its stride is that of the row.
        values = rows[:, :end].reshape(-1).clone().view(dtype).view(len(sizes), -1)
        positions = _checked_positions(rows[:, end:].reshape(-1).clone(), d).view(len(sizes), -1)
        return torch.zeros(len(sizes), d, dtype=dtype, device=message.device).scatter(1, positions, values)


def _checked_positions(message: Tensor, d: int) -> Tensor:
    """Positions in rows of d numbers, from a message: outside of a row they would be written into other memory."""
    positions = message.view(torch.int32).long()
    if positions.numel() and not (int(positions.min()) >= 0 and int(positions.max()) < d):
        raise ValueError(f"position {int(positions.max() if positions.max() >= d else positions.min())} of {d} numbers")
    return positions


def _bytes_of_bits(count: int) -> int:
    return (count + 7) // 8


def _pack_bits(flags: Tensor) -> Tensor:
    """Booleans `[count]` as bits, eight to a byte."""
    eights = torch.nn.functional.pad(flags, (0, -len(flags) % 8)).view(-1, 8).to(torch.uint8)
    return (eights << torch.arange(8, dtype=torch.uint8, device=flags.device)).sum(1, dtype=torch.uint8)


def _unpack_bits(packed: Tensor, count: int) -> Tensor:
    """The booleans `[count]` that `_pack_bits` packed."""
    eights = packed[:, None] >> torch.arange(8, dtype=torch.uint8, device=packed.device)
    return (eights & 1).bool().view(-1)[:count]


def as_channel(channel: "Channel | Spec") -> Channel:
    """A channel from its name, from a configuration's table, or the channel itself.

    >>> as_channel("float16").row_bytes(10, torch.float32)
    20
    """
    if isinstance(channel, Channel):
        return channel
    if not isinstance(channel, str | Mapping):
        raise ConfigError("channel", f"{short_repr(channel)} given; it must be the name of a channel or a Channel")
    return CHANNELS.parse(channel, "channel").make()
