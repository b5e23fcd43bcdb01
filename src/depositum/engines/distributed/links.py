"""What `mix` is among processes: rows travel along the edges of the network, and nowhere else.

Each pair of ranks whose clients are neighbours exchanges one message per mixing. A row is the term of its first
neighbour, then the client's own, and then the other neighbours' in the order of their ids, whenever they arrived: the
same sum on any number of processes. With one client here, the sum is made in the memory of the row received first.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from depositum.channels import ANNOUNCEMENT_BYTES, Channel, Exact, Memory
from depositum.engines.distributed.async_tensor import AsyncTensor, awaited
from depositum.engines.distributed.buffer_pool import BufferPool
from depositum.engines.distributed.clients import Placement
from depositum.engines.distributed.communicator import Communicator, Messages, Subject, Transfer
from depositum.engines.lost_messages import LossyLinks
from depositum.engines.mixing import METHOD, NETWORK, ChannelState, IdentityMix, message_words
from depositum.errors import ConfigError, DivergedError, GroupError
from depositum.networks import DirectedNetwork, Network
from depositum.networks.mixing_matrices import Sparse

#: Numbers of a term that stay in a core's own cache until the next term is added.
CACHED = 1 << 18


@dataclass(frozen=True)
class Terms:
    """What becomes of one client's row: own·z_i + Σ_j weight_j·z_j over its neighbours, in the order of their ids.

    `given` is what the client gives away of its own row, if that is not the sum of the others' weights: with C, whose
    columns sum to 1.
    """

    own: float
    others: tuple[tuple[int, float], ...]
    given: float | None = None

    def without(self, absent: Collection[int]) -> "Terms":
        """The same where some neighbours are away: what is theirs in a mixing is the client's own."""
        lost = sum(weight for j, weight in self.others if j in absent)
        own = self.own + lost if self.own else 0.0  # a sum over neighbours has no term of the client's own
        return Terms(own, tuple(term for term in self.others if term[0] not in absent))

    @property
    def total(self) -> float:
        """The sum of all weights: 1 for a mixing."""
        return self.own + sum(weight for _, weight in self.others)


@dataclass(frozen=True)
class Route:
    """One communication phase as one rank sees it.

    `sends` and `receives` have, for each rank that is sent to or received from, the clients whose rows go there or come
    from there, in ascending order. `mixing`, `sums` and `pushing` have the terms of W (or R), of the unweighted sum
    over neighbours, and of C (or W) for each client held.
    """

    sends: dict[int, tuple[int, ...]]
    receives: dict[int, tuple[int, ...]]
    mixing: tuple[Terms, ...]
    sums: tuple[Terms, ...]
    pushing: tuple[Terms, ...]


class Routes:
    """The routes of all phases.

    Every rank derives them from the network and the number of the phase; since links are symmetric, what one rank
    sends is what the other expects.
    """

    def __init__(self, network: Network, placement: Placement, rank: int) -> None:
        self.network, self.placement, self.rank = network, placement, rank
        self.held = placement.clients(rank)
        self._cached = lru_cache(maxsize=64)(self._make)

    def at(self, phase: int) -> Route:
        """The route of communication phase 0, 1, …"""
        network = self.network
        if network.intermittent:
            return self._make(phase, 0)
        if network.sequence is not None:
            return self._cached(0, network.sequence.at(phase))
        return self._cached(0 if network.one_peer is None else phase % max(network.one_peer.phases, 1), 0)

    def _make(self, phase: int, graph: int) -> Route:
        """The route of a phase, in which a network with a sequence of graphs has one of these."""
        sends: dict[int, set[int]] = defaultdict(set)
        receives: dict[int, set[int]] = defaultdict(set)
        mixing, sums, pushing = [], [], []
        network = self.network
        weights, push_weights = network.weights, network.push_weights if isinstance(network, DirectedNetwork) else None
        if network.sequence is not None:
            weights = network.sequence.weights[graph]
            push_weights = network.sequence.push_weights[graph] if push_weights is not None else None
        listeners = None if push_weights is None else push_weights.T.tocsr()
        for i in self.held:
            own, links = self._links(i, phase, weights)
            for j, _ in links:
                rank = self.placement.rank_of(j)
                if rank != self.rank:
                    receives[rank].add(j)
            for j in [j for j, _ in links] if listeners is None else _row(listeners, i):
                if j == i:
                    continue
                rank = self.placement.rank_of(j)
                if rank != self.rank:
                    sends[rank].add(i)
            mixing.append(Terms(own, links))
            pushing.append(Terms(own, links) if push_weights is None else _pushed(push_weights, i))
            sums.append(Terms(0.0, tuple((j, 1.0) for j, _ in links)))
        return Route(
            {p: tuple(sorted(sends[p])) for p in sorted(sends)},
            {p: tuple(sorted(receives[p])) for p in sorted(receives)},
            tuple(mixing),
            tuple(sums),
            tuple(pushing),
        )

    def _links(self, i: int, phase: int, matrix: Sparse) -> tuple[float, tuple[tuple[int, float], ...]]:
        """Client i's own weight in a phase, and its neighbours with theirs; `matrix` has those of all links."""
        network, number = self.network, torch.tensor(phase)
        if network.one_peer is not None:
            peer = int(network.one_peer.peer(number, torch.tensor(i)))
            weights = {i: 1.0} if peer == i else {i: 0.5, peer: 0.5}
        else:
            weights = _row(matrix, i)
        own = weights.pop(i, 0.0)
        if network.intermittent and weights:
            present = network.present(number, torch.tensor(i), torch.tensor(list(weights))).tolist()
            for j, there in zip(list(weights), present, strict=True):
                if not there:
                    own += weights.pop(j)
        return own, tuple(sorted(weights.items()))


def _row(matrix: Sparse, i: int) -> dict[int, float]:
    """The stored entries of row i, by column."""
    row = slice(int(matrix.indptr[i]), int(matrix.indptr[i + 1]))
    return dict(zip(matrix.indices[row].tolist(), matrix.data[row].tolist(), strict=True))


def _pushed(C: Sparse, i: int) -> Terms:
    """The terms of C for client i."""
    weights = _row(C, i)
    own = weights.pop(i)
    return Terms(own, tuple(sorted(weights.items())), given=1.0 - own)


@dataclass(frozen=True)
class MessageWords:
    """The random words of the messages of one mixing."""

    purpose: int
    mixing: int
    phase: int
    seeds: Tensor

    def of(self, clients: Sequence[int]) -> Tensor:
        """Those of the rows of some clients, of every trial: `[S·k, 1]`, trial by trial."""
        numbers = torch.tensor(list(clients), dtype=torch.int64, device=self.seeds.device)
        seeds = self.seeds.repeat_interleave(len(numbers))
        return message_words(self.purpose, self.mixing, self.phase, seeds, numbers.repeat(len(self.seeds)))


@dataclass
class Traffic:
    """What this rank has sent to another one so far, announcements of sizes included."""

    messages: int = 0
    bytes: int = 0


class LinkMix:
    """W on the rows `[S·k, d]` of the k clients held here, over a communicator and through a channel.

    Results are asynchronous tensors: rows travel while the caller continues, until it needs them.

    Attributes
    ----------
    bytes_sent
        Sent by a client for a trial, on average over those held here, in messages of fixed size, since
        `reset_counts`. Messages of varying size are counted in the channel's state.
    traffic
        What went to each rank since the start.
    """

    def __init__(
        self,
        network: Network,
        communicator: Communicator,
        trials: int,
        dtype: torch.dtype,
        channel: Channel | None = None,
        d: int = 0,
        seeds: Sequence[int] = (),
    ) -> None:
        self.communicator, self.trials, self.network = communicator, trials, network
        self.placement = Placement(network.n, communicator.size)
        self.held = self.placement.clients(communicator.rank)
        self.channel = channel or Exact()
        self.channel_state = ChannelState(self.channel, trials * len(self.held), d, communicator.device, dtype)
        self.lam, self.lam2, self.lam_min = network.lam, network.lam2, network.lam_min
        self.share = network.share
        self._gain = self.channel.gain_on(d, 1 - network.lam_min)
        self._seeds = torch.tensor(list(seeds) or [0] * trials, dtype=torch.int64, device=communicator.device)
        self.reset_counts()
        self.traffic: dict[int, Traffic] = {}
        self._routes, self._dtype = Routes(network, self.placement, communicator.rank), dtype
        self._pool, self._wire_pool = BufferPool(communicator.device), BufferPool(communicator.wire)
        self._tag = 0
        self._pending: list[AsyncTensor] = []
        #: What this process knows of the memory of its neighbours, by mixing: that of a step by its position among
        #: the network's mixings, or among those through a method's own channel.
        self._copies: dict[tuple[str, int], dict[int, Memory]] = {}
        self._transmissions = 0
        #: Whether the run was resumed, so that neighbours' memory is not known to be zero.
        self.resumed = False
        self._lossy = None
        if network.lost is not None and network.n > 1:
            self._lossy = LossyLinks(network, network.lost, self.held, trials, communicator.device, dtype)
        self.begin(0)

    def reset_counts(self) -> None:
        """Count from zero the bytes that a client sends."""
        self.bytes_sent = 0.0

    def begin(self, phase: int, variables: Sequence[str] = ()) -> None:
        """Begin a step in a communication phase: in a network that changes, each has its own links.

        `variables` names what the step mixes, in order, where the method declares it.
        """
        self.channel_state.begin_step()
        self._transmissions = self._exchanges = 0
        self._phase, self._variables = phase, variables
        self._route: Route | None = None  # found where it is needed: not with a server
        if self._lossy is not None:
            self._lossy.begin(torch.tensor(phase, device=self.communicator.device))

    @property
    def route(self) -> Route:
        """The route of the phase."""
        if self._route is None:
            self._route = self._routes.at(self._phase)
        return self._route

    @property
    def degree(self) -> Tensor:
        """Neighbours of each row in this phase, `[S·k, 1]`."""
        degrees = torch.tensor([[float(len(terms.others))] for terms in self.route.mixing], dtype=self._dtype)
        return degrees.repeat(self.trials, 1).to(self.communicator.device)

    def __call__(self, z: Tensor) -> Tensor:
        """W z, through the channel."""
        if self._lossy is not None:
            return self._arrived(z, self._lossy, self.channel, pushed=False)
        return self._mixed(z, self.route.mixing)

    pull = __call__  # on a directed network, `mixing` are the terms of R

    def push(self, z: Tensor) -> Tensor:
        """C z, through the channel: W z on an undirected network."""
        if self._lossy is not None:
            return self._arrived(z, self._lossy, self.channel, pushed=True)
        return self._mixed(z, self.route.pushing)

    def push_weights(self, phi: Tensor) -> Tensor:
        """C φ of the push-sum weights `[S·k, 1]`, whatever the channel; φ itself where W 1 = 1 and nothing is lost."""
        if self._lossy is not None:
            return self._arrived(phi, self._lossy, Exact(), pushed=True)
        if not self.network.directed:
            return phi
        phi = awaited(phi)
        words = MessageWords(NETWORK, 0, self._phase, self._seeds)
        return self._summed(phi, self.route.pushing, Exact(), words, phi, phi, {}, None)

    def neighbours(self, z: Tensor) -> Tensor:
        """The unweighted sum over each row's neighbours."""
        assert self._lossy is None, "a method for directed networks mixes by `pull` and `push` alone"
        if self.communicator.drops:
            raise ConfigError("absent", "'drop' given, but the method needs to know beforehand who its neighbours are")
        return self._mixed(z, self.route.sums)

    def average(self, z: Tensor) -> Tensor:
        """The exact mean over all clients, in every row; counted as one row per client, sent to a server."""
        z = awaited(z)
        blocks = z.view(self.trials, len(self.held), -1)
        if self.communicator.size > 1:
            self.bytes_sent += blocks.shape[2] * blocks.element_size()
        mean = self.communicator.sum(blocks.sum(1)) / self.placement.n
        return mean[:, None].expand_as(blocks).reshape(z.shape)

    def transmit(self, z: Tensor, channel: Channel, memory: Memory) -> tuple[Tensor, Tensor, Memory]:
        """W q, q and the new memory, of rows sent through a channel of the method's own, whose memory it keeps."""
        z, before = awaited(z), awaited(dict(memory))
        message = MessageWords(METHOD, self._transmissions, self._phase, self._seeds)
        self._transmissions += 1
        sent = channel.send(z, before, message.of(self.held))
        q, after = channel.receive(sent, before, message.of(self.held))
        if self.network.varies:
            # A client that was not sent a message cannot update its copy, so complete rows are sent.
            return self._summed(q, self.route.mixing, Exact(), message, q, q, {}, None), q, after
        copies = self._copies_of("transmission", message.mixing, channel.memory, before)
        return self._summed(q, self.route.mixing, channel, message, sent, q, copies, None), q, after

    def reset(self, resumed: bool) -> None:
        """Forget what is known of neighbours' memory: at the start of a run, or where a run is resumed."""
        self._copies.clear()
        self.resumed = resumed

    def named(self) -> dict[str, Tensor]:
        """What is known of the memory of neighbours, by name, on the host."""
        return {
            f"copy.{kind}.{number}.{client}.{name}": tensor.detach().to("cpu", copy=True)
            for (kind, number), copies in self._copies.items()
            for client, memory in copies.items()
            for name, tensor in memory.items()
        }

    def reinstate(self, tensors: dict[str, Tensor]) -> None:
        """Continue with what `named` returned, without asking neighbours."""
        self.reset(resumed=False)
        for key, tensor in tensors.items():
            if key.startswith("copy."):
                _, kind, number, client, name = key.split(".", 4)
                memory = self._copies.setdefault((kind, int(number)), {}).setdefault(int(client), {})
                assert isinstance(memory, dict)
                memory[name] = tensor.to(self.communicator.device)

    def wait(self) -> None:
        """Wait for everything that is still on its way."""
        for pending in self._pending:
            pending.wait()
        self._pending.clear()

    # One mixing

    def _mixed(self, z: Tensor, terms: tuple[Terms, ...]) -> Tensor:
        """The sum of these terms over z, by way of what the channel makes of it."""
        z, channel = awaited(z), self.channel
        if channel.exact:
            return self._summed(z, terms, channel, MessageWords(NETWORK, 0, self._phase, self._seeds), z, z, {}, None)
        position, before = self.channel_state.next_memory()
        message = MessageWords(NETWORK, position, self._phase, self._seeds)
        sent = channel.send(z, before, message.of(self.held))
        q, after = channel.receive(sent, before, message.of(self.held))
        copies = self._copies_of("network", position, channel.memory, before)
        self.channel_state.put(position, after)
        return self._summed(z, terms, channel, message, sent, q, copies, self._gain)

    def _arrived(self, z: Tensor, links: LossyLinks, channel: Channel, pushed: bool) -> Tensor:
        """R z, or C z, of what has arrived by now: messages are posted, and lost or late at their receivers."""
        z, d, late = awaited(z), z.shape[1], links.lost.late
        position, memory = self.channel_state.next_memory(links.shapes(pushed, d))
        words = MessageWords(NETWORK, position, self._phase, self._seeds)
        flat = {name: kept.flatten(1) for name, kept in memory.items()}
        copies = self._copies_of("network", position, ("sent",) if late else (), flat)
        sent, kept = links.outgoing(z, memory, pushed)
        # What each sender sent in this phase and those before, `[S, 1 + late, d]`.
        own = torch.stack([sent, *links.earlier(memory)], 1).view(self.trials, len(self.held), -1, d)
        messages = {client: own[:, k] for k, client in enumerate(self.held)}
        arriving = Arriving(self, own[:, :, 0], channel, words)
        for peer in self.route.receives:
            for client, row in arriving.rows(peer).items():
                messages[client] = row[:, None]
                if late:
                    messages[client] = torch.cat([row[:, None], copies[client]["sent"].view(-1, late, d)], 1)
                    copies[client] = {"sent": messages[client][:, :late].flatten(1)}
        arriving.close()
        by_slot = torch.stack([messages[j] for j in links.senders.flatten().tolist()], 1)
        parts = [part.reshape(len(z), -1, d) for part in by_slot.unbind(2)]
        out, new = links.mixed(z, sent, parts, memory, pushed)
        self.channel_state.put(position, {**kept, **new})
        return out

    def _copies_of(self, kind: str, number: int, names: Sequence[str], memory: Memory) -> dict[int, Memory]:
        """What remote neighbours keep under these names, by client: zero at the start, fetched in a resumed run."""
        if not names:
            return {}
        key = (kind, number)
        if key not in self._copies:
            copies: dict[int, dict[str, Tensor]] = {j: {} for clients in self.route.receives.values() for j in clients}
            for name in names:
                blocks = memory[name].contiguous().view(self.trials, len(self.held), -1)
                if self.resumed:
                    words = MessageWords(NETWORK, number, self._phase, self._seeds)
                    arriving = Arriving(self, blocks, Exact(), words, counted=False)
                    fetched = {j: row for peer in self.route.receives for j, row in arriving.rows(peer).items()}
                    arriving.close()
                for j, own in copies.items():
                    own[name] = fetched[j].clone() if self.resumed else torch.zeros_like(blocks[:, 0])
            self._copies[key] = dict(copies)
        return self._copies[key]

    def _summed(
        self,
        z: Tensor,
        terms: tuple[Terms, ...],
        channel: Channel,
        words: "MessageWords",
        sent: Tensor,
        q: Tensor,
        copies: dict[int, Memory],
        gain: float | None,
    ) -> Tensor:
        """Σ w_ij q_j over rows `[S·k, d]`, or with a gain Σ w_ij z_i + gain·Σ w_ij (q_j − q_i), from what was sent."""
        blocks, own = (rows.contiguous().view(self.trials, len(self.held), -1) for rows in (z, q))
        arriving = Arriving(self, sent.contiguous().view(blocks.shape), channel, words)
        rows = {client: own[:, k] for k, client in enumerate(self.held)}
        gives = own if channel.known else blocks  # what a client takes its own row for

        def row(j: int) -> Tensor:
            if j not in rows:  # what came first is summed while the rest arrives
                for client, message in arriving.rows(self.placement.rank_of(j)).items():
                    rows[client], memory = channel.receive(message, copies.get(client, {}), words.of([client]))
                    if copies:
                        copies[client] = memory
            return rows[j]

        def finish() -> Tensor:
            own_terms = terms
            if self.communicator.drops:  # the weight of a neighbour that is away is the client's own
                for peer in self.route.receives:
                    rows.update(arriving.rows(peer))
                own_terms = tuple(one.without({j for j, _ in one.others if j not in rows}) for one in terms)
            out = self._memory_of_sum(blocks, own_terms, row, in_place=gain is None and channel.exact and not copies)
            # All terms of some columns, then of the next: each number is read from memory once.
            for columns in self._columns(blocks.shape[2]):
                for k, (client, term) in enumerate(zip(self.held, own_terms, strict=True)):
                    part = out[:, k, columns]
                    if gain is not None and term.given is not None:
                        torch.add(blocks[:, k, columns], gives[:, k, columns], alpha=-gain * term.given, out=part)
                        for j, weight in term.others:
                            part.add_(row(j)[:, columns], alpha=gain * weight)
                        continue
                    if gain is not None:
                        torch.mul(blocks[:, k, columns], term.total, out=part)
                        for j, weight in term.others:
                            part.add_(row(j)[:, columns] - gives[:, k, columns], alpha=gain * weight)
                        continue
                    ordered = [*term.others[:1], (client, term.own), *term.others[1:]]
                    torch.mul(row(ordered[0][0])[:, columns], ordered[0][1], out=part)
                    for j, weight in ordered[1:]:
                        part.add_(row(j)[:, columns], alpha=weight)
            if not self.communicator.drops:
                for peer in self.route.receives:  # neighbours' memory is kept up to date even where weights are 0
                    row(self.route.receives[peer][0])
            arriving.close()
            return out.view(z.shape)

        pending = AsyncTensor(z, finish)
        self._pending.append(pending)
        return pending

    def _memory_of_sum(
        self, blocks: Tensor, terms: tuple[Terms, ...], row: Callable[[int], Tensor], in_place: bool
    ) -> Tensor:
        """Memory for the sums, `[S, k, d]`: that of the first row received, if nothing else here needs it."""
        if in_place and len(terms) == 1 and terms[0].others:
            received = row(terms[0].others[0][0])
            if received.is_contiguous():
                return received.view(blocks.shape)
        return self._pool.empty(blocks.numel(), blocks.dtype).view(blocks.shape)

    def _columns(self, d: int) -> list[slice]:
        """Columns that are summed together."""
        width = d if self.communicator.device.type != "cpu" else max(1, CACHED // self.trials)
        return [slice(first, first + width) for first in range(0, d, width)]

    # What an exchange needs of the links

    def next_subject(self) -> Subject:
        """What the next exchange of the step is about."""
        k = self._exchanges
        self._exchanges += 1
        return Subject(self._phase, self._variables[k] if k < len(self._variables) else f"exchange {k + 1}")

    def next_tag(self) -> int:
        """A number for an exchange: ranks mix in the same order, so both ends of it have the same."""
        self._tag += 1
        return self._tag

    def buffer(self, size: int) -> Tensor:
        """Memory for a message of so many bytes."""
        return self._wire_pool.empty(size, torch.uint8)

    def count(self, peer: int, clients: tuple[int, ...], sizes: Tensor | None, size: int) -> None:
        """Count a message to a rank: `size` bytes in all, or `sizes` `[S, clients]` of each row where they vary."""
        traffic = self.traffic.setdefault(peer, Traffic())
        traffic.messages += 1
        traffic.bytes += size
        if sizes is None:
            self.bytes_sent += size / (len(self.held) * self.trials)
            return
        counted = self.channel_state.bytes_by_row
        assert counted is not None
        indices = [client - self.held[0] for client in clients]
        counted.view(self.trials, -1)[:, indices] += sizes.to(counted.device, torch.float64) + ANNOUNCEMENT_BYTES


class Arriving:
    """One exchange: rows `[S, k, d]` encoded and sent to the ranks that need them, and theirs on their way here.

    Where the size of a row depends on its values, the sizes go first, 8 bytes each.
    """

    def __init__(
        self, links: LinkMix, sent: Tensor, channel: Channel, words: MessageWords, counted: bool = True
    ) -> None:
        self._links, self._channel, self._words = links, channel, words
        self._trials, _, self._d = sent.shape
        self._dtype, self._device = sent.dtype, sent.device
        self._route, self._tag, self._subject = links.route, links.next_tag(), links.next_subject()
        self._fixed = channel.row_bytes(self._d, self._dtype)
        self._messages: Messages = {}
        self._sizes: Messages = {}
        if links.communicator.finite_only and not _is_finite(sent):
            phase, what = self._subject
            raise DivergedError(f"client {links.held[0]} diverged: its {what} is not finite in phase {phase}")
        encoded: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
        for peer, clients in self._route.sends.items():
            if clients not in encoded:
                chosen = sent if clients == tuple(links.held) else sent[:, [i - links.held[0] for i in clients]]
                encoded[clients] = self._encode(chosen.reshape(-1, self._d), words.of(clients))
            self._messages[peer], self._sizes[peer] = encoded[clients]
        self._transfer: Transfer | None = None
        self._announced: Transfer | None = None
        communicator = links.communicator
        if self._fixed is None:
            announcements = {p: sizes.contiguous().view(torch.uint8) for p, sizes in self._sizes.items()}
            buffers = {p: links.buffer(self._rows(p) * ANNOUNCEMENT_BYTES) for p in self._route.receives}
            about = self._subject._replace(what=f"sizes of {self._subject.what}")
            self._announced = communicator.post(announcements, buffers, self._tag, about, self._check_sizes)
        else:
            buffers = {p: links.buffer(self._rows(p) * self._fixed) for p in self._route.receives}
            self._transfer = communicator.post(self._messages, buffers, self._tag, self._subject, self._check)
        self._received: dict[int, list[int]] = {}
        if counted:
            for peer, message in self._messages.items():
                clients = self._route.sends[peer]
                sizes = self._sizes[peer].view(self._trials, -1) if self._fixed is None else None
                extra = 0 if sizes is None else sizes.numel() * ANNOUNCEMENT_BYTES
                links.count(peer, clients, sizes, len(message) + extra)

    def rows(self, peer: int) -> dict[int, Tensor]:
        """What a rank sent: a row `[S, d]` of each of its clients that has a neighbour here; nothing if it is away."""
        message = self._arrived().receive(peer)
        if message is None:
            return {}
        try:
            decoded = self._decoded(peer, message).to(self._device)
        except ValueError as error:
            raise self._refused(peer, str(error)) from None
        blocks = decoded.view(self._trials, -1, self._d)
        return {client: blocks[:, k] for k, client in enumerate(self._route.receives[peer])}

    def close(self) -> None:
        """Wait until everything has been sent and received."""
        self._arrived().close()

    def _encode(self, rows: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """The message of rows `[S·k, d]`, and the bytes of each where they vary, where messages are sent from."""
        wire = self._links.communicator.wire
        sizes = self._channel.sizes(rows) if self._fixed is None else torch.empty(0, dtype=torch.int64)
        return self._channel.encode(rows, words).to(wire), sizes.to(wire)

    def _decoded(self, peer: int, message: Tensor) -> Tensor:
        """The rows of a message; one that the channel cannot have made is a ValueError."""
        sizes = self._received.get(peer) or [self._fixed or 0] * self._rows(peer)
        try:
            words = self._words.of(self._route.receives[peer]).to(message.device)
            return self._channel.decode(message, sizes, self._d, self._dtype, words)
        except (ValueError, RuntimeError, IndexError) as error:
            raise ValueError(str(error)) from None

    def _check(self, peer: int, message: Tensor) -> None:
        if not _is_finite(self._decoded(peer, message)):
            raise ValueError(f"{self._subject.what} has values that are not finite")

    def _check_sizes(self, peer: int, message: Tensor) -> None:
        largest = self._channel.largest_row(self._d, self._dtype)
        for size in message.view(torch.int64).tolist():
            if not 0 <= size <= largest:
                raise ValueError(f"a row of {size} bytes, but at most {largest} are possible")

    def _refused(self, peer: int, why: str) -> GroupError:
        name = self._links.communicator.names[peer]
        return GroupError(f"{name} sent a message that the channel {self._channel!r} cannot have made: {why}")

    def _rows(self, peer: int) -> int:
        return self._trials * len(self._route.receives[peer])

    def _arrived(self) -> Transfer:
        """The transfer of the messages themselves, which begins when their sizes are known."""
        if self._transfer is None:
            announced = self._announced
            assert announced is not None
            for peer in self._route.receives:
                sizes = announced.receive(peer)
                assert sizes is not None, "where exchanges are dropped, all messages have one size"
                try:
                    self._check_sizes(peer, sizes)
                except ValueError as error:
                    raise self._refused(peer, str(error)) from None
                self._received[peer] = sizes.view(torch.int64).tolist()
            announced.close()
            buffers = {p: self._links.buffer(sum(sizes)) for p, sizes in self._received.items()}
            communicator = self._links.communicator
            self._transfer = communicator.post(self._messages, buffers, self._tag, self._subject, self._check)
        return self._transfer


def _is_finite(rows: Tensor) -> bool:
    """Whether rows have no NaN and no infinity, by reading them once and writing nothing."""
    return rows.numel() == 0 or all(bool(end.isfinite()) for end in rows.aminmax())


class SilentMix(IdentityMix):
    """Sends nothing at all: for creating a state whose values will be replaced."""

    def __init__(self, links: LinkMix) -> None:
        super().__init__(links)
        self.average = self.neighbours = self.__call__
        self.transmit = lambda z, channel, memory: (z, z, memory)
