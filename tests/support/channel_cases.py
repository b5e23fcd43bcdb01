"""Channels to test with: those of the package, and two that it does not have."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from depositum.channels import CHANNELS, Channel, Memory, TopK, as_channel


class Rounded(Channel):
    """Rows rounded to 8 bits, with one scale for each row: a channel that the package does not have."""

    name = "8 bits"

    def send(self, z: Tensor, memory: Memory) -> Tensor:
        return self._whole(z) * self._scale(z)

    def row_bytes(self, d: int, dtype: torch.dtype) -> int:
        return d + dtype.itemsize

    def encode(self, sent: Tensor) -> Tensor:
        scale = self._scale(sent)
        parts = (sent / scale).to(torch.int8).view(torch.uint8), scale.contiguous().view(torch.uint8)
        return torch.cat(parts, dim=1).view(-1)

    def decode(self, message: Tensor, sizes: Sequence[int], d: int, dtype: torch.dtype) -> Tensor:
        rows = message.view(len(sizes), -1)
        scale = rows[:, d:].contiguous().view(dtype)
        return rows[:, :d].contiguous().view(torch.int8).to(dtype) * scale

    def _scale(self, z: Tensor) -> Tensor:
        """A power of 2, so that rounded rows have the same scale, and all products are exact."""
        largest = z.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(z.dtype).tiny)
        return torch.exp2(largest.log2().floor() - 6)

    def _whole(self, z: Tensor) -> Tensor:
        return (z / self._scale(z)).round().clamp(-127, 127)


class Averaging(TopK):
    """Top-k differences with a second memory, the number of messages so far: a channel with explicit state."""

    name = "counted top-k"
    memory: ClassVar[tuple[str, ...]] = ("estimate", "count")
    gain = 0.4

    def receive(self, sent: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        estimate = memory["estimate"] + sent
        return estimate, {"estimate": estimate, "count": memory["count"] + 1}


#: All registered channels, and the two above.
CHANNEL_CASES: list[Channel] = [*(as_channel(name) for name in CHANNELS), Rounded(), Averaging(0.3)]
