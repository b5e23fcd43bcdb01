"""`server_weights = "samples"`: N_i/N in the server's averages, and client gradients that are not scaled."""

import dataclasses
from itertools import islice

import numpy as np
import pytest
import torch
from sklearn.linear_model import Lasso
from torch import nn

import depositum as dp
from depositum.algorithms import ALGORITHMS, Algorithm
from depositum.engines import Simulator
from depositum.problem import Problem, from_client_data
from tests.algorithms.test_server_methods import CASES
from tests.support import equations_server
from tests.support.equations_server import tile
from tests.support.method_problems import BETA, DIM, SETTINGS, X0, A, Array, B, L

#: How many of its samples each client has.
SIZES = [25, 12, 20, 8, 25, 15]
SHARES = np.array(SIZES) / sum(SIZES)
DATA = [(a[:size], b[:size]) for a, b, size in zip(A, B, SIZES, strict=True)]


def gradients(x: Array) -> Array:
    """∇f_i(x_i) of every client, not scaled, `[n, d]`."""
    return np.stack([a.T @ (a @ row - b) / len(a) for (a, b), row in zip(DATA, x, strict=True)])


def weighted(z: Array) -> Array:
    """Σ_i (N_i/N) z_i."""
    return SHARES @ z


def problem(kind: str) -> Problem:
    model = nn.Linear(DIM, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor(X0)[None])
    beta = BETA if kind == "lasso" else 0.0
    return from_client_data(model, DATA, loss="mse", regularizer=dp.L1(), beta=beta, weighting="samples")


def started(method: Algorithm, kind: str, period: int) -> Simulator:
    simulator = Simulator(problem(kind), None, method, period=period, settings=SETTINGS)
    simulator.start()
    return simulator


def test_every_method_with_a_server_has_it() -> None:
    servers = [name for name in ALGORITHMS if dp.algorithm(name).server]
    assert len(servers) >= 10
    for name in servers:
        assert dp.algorithm(name, server_weights="samples").server_weights == "samples"  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("period", [1, 5])
@pytest.mark.parametrize("form", CASES)
def test_equals_the_equations_with_weights_in_numpy(form: str, period: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables after every round, to 1e-10: fails if one average of a method is uniform, or a gradient scaled."""
    monkeypatch.setattr(equations_server, "gradients", gradients)
    monkeypatch.setattr(equations_server, "mean", weighted)
    method, reference, kind = CASES[form]
    simulator = started(dataclasses.replace(method, server_weights="samples"), kind, period)  # type: ignore[call-arg]
    assert np.array_equal(simulator.state.x.numpy(), tile(X0))
    for r, expected in enumerate(islice(reference(period), 8)):
        for _ in range(period):
            simulator.step()
        for name, value in expected.items():
            scale = max(1.0, np.abs(value).max())
            found = getattr(simulator.state, name).numpy()
            assert np.abs(found - value).max() <= 1e-10 * scale, f"{name} after round {r + 1}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"), [("feddr", {"eta": 1.0}), ("fedadmm", {"c": 1.0}), ("zhang-composite", {})]
)
def test_both_forms_reach_the_solution_of_the_pooled_problem(name: str, settings: dict[str, float]) -> None:
    """Both weigh f by samples: Σ (N_i/N) f_i is the mean over all samples, whose solution scikit-learn computes."""
    stacked, targets = np.concatenate([a for a, _ in DATA]), np.concatenate([b for _, b in DATA])
    solution = Lasso(alpha=BETA, fit_intercept=False, tol=1e-15, max_iter=1_000_000).fit(stacked, targets).coef_
    for where in ("uniform", "samples"):
        simulator = started(dp.algorithm(name, alpha=0.1 / L, server_weights=where, **settings), "lasso", 5)
        for _ in range(5000):
            simulator.step()
        assert np.abs(simulator.state.x[0].numpy() - solution).max() < 1e-6, where


def test_equal_clients_make_no_difference() -> None:
    clients = list(zip(A, B, strict=True))
    ends = []
    for where in ("uniform", "samples"):
        model = nn.Linear(DIM, 1, bias=False).double()
        with torch.no_grad():
            model.weight.copy_(torch.tensor(X0)[None])
        equal = from_client_data(model, clients, loss="mse", regularizer=dp.L1(), beta=BETA, weighting="samples")
        method = dp.algorithm("feddr", alpha=0.1 / L, server_weights=where)
        simulator = Simulator(equal, None, method, period=3, settings=SETTINGS)
        simulator.start()
        for _ in range(9):
            simulator.step()
        ends.append(simulator.state.x)
    assert (ends[0] - ends[1]).abs().max() < 1e-14


def test_needs_a_problem_weighted_by_samples() -> None:
    clients = [(torch.randn(8, 3), torch.randint(0, 2, (8,))) for _ in range(3)]
    with pytest.raises(dp.ConfigError, match=r"server_weights: 'samples' given, but weighting is 'uniform'"):
        dp.fit(nn.Linear(3, 2), clients, algorithm=dp.algorithm("fedavg", server_weights="samples"), steps=2)
