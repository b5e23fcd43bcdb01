"""Channels to test with: those of the package, and two that it does not have."""

from collections.abc import Sequence

import torch
from torch import Tensor

from depositum.channels import CHANNELS, Channel, Compressed, Memory, TopK, as_channel


class Rounded(Channel):
    """Rows rounded to 8 bits, with one scale for each row: a channel that the package does not have."""

    name = "8 bits"

    def send(self, z: Tensor, memory: Memory, words: Tensor) -> Tensor:
        return self._whole(z) * self._scale(z)

    def row_bytes(self, d: int, dtype: torch.dtype) -> int:
        return d + dtype.itemsize

    def encode(self, sent: Tensor, words: Tensor) -> Tensor:
        scale = self._scale(sent)
        parts = (sent / scale).to(torch.int8).view(torch.uint8), scale.contiguous().view(torch.uint8)
        return torch.cat(parts, dim=1).view(-1)

    def decode(self, message: Tensor, sizes: Sequence[int], d: int, dtype: torch.dtype, words: Tensor) -> Tensor:
        rows = message.view(len(sizes), -1)
        scale = rows[:, d:].contiguous().view(dtype)
        return rows[:, :d].contiguous().view(torch.int8).to(dtype) * scale

    def _scale(self, z: Tensor) -> Tensor:
        """A power of 2, so that rounded rows have the same scale, and all products are exact."""
        largest = z.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(z.dtype).tiny)
        return torch.exp2(largest.log2().floor() - 6)

    def _whole(self, z: Tensor) -> Tensor:
        return (z / self._scale(z)).round().clamp(-127, 127)


class Averaging(Compressed):
    """Top-k differences with a second memory, the number of messages so far: a channel with explicit state."""

    def __init__(self, share: float) -> None:
        super().__init__("counted top-k", TopK(share), gain=0.4)
        self.memory = ("estimate", "count")

    def receive(self, sent: Tensor, memory: Memory, words: Tensor) -> tuple[Tensor, Memory]:
        estimate = memory["estimate"] + sent
        return estimate, {"estimate": estimate, "count": memory["count"] + 1}


#: Every registered channel, some with other arguments, and the two above.
CHANNEL_CASES: list[Channel] = [
    *(as_channel(name) for name in CHANNELS if name not in ("noise", "top-k", "random-k")),
    as_channel({"top-k": 0.2}),
    as_channel({"random-k": 0.3}),
    as_channel({"quantize": {"bits": 3, "bucket": 5, "rounding": "random"}}),
    as_channel({"noise": 1e-3}),
    as_channel({"noise": {"snr": 20.0, "remedy": "sums"}}),
    as_channel({"noise": {"sigma": 1e-3, "remedy": "none"}}),
    Rounded(),
    Averaging(0.3),
]
#: Methods that mix in different ways, with which every channel is tested in every engine.
CHANNEL_METHODS = ("depositum", "dsgt", "prox-dasa-gt", "d-psgd", "gut")
#: Those that leave averages as they are.
PRESERVING = [channel for channel in CHANNEL_CASES if channel.known]
