"""Messages that no channel can have made are refused, with the name of the sender, before they touch any memory."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import depositum as dp
from depositum.channels import Channel, Sparse, as_channel
from depositum.engines.distributed.async_tensor import awaited
from depositum.engines.distributed.links import LinkMix
from depositum.errors import GroupError
from tests.support.thread_communicator import ThreadCommunicator, run_threads

D = 1000


class Hostile(Sparse):
    """Sends, in place of every row, this message and this announcement of its size."""

    def __init__(self, message: Tensor, size: int | None = None) -> None:
        self.message, self.size = message, len(message) if size is None else size

    def encode(self, sent: Tensor, words: Tensor) -> Tensor:
        return self.message.clone()

    def sizes(self, sent: Tensor) -> Tensor:
        return torch.tensor([self.size])


def with_positions(*positions: int) -> Tensor:
    """A sparse row of ones at these positions."""
    values = torch.ones(len(positions)).view(torch.uint8)
    return torch.cat([values, torch.tensor(positions, dtype=torch.int32).view(torch.uint8)])


def with_bits(values: int, marked: int) -> Tensor:
    """A sparse row with so many values, and as many bits set."""
    bits = torch.zeros(D // 8, dtype=torch.uint8)
    bits[: marked // 8] = 255
    return torch.cat([torch.ones(values).view(torch.uint8), bits])


@pytest.mark.parametrize(
    ("channel", "why"),
    [
        (Hostile(with_positions(3, D)), "position 1000 of 1000 numbers"),
        (Hostile(with_positions(-1, 3)), "position -1 of 1000 numbers"),
        (Hostile(with_positions(3, 2**31 - 1)), "position 2147483647 of 1000 numbers"),
        (Hostile(with_positions(3, 5)[:-1]), "15 bytes cannot hold values of 4 bytes and their positions"),
        (Hostile(with_bits(values=80, marked=400)), "400 positions are marked, but there are 80 values"),
        (Hostile(with_bits(values=80, marked=8)), "8 positions are marked, but there are 80 values"),
        (Hostile(with_positions(3), size=-1), "a row of -1 bytes, but at most 4000 are possible"),
        (Hostile(with_positions(3), size=10**15), "a row of 1000000000000000 bytes, but at most 4000 are possible"),
    ],
)
def test_a_message_that_is_not_a_row_is_refused_by_its_receiver(channel: Hostile, why: str) -> None:
    """Fails if a position outside of the row ends in a crash, or if memory is allocated for whatever is announced."""

    def mix(communicator: ThreadCommunicator) -> str:
        sender = communicator.rank == 1
        used = channel if sender else Sparse()
        links = LinkMix(dp.complete(2), communicator, 1, torch.float32, used, D)
        if sender:
            mixed = links(torch.zeros(1, D))
            if channel.size == len(channel.message):  # else the receiver stops before it has sent anything
                awaited(mixed)
            return ""
        with pytest.raises(GroupError) as refused:
            awaited(links(torch.zeros(1, D)))
        return str(refused.value)

    error, _ = run_threads(2, mix)
    assert error == f"rank 1 (thread) sent a message that the channel sparse cannot have made: {why}"


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.integers(1, 40), st.sampled_from([torch.float32, torch.float64]))
def test_no_bytes_are_decoded_outside_of_a_row(content: bytes, d: int, dtype: torch.dtype) -> None:
    """Any bytes give a row of d numbers or a ValueError. Fails for whatever else a crafted message can cause."""
    message = torch.tensor(list(content), dtype=torch.uint8)
    channels: list[tuple[Channel, Tensor]] = []
    if len(message) <= d * dtype.itemsize:
        channels.append((Sparse(), message))
    for spec in ({"top-k": 0.3}, {"random-k": 0.3}, {"quantize": {"bits": 3, "bucket": 4}}, {"sign": 4}):
        channel = as_channel(spec)  # type: ignore[arg-type]
        fixed = channel.row_bytes(d, dtype)
        assert fixed is not None
        if len(message) >= fixed:
            channels.append((channel, message[:fixed]))
    words = torch.tensor([[7]])
    for channel, part in channels:
        try:
            rows = channel.decode(part, [len(part)], d, dtype, words)
        except ValueError:
            continue
        assert rows.shape == (1, d)
