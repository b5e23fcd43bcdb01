"""What `mix` is in the simulator: the rows of every trial, block by block.

`Exchange` is W^t, `Local` the identity. Both count what a client sends, so that the history can say it.
"""

import torch
from torch import Tensor

from depositum.engines.mixing_products import MixingWeights, SparsityPattern
from depositum.networks import Network


class Exchange:
    """W^t ⊗ I on the rows `[S·n, d]` of S trials.

    W^t is the network's W, or what is left of it in a phase where links are dropped or clients meet in pairs.
    """

    def __init__(self, network: Network, trials: int, device: torch.device, dtype: torch.dtype) -> None:
        self.network, self.n, self.trials = network, network.n, trials
        self.lam, self.lam2, self.lam_min = network.lam, network.lam2, network.lam_min
        W = network.weights
        starts, columns = (torch.tensor(a, dtype=torch.int64, device=device) for a in (W.indptr, W.indices))
        self.pattern = SparsityPattern(starts, columns, trials)
        self._own = self.pattern.rows == columns
        self._static = MixingWeights(self.pattern, torch.tensor(W.data, dtype=dtype, device=device))
        self._links = MixingWeights(self.pattern, (~self._own).to(dtype))
        for table in (self._static, self._links):
            table.prepare()
        self._copies = float(network.degree.mean())
        self.clients = torch.arange(self.n, device=device)
        #: Whether what surrounds a product is to be compiled with it.
        self.inline = False
        self.count()
        self.begin(torch.zeros((), dtype=torch.int64, device=device))

    def count(self) -> None:
        """Begin to count anew the bytes that a client sends: to each neighbour, and to a server or for the average."""
        self.to_each = self.to_all = 0.0

    def begin(self, phase: Tensor) -> None:
        """Set the communication phase (an int64 tensor on the device), which a network that changes depends on."""
        self.weights, self.links = self._static, self._links
        drop, one_peer = self.network.drop, self.network.one_peer
        if one_peer is not None:
            peers = one_peer.peer(phase, self.clients)
            if drop is not None:
                peers = torch.where(drop.present(phase, self.clients, peers), peers, self.clients)
            self._met = (peers != self.clients).to(self._static.entries.dtype).repeat(self.trials)[:, None]
            self._peers = (peers + self.n * torch.arange(self.trials, device=peers.device)[:, None]).flatten()
        elif drop is not None:
            there = drop.present(phase, self.pattern.rows, self.pattern.columns) | self._own
            entries = self._static.entries
            lost = self.pattern.padded(torch.where(there, 0, entries)).sum(1)
            kept = torch.where(there, entries, 0)
            self.weights = MixingWeights(self.pattern, torch.where(self._own, kept + lost[self.pattern.rows], kept))
            self.links = MixingWeights(self.pattern, torch.where(there, self._links.entries, 0))

    def sent_to(self, phase: int) -> float:
        """The neighbours that a client sends a row to in a phase, on average over clients."""
        drop, one_peer = self.network.drop, self.network.one_peer
        if one_peer is None and drop is None:
            return self._copies
        now, clients = torch.tensor(phase), torch.arange(self.n)
        if one_peer is not None:
            i, j = clients, one_peer.peer(now, clients)
        else:
            i, j = (torch.as_tensor(end, dtype=torch.int64) for end in self.network.weights.nonzero())
        there = i != j
        if drop is not None:
            there &= drop.present(now, i, j)
        return int(there.sum()) / self.n

    @property
    def degree(self) -> Tensor:
        """Neighbours of each row in this phase, `[S·n, 1]`."""
        if self.network.one_peer is not None:
            return self._met
        return self.pattern.padded(self.links.entries).sum(1)[:, None].repeat(self.trials, 1)

    def __call__(self, z: Tensor, payload: float | None = None) -> Tensor:
        self._send(z, payload)
        if self.network.one_peer is not None:
            return 0.5 * (z + z[self._peers])
        if self.network.is_mean:
            return self._mean(z)
        return self.weights(z, self.inline)

    def neighbours(self, z: Tensor) -> Tensor:
        self._send(z)
        if self.network.one_peer is not None:
            return self._met * z[self._peers]
        return self.links(z, self.inline)

    def average(self, z: Tensor) -> Tensor:
        if self.n > 1:
            self.to_all += z.shape[1] * z.element_size()
        return self._mean(z)

    def _mean(self, z: Tensor) -> Tensor:
        blocks = z.view(self.trials, self.n, -1)
        return blocks.mean(1, keepdim=True).expand_as(blocks).reshape(z.shape)

    def _send(self, z: Tensor, payload: float | None = None) -> None:
        self.to_each += z.shape[1] * z.element_size() if payload is None else payload


class Local:
    """The identity: a step in which nothing is sent by `mix` itself (averages and neighbours go through W)."""

    def __init__(self, exchange: Exchange) -> None:
        self.lam, self.lam2, self.lam_min = exchange.lam, exchange.lam2, exchange.lam_min
        self._exchange = exchange
        self.average, self.neighbours = exchange.average, exchange.neighbours

    @property
    def degree(self) -> Tensor:
        return self._exchange.degree

    def __call__(self, z: Tensor, payload: float | None = None) -> Tensor:
        return z
