"""What `mix` is among processes: rows travel along the edges of the network, and nowhere else.

Each pair of ranks that have neighbours in each other exchanges one message per mixing. A row is the term of its first
neighbour, then the client's own, and then the other neighbours' in the order of their ids, whenever they arrived: the
same sum on any number of processes. With one client here, it is made in the place of the row that was received first.

A lossy encoding Q computes z + (W − I) Q(z), each client using its own transmitted value too: what one end of a link
gains, the other loses, so that averages (and with them the tracking invariant) are kept.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from depositum.engines.processes.encoding import Encoding, EncodingName, encoding
from depositum.engines.processes.group import Group
from depositum.engines.processes.memory import Memory
from depositum.engines.processes.placement import Placement
from depositum.engines.processes.promise import Promise, settled
from depositum.engines.processes.routes import Route, Routes, Terms
from depositum.engines.processes.transfer import SIZE_BYTES, Announced, Posted, Transfer
from depositum.networks import Network

#: Numbers of a term that stay in a core's own cache until the next term is added.
CACHED = 1 << 18


@dataclass
class Traffic:
    """What this rank has sent to another one so far, announcements of lengths included."""

    messages: int = 0
    bytes: int = 0


class Links:
    """W on the rows `[S·k, d]` of the k clients held here, over `torch.distributed`.

    Results are promises: they travel while the caller goes on, until it needs them. `settle` waits for all.

    Attributes
    ----------
    bytes
        Sent by a client for a seed, on average over those held here; whoever counts sets it back to 0.
    sent
        What went to each rank since the start.
    """

    def __init__(
        self, network: Network, group: Group, trials: int, dtype: torch.dtype, send: EncodingName = "float32"
    ) -> None:
        self.group, self.trials = group, trials
        self.placement = Placement(network.n, group.size)
        self.held = self.placement.clients(group.rank)
        self.encoding: Encoding = encoding(send)
        self.lam, self.lam2, self.lam_min = network.lam, network.lam2, network.lam_min
        self.bytes = 0.0
        self.sent: dict[int, Traffic] = {}
        self._routes, self._dtype = Routes(network, self.placement, group.rank), dtype
        self._memory, self.rooms = Memory(group.device), Memory(group.wire)
        self._tag = 0
        self._open: list[Promise] = []
        self.enter(0)

    def enter(self, phase: int) -> None:
        """Begin a communication phase: with a network that changes, others are linked in each."""
        self.route: Route = self._routes.at(phase)
        degrees = torch.tensor([[float(len(terms.others))] for terms in self.route.mixing], dtype=self._dtype)
        self.degree = degrees.repeat(self.trials, 1).to(self.group.device)

    def __call__(self, z: Tensor, payload: float | None = None) -> Tensor:
        """W z. What is sent is the rows of z, whatever `payload` says; it is counted as it is sent."""
        return self._summed(z, self.route.mixing)

    def neighbours(self, z: Tensor) -> Tensor:
        """The unweighted sum over each row's neighbours."""
        return self._summed(z, self.route.sums)

    def average(self, z: Tensor) -> Tensor:
        """The exact mean over all clients, in every row; counted as one row per client, sent to a server."""
        z = settled(z)
        blocks = z.view(self.trials, len(self.held), -1)
        if self.group.size > 1:
            self.bytes += blocks.shape[2] * blocks.element_size()
        mean = self.group.sum(blocks.sum(1)) / self.placement.n
        return mean[:, None].expand_as(blocks).reshape(z.shape)

    def settle(self) -> None:
        """Wait for everything that is still on its way."""
        for promise in self._open:
            promise.settle()
        self._open.clear()

    def next_tag(self) -> int:
        """A number for a transfer: ranks mix in the same order, so both ends of it have the same."""
        self._tag += 1
        return self._tag

    # One exchange

    def _summed(self, z: Tensor, terms: tuple[Terms, ...]) -> Tensor:
        z = settled(z)
        blocks = z.contiguous().view(self.trials, len(self.held), -1)
        arriving = Arriving(self, blocks)
        lossy = self.encoding.lossy
        known = self.encoding.transmitted(blocks)
        rows = {client: known[:, k] for k, client in enumerate(self.held)}

        def row(j: int) -> Tensor:
            if j not in rows:  # what came first is summed while the rest arrives
                rows.update(arriving.rows(self.placement.rank_of(j)))
            return rows[j]

        def finish() -> Tensor:
            out = self._place_of_sum(blocks, terms, row)
            # All terms of some columns, then of the next: each number is read from memory once.
            for columns in self._columns(blocks.shape[2]):
                for k, (client, term) in enumerate(zip(self.held, terms, strict=True)):
                    part = out[:, k, columns]
                    if lossy:
                        torch.mul(blocks[:, k, columns], term.total, out=part)
                        for j, weight in term.others:
                            part.add_(row(j)[:, columns] - known[:, k, columns], alpha=weight)
                        continue
                    ordered = [*term.others[:1], (client, term.own), *term.others[1:]]
                    torch.mul(row(ordered[0][0])[:, columns], ordered[0][1], out=part)
                    for j, weight in ordered[1:]:
                        part.add_(row(j)[:, columns], alpha=weight)
            arriving.transfer.close()
            return out.view(z.shape)

        promise = Promise(z, finish)
        self._open.append(promise)
        return promise

    def _place_of_sum(self, blocks: Tensor, terms: tuple[Terms, ...], row: Callable[[int], Tensor]) -> Tensor:
        """Memory for the sums, `[S, k, d]`: that of the first row received, if nobody else here needs it."""
        if len(terms) == 1 and terms[0].others and not self.encoding.lossy:
            received = row(terms[0].others[0][0])
            if received.is_contiguous():
                return received.view(blocks.shape)
        return self._memory.empty(blocks.numel(), blocks.dtype).view(blocks.shape)

    def _columns(self, d: int) -> list[slice]:
        """Columns that are summed together."""
        width = d if self.group.device.type != "cpu" else max(1, CACHED // self.trials)
        return [slice(first, first + width) for first in range(0, d, width)]

    def count(self, peer: int, size: int) -> None:
        """Note a message of `size` bytes to a rank."""
        traffic = self.sent.setdefault(peer, Traffic())
        traffic.messages += 1
        traffic.bytes += size
        self.bytes += size / (len(self.held) * self.trials)


class Arriving:
    """The rows `[S, k, d]` of one mixing: one's own sent to those who need them, and theirs on their way here."""

    def __init__(self, links: Links, blocks: Tensor) -> None:
        self.encoding, self.route, self._blocks = links.encoding, links.route, blocks
        self._rooms = links.rooms
        group, first = links.group, links.held[0]
        whole = tuple(links.held)
        encoded: dict[tuple[int, ...], Tensor] = {}
        messages = {}
        for peer, clients in self.route.sends.items():
            if clients not in encoded:
                rows = blocks if clients == whole else blocks[:, [i - first for i in clients]]
                encoded[clients] = self.encoding.encode(rows).to(group.wire)
            messages[peer] = encoded[clients]
            extra = SIZE_BYTES if self.encoding.variable else 0
            links.count(peer, messages[peer].numel() * messages[peer].element_size() + extra)
        tag = links.next_tag()
        self.transfer: Transfer
        if self.encoding.variable:
            self.transfer = Announced(group, messages, self._room, tag)
        else:
            self.transfer = Posted(group, messages, {peer: self._room(peer) for peer in messages}, tag)

    def rows(self, peer: int) -> dict[int, Tensor]:
        """What a rank sent: the row `[S, d]` of each of its clients that has a neighbour here."""
        message = self.transfer.receive(peer)
        part = self.encoding.decode(message, self._shape(peer), self._blocks.dtype).to(self._blocks.device)
        return {client: part[:, k] for k, client in enumerate(self.route.receives[peer])}

    def _shape(self, peer: int) -> torch.Size:
        trials, _, d = self._blocks.shape
        return torch.Size((trials, len(self.route.receives[peer]), d))

    def _room(self, peer: int, length: int | None = None) -> Tensor:
        return self._rooms.empty(*self.encoding.room(self._shape(peer), self._blocks.dtype, length))


class Local:
    """The identity: a step in which nothing is sent by `mix` itself (averages and neighbours go through the links)."""

    def __init__(self, links: Links) -> None:
        self.lam, self.lam2, self.lam_min = links.lam, links.lam2, links.lam_min
        self._links, self.average, self.neighbours = links, links.average, links.neighbours

    @property
    def degree(self) -> Tensor:
        return self._links.degree

    def __call__(self, z: Tensor, payload: float | None = None) -> Tensor:
        return z


class Silent(Local):
    """Says nothing at all: for making a state whose values will be replaced."""

    def __init__(self, links: Links) -> None:
        super().__init__(links)
        self.average = self.neighbours = self.__call__
