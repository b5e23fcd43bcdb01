"""Imperfect communication in plain NumPy, written from its equations; it shares no code with the package.

z = prox(x − α y) and v = y + ν⁺ − ν are the two quantities that DEPOSITUM mixes. Every class below is one way in which
they are mixed over links that are not perfect, client by client and edge by edge; `depositum` runs the method over it:

- `Perfect`            x⁺ = W z,  y⁺ = W v
- `Directed`           φ⁺ = C φ;  x⁺ = R prox(x − α y/φ),  y⁺ = C v
- `Varying`            W^t of each phase; clients that rest keep x, y and ν
- `Lossy`              y by running sums ρ that each edge delivers late or never; so is φ
- `Compressed`         x̂ += C(z − x̂), x⁺ = z + γ_c (W − I) x̂; the same for v with ŷ
- `Noisy`              z + (W − I)(z + ξ); or, of noise that the sender does not know, differences of running sums

Each remedy can be left out, to show what goes wrong without it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass
class State:
    """The variables of the method, `[n, d]`, and the push-sum weights φ, `[n, 1]`."""

    x: Array
    y: Array
    nu: Array
    mu: Array
    phi: Array


class Links(Protocol):
    """What becomes of z and v in a communication phase."""

    def models(self, z: Array, phase: int) -> Array: ...

    def trackers(self, v: Array, phase: int) -> Array: ...

    def weights(self, phi: Array, phase: int) -> Array: ...

    def resting(self, phase: int) -> NDArray[np.bool_]: ...

    def in_flight(self) -> Array: ...


class Perfect:
    """x⁺ = W z, y⁺ = W v."""

    def __init__(self, W: Array) -> None:
        self.W = W

    def models(self, z: Array, phase: int) -> Array:
        return self.W @ z

    def trackers(self, v: Array, phase: int) -> Array:
        return self.W @ v

    def weights(self, phi: Array, phase: int) -> Array:
        return phi

    def resting(self, phase: int) -> NDArray[np.bool_]:
        return np.zeros(len(self.W), dtype=bool)

    def in_flight(self) -> Array:
        """The sum over all edges of what was sent to trackers and has not arrived, `[d]`."""
        return np.zeros(1)


class Directed(Perfect):
    """R row-stochastic, C column-stochastic; without φ it is plain push-pull."""

    def __init__(self, R: Array, C: Array, *, ratio: bool = True) -> None:
        super().__init__(R)
        self.R, self.C, self.ratio = R, C, ratio

    def trackers(self, v: Array, phase: int) -> Array:
        return self.C @ v

    def weights(self, phi: Array, phase: int) -> Array:
        return self.C @ phi if self.ratio else phi


class Varying(Perfect):
    """Doubly stochastic W^t; `rests(phase)` says which clients rest, which no link reaches then."""

    def __init__(self, matrix: Callable[[int], Array], rests: Callable[[int], NDArray[np.bool_]] | None = None) -> None:
        super().__init__(matrix(0))
        self.matrix, self.rests = matrix, rests

    def models(self, z: Array, phase: int) -> Array:
        return self.matrix(phase) @ z

    trackers = models

    def resting(self, phase: int) -> NDArray[np.bool_]:
        return super().resting(phase) if self.rests is None else self.rests(phase)


class Lossy(Perfect):
    """Links that lose, or delay by up to `delay` phases, what goes in one direction.

    The sender puts the running sum ρ_ij of c_ij v_j on the edge; whoever receives one adds what is new in it. Of
    models, the newest that has arrived is used. `running = False` is the trap: a client uses its own value in place of
    one that did not arrive.
    """

    def __init__(
        self,
        R: Array,
        C: Array,
        arrives: Callable[[int, int, int], bool],
        delay: Callable[[int, int, int], int] = lambda i, j, phase: 0,
        *,
        running: bool = True,
    ) -> None:
        super().__init__(R)
        self.R, self.C, self.arrives, self.delay, self.running = R, C, arrives, delay, running
        n = len(R)
        self.edges = [(i, j) for i in range(n) for j in range(n) if i != j and C[i, j] > 0]  # j sends to i
        self.packets: dict[str, dict[tuple[int, int], list[tuple[int, int, Array]]]] = {}
        self.sums: dict[str, dict[tuple[int, int], Array]] = {}
        self.heard: dict[str, dict[tuple[int, int], Array]] = {}
        self.newest: dict[str, dict[tuple[int, int], int]] = {}

    def models(self, z: Array, phase: int) -> Array:
        self._send("x", phase, {(i, j): z[j] for i, j in self.edges})
        out = np.diag(self.R)[:, None] * z
        for i, j in self.edges:
            model = self.heard["x"].get((i, j), z[i])
            out[i] += self.R[i, j] * (model if self.running or self.newest["x"].get((i, j)) == phase else z[i])
        return out

    def trackers(self, v: Array, phase: int) -> Array:
        if self.running:
            return self._pushed("y", v, phase)
        # The trap: with the symmetric weights of an undirected graph, what is lost becomes the client's own value.
        self._send("y", phase, {(i, j): v[j] for i, j in self.edges})
        out = np.diag(self.R)[:, None] * v
        for i, j in self.edges:
            arrived = self.newest["y"].get((i, j)) == phase
            out[i] += self.R[i, j] * (self.heard["y"][i, j] if arrived else v[i])
        return out

    def weights(self, phi: Array, phase: int) -> Array:
        return self._pushed("phi", phi, phase) if self.running else phi

    def in_flight(self) -> Array:
        total = np.zeros(1)
        for edge, sent in self.sums.get("y", {}).items():
            total = total + sent - self.heard["y"].get(edge, 0.0)
        return total

    def _pushed(self, name: str, v: Array, phase: int) -> Array:
        sums = self.sums.setdefault(name, {})
        for i, j in self.edges:
            sums[i, j] = sums.get((i, j), np.zeros(v.shape[1])) + self.C[i, j] * v[j]
        before = dict(self.heard.get(name, {}))
        self._send(name, phase, sums)
        out = np.diag(self.C)[:, None] * v
        for edge in self.edges:
            if edge in self.heard[name]:
                out[edge[0]] += self.heard[name][edge] - before.get(edge, 0.0)
        return out

    def _send(self, name: str, phase: int, contents: dict[tuple[int, int], Array]) -> None:
        """Put something on every edge, and let arrive what is due now; of several the newest counts."""
        packets = self.packets.setdefault(name, {})
        heard, newest = self.heard.setdefault(name, {}), self.newest.setdefault(name, {})
        for (i, j), content in contents.items():
            queue = packets.setdefault((i, j), [])
            if self.arrives(i, j, phase):
                queue.append((phase + self.delay(i, j, phase), phase, content))
            for due, sent, packet in queue:
                if due == phase and sent > newest.get((i, j), -1):
                    heard[i, j], newest[i, j] = packet, sent
            queue[:] = [packet for packet in queue if packet[0] > phase]


class Compressed(Perfect):
    """x̂ += C(z − x̂), x⁺ = z + γ_c (W − I) x̂; without feedback, C(z) is used itself: W C(z)."""

    def __init__(
        self, W: Array, compress: Callable[[Array, int], Array], gain: float, *, feedback: bool = True
    ) -> None:
        super().__init__(W)
        self.compress, self.gain, self.feedback = compress, gain, feedback
        self.hat: dict[str, Array] = {}

    def models(self, z: Array, phase: int) -> Array:
        return self._mixed("x", z, phase)

    def trackers(self, v: Array, phase: int) -> Array:
        return self._mixed("y", v, phase)

    def _mixed(self, name: str, z: Array, phase: int) -> Array:
        if not self.feedback:
            return self.W @ self.compress(z, phase)
        hat = self.hat.get(name, np.zeros_like(z))
        self.hat[name] = hat = hat + self.compress(z - hat, phase)
        return z + self.gain * (self.W @ hat - hat)


class Noisy(Perfect):
    """Noise ξ on what is sent: `"known"` to the sender, countered by `"sums"`, or by nothing (`"none"`)."""

    def __init__(self, W: Array, sigma: float, remedy: str, seed: int = 3) -> None:
        super().__init__(W)
        self.sigma, self.remedy, self.rng = sigma, remedy, np.random.default_rng(seed)
        self.sum: dict[str, Array] = {}
        self.heard: dict[str, Array] = {}

    def models(self, z: Array, phase: int) -> Array:
        return self._mixed("x", z)

    def trackers(self, v: Array, phase: int) -> Array:
        return self._mixed("y", v)

    def _mixed(self, name: str, z: Array) -> Array:
        noise = self.sigma * self.rng.normal(size=z.shape)
        own = np.diag(np.diag(self.W))
        if self.remedy == "known":
            return z + (self.W - np.eye(len(z))) @ (z + noise)
        if self.remedy == "none":
            return own @ z + (self.W - own) @ (z + noise)
        self.sum[name] = self.sum.get(name, np.zeros_like(z)) + z
        heard = self.sum[name] + noise
        new = heard - self.heard.get(name, np.zeros_like(z))
        self.heard[name] = heard
        return own @ z + (self.W - own) @ new


Gradients = Callable[[Array], Array]
Prox = Callable[[Array], Array]


@dataclass
class Method:
    """DEPOSITUM: α, γ, the momentum and T0, for ∇f_i of all clients and the prox with step α."""

    gradients: Gradients
    prox: Prox
    alpha: float
    gamma: float = 0.5
    momentum: str = "polyak"
    period: int = 1

    def start(self, x: Array, average: bool = False) -> State:
        g = self.gradients(x)
        y = np.tile(g.mean(0), (len(g), 1)) if average else g
        return State(x, y, g, g, np.ones((len(x), 1)))

    def run(self, links: Links, state: State) -> Iterator[State]:
        """The states after 1, 2, … iterations."""
        s, t, gamma = state, 0, self.gamma
        while True:
            phase, exchange = t // self.period, t % self.period == 0
            z = self.prox(s.x - self.alpha * s.y / s.phi)
            x = links.models(z, phase) if exchange else z
            phi = links.weights(s.phi, phase) if exchange else s.phi
            g = self.gradients(x)
            if self.momentum == "polyak":
                mu = nu = gamma * s.nu + (1 - gamma) * g
            else:
                mu = gamma * s.mu + (1 - gamma) * g
                nu = gamma * mu + (1 - gamma) * g
            v = s.y + nu - s.nu
            rests = links.resting(phase)[:, None]
            v = np.where(rests, s.y, v)  # nothing changes at a client that rests
            y = links.trackers(v, phase) if exchange else v
            kept = zip((s.x, s.y, s.nu, s.mu), (x, y, nu, mu), strict=True)
            s = State(*(np.where(rests, old, new) for old, new in kept), phi)
            t += 1
            yield s


# Weights and compressors


def row_stochastic(n: int, edges: Sequence[tuple[int, int]]) -> Array:
    """R for edges (sender, receiver): a receiver gives the same weight to itself and to all it hears."""
    R = np.eye(n)
    for j, i in edges:
        R[i, j] = 1.0
    return R / R.sum(1, keepdims=True)


def column_stochastic(n: int, edges: Sequence[tuple[int, int]]) -> Array:
    """C: a sender divides what it has into equal parts, for itself and all it sends to."""
    C = np.eye(n)
    for j, i in edges:
        C[i, j] = 1.0
    return C / C.sum(0, keepdims=True)


def top_k(k: int) -> Callable[[Array, int], Array]:
    """Each row's k entries of largest magnitude."""

    def compress(z: Array, phase: int) -> Array:
        out = np.zeros_like(z)
        for row, new in zip(z, out, strict=True):
            largest = np.argsort(-np.abs(row), kind="stable")[:k]
            new[largest] = row[largest]
        return out

    return compress


class Coins:
    """Independent coins by (receiver, sender, phase), true with probability p; phase 1000 has those of phase 0."""

    def __init__(self, p: float, seed: int = 0, *, symmetric: bool = False) -> None:
        drawn = np.random.default_rng(seed).random((1000, 8, 8))
        self.thrown = (np.minimum(drawn, drawn.transpose(0, 2, 1)) if symmetric else drawn).tolist()
        self.below = 1 - (1 - p) ** 0.5 if symmetric else p

    def __call__(self, i: int, j: int, phase: int) -> bool:
        return bool(self.thrown[phase % 1000][i][j] < self.below)


def with_missing_links(W: Array, present: Callable[[int, int, int], bool], phase: int) -> Array:
    """W^t: the weight of a link that is missing returns to its two ends."""
    out = W.copy()
    n = len(W)
    for i in range(n):
        for j in range(i):
            if W[i, j] > 0 and not present(i, j, phase):
                out[i, i] += W[i, j]
                out[j, j] += W[j, i]
                out[i, j] = out[j, i] = 0.0
    return out
