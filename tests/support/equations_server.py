"""The methods with a server in plain NumPy: a loop over rounds, with a loop over local steps inside."""

from collections.abc import Iterator

import numpy as np

from tests.support.method_problems import BETA, DIM, X0, Array, N, gradients, soft

PERIODS = [1, 5]
#: The server's model and other variables after every round.
Rounds = Iterator[dict[str, Array]]


def tile(x: Array) -> Array:
    return np.tile(x, (N, 1))


def mean(z: Array) -> Array:
    """The server's average (a test replaces it by one with weights)."""
    average: Array = z.mean(0)
    return average


def prox(v: Array, step: float, kind: str) -> Array:
    return soft(v, step * BETA) if kind == "lasso" else v


def fedavg(K: int, kind: str, e: float, s: float = 1.0, gamma: float | None = None) -> Rounds:
    """FedAvg, or FedAvg-M if there is a momentum."""
    w, m = X0, np.zeros(DIM)
    while True:
        x = tile(w)
        for _ in range(K):
            g = gradients(x)
            x = x - e * (g if gamma is None else (1 - gamma) * g + gamma * m)
        m = (w - mean(x)) / (e * K)
        w = w - s * e * K * m
        yield {"x": w, **({} if gamma is None else {"m": m})}


def scaffold(K: int, kind: str, e: float, s: float = 1.0, option: str = "II") -> Rounds:
    w, c, ci = X0, np.zeros(DIM), np.zeros((N, DIM))
    while True:
        x = tile(w)
        for _ in range(K):
            x = x - e * (gradients(x) - ci + c)
        new = gradients(tile(w)) if option == "I" else ci - c + (w - x) / (K * e)
        w = w + s * (mean(x) - w)
        c, ci = c + mean(new - ci), new
        yield {"x": w, "c": c, "ci": ci}


def scaffold_m(K: int, kind: str, e: float, s: float, gamma: float) -> Rounds:
    w, c, ci, m = X0, np.zeros(DIM), np.zeros((N, DIM)), np.zeros(DIM)
    while True:
        x, seen = tile(w), []
        for _ in range(K):
            seen.append(gradients(x))
            x = x - e * ((1 - gamma) * (seen[-1] - ci + c) + gamma * m)
        ci = np.mean(seen, axis=0)
        c, m = mean(ci), mean(w - x) / (K * e)
        w = w - s * K * e * m
        yield {"x": w, "c": c, "ci": ci, "m": m}


def fedmid(K: int, kind: str, e: float, s: float = 1.0, client: bool = True, server: bool = True) -> Rounds:
    w = X0
    while True:
        x = tile(w)
        for _ in range(K):
            x = x - e * gradients(x)
            x = prox(x, e, kind) if client else x
        w = w + s * (mean(x) - w)
        w = prox(w, s * K * e, kind) if server else w
        yield {"x": w}


def feddualavg(K: int, kind: str, e: float, s: float = 1.0) -> Rounds:
    z, h = X0, 0.0
    while True:
        y = tile(z)
        for k in range(K):
            y = y - e * gradients(prox(y, h + k * e, kind))
        z = z + s * (mean(y) - z)
        h += s * K * e
        yield {"x": prox(z, h, kind), "z": z}


def feddr(K: int, kind: str, e: float, eta: float, a: float, start: str = "model") -> Rounds:
    bar, x = X0, tile(X0)
    y = tile(X0) if start == "model" else np.zeros((N, DIM))
    while True:
        y = y + a * (bar - x)
        for _ in range(K):
            x = x - e * (gradients(x) + (x - y) / eta)
        bar = prox(mean(2 * x - y), eta, kind)
        yield {"x": bar, "local": x}


def fedadmm(K: int, kind: str, e: float, c: float) -> Rounds:
    bar, x, q = X0, tile(X0), np.zeros((N, DIM))
    while True:
        for _ in range(K):
            x = x - e * (gradients(x) + q + c * (x - bar))
        q = q + c * (x - bar)
        bar = prox(mean(x + q / c), 1 / c, kind)
        yield {"x": bar, "local": x, "q": q}


def fast_fedda(K: int, kind: str, m: float, G: float) -> Rounds:
    def model(sum_g: Array, sum_x: Array, T: int) -> Array:
        a, b = (sum_g - m / 2 * sum_x - G * X0) / T, m / 2 + G / T
        return prox(-a / b, 1 / b, kind)

    server_g, server_x, w, r = np.zeros(DIM), X0, X0, 0
    while True:
        r += 1
        sum_g, sum_x, local = tile(server_g), tile(server_x), tile(w)
        for k in range(1, K + 1):
            sum_g = sum_g + gradients(local)
            local = model(sum_g, sum_x, (r - 1) * K + k)
            sum_x = sum_x + local
        server_g, server_x = mean(sum_g), mean(sum_x)
        w = model(server_g, server_x, r * K)
        server_x = server_x + w
        yield {"x": w, "gradients": server_g, "points": server_x}


def zhang(K: int, kind: str, e: float, s: float = 1.0, start: str = "zero") -> Rounds:
    g0 = gradients(tile(X0))
    px, c = X0, np.zeros((N, DIM)) if start == "zero" else mean(g0) - g0
    while True:
        zh, z, seen = tile(px), tile(px), []
        for t in range(K):
            seen.append(gradients(z))
            zh = zh - e * (seen[-1] + c)
            z = prox(zh, (t + 1) * e, kind)
        bar = px + s * (mean(zh) - px)
        c = (px - bar) / (s * e * K) - np.mean(seen, axis=0)
        px = prox(bar, e * s * K, kind)
        yield {"x": px, "c": c}
