"""Messages on their way between this rank and others."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from depositum.engines.processes.group import Group

#: Bytes that the announcement of a message's size takes.
SIZE_BYTES = 8
#: Messages by the rank they go to, or come from.
Messages = dict[int, Tensor]


class Transfer(Protocol):
    """One message to each of some ranks, and one from each."""

    def receive(self, peer: int) -> Tensor:
        """The message of a rank, after waiting for it."""
        ...

    def close(self) -> None:
        """Wait until one's own messages have left."""
        ...


class Posted:
    """Messages whose sizes both ends know: everything is posted at once.

    Parameters
    ----------
    rooms
        Where the messages of others are put.
    tag
        Tells this transfer from others with the same ranks; the same at both ends.
    """

    def __init__(self, group: Group, messages: Messages, rooms: Messages, tag: int) -> None:
        self._group, self._rooms = group, rooms
        self._arriving: dict[int, Any] = {}
        self._leaving: dict[int, Any] = {}
        operations = [dist.P2POp(dist.irecv, room, peer, tag=tag) for peer, room in rooms.items()]
        operations += [dist.P2POp(dist.isend, message, peer, tag=tag) for peer, message in messages.items()]
        if not operations:
            return
        with group.watch.waiting_for([*rooms, *messages]):
            works = dist.batch_isend_irecv(operations)
        if len(works) < len(operations):
            works = works[:1] * len(operations)  # NCCL makes one transfer of all
        self._arriving = dict(zip(rooms, works, strict=False))
        self._leaving = dict(zip(messages, works[len(rooms) :], strict=True))

    def receive(self, peer: int) -> Tensor:
        self._complete(self._arriving, peer)
        return self._rooms[peer]

    def close(self) -> None:
        for works in (self._arriving, self._leaving):
            for peer in list(works):
                self._complete(works, peer)

    def _complete(self, works: dict[int, Any], peer: int) -> None:
        if peer in works:
            with self._group.watch.waiting_for([peer]):
                self._group.complete(works.pop(peer))


class Announced:
    """Messages of any size: the sizes go first, 8 bytes each, and the messages when both ends know them.

    Parameters
    ----------
    room
        Makes room for a message of a rank, given its size.
    """

    def __init__(self, group: Group, messages: Messages, room: Callable[[int, int], Tensor], tag: int) -> None:
        self._group, self._messages, self._room, self._tag = group, messages, room, tag
        sizes = {p: torch.tensor([m.numel()], dtype=torch.int64, device=group.wire) for p, m in messages.items()}
        self._sizes = Posted(group, sizes, {p: torch.empty_like(size) for p, size in sizes.items()}, tag)
        self._posted: Posted | None = None

    def receive(self, peer: int) -> Tensor:
        return self._post().receive(peer)

    def close(self) -> None:
        self._post().close()

    def _post(self) -> Posted:
        if self._posted is None:
            rooms = {peer: self._room(peer, int(self._sizes.receive(peer))) for peer in self._messages}
            self._sizes.close()
            self._posted = Posted(self._group, self._messages, rooms, self._tag)
        return self._posted
