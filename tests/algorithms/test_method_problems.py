"""Checks of the problems on which methods are tested."""

import numpy as np
import pytest

import depositum as dp
from tests.support import method_problems as mp


def test_solutions_are_fixed_points_of_proximal_gradient_descent() -> None:
    for kind, beta in (("lasso", mp.BETA), ("ridge", 0.0)):
        x = mp.SOLUTION[kind]
        g = mp.gradients(np.tile(x, (mp.N, 1))).mean(0)
        assert np.abs(x - mp.soft(x - g / mp.L, beta / mp.L)).max() <= 1e-10
    assert (mp.SOLUTION["lasso"] == 0).any()
    assert (mp.SOLUTION["lasso"] != 0).any()


def test_clients_have_different_optima() -> None:
    """The optima differ by far more than any tolerance used in the tests."""
    optima = np.array([np.linalg.lstsq(a, b, rcond=None)[0] for a, b in zip(mp.A, mp.B, strict=True)])
    assert np.abs(optima - optima.mean(0)).max() > 0.5


def test_numpy_and_the_package_compute_the_same_gradients() -> None:
    trajectory = mp.run(dp.Depositum(0.01, 0.0, start="local"))
    assert np.abs(trajectory.nu - mp.gradients(np.tile(mp.X0, (mp.N, 1)))).max() <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("period", [1, 5])
@pytest.mark.parametrize("momentum", ["polyak", "nesterov"])
def test_depositum_converges_to_the_solution(momentum: str, period: int) -> None:
    """It reaches the solution and consensus to 1e-10, and stays there."""
    trajectory = mp.run(dp.Depositum(0.2 / mp.L, 0.5, momentum), period=period, steps=1500)
    assert mp.distance(trajectory, "lasso") <= 1e-10
    assert np.abs(trajectory.x - trajectory.x.mean(0)).max() <= 1e-10
    before = trajectory.x.copy()
    assert np.abs(trajectory.advance(100).x - before).max() < 1e-8
