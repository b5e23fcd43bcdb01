"""Assumption 2 in plain NumPy, reference adjacency matrices, and matrices that violate the assumption."""

import numpy as np

from depositum import networks
from depositum.networks import Network


def assert_assumption_2(W: np.ndarray, linked: np.ndarray) -> None:
    """Check Assumption 2 in dense NumPy, against a boolean adjacency matrix `[n, n]` obtained independently."""
    n = len(linked)
    assert W.shape == (n, n)
    assert W.dtype == np.float64
    assert (W == W.T).all()
    assert np.abs(W.sum(axis=1) - 1).max() <= 1e-15 * n
    assert np.abs(W.sum(axis=0) - 1).max() <= 1e-15 * n
    assert (np.diag(W) > 0).all()
    off = ~np.eye(n, dtype=bool)
    assert (W[linked & off] > 0).all()
    assert (W[~linked & off] == 0).all()
    assert (np.linalg.matrix_power((W > 0).astype(float) / n, max(n - 1, 1)) > 0).all(), "not connected"


def adjacency(name: str, n: int) -> np.ndarray | None:
    """The boolean adjacency matrix `[n, n]` from the definition of a topology; None for a random one."""
    i, j = np.indices((n, n))
    distance = np.minimum((i - j) % n, (j - i) % n)
    rows = max(k for k in range(1, n + 1) if n % k == 0 and k * k <= n)
    cols = n // rows
    down, across = np.abs(i // cols - j // cols), np.abs(i % cols - j % cols)
    wrapped_down, wrapped_across = np.minimum(down, rows - down), np.minimum(across, cols - across)
    powers = [2**k for k in range(10) if 2**k < n]
    rules = {
        "ring": distance == 1,
        "complete": i != j,
        "star": (i == 0) ^ (j == 0),
        "path": np.abs(i - j) == 1,
        "grid": down + across == 1,
        "torus": wrapped_down + wrapped_across == 1,
        "hypercube": np.bitwise_count(i ^ j) == 1,
        "exponential": np.isin((i - j) % n, powers) | np.isin((j - i) % n, powers),
    }
    return rules.get(name)


def edge_set(network: Network) -> set[tuple[int, ...]]:
    """The edges as sorted pairs."""
    return {tuple(sorted(edge)) for edge in network.graph.edges}


#: W of a ring of 5 clients.
RING = networks.ring(5).W


def with_entries(*entries: tuple[int, int, float]) -> np.ndarray:
    """The matrix of the ring with some entries replaced."""
    W = RING.copy()
    for i, j, value in entries:
        W[i, j] = value
    return W


def moved(i: int, j: int, amount: float) -> np.ndarray:
    """Weight moved from two diagonal entries to the link (i, j): still symmetric, rows still sum to one."""
    W = RING.copy()
    W[[i, j], [j, i]] += amount
    W[[i, j], [i, j]] -= amount
    return W


def cyclic_asymmetric() -> np.ndarray:
    """Rows and columns sum to one, but weights differ between the two directions of the ring."""
    shift = np.roll(np.eye(5), 1, axis=1)
    return RING + 0.1 * (shift - shift.T)


#: Name, matrix and error message.
INVALID_MATRICES = [
    ("asymmetric", cyclic_asymmetric(), r"not symmetric: w\[0, 1\] = 0\.43\d+ but w\[1, 0\] = 0\.23\d+; both clients"),
    ("not stochastic", with_entries((3, 3, 0.5)), r"row 3 sums to 1\.16\d+ instead of 1; .* w\[3, 3\] = 1 - "),
    ("rounded to four digits", RING.round(4), r"row 0 sums to 0\.9999\d* instead of 1; .* full float64 precision"),
    (
        "weight off the graph",
        moved(0, 2, 0.1),
        r"w\[0, 2\] = 0\.1 given, but clients 0 and 2 are not linked in 'graph'",
    ),
    (
        "negative off the graph",
        moved(1, 3, -0.1),
        r"w\[1, 3\] = -0\.1 given, but clients 1 and 3 are not linked",
    ),
    (
        "zero weight on an edge",
        moved(1, 2, -RING[1, 2]),
        r"w\[1, 2\] = 0\.0 given, but clients 1 and 2 are linked",
    ),
    (
        "negative weight",
        moved(1, 2, -0.5),
        r"w\[1, 2\] = -0\.1\d+ given, but clients 1 and 2 are linked .* must be positive",
    ),
    ("zero diagonal", (RING - np.eye(5) / 3) * 1.5, r"w\[0, 0\] = .* given; diagonal weights must be positive"),
    ("too small", networks.ring(4).W, r"shape \(4, 4\) given; 5 clients need \(5, 5\)"),
    ("not square", RING[:4], r"shape \(4, 5\) given; W must be square"),
    ("flat", RING[0], r"shape \(5,\) given; W must be square"),
    ("empty", np.zeros((0, 0)), r"shape \(0, 0\) given; W must be square"),
    ("NaN", with_entries((2, 1, np.nan)), r"w\[2, 1\] = nan is not finite"),
    ("infinite", with_entries((0, 4, np.inf)), r"w\[0, 4\] = inf is not finite"),
    ("complex", RING.astype(complex), r"contains complex128 values; weights must be real numbers"),
    ("ragged", [[1.0], [0.5, 0.5]], r"cannot be read as a matrix; it needs rows of equal length"),
]
