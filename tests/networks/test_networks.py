"""Every topology with every mixing is a network of Assumption 2, with the spectrum theory says it has."""

import math
import random
from collections import Counter

import networkx as nx
import numpy as np
import pytest

from depositum import networks
from depositum.errors import NetworkError
from depositum.networks import MIXINGS, TOPOLOGIES, Network
from depositum.networks.graphs import as_clients

SIZES = (1, 2, 3, 8, 10, 16)
# Topologies that not every number of clients can have; every other one is tested at every size.
VALID = {"hypercube": lambda n: n in (1, 2, 8, 16)}
# The one-peer network has weights of its own: test_networks_changing.py.
STATIC = [name for name in TOPOLOGIES if name != "one-peer-exponential"]
CASES = [(name, n) for name in STATIC for n in SIZES if VALID.get(name, lambda n: True)(n)]


def assert_assumption_2(W: np.ndarray, linked: np.ndarray) -> None:
    """Assumption 2 by dense NumPy alone, against a boolean adjacency matrix found some other way."""
    n = len(linked)
    assert W.shape == (n, n)
    assert W.dtype == np.float64
    assert (W == W.T).all()
    assert np.abs(W.sum(axis=1) - 1).max() <= 1e-15 * n
    assert np.abs(W.sum(axis=0) - 1).max() <= 1e-15 * n
    assert (np.diag(W) > 0).all()
    off = ~np.eye(n, dtype=bool)
    assert (W[linked & off] > 0).all()
    assert (W[~linked & off] == 0).all()
    assert (np.linalg.matrix_power((W > 0).astype(float) / n, max(n - 1, 1)) > 0).all(), "not connected"


def adjacency(name: str, n: int) -> np.ndarray | None:
    """Who is linked with whom, from the definition of each topology; None for a random one."""
    i, j = np.indices((n, n))
    distance = np.minimum((i - j) % n, (j - i) % n)
    rows = max(k for k in range(1, n + 1) if n % k == 0 and k * k <= n)
    cols = n // rows
    down, across = np.abs(i // cols - j // cols), np.abs(i % cols - j % cols)
    wrapped_down, wrapped_across = np.minimum(down, rows - down), np.minimum(across, cols - across)
    powers = [2**k for k in range(10) if 2**k < n]
    rules = {
        "ring": distance == 1,
        "complete": i != j,
        "star": (i == 0) ^ (j == 0),
        "path": np.abs(i - j) == 1,
        "grid": down + across == 1,
        "torus": wrapped_down + wrapped_across == 1,
        "hypercube": np.bitwise_count(i ^ j) == 1,
        "exponential": np.isin((i - j) % n, powers) | np.isin((j - i) % n, powers),
    }
    return rules.get(name)


@pytest.mark.parametrize("mixing", list(MIXINGS))
@pytest.mark.parametrize(("name", "n"), CASES)
def test_every_topology_with_every_mixing_satisfies_assumption_2(name, n, mixing):
    """Broken by any wrong weight or edge: double edges of a 2-wide torus, self-loops at n = 1, a row for node 0."""
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
def test_weights_are_those_of_their_definition(name, n):
    """Each weight by a plain double loop: a swapped max and min, or a missing 1 +, changes some weight."""
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
    """The definition (I + W) / 2 itself; its spectrum is then never negative, which EXTRA-like methods rely on."""
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
    """W is then J: anything but 0.0, such as 1e-16, would make theory's λ = 0 branches unreachable."""
    network = networks.complete(n, mixing=mixing)
    assert network.lam == 0.0
    assert network.gap == 1.0
    assert np.abs(network.W - 1 / n).max() < 1e-15 * n
    assert network.lam_min == pytest.approx(1.0 if n == 1 else 0.0, abs=0)


def spectrum(network: Network) -> np.ndarray:
    return np.sort(np.linalg.eigvalsh(network.W))


@pytest.mark.parametrize(("n", "hops"), [(n, hops) for n in (3, 4, 7, 10, 25) for hops in (1, 2, 3) if 2 * hops < n])
def test_rings_have_the_eigenvalues_of_a_circulant_matrix(n, hops):
    """(1 + 2 Σ_h cos(2πkh/n)) / (2·hops + 1), while the hops do not yet meet on the other side."""
    k = np.arange(n)
    expected = (1 + 2 * sum(np.cos(2 * np.pi * k * h / n) for h in range(1, hops + 1))) / (2 * hops + 1)
    network = networks.ring(n, hops)
    assert spectrum(network) == pytest.approx(np.sort(expected), abs=1e-13)
    assert network.eigenvalues == pytest.approx(np.sort(expected)[::-1], abs=1e-13)
    assert network.lam_min == pytest.approx(expected.min(), abs=1e-13)


@pytest.mark.parametrize(("n", "hops"), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (5, 9), (6, 3)])
def test_a_ring_whose_hops_reach_everybody_is_complete(n, hops):
    """No client is counted twice from both sides, and nobody is its own neighbour."""
    assert networks.ring(n, hops).degree.tolist() == [n - 1] * n
    assert networks.ring(n, hops).lam == 0.0


@pytest.mark.parametrize("n", [3, 6, 11])
@pytest.mark.parametrize("mixing", ["metropolis", "max-degree"])
def test_star_has_the_eigenvalues_of_its_laplacian(n, mixing):
    """The Laplacian's are 0, 1 (n - 2 times) and n, and both rules are I - L / n on a star."""
    network = networks.star(n, mixing=mixing)
    assert spectrum(network) == pytest.approx([0] + [1 - 1 / n] * (n - 2) + [1], abs=1e-13)
    assert network.degree.tolist() == [n - 1] + [1] * (n - 1)


@pytest.mark.parametrize("n", [3, 6, 11])
def test_path_has_the_eigenvalues_of_its_laplacian(n):
    """I - L / 3, with 2 - 2 cos(πk/n) for L."""
    expected = 1 - (2 - 2 * np.cos(np.pi * np.arange(n) / n)) / 3
    assert spectrum(networks.path(n, mixing="max-degree")) == pytest.approx(np.sort(expected), abs=1e-13)


@pytest.mark.parametrize("dimensions", [0, 1, 2, 3, 5])
def test_hypercube_degree_and_spectrum(dimensions):
    """log2(n) neighbours; eigenvalue 1 - 2k / (m + 1) as often as there are k of m digits."""
    network = networks.hypercube(2**dimensions)
    assert network.degree.tolist() == [dimensions] * 2**dimensions
    expected = [1 - 2 * k / (dimensions + 1) for k in range(dimensions + 1) for _ in range(math.comb(dimensions, k))]
    assert spectrum(network) == pytest.approx(sorted(expected), abs=1e-13)


@pytest.mark.parametrize("n", [2, 4, 8, 16, 64])
def test_exponential_degree(n):
    """Offsets 1, 2, …, n/2 both ways; n/2 is the same both ways, so 2·log2(n) - 1 neighbours."""
    assert networks.exponential(n).degree.tolist() == [2 * int(math.log2(n)) - 1] * n


def test_exponential_takes_the_long_steps_of_an_odd_number():
    """For n = 7 the step of 4 is a step of 3 back: leaving out steps beyond n/2 would lose those links."""
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
    """A side of 2 gives one link and not two; a side of 1 gives none."""
    assert networks.torus(rows * cols, rows=rows, cols=cols).degree.tolist() == [degree] * (rows * cols)


def test_grid_sides():
    """One side gives the other; left alone, the most square one, numbered row by row."""
    assert networks.grid(12).neighbours[5] == (1, 4, 6, 9)
    assert networks.grid(12, rows=2).neighbours[0] == (1, 6)
    assert networks.grid(12, cols=2).neighbours[0] == (1, 2)
    assert networks.grid(12, rows=12).edges == networks.grid(11).edges + 1 == 11
    degrees = Counter(networks.grid(20, rows=4, cols=5).degree.tolist())
    assert degrees == {2: 4, 3: 2 * 2 + 2 * 3, 4: 2 * 3}


def test_metropolis_row_of_client_0_sums_to_one():
    """Client 0 is a neighbour like any other: taken as false, it would be left out of a sum."""
    for network in (networks.ring(10), networks.star(7), networks.path(4), networks.erdos_renyi(12, p=0.4)):
        assert abs(network.W[0].sum() - 1) < 1e-15
        assert all(network.W[0, j] > 0 and network.W[j, 0] > 0 for j in network.neighbours[0])


def edge_set(network: Network) -> set[tuple[int, ...]]:
    return {tuple(sorted(edge)) for edge in network.graph.edges}


@pytest.mark.parametrize("make", [networks.erdos_renyi, networks.geometric])
def test_random_topologies_depend_on_their_seed_alone(make):
    """Global generators neither change the graph nor are changed by it."""
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
    """Over 60 graphs of 66 pairs each, the share of links is p to within 4 standard deviations."""
    for p in (0.4, 0.7):
        share = np.mean([networks.erdos_renyi(12, p=p, seed=seed).edges / 66 for seed in range(60)])
        assert abs(share - p) < 4 * math.sqrt(p * (1 - p) / (60 * 66))
    assert networks.erdos_renyi(12, p=1.0).edges == 66
    assert networks.erdos_renyi(1, p=0.0).edges == 0


@pytest.mark.parametrize("make", [networks.erdos_renyi, networks.geometric])
@pytest.mark.parametrize("n", [2, 3, 10, 40])
def test_random_topologies_are_connected_by_default_for_any_seed(make, n):
    """The defaults must not fail for an unlucky seed: Network refuses a graph that is not connected."""
    for seed in range(25):
        assert make(n, seed=seed).lam < 1


def test_geometric_links_exactly_the_pairs_within_the_radius():
    """From the places the graph reports, by a plain loop."""
    network = networks.geometric(25, radius=0.4, seed=2)
    place = [network.graph.nodes[i]["pos"] for i in range(25)]
    within = {(i, j) for j in range(25) for i in range(j) if math.dist(place[i], place[j]) <= 0.4}
    assert edge_set(network) == within
    assert 24 < len(within) < 300


def test_constructors_agree_with_specs():
    """`dp.ring(10, hops=2)` and the config's `{ ring = { hops = 2 } }` or `{ ring = 2 }` are one network."""
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


def test_as_clients_keeps_places():
    """A grid's places survive the copy that Network makes: the drawing needs them."""
    assert as_clients(networks.grid(6).graph).nodes[5]["pos"] == (2.0, -1.0)


@pytest.mark.parametrize(("name", "n"), [*CASES, ("exponential", 4), ("torus", 4), ("grid", 2)])
def test_graphs_themselves_are_simple_on_0_to_n(name, n):
    """Before Network tidies anything up: a ring of one client made by networkx alone is a self-loop."""
    graph = TOPOLOGIES[name](n)
    assert sorted(graph.nodes) == list(range(n))
    assert nx.number_of_selfloops(graph) == 0
    assert not graph.is_directed()
    assert not graph.is_multigraph()


def test_many_hops_are_simple_too():
    """Steps all the way round lead back to oneself."""
    for n in (1, 2, 5):
        assert nx.number_of_selfloops(TOPOLOGIES["ring"](n, hops=12)) == 0
