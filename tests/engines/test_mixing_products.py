"""W·z in each of its forms equals the dense product, and W^t of time-varying networks preserves averages."""

import numpy as np
import pytest
import torch

import depositum as dp
from depositum import networks
from depositum.engines import EngineSettings, Simulator
from depositum.engines.mixing import MatrixMix
from depositum.engines.mixing_products import MAX_INLINE_TERMS, MixingWeights, SparsityPattern
from tests.support.seeded_problems import N, seeded_problem

DOUBLE = torch.float64
CPU = torch.device("cpu")


def exchange(network: dp.Network, trials: int = 1) -> MatrixMix:
    return MatrixMix(network, trials, CPU, DOUBLE)


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize(
    "network",
    [dp.ring(7), dp.ring(90), dp.ring(90, hops=6), dp.star(80), dp.complete(9), dp.erdos_renyi(80, 0.5), dp.grid(70)],
    ids=str,
)
def test_every_form_equals_the_dense_product(network: dp.Network, inline: bool) -> None:
    """Inline, sparse, dense and mean, for three trials at once, which must not mix with each other."""
    mix = exchange(network, trials=3)
    mix.inline = inline
    z = torch.randn(3 * network.n, 5, dtype=DOUBLE)
    expected = np.concatenate([network.W @ block.numpy() for block in z.view(3, network.n, 5)])
    assert np.abs(mix(z).numpy() - expected).max() <= 1e-12
    links = (network.W > 0).astype(float) - np.eye(network.n)
    expected = np.concatenate([links @ block.numpy() for block in z.view(3, network.n, 5)])
    assert np.abs(mix.neighbours(z).numpy() - expected).max() <= 1e-12


def test_the_form_depends_on_the_graph() -> None:
    assert exchange(dp.ring(90)).pattern.width <= MAX_INLINE_TERMS
    assert not exchange(dp.ring(90)).pattern.dense
    assert exchange(dp.ring(20)).pattern.dense
    assert exchange(dp.erdos_renyi(80, 0.5)).pattern.dense


TIME_VARYING = {
    "dropped": networks.network("ring", 9, drop=0.4),
    "dropped, large": networks.network({"ring": {"hops": 3}}, 80, drop=0.5),
    "dropped, complete": networks.network("complete", 6, drop=0.3),
    "one peer": networks.network("one-peer-exponential", 8),
    "one peer, dropped": networks.network("one-peer-exponential", 8, drop=0.4),
}


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("name", TIME_VARYING)
def test_a_time_varying_network_applies_the_matrix_of_the_phase(name: str, inline: bool) -> None:
    """For twelve phases and two trials: the product, the sum over neighbours, degrees and messages sent."""
    network = TIME_VARYING[name]
    mix = exchange(network, trials=2)
    mix.inline = inline
    z = torch.randn(2 * network.n, 4, dtype=DOUBLE)
    blocks = z.view(2, network.n, 4).numpy()
    for phase in range(12):
        mix.begin(torch.tensor(phase))
        W = network.matrix(phase)
        links = (W > 0).astype(float) - np.eye(network.n)
        assert np.abs(mix(z).view(2, network.n, 4).numpy() - W @ blocks).max() <= 1e-12
        assert np.abs(mix.neighbours(z).view(2, network.n, 4).numpy() - links @ blocks).max() <= 1e-12
        assert mix.degree[: network.n, 0].tolist() == links.sum(1).tolist()
        assert mix.mean_degree(phase) == links.sum() / network.n
        assert (mix(z).view(2, network.n, 4).mean(1) - z.view(2, network.n, 4).mean(1)).abs().max() <= 1e-12


@pytest.mark.parametrize("topology", ["ring", "one-peer-exponential"])
def test_the_tracking_invariant_holds_on_time_varying_networks(topology: str) -> None:
    """J y = J ν at every iteration, whatever links a phase has; losing the weight of a dropped link would break it."""
    sim = Simulator(
        seeded_problem((0, 5)),
        networks.network(topology, N, drop=0.4),
        dp.Depositum(0.1, 0.5),
        period=2,
        batch_size=4,
        settings=EngineSettings("cpu", "float64"),
    )
    sim.start()
    for _ in range(30):
        sim.step()
        y, nu = (getattr(sim.state, v).view(2, N, -1).mean(1) for v in ("y", "nu"))
        assert (y - nu).abs().max() <= 1e-12


def test_patterns_may_have_rows_of_different_length() -> None:
    """Padding beyond a client's last entry contributes nothing."""
    starts, columns = torch.tensor([0, 3, 4, 6]), torch.tensor([0, 1, 2, 1, 0, 2])
    pattern = SparsityPattern(starts, columns, trials=1)
    weights = MixingWeights(pattern, torch.arange(1.0, 7.0, dtype=DOUBLE))
    full = torch.tensor([[1, 2, 3], [0, 4, 0], [5, 0, 6]], dtype=DOUBLE)
    assert torch.equal(weights.matrix, full)
    z = torch.randn(3, 2, dtype=DOUBLE)
    for inline in (False, True):
        assert torch.allclose(weights(z, inline), full @ z)
