"""Directed networks: their weights, their spectral quantities, and what is refused."""

from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch

import depositum as dp
from depositum.networks import DIRECTED_TOPOLOGIES, DirectedNetwork, directed_exponential, directed_random
from tests.support import equations_imperfect as eq

EDGES = [*((i, (i + 1) % 6) for i in range(6)), (0, 3), (2, 5), (4, 1)]


def test_default_weights_are_those_of_the_reference() -> None:
    """R by in-degrees, C by out-degrees, against matrices built edge by edge."""
    network = dp.network(nx.DiGraph(EDGES), 6)
    assert isinstance(network, DirectedNetwork)
    assert np.abs(network.R - eq.row_stochastic(6, EDGES)).max() <= 1e-16
    assert np.abs(network.C - eq.column_stochastic(6, EDGES)).max() <= 1e-16
    assert network.edges == len(EDGES)
    assert network.listeners[0] == (1, 3)
    assert network.neighbours[3] == (0, 2)
    assert network.degree.tolist() == [sum(a == i for a, _ in EDGES) for i in range(6)]


@pytest.mark.parametrize("n", [1, 2, 5, 8])
@pytest.mark.parametrize("name", [name for name in DIRECTED_TOPOLOGIES if name != "directed-file"])
def test_every_directed_topology_is_strongly_connected_and_stochastic(name: str, n: int) -> None:
    network = dp.network({name: {"p": 0.5}} if name == "directed-random" else name, n)
    assert isinstance(network, DirectedNetwork)
    assert network.n == n
    assert np.abs(network.R.sum(1) - 1).max() <= 1e-14
    assert np.abs(network.C.sum(0) - 1).max() <= 1e-14
    assert (np.linalg.matrix_power(network.R, n) > 0).all()
    assert ((network.R > 0) == (network.C > 0)).all()
    assert 0 <= network.lam < 1


def test_spectral_quantities() -> None:
    """φ converges to n π, at the rate of the second modulus; on regular digraphs φ stays 1."""
    network = directed_random(7, 0.3, seed=4)
    phi = np.linalg.matrix_power(network.C, 400) @ np.ones(7)
    assert np.abs(phi - 7 * network.perron).max() <= 1e-12
    assert phi.max() - phi.min() > 0.1
    moduli = [np.sort(np.abs(np.linalg.eigvals(M)))[-2] for M in (network.R, network.C)]
    assert network.lam == pytest.approx(max(moduli))
    assert np.abs(directed_exponential(8).perron - 1 / 8).max() <= 1e-14
    assert "directed edges" in str(network)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dp.network(nx.DiGraph([(0, 1), (1, 2)]), 3), "^topology: .* is not strongly connected: clients 0"),
        (lambda: dp.network(nx.DiGraph(EDGES), 5), "^topology: a digraph of 6 nodes given for 5 clients"),
        (lambda: dp.network("directed-ring", 5, mixing="lazy-metropolis"), "^mixing: 'lazy-metropolis' given, but"),
        (lambda: dp.network("directed-ring", 5, drop=0.1), "^drop: given, but links of a directed network have one"),
        (lambda: dp.network({"directed-random": {"q": 1}}, 5), "^topology.directed-random.q: unknown key"),
        (lambda: dp.network({"directed-random": {"p": 0.0}}, 5), "^topology.directed-random.p: 0 given, but none of"),
        (
            lambda: DirectedNetwork.from_digraph(nx.DiGraph([(0, 1), (1, 0)]), C=np.array([[0.5, 0.5], [0.4, 0.5]])),
            "^C: column 0 sums to 0.9; it must sum to 1",
        ),
        (
            lambda: DirectedNetwork.from_digraph(nx.DiGraph([(0, 1), (1, 0)]), R=np.eye(2)),
            r"^R: \[0, 1\] = 0 given; it must be > 0",
        ),
    ],
)
def test_networks_that_do_not_work_are_refused(make: object, message: str) -> None:
    with pytest.raises(dp.ConfigError, match=message):
        make()  # type: ignore[operator]


def test_a_digraph_with_all_edges_in_both_directions_is_undirected() -> None:
    assert not dp.network(nx.DiGraph(nx.cycle_graph(5)), 5).directed


@pytest.mark.parametrize("name", ["depositum", "dsgt", "gut", "d-psgd", "extra", "prox-dasa-gt"])
def test_methods_that_are_wrong_on_a_digraph_refuse_it(name: str) -> None:
    data = [(torch.ones(4, 3), torch.arange(4) % 2) for _ in range(6)]
    with pytest.raises(dp.ConfigError, match=f"^network: directed, but '{name}' mixes with a W .*'depositum-directed'"):
        dp.fit(torch.nn.Linear(3, 2), data, algorithm=name, network=nx.DiGraph(EDGES), steps=1, progress=False)  # type: ignore[arg-type]


def test_a_directed_network_in_a_file_and_in_python(tmp_path: Path) -> None:
    """By name, as a digraph, and with a channel; the folder of a run can be resumed."""
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(8, 3)).astype(np.float32), rng.integers(0, 2, 8)) for _ in range(6)]
    for network in ("directed-exponential", nx.DiGraph(EDGES)):
        out = tmp_path / str(type(network).__name__)
        arguments = {"algorithm": "depositum-directed", "network": network, "channel": {"top-k": 0.5}, "out": out}
        model = torch.nn.Linear(3, 2)
        dp.fit(model, data, steps=4, progress=False, **arguments)  # type: ignore[arg-type]
        result = dp.fit(model, data, steps=8, progress=False, **arguments)  # type: ignore[arg-type]
        assert result.history["iteration"].max() == 8
