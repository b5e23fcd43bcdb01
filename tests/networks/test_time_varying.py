"""Time-varying networks: the W of every phase, and who is linked in it."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from depositum import networks
from depositum.errors import ConfigError, NetworkError
from depositum.networks import TOPOLOGIES, DroppedLinks, Network, OnePeerExponential
from depositum.randomness import purpose_code
from tests.support.reference_hash import reference_hash

STATIC = [name for name in TOPOLOGIES if name != "one-peer-exponential"]
POWERS = [1, 2, 4, 8, 16, 32]
SEEDS = st.integers(0, 2**31)
PHASES = st.integers(0, 2**40)


def assert_phase(W: np.ndarray, network: Network) -> None:
    """Symmetric, doubly stochastic, no weight outside the graph, a positive diagonal."""
    n = network.n
    assert W.shape == (n, n)
    assert W.dtype == np.float64
    assert (W == W.T).all()
    assert (W >= 0).all()
    assert np.abs(W.sum(axis=0) - 1).max() <= 1e-15 * (n + 5)
    assert (np.diag(W) > 0).all()
    assert (W[network.W == 0] == 0).all()


@settings(deadline=None, max_examples=80)
@given(st.sampled_from(STATIC), st.integers(1, 5), st.floats(0, 0.999), SEEDS, PHASES)
def test_every_phase_with_dropped_links_is_doubly_stochastic(name, digits, p, seed, phase):
    """Breaks if a weight is returned to one end only, or if the two ends disagree about a link."""
    static = networks.network(name, 2**digits)
    network = Network(static.graph, static.weights, drop=DroppedLinks(p, seed))
    W = network.matrix(phase)
    assert_phase(W, network)
    assert (network.matrix(phase) == W).all()
    off = ~np.eye(network.n, dtype=bool)
    assert np.isin(W[off], [0.0, *static.W[off]]).all()
    assert (W[off] <= static.W[off]).all(), "a link has more than its weight"
    # Which links are absent, in Python integers.
    for i, j in static.graph.edges:
        low = reference_hash(seed, purpose_code("links"), min(i, j), max(i, j), phase) % 2**32
        assert (W[i, j] == 0) == (low < round(p * 2**32))


@settings(deadline=None, max_examples=50)
@given(st.floats(0, 0.999), SEEDS, st.lists(PHASES, min_size=1, max_size=4))
def test_links_are_the_same_from_both_ends_and_in_any_shape(p, seed, phases):
    """A process queries its few links, the simulator all links or several phases at once."""
    drop = DroppedLinks(p, seed)
    i, j = torch.meshgrid(torch.arange(6), torch.arange(6), indexing="ij")
    every = drop.present(torch.tensor(phases)[:, None, None], i, j)
    assert every.shape == (len(phases), 6, 6)
    assert every.dtype == torch.bool
    assert torch.equal(every, every.mT)
    for at, phase in enumerate(phases):
        for a, b in itertools.permutations(range(6), 2):
            one = drop.present(torch.tensor(phase), torch.tensor(a), torch.tensor(b))
            assert one.shape == ()
            assert bool(one) == bool(every[at, a, b])


def test_links_drop_with_probability_p_and_independently():
    """Over 400 phases of 780 links: p overall, p for each link, and the binomial variance between phases."""
    i, j = torch.tensor(list(itertools.combinations(range(40), 2))).T
    for p in (0.1, 0.5, 0.8):
        absent = (~DroppedLinks(p).present(torch.arange(400)[:, None], i, j)).double()
        spread = math.sqrt(p * (1 - p))
        assert abs(absent.mean().item() - p) < 4 * spread / math.sqrt(absent.numel())
        assert (absent.mean(0) - p).abs().max().item() < 5 * spread / math.sqrt(400)
        assert absent.sum(1).var().item() == pytest.approx(780 * p * (1 - p), rel=0.35)
        # Correlation between consecutive phases, link by link.
        after = ((absent[1:] - p) * (absent[:-1] - p)).mean().item()
        assert abs(after) < 4 * spread**2 / math.sqrt(absent.numel())


def test_dropped_links_average_to_the_expected_matrix():
    """(1 - p) W + p I: the weight of a dropped link stays with its ends."""
    network = networks.network({"ring": 2}, 10, drop=0.3)
    mean = np.mean([network.matrix(phase) for phase in range(2_000)], axis=0)
    assert np.abs(mean - (0.7 * network.W + 0.3 * np.eye(10))).max() < 0.015
    assert any((network.matrix(0) != network.matrix(phase)).any() for phase in (1, 2))
    other = DroppedLinks(0.3, seed=1)
    assert any((replace(network, drop=other).matrix(phase) != network.matrix(phase)).any() for phase in range(3))


def test_a_drop_probability_of_zero_is_the_static_network():
    """p = 0 must not drop the one link in 2^32 whose hash is 0."""
    network = networks.network("star", 9, drop=0.0)
    assert network.drop is None
    assert network.one_peer is None
    assert (network.matrix(3) == network.W).all()
    assert (replace(network, drop=DroppedLinks(0.0)).matrix(3) == network.W).all()
    assert DroppedLinks(0.0).present(torch.arange(10_000), torch.tensor(0), torch.tensor(1)).all()


def test_a_network_with_dropped_links_has_the_properties_of_the_static_one():
    """λ, edges and weights refer to all links; only the phases and the printed description differ."""
    static, network = networks.ring(10), networks.network("ring", 10, drop=0.2)
    assert network.drop == DroppedLinks(0.2)
    assert (network.W == static.W).all()
    assert (network.lam, network.edges, network.name) == (static.lam, static.edges, static.name)
    assert str(network) == f"{static}, each link dropped with probability 0.2"
    assert networks.build("ring", "metropolis", 10, drop=0.2).drop == DroppedLinks(0.2)


@pytest.mark.parametrize("p", [-0.1, 1.0, 1, 2, float("nan"), float("inf"), True, "0.2", "often"])
def test_invalid_drop_probabilities_are_rejected(p):
    """Before any graph is made; 1 would remove every link permanently."""
    with pytest.raises(NetworkError, match=r"^drop: .* given; the probability of a dropped link is in \[0, 1"):
        networks.network("rnig", 10, drop=p)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(POWERS), PHASES)
def test_one_peer_phases_are_perfect_matchings(n, phase):
    """Partners are mutual; weights of 1/2 are exact."""
    network = networks.one_peer_exponential(n)
    W = network.matrix(phase)
    assert_phase(W, network)
    peer = network.one_peer.peer(torch.tensor(phase), torch.arange(n)).tolist()
    assert [peer[peer[i]] for i in range(n)] == list(range(n))
    digits = n.bit_length() - 1
    for i in range(n):
        assert peer[i] == (i ^ 2 ** (phase % digits) if n > 1 else i)
        assert W[i, peer[i]] == (0.5 if n > 1 else 1.0)
        assert np.count_nonzero(W[i]) == min(n, 2)


@pytest.mark.parametrize("n", POWERS)
@pytest.mark.parametrize("start", [0, 3])
def test_one_period_of_one_peer_phases_is_the_exact_average(n, start):
    """Powers of two have no rounding errors: exactly J, from any starting phase."""
    network = networks.one_peer_exponential(n)
    product = np.eye(n)
    for phase in range(start, start + network.one_peer.phases):
        product = network.matrix(phase) @ product
    assert (product == 1 / n).all()


@pytest.mark.parametrize("n", POWERS)
def test_a_one_peer_network_has_the_mean_weights_on_a_hypercube(n):
    """λ is that of the mean over the phases, 1 - 1 / log2 n; a single phase is not connected."""
    network = networks.one_peer_exponential(n)
    digits = n.bit_length() - 1
    mean = np.mean([network.matrix(phase) for phase in range(max(digits, 1))], axis=0)
    assert np.abs(network.W - mean).max() < 1e-15
    assert network.neighbours == networks.hypercube(n).neighbours
    assert network.lam == pytest.approx(1 - 1 / digits if n > 1 else 0.0, abs=1e-13)
    assert not network.is_mean
    assert network.name == "one-peer-exponential"
    assert network.mixing == "pairwise"
    assert network.one_peer == OnePeerExponential(n)
    assert networks.network({"one-peer-exponential": {}}, n).one_peer == network.one_peer


def test_one_peer_phases_differ_within_a_period():
    network = networks.one_peer_exponential(8)
    assert not any((network.matrix(a) == network.matrix(b)).all() for a, b in itertools.combinations(range(3), 2))
    assert (network.matrix(1) == network.matrix(4)).all()


@pytest.mark.parametrize(("n", "powers"), [(3, "2 or 4"), (10, "8 or 16"), (1000, "512 or 1024")])
def test_one_peer_needs_a_power_of_two(n, powers):
    for make in (networks.one_peer_exponential, OnePeerExponential):
        with pytest.raises(NetworkError, match=f"^n: .* of {n} clients given; .* such as {powers};"):
            make(n)


@pytest.mark.parametrize("mixing", ["lazy-metropolis", "max-degree", "uniform", np.eye(8), {"uniform": {}}])
def test_one_peer_rejects_other_mixing_rules(mixing):
    """Partners average their values; a rule that would be ignored is rejected."""
    with pytest.raises(NetworkError, match=r"^mixing: .* given, but partners in 'one-peer-exponential' av"):
        networks.network("one-peer-exponential", 8, mixing)
    with pytest.raises(ConfigError, match="did you mean 'metropolis'"):
        networks.network("one-peer-exponential", 8, "metropolos")


def test_a_misspelt_one_peer_network_is_suggested():
    with pytest.raises(ConfigError, match="did you mean 'one-peer-exponential'"):
        networks.network("one-peer-exponental", 8)


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(POWERS), st.floats(0.01, 0.99), PHASES)
def test_a_one_peer_network_can_drop_links(n, p, phase):
    """A pair whose link is absent keeps its values: rows of the identity."""
    network = networks.network("one-peer-exponential", n, drop=p)
    W, complete = network.matrix(phase), network.one_peer.matrix(phase)
    assert_phase(W, network)
    for i in range(n):
        peer = int(network.one_peer.peer(torch.tensor(phase), torch.tensor(i)))
        present = peer == i or bool(network.drop.present(torch.tensor(phase), torch.tensor(i), torch.tensor(peer)))
        assert (W[i] == (complete[i] if present else np.eye(n)[i])).all()


def test_no_value_is_read_back_to_the_host():
    """On meta tensors, `.item()` or a branch on a value raises; either would break the capture of a CUDA graph."""
    phase = torch.zeros((), dtype=torch.int64, device="meta")
    i, j = torch.zeros((2, 7), dtype=torch.int64, device="meta")
    present = DroppedLinks(0.3, seed=5).present(phase, i, j)
    peer = OnePeerExponential(16).peer(phase, i)
    assert (present.device.type, present.dtype, present.shape) == ("meta", torch.bool, (7,))
    assert (peer.device.type, peer.dtype, peer.shape) == ("meta", torch.int64, (7,))
