"""Channels that send compressed rows, or compressed differences to what receivers know already.

With error feedback both ends keep an estimate ẑ, and only C(z − ẑ) is sent:

    ẑ ← ẑ + C(z − ẑ),   z⁺ = z + γ_c (W − I) ẑ

What C leaves out of one message remains in the difference of the next, so the fixed points are those of exact links.
γ_c is `gain`, a number in (0, 1] or "auto": δ/(δ + 2(1 − δ)‖W − I‖₂), with δ about the share of a difference that C
keeps (`Compressor.typical_contraction`). An entry of ẑ is refreshed about every 1/δ messages, and a mixing with values
that old is stable only if its gain falls with their age; without compression (δ = 1) the gain is 1. The rule was found
by measuring; it is not a theorem. Proven gains (CHOCO, BEER) are smaller by factors
of 10 to 1000, and much slower.

Without feedback C(z) itself is sent and used: z⁺ = z + (W − I) C(z). Averages are preserved, but clients no longer
agree. Of the compressors, only 16-bit numbers are used so by default.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from depositum.channels.channel import CHANNELS, Channel, Memory
from depositum.channels.compressors import BUCKET, Compressor, Half, Quantized, RandomK, Sign, TopK
from depositum.errors import ConfigError, is_number, short_repr

#: A gain in (0, 1], or `"auto"`.
Gain = float | Literal["auto"]


class Compressed(Channel):
    """Rows replaced by C(z), with or without error feedback.

    Parameters
    ----------
    name
        In a configuration.
    feedback
        Whether differences to an estimate are sent, which both ends keep.
    gain
        γ_c of error feedback.
    """

    def __init__(self, name: str, compressor: Compressor, feedback: bool = True, gain: Gain = "auto") -> None:
        if gain != "auto" and not (is_number(gain) and 0 < gain <= 1):
            raise ConfigError("gain", f"{short_repr(gain)} given; it must lie in (0, 1], or be 'auto'")
        self.name = name
        self.compressor, self.feedback, self.chosen_gain = compressor, feedback, gain
        self.memory = ("estimate",) if feedback else ()

    def gain_on(self, d: int, spread: float) -> float:
        if not self.feedback:
            return 1.0
        if self.chosen_gain != "auto":
            return float(self.chosen_gain)
        delta = self.compressor.typical_contraction(d)
        return delta / (delta + 2 * (1 - delta) * spread)

    def send(self, z: Tensor, memory: Memory, words: Tensor) -> Tensor:
        return self.compressor(z - memory["estimate"] if self.feedback else z, words)

    def receive(self, sent: Tensor, memory: Memory, words: Tensor) -> tuple[Tensor, Memory]:
        if not self.feedback:
            return sent, memory
        # An unbiased compressor of variance ω contracts once it is divided by 1 + ω.
        factor = self.compressor.contraction(sent.shape[-1]) if self.compressor.unbiased else 1.0
        estimate = memory["estimate"] + (sent if factor == 1 else factor * sent)
        return estimate, {"estimate": estimate}

    def row_bytes(self, d: int, dtype: torch.dtype) -> int:
        return self.compressor.row_bytes(d, dtype)

    def encode(self, sent: Tensor, words: Tensor) -> Tensor:
        return self.compressor.encode(sent, words).view(-1)

    def decode(self, message: Tensor, sizes: Sequence[int], d: int, dtype: torch.dtype, words: Tensor) -> Tensor:
        return self.compressor.decode(message.view(len(sizes), -1), d, dtype, words)


@CHANNELS.register("float16")
def float16(feedback: bool = False, gain: Gain = "auto") -> Channel:
    """Rows rounded to float16: half the bytes of float32, 11 significant bits, values up to 65,504."""
    return Compressed("float16", Half(torch.float16), feedback, gain)


@CHANNELS.register("bfloat16")
def bfloat16(feedback: bool = False, gain: Gain = "auto") -> Channel:
    """Rows rounded to bfloat16: half the bytes of float32, 8 significant bits, the range of float32."""
    return Compressed("bfloat16", Half(torch.bfloat16), feedback, gain)


@CHANNELS.register("top-k")
def top_k(share: float = 0.01, gain: Gain = "auto") -> Channel:
    """The share·d differences of largest magnitude, with their positions: (itemsize + 4) bytes each."""
    return Compressed("top-k", TopK(share), gain=gain)


@CHANNELS.register("random-k")
def random_k(share: float = 0.01, gain: Gain = "auto") -> Channel:
    """The differences at share·d random positions, which both ends draw: itemsize bytes each."""
    return Compressed("random-k", RandomK(share), gain=gain)


@CHANNELS.register("quantize")
def quantize(
    bits: int = 4,
    bucket: int = BUCKET,
    rounding: Literal["nearest", "random"] = "nearest",
    feedback: bool = True,
    gain: Gain = "auto",
) -> Channel:
    """Differences in `bits` bits per number (2 to 8), and a scale for each `bucket` numbers."""
    return Compressed("quantize", Quantized(bits, bucket, rounding), feedback, gain)


@CHANNELS.register("sign")
def sign(bucket: int = BUCKET, gain: Gain = "auto") -> Channel:
    """The signs of differences, one bit per number, and the mean magnitude of each `bucket` numbers."""
    return Compressed("sign", Sign(bucket), gain=gain)
