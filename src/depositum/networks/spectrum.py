"""The second largest and the smallest eigenvalue of a sparse W, without computing the others.

All eigenvalues of a dense W take O(n³) operations, a thousand times as many for ten thousand clients as for a thousand;
λ = max(|λ_2|, |λ_n|) needs two of them. The largest, λ_1 = 1 with eigenvector 1, is known and can be deflated.
"""

from typing import Any, Literal

import numpy as np
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from depositum.networks.mixing_matrices import Matrix, Sparse, stored_entries

#: Largest difference between the rows of a W that counts as circulant; the error in λ is at most n times as large.
CIRCULANT_TOLERANCE = 1e-14
#: Accuracy of the eigenvalues computed by the Lanczos method, and of a first guess.
ACCURACY, ROUGH_ACCURACY = 1e-11, 1e-3
#: Number of Lanczos vectors, and of restarts.
LANCZOS_VECTORS, LANCZOS_RESTARTS = 64, 60


def extreme_eigenvalues(weights: Sparse) -> tuple[float, float]:
    """λ_2 and λ_n of W `[n, n]`, n ≥ 2: in closed form if W is circulant, otherwise by the Lanczos method."""
    row = circulant_row(weights)
    return lanczos_eigenvalues(weights) if row is None else circulant_eigenvalues(row)


def circulant_row(weights: Sparse) -> Matrix | None:
    """The first row `[n]` of W if each row is the previous one shifted by one client (ring, exponential), or None."""
    n = weights.shape[0]
    sizes = np.diff(weights.indptr)
    if (sizes != sizes[0]).any():
        return None
    i, j, values = stored_entries(weights)
    steps = ((j - i) % n).reshape(n, -1)
    order = np.argsort(steps, axis=1)
    steps, values = np.take_along_axis(steps, order, 1), np.take_along_axis(values.reshape(n, -1), order, 1)
    if (steps != steps[0]).any() or np.abs(values - values[0]).max() > CIRCULANT_TOLERANCE:
        return None
    row = np.zeros(n)
    row[steps[0]] = values[0]
    return row


def circulant_eigenvalues(row: Matrix) -> tuple[float, float]:
    """λ_2 and λ_n of the circulant matrix with this first row `[n]`: its Fourier transform without frequency 0."""
    values = np.fft.fft(row).real[1:]
    return float(values.max()), float(values.min())


def lanczos_eigenvalues(weights: Sparse) -> tuple[float, float]:
    """λ_2 and λ_n by the Lanczos method, from a fixed start vector, so that the result is reproducible.

    On long chains, such as a path, neighbouring eigenvalues are too close for it to converge. W - σI is then
    factorised, with σ close to the eigenvalue; these are the graphs whose factors stay sparse.
    """

    def deflated(z: Matrix) -> Matrix:
        # W - 2J: the eigenvalues of W, except that the eigenvector 1 has -1, below all others.
        product: Matrix = np.asarray(weights @ z.ravel()) - 2 * z.mean()
        return product

    try:
        operator = LinearOperator(weights.shape, matvec=deflated, dtype=np.float64)
        second = _outermost_eigenvalue(operator, "LA", ACCURACY, LANCZOS_RESTARTS)
    except ArpackNoConvergence:
        second = _eigenvalues_near(weights, 1.0 + 1e-6, 2)[0]
    try:
        last = _outermost_eigenvalue(weights, "SA", ACCURACY, LANCZOS_RESTARTS)
    except ArpackNoConvergence:
        guess = _outermost_eigenvalue(weights, "SA", ROUGH_ACCURACY)
        last = _eigenvalues_near(weights, guess - ROUGH_ACCURACY, 1)[0]
    return second, last


def _outermost_eigenvalue(
    operator: Any, which: Literal["LA", "SA"], tolerance: float, restarts: int | None = None
) -> float:
    """The largest (`"LA"`) or smallest (`"SA"`) eigenvalue."""
    n = operator.shape[0]
    (value,) = eigsh(
        operator,
        1,
        which=which,
        v0=_start_vector(n),
        ncv=min(LANCZOS_VECTORS, n),
        maxiter=restarts,
        tol=tolerance,
        return_eigenvectors=False,
    )
    return float(value)


def _eigenvalues_near(weights: Sparse, sigma: float, count: int) -> list[float]:
    """The `count` eigenvalues nearest to σ, ascending; σ must not be an eigenvalue."""
    n = weights.shape[0]
    values = eigsh(
        weights.tocsc(),
        count,
        sigma=sigma,
        v0=_start_vector(n),
        ncv=min(LANCZOS_VECTORS, n),
        tol=ACCURACY,
        return_eigenvectors=False,
    )
    return sorted(values.tolist())


def _start_vector(n: int) -> Matrix:
    """A fixed random vector `[n]`, with a component along every eigenvector."""
    return np.random.default_rng(0).standard_normal(n)
