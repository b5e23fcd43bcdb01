"""Two ways to get decentralized composite learning wrong on imperfect links, and what makes them right.

Six clients minimise (1/6) Σ ½‖D_i x − b_i‖² + ‖x‖₁ with exact gradients, in plain NumPy. Run it: python
examples/imperfect_traps.py. What is printed is the distance of the models from the optimum, and how far the average of
the trackers is from the average gradient (J y = J g is what makes tracking work).
"""

import numpy as np

N, DIM, ALPHA = 6, 5, 0.02
RNG = np.random.default_rng(4)
SCALE, TARGET = RNG.uniform(0.6, 1.4, (N, DIM)), RNG.normal(size=(N, DIM)) + RNG.normal(size=DIM) * 2
EDGES = [*((i, (i + 1) % N) for i in range(N)), (0, 3), (2, 5), (4, 1)]  # (sender, receiver)


def gradients(x):
    return SCALE * (SCALE * x - TARGET)


def prox(v):
    return np.sign(v) * np.maximum(np.abs(v) - ALPHA, 0)


def optimum():
    curvature, pull = (SCALE**2).mean(0), (SCALE * TARGET).mean(0)
    return np.sign(pull) * np.maximum(np.abs(pull) - 1, 0) / curvature


def report(what, x, y, g):
    error, drift = np.abs(x - optimum()).max(), np.abs(y.mean(0) - g.mean(0)).max()
    print(f"{what:55s} off the optimum {error:.0e}   |J y − J g| {drift:.0e}")


def directed(ratio):
    """x⁺ = R prox(x − α y/φ), y⁺ = C(y + g⁺ − g), φ⁺ = C φ on a digraph; without the ratio φ stays 1."""
    heard = np.eye(N)
    for sender, receiver in EDGES:
        heard[receiver, sender] = 1
    R, C = heard / heard.sum(1, keepdims=True), heard / heard.sum(0, keepdims=True)
    x, phi = np.zeros((N, DIM)), np.ones((N, 1))
    y = g = gradients(x)
    for _ in range(6000):
        x = R @ prox(x - ALPHA * y / phi)
        phi = C @ phi if ratio else phi
        y, g = C @ (y + gradients(x) - g), gradients(x)
    report(f"digraph, {'with the ratio y/φ' if ratio else 'plain push-pull with a prox'}", x, y, g)


def lossy(both_ends):
    """A ring whose links lose 30 % of messages: in one direction, or in both directions together."""
    ring = [(i, (i + 1) % N) for i in range(N)]
    rng = np.random.default_rng(1)
    x = np.zeros((N, DIM))
    y = g = gradients(x)
    for _ in range(6000):
        lost = {(i, j): rng.random() < 0.3 for a, b in ring for i, j in ((a, b), (b, a))}
        if both_ends:
            lost |= {(j, i): lost[i, j] for i, j in ring}

        # One third from each neighbour and from the client itself; its own value in place of one that is lost.
        sources = [[i if lost[(i + k) % N, i] else (i + k) % N for i in range(N)] for k in (-1, 1)]
        x = prox(x - ALPHA * y)
        x = (x + x[sources[0]] + x[sources[1]]) / 3
        y, g = y + gradients(x) - g, gradients(x)
        y = (y + y[sources[0]] + y[sources[1]]) / 3
    report(f"30 % lost, {'both directions of a link together' if both_ends else 'each direction on its own'}", x, y, g)


if __name__ == "__main__":
    directed(ratio=False)
    directed(ratio=True)
    lossy(both_ends=False)
    lossy(both_ends=True)
