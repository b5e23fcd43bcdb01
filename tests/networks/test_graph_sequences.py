"""Networks with another graph in every phase, and directed edge lists: their weights, both engines, what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor

import depositum as dp
from depositum.channels import as_channel
from depositum.engines import EngineSettings, Loop, Simulator
from depositum.engines.distributed import DistributedEngine
from depositum.engines.mixing import MatrixMix
from depositum.networks import DirectedNetwork, DroppedLinks, GraphSequence, LostMessages, network_sequence
from tests.support import equations_imperfect as eq
from tests.support import method_problems as mp
from tests.support import rank_engines, small_runs
from tests.support.thread_communicator import ThreadCommunicator, run_threads

N = 4
#: Neither graph of the list is connected; together they are.
HALVES = [nx.Graph([(0, 1), (2, 3)]), nx.Graph([(1, 2)])]
HALVES[1].add_nodes_from(range(N))
ARCS = [[(0, 1), (2, 3)], [(1, 2), (3, 0), (0, 2)]]


def digraph(edges: list[tuple[int, int]], n: int = N) -> Any:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from(edges)
    return graph


UNDIRECTED = network_sequence(HALVES, N)
RANDOM = network_sequence([*HALVES, "ring"], N, order="random", seed=3)
DIRECTED = network_sequence([digraph(arcs) for arcs in ARCS], N)
ONE_PEER = dp.network("directed-one-peer-exponential", N)


def matrices(network: dp.Network, phase: int) -> tuple[Any, Any]:
    """R (or W) and C of a phase, dense."""
    sequence = network.sequence
    assert sequence is not None
    k = sequence.at(phase)
    R = sequence.weights[k].toarray()
    return R, sequence.push_weights[k].toarray() if network.directed else R


def test_each_phase_has_the_weights_of_its_graph() -> None:
    """Metropolis weights of each graph in turn; equal weights by the degrees of each digraph."""
    for phase in range(5):
        graph = HALVES[phase % 2]
        assert np.abs(UNDIRECTED.matrix(phase) - dp.networks.MIXINGS["metropolis"](graph).toarray()).max() == 0
        R, C = matrices(DIRECTED, phase)
        assert np.abs(R - eq.row_stochastic(N, ARCS[phase % 2])).max() <= 1e-16
        assert np.abs(C - eq.column_stochastic(N, ARCS[phase % 2])).max() <= 1e-16
    assert np.abs(UNDIRECTED.W - (UNDIRECTED.matrix(0) + UNDIRECTED.matrix(1)) / 2).max() <= 1e-16


def test_random_order_is_a_function_of_seed_and_phase() -> None:
    """Each graph is as likely; another seed, another order."""
    phases = torch.arange(3000)
    drawn = RANDOM.sequence.index(phases)  # type: ignore[union-attr]
    assert np.bincount(drawn) == pytest.approx([1000] * 3, abs=100)
    other = replace(RANDOM.sequence, seed=4)  # type: ignore[type-var]
    assert (other.index(phases) != drawn).any()  # type: ignore[union-attr]
    assert all(RANDOM.sequence.at(k) == int(drawn[k]) for k in range(9))  # type: ignore[union-attr]


def test_one_peer_directed_exponential() -> None:
    """log2 n phases compute the exact mean if n is a power of two; R = C is doubly stochastic in each."""
    for n, exact in ((8, True), (6, False)):
        network = dp.network("directed-one-peer-exponential", n)
        product = np.eye(n)
        for phase in range(network.window):
            R, C = matrices(network, phase)
            assert (R == C).all()
            assert (R.sum(0) == 1).all()
            assert R[(np.arange(n) + 2**phase) % n, np.arange(n)].tolist() == [0.5] * n
            product = R @ product
        assert (np.abs(product - 1 / n).max() <= 1e-15) == exact
        assert (network.effective_lam() == 0) == exact


def test_the_effective_lambda_is_that_of_the_product_over_a_window() -> None:
    """‖W^1 W^0 − J‖^(1/2) by singular values; λ itself of a network that does not change."""
    product = UNDIRECTED.matrix(1) @ UNDIRECTED.matrix(0)
    expected = np.linalg.svd(product - 1 / N, compute_uv=False)[0] ** 0.5
    assert UNDIRECTED.effective_lam() == pytest.approx(expected, abs=1e-14)
    assert f"effective λ = {expected:.4f} over 2 phases" in str(UNDIRECTED)
    ring = dp.ring(9)
    assert ring.effective_lam() == pytest.approx(ring.lam, abs=1e-14)
    assert "effective" not in str(ring)
    assert 0 < dp.network("ring", 6, drop=0.3).effective_lam(20) < 1
    assert 0 < DIRECTED.effective_lam() < 1
    radius = float(np.abs(np.linalg.eigvals(product - 1 / N)).max()) ** 0.5
    assert UNDIRECTED.effective_lam(4000) == pytest.approx(radius, rel=1e-3)  # the product itself is below 1e-600


@pytest.mark.parametrize("network", [UNDIRECTED, RANDOM, DIRECTED, ONE_PEER], ids=["periodic", "random", "arcs", "one"])
def test_a_mixing_is_a_product_with_the_matrices_of_the_phase(network: dp.Network) -> None:
    mix = MatrixMix(network, 2, torch.device("cpu"), torch.float64)
    z = torch.randn(2 * N, 3, dtype=torch.float64)
    for phase in range(4):
        mix.begin(torch.tensor(phase))
        R, C = (torch.block_diag(*[torch.tensor(M)] * 2) for M in matrices(network, phase))
        links = ((R > 0) & ~torch.eye(2 * N, dtype=torch.bool)).double()
        assert (mix(z) - R @ z).abs().max() <= 1e-15
        assert (mix.push(z) - C @ z).abs().max() <= 1e-15
        assert (mix.neighbours(z) - links @ z).abs().max() <= 1e-15
        assert mix.degree[:, 0].tolist() == links.sum(0).tolist()
        assert mix.mean_degree(phase) == links.sum() / (2 * N)


STEPS, SETTINGS = 7, EngineSettings("cpu", "float64", backend="loop", compile="never")
CASES = [
    ("depositum", UNDIRECTED, "exact"),
    ("sppdm", RANDOM, "exact"),
    ("dsgt", RANDOM, "float16"),
    ("depositum-directed", DIRECTED, "sparse"),
    ("push-pull", ONE_PEER, "exact"),
]


@pytest.mark.parametrize(("name", "network", "channel"), CASES)
def test_both_engines_give_one_trajectory_and_the_same_bytes(name: str, network: dp.Network, channel: str) -> None:
    """Who sends whom what in which phase, among threads and in the simulator, step by step and in place."""
    method = dp.algorithm(name)
    problem = rank_engines.problem(N, composite=method.handles != "smooth")
    period = 1 if name == "sppdm" else 2
    arguments: dict[str, Any] = {"period": period, "batch_size": 4, "settings": SETTINGS}
    arguments["channel"] = as_channel(channel)
    sim, fast = (Simulator(problem, network, method, **arguments) for _ in range(2))
    for each in (sim, fast):
        each.start()
    for _ in range(STEPS):
        sim.step()
    fast.advance(STEPS)
    assert torch.equal(fast.state.x, sim.state.x)

    def distribute(communicator: ThreadCommunicator) -> tuple[Tensor, float, int]:
        engine = DistributedEngine(problem, network, method, communicator, **arguments)
        engine.start()
        engine.advance(STEPS)
        sent = sum(cost.bytes_sent for cost in Loop(engine, STEPS)._costs())
        return engine.state.x.view(len(rank_engines.SEEDS), -1), sent, communicator.bytes_posted

    parts = run_threads(N, distribute)
    found = torch.stack([x for x, *_ in parts], dim=1).flatten(0, 1)
    assert (found - sim.state.x).abs().max() <= 1e-12
    expected = sum(cost.bytes_sent for cost in Loop(sim, STEPS)._costs())
    assert [sent for _, sent, _ in parts] == pytest.approx([expected] * N)
    averaged = sim.state.x.shape[1] * 8 * len(rank_engines.SEEDS) if name.startswith("depositum") else 0
    assert sum(posted for *_, posted in parts) == pytest.approx((expected - averaged) * N)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["depositum", "depositum-directed"])
def test_it_is_compiled(name: str) -> None:
    network = UNDIRECTED if name == "depositum" else DIRECTED
    problem, arguments = rank_engines.problem(N), {"period": 2, "batch_size": 4}
    plain, fast = (
        Simulator(problem, network, dp.algorithm(name), settings=replace(SETTINGS, compile=c), **arguments)  # type: ignore[arg-type]
        for c in ("never", "always")
    )
    for each in (plain, fast):
        each.start()
        each.advance(STEPS)
    for key, value in plain.snapshot().items():
        torch.testing.assert_close(fast.snapshot()[key], value, rtol=1e-9, atol=1e-11)


def test_every_iterate_is_that_of_the_reference() -> None:
    """φ⁺ = C^t φ, x⁺ = R^t prox(x − α y/φ), y⁺ = C^t v, with the weights of each phase in NumPy."""
    arcs = [[(i, (i + step) % mp.N) for i in range(mp.N)] + extra for step, extra in ((1, []), (2, [(0, 3)]), (5, []))]

    class Sequence(eq.Directed):
        def at(self, phase: int) -> None:
            self.R, self.C = (f(mp.N, arcs[phase % 3]) for f in (eq.row_stochastic, eq.column_stochastic))
            self.W = self.R

        def models(self, z: eq.Array, phase: int) -> eq.Array:
            self.at(phase)
            return super().models(z, phase)

    network = network_sequence([digraph(edges, mp.N) for edges in arcs], mp.N)
    run = mp.run(dp.algorithm("depositum-directed", alpha=0.05, gamma=0.4, start="local"), network=network, period=2)
    reference = eq.Method(mp.gradients, lambda v: mp.soft(v, 0.05 * mp.BETA), 0.05, 0.4, "polyak", 2)
    links = Sequence(*(f(mp.N, arcs[0]) for f in (eq.row_stochastic, eq.column_stochastic)))
    for _, state in zip(range(30), reference.run(links, reference.start(np.tile(mp.X0, (mp.N, 1)))), strict=False):
        run.advance(1)
        for name in ("x", "y", "nu", "phi"):
            assert np.abs(getattr(run, name) - getattr(state, name)).max() <= 1e-12, name


def test_networkx_graphs_are_numbered_by_their_labels_and_two_way_edges_are_undirected() -> None:
    """As a single graph would be, whether one of the others has one-way edges or not."""
    circle = nx.DiGraph([("a", "b"), ("b", "c"), ("c", "a")])
    line = nx.Graph([("a", "b"), ("b", "c")])
    made = network_sequence([circle, line.to_directed()], 3)
    assert isinstance(made, DirectedNetwork)
    assert made.listeners == ((1,), (0, 2), (0, 1))
    assert not network_sequence([line.to_directed(), line], 3).directed


# In files


def test_edge_lists_directed_and_in_a_sequence(tmp_path: Path) -> None:
    """Paths are relative to the configuration; a graph of a sequence may leave clients without an edge."""
    (tmp_path / "a.edges").write_text("# first\n0 1\n2, 3\n")
    (tmp_path / "b.edges").write_text("1 2  # only one\n")
    ring = "0 1\n1 2\n2 3\n3 0\n0 2\n"
    (tmp_path / "ring.edges").write_text(ring)
    topologies: list[Any] = [
        {"directed-file": "ring.edges"},
        {"sequence": {"graphs": ["a.edges", "b.edges"]}},
        {"sequence": {"graphs": [{"directed-file": "ring.edges"}, "a.edges"], "order": "random", "seed": 1}},
    ]
    built = [dp.networks.build(topology, "metropolis", N, tmp_path) for topology in topologies]
    assert isinstance(built[0], DirectedNetwork)
    assert built[0].listeners == ((1, 2), (2,), (3,), (0,))
    assert built[0].name == "ring.edges"
    assert all((built[1].matrix(k) == UNDIRECTED.matrix(k)).all() for k in range(2))
    assert built[2].directed
    links = {"network": {"topology": topologies[2]}, "algorithm": {"name": "depositum-directed"}}
    file = small_runs.write_config(tmp_path / "run.toml", **links)  # type: ignore[arg-type]
    small_runs.train(file, tmp_path / "straight", overrides=("run.steps=12",))
    small_runs.train(file, tmp_path / "parts", overrides=("run.steps=6",))
    small_runs.train(file, tmp_path / "parts", overrides=("run.steps=12",))
    assert small_runs.outcome(tmp_path / "straight") == small_runs.outcome(tmp_path / "parts")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: network_sequence([HALVES[0], HALVES[0]], N), "^topology: .* has 2 components"),
        (lambda: network_sequence([digraph(ARCS[0])], N), "^topology: .* is not strongly connected"),
        (lambda: network_sequence([], N), "^graphs: none given"),
        (lambda: network_sequence(["ring"], N, order="cyclic"), "^order: 'cyclic' given"),  # type: ignore[arg-type]
        (lambda: network_sequence(["ring", "rign"], N), r"^graphs\[1\]: 'rign' is not a topology; .* 'ring'"),
        (lambda: network_sequence(["one-peer-exponential"], N), r"^graphs\[0\]: 'one-peer-exponential' given; a graph"),
        (lambda: network_sequence(["directed-one-peer-exponential"], N), r"^graphs\[0\]: 'directed-one-peer-exp"),
        (lambda: network_sequence([{"sequence": ["ring"]}], N), r"^graphs\[0\]: a sequence given"),
        (lambda: network_sequence(["ring", "directed-ring"], N, mixing="max-degree"), "^mixing: 'max-degree' given"),
        (lambda: network_sequence(["directed-ring"], N, mixing=np.eye(4)), "^mixing: a ndarray .* given, but .* is di"),
        (lambda: network_sequence(["ring"], N, mixing="metropolos"), "^mixing: .* did you mean 'metropolis'"),
        (lambda: network_sequence(None, N), "^graphs: None given; a list of graphs is needed"),  # type: ignore[arg-type]
        (lambda: network_sequence(["ring"], N, mixing=np.eye(4)), "^mixing: .* a sequence needs a rule"),
        (lambda: dp.network({"sequence": {"graphs": ["ring"]}}, N, drop=0.1), "^drop: given, but each phase has"),
        (lambda: dp.network({"sequence": {"graphs": ["ring"]}}, N, late=1), "^late: given, but the links of this net"),
        (lambda: dp.network({"sequence": {"graph": ["ring"]}}, N), "^topology.sequence.graph: unknown key; .*graphs"),
        (
            lambda: dp.network({"sequence": {"graphs": ["ring", "rign"]}}, N),
            r"^topology.sequence.graphs\[1\]: 'rign' is not a topology; .*did you mean 'ring'",
        ),
        (
            lambda: dp.network({"sequence": {"graphs": ["ring", {"grid": {"rows": 3}}]}}, N),
            r"^topology.sequence.graphs\[1\].grid",
        ),
        (lambda: network_sequence("ring", N), "^graphs: 'ring' given; a list of graphs is needed"),
        (
            lambda: network_sequence([digraph(ARCS[0]), digraph([(0, 1)], 3)], N),
            "^graphs: networkx graphs with different",
        ),
        (
            lambda: network_sequence([digraph([(0, 1)], 3)], N),
            r"^graphs\[0\]: a digraph of 3 nodes given for 4 clients",
        ),
        (lambda: dp.network("directed-rin", N), "^topology: .*did you mean 'directed-ring'"),
        (lambda: dp.network("sequences", N), "^topology: .*did you mean 'sequence'"),
        (
            lambda: dp.network({"directed-file": "missing.edges"}, N),
            r"^topology.directed-file.path: missing.edges does not exist$",
        ),
        (
            lambda: dp.network({"sequence": {"graphs": ["ring", {"directed-file": "missing.edges"}]}}, N),
            r"^topology.sequence.graphs\[1\].directed-file.path: missing.edges does not exist$",
        ),
        (lambda: dp.network("directed-file", N), r"^topology.directed-file.path: missing"),
        (lambda: GraphSequence(UNDIRECTED.sequence.weights, seed=0.5), "^seed: 0.5 given"),  # type: ignore
        (lambda: network_sequence(["ring"], N, seed=1 << 63), "^seed: 9223372036854775808 given; .* 64 bits"),
        (lambda: network_sequence(["ring"], N, seed=True), "^seed: True given"),
        (lambda: LostMessages(0.1, seed=1 << 63), "^seed: 9223372036854775808 given"),
        (lambda: DroppedLinks(0.1, seed=1.5), "^seed: 1.5 given"),  # type: ignore[arg-type]
    ],
)
def test_sequences_that_do_not_work_are_refused(make: Any, message: str) -> None:
    with pytest.raises(dp.ConfigError, match=message):
        make()


def test_methods_for_undirected_networks_refuse_directed_sequences_and_copies_need_fixed_links() -> None:
    data = [(torch.ones(4, 3), torch.arange(4) % 2) for _ in range(N)]

    def fit(**arguments: Any) -> None:
        dp.fit(torch.nn.Linear(3, 2), data, steps=1, progress=False, **arguments)

    with pytest.raises(dp.ConfigError, match="^network: directed, but 'depositum' mixes"):
        fit(network=DIRECTED)
    with pytest.raises(dp.ConfigError, match="^channel: 'top-k' given, but the links of this network come and go"):
        fit(network=UNDIRECTED, channel={"top-k": 0.5})
