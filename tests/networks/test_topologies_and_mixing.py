"""Every topology with every mixing rule satisfies Assumption 2 and has its theoretical spectrum."""

import math
import random
from collections import Counter

import networkx as nx
import numpy as np
import pytest

from depositum import networks
from depositum.errors import NetworkError
from depositum.networks import MIXINGS, TOPOLOGIES, Network
from depositum.networks.graphs import as_client_graph
from tests.support.network_cases import adjacency, assert_assumption_2, edge_set

SIZES = (1, 2, 3, 8, 10, 16)
# Topologies that restrict the number of clients; the others are tested at every size.
VALID = {"hypercube": lambda n: n in (1, 2, 8, 16)}
# The one-peer network defines its own weights: test_time_varying.py.
STATIC = [name for name in TOPOLOGIES if name != "one-peer-exponential"]
CASES = [(name, n) for name in STATIC for n in SIZES if VALID.get(name, lambda n: True)(n)]


@pytest.mark.parametrize("mixing", list(MIXINGS))
@pytest.mark.parametrize(("name", "n"), CASES)
def test_every_topology_with_every_mixing_satisfies_assumption_2(name, n, mixing):
    """Detects wrong weights and edges: double edges of a torus with a side of 2, self-loops at n = 1, row 0."""
    linked = adjacency(name, n)
    if linked is None:
        linked = np.zeros((n, n), dtype=bool)
        for i, j in networks.network(name, n).graph.edges:
            linked[i, j] = linked[j, i] = True
    if mixing == "uniform" and not (linked | np.eye(n, dtype=bool)).all():
        with pytest.raises(NetworkError, match="'uniform' given, but clients .* are not linked"):
            networks.network(name, n, mixing)
        return
    network = networks.network(name, n, mixing)
    assert_assumption_2(network.W, linked)
    assert list(network.graph.nodes) == list(range(n))
    assert nx.number_of_selfloops(network.graph) == 0
    assert network.n == n
    assert network.edges == linked.sum() // 2
    assert network.degree.tolist() == linked.sum(axis=1).tolist()
    assert network.neighbours == tuple(tuple(np.flatnonzero(row).tolist()) for row in linked)
    assert network.name == name
    assert network.mixing == mixing
    assert network.lam == pytest.approx(np.linalg.norm(network.W - 1 / n, 2), abs=1e-12)
    assert 0 <= network.lam < 1
    assert network.gap == 1 - network.lam
    assert network.lam_min == pytest.approx(np.linalg.eigvalsh(network.W)[0], abs=1e-12)


@pytest.mark.parametrize(("name", "n"), CASES)
def test_weights_match_their_definition(name, n):
    """Each weight from a double loop: swapping max and min, or omitting `1 +`, changes some weight."""
    graph = networks.network(name, n).graph
    degree = [sum(1 for _ in graph.neighbors(i)) for i in range(n)]
    metropolis, lazy, common = (np.zeros((n, n)) for _ in range(3))
    for i in range(n):
        for j in graph.neighbors(i):
            metropolis[i, j] = 1 / (1 + max(degree[i], degree[j]))
            lazy[i, j] = metropolis[i, j] / 2
            common[i, j] = 1 / (1 + max(degree))
        for W in (metropolis, lazy, common):
            W[i, i] = 1 - math.fsum(W[i])
    for mixing, W in (("metropolis", metropolis), ("lazy-metropolis", lazy), ("max-degree", common)):
        assert np.abs(networks.network(graph, n, mixing).W - W).max() <= 1e-15 * n, mixing


def test_lazy_metropolis_is_the_average_of_metropolis_and_the_identity():
    """(I + W) / 2; its eigenvalues are nonnegative, which methods such as EXTRA rely on."""
    lazy, plain = networks.grid(12, mixing="lazy-metropolis"), networks.grid(12)
    assert np.abs(lazy.W - (np.eye(12) + plain.W) / 2).max() < 1e-15
    assert lazy.lam_min >= 0 > plain.lam_min


@pytest.mark.parametrize(("hops", "lam"), [(1, 0.8727), (2, 0.6472), (3, 0.3740)])
def test_lambda_and_degree_of_the_papers_rings(hops, lam):
    """The paper's experiments: 10 clients, degrees 2, 4 and 6."""
    network = networks.ring(10, hops=hops)
    assert round(network.lam, 4) == lam
    assert network.degree.tolist() == [2 * hops] * 10
    assert network.neighbours[0] == tuple(sorted({h % 10 for k in range(1, hops + 1) for h in (k, -k)}))


@pytest.mark.parametrize("mixing", ["metropolis", "max-degree", "uniform"])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 10, 49, 200])
def test_lambda_of_the_complete_graph_is_exactly_zero(n, mixing):
    """W = J: any other value, such as 1e-16, would make the λ = 0 branches of the theory unreachable."""
    network = networks.complete(n, mixing=mixing)
    assert network.lam == 0.0
    assert network.gap == 1.0
    assert np.abs(network.W - 1 / n).max() < 1e-15 * n
    assert network.lam_min == pytest.approx(1.0 if n == 1 else 0.0, abs=0)


def spectrum(network: Network) -> np.ndarray:
    """All eigenvalues of W `[n]`, ascending."""
    return np.sort(np.linalg.eigvalsh(network.W))


@pytest.mark.parametrize(("n", "hops"), [(n, hops) for n in (3, 4, 7, 10, 25) for hops in (1, 2, 3) if 2 * hops < n])
def test_rings_have_the_eigenvalues_of_a_circulant_matrix(n, hops):
    """(1 + 2 Σ_h cos(2πkh/n)) / (2·hops + 1), as long as the hops do not overlap on the other side."""
    k = np.arange(n)
    expected = (1 + 2 * sum(np.cos(2 * np.pi * k * h / n) for h in range(1, hops + 1))) / (2 * hops + 1)
    network = networks.ring(n, hops)
    assert spectrum(network) == pytest.approx(np.sort(expected), abs=1e-13)
    assert network.eigenvalues == pytest.approx(np.sort(expected)[::-1], abs=1e-13)
    assert network.lam_min == pytest.approx(expected.min(), abs=1e-13)


@pytest.mark.parametrize(("n", "hops"), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (5, 9), (6, 3)])
def test_a_ring_whose_hops_reach_all_clients_is_complete(n, hops):
    """No client is counted from both sides, and none is its own neighbour."""
    assert networks.ring(n, hops).degree.tolist() == [n - 1] * n
    assert networks.ring(n, hops).lam == 0.0


@pytest.mark.parametrize("n", [3, 6, 11])
@pytest.mark.parametrize("mixing", ["metropolis", "max-degree"])
def test_star_has_the_eigenvalues_of_its_laplacian(n, mixing):
    """Those of the Laplacian L are 0, 1 (n - 2 times) and n, and both rules give I - L / n on a star."""
    network = networks.star(n, mixing=mixing)
    assert spectrum(network) == pytest.approx([0] + [1 - 1 / n] * (n - 2) + [1], abs=1e-13)
    assert network.degree.tolist() == [n - 1] + [1] * (n - 1)


@pytest.mark.parametrize("n", [3, 6, 11])
def test_path_has_the_eigenvalues_of_its_laplacian(n):
    """W = I - L / 3, and L has the eigenvalues 2 - 2 cos(πk/n)."""
    expected = 1 - (2 - 2 * np.cos(np.pi * np.arange(n) / n)) / 3
    assert spectrum(networks.path(n, mixing="max-degree")) == pytest.approx(np.sort(expected), abs=1e-13)


@pytest.mark.parametrize("dimensions", [0, 1, 2, 3, 5])
def test_hypercube_degree_and_spectrum(dimensions):
    """m = log2(n) neighbours; eigenvalue 1 - 2k / (m + 1) with multiplicity (m choose k)."""
    network = networks.hypercube(2**dimensions)
    assert network.degree.tolist() == [dimensions] * 2**dimensions
    expected = [1 - 2 * k / (dimensions + 1) for k in range(dimensions + 1) for _ in range(math.comb(dimensions, k))]
    assert spectrum(network) == pytest.approx(sorted(expected), abs=1e-13)


@pytest.mark.parametrize("n", [2, 4, 8, 16, 64])
def test_exponential_degree(n):
    """Offsets ± 1, 2, …, n/2, where ± n/2 is the same client: 2·log2(n) - 1 neighbours."""
    assert networks.exponential(n).degree.tolist() == [2 * int(math.log2(n)) - 1] * n


def test_exponential_includes_steps_beyond_half_the_circle():
    """For n = 7 a step of 4 is a step of -3: omitting steps beyond n/2 would lose those links."""
    assert networks.exponential(7).neighbours[0] == (1, 2, 3, 4, 5, 6)
    assert networks.exponential(11).neighbours[0] == (1, 2, 3, 4, 7, 8, 9, 10)


@pytest.mark.parametrize(("rows", "cols"), [(3, 3), (3, 5), (4, 4), (5, 3)])
def test_torus_is_4_regular_and_doubly_stochastic(rows, cols):
    """Missing wrap-around links or links counted twice change the degrees, the sums or the spectrum."""
    network = networks.torus(rows * cols, rows=rows, cols=cols)
    assert network.degree.tolist() == [4] * (rows * cols)
    assert np.abs(network.W.sum(axis=0) - 1).max() < 1e-15 * rows * cols
    assert np.abs(network.W.sum(axis=1) - 1).max() < 1e-15 * rows * cols
    r, c = np.meshgrid(np.arange(rows), np.arange(cols))
    expected = (1 + 2 * np.cos(2 * np.pi * r / rows) + 2 * np.cos(2 * np.pi * c / cols)) / 5
    assert spectrum(network) == pytest.approx(np.sort(expected.ravel()), abs=1e-13)


@pytest.mark.parametrize(("rows", "cols", "degree"), [(2, 2, 2), (2, 5, 3), (4, 2, 3), (1, 6, 2), (1, 2, 1), (1, 1, 0)])
def test_narrow_torus_has_no_double_edges(rows, cols, degree):
    """A side of 2 gives one link, not two; a side of 1 gives none."""
    assert networks.torus(rows * cols, rows=rows, cols=cols).degree.tolist() == [degree] * (rows * cols)


def test_grid_sides():
    """One side determines the other; the default is the most square grid, numbered row by row."""
    assert networks.grid(12).neighbours[5] == (1, 4, 6, 9)
    assert networks.grid(12, rows=2).neighbours[0] == (1, 6)
    assert networks.grid(12, cols=2).neighbours[0] == (1, 2)
    assert networks.grid(12, rows=12).edges == networks.grid(11).edges + 1 == 11
    degrees = Counter(networks.grid(20, rows=4, cols=5).degree.tolist())
    assert degrees == {2: 4, 3: 2 * 2 + 2 * 3, 4: 2 * 3}


def test_metropolis_row_of_client_0_sums_to_one():
    """Client 0 is a neighbour like any other: treated as false, it would be omitted from a sum."""
    for network in (networks.ring(10), networks.star(7), networks.path(4), networks.erdos_renyi(12, p=0.4)):
        assert abs(network.W[0].sum() - 1) < 1e-15
        assert all(network.W[0, j] > 0 and network.W[j, 0] > 0 for j in network.neighbours[0])


@pytest.mark.parametrize("make", [networks.erdos_renyi, networks.geometric])
def test_random_topologies_depend_on_their_seed_alone(make):
    """Global generators neither affect the graph nor are affected by it."""
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    first = make(30, seed=3)
    after = random.random(), np.random.random()  # noqa: NPY002
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    assert after == (random.random(), np.random.random())  # noqa: NPY002
    assert edge_set(first) == edge_set(make(30, seed=3))
    assert edge_set(first) != edge_set(make(30, seed=4))


def test_erdos_renyi_links_pairs_with_probability_p():
    """Over 60 graphs of 66 pairs each, the fraction of links is p within 4 standard deviations."""
    for p in (0.4, 0.7):
        fraction = np.mean([networks.erdos_renyi(12, p=p, seed=seed).edges / 66 for seed in range(60)])
        assert abs(fraction - p) < 4 * math.sqrt(p * (1 - p) / (60 * 66))
    assert networks.erdos_renyi(12, p=1.0).edges == 66
    assert networks.erdos_renyi(1, p=0.0).edges == 0


@pytest.mark.parametrize("make", [networks.erdos_renyi, networks.geometric])
@pytest.mark.parametrize("n", [2, 3, 10, 40])
def test_random_topologies_are_connected_by_default_for_any_seed(make, n):
    """The defaults must not fail for an unlucky seed: Network rejects a graph that is not connected."""
    for seed in range(25):
        assert make(n, seed=seed).lam < 1


def test_geometric_links_exactly_the_pairs_within_the_radius():
    """Checked pair by pair against the positions stored in the graph."""
    network = networks.geometric(25, radius=0.4, seed=2)
    position = [network.graph.nodes[i]["pos"] for i in range(25)]
    within = {(i, j) for j in range(25) for i in range(j) if math.dist(position[i], position[j]) <= 0.4}
    assert edge_set(network) == within
    assert 24 < len(within) < 300


def test_constructors_agree_with_configurations():
    """`dp.ring(10, hops=2)` equals `{ ring = { hops = 2 } }` and `{ ring = 2 }` of a configuration."""
    pairs = [
        (networks.ring(10, hops=2), {"ring": {"hops": 2}}),
        (networks.ring(10, hops=2), {"ring": 2}),
        (networks.grid(12, rows=2), {"grid": {"rows": 2}}),
        (networks.torus(12, cols=3), {"torus": {"cols": 3}}),
        (networks.erdos_renyi(12, p=0.5, seed=4), {"erdos-renyi": {"p": 0.5, "seed": 4}}),
        (networks.geometric(12, radius=0.6, seed=4), {"geometric": {"radius": 0.6, "seed": 4}}),
        *((getattr(networks, name.replace("-", "_"))(8), name) for name in TOPOLOGIES),
    ]
    for made, spec in pairs:
        built = networks.build(spec, "metropolis", made.n)
        assert (built.W == made.W).all()
        assert built.name == made.name
    assert networks.ring(10, hops=2).name == "ring(hops=2)"
    assert networks.ring(10, mixing="max-degree").mixing == "max-degree"
    assert str(networks.ring(10)) == "ring of 10 clients, 10 edges, metropolis weights, λ = 0.8727, gap = 0.1273"


def test_node_positions_are_copied():
    """The drawing needs the positions of a grid after Network has copied the graph."""
    assert as_client_graph(networks.grid(6).graph).nodes[5]["pos"] == (2.0, -1.0)


@pytest.mark.parametrize(("name", "n"), [*CASES, ("exponential", 4), ("torus", 4), ("grid", 2)])
def test_topologies_are_simple_graphs_on_0_to_n(name, n):
    """Before Network removes anything: networkx' ring of one client is a self-loop."""
    graph = TOPOLOGIES[name](n)
    assert sorted(graph.nodes) == list(range(n))
    assert nx.number_of_selfloops(graph) == 0
    assert not graph.is_directed()
    assert not graph.is_multigraph()


def test_a_ring_of_many_hops_has_no_self_loops():
    """n steps would lead back to the client itself."""
    for n in (1, 2, 5):
        assert nx.number_of_selfloops(TOPOLOGIES["ring"](n, hops=12)) == 0
