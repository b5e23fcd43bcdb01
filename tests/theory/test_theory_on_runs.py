"""The theory on trajectories of the package: the bounds hold for Algorithm 1 and fail for incorrect variants of it.

The sums on both sides are computed in NumPy from the states alone. The problem is nonconvex with a known L: the loss of
a residual r is √(1 + r²) + sin(r)/2, whose second derivative is in [−½, 1½], so that with AᵢᵀAᵢ/N = I every f_i of a
linear model is 1½-smooth. Its gradient does not vanish far away, so that divergence is visible, and the start is near a
solution, so that the bounds are small.
"""

from dataclasses import asdict, dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

import depositum as dp
from depositum import theory
from depositum.algorithms import DepositumState
from depositum.data import Samples
from depositum.engines import EngineSettings, Simulator
from depositum.problem import Problem, Trial, as_loss, from_client_data

N, DIM, PER_CLIENT = 5, 6, 24
BETA, LAM, THETA = 0.05, 0.4, 3.0
SETTINGS = EngineSettings(device="cpu", dtype="float64")

RNG = np.random.default_rng(5)
A = np.sqrt(PER_CLIENT) * np.linalg.qr(RNG.normal(size=(N, PER_CLIENT, DIM)))[0]
TRUTH = RNG.normal(size=DIM)
B = np.einsum("nsd,nd->ns", A, TRUTH + 0.3 * RNG.normal(size=(N, DIM))) + 0.2 * RNG.normal(size=(N, PER_CLIENT))
L = 1.5
X0 = TRUTH + 0.2 * RNG.normal(size=DIM)


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    r = outputs.squeeze(-1) - targets
    return torch.sqrt(1 + r * r) + 0.5 * torch.sin(r)


def local_gradients(x: np.ndarray) -> np.ndarray:
    """∇f_i(x_i) of every client, `[n, d]`."""
    r = np.einsum("nsd,nd->ns", A, x) - B
    return np.einsum("ns,nsd->nd", r / np.sqrt(1 + r * r) + 0.5 * np.cos(r), A) / PER_CLIENT


def global_gradients(x: np.ndarray) -> np.ndarray:
    """∇f(x_i) at every client's point, `[n, d]`."""
    r = np.einsum("nsd,md->mns", A, x) - B
    return np.einsum("mns,nsd->md", r / np.sqrt(1 + r * r) + 0.5 * np.cos(r), A) / (N * PER_CLIENT)


def prox(v: np.ndarray, tau: float) -> np.ndarray:
    """The prox of MCP, from the definition in the paper."""
    shrunk = np.sign(v) * np.maximum(np.abs(v) - tau * LAM, 0) / (1 - tau / THETA)
    return np.where(np.abs(v) <= THETA * LAM, shrunk, v)


def phi(x: np.ndarray) -> float:
    r = A @ x - B
    h = np.where(np.abs(x) <= THETA * LAM, LAM * np.abs(x) - x**2 / (2 * THETA), THETA * LAM**2 / 2).sum()
    return float((np.sqrt(1 + r * r) + 0.5 * np.sin(r)).mean() + BETA * h)


def lowest() -> float:
    """An estimate of φ*: the smallest value that proximal gradient descent finds from many starts."""
    rng = np.random.default_rng(0)
    best = np.inf
    for start in [X0, *(3 * rng.normal(size=(20, DIM)))]:
        x = start.copy()
        for _ in range(500):
            x = prox(x - global_gradients(x[None])[0] / L, BETA / L)
        best = min(best, phi(x))
    return best


PHI_STAR = lowest()


@dataclass(frozen=True)
class Altered(dp.Depositum):
    """Algorithm 1 with a factor on the x step and one on the increment of the tracker; (1, 1) is Algorithm 1."""

    x_factor: float = 1.0
    y_factor: float = 1.0

    def step(self, s, oracle, mix, kind):  # type: ignore[no-untyped-def]
        x = mix(oracle.prox(s.x - self.x_factor * self.alpha * s.y, self.alpha))
        g = oracle.grad(x, oracle.sample())
        mu = None if s.mu is None else self.gamma * s.mu + (1 - self.gamma) * g
        nu = self.gamma * (s.nu if mu is None else mu) + (1 - self.gamma) * g
        return DepositumState(s.t + 1, x, mix(s.y + self.y_factor * (nu - s.nu)), nu, mu)


@dataclass
class Sums:
    """The sums in the inequalities, accumulated over t = 0 … T (and to T + 1 where the paper does)."""

    s: float = 0.0
    mapping: float = 0.0
    estimation: float = 0.0
    movement: float = 0.0
    variation: float = 0.0
    model: float = 0.0
    model_next: float = 0.0
    tracking: float = 0.0
    tracking_next: float = 0.0


def square(z: np.ndarray) -> float:
    return float((z * z).sum())


def accumulate(algorithm: dp.Algorithm, network: dp.Network, *, period: int, steps: int) -> Sums:
    model = nn.Linear(DIM, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor(X0)[None])
    clients = [(a, b) for a, b in zip(A, B, strict=True)]
    problem = from_client_data(model, clients, loss=loss, regularizer=dp.MCP(LAM, THETA), beta=BETA)
    sim = Simulator(problem, network, algorithm, period=period, settings=SETTINGS)
    sim.start()
    alpha = algorithm.alpha
    out = Sums()

    def read() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return sim.state.x.numpy(), sim.state.y.numpy(), sim.state.nu.numpy()

    x, y, nu = read()
    for _ in range(steps):
        exact = (x - prox(x - alpha * global_gradients(x), alpha * BETA)) / alpha
        estimation = square(local_gradients(x).mean(0) - nu.mean(0))
        consensus = square(x - x.mean(0))
        out.s += square(exact) + L**2 * consensus + N * estimation
        out.mapping += square((x - prox(x - alpha * y, alpha * BETA)) / alpha)
        out.estimation += estimation
        out.model += consensus
        out.tracking += square(y - y.mean(0))
        sim.step()
        before = x, nu
        x, y, nu = read()
        out.movement += square(x - before[0])
        out.variation += square(nu - before[1])
    out.model_next = out.model + square(x - x.mean(0))
    out.tracking_next = out.tracking + square(y - y.mean(0))
    return out


def setting(network: dp.Network, *, alpha: float, gamma: float, period: int, steps: int) -> theory.Setting:
    return theory.Setting(
        n=N,
        lam=network.lam,
        period=period,
        beta=BETA,
        rho=1 / THETA,
        gamma=gamma,
        alpha=alpha,
        L=L,
        sigma2=0.0,
        batch_size=1,
        steps=steps,
        gap=phi(X0) - PHI_STAR,
    )


AVERAGING = dp.complete(N, "uniform")
#: The sums of Algorithm 1 have converged, and incorrect variants exceed the bounds several times over.
STEPS = 1000
WRONG = {"flipped step": (-1.0, 1.0), "flipped increment": (1.0, -1.0), "dropped increment": (1.0, 0.0)}


def test_the_unaltered_variant_equals_the_method_of_the_package() -> None:
    """The variants below differ from the method of the package only by the factors."""
    for momentum in ("polyak", "nesterov"):
        expected = accumulate(dp.Depositum(0.01, 0.5, momentum), dp.ring(N), period=2, steps=50)
        same = accumulate(Altered(0.01, 0.5, momentum), dp.ring(N), period=2, steps=50)
        assert asdict(expected) == pytest.approx(asdict(same), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("momentum", ["polyak", "nesterov"])
def test_proposition_1(momentum: str) -> None:
    """At its largest stepsize α = 1/(16L), deterministic, W = J: it holds for Algorithm 1."""
    s = setting(AVERAGING, alpha=1 / (16 * L), gamma=0.5, period=1, steps=STEPS)
    sums = accumulate(dp.Depositum(s.alpha, s.gamma, momentum), AVERAGING, period=1, steps=STEPS)
    right = theory.proposition1_rhs(s, sums.mapping, sums.estimation, sums.model, sums.tracking)
    assert 0 < sums.s <= right


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
def test_proposition_1_fails_for_incorrect_variants(wrong: str) -> None:
    """Shows that the test above is able to fail."""
    s = setting(AVERAGING, alpha=1 / (16 * L), gamma=0.5, period=1, steps=STEPS)
    sums = accumulate(Altered(s.alpha, s.gamma, "polyak", "average", *WRONG[wrong]), AVERAGING, period=1, steps=STEPS)
    assert sums.s > theory.proposition1_rhs(s, sums.mapping, sums.estimation, sums.model, sums.tracking)


def at_largest_alpha() -> theory.Setting:
    s = setting(AVERAGING, alpha=1.0, gamma=0.5, period=1, steps=STEPS)
    return replace(s, alpha=theory.largest_alpha(s).alpha)


@pytest.mark.slow
@pytest.mark.parametrize("momentum", ["polyak", "nesterov"])
def test_theorem_1(momentum: str) -> None:
    """At the largest admissible stepsize, the mean of s/n is within the bound."""
    s = at_largest_alpha()
    sums = accumulate(dp.Depositum(s.alpha, s.gamma, momentum), AVERAGING, period=1, steps=STEPS)
    assert theory.conditions_hold(s)
    assert 0 < sums.s / (N * STEPS) <= theory.bound(s).total


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
def test_theorem_1_fails_for_incorrect_variants(wrong: str) -> None:
    s = at_largest_alpha()
    sums = accumulate(Altered(s.alpha, s.gamma, "polyak", "average", *WRONG[wrong]), AVERAGING, period=1, steps=STEPS)
    assert sums.s / (N * STEPS) > theory.bound(s).total


@pytest.mark.slow
@pytest.mark.parametrize("momentum", ["polyak", "nesterov"])
@pytest.mark.parametrize("period", [1, 5])
def test_lemmas_2_and_3_on_a_ring(period: int, momentum: str) -> None:
    """The coupled recursions of consensus, tracking, movement and momentum, deterministic."""
    ring, steps, gamma = dp.ring(N), 400, 0.5
    s = setting(ring, alpha=1.0, gamma=gamma, period=period, steps=steps)
    d1, d2 = theory.delta1(s.lam, period, 1e-3, BETA, s.rho), theory.delta2(s.lam, period)
    s = replace(s, alpha=min(1e-3, 0.9 * np.sqrt(d1 * d2 / 8) / (L * period)))
    sums = accumulate(dp.Depositum(s.alpha, gamma, momentum), ring, period=period, steps=steps)

    def bounded(left: float, right: float) -> None:
        assert left > 0
        assert left <= right * (1 + 1e-9) + 1e-20

    bounded(sums.movement, theory.lemma2_movement_rhs(s, sums.mapping, sums.model_next))
    bounded(sums.model_next, theory.lemma2_model_rhs(s, sums.tracking))
    bounded(sums.variation, theory.lemma2_variation_rhs(s, sums.movement))
    bounded(sums.tracking_next, theory.lemma2_tracking_rhs(s, sums.variation))
    bounded(sums.tracking_next, theory.lemma3_rhs(s, sums.mapping))


class Point(nn.Module):
    """A model whose output is its parameter: with squared error, ∇F(x, ξ) = x − ξ, with variance σ² everywhere."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(dim))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.x.expand(len(inputs), -1)


def lemma_1_sides(momentum: str, gamma: float, spread: float) -> tuple[float, float]:
    """Both sides of Lemma 1 over 40 seeds, for noise of `spread` times the variance that the bound assumes."""
    n, dim, per_client, batch, steps, seeds, alpha = 4, 3, 30, 2, 60, 40, 0.02
    rng = np.random.default_rng(1)
    noise = rng.normal(size=(n, per_client, dim))
    noise -= noise.mean(1, keepdims=True)
    noise /= np.sqrt((noise**2).sum(2).mean(1))[:, None, None]  # σ² = 1 at every client
    centres = rng.normal(size=(n, 1, dim))
    targets = (centres + np.sqrt(spread) * noise).reshape(-1, dim)
    parts = np.split(np.arange(n * per_client), n)
    problem = Problem(
        Point(dim),
        as_loss("mse"),
        Samples(torch.zeros(n * per_client, 1), torch.tensor(targets)),
        tuple(Trial(seed, torch.ones(dim), parts) for seed in range(seeds)),
    )
    method = dp.Depositum(alpha, gamma, momentum)
    sim = Simulator(problem, dp.ring(n), method, period=2, batch_size=batch, settings=SETTINGS)
    sim.start()
    estimation = movement = 0.0
    for _ in range(steps):
        x, nu = (z.numpy().reshape(seeds, n, dim) for z in (sim.state.x, sim.state.nu))
        estimation += square((x - centres[:, 0]).mean(1) - nu.mean(1)) / seeds
        sim.step()
        movement += square(sim.state.x.numpy().reshape(seeds, n, dim) - x) / seeds
    s = theory.Setting(
        n=n,
        lam=dp.ring(n).lam,
        period=2,
        beta=0.0,
        rho=0.0,
        gamma=gamma,
        alpha=alpha,
        L=1.0,
        sigma2=1.0,
        batch_size=batch,
        steps=steps,
        gap=1.0,
    )
    return estimation, theory.lemma1_rhs(s, movement)


@pytest.mark.parametrize("gamma", [0.0, 0.5])
@pytest.mark.parametrize("momentum", ["polyak", "nesterov"])
def test_lemma_1_over_seeds(momentum: str, gamma: float) -> None:
    """The gradient-estimation error is within the bound, and with three times the variance it is not."""
    left, right = lemma_1_sides(momentum, gamma, 1.0)
    assert left <= right
    left, right = lemma_1_sides(momentum, gamma, 3.0)
    assert left > right
