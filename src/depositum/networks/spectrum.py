"""The second and the last eigenvalue of W, without all the others.

All eigenvalues of a dense W take n³ operations, a thousand times as many for ten thousand clients as for a thousand;
λ = max(|λ_2|, |λ_n|) needs two of them. That of the eigenvector 1, λ_1 = 1, is known and can be set aside.
"""

from typing import Any, Literal

import numpy as np
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from depositum.networks.mixing import Matrix, Sparse, entries

#: What counts as rounding in the weights that a circulant W has in every row; λ is then off by at most n times as much.
SAME = 1e-14
#: How near Lanczos' eigenvalues must come, and how near for a first guess.
ACCURACY, ROUGH = 1e-11, 1e-3
#: How many vectors Lanczos keeps, and how often it starts anew from them.
KEPT, RESTARTS = 64, 60


def extremes(weights: Sparse) -> tuple[float, float]:
    """λ_2 and λ_n of W `[n, n]`, n ≥ 2: in closed form if W is circulant, by Lanczos' method if not."""
    row = circulant_row(weights)
    return lanczos(weights) if row is None else circulant(row)


def circulant_row(weights: Sparse) -> Matrix | None:
    """The first row `[n]` if each row is the one before, moved on by one client (ring, exponential), or None."""
    n = weights.shape[0]
    sizes = np.diff(weights.indptr)
    if (sizes != sizes[0]).any():
        return None
    i, j, values = entries(weights)
    steps = ((j - i) % n).reshape(n, -1)
    order = np.argsort(steps, axis=1)
    steps, values = np.take_along_axis(steps, order, 1), np.take_along_axis(values.reshape(n, -1), order, 1)
    if (steps != steps[0]).any() or np.abs(values - values[0]).max() > SAME:
        return None
    row = np.zeros(n)
    row[steps[0]] = values[0]
    return row


def circulant(row: Matrix) -> tuple[float, float]:
    """λ_2 and λ_n of the circulant matrix with this first row `[n]`: its Fourier transform, less λ_1 at frequency 0."""
    values = np.fft.fft(row).real[1:]
    return float(values.max()), float(values.min())


def lanczos(weights: Sparse) -> tuple[float, float]:
    """λ_2 and λ_n by Lanczos' method, from one start for all, so that they come out alike every time.

    On long chains, such as a path, neighbouring eigenvalues are too close for it; W - σI is factorised then, σ being
    close to the eigenvalue looked for. Such graphs are the ones whose factors stay sparse.
    """

    def moved(z: Matrix) -> Matrix:
        # W - 2J: as W, but the eigenvector 1 has -1, below all others.
        once: Matrix = np.asarray(weights @ z.ravel()) - 2 * z.mean()
        return once

    try:
        second = _end(LinearOperator(weights.shape, matvec=moved, dtype=np.float64), "LA", ACCURACY, RESTARTS)
    except ArpackNoConvergence:
        second = _nearest(weights, 1.0 + 1e-6, 2)[0]
    try:
        last = _end(weights, "SA", ACCURACY, RESTARTS)
    except ArpackNoConvergence:
        last = _nearest(weights, _end(weights, "SA", ROUGH) - ROUGH, 1)[0]
    return second, last


def _end(operator: Any, which: Literal["LA", "SA"], tolerance: float, restarts: int | None = None) -> float:
    """The greatest (`LA`) or smallest (`SA`) eigenvalue."""
    n = operator.shape[0]
    (value,) = eigsh(
        operator,
        1,
        which=which,
        v0=_start(n),
        ncv=min(KEPT, n),
        maxiter=restarts,
        tol=tolerance,
        return_eigenvectors=False,
    )
    return float(value)


def _nearest(weights: Sparse, sigma: float, count: int) -> list[float]:
    """The eigenvalues nearest to σ, ascending; σ itself is none."""
    n = weights.shape[0]
    values = eigsh(
        weights.tocsc(), count, sigma=sigma, v0=_start(n), ncv=min(KEPT, n), tol=ACCURACY, return_eigenvectors=False
    )
    return sorted(values.tolist())


def _start(n: int) -> Matrix:
    """A vector `[n]` that favours no client and is orthogonal to no eigenvector one could name."""
    return np.random.default_rng(0).standard_normal(n)
