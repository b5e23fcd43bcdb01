"""The conditions of Assumption 2 on a sparse W, each with its own message that names the first entry at fault."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from depositum.errors import NetworkError
from depositum.networks.mixing import Sparse, row_sums

#: What counts as rounding: in the symmetry, row sums and zeros of a given matrix, and in λ.
ROUNDING = 1e-12


def stored(W: Any) -> Sparse:
    """A copy of a square matrix, dense or sparse: indices sorted, each entry once and not zero."""
    if W.ndim != 2 or W.shape[0] != W.shape[1] or W.shape[0] == 0:
        raise NetworkError("network.mixing", f"a matrix of shape {W.shape} given; W is square, one row per client")
    copy: Sparse = sparse.csr_array(W, dtype=np.float64, copy=True)
    copy.sum_duplicates()
    copy.eliminate_zeros()
    return copy


def check_finite(W: Sparse) -> None:
    """Every weight is a number."""
    if (bad := _first(_where(W, ~np.isfinite(W.data)))) is not None:
        i, j = bad
        raise NetworkError("network.mixing", f"w[{i}, {j}] = {W[i, j]} is not finite; every weight is a number ≥ 0")


def check_matrix(W: Sparse) -> None:
    """W = Wᵀ and W 1 = 1."""
    halves = sparse.csr_array(W - W.T)
    if (bad := _first(_where(halves, np.abs(halves.data) > ROUNDING))) is not None:
        i, j = bad
        raise NetworkError(
            "network.mixing",
            f"the matrix is not symmetric: w[{i}, {j}] = {W[i, j]!s} but w[{j}, {i}] = {W[j, i]!s}; "
            "both clients must give the link the same weight",
        )
    sums = row_sums(W)
    if (errors := np.abs(sums - 1)).max() > ROUNDING:
        i = np.flatnonzero(errors > ROUNDING)[0]
        raise NetworkError(
            "network.mixing",
            f"row {i} sums to {sums[i]!s} and not to 1; give the weights in full float64 precision, "
            f"with w[{i}, {i}] = 1 - the others of its row",
        )


def check_support(W: Sparse, links: Sparse, name: str) -> None:
    """Positive on edges (where `links` is 1) and on the diagonal, zero elsewhere."""
    needed = sparse.csr_array(links + sparse.eye_array(W.shape[0]))
    positive, there = _where(W, W.data > ROUNDING), _where(W, np.abs(W.data) > ROUNDING)
    if (bad := _first((needed - needed * positive) + (there - there * needed))) is None:
        return
    i, j = bad
    weight = f"w[{i}, {j}] = {W[i, j]!s}"
    if i == j:
        problem = f"{weight} given; every client keeps a positive share of its own value: try (I + W) / 2"
    elif links[i, j]:
        problem = f"{weight} given, but clients {i} and {j} are linked in {name!r}; an edge's weight is positive"
    else:
        problem = (
            f"{weight} given, but clients {i} and {j} are not linked in {name!r}; "
            "add the edge to network.topology, or set the weight to 0"
        )
    raise NetworkError("network.mixing", problem)


def check_connected(links: Sparse, key: str, what: str) -> None:
    """Every client reaches every other along `links`; `key` and `what` name what a person gave."""
    count, component = connected_components(links, directed=False)
    if count > 1:
        stranded = np.flatnonzero(component != component[0])[0]
        raise NetworkError(
            key,
            f"{what} has {count} components: client {stranded} cannot reach client 0; "
            "every client must reach every other: add edges between the components",
        )


def _first(bad: Any) -> tuple[int, int] | None:
    """The first entry of a sparse matrix that is not zero, row by row."""
    rows, columns = sparse.csr_array(bad).nonzero()
    return (int(rows[0]), int(columns[0])) if len(rows) else None


def _where(W: Sparse, chosen: NDArray[np.bool_]) -> Sparse:
    """1 at the chosen ones of the stored entries, `[n, n]`."""
    return sparse.csr_array((chosen.astype(np.float64), W.indices, W.indptr), shape=W.shape)
