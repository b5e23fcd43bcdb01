"""The orders that `benchmarks/theory_figures.py` draws, as the theory page states them."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from depositum.theory import delta1, delta2


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "theory_figures.py"
    spec = importlib.util.spec_from_file_location("theory_figures", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("period", [1, 2, 5, 10])
def test_orders_for_a_small_spectral_gap(figures: ModuleType, period: int) -> None:
    """δ1 = δ2 → (1−λ)²/T0 and the network's factor → 6T0⁴/(1−λ)⁴, both to a per mille at 1 − λ = 1e-4."""
    gap = 1e-4
    assert delta1(1 - gap, period) == pytest.approx(gap**2 / period, rel=1e-3)
    assert delta2(1 - gap, period) == pytest.approx(gap**2 / period, rel=1e-3)
    assert figures.coefficient(1 - gap, period) == pytest.approx(6 * period**4 / gap**4, rel=1e-3)


def test_the_transient_grows_with_the_square_of_the_clients(figures: ModuleType) -> None:
    """At the crossover the two terms of Corollary 1 are equal, and its T has slope 2 in n."""
    for n in (4, 64):
        steps, factor = figures.crossover(n, 0.9, 5), figures.coefficient(0.9, 5)
        assert factor * 16 * np.sqrt(n) / steps == pytest.approx(192 / np.sqrt(n * steps))
    clients = np.array([4.0, 16.0, 64.0])
    times = np.array([figures.crossover(int(n), 0.9, 5) for n in clients])
    assert figures.slope(clients, times) == pytest.approx(2.0)
