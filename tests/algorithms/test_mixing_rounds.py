"""Several mixing rounds in one phase: contraction, averages and cost; and the other members of `mix`."""

import numpy as np
import pytest
import torch

import depositum as dp
from depositum.algorithms import mix_rounds
from depositum.channels import as_channel
from depositum.engines.mixing import IdentityMix, MatrixMix

CPU, DOUBLE = torch.device("cpu"), torch.float64


def exchange(network: dp.Network, trials: int = 1) -> MatrixMix:
    return MatrixMix(network, trials, CPU, DOUBLE)


def operator(network: dp.Network, rounds: int, chebyshev: bool) -> np.ndarray:
    """The matrix that `mix_rounds` applies."""
    return mix_rounds(exchange(network), torch.eye(network.n, dtype=DOUBLE), rounds, chebyshev).numpy()


@pytest.mark.parametrize("rounds", [1, 2, 4, 7])
@pytest.mark.parametrize("network", [dp.ring(10), dp.star(6), dp.torus(12), dp.path(5)], ids=str)
def test_rounds_contract_as_in_theory(network: dp.Network, rounds: int) -> None:
    """W^K contracts by λ^K; Chebyshev by 2c^K/(1 + c^{2K}), never worse than plain, and preserves averages."""
    average = np.full((network.n, network.n), 1 / network.n)
    plain, fast = (operator(network, rounds, chebyshev) for chebyshev in (False, True))
    assert np.abs(plain - np.linalg.matrix_power(network.W, rounds)).max() <= 1e-12
    assert np.abs(fast.sum(1) - 1).max() <= 1e-12
    assert np.abs(fast.sum(0) - 1).max() <= 1e-12
    c = network.lam / (1 + np.sqrt(1 - network.lam**2))
    contraction = np.linalg.norm(fast - average, 2)
    assert contraction <= 2 * c**rounds / (1 + c ** (2 * rounds)) + 1e-12
    assert contraction <= np.linalg.norm(plain - average, 2) + 1e-12


def test_contraction_of_four_rounds_on_a_ring_of_ten() -> None:
    average = np.full((10, 10), 0.1)
    assert np.linalg.norm(operator(dp.ring(10), 4, True) - average, 2) == pytest.approx(0.233, abs=5e-4)
    assert np.linalg.norm(operator(dp.ring(10), 4, False) - average, 2) == pytest.approx(0.580, abs=5e-4)


def test_each_round_is_counted_as_an_exchange() -> None:
    """Two neighbours, K rounds, one row of 7 numbers each."""
    mix = exchange(dp.ring(6))
    mix_rounds(mix, torch.ones(6, 7, dtype=DOUBLE), 3, True)
    assert mix.to_each * mix.mean_degree(0) == 3 * 2 * 7 * 8


@pytest.mark.parametrize("chebyshev", [False, True])
def test_rounds_are_the_identity_in_a_local_step(chebyshev: bool) -> None:
    mix = exchange(dp.ring(6))
    z = torch.randn(6, 4, dtype=DOUBLE)
    assert (mix_rounds(IdentityMix(mix), z, 5, chebyshev) - z).abs().max() <= 1e-12
    assert mix.to_each == 0


def test_mix_has_neighbour_sums_degrees_and_eigenvalues() -> None:
    """For two trials at once."""
    network = dp.star(5)
    mix = exchange(network, trials=2)
    z = torch.randn(10, 3, dtype=DOUBLE)
    adjacency = (network.W > 0).astype(float) - np.eye(5)
    expected = np.concatenate([adjacency @ z[:5].numpy(), adjacency @ z[5:].numpy()])
    assert np.abs(mix.neighbours(z).numpy() - expected).max() <= 1e-12
    assert mix.degree[:, 0].tolist() == [4, 1, 1, 1, 1] * 2
    spectrum = np.sort(np.linalg.eigvalsh(network.W))
    assert (mix.lam2, mix.lam_min) == pytest.approx((spectrum[-2], spectrum[0]))
    assert np.abs(mix.average(z)[5:].numpy() - z[5:].numpy().mean(0)).max() <= 1e-12


def test_a_compressed_message_is_counted_as_it_is_sent() -> None:
    """Two of a hundred numbers with their positions, to each of two neighbours; W acts on the updated estimate."""
    mix, estimate = exchange(dp.ring(6)), torch.zeros(6, 100, dtype=DOUBLE)
    z = torch.randn(6, 100, dtype=DOUBLE)
    mixed, q, memory = mix.transmit(z, as_channel({"top-k": 0.02}), {"estimate": estimate})
    assert mix.to_each * mix.mean_degree(0) == 2 * 2 * (8 + 4)
    assert ((q != 0).sum(1) == 2).all()
    assert torch.equal(memory["estimate"], q)
    assert (mixed - torch.tensor(dp.ring(6).W) @ q).abs().max() <= 1e-14
