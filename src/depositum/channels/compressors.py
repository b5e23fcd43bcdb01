"""Compressors: rows z replaced by rows C(z) that take fewer bytes.

A compressor declares its contraction δ: E‖C(z) − z‖² ≤ (1 − δ)‖z‖² for every row z. What is random about C(z) is
derived from `words`, which both ends of a link know (see `Channel`).
"""

from abc import ABC, abstractmethod
from math import sqrt
from typing import Literal

import torch
from torch import Tensor

from depositum.channels.bits import (
    POSITION_BYTES,
    as_bytes,
    bytes_of_bits,
    checked_positions,
    from_bytes,
    pack_bits,
    pack_codes,
    unpack_bits,
    unpack_codes,
)
from depositum.errors import ConfigError, check_choice, is_integer, is_number, short_repr
from depositum.operators import operator
from depositum.randomness import hash_words, standard_normal

#: Numbers that share a scale, by default.
BUCKET = 512
#: The normal numbers on which a compressor is measured: rows, and the most columns.
MEASURED_ROWS, MEASURED_COLUMNS = 4, 1 << 16


class Compressor(ABC):
    """A map of rows to rows that take fewer bytes."""

    #: Whether E C(z) = z.
    unbiased: bool = False

    @abstractmethod
    def contraction(self, d: int) -> float:
        """δ in (0, 1] for rows of d numbers, whatever their values."""

    @abstractmethod
    def __call__(self, z: Tensor, words: Tensor) -> Tensor:
        """C(z), `[rows, d]`."""

    @abstractmethod
    def row_bytes(self, d: int, dtype: torch.dtype) -> int:
        """The bytes of a row."""

    @abstractmethod
    def encode(self, sent: Tensor, words: Tensor) -> Tensor:
        """The bytes `[k, row_bytes]` of rows C(z) `[k, d]`."""

    @abstractmethod
    def decode(self, message: Tensor, d: int, dtype: torch.dtype, words: Tensor) -> Tensor:
        """The rows `[k, d]` from the bytes of each, to the bit; bytes that `encode` cannot have made: ValueError."""

    def typical_contraction(self, d: int) -> float:
        """About the share of a difference that C keeps: of rows of normal numbers, measured."""
        rows = torch.arange(MEASURED_ROWS)[:, None]
        z = standard_normal(hash_words(rows, torch.arange(min(d, MEASURED_COLUMNS))))
        lost = (self(z, hash_words(rows)) - z).square().sum() / z.square().sum()
        return max(self.contraction(d), 1.0 - float(lost))


class TopK(Compressor):
    """A row's k = share·d entries of largest magnitude; their numbers and positions are sent, 4 bytes a position."""

    def __init__(self, share: float) -> None:
        self.share = check_share(share)

    def contraction(self, d: int) -> float:
        return kept(self.share, d) / d

    def typical_contraction(self, d: int) -> float:
        # Feedback flattens differences, so that less of them is kept than of normal numbers.
        return sqrt(self.contraction(d) * super().typical_contraction(d))

    def __call__(self, z: Tensor, words: Tensor) -> Tensor:
        largest = z.abs().topk(kept(self.share, z.shape[-1]), dim=-1).indices
        return torch.zeros_like(z).scatter(-1, largest, z.gather(-1, largest))

    def row_bytes(self, d: int, dtype: torch.dtype) -> int:
        return kept(self.share, d) * (dtype.itemsize + POSITION_BYTES)

    def encode(self, sent: Tensor, words: Tensor) -> Tensor:
        positions = sent.abs().topk(kept(self.share, sent.shape[-1]), dim=-1).indices
        return torch.cat([as_bytes(sent.gather(-1, positions)), as_bytes(positions.to(torch.int32))], dim=-1)

    def decode(self, message: Tensor, d: int, dtype: torch.dtype, words: Tensor) -> Tensor:
        end = kept(self.share, d) * dtype.itemsize
        values = from_bytes(message[:, :end], dtype)
        positions = checked_positions(message[:, end:].reshape(-1).clone(), d).view(len(message), -1)
        return torch.zeros(len(message), d, dtype=dtype, device=message.device).scatter(1, positions, values)


class RandomK(Compressor):
    """K = share·d entries of a row at random positions, which both ends draw: only the numbers are sent."""

    def __init__(self, share: float) -> None:
        self.share = check_share(share)

    def contraction(self, d: int) -> float:
        return kept(self.share, d) / d

    def _positions(self, words: Tensor, d: int) -> Tensor:
        drawn = hash_words(words, torch.arange(d, device=words.device))
        return drawn.topk(kept(self.share, d), dim=-1).indices

    def __call__(self, z: Tensor, words: Tensor) -> Tensor:
        positions = self._positions(words, z.shape[-1])
        return torch.zeros_like(z).scatter(-1, positions, z.gather(-1, positions))

    def row_bytes(self, d: int, dtype: torch.dtype) -> int:
        return kept(self.share, d) * dtype.itemsize

    def encode(self, sent: Tensor, words: Tensor) -> Tensor:
        return as_bytes(sent.gather(-1, self._positions(words, sent.shape[-1])))

    def decode(self, message: Tensor, d: int, dtype: torch.dtype, words: Tensor) -> Tensor:
        rows = torch.zeros(len(message), d, dtype=dtype, device=message.device)
        return rows.scatter(1, self._positions(words, d).to(message.device), from_bytes(message, dtype))


class _Bucketed(Compressor):
    """Numbers in buckets, each with a scale of its own; the last bucket of a row may be shorter."""

    def __init__(self, bucket: int) -> None:
        if not is_integer(bucket) or bucket < 1:
            raise ConfigError("bucket", f"{short_repr(bucket)} given; it must be a whole number ≥ 1")
        self.bucket = bucket

    def buckets(self, d: int) -> int:
        """The number of buckets of a row."""
        return -(-d // self.bucket)

    def _divided(self, z: Tensor) -> Tensor:
        """Rows `[…, d]` as `[…, buckets, bucket]`, padded with 0."""
        padded = torch.nn.functional.pad(z, (0, -z.shape[-1] % self.bucket))
        return padded.reshape(*z.shape[:-1], self.buckets(z.shape[-1]), self.bucket)


class Quantized(_Bucketed):
    """Multiples of the largest magnitude of a bucket, divided by s = 2^(bits−1) − 1; `bits` bits per number.

    `rounding` is "nearest", or "random" with E C(z) = z (QSGD with the scale of a bucket).
    """

    def __init__(self, bits: int, bucket: int = BUCKET, rounding: Literal["nearest", "random"] = "nearest") -> None:
        super().__init__(bucket)
        if not is_integer(bits) or not 2 <= bits <= 8:
            raise ConfigError("bits", f"{short_repr(bits)} given; it must be a whole number from 2 to 8")
        check_choice("rounding", rounding, ("nearest", "random"))
        self.bits, self.rounding, self.levels = bits, rounding, (1 << (bits - 1)) - 1
        self.unbiased = rounding == "random"

    def variance(self, d: int) -> float:
        """ω with E‖C(z) − z‖² ≤ ω‖z‖² for random rounding."""
        size = min(d, self.bucket)
        return min(size / (4 * self.levels**2), sqrt(size) / self.levels)

    def contraction(self, d: int) -> float:
        # Nearest: one number at the scale, the others half a level away from theirs. Random: as scaled by a feedback.
        size = min(d, self.bucket)
        return 1 / (1 + self.variance(d)) if self.unbiased else 1 / (1 + (size - 1) / (4 * self.levels**2))

    def __call__(self, z: Tensor, words: Tensor) -> Tensor:
        d = z.shape[-1]
        parts = self._divided(z)
        scale = parts.abs().amax(-1, keepdim=True)
        offset: Tensor | float = 0.5
        if self.rounding == "random":
            drawn = hash_words(words, torch.arange(d, device=z.device))
            offset = self._divided(((drawn >> 40) & 0xFFFFFF).to(z.dtype) / 2**24)
        levels = torch.floor(_ratio(parts, scale) * self.levels + offset).clamp(max=self.levels)
        return self._values(levels * parts.sign(), scale).flatten(-2)[..., :d]

    def _values(self, levels: Tensor, scale: Tensor) -> Tensor:
        """What levels −s … s stand for; that of the largest is the scale itself, from which `encode` recovers it."""
        return torch.where(levels.abs() == self.levels, levels.sign() * scale, levels * (scale / self.levels))

    def row_bytes(self, d: int, dtype: torch.dtype) -> int:
        return self.buckets(d) * dtype.itemsize + bytes_of_bits(d * self.bits)

    def encode(self, sent: Tensor, words: Tensor) -> Tensor:
        d = sent.shape[-1]
        parts = self._divided(sent)
        scale = parts.abs().amax(-1, keepdim=True)
        levels = torch.round(_ratio(parts, scale) * self.levels) * parts.sign() + self.levels
        codes = levels.to(torch.uint8).flatten(-2)[..., :d]
        return torch.cat([as_bytes(scale.squeeze(-1)), pack_codes(codes, self.bits)], dim=-1)

    def decode(self, message: Tensor, d: int, dtype: torch.dtype, words: Tensor) -> Tensor:
        end = self.buckets(d) * dtype.itemsize
        scale, codes = from_bytes(message[:, :end], dtype), unpack_codes(message[:, end:], self.bits, d)
        if codes.numel() and int(codes.max()) > 2 * self.levels:
            raise ValueError(f"code {int(codes.max())} of {self.bits} bits, but the largest is {2 * self.levels}")
        levels = self._divided(codes.to(dtype) - self.levels)
        return self._values(levels, scale[..., None]).flatten(-2)[..., :d]


class Sign(_Bucketed):
    """The mean magnitude of a bucket with each number's sign: one bit per number."""

    def contraction(self, d: int) -> float:
        return 1 / min(d, self.bucket)

    def __call__(self, z: Tensor, words: Tensor) -> Tensor:
        d = z.shape[-1]
        sizes = self._divided(torch.ones(d, dtype=z.dtype, device=z.device)).sum(-1)
        scale = self._divided(z).abs().sum(-1) / sizes
        return self._values(z.signbit(), scale)

    def _values(self, negative: Tensor, scale: Tensor) -> Tensor:
        each = scale.repeat_interleave(self.bucket, -1)[..., : negative.shape[-1]]
        return torch.where(negative, -each, each)

    def row_bytes(self, d: int, dtype: torch.dtype) -> int:
        return self.buckets(d) * dtype.itemsize + bytes_of_bits(d)

    def encode(self, sent: Tensor, words: Tensor) -> Tensor:
        scale = self._divided(sent)[..., 0].abs()
        return torch.cat([as_bytes(scale), pack_bits(sent.signbit())], dim=-1)

    def decode(self, message: Tensor, d: int, dtype: torch.dtype, words: Tensor) -> Tensor:
        end = self.buckets(d) * dtype.itemsize
        return self._values(unpack_bits(message[:, end:], d), from_bytes(message[:, :end], dtype))


@operator("rounded_to")
def _rounded_to(z: Tensor, dtype: torch.dtype) -> Tensor:
    """The values of z rounded to another dtype; an operator, since compilers leave out a cast there and back."""
    return z.to(dtype).to(z.dtype)


@_rounded_to.register_fake
def _(z: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(z)


class Half(Compressor):
    """Rounded to a dtype of 16 bits."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def contraction(self, d: int) -> float:
        return 1 - torch.finfo(self.dtype).eps ** 2 / 4

    def __call__(self, z: Tensor, words: Tensor) -> Tensor:
        rounded: Tensor = _rounded_to(z, self.dtype)
        return rounded

    def row_bytes(self, d: int, dtype: torch.dtype) -> int:
        return d * self.dtype.itemsize

    def encode(self, sent: Tensor, words: Tensor) -> Tensor:
        return as_bytes(sent.to(self.dtype))

    def decode(self, message: Tensor, d: int, dtype: torch.dtype, words: Tensor) -> Tensor:
        return message.view(self.dtype).to(dtype)


def check_share(share: float) -> float:
    """Refuse a share that is not in (0, 1]."""
    if not (is_number(share) and 0 < share <= 1):
        raise ConfigError("share", f"{short_repr(share)} given; it must lie in (0, 1]")
    return share


def kept(share: float, d: int) -> int:
    """K, the entries that are sent of a row of d numbers: at least one."""
    return max(1, round(share * d))


def _ratio(parts: Tensor, scale: Tensor) -> Tensor:
    """Magnitudes as fractions of the scale of their bucket; 0 in a bucket of zeros."""
    return parts.abs() / torch.where(scale == 0, 1, scale)
