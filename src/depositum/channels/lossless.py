"""Channels that deliver rows as they are."""

from collections.abc import Sequence

import torch
from torch import Tensor

from depositum.channels.bits import POSITION_BYTES, bytes_of_bits, checked_positions, pack_bits, unpack_bits
from depositum.channels.channel import CHANNELS, Channel


@CHANNELS.register("exact")
class Exact(Channel):
    """Rows as they are, in the dtype of the state."""

    name = spec = "exact"
    exact = True

    def row_bytes(self, d: int, dtype: torch.dtype) -> int:
        return d * dtype.itemsize

    def encode(self, sent: Tensor, words: Tensor) -> Tensor:
        return sent.contiguous().view(-1).view(torch.uint8)

    def decode(self, message: Tensor, sizes: Sequence[int], d: int, dtype: torch.dtype, words: Tensor) -> Tensor:
        return message.view(dtype).view(-1, d)


@CHANNELS.register("sparse")
class Sparse(Channel):
    """The values that are not zero and their positions, or the row as it is where that is not smaller.

    Positions are one bit per number, or 4 bytes per value where values are so few that this is smaller. Which of the
    three forms a row has follows from its size.
    """

    name = spec = "sparse"
    exact = True

    def row_bytes(self, d: int, dtype: torch.dtype) -> None:
        return None

    def sizes(self, sent: Tensor) -> Tensor:
        d, width = sent.shape[-1], sent.element_size()
        values = (sent != 0).sum(-1)
        return (values * width + (values * POSITION_BYTES).clamp(max=bytes_of_bits(d))).clamp(max=d * width)

    def largest_row(self, d: int, dtype: torch.dtype) -> int:
        return d * dtype.itemsize

    def encode(self, sent: Tensor, words: Tensor) -> Tensor:
        return torch.cat([self._encode_row(row) for row in sent])

    def decode(self, message: Tensor, sizes: Sequence[int], d: int, dtype: torch.dtype, words: Tensor) -> Tensor:
        return torch.stack([self._decode_row(part, d, dtype) for part in torch.split(message, list(sizes))])

    def _encode_row(self, row: Tensor) -> Tensor:
        nonzero = row != 0
        values, width, bits = row[nonzero], row.element_size(), bytes_of_bits(len(row))
        if len(values) * width + min(bits, POSITION_BYTES * len(values)) >= len(row) * width:
            return row.contiguous().view(torch.uint8)
        if POSITION_BYTES * len(values) < bits:
            positions = nonzero.nonzero().view(-1).to(torch.int32).view(torch.uint8)
        else:
            positions = pack_bits(nonzero)
        return torch.cat([values.view(torch.uint8), positions])

    def _decode_row(self, message: Tensor, d: int, dtype: torch.dtype) -> Tensor:
        width, bits, length = dtype.itemsize, bytes_of_bits(d), len(message)
        # Messages are split at any byte; only a copy is sure to begin at a multiple of the width.
        message = message.clone()
        if length == d * width:
            return message.view(dtype)
        row = torch.zeros(d, dtype=dtype, device=message.device)
        # k positions take 4 k < bits, so such a row takes k (width + 4) < bits (width + 4) / 4; one with bits more.
        if POSITION_BYTES * length < bits * (width + POSITION_BYTES):
            count, rest = divmod(length, width + POSITION_BYTES)
            if rest:
                raise ValueError(f"{length} bytes cannot hold values of {width} bytes and their positions")
            end = count * width
            positions = checked_positions(message[end:].clone(), d)
            row[positions] = message[:end].view(dtype)
        else:
            end = length - bits
            flags = unpack_bits(message[end:], d)
            if end % width or int(flags.sum()) * width != end:
                raise ValueError(f"{int(flags.sum())} positions are marked, but there are {end / width:g} values")
            row.masked_scatter_(flags, message[:end].view(dtype))
        return row
