"""Mixing matrices W for a graph, sparse float64 `[n, n]`.

Each rule defines the weights between clients; the diagonal completes them to one, w_ii = 1 - Σ_j w_ij, so that rows
sum to one up to rounding and W is as symmetric as the weights. W is sparse from the start: ten thousand clients have a
hundred million pairs, but a few hundred thousand links.
"""

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from depositum.errors import NetworkError
from depositum.networks.graphs import Graph
from depositum.registry import Registry

Matrix = NDArray[np.float64]
if TYPE_CHECKING:
    Sparse = sparse.csr_array[np.float64, tuple[int, int]]
else:
    Sparse = sparse.csr_array

#: Mixing rules by name; the package supplies the graph (nodes 0 … n-1).
MIXINGS = Registry[Sparse]("mixing rule", supplied=1)

#: Number of entries of the dense rows that `row_sums` allocates at a time: 16 MB.
BLOCK_ENTRIES = 1 << 21


@MIXINGS.register("metropolis")
def metropolis(graph: Graph) -> Sparse:
    """w_ij = 1 / (1 + max(deg_i, deg_j)): requires only the degrees of the neighbours.

    >>> from depositum.networks.graphs import path
    >>> metropolis(path(3)).toarray().round(3)
    array([[0.667, 0.333, 0.   ],
           [0.333, 0.333, 0.333],
           [0.   , 0.333, 0.667]])
    """
    i, j = edge_ends(graph)
    degree = np.bincount(i, minlength=len(graph))
    return with_diagonal(len(graph), i, j, 1.0 / (1 + np.maximum(degree[i], degree[j])))


@MIXINGS.register("lazy-metropolis")
def lazy_metropolis(graph: Graph) -> Sparse:
    """(I + W) / 2 with the W of Metropolis: half the weights between clients, and no negative eigenvalue."""
    i, j, weights = stored_entries(metropolis(graph))
    return with_diagonal(len(graph), i, j, weights / 2)


@MIXINGS.register("max-degree")
def max_degree(graph: Graph) -> Sparse:
    """w_ij = 1 / (1 + the largest degree): the same on all edges."""
    i, j = edge_ends(graph)
    largest = np.bincount(i, minlength=len(graph)).max()
    return with_diagonal(len(graph), i, j, np.full(len(i), 1.0 / (1 + largest)))


@MIXINGS.register("uniform")
def uniform(graph: Graph) -> Sparse:
    """w_ij = 1 / n, the exact average J: on the complete graph only."""
    n = len(graph)
    i, j = edge_ends(graph)
    if len(i) < n * (n - 1):
        # The first client that lacks a link, and the first one it is not linked to.
        a = int(np.flatnonzero(np.bincount(i, minlength=n) < n - 1)[0])
        b = min(set(range(n)) - {a, *j[i == a].tolist()})
        raise NetworkError(
            "mixing",
            f"'uniform' given, but clients {a} and {b} are not linked; it needs the topology 'complete'; "
            "'metropolis' works on any graph",
        )
    return with_diagonal(n, i, j, np.full(len(i), 1.0 / n))


def one_peer_mean(graph: Graph) -> Sparse:
    """The mean W over the phases of a one-peer network with these links: 1/2 for oneself, 1/2 over the partners."""
    i, j = edge_ends(graph)
    return with_diagonal(len(graph), i, j, np.full(len(i), len(graph) / max(2 * len(i), 1)))


def with_diagonal(n: int, i: NDArray[np.integer], j: NDArray[np.integer], weights: Matrix) -> Sparse:
    """W `[n, n]` with these weights between clients i and j (`[m]` each, every pair given in both directions).

    Entries with i = j are ignored: every diagonal entry is stored, and makes its row sum to one.
    """
    off_diagonal = i != j
    between = sparse.csr_array((weights[off_diagonal], (i[off_diagonal], j[off_diagonal])), shape=(n, n))
    diagonal = 1.0 - row_sums(between)
    i, j, weights = stored_entries(between)
    clients = np.arange(n)
    return sparse.csr_array(
        (np.concatenate([weights, diagonal]), (np.concatenate([i, clients]), np.concatenate([j, clients]))),
        shape=(n, n),
    )


def row_sums(matrix: Sparse) -> Matrix:
    """The sum of each row, `[n]`, bit-identical to NumPy's pairwise sums over the dense rows.

    A sum over the stored entries alone would round differently, and a sparse W would not give the same run as the same
    W given as a dense matrix. A few rows at a time are made dense.
    """
    n = matrix.shape[0]
    step = max(1, BLOCK_ENTRIES // n)
    return np.concatenate([matrix[at : at + step].toarray().sum(axis=1) for at in range(0, n, step)])


def stored_entries(matrix: Sparse) -> tuple[NDArray[np.integer], NDArray[np.integer], Matrix]:
    """The row, column and value of each stored entry, row by row."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    return rows, matrix.indices, matrix.data


def edge_ends(graph: Graph) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """The two ends i and j of each edge, in both directions: `[2·edges]` each."""
    flat = np.fromiter(chain.from_iterable(graph.edges()), dtype=np.int64, count=2 * graph.number_of_edges())
    a, b = flat[::2], flat[1::2]
    return np.concatenate([a, b]), np.concatenate([b, a])


def adjacency(graph: Graph) -> Sparse:
    """The adjacency matrix `[n, n]`: 1.0 on edges, ignoring edge weights."""
    i, j = edge_ends(graph)
    return sparse.csr_array((np.ones(len(i)), (i, j)), shape=(len(graph), len(graph)))
