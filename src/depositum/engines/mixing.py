"""What `mix` is in the simulator: products with W^t over the rows of every trial, through a channel.

`MatrixMix` is W^t, `IdentityMix` the identity of a local step. What a client sends is counted, so that the history
can report it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from depositum.channels import ANNOUNCEMENT_BYTES, Channel, Exact, Memory
from depositum.engines.lost_messages import LossyLinks
from depositum.engines.mixing_products import MixingWeights, SparsityPattern
from depositum.networks import DirectedNetwork, Network
from depositum.randomness import hash_words, purpose_code

#: What is random about a message: of the network's channel, or of a method's own.
NETWORK, METHOD = purpose_code("network channel"), purpose_code("method channel")


def message_words(purpose: int, mixing: int, phase: Tensor | int, seeds: Tensor, clients: Tensor) -> Tensor:
    """The hashes of (seed, client, phase, mixing) of some rows, `[rows, 1]`, given the seed and client of each."""
    return hash_words(seeds, purpose, clients, phase, mixing)[:, None]


class ChannelState:
    """The memory of a run's channel and links, explicit like any other state: rows that start at zero.

    A step mixes several variables one after another; each mixing of a step has its own memory, found by its position
    among the mixings of the step. Memory is allocated by the first step that needs it.

    Attributes
    ----------
    memory
        The memory of each mixing of a step, by name, each `[rows, …]`.
    bytes_by_row
        The bytes that each row's client has sent in messages of varying size, float64 `[rows]`; None where all
        messages have the same size, which is counted on the host.
    """

    def __init__(self, channel: Channel, rows: int, d: int, device: torch.device, dtype: torch.dtype) -> None:
        self.channel, self.shape, self.device, self.dtype = channel, (rows, d), device, dtype
        self.varies = channel.row_bytes(d, dtype) is None
        self.clear()

    def clear(self) -> None:
        """Return to the state at the start of a run."""
        self.memory: list[dict[str, Tensor]] = []
        rows = self.shape[0]
        self.bytes_by_row = torch.zeros(rows, dtype=torch.float64, device=self.device) if self.varies else None
        self.begin_step()

    def begin_step(self) -> None:
        """The next mixing is the first of a step."""
        self._mixings = 0

    def next_memory(self, shapes: Mapping[str, tuple[int, ...]] | None = None) -> tuple[int, Memory]:
        """The position of the next mixing of the step, and its memory.

        `shapes` are those of its memory by name, without the rows; by default, rows as the channel keeps them.
        """
        position = self._mixings
        self._mixings += 1
        rows, d = self.shape
        shapes = dict.fromkeys(self.channel.memory, (d,)) if shapes is None else shapes
        if shapes and position == len(self.memory):
            zeros = {k: torch.zeros((rows, *s), dtype=self.dtype, device=self.device) for k, s in shapes.items()}
            self.memory.append(zeros)
        return position, self.memory[position] if shapes else {}

    def put(self, position: int, memory: Memory) -> None:
        """Store the new memory of a mixing."""
        if memory:
            self.memory[position] = dict(memory)

    # As tensors, for checkpoints and for iterations that update them in place

    def named(self) -> dict[str, Tensor]:
        """All tensors by name: `bytes`, then `POSITION.NAME`."""
        counted = {} if self.bytes_by_row is None else {"bytes": self.bytes_by_row}
        return counted | {f"{k}.{name}": z for k, own in enumerate(self.memory) for name, z in own.items()}

    def replace(self, tensors: dict[str, Tensor]) -> None:
        """Use other tensors, named as `named` does."""
        if self.bytes_by_row is not None:
            self.bytes_by_row = tensors.get("bytes", self.bytes_by_row)
        self.memory = []
        for key in (name for name in tensors if name != "bytes"):
            position, _, name = key.partition(".")
            self.memory += [{} for _ in range(int(position) + 1 - len(self.memory))]
            self.memory[int(position)][name] = tensors[key]


class PhaseLinks(NamedTuple):
    """The links of one communication phase in the simulator.

    Attributes
    ----------
    weights
        W^t, or R^t on a directed network.
    links
        1 for each neighbour.
    pushing
        C^t on a directed network, else W^t.
    peers
        The row that each row meets, its own if none, `[S·n]`; None unless clients meet in pairs.
    """

    weights: MixingWeights
    links: MixingWeights
    pushing: MixingWeights
    peers: Tensor | None = None


class MatrixMix:
    """W^t ⊗ I on the rows `[S·n, d]` of S trials, through a channel.

    W^t is the network's W, what remains of it where links are dropped or clients meet in pairs, or that of the graph
    of the phase.
    """

    def __init__(
        self,
        network: Network,
        trials: int,
        device: torch.device,
        dtype: torch.dtype,
        channel: Channel | None = None,
        d: int = 0,
        seeds: Sequence[int] = (),
    ) -> None:
        self.network, self.n, self.trials = network, network.n, trials
        self.lam, self.lam2, self.lam_min = network.lam, network.lam2, network.lam_min
        self.share = network.share
        self.channel = channel or Exact()
        self.channel_state = ChannelState(self.channel, trials * network.n, d, device, dtype)
        W = network.weights
        starts, columns = (torch.tensor(a, dtype=torch.int64, device=device) for a in (W.indptr, W.indices))
        self.pattern = SparsityPattern(starts, columns, trials)
        self._own = self.pattern.rows == columns
        self._own_positions = self._own.nonzero()[:, 0]
        self._static = MixingWeights(self.pattern, torch.tensor(W.data, dtype=dtype, device=device))
        self._links = MixingWeights(self.pattern, (~self._own).to(dtype))
        #: C on a directed network, whose entries are stored as those of R are.
        self._push: MixingWeights | None = None
        if isinstance(network, DirectedNetwork):
            self._push = MixingWeights(
                self.pattern, torch.tensor(network.push_weights.data, dtype=dtype, device=device)
            )
        for table in (self._static, self._links, *([self._push] if self._push else [])):
            table.prepare()
        if network.sequence is not None:
            tables = [network.sequence.entries(W), *([network.sequence.entries(W, push=True)] if self._push else [])]
            self._tables = [torch.tensor(table, dtype=dtype, device=device) for table in tables]
            self._degrees = torch.tensor(network.sequence.degrees(), dtype=dtype, device=device)
        self._lossy = None
        if network.lost is not None and network.n > 1:
            self._lossy = LossyLinks(network, network.lost, range(self.n), trials, device, dtype)
            offsets = torch.arange(trials, device=device).repeat_interleave(self.n) * self.n
            self._senders = (self._lossy.senders.repeat(trials, 1) + offsets[:, None]).flatten()
        degree = torch.tensor(network.degree, dtype=dtype, device=device)
        self._static_degree = degree[:, None].repeat(trials, 1)
        self._copies = float(network.degree.mean())
        self._clients = torch.arange(self.n, device=device)
        self._gain = self.channel.gain_on(d, 1 - network.lam_min)
        own_seeds = torch.tensor(list(seeds) or [0] * trials, dtype=torch.int64, device=device)
        self._row_seeds = own_seeds.repeat_interleave(self.n)
        self._row_clients = self._clients.repeat(trials)
        self._row_indices = torch.arange(trials * self.n, device=device)
        #: Whether what surrounds a product is to be compiled with it.
        self.inline = False
        self.reset_counts()
        self.begin(torch.zeros((), dtype=torch.int64, device=device))
        _ = self.phase_links  # fills caches, which tensors that are traced must not

    def reset_counts(self) -> None:
        """Count from zero the bytes that a client sends to each neighbour, and to a server or for an average."""
        self.to_each = self.to_all = 0.0

    def begin(self, phase: Tensor) -> None:
        """Begin a step in a communication phase (an int64 tensor on the device), which a changing W depends on."""
        self.channel_state.begin_step()
        self._phase, self._transmissions = phase, 0
        self._phase_links: PhaseLinks | None = None  # found where it is needed: not in local steps, nor with a server
        if self._lossy is not None:
            self._lossy.begin(phase)

    @property
    def phase_links(self) -> PhaseLinks:
        """The links of the phase."""
        if self._phase_links is None:
            self._phase_links = self._links_of(self._phase)
        return self._phase_links

    def _links_of(self, phase: Tensor) -> PhaseLinks:
        always = PhaseLinks(self._static, self._links, self._push or self._static)
        one_peer, sequence = self.network.one_peer, self.network.sequence
        if sequence is not None:
            index = sequence.index(phase).view(1)
            both = [MixingWeights(self.pattern, table.index_select(0, index)[0]) for table in self._tables]
            linked = ((both[0].entries > 0) & ~self._own).to(self._static.entries.dtype)
            return PhaseLinks(both[0], MixingWeights(self.pattern, linked), both[-1])
        if one_peer is not None:
            peers = one_peer.peer(phase, self._clients)
            if self.network.intermittent:
                peers = torch.where(self.network.present(phase, self._clients, peers), peers, self._clients)
            offsets = self.n * torch.arange(self.trials, device=peers.device)
            return always._replace(peers=(peers + offsets[:, None]).flatten())
        if self.network.intermittent:
            there = self.network.present(phase, self.pattern.rows, self.pattern.columns) | self._own
            entries = self._static.entries
            lost = self.pattern.padded(torch.where(there, 0, entries)).sum(1)
            kept = torch.where(there, entries, 0)
            weights = MixingWeights(self.pattern, torch.where(self._own, kept + lost[self.pattern.rows], kept))
            return PhaseLinks(weights, MixingWeights(self.pattern, torch.where(there, self._links.entries, 0)), weights)
        return always

    def mean_degree(self, phase: int) -> float:
        """The neighbours that a client sends a row to in a phase, on average over clients."""
        one_peer, sequence = self.network.one_peer, self.network.sequence
        if sequence is not None:
            return float(self._degrees[sequence.at(phase)].mean())
        if not self.network.varies:
            return self._copies
        now, clients = torch.tensor(phase), torch.arange(self.n)
        if one_peer is not None:
            i, j = clients, one_peer.peer(now, clients)
        else:
            i, j = (torch.as_tensor(end, dtype=torch.int64) for end in self.network.weights.nonzero())
        present = i != j
        if self.network.intermittent:
            present &= self.network.present(now, i, j)
        return int(present.sum()) / self.n

    @property
    def degree(self) -> Tensor:
        """Neighbours of each row in this phase, `[S·n, 1]`."""
        if self.network.sequence is not None:
            index = self.network.sequence.index(self._phase).view(1)
            return self._degrees.index_select(0, index)[0].repeat(self.trials)[:, None]
        if self.phase_links.peers is not None:
            return (self.phase_links.peers != self._row_indices).to(self._static.entries.dtype)[:, None]
        if not self.network.intermittent:
            return self._static_degree
        return self.pattern.padded(self.phase_links.links.entries).sum(1)[:, None].repeat(self.trials, 1)

    def __call__(self, z: Tensor) -> Tensor:
        if self._lossy is not None:
            return self._arriving(z, self._lossy, self.channel, pushed=False)
        return self._mixed(z, self.phase_links.weights)

    pull = __call__  # on a directed network, the weights are R

    def push(self, z: Tensor) -> Tensor:
        """C z, through the channel: W z on an undirected network."""
        if self._lossy is not None:
            return self._arriving(z, self._lossy, self.channel, pushed=True)
        return self._mixed(z, self.phase_links.pushing)

    def push_weights(self, phi: Tensor) -> Tensor:
        """C φ of the push-sum weights `[S·n, 1]`, whatever the channel; φ itself where W 1 = 1 and nothing is lost."""
        if self._lossy is not None:
            return self._arriving(phi, self._lossy, Exact(), pushed=True)
        if self._push is None:
            return phi
        self._count(Exact(), phi)
        return self.phase_links.pushing(phi, self.inline)

    def _arriving(self, z: Tensor, links: LossyLinks, channel: Channel, pushed: bool) -> Tensor:
        """R z, or C z, of what has arrived by now."""
        position, memory = self.channel_state.next_memory(links.shapes(pushed, z.shape[1]))
        sent, kept = links.outgoing(z, memory, pushed)
        self._count(channel, sent)
        messages = [rows[self._senders].view(len(z), -1, z.shape[1]) for rows in (sent, *links.earlier(memory))]
        out, new = links.mixed(z, sent, messages, memory, pushed)
        self.channel_state.put(position, {**kept, **new})
        return out

    def _mixed(self, z: Tensor, weights: MixingWeights) -> Tensor:
        if self.channel.exact:
            self._count(self.channel, z)
            return self._product(z, weights)
        q = self._through_channel(z)
        difference = self._product(q, weights) - q
        if not self.channel.known:
            difference = difference + (1 - self._own_weight(weights)) * (q - z)
        return z + self._gain * difference

    def neighbours(self, z: Tensor) -> Tensor:
        """The unweighted sum over each row's neighbours."""
        assert self._lossy is None, "a method for directed networks mixes by `pull` and `push` alone"
        if self.channel.exact:
            self._count(self.channel, z)
            return self._sum(z)
        q, degree = self._through_channel(z), self.degree
        # As a mixing with weights 1: the sender uses its own q, so that differences over links add up to zero.
        return degree * z + self._gain * (self._sum(q) - degree * (q if self.channel.known else z))

    def average(self, z: Tensor) -> Tensor:
        """The exact mean over all clients, in every row: at the start, and by a server; no channel applies."""
        if self.n > 1:
            self.to_all += z.shape[1] * z.element_size()
        return self._mean(z)

    def transmit(self, z: Tensor, channel: Channel, memory: Memory) -> tuple[Tensor, Tensor, Memory]:
        """W q, q and the new memory, of rows sent through a channel of the method's own, whose memory it keeps."""
        words = message_words(METHOD, self._transmissions, self._phase, self._row_seeds, self._row_clients)
        self._transmissions += 1
        sent = channel.send(z, memory, words)
        q, memory = channel.receive(sent, memory, words)
        if self.network.varies:
            # A client that was not sent a message cannot update its copy, so complete rows are sent.
            self._count(Exact(), q)
        else:
            self._count(channel, sent)
        return self._product(q, self.phase_links.weights), q, memory

    def _through_channel(self, z: Tensor) -> Tensor:
        """q, what all ends take z for."""
        position, memory = self.channel_state.next_memory()
        words = message_words(NETWORK, position, self._phase, self._row_seeds, self._row_clients)
        sent = self.channel.send(z, memory, words)
        q, memory = self.channel.receive(sent, memory, words)
        self.channel_state.put(position, memory)
        self._count(self.channel, sent)
        return q

    def _own_weight(self, weights: MixingWeights) -> Tensor:
        """w_ii of each row in this phase, `[S·n, 1]`."""
        if self.network.one_peer is not None:
            return 1 - 0.5 * self.degree
        own = weights.entries[self._own_positions]
        return own.repeat(self.trials)[:, None]

    def _product(self, z: Tensor, weights: MixingWeights) -> Tensor:
        if self.phase_links.peers is not None:
            return 0.5 * (z + z[self.phase_links.peers])
        if self.network.is_mean:
            return self._mean(z)
        return weights(z, self.inline)

    def _sum(self, z: Tensor) -> Tensor:
        if self.phase_links.peers is not None:
            return self.degree * z[self.phase_links.peers]
        return self.phase_links.links(z, self.inline)

    def _mean(self, z: Tensor) -> Tensor:
        blocks = z.view(self.trials, self.n, -1)
        return blocks.mean(1, keepdim=True).expand_as(blocks).reshape(z.shape)

    def _count(self, channel: Channel, sent: Tensor) -> None:
        fixed = channel.row_bytes(sent.shape[1], sent.dtype)
        if fixed is not None:
            self.to_each += fixed
            return
        state = self.channel_state
        assert state.bytes_by_row is not None
        sizes = channel.sizes(sent) + ANNOUNCEMENT_BYTES
        state.bytes_by_row = state.bytes_by_row + sizes * self.degree[:, 0].to(torch.float64)


class ExchangeMix(Protocol):
    """A mix that communicates, of either engine."""

    lam: float
    lam2: float
    lam_min: float
    share: float

    @property
    def degree(self) -> Tensor: ...

    def average(self, z: Tensor) -> Tensor: ...

    def neighbours(self, z: Tensor) -> Tensor: ...

    def transmit(self, z: Tensor, channel: Channel, memory: Memory) -> tuple[Tensor, Tensor, Memory]: ...


class IdentityMix:
    """The identity: a step in which `mix` itself sends nothing (averages and sums over neighbours still do)."""

    def __init__(self, exchange: ExchangeMix) -> None:
        self.lam, self.lam2, self.lam_min, self.share = exchange.lam, exchange.lam2, exchange.lam_min, exchange.share
        self._exchange = exchange
        self.average, self.neighbours, self.transmit = exchange.average, exchange.neighbours, exchange.transmit

    @property
    def degree(self) -> Tensor:
        return self._exchange.degree

    def __call__(self, z: Tensor) -> Tensor:
        return z

    pull = push = push_weights = __call__
