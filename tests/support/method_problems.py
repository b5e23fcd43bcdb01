"""Two small heterogeneous problems with known solutions, on which every method is tested.

n = 6 clients; f_i(x) = ½·mean (a·x − b)² + (ridge/2)‖x‖² is strongly convex, with a different optimum at each client.
"lasso" adds β‖x‖₁ and is for composite methods, "ridge" has h = 0 and is for smooth ones. Full gradients, float64. The
solutions come from scikit-learn's coordinate descent and from a linear system, to rounding.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import Lasso
from torch import nn

import depositum as dp
from depositum.engines import EngineSettings, Simulator
from depositum.problem import Problem, from_client_data

Array = NDArray[np.float64]
N, DIM, PER_CLIENT, RIDGE_WEIGHT, BETA = 6, 5, 20, 0.1, 1.0
SETTINGS = EngineSettings(device="cpu", dtype="float64")


def _data() -> tuple[Array, Array]:
    """Return inputs and targets; the ridge term is DIM more samples √(RIDGE·(samples))·e_k with target 0 per client."""
    rng = np.random.default_rng(4)
    a = rng.normal(size=(N, PER_CLIENT, DIM))
    b = np.einsum("nsd,nd->ns", a, rng.normal(size=DIM) + rng.normal(size=(N, DIM))) + 0.1 * rng.normal(
        size=(N, PER_CLIENT)
    )
    total = PER_CLIENT + DIM
    extra = np.sqrt(RIDGE_WEIGHT * total) * np.eye(DIM)
    scale = np.sqrt(total / PER_CLIENT)
    return (
        np.concatenate([scale * a, np.tile(extra, (N, 1, 1))], axis=1),
        np.concatenate([scale * b, np.zeros((N, DIM))], axis=1),
    )


A, B = _data()
#: The smoothness and strong convexity of the f_i.
L = max(np.linalg.eigvalsh(a.T @ a / len(a)).max() for a in A)
MU = min(np.linalg.eigvalsh(a.T @ a / len(a)).min() for a in A)
X0 = np.random.default_rng(9).normal(size=DIM)


def gradients(x: Array) -> Array:
    """∇f_i(x_i) of every client, `[n, d]`: the oracle in NumPy."""
    r = np.einsum("nsd,nd->ns", A, x) - B
    return np.einsum("ns,nsd->nd", r, A) / A.shape[1]


def soft(v: Array, tau: float) -> Array:
    """The prox of tau‖·‖₁."""
    return np.sign(v) * np.maximum(np.abs(v) - tau, 0.0)


def solution(beta: float) -> Array:
    """x* of (1/n)Σ f_i + β‖·‖₁, by scikit-learn (β > 0) or least squares."""
    stacked, targets = A.reshape(-1, DIM), B.ravel()
    if beta == 0:
        return np.linalg.lstsq(stacked, targets, rcond=None)[0]
    found: Array = Lasso(alpha=beta, fit_intercept=False, tol=1e-15, max_iter=1_000_000).fit(stacked, targets).coef_
    return found


SOLUTION = {"lasso": solution(BETA), "ridge": solution(0.0)}


def problem(kind: str) -> Problem:
    """The problem `"lasso"` or `"ridge"` of the package."""
    model = nn.Linear(DIM, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor(X0)[None])
    clients = list(zip(A, B, strict=True))
    return from_client_data(model, clients, loss="mse", regularizer=dp.L1(), beta=BETA if kind == "lasso" else 0.0)


@dataclass
class Trajectory:
    """A method's run on a problem, one state at a time."""

    simulator: Simulator

    def advance(self, steps: int) -> "Trajectory":
        for _ in range(steps):
            self.simulator.step()
        return self

    def __getattr__(self, name: str) -> Array:
        """A variable of the state as a NumPy array: `run.x`, `run.y`, …"""
        value: Array = getattr(self.simulator.state, name).numpy()
        return value


def run(
    method: dp.Algorithm, kind: str = "lasso", *, network: dp.Network | None = None, period: int = 1, steps: int = 0
) -> Trajectory:
    """Run some steps of a method on a problem with full gradients, on a ring by default or with a server."""
    if network is None and not method.server:
        network = dp.ring(N)
    simulator = Simulator(problem(kind), network, method, period=period, settings=SETTINGS)
    simulator.start()
    return Trajectory(simulator).advance(steps)


def problem_kind(method: dp.Algorithm) -> str:
    """The problem that a method is for."""
    return "ridge" if method.handles == "smooth" else "lasso"


def case_label(case: object) -> str:
    """The label of a parameter in the name of a test."""
    return case.name if isinstance(case, dp.Algorithm) else str(case)


def distance(trajectory: Trajectory, kind: str) -> float:
    """‖x̄ − x*‖∞."""
    return float(np.abs(trajectory.x.mean(0) - SOLUTION[kind]).max())
