"""How much each client listens to whom: mixing matrices W for a graph, float64 `[n, n]`.

Each rule gives the weights between clients; what is left to one is the client's own, w_ii = 1 - Σ_j w_ij, so that
rows sum to one to rounding and W is as symmetric as the weights.
"""

import numpy as np
from numpy.typing import NDArray

from depositum.errors import NetworkError
from depositum.networks.graphs import Graph
from depositum.registry import Registry

Matrix = NDArray[np.float64]

#: Mixing matrices by name; the package supplies the graph (nodes 0 … n-1).
MIXINGS = Registry[Matrix]("mixing", supplied=1)


@MIXINGS.register("metropolis")
def metropolis(graph: Graph) -> Matrix:
    """w_ij = 1 / (1 + max(deg_i, deg_j)): needs nothing but the neighbours' degrees.

    >>> from depositum.networks.graphs import path
    >>> metropolis(path(3)).round(3)
    array([[0.667, 0.333, 0.   ],
           [0.333, 0.333, 0.333],
           [0.   , 0.333, 0.667]])
    """
    linked = adjacency(graph)
    degree = linked.sum(axis=1)
    return with_own_share(linked / (1 + np.maximum.outer(degree, degree)))


@MIXINGS.register("lazy-metropolis")
def lazy_metropolis(graph: Graph) -> Matrix:
    """(I + W) / 2 with W of Metropolis: half the weights between clients, and no negative eigenvalue."""
    return with_own_share(metropolis(graph) / 2)


@MIXINGS.register("max-degree")
def max_degree(graph: Graph) -> Matrix:
    """w_ij = 1 / (1 + the greatest degree): the same on all edges."""
    linked = adjacency(graph)
    return with_own_share(linked / (1 + linked.sum(axis=1).max()))


@MIXINGS.register("uniform")
def uniform(graph: Graph) -> Matrix:
    """w_ij = 1 / n, the exact average J: on the complete graph only."""
    n = len(graph)
    linked = adjacency(graph)
    missing = np.argwhere(np.triu(linked == 0, 1))
    if len(missing):
        i, j = missing[0]
        raise NetworkError(
            "network.mixing",
            f"'uniform' given, but clients {i} and {j} are not linked; it needs the topology 'complete'; "
            "'metropolis' takes any graph",
        )
    return with_own_share(linked / n)


def with_own_share(weights: Matrix) -> Matrix:
    """The same weights between clients, with a diagonal that makes rows sum to one."""
    W = weights.copy()
    np.fill_diagonal(W, 0.0)
    np.fill_diagonal(W, 1.0 - W.sum(axis=1))
    return W


def adjacency(graph: Graph) -> Matrix:
    """1.0 on edges and 0.0 elsewhere, `[n, n]`, whatever weights the edges may carry."""
    linked = np.zeros((len(graph), len(graph)))
    ends = np.array(graph.edges, dtype=np.int64).reshape(-1, 2)
    linked[ends[:, 0], ends[:, 1]] = linked[ends[:, 1], ends[:, 0]] = 1.0
    return linked
