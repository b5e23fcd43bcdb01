"""The decentralized composite methods in plain NumPy: each has the indices of its paper and yields its states."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.polynomial.chebyshev import Chebyshev

from depositum.algorithms import Algorithm
from tests.support import method_problems as mp
from tests.support.method_problems import BETA, DIM, X0, Array, N, soft

#: Metropolis weights on a ring are thirds.
RING = np.array([[1 / 3 if (i - j) % N in (0, 1, N - 1) else 0.0 for j in range(N)] for i in range(N)])
START = np.tile(X0, (N, 1))
STEPS = 65
PERIODS = (1, 5)

States = Iterator[dict[str, Array]]
#: Gradients at x with the `draw`-th batch of iteration t, of a given size (None: the batch size of the run).
Gradient = Callable[..., Array]


def full(x: Array, t: int, draw: int = 0, size: Any = None) -> Array:
    return mp.gradients(x)


def noisy(x: Array, t: int, draw: int = 0, size: Any = None) -> Array:
    """Gradients with noise that depends on everything that identifies a batch, and linearly on the point."""
    if size == "full":
        return mp.gradients(x)
    rng = np.random.default_rng([t, draw, size or 0])
    return mp.gradients(x) + 0.2 * rng.normal(size=(N, DIM)) * x + 0.2 * rng.normal(size=(N, DIM))


class NoisyOracle:
    """The simulator's oracle with the gradients of `noisy`."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def begin(self, t: torch.Tensor) -> None:
        self.t, self.draws, self.evaluations = int(t), 0, 0.0

    def sample(self, size: Any = None) -> tuple[int, int, Any]:
        self.draws += 1
        return self.t, self.draws - 1, size

    def grad(self, x: torch.Tensor, batch: tuple[int, int, Any]) -> torch.Tensor:
        return torch.tensor(noisy(x.numpy(), *batch))

    def full_grad(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tensor(mp.gradients(x.numpy()))


def start(method: Algorithm, gradient: Gradient, period: int = 1) -> mp.Trajectory:
    """A run at t = 0, with full or noisy gradients."""
    trajectory = mp.run(method, period=period)
    if gradient is noisy:
        simulator = trajectory.simulator
        simulator.oracle = simulator.iteration.oracle = NoisyOracle(simulator.oracle)
        trajectory.simulator.start()
    return trajectory


def matrix(t: int, period: int, rounds: int = 1, chebyshev: bool = False) -> Array:
    """W^t: in an exchange, K rounds of W or the matrix polynomial T_K(W/λ)/T_K(1/λ); otherwise the identity."""
    if t % period:
        return np.eye(N)
    if not chebyshev:
        return np.linalg.matrix_power(RING, rounds)
    values, vectors = np.linalg.eigh(RING)
    lam, polynomial = 2 / 3, Chebyshev.basis(rounds)
    return vectors @ np.diag(polynomial(values / lam) / polynomial(1 / lam)) @ vectors.T


# The methods in NumPy: each yields its state at t = 0, 1, …


def deepstorm(
    g: Gradient, period: int, *, alpha: Any, b: Any, version: str, placement: str, initial: Any = None, **mixing: Any
) -> States:
    x = START
    d = g(x, 0, 0, initial)
    y = matrix(0, 1, **mixing) @ d
    t = 0
    while True:
        yield {"x": x, "y": y, "d": d}
        w, a_t, b_t = matrix(t, period, **mixing), alpha(t), b(t)
        if placement == "combine-then-prox":
            new = soft(w @ x - a_t * y, a_t * BETA)
        else:
            new = w @ soft(x - a_t * y, a_t * BETA)
        if version == "v1":
            d_new = (1 - b_t) * (d + g(new, t + 1) - g(x, t + 1)) + b_t * g(new, t + 1, 1)
        else:
            d_new = g(new, t + 1) + (1 - b_t) * (d - g(x, t + 1))
        y = w @ (y + d_new - d)
        x, d, t = new, d_new, t + 1


def prox_dasa(
    g: Gradient, period: int, *, eta: float, a: Any, rounds: int = 1, tracking: bool = False, unused: bool = False
) -> States:
    x, z, v = START, np.zeros((N, DIM)), g(START, 0)
    u = v
    t = 0
    while True:
        yield {"x": x, "z": z} | ({"y": u, "v": v} if tracking else {})
        w, a_t = matrix(t, period, rounds), a(t)
        p = soft(x - eta * z, eta * BETA)
        v_new = g(x, t + 1)
        u_half = u + v_new - v
        x = w @ ((1 - a_t) * x + a_t * p)
        z = w @ ((1 - a_t) * z + a_t * (u_half if tracking and not unused else v_new))
        u, v, t = w @ u_half, v_new, t + 1


def proxgt(
    g: Gradient, period: int, *, alpha: float, q: int = 1, fresh: Any = None, recursive: bool = False, **mixing: Any
) -> States:
    """With the indices of the paper: iteration t computes v^t, y^{t+1}, x^{t+1}."""
    x, y, v_old, x_old = START, np.zeros((N, DIM)), np.zeros((N, DIM)), START
    t = 0
    while True:
        v = v_old + g(x, t) - g(x_old, t) if recursive and t % q else g(x, t, 0, fresh)
        yield {"x": x, "y": y + v - v_old, "nu": v}
        w = matrix(t, period, **mixing)
        y = w @ (y + v - v_old)
        x_old, v_old = x, v
        x = w @ soft(x - alpha * y, alpha * BETA)
        t += 1


def dproxsgt_released(g: Gradient, period: int, *, alpha: float) -> States:
    """(DX.2); y^{t+1} uses the W of iteration t, as in DEPOSITUM."""
    x, y = START, g(START, 0)
    t, now = 0, y
    while True:
        yield {"x": x, "y": y, "nu": now}
        w = matrix(t, period)
        x = w @ soft(x - alpha * y, alpha * BETA)
        new = g(x, t + 1)
        y = w @ y + new - now
        t, now = t + 1, new


def prox_dgd(g: Gradient, period: int, *, alpha: float) -> States:
    x, t = START, 0
    while True:
        yield {"x": x}
        x, t = soft(matrix(t, period) @ x - alpha * g(x, t + 1), alpha * BETA), t + 1


def top(k: int, z: Array) -> Array:
    out = np.zeros_like(z)
    for row, source in zip(out, z, strict=True):
        largest = sorted(range(DIM), key=lambda j: -abs(source[j]))[:k]
        row[largest] = source[largest]
    return out


def cdproxsgt(g: Gradient, period: int, *, alpha: float, k: int, gx: float, gy: float) -> States:
    """With the indices of the paper; x̂ and ŷ are known to neighbours, so they change in exchanges only."""
    x, y, before, xh, yh = START, *(np.zeros((N, DIM)) for _ in range(4))
    t = 0
    while True:
        now = g(x, t)
        y = y + now - before
        yield {"x": x, "y": y, "nu": now, "x_hat": xh, "y_hat": yh}
        exchanges = t % period == 0
        if exchanges:
            yh = yh + top(k, y - yh)
            y = y + gy * (RING @ yh - yh)
        x = soft(x - alpha * y, alpha * BETA)
        if exchanges:
            xh = xh + top(k, x - xh)
            x = x + gx * (RING @ xh - xh)
        t, before = t + 1, now


def sppdm(
    g: Gradient, period: int, *, c: float, s: float, kappa: float, b: float, dual: float, eta: float | str
) -> States:
    """Client by client on the edges of the ring, with a separate formula for the first step."""
    x = START.copy()
    z, q = x.copy(), np.zeros((N, DIM))
    phi, theta = s + 4 * c + kappa, [1.0]
    yield {"x": x, "z": z, "q": q}
    around = np.array([x[i - 1] + x[(i + 1) % N] for i in range(N)])
    old, x = x, soft(((s + 2 * c + kappa) * x + c * around - g(x, 1)) / phi, BETA / phi)
    t = 1
    while True:
        z = np.array([z[i] + b * (x[i] - z[i]) for i in range(N)])
        yield {"x": x, "z": z, "q": q}
        while len(theta) <= t + 1:
            theta.append((1 + np.sqrt(1 + 4 * theta[-1] ** 2)) / 2)
        momentum = (theta[t] - 1) / theta[t + 1] if eta == "nesterov" else float(eta)
        ahead = x + momentum * (x - old)
        slopes = g(ahead, t + 1)
        new, q = x.copy(), q.copy()
        for i in range(N):
            both = x[i - 1] + x[(i + 1) % N]
            q[i] += dual * (2 * x[i] - both)
            inside = s * ahead[i] + c * (2 * x[i] + both) + kappa * z[i] - slopes[i] - q[i]
            new[i] = soft(inside / phi, BETA / phi)
        old, x, t = x, new, t + 1
