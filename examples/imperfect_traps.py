"""Four ways to get decentralized composite learning wrong on imperfect links, and what makes them right.

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


RING = sum(np.roll(np.eye(N), k, axis=1) for k in (-1, 0, 1)) / 3


def noisy(remedy):
    """A ring whose links add noise of size 1e-3: nothing done, known to the sender, or differences of running sums."""
    rng = np.random.default_rng(2)
    sums, heard = np.zeros((2, N, DIM)), np.zeros((2, N, DIM))  # of models, and of trackers

    def mix(z, k):
        noise = 1e-3 * rng.normal(size=z.shape)
        if remedy == "known to the sender":
            return z + (RING - np.eye(N)) @ (z + noise)
        received = z + noise
        if remedy == "unknown, running sums":
            sums[k] += z
            received = sums[k] + noise - heard[k]
            heard[k] += received
        own = np.diag(np.diag(RING))
        return own @ z + (RING - own) @ received

    x = np.zeros((N, DIM))
    y = g = gradients(x)
    for _ in range(6000):
        x = mix(prox(x - ALPHA * y), 0)
        y, g = mix(y + gradients(x) - g, 1), gradients(x)
    report(f"noise of 1e-3, {remedy}", x, y, g)


def compressed(differences):
    """A ring on which only the largest of five numbers is sent: of z, or of its difference to what receivers know."""
    known = np.zeros((2, N, DIM))  # of models, and of trackers

    def largest(z):
        return np.where(np.abs(z) == np.abs(z).max(1, keepdims=True), z, 0)

    def mix(z, k):
        if not differences:
            return RING @ largest(z)
        known[k] += largest(z - known[k])
        return z + 0.3 * (RING - np.eye(N)) @ known[k]

    x = np.zeros((N, DIM))
    y = g = gradients(x)
    for _ in range(6000):
        x = mix(prox(x - ALPHA * y), 0)
        y, g = mix(y + gradients(x) - g, 1), gradients(x)
    report(f"the largest of five, of {'differences to what is known' if differences else 'the numbers'}", x, y, g)


if __name__ == "__main__":
    directed(ratio=False)
    directed(ratio=True)
    lossy(both_ends=False)
    lossy(both_ends=True)
    noisy("unknown, nothing done")
    noisy("unknown, running sums")
    noisy("known to the sender")
    compressed(differences=False)
    compressed(differences=True)
