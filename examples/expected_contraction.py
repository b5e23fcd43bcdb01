"""What Theorem 1 says about links that drop: λ̃² = ‖E[(W^t)ᵀ W^t] − J‖ takes the place of λ².

For a ring of ten clients and some probabilities p: λ of the mean W, λ̃ by its formula, λ̃ of 1000 sampled W^t, and the
largest αL that the theorem admits with λ̃ (T0 = 5, γ = 0.5, a convex h).

    python examples/expected_contraction.py
"""

import numpy as np

import depositum as dp
from depositum.theory import Setting, largest_alpha

N, PHASES = 10, 1000


def norm(mean_square):
    """The square root of the largest eigenvalue but that of the average."""
    return float(np.sqrt(np.linalg.norm(mean_square - 1 / N, 2)))


def by_formula(W, p):
    mean_square = np.linalg.matrix_power((1 - p) * W + p * np.eye(N), 2)
    for i, j in zip(*np.nonzero(np.triu(W, 1)), strict=True):
        edge = np.eye(N)[i] - np.eye(N)[j]
        mean_square += 2 * p * (1 - p) * W[i, j] ** 2 * np.outer(edge, edge)
    return norm(mean_square)


def by_sampling(p):
    total, network = np.zeros((N, N)), dp.network("ring", N, drop=p)
    for phase in range(PHASES):
        Wt = network.matrix(phase)
        total += Wt.T @ Wt
    return norm(total / PHASES)


if __name__ == "__main__":
    W = dp.ring(N).W
    for p in (0.0, 0.1, 0.3, 0.5, 0.9):
        mean_lam = np.linalg.norm((1 - p) * W + p * np.eye(N) - 1 / N, 2)
        lam = by_formula(W, p)
        setting = Setting(
            n=N, lam=lam, period=5, beta=0.0, rho=0.0, gamma=0.5, alpha=0.05, L=1.0, sigma2=1.0, batch_size=32,
            steps=500, gap=1.0,
        )  # fmt: skip
        print(
            f"p = {p}   λ of the mean {mean_lam:.4f}   λ̃ {lam:.4f}, sampled {by_sampling(p):.4f}   "
            f"largest αL {largest_alpha(setting).alpha:.1e}"
        )
