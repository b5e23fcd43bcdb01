"""DEPOSITUM in plain NumPy, written from the paper; it shares no code with the package.

Everything is client by client, where the package works on rows: `W^t` is a sum over neighbours, the prox a formula per
coordinate, and the gradients are those of softmax regression, derived by hand.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def metropolis(edges: Sequence[tuple[int, int]], n: int) -> Array:
    """w_ij = 1/(1 + max(deg_i, deg_j)) on edges; the diagonal makes rows sum to one."""
    degree = [0] * n
    for i, j in edges:
        degree[i] += 1
        degree[j] += 1
    w = np.zeros((n, n))
    for i, j in edges:
        w[i, j] = w[j, i] = 1.0 / (1 + max(degree[i], degree[j]))
    for i in range(n):
        w[i, i] = 1.0 - w[i].sum()
    return w


def softmax_gradient(row: Array, inputs: Array, labels: NDArray[np.int64], classes: int) -> Array:
    """Gradient of the mean cross-entropy of a linear model; a row is the weight [classes, features], then the bias."""
    features = inputs.shape[1]
    weight, bias = row[: classes * features].reshape(classes, features), row[classes * features :]
    logits = inputs @ weight.T + bias
    logits -= logits.max(axis=1, keepdims=True)
    p = np.exp(logits)
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(labels)), labels] -= 1.0
    p /= len(labels)
    return np.concatenate([(p.T @ inputs).ravel(), p.sum(axis=0)])


def prox_l1(v: Array, tau: float) -> Array:
    return np.sign(v) * np.maximum(np.abs(v) - tau, 0.0)


def prox_mcp(v: Array, tau: float, lam: float, theta: float) -> Array:
    out = v.copy()
    for k, value in np.ndenumerate(v):
        if abs(value) <= tau * lam:
            out[k] = 0.0
        elif abs(value) <= theta * lam:
            out[k] = np.sign(value) * (abs(value) - tau * lam) / (1 - tau / theta)
    return out


def prox_scad(v: Array, tau: float, lam: float, a: float) -> Array:
    out = v.copy()
    for k, value in np.ndenumerate(v):
        if abs(value) <= (1 + tau) * lam:
            out[k] = np.sign(value) * max(abs(value) - tau * lam, 0.0)
        elif abs(value) <= a * lam:
            out[k] = ((a - 1) * value - np.sign(value) * tau * a * lam) / (a - 1 - tau)
    return out


def prox_box(v: Array, low: float, high: float) -> Array:
    return np.minimum(np.maximum(v, low), high)


def depositum(
    x0: Array,
    gradient: Callable[[int, Array], Array],
    prox: Callable[[Array], Array],
    w: Array,
    *,
    alpha: float,
    gamma: float,
    period: int,
    steps: int,
    momentum: str,
    start: str = "average",
) -> list[dict[str, Array]]:
    """Algorithm 1, client by client; the states after 0, 1, …, `steps` iterations."""
    n = len(w)
    neighbours = [[j for j in range(n) if w[i, j] != 0] for i in range(n)]

    def mix(z: list[Array], t: int) -> list[Array]:
        if t % period != 0:
            return z
        return [sum((w[i, j] * z[j] for j in neighbours[i]), start=np.zeros_like(z[0])) for i in range(n)]

    x = [x0.copy() for _ in range(n)]
    g = [gradient(i, x[i]) for i in range(n)]
    nu, mu = list(g), list(g)
    y = {"average": [sum(g) / n for _ in range(n)], "local": list(g), "mixed": mix(g, 0)}[start]
    states = [{"x": np.array(x), "y": np.array(y), "nu": np.array(nu), "mu": np.array(mu)}]
    for t in range(steps):
        x = mix([prox(x[i] - alpha * y[i]) for i in range(n)], t)
        g = [gradient(i, x[i]) for i in range(n)]
        nu_previous = nu
        if momentum == "polyak":
            nu = [gamma * nu[i] + (1 - gamma) * g[i] for i in range(n)]
        else:
            mu = [gamma * mu[i] + (1 - gamma) * g[i] for i in range(n)]
            nu = [gamma * mu[i] + (1 - gamma) * g[i] for i in range(n)]
        y = mix([y[i] + nu[i] - nu_previous[i] for i in range(n)], t)
        states.append({"x": np.array(x), "y": np.array(y), "nu": np.array(nu), "mu": np.array(mu)})
    return states
