"""Clients of a server, which communicate with it alone: what methods with a server run on."""

from dataclasses import dataclass

import networkx as nx
import numpy as np
from scipy import sparse

from depositum.networks.communication_network import Network
from depositum.networks.mixing_matrices import Matrix


@dataclass(frozen=True, eq=False)
class ServerNetwork(Network):
    """Clients without links between them, whose one exchange is the mean over all, W = J.

    Made by `server_network`. `weights` has the diagonal alone: n clients take O(n) memory, where a complete graph has
    n² links.
    """

    def __post_init__(self) -> None:
        """Check nothing: Assumption 2 is about links between clients."""

    @property
    def _has_equal_weights(self) -> bool:
        return True

    @property
    def W(self) -> Matrix:
        """J = 11ᵀ/n, float64 `[n, n]`."""
        return np.full((self.n, self.n), 1 / self.n)


def server_network(n: int) -> ServerNetwork:
    """The network of n clients of a server.

    >>> network = server_network(100_000)
    >>> network.n, network.edges, network.is_mean, network.lam
    (100000, 0, True, 0.0)
    """
    graph = nx.freeze(nx.empty_graph(n))
    return ServerNetwork(graph, sparse.csr_array(sparse.eye_array(n)), "server", "uniform")
