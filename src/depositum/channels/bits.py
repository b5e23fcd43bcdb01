"""Numbers of a few bits, and positions in rows, as bytes."""

import torch
from torch import Tensor

#: Bytes of a position in a row.
POSITION_BYTES = 4


def bytes_of_bits(count: int) -> int:
    """The bytes that so many bits take."""
    return (count + 7) // 8


def pack_bits(flags: Tensor) -> Tensor:
    """Booleans `[…, count]` as bits, eight to a byte: uint8 `[…, bytes]`."""
    padded = torch.nn.functional.pad(flags.to(torch.uint8), (0, -flags.shape[-1] % 8))
    eights = padded.reshape(*flags.shape[:-1], bytes_of_bits(flags.shape[-1]), 8)
    return (eights << torch.arange(8, dtype=torch.uint8, device=flags.device)).sum(-1, dtype=torch.uint8)


def unpack_bits(packed: Tensor, count: int) -> Tensor:
    """The booleans `[…, count]` that `pack_bits` packed."""
    eights = packed[..., None] >> torch.arange(8, dtype=torch.uint8, device=packed.device)
    return (eights & 1).bool().flatten(-2)[..., :count]


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Whole numbers below 2^bits, uint8 `[…, count]`, at `bits` bits each: uint8 `[…, bytes]`.

    >>> codes = torch.tensor([[1, 6, 3, 7]], dtype=torch.uint8)
    >>> pack_codes(codes, 3).shape, bool((unpack_codes(pack_codes(codes, 3), 3, 4) == codes).all())
    (torch.Size([1, 2]), True)
    """
    if bits == 8:
        return codes
    each = codes[..., None] >> torch.arange(bits, dtype=torch.uint8, device=codes.device)
    return pack_bits((each & 1).flatten(-2))


def unpack_codes(packed: Tensor, bits: int, count: int) -> Tensor:
    """The numbers `[…, count]` that `pack_codes` packed."""
    if bits == 8:
        return packed
    flags = unpack_bits(packed, count * bits).reshape(*packed.shape[:-1], count, bits).to(torch.uint8)
    return (flags << torch.arange(bits, dtype=torch.uint8, device=packed.device)).sum(-1, dtype=torch.uint8)


def checked_positions(message: Tensor, d: int) -> Tensor:
    """Positions in rows of d numbers, from a message: outside of a row they would be written into other memory."""
    positions = message.view(torch.int32).long()
    if positions.numel() and not (int(positions.min()) >= 0 and int(positions.max()) < d):
        raise ValueError(f"position {int(positions.max() if positions.max() >= d else positions.min())} of {d} numbers")
    return positions


def as_bytes(values: Tensor) -> Tensor:
    """The memory of rows `[k, count]` as uint8 `[k, bytes]`."""
    return values.contiguous().view(torch.uint8)


def from_bytes(message: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows `[k, count]` from the bytes `[k, bytes]` of each; a copy, as messages are split at any byte."""
    # Flattened first: of a single row, torch takes a part for contiguous although its stride is that of the row.
    return message.reshape(-1).clone().view(dtype).view(len(message), -1)
