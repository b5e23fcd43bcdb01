"""Thousands of clients: W stays sparse, and λ_2 and λ_n are found without the other eigenvalues."""

import math
import tracemalloc

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from depositum import networks
from depositum.errors import NetworkError
from depositum.networks import Network, communication_network, graphs, mixing_matrices, spectrum
from tests.support.network_cases import INVALID_MATRICES


def circulant_spectrum(n: int, steps: list[int]) -> np.ndarray:
    """The eigenvalues `[n]` of equal weights on the diagonal and at ± the given steps: sums of cosines."""
    reached = {step % n for step in steps} | {-step % n for step in steps}
    angle = 2 * np.pi * np.arange(n) / n
    return (1 + sum(np.cos(angle * step) for step in reached)) / (1 + len(reached))


@pytest.mark.slow
def test_ten_thousand_clients_on_the_exponential_graph():
    """Fails on a dense [n, n] intermediate (800 MB), a lost link or a wrong λ; the eigenvalues are sums of cosines."""
    graph = graphs.exponential(10_000)
    tracemalloc.start()
    network = Network.from_graph(graph)
    expected = np.sort(circulant_spectrum(10_000, [2**k for k in range(14)]))
    assert network.lam2 == pytest.approx(expected[-2], abs=1e-12)
    assert network.lam_min == pytest.approx(expected[0], abs=1e-12)
    assert network.lam == max(abs(network.lam2), abs(network.lam_min))
    assert network.edges == 140_000
    assert network.degree.tolist() == [28] * 10_000
    assert len(network.neighbours) == 10_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200e6
    assert network.neighbours[9_999][:3] == (0, 1, 3)
    assert np.abs(network.weights.sum(axis=1) - 1).max() < 1e-14
    assert "W" not in vars(network)
    assert not network.is_mean


def test_four_thousand_clients_on_a_ring_of_many_hops():
    """65 entries in each row; the eigenvalues are known in closed form."""
    network = networks.ring(4_000, hops=32)
    expected = np.sort(circulant_spectrum(4_000, list(range(1, 33))))
    assert (network.lam2, network.lam_min) == pytest.approx((expected[-2], expected[0]), abs=1e-12)
    assert network.edges == 128_000


def test_thousands_of_clients_on_other_graphs():
    """The theoretical λ of a path, a star, a grid and a hypercube, beyond the size that is solved densely."""
    n = 3_000
    path = networks.path(n)  # I - L / 3; neighbouring eigenvalues are 1e-6 apart: too close for Lanczos alone
    assert path.lam2 == pytest.approx(1 - (2 - 2 * math.cos(math.pi / n)) / 3, abs=1e-11)
    assert path.lam_min == pytest.approx(1 - (2 - 2 * math.cos(math.pi * (n - 1) / n)) / 3, abs=1e-11)
    star = networks.star(n)  # I - L / n
    assert (star.lam2, star.lam_min) == (pytest.approx(1 - 1 / n, abs=1e-11), 0.0)
    grid = networks.grid(2_500, mixing="max-degree")  # I - L / 5, with L the sum of those of two paths of 50
    assert grid.lam2 == pytest.approx(1 - (2 - 2 * math.cos(math.pi / 50)) / 5, abs=1e-11)
    assert grid.lam_min == pytest.approx(1 - 2 * (2 - 2 * math.cos(math.pi * 49 / 50)) / 5, abs=1e-11)
    cube = networks.hypercube(2_048, mixing="lazy-metropolis")  # 1 - k / 12 for k = 0 … 11: none is negative
    assert (cube.lam2, cube.lam_min) == pytest.approx((1 - 1 / 12, 1 - 11 / 12), abs=1e-11)
    assert cube.lam == cube.lam2


def test_the_mean_of_a_thousand_clients_needs_no_eigenvalues(monkeypatch):
    """W has n² entries, but the spectrum of J is known."""
    monkeypatch.setattr(communication_network, "extreme_eigenvalues", None)
    network = networks.complete(1_001)
    assert network.is_mean
    assert (network.lam, network.lam2, network.lam_min) == (0.0, 0.0, 0.0)
    assert "eigenvalues" not in vars(network)


@pytest.mark.parametrize("n", [1, 2, 5, 40])
def test_is_mean_requires_uniform_weights_in_every_phase(n):
    """Engines then replace the product by a mean: it is not enough that the graph is complete."""
    assert networks.complete(n).is_mean
    assert networks.complete(n, mixing="uniform").is_mean
    assert Network.from_matrix(np.full((n, n), 1 / n)).is_mean
    assert networks.complete(n, mixing="lazy-metropolis").is_mean == (n == 1)
    assert networks.star(n).is_mean == (n <= 2)
    assert not networks.network("complete", n, drop=0.1).is_mean


NETWORKS = {
    "path": lambda: networks.path(400),
    "lazy path": lambda: networks.path(401, mixing="lazy-metropolis"),
    "grid": lambda: networks.grid(600),
    "torus": lambda: networks.torus(500),
    "star": lambda: networks.star(300),
    "ring": lambda: networks.ring(300, hops=7),
    "exponential": lambda: networks.exponential(511),
    "hypercube": lambda: networks.hypercube(512, mixing="lazy-metropolis"),
    "erdos-renyi": lambda: networks.erdos_renyi(500, mixing="max-degree"),
    "geometric": lambda: networks.geometric(450),
    "two cliques": lambda: Network.from_graph(nx.barbell_graph(150, 3)),
    "slow mean": lambda: Network.from_matrix(0.1 * np.eye(300) + 0.9 * networks.complete(300).W),
    "bipartite": lambda: Network.from_graph(
        nx.complete_bipartite_graph(150, 150),
        0.004 * np.eye(300) + np.kron(1 - np.eye(2), np.full((150, 150), 0.996 / 150)),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [spectrum.LANCZOS_RESTARTS, 1])
@pytest.mark.parametrize("name", NETWORKS)
def test_lanczos_agrees_with_all_eigenvalues(name, restarts, monkeypatch):
    """With a single restart, slow graphs fall back to the factorisation; also if no eigenvalue is negative."""
    network = NETWORKS[name]()
    monkeypatch.setattr(spectrum, "LANCZOS_RESTARTS", restarts)
    found = spectrum.lanczos_eigenvalues(network.weights)
    values = np.linalg.eigvalsh(network.W)
    assert found == pytest.approx((values[-2], values[0]), abs=1e-9)
    assert spectrum.lanczos_eigenvalues(network.weights) == pytest.approx(found, abs=1e-14)
    assert spectrum.extreme_eigenvalues(network.weights) == pytest.approx(found, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_sparse_and_dense_eigenvalues_agree(name, monkeypatch):
    """The size at which the method changes must not be visible in λ."""
    network = NETWORKS[name]()
    dense = network.lam, network.lam2, network.lam_min, network.gap
    assert network.lam2 == network.eigenvalues[1]
    monkeypatch.setattr(communication_network, "MAX_DENSE_CLIENTS", 10)
    large = NETWORKS[name]()
    assert (large.lam, large.lam2, large.lam_min, large.gap) == pytest.approx(dense, abs=1e-9)
    assert "W" not in vars(large)


def test_spectrum_of_the_smallest_networks():
    assert (networks.ring(1).lam, networks.ring(1).lam2, networks.ring(1).lam_min) == (0.0, 0.0, 1.0)
    assert (networks.path(2).lam2, networks.path(2).lam_min) == (0.0, 0.0)


@pytest.mark.parametrize(("n", "steps"), [(2, [1]), (7, [1]), (12, [1, 2]), (12, [3, 4]), (300, [1, 7, 100, 150])])
def test_circulant_matrices_are_recognised_and_solved(n, steps):
    """Any steps, including half the circle; the eigenvalues are sums of cosines."""
    network = Network.from_graph(nx.circulant_graph(n, steps))
    row = spectrum.circulant_row(network.weights)
    assert row == pytest.approx(network.W[0], abs=1e-14)
    expected = circulant_spectrum(n, steps)
    assert spectrum.circulant_eigenvalues(row) == pytest.approx((expected[1:].max(), expected[1:].min()), abs=1e-13)


def test_almost_circulant_matrices_are_not_recognised():
    """The closed form would be wrong for each of these, slightly or grossly."""
    shuffled = nx.relabel_nodes(nx.cycle_graph(30), dict(enumerate(np.random.default_rng(0).permutation(30).tolist())))
    W = networks.ring(30).W.copy()
    W[[3, 4], [4, 3]] += 1e-9  # some weight moved between a link and its ends
    W[[3, 4], [3, 4]] -= 1e-9
    moved = Network.from_matrix(W)
    others = [networks.path(30), networks.star(30), networks.torus(30), networks.hypercube(32), moved]
    for network in [*others, Network.from_graph(shuffled)]:
        assert spectrum.circulant_row(network.weights) is None, network


@pytest.mark.parametrize("name", ["path", "star", "geometric", "exponential"])
def test_weights_are_read_only_sorted_csr(name):
    """Engines rely on it: CSR, indices ascending, every diagonal entry stored, read-only."""
    network = networks.network(name, 33)
    weights = network.weights
    assert isinstance(weights, sparse.csr_array)
    assert weights.dtype == np.float64
    assert (weights.toarray() == network.W).all()
    assert weights.nnz == 33 + 2 * network.edges
    for i in range(33):
        row = weights.indices[weights.indptr[i] : weights.indptr[i + 1]].tolist()
        assert row == sorted({i, *network.neighbours[i]})
    for array in (weights.data, weights.indices, weights.indptr):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@pytest.mark.parametrize("form", [sparse.csr_array, sparse.csc_array, sparse.coo_array, sparse.csr_matrix])
def test_a_sparse_matrix_is_accepted_and_copied(form):
    """In any SciPy format, with or without a graph, with entries in any order and duplicates to be summed."""
    W = networks.geometric(20).W
    given = form(W)
    assert (Network.from_matrix(given).W == W).all()
    assert (networks.build(Network.from_matrix(W).graph, given, 20).W == W).all()
    rows, columns = np.nonzero(W)
    parts = sparse.coo_array((np.tile(W[rows, columns] / 2, 2), (np.tile(rows, 2), np.tile(columns, 2))))
    network = Network.from_matrix(parts)
    parts.data[:] = 9.0
    assert np.abs(network.W - W).max() < 1e-15
    with pytest.raises(NetworkError, match="contains complex128 values"):
        Network.from_matrix(form(W.astype(complex)))


CASES = [case for case in INVALID_MATRICES if isinstance(case[1], np.ndarray) and case[1].ndim == 2 and case[1].size]


@pytest.mark.parametrize(("matrix", "message"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_an_invalid_sparse_matrix_has_the_same_error(matrix, message):
    """Entries that are not stored hide nothing."""
    with pytest.raises(NetworkError, match=message):
        networks.build("ring" if "'graph'" not in message else nx.cycle_graph(5), sparse.coo_array(matrix), 5)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 300), st.integers(1, 2_000), st.integers(0, 2**32))
def test_row_sums_equal_those_of_dense_rows_bit_for_bit(n, block, seed):
    """A sum in another order would make a sparse W differ from the same W given dense."""
    generator = np.random.default_rng(seed)
    dense = generator.random((n, n)) * (generator.random((n, n)) < generator.random())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixing_matrices, "BLOCK_ENTRIES", block)
        assert (mixing_matrices.row_sums(sparse.csr_array(dense)) == dense.sum(axis=1)).all()


@pytest.mark.parametrize("make", [networks.erdos_renyi, networks.geometric])
def test_random_graphs_do_not_depend_on_the_block_size(make, monkeypatch):
    """A seed gives the same graph whether all pairs are drawn at once or in blocks."""
    expected = [list(make(60, seed=seed).graph.edges) for seed in range(3)]
    for pairs in (1, 130, 1_000):
        monkeypatch.setattr(graphs, "BLOCK_PAIRS", pairs)
        assert [list(make(60, seed=seed).graph.edges) for seed in range(3)] == expected


def test_a_graph_is_copied_only_if_necessary():
    """A frozen graph on 0 … n-1 can be shared; a self-loop, another label or a later change cannot."""
    shared = graphs.as_client_graph(nx.cycle_graph(6))
    assert nx.is_frozen(shared)
    assert graphs.as_client_graph(shared) is shared
    assert Network.from_graph(shared).graph is shared
    looped = nx.cycle_graph(6)
    looped.add_edge(2, 2)
    for other in (nx.freeze(looped), nx.freeze(nx.path_graph(range(1, 5))), nx.cycle_graph(6)):
        copy = graphs.as_client_graph(other)
        assert copy is not other
        assert nx.number_of_selfloops(copy) == 0
        assert list(copy) == list(range(len(other)))
