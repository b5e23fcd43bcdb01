"""Methods with a server in plain NumPy with a cohort of clients in every round, client by client.

Every function yields the server's model after each round, for the cohorts of the rounds 0, 1, …
"""

from collections.abc import Iterator, Sequence

import numpy as np

from tests.support.method_problems import BETA, X0, A, Array, B, N, soft

Cohorts = Iterator[Sequence[int]]


def gradient(i: int, x: Array) -> Array:
    """∇f_i(x)."""
    g: Array = A[i].T @ (A[i] @ x - B[i]) / len(B[i])
    return g


def fedavg(cohorts: Cohorts, K: int, e: float) -> Iterator[Array]:
    w = X0
    for cohort in cohorts:
        ends = []
        for i in cohort:
            x = w
            for _ in range(K):
                x = x - e * gradient(i, x)
            ends.append(x)
        w = np.mean(ends, axis=0)
        yield w


def fedmid(cohorts: Cohorts, K: int, e: float) -> Iterator[Array]:
    w = X0
    for cohort in cohorts:
        ends = []
        for i in cohort:
            x = w
            for _ in range(K):
                x = soft(x - e * gradient(i, x), e * BETA)
            ends.append(x)
        w = soft(np.mean(ends, axis=0), K * e * BETA)
        yield w


def scaffold(cohorts: Cohorts, K: int, e: float) -> Iterator[Array]:
    w, c, own = X0, np.zeros_like(X0), np.zeros((N, len(X0)))
    for cohort in cohorts:
        moves, changes = [], []
        for i in cohort:
            x = w
            for _ in range(K):
                x = x - e * (gradient(i, x) - own[i] + c)
            new = own[i] - c + (w - x) / (K * e)
            moves.append(x - w)
            changes.append(new - own[i])
            own[i] = new
        w = w + np.mean(moves, axis=0)
        c = c + len(cohort) / N * np.mean(changes, axis=0)
        yield w


def feddr(cohorts: Cohorts, K: int, e: float, eta: float, a: float) -> Iterator[Array]:
    """The server averages the last x̂ of all clients, as in Algorithm 1 of the paper."""
    bar, x, y = X0, np.tile(X0, (N, 1)), np.tile(X0, (N, 1))
    sent = 2 * x - y
    for cohort in cohorts:
        for i in cohort:
            y[i] = y[i] + a * (bar - x[i])
            for _ in range(K):
                x[i] = x[i] - e * (gradient(i, x[i]) + (x[i] - y[i]) / eta)
            sent[i] = 2 * x[i] - y[i]
        bar = soft(sent.mean(0), eta * BETA)
        yield bar


def fedadmm(cohorts: Cohorts, K: int, e: float, c: float) -> Iterator[Array]:
    bar, x, q = X0, np.tile(X0, (N, 1)), np.zeros((N, len(X0)))
    sent = x.copy()
    for cohort in cohorts:
        for i in cohort:
            for _ in range(K):
                x[i] = x[i] - e * (gradient(i, x[i]) + q[i] + c * (x[i] - bar))
            q[i] = q[i] + c * (x[i] - bar)
            sent[i] = x[i] + q[i] / c
        bar = soft(sent.mean(0), BETA / c)
        yield bar
