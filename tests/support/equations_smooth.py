"""The decentralized methods for smooth problems, and PG-EXTRA, in plain NumPy, written from their equations.

Each is a generator of the state after each iteration, and shares no code with the package.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import depositum as dp
from depositum.algorithms import (
    D2,
    DPSGD,
    DSGT,
    DSMT,
    GUT,
    KGT,
    LED,
    DFedAvgM,
    ExactDiffusion,
    Extra,
    FedNMUT,
    HeavyBallGT,
    MomentumTracking,
    PgExtra,
    QuasiGlobal,
)
from tests.support import method_problems as mp
from tests.support.method_problems import Array, L, gradients, soft

Alpha = Callable[[int], float]
Reference = Iterator[dict[str, Array]]
START = np.tile(mp.X0, (mp.N, 1))
EYE = np.eye(mp.N)
#: Paths have unequal weights, so that a test fails if W is confused with another matrix.
PATH, LAZY_PATH = dp.path(mp.N), dp.path(mp.N, mixing="lazy-metropolis")


def mean(z: Array) -> Array:
    return np.tile(z.mean(0), (mp.N, 1))


# The equations, in NumPy


def d_psgd(W: Array, period: int, alpha: Alpha, *, form: str = "combine") -> Reference:
    x, t = START, 0
    while True:
        Wt = W if t % period == 0 else EYE
        move = alpha(t) * gradients(x)
        x = Wt @ x - move if form == "combine" else Wt @ (x - move)
        t += 1
        yield {"x": x}


def dsgt(W: Array, period: int, alpha: Alpha, *, form: str = "atc") -> Reference:
    x, t = START, 0
    g = gradients(x)
    y = g
    while True:
        Wt = W if t % period == 0 else EYE
        x = Wt @ (x - alpha(t) * y)
        new = gradients(x)
        y = Wt @ y + new - g if form == "atc" else Wt @ (y + new - g)
        g, t = new, t + 1
        yield {"x": x, "y": y, "g": g}


def extra(W: Array, period: int, alpha: Alpha) -> Reference:
    before, move, t = START, alpha(0) * gradients(START), 1
    x = W @ before - move
    yield {"x": x}
    while True:
        new = alpha(t) * gradients(x)
        x, before = (EYE + W) @ x - (EYE + W) / 2 @ before - (new - move), x
        move, t = new, t + 1
        yield {"x": x}


def pg_extra(W: Array, period: int, alpha: Alpha) -> Reference:
    before, move, t = START, alpha(0) * gradients(START), 1
    z = W @ before - move
    x = soft(z, alpha(0) * mp.BETA)
    yield {"x": x, "z": z}
    while True:
        new = alpha(t) * gradients(x)
        z = W @ x + z - (EYE + W) / 2 @ before - (new - move)
        x, before = soft(z, alpha(t) * mp.BETA), x
        move, t = new, t + 1
        yield {"x": x, "z": z}


def exact_diffusion(W: Array, period: int, alpha: Alpha) -> Reference:
    x = psi = START
    t = 0
    while True:
        new = x - alpha(t) * gradients(x)
        phi = new + x - psi
        x, psi, t = (EYE + W) / 2 @ phi, new, t + 1
        yield {"x": x, "psi": psi}


def d_squared(W: Array, period: int, alpha: Alpha) -> Reference:
    before, move, t = START, alpha(0) * gradients(START), 1
    x = W @ (before - move)
    yield {"x": x}
    while True:
        new = alpha(t) * gradients(x)
        x, before = W @ (2 * x - before - new + move), x
        move, t = new, t + 1
        yield {"x": x}


def led(W: Array, period: int, alpha: Alpha) -> Reference:
    x, q, t = START, 0 * START, 0
    while True:
        p = x
        for k in range(period):
            p = p - alpha(t) * gradients(p) - q / period
            t += 1
            if k < period - 1:
                yield {"x": x, "local": p}
        x = (EYE + W) / 2 @ p
        q = q + p - x
        yield {"x": x, "local": x, "q": q / period}


def k_gt(W: Array, period: int, alpha: Alpha, *, eta: float = 1.0) -> Reference:
    x, t = START, 0
    c = mean(gradients(x)) - gradients(x)
    while True:
        p, total = x, 0.0
        for k in range(period):
            p = p - alpha(t) * (gradients(p) + c)
            total, t = total + alpha(t), t + 1
            if k < period - 1:
                yield {"x": x, "local": p}
        z = (x - p) / total
        x = W @ (x - eta * total * z)
        c = c - z + W @ z
        yield {"x": x, "c": c}


def gut_rounds(W: Array, period: int, alpha: Alpha, *, mu: float) -> Reference:
    """GUT in rounds; y is mixed here, while the package mixes only models."""
    x, y, g, t = START, 0 * START, 0 * START, 0
    while True:
        s = W @ x
        u, total = s, 0.0
        for k in range(period):
            u, total, t = u - alpha(t) * gradients(u), total + alpha(t), t + 1
            if k < period - 1:
                yield {"x": x, "local": u}
        new = (s - u) / total
        after = s - total * (new + mu * (W @ y - g))
        x, y, g = after, (x - after) / total, new
        yield {"x": x, "y": W @ y, "g": g}


def gut_replaced(W: Array, period: int, alpha: Alpha, *, mu: float) -> Reference:
    x, y, g, t = START, 0 * START, 0 * START, 0
    while True:
        Wt = W if t % period == 0 else EYE
        new = gradients(Wt @ x)
        after = Wt @ x - alpha(t) * (new + mu * (Wt @ y - g))
        x, y, g, t = after, (x - after) / alpha(t), new, t + 1
        yield {"x": x, "y": y, "g": g}


def momentum_tracking(W: Array, period: int, alpha: Alpha, *, b: float) -> Reference:
    """Momentum Tracking with the variables u and c of the released code; y = u − c at the next gradient."""
    x, t = START, 0
    u = c = (gradients(x) - mean(gradients(x))) / (1 - b)
    while True:
        Wt = W if t % period == 0 else EYE
        u = b * u + gradients(x)
        x = Wt @ x - alpha(t) * (u - c)
        c = Wt @ (c - u) + u
        t += 1
        following = b * u + gradients(x)
        yield {"x": x, "u": following, "y": following - c}


def dsmt(W: Array, period: int, alpha: Alpha, *, b: float | None, chebyshev: bool) -> Reference:
    lazy = (EYE + W) / 2
    lam2 = np.sort(np.linalg.eigvalsh(lazy))[-2]
    e0 = (1 - np.sqrt(1 - lam2**2)) / (1 + np.sqrt(1 - lam2**2))
    e = (1 + e0) / 2
    b = np.sqrt(e) if b is None else b
    x = xl = START
    z = y = yl = (1 - b) * gradients(x)
    t = 0
    while True:
        Wt = W if t % period == 0 else EYE
        p, q = x - alpha(t) * y, xl - alpha(t) * y
        x, xl = ((1 + e) * lazy @ p - e * q, p) if chebyshev else (Wt @ p, p)
        new = b * z + (1 - b) * gradients(x)
        p, q = y + new - z, yl + new - z
        y, yl = ((1 + e) * lazy @ p - e * q, p) if chebyshev else (Wt @ p, p)
        z, t = new, t + 1
        yield {"x": x, "y": y, "nu": z}


def heavy_ball(W: Array, period: int, alpha: Alpha, *, b: float, form: str) -> Reference:
    x = before = START
    t, g = 0, gradients(x)
    y = u = g
    while True:
        Wt = W if t % period == 0 else EYE
        if form == "abm":
            x, before = Wt @ x - alpha(t) * y + b * (x - before), x
            new = gradients(x)
            y = Wt @ y + new - g
        else:
            x = Wt @ (x - alpha(t) * u)
            new = gradients(x)
            y = Wt @ (y + new - g)
            u = b * u + (1 - b) * y
        g, t = new, t + 1
        yield {"x": x, "y": y, "g": g}


def quasi_global(W: Array, period: int, alpha: Alpha, *, b: float, mu: float, nesterov: bool = False) -> Reference:
    x, m, t = START, 0 * START, 0
    while True:
        u, total = x, 0.0
        for k in range(period):
            g = gradients(u)
            direction = g + b * (b * m + g) if nesterov else b * m + g
            u, total, t = u - alpha(t) * direction, total + alpha(t), t + 1
            if k < period - 1:
                yield {"x": x, "local": u}
        after = W @ u
        m, x = mu * m + (1 - mu) * (x - after) / total, after
        yield {"x": x, "m": m}


def dfedavgm(W: Array, period: int, alpha: Alpha, *, theta: float) -> Reference:
    """With an explicit velocity, v = u^k − u^{k−1}, which is 0 at the start of a round."""
    x, t = START, 0
    while True:
        u, v = x, 0 * START
        for k in range(period):
            v = theta * v - alpha(t) * gradients(u)
            u, t = u + v, t + 1
            if k < period - 1:
                yield {"x": x, "local": u}
        x = W @ u
        yield {"x": x, "local": x}


STEP = 0.1 / L
#: By name: the method, its NumPy version, the arguments of the latter, and the periods.
SMOOTH_METHODS: dict[str, tuple[dp.Algorithm, Callable[..., Reference], dict[str, Any], tuple[int, ...]]] = {
    "d-psgd": (DPSGD(STEP), d_psgd, {}, (1, 5)),
    "d-psgd adapt": (DPSGD(STEP, "adapt"), d_psgd, {"form": "adapt"}, (1, 5)),
    "dsgt": (DSGT(STEP), dsgt, {}, (1, 5)),
    "dsgt second": (DSGT(STEP, "second"), dsgt, {"form": "second"}, (1, 5)),
    "gut": (GUT(STEP, 0.6), gut_rounds, {"mu": 0.6}, (1, 5)),
    "gut replaced": (GUT(STEP, 0.2, "replaced"), gut_replaced, {"mu": 0.2}, (1, 5)),
    "fednmut": (FedNMUT(STEP, 0.6, noise=0.0), gut_rounds, {"mu": 0.6}, (1, 5)),
    "fednmut increment": (FedNMUT(STEP, 0.6, 0.0, "increment"), gut_rounds, {"mu": 0.6}, (1, 5)),
    "extra": (Extra(STEP), extra, {}, (1,)),
    "pg-extra": (PgExtra(STEP), pg_extra, {}, (1,)),
    "exact-diffusion": (ExactDiffusion(STEP), exact_diffusion, {}, (1,)),
    "d2": (D2(STEP), d_squared, {}, (1,)),
    "led": (LED(STEP), led, {}, (1, 5)),
    "k-gt": (KGT(STEP), k_gt, {}, (1, 5)),
    "k-gt eta": (KGT(STEP, eta=0.7), k_gt, {"eta": 0.7}, (1, 5)),
    "momentum-tracking": (MomentumTracking(STEP, 0.7), momentum_tracking, {"b": 0.7}, (1, 5)),
    "dsmt": (DSMT(STEP), dsmt, {"b": None, "chebyshev": True}, (1,)),
    "dsmt b": (DSMT(STEP, 0.4), dsmt, {"b": 0.4, "chebyshev": True}, (1,)),
    "dsmt plain": (DSMT(STEP, 0.4, chebyshev=False), dsmt, {"b": 0.4, "chebyshev": False}, (1, 5)),
    "heavy-ball-gt abm": (HeavyBallGT(STEP, 0.6), heavy_ball, {"b": 0.6, "form": "abm"}, (1,)),
    "heavy-ball-gt dsgt-hb": (HeavyBallGT(STEP, 0.6, "dsgt-hb"), heavy_ball, {"b": 0.6, "form": "dsgt-hb"}, (1, 5)),
    "dfedavgm": (DFedAvgM(STEP, 0.7), dfedavgm, {"theta": 0.7}, (1, 5)),
    "quasi-global": (QuasiGlobal(STEP, 0.8, 0.9), quasi_global, {"b": 0.8, "mu": 0.9}, (1, 5)),
    "quasi-global nesterov": (
        QuasiGlobal(STEP, 0.5, 0.7, nesterov=True),
        quasi_global,
        {"b": 0.5, "mu": 0.7, "nesterov": True},
        (1, 5),
    ),
}
