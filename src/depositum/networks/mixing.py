"""How much each client listens to whom: mixing matrices W for a graph, sparse float64 `[n, n]`.

Each rule gives the weights between clients; what is left to one is the client's own, w_ii = 1 - Σ_j w_ij, so that
rows sum to one to rounding and W is as symmetric as the weights. W is kept sparse from the start: ten thousand clients
have a hundred million pairs, and a few hundred thousand links.
"""

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import sparse  # scikit-learn, which we need anyway, brings it

from depositum.errors import NetworkError
from depositum.networks.graphs import Graph
from depositum.registry import Registry

Matrix = NDArray[np.float64]
if TYPE_CHECKING:
    Sparse = sparse.csr_array[np.float64, tuple[int, int]]
else:
    Sparse = sparse.csr_array

#: Mixing matrices by name; the package supplies the graph (nodes 0 … n-1).
MIXINGS = Registry[Sparse]("mixing rule", supplied=1)

#: How many entries of dense rows `row_sums` holds at a time: 16 MB.
BLOCK = 1 << 21


@MIXINGS.register("metropolis")
def metropolis(graph: Graph) -> Sparse:
    """w_ij = 1 / (1 + max(deg_i, deg_j)): needs nothing but the neighbours' degrees.

    >>> from depositum.networks.graphs import path
    >>> metropolis(path(3)).toarray().round(3)
    array([[0.667, 0.333, 0.   ],
           [0.333, 0.333, 0.333],
           [0.   , 0.333, 0.667]])
    """
    i, j = ends(graph)
    degree = np.bincount(i, minlength=len(graph))
    return with_own_share(len(graph), i, j, 1.0 / (1 + np.maximum(degree[i], degree[j])))


@MIXINGS.register("lazy-metropolis")
def lazy_metropolis(graph: Graph) -> Sparse:
    """(I + W) / 2 with W of Metropolis: half the weights between clients, and no negative eigenvalue."""
    i, j, weights = entries(metropolis(graph))
    return with_own_share(len(graph), i, j, weights / 2)


@MIXINGS.register("max-degree")
def max_degree(graph: Graph) -> Sparse:
    """w_ij = 1 / (1 + the greatest degree): the same on all edges."""
    i, j = ends(graph)
    greatest = np.bincount(i, minlength=len(graph)).max()
    return with_own_share(len(graph), i, j, np.full(len(i), 1.0 / (1 + greatest)))


@MIXINGS.register("uniform")
def uniform(graph: Graph) -> Sparse:
    """w_ij = 1 / n, the exact average J: on the complete graph only."""
    n = len(graph)
    i, j = ends(graph)
    if len(i) < n * (n - 1):
        # The first client that lacks a link, and the first one it is not linked to.
        a = int(np.flatnonzero(np.bincount(i, minlength=n) < n - 1)[0])
        b = min(set(range(n)) - {a, *j[i == a].tolist()})
        raise NetworkError(
            "network.mixing",
            f"'uniform' given, but clients {a} and {b} are not linked; it needs the topology 'complete'; "
            "'metropolis' takes any graph",
        )
    return with_own_share(n, i, j, np.full(len(i), 1.0 / n))


def one_peer_mean(graph: Graph) -> Sparse:
    """The mean over the phases of a one-peer network with these links: 1/2 for oneself, 1/2 shared by the partners."""
    i, j = ends(graph)
    return with_own_share(len(graph), i, j, np.full(len(i), len(graph) / max(2 * len(i), 1)))


def with_own_share(n: int, i: NDArray[np.integer], j: NDArray[np.integer], weights: Matrix) -> Sparse:
    """W `[n, n]` of the weights between clients i and j, each pair given both ways, `[m]` each.

    Entries with i = j are not looked at: every diagonal entry is stored, and makes its row sum to one.
    """
    apart = i != j
    between = sparse.csr_array((weights[apart], (i[apart], j[apart])), shape=(n, n))
    own = 1.0 - row_sums(between)
    i, j, weights = entries(between)
    everyone = np.arange(n)
    return sparse.csr_array(
        (np.concatenate([weights, own]), (np.concatenate([i, everyone]), np.concatenate([j, everyone]))), shape=(n, n)
    )


def row_sums(matrix: Sparse) -> Matrix:
    """Σ_j of each row, `[n]`, to the bit what NumPy's pairwise sum makes of the dense rows.

    A sum over the stored entries alone would round differently, and the same network would no longer give the same run
    as a dense W does. A few rows are dense at a time.
    """
    n = matrix.shape[0]
    step = max(1, BLOCK // n)
    return np.concatenate([matrix[at : at + step].toarray().sum(axis=1) for at in range(0, n, step)])


def entries(matrix: Sparse) -> tuple[NDArray[np.integer], NDArray[np.integer], Matrix]:
    """The row, column and value of each stored entry, row by row."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    return rows, matrix.indices, matrix.data


def ends(graph: Graph) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """The two ends i and j of each edge, both ways: `[2·edges]` each."""
    flat = np.fromiter(chain.from_iterable(graph.edges()), dtype=np.int64, count=2 * graph.number_of_edges())
    a, b = flat[::2], flat[1::2]
    return np.concatenate([a, b]), np.concatenate([b, a])


def adjacency(graph: Graph) -> Sparse:
    """1.0 on edges and nothing elsewhere, `[n, n]`, whatever weights the edges may carry."""
    i, j = ends(graph)
    return sparse.csr_array((np.ones(len(i)), (i, j)), shape=(len(graph), len(graph)))
