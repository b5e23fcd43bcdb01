"""The interface of a channel, and the registry of channels by name."""

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
    """What happens to a row between its sender and its receivers.

    `words`, int64 `[rows, 1]`, are hashes of (seed, client, phase, mixing) of each row: whatever is random about a
    message is derived from them, so that both of its ends, and both engines, draw the same numbers.
    """

    #: The name in a configuration.
    name: str
    #: How a configuration writes the channel, where `as_channel` made it from that.
    spec: "Spec | None" = None
    #: Whether receivers always get z itself, to the bit.
    exact: ClassVar[bool] = False
    #: The names of the rows in the channel's memory, all zero at the start.
    memory: tuple[str, ...] = ()
    #: Whether the sender knows q, what receivers take z for, and uses it too; otherwise the sender uses z.
    known: bool = True
    #: The factor of (W − I) q in a mixing.
    gain: float = 1.0

    def gain_on(self, d: int, spread: float) -> float:
        """The gain for rows of d numbers on a network with ‖W − I‖₂ = `spread`."""
        return self.gain

    def send(self, z: Tensor, memory: Memory, words: Tensor) -> Tensor:
        """The rows `[rows, d]` to put on the link for rows z, in the dtype of z."""
        return z

    def receive(self, sent: Tensor, memory: Memory, words: Tensor) -> tuple[Tensor, Memory]:
        """Q, what receivers take z for, and the new memory, from the rows that were sent; all `[rows, d]`."""
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
    def encode(self, sent: Tensor, words: Tensor) -> Tensor:
        """The message, uint8 `[bytes]`, that carries the rows `[k, d]`, one after another."""

    def largest_row(self, d: int, dtype: torch.dtype) -> int:
        """The most bytes that a row of d numbers can take on a link: a sender that announces more is refused."""
        fixed = self.row_bytes(d, dtype)
        return 2 * d * dtype.itemsize + 64 if fixed is None else fixed

    @abstractmethod
    def decode(self, message: Tensor, sizes: Sequence[int], d: int, dtype: torch.dtype, words: Tensor) -> Tensor:
        """The rows `[k, d]` that a message carries, given the bytes of each; it may share the message's memory.

        The message comes from another process. One that `encode` cannot have made is a ValueError.
        """

    def __repr__(self) -> str:
        return self.name


def as_channel(channel: "Channel | Spec") -> Channel:
    """A channel from its name, from a configuration's table, or the channel itself.

    >>> as_channel("float16").row_bytes(10, torch.float32)
    20
    """
    if isinstance(channel, Channel):
        return channel
    if not isinstance(channel, str | Mapping):
        raise ConfigError("channel", f"{short_repr(channel)} given; it must be the name of a channel or a Channel")
    made = CHANNELS.parse(channel, "channel").make()
    made.spec = channel
    return made
