"""Who sends which rows to whom in a communication phase, and with which weights they are summed.

Every rank works this out for itself from the network and the phase's number; by symmetry of the links, what one rank
means to send is what the other expects.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache

import torch

from depositum.engines.processes.placement import Placement
from depositum.networks import Network


@dataclass(frozen=True)
class Terms:
    """What becomes of one client's row: own·z_i + Σ_j weight_j·z_j over its neighbours, in the order of their ids."""

    own: float
    others: tuple[tuple[int, float], ...]

    @property
    def total(self) -> float:
        """The sum of all weights: 1 for a mixing."""
        return self.own + sum(weight for _, weight in self.others)


@dataclass(frozen=True)
class Route:
    """One phase as one rank sees it.

    `sends` and `receives` have, for each rank that is talked to, the clients whose rows go there or come from there,
    in ascending order. `mixing` and `sums` have the terms of W and of the unweighted sum over neighbours for each
    client held.
    """

    sends: dict[int, tuple[int, ...]]
    receives: dict[int, tuple[int, ...]]
    mixing: tuple[Terms, ...]
    sums: tuple[Terms, ...]


class Routes:
    """The routes of all phases."""

    def __init__(self, network: Network, placement: Placement, rank: int) -> None:
        self.network, self.placement, self.rank = network, placement, rank
        self.held = placement.clients(rank)
        self._at = lru_cache(maxsize=64)(self._make)

    def at(self, phase: int) -> Route:
        """The route of communication phase 0, 1, …"""
        network = self.network
        if network.drop is not None:
            return self._make(phase)
        return self._at(0 if network.one_peer is None else phase % max(network.one_peer.phases, 1))

    def _make(self, phase: int) -> Route:
        sends: dict[int, set[int]] = defaultdict(set)
        receives: dict[int, set[int]] = defaultdict(set)
        mixing, sums = [], []
        for i in self.held:
            own, links = self._links(i, phase)
            for j, _ in links:
                there = self.placement.rank_of(j)
                if there != self.rank:
                    sends[there].add(i)
                    receives[there].add(j)
            mixing.append(Terms(own, links))
            sums.append(Terms(0.0, tuple((j, 1.0) for j, _ in links)))
        peers = sorted(sends)
        return Route(
            {p: tuple(sorted(sends[p])) for p in peers},
            {p: tuple(sorted(receives[p])) for p in peers},
            tuple(mixing),
            tuple(sums),
        )

    def _links(self, i: int, phase: int) -> tuple[float, tuple[tuple[int, float], ...]]:
        """Client i's own weight in a phase, and its neighbours with theirs."""
        network, number = self.network, torch.tensor(phase)
        if network.one_peer is not None:
            peer = int(network.one_peer.peer(number, torch.tensor(i)))
            weights = {i: 1.0} if peer == i else {i: 0.5, peer: 0.5}
        else:
            first, last = network.weights.indptr[i : i + 2]
            row = slice(int(first), int(last))
            weights = dict(zip(network.weights.indices[row].tolist(), network.weights.data[row].tolist(), strict=True))
        own = weights.pop(i, 0.0)
        if network.drop is not None and weights:
            there = network.drop.present(number, torch.tensor(i), torch.tensor(list(weights))).tolist()
            for j, present in zip(list(weights), there, strict=True):
                if not present:
                    own += weights.pop(j)
        return own, tuple(sorted(weights.items()))
