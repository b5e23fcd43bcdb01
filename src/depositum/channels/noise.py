"""Additive noise: what receivers take z for is z + ξ, ξ normal and independent for each row and message.

A constant noise in the averages of trackers would add up over a run. Three ways to deal with it:

- `"known"`: the sender knows its noise and uses the noisy value too, z + (W − I)(z + ξ): averages stay as they are.
- `"sums"`: it does not. The running sum s ← s + z is sent, and receivers use differences of what they heard,
  (s⁺ + ξ⁺) − (s + ξ) = z + ξ⁺ − ξ: the noise of one message is taken back by the next.
- `"none"`: neither. Averages perform a random walk; it is here to be compared with.
"""

from collections.abc import Sequence
from math import isfinite
from typing import Literal

import torch
from torch import Tensor

from depositum.channels.channel import CHANNELS, Channel, Memory
from depositum.channels.lossless import Exact
from depositum.errors import ConfigError, check_choice, is_number, short_repr
from depositum.randomness import hash_words, standard_normal

#: σ, where neither it nor a ratio of signal to noise is given.
DEFAULT_SIGMA = 1e-3


@CHANNELS.register("noise")
class Noise(Channel):
    """Rows with additive normal noise, simulated; a message has the bytes of the row.

    Parameters
    ----------
    sigma
        Standard deviation σ ≥ 0 of the noise on each number; by default 1e-3.
    snr
        Instead of it, the ratio of signal to noise in decibels: σ = 10^(−snr/20) times the root mean square of a row.
    remedy
        `"known"`, `"sums"` or `"none"`.
    """

    name = "noise"

    def __init__(
        self,
        sigma: float | None = None,
        snr: float | None = None,
        remedy: Literal["known", "sums", "none"] = "known",
    ) -> None:
        if sigma is not None and snr is not None:
            raise ConfigError("sigma", "given, and so is snr; the noise is determined by one of them")
        if sigma is not None and not (is_number(sigma) and isfinite(sigma) and sigma >= 0):
            raise ConfigError("sigma", f"{short_repr(sigma)} given; it must be a number ≥ 0")
        if snr is not None and not (is_number(snr) and isfinite(snr)):
            raise ConfigError("snr", f"{short_repr(snr)} given; it must be a number of decibels")
        check_choice("remedy", remedy, ("known", "sums", "none"))
        self.sigma, self.snr, self.remedy = DEFAULT_SIGMA if sigma is None else sigma, snr, remedy
        self.known = remedy == "known"
        self.memory = ("sum", "heard") if remedy == "sums" else ()

    def send(self, z: Tensor, memory: Memory, words: Tensor) -> Tensor:
        return memory["sum"] + z if self.memory else z + self._noise(z, words)

    def receive(self, sent: Tensor, memory: Memory, words: Tensor) -> tuple[Tensor, Memory]:
        if not self.memory:
            return sent, memory
        heard = sent + self._noise(sent - memory["sum"], words)
        return heard - memory["heard"], {"sum": sent, "heard": heard}

    def _noise(self, z: Tensor, words: Tensor) -> Tensor:
        drawn = standard_normal(hash_words(words, torch.arange(z.shape[-1], device=z.device))).to(z.dtype)
        if self.snr is None:
            return self.sigma * drawn
        return 10 ** (-self.snr / 20) * z.square().mean(-1, keepdim=True).sqrt() * drawn

    def row_bytes(self, d: int, dtype: torch.dtype) -> int:
        return Exact().row_bytes(d, dtype)

    def encode(self, sent: Tensor, words: Tensor) -> Tensor:
        return Exact().encode(sent, words)

    def decode(self, message: Tensor, sizes: Sequence[int], d: int, dtype: torch.dtype, words: Tensor) -> Tensor:
        return Exact().decode(message, sizes, d, dtype, words)
