"""The equations of imperfect communication, in plain NumPy: what is exact and preserved, and which traps there are.

Nothing of the package runs here: these tests say that the reference with which the package is compared is right.
"""

import re
import runpy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest

from tests.support import equations_imperfect as eq
from tests.support.equations_depositum import metropolis
from tests.support.mentions import ROOT
from tests.support.method_problems import BETA, DIM, X0, Array, L, N, gradients, soft

RING = metropolis([(i, (i + 1) % N) for i in range(N)], N)
#: A strongly connected digraph, as (sender, receiver), whose row- and column-stochastic weights differ.
EDGES = [*((i, (i + 1) % N) for i in range(N)), (0, 3), (2, 5), (4, 1)]
R, C = eq.row_stochastic(N, EDGES), eq.column_stochastic(N, EDGES)
CASES = [("l1", 1, "polyak"), ("l1", 5, "nesterov"), ("mcp", 1, "nesterov"), ("mcp", 5, "polyak")]
NOISE = 1e-3


def prox(h: str, tau: float) -> Callable[[Array], Array]:
    if h == "l1":
        return lambda v: soft(v, tau)
    return lambda v: np.where(np.abs(v) <= 5.0, soft(v, tau) / (1 - tau / 5.0), v)  # λ = 1, θ = 5


@cache
def optimum(h: str) -> Array:
    """By the centralised proximal gradient method; βh + f is strongly convex here, also for MCP (0.9 > 1/5)."""
    step, x = 0.5 / L, X0
    p = prox(h, step * BETA)
    for _ in range(2000):
        x = p(x - step * gradients(np.tile(x, (N, 1))).mean(0))
    return x


def dropped() -> eq.Links:
    coins = eq.Coins(0.7, 1, symmetric=True)
    return eq.Varying(lambda phase: eq.with_missing_links(RING, coins, phase))


def resting() -> eq.Links:
    coins = eq.Coins(0.25, 2)

    def rests(phase: int) -> Any:
        return np.array([coins(i, i, phase) for i in range(N)])

    def matrix(phase: int) -> Array:
        r = rests(phase)
        return eq.with_missing_links(RING, lambda i, j, _: not (r[i] or r[j]), phase)

    return eq.Varying(matrix, rests)


def late(i: int, j: int, phase: int) -> int:
    return (7 * i + 3 * j + 5 * phase) % 3


#: The updates that are exact, and the iterations that they take with α = 0.02 and T0 = 1.
EXACT: dict[str, Callable[[], eq.Links]] = {
    "perfect": lambda: eq.Perfect(RING),
    "directed": lambda: eq.Directed(R, C),
    "dropped": dropped,
    "resting": resting,
    "lossy": lambda: eq.Lossy(R, C, eq.Coins(0.7, 5)),
    "late": lambda: eq.Lossy(R, C, eq.Coins(0.7, 5), late),
    "compressed": lambda: eq.Compressed(RING, eq.top_k(1), 0.3),
}


@dataclass
class Outcome:
    """The last distance to the optimum, and the largest violation of J y + what is in flight = J ν."""

    distance: float
    violation: float


def outcome(links: eq.Links, h: str = "l1", period: int = 1, momentum: str = "polyak", steps: int = 2000) -> Outcome:
    # What arrives late, or is divided by a small φ, is fresher gradients multiplied: local steps have to be shorter.
    alpha = 0.02 if period == 1 else 0.004
    method = eq.Method(gradients, prox(h, alpha * BETA), alpha, 0.5, momentum, period)
    violation = 0.0
    states: Iterator[eq.State] = islice(method.run(links, method.start(np.tile(X0, (N, 1)))), steps)
    for s in states:
        gap = (s.y.sum(0) + links.in_flight() - s.nu.sum(0)) / N
        violation = max(violation, float(np.abs(gap).max() / max(1.0, np.abs(s.nu).max())))
    return Outcome(float(np.abs(s.x - optimum(h)).max()), violation)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize(("h", "period", "momentum"), CASES)
def test_every_client_reaches_the_optimum_and_trackers_follow_the_momentum(
    name: str, h: str, period: int, momentum: str
) -> None:
    """The optimum to 1e-9, and J y (with what is in flight) = J ν to 1e-11.

    Breaks if an update has another fixed point, or loses or gains anything on a link.
    """
    steps = {("lossy", 5): 22_000, ("late", 5): 22_000, ("late", 1): 4000}.get((name, period), 3000 * period)
    found = outcome(EXACT[name](), h, period, momentum, steps)
    assert found.distance <= 1e-9
    assert found.violation <= 1e-11


@pytest.mark.parametrize(("h", "period", "momentum"), CASES[:2])
def test_noise_that_is_countered_does_not_grow(h: str, period: int, momentum: str) -> None:
    """Its exception: the noise itself remains, but the distance stays of its size however long the run.

    Known noise leaves averages as they are; of unknown noise, running sums leave no more in J y than its last values.
    """
    for remedy in ("known", "sums"):
        for steps in (500, 2000):
            found = outcome(eq.Noisy(RING, NOISE, remedy), h, period, momentum, steps * period)
            assert found.distance <= 10 * NOISE
            assert found.violation <= (1e-11 if remedy == "known" else 3 * NOISE)


# The traps: each without its remedy


def test_push_pull_without_push_sum_weights_ends_elsewhere() -> None:
    """R prox(x − α y) with y⁺ = C v: J y = J ν holds, and yet another point is reached, as y_i → n π_i ȳ."""
    found = outcome(eq.Directed(R, C, ratio=False))
    assert found.violation <= 1e-11
    assert found.distance >= 1e-2


def test_a_lost_direction_replaced_by_the_own_value_breaks_the_invariant() -> None:
    """What one end replaced, the other end has sent: averages change, and the error is no rounding error."""
    found = outcome(eq.Lossy(RING, RING, eq.Coins(0.7, 5), running=False))
    assert found.violation >= 0.1
    assert found.distance >= 0.1


def test_compression_without_feedback_ends_elsewhere() -> None:
    """W C(z) in place of z + γ_c (W − I) ẑ."""
    found = outcome(eq.Compressed(RING, eq.top_k(1), 1.0, feedback=False))
    assert found.violation >= 0.1
    assert found.distance >= 0.1


def test_unknown_noise_without_running_sums_is_a_random_walk() -> None:
    """J y − J ν grows with √t, and the distance to the optimum with it; ten times that with a remedy."""
    early, later = (outcome(eq.Noisy(RING, NOISE, "none"), steps=steps) for steps in (200, 5000))
    assert later.violation >= 2 * early.violation
    assert later.distance >= 10 * NOISE
    assert later.distance >= 5 * outcome(eq.Noisy(RING, NOISE, "known"), steps=5000).distance


def test_the_example_shows_the_traps(capsys: pytest.CaptureFixture[str]) -> None:
    """`examples/imperfect_traps.py` prints errors near rounding with each remedy, and large ones without."""
    runpy.run_path(str(ROOT / "examples" / "imperfect_traps.py"), run_name="__main__")
    printed = [re.findall(r"\de[-+]\d\d", line) for line in capsys.readouterr().out.splitlines()]
    directed, lossy, noisy, compressed = printed[:2], printed[2:4], printed[4:7], printed[7:]
    ((trap, kept), (ratio, _)), ((lost, drift), (together, _)) = _numbers(directed), _numbers(lossy)
    assert trap >= 1e-2
    assert kept <= 1e-11
    assert ratio <= 1e-9
    assert min(lost, drift) >= 1e-2
    assert together <= 1e-9
    (walk, walked), (sums, _), (known, exact) = _numbers(noisy)
    assert min(walk, walked) >= 5e-3
    assert max(sums, known) <= 3e-3
    assert exact <= 1e-9
    (rows, _), (differences, _) = _numbers(compressed)
    assert rows >= 0.1
    assert differences <= 1e-9


def _numbers(printed: list[list[str]]) -> list[list[float]]:
    """The last two numbers of each line: the distance to the optimum, and |J y − J g|."""
    return [[float(number) for number in found[-2:]] for found in printed]


def test_the_example_of_random_links_agrees_with_its_formula(capsys: pytest.CaptureFixture[str]) -> None:
    """λ̃² = ‖E[(W^t)ᵀ W^t] − J‖ as 1000 sampled W^t have it; it is not that of the mean W, and the largest α falls."""
    runpy.run_path(str(ROOT / "examples" / "expected_contraction.py"), run_name="__main__")
    rows = [[float(x) for x in re.findall(r"[\d.]+(?:e-\d+)?", line)] for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == [0.0, 0.1, 0.3, 0.5, 0.9]
    for p, mean, formula, sampled, _ in rows:
        assert abs(formula - sampled) <= 0.005
        assert formula > mean + 0.003 or p == 0
    assert [row[4] for row in rows] == sorted((row[4] for row in rows), reverse=True)


def test_weights_are_what_they_are_called() -> None:
    for W, other in ((R, C.T), (C.T, R)):
        assert np.allclose(W.sum(1), 1)
        assert not np.allclose(W.sum(0), 1)
        assert W.shape == other.shape
    assert X0.shape == (DIM,)
