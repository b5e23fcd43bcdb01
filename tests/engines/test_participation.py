"""Clients that rest for a while, with neighbours and with a server: rows, trajectories, bytes, and what is refused."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import depositum as dp
from depositum.algorithms import ALGORITHMS
from depositum.channels import as_channel
from depositum.engines import EngineSettings, Loop, Simulator
from depositum.engines.distributed import DistributedEngine
from depositum.errors import ConfigError
from depositum.networks import DirectedNetwork, Participation, as_participation
from depositum.problem import from_client_data
from depositum.problem.row_model import RowModel
from tests.support import equations_cohorts, equations_imperfect
from tests.support.method_problems import BETA, SOLUTION, X0, Array, N, gradients, problem, problem_kind, soft
from tests.support.rank_engines import SEEDS, setting
from tests.support.rank_engines import problem as problem_of_ranks
from tests.support.thread_communicator import ThreadCommunicator, run_threads

RING = dp.ring(N, mixing="lazy-metropolis")
SERVER = [name for name in ALGORITHMS if dp.algorithm(name).server]
WITH_COHORTS = [name for name in SERVER if dp.algorithm(name).served]
UNDIRECTED = [name for name in ALGORITHMS if not dp.algorithm(name).server and not dp.algorithm(name).directed]


def settings(participation: Participation | None, **other: Any) -> EngineSettings:
    return EngineSettings(
        "cpu", "float64", backend="loop", participation=participation, **{"compile": "never", **other}
    )


def simulate(method: dp.Algorithm, participation: Participation | None, steps: int, period: int = 1) -> Simulator:
    """Full gradients of the problem that the method is for."""
    network = None if method.server else RING
    sim = Simulator(problem(problem_kind(method)), network, method, period=period, settings=settings(participation))
    sim.start()
    sim.watch(steps)
    for _ in range(steps):
        sim.advance(1)
    return sim


def cohorts(participation: Participation, n: int = N) -> Iterator[list[int]]:
    phase = 0
    while True:
        yield participation.members(torch.tensor(phase), n).tolist()
        phase += 1


# Who takes part


def test_a_cohort_is_drawn_without_replacement_and_all_clients_have_the_same_chance() -> None:
    participation = Participation(cohort=3)
    drawn = list(islice(cohorts(participation, 10), 120))
    assert all(len(set(members)) == 3 and members == sorted(members) for members in drawn)
    counts = np.bincount(np.concatenate(drawn), minlength=10)
    assert np.abs(counts / 120 - 0.3).max() < 0.17  # four standard deviations
    assert Participation(share=0.3).members(torch.tensor(5), 10).tolist() == drawn[5]
    assert Participation(share=0.01).size(10) == 1
    kept = list(islice(cohorts(Participation(cohort=3, phases=4), 10), 8))
    assert kept == [kept[0]] * 4 + [kept[4]] * 4
    assert drawn[:8] != list(islice(cohorts(Participation(cohort=3, seed=1), 10), 8))


@pytest.mark.parametrize("phase", range(3))
def test_the_matrix_of_a_phase_is_doubly_stochastic_and_the_identity_for_those_that_rest(phase: int) -> None:
    participation = Participation(cohort=4)
    network = dp.Network(RING.graph, RING.weights, participation=participation)
    W, members = network.matrix(phase), participation.members(torch.tensor(phase), N).tolist()
    assert (W == W.T).all()
    assert np.abs(W.sum(0) - 1).max() < 1e-15
    for i in set(range(N)) - set(members):
        assert (W[i] == np.eye(N)[i]).all()
    between = np.ix_(members, members)
    off = ~np.eye(4, dtype=bool)
    assert (W[between][off] == RING.W[between][off]).all()


# Against independent references


@pytest.mark.parametrize(("period", "momentum"), [(1, "nesterov"), (5, "polyak")])
def test_depositum_with_clients_that_rest_follows_the_equations(period: int, momentum: Any) -> None:
    """To 1e-12, with J y = J ν; `tests/algorithms/test_imperfect_reference.py` shows that they reach the optimum."""
    participation, alpha = Participation(cohort=4), 0.02

    def rests(phase: int) -> Any:
        return ~np.isin(np.arange(N), participation.members(torch.tensor(phase), N).numpy())

    def matrix(phase: int) -> Array:
        absent = rests(phase)
        return equations_imperfect.with_missing_links(RING.W, lambda i, j, _: not (absent[i] or absent[j]), phase)

    method = equations_imperfect.Method(gradients, lambda v: soft(v, alpha * BETA), alpha, 0.5, momentum, period)
    start = method.start(np.tile(X0, (N, 1)))
    *_, expected = islice(method.run(equations_imperfect.Varying(matrix, rests), start), 40)
    sim = simulate(dp.Depositum(alpha, 0.5, momentum, "local"), participation, 40, period)
    for name in ("x", "y", "nu"):
        assert np.abs(getattr(sim.state, name).numpy() - getattr(expected, name)).max() < 1e-12
    assert float((sim.state.y - sim.state.nu).mean(0).abs().max()) < 1e-12


@pytest.mark.parametrize("period", [1, 5])
@pytest.mark.parametrize(
    ("method", "reference"),
    [
        (dp.algorithm("fedavg", alpha=0.02), lambda S, K: equations_cohorts.fedavg(S, K, 0.02)),
        (dp.algorithm("fedmid", alpha=0.02), lambda S, K: equations_cohorts.fedmid(S, K, 0.02)),
        (dp.algorithm("scaffold", alpha=0.02), lambda S, K: equations_cohorts.scaffold(S, K, 0.02)),
        (
            dp.algorithm("feddr", alpha=0.05, eta=0.3, relaxation=1.5),
            lambda S, K: equations_cohorts.feddr(S, K, 0.05, 0.3, 1.5),
        ),
        (dp.algorithm("fedadmm", alpha=0.05, c=2.0), lambda S, K: equations_cohorts.fedadmm(S, K, 0.05, 2.0)),
    ],
    ids=["fedavg", "fedmid", "scaffold", "feddr", "fedadmm"],
)
def test_a_method_with_cohorts_follows_its_equations(method: dp.Algorithm, reference: Any, period: int) -> None:
    participation = Participation(cohort=2)
    sim = simulate(method, participation, 12 * period, period)
    *_, expected = islice(reference(cohorts(participation), period), 12)
    assert np.abs(sim.state.x.numpy() - expected).max() < 1e-13


@pytest.mark.parametrize(
    ("reference", "kind"),
    [
        (lambda S: equations_cohorts.scaffold(S, 2, 0.02), "ridge"),
        (lambda S: equations_cohorts.feddr(S, 2, 0.05, 0.3, 1.0), "lasso"),
        (lambda S: equations_cohorts.fedadmm(S, 2, 0.05, 2.0), "lasso"),
    ],
    ids=["scaffold", "feddr", "fedadmm"],
)
def test_the_equations_with_cohorts_remain_exact(reference: Any, kind: str) -> None:
    """Those that the methods are compared with above: breaks if c or the mean of x̂ forgets the clients that rest."""
    rng = np.random.default_rng(0)
    drawn = (rng.choice(N, 3, replace=False).tolist() for _ in range(3000))
    *_, found = reference(drawn)
    assert np.abs(found - SOLUTION[kind]).max() < 1e-9


def test_fedadmm_is_feddr_with_cohorts_too() -> None:
    one, other = (
        simulate(method, Participation(cohort=2), 20, 2).state.x
        for method in (
            dp.algorithm("fedadmm", alpha=0.05, c=2.0),
            dp.algorithm("feddr", alpha=0.05, eta=0.5, relaxation=1.0),
        )
    )
    assert (one - other).abs().max() < 1e-13


# For every method


@pytest.mark.parametrize("name", [*UNDIRECTED, *WITH_COHORTS])
def test_a_client_that_rests_stands_still_and_what_a_server_has_is_the_same_everywhere(name: str) -> None:
    """Every variable of a resting row keeps its bytes; after an exchange, what is served is equal in all rows."""
    method = dp.algorithm(name)
    participation = Participation(cohort=2)
    period = 1 if method.periods == (1,) else 2
    sim = simulate(method, participation, 0, period)
    for t in range(6):
        before = sim.snapshot()
        kind = method.kind(t, period)
        sim.advance(1)
        after = sim.snapshot()
        members = participation.members(torch.tensor(t // period), N).tolist()
        resting = [i for i in range(N) if i not in members]
        served = method.served if method.communicates(kind) else ()
        for key, value in after.items():
            if key in (*served, *method.clocks):
                assert (value == value[:1]).all(), key
            elif value.dim():
                assert torch.equal(value[resting], before[key][resting]), key
        assert any(not torch.equal(value, before[key]) for key, value in after.items() if key != "t")


@pytest.mark.parametrize("name", ["depositum", "feddr"])
def test_a_cohort_of_all_clients_changes_nothing(name: str) -> None:
    one, other = (simulate(dp.algorithm(name), given, 6, 2) for given in (Participation(cohort=N), None))
    assert all(torch.equal(value, other.snapshot()[key]) for key, value in one.snapshot().items())
    assert one.costs == other.costs


def test_only_the_cohort_s_gradients_are_computed_and_only_its_rows_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row in every gradient, and a sixth of the bytes and evaluations of a round with all clients."""
    rows: list[int] = []
    gradients_of = RowModel.gradients
    sim, complete = (
        Simulator(problem("ridge"), None, dp.algorithm("fedavg"), period=3, batch_size=4, settings=settings(given))
        for given in (Participation(cohort=1), None)
    )

    def counting(self: RowModel, x: Tensor, *arguments: Any, **named: Any) -> Any:
        rows.append(len(x))
        return gradients_of(self, x, *arguments, **named)

    monkeypatch.setattr(RowModel, "gradients", counting)
    for engine in (complete, sim):
        rows.clear()
        engine.start()
        engine.watch(6)
        engine.advance(6)
    assert set(rows) == {1}
    assert sim.costs.bytes_sent == pytest.approx(complete.costs.bytes_sent / N)
    assert sim.costs.gradient_evaluations == pytest.approx(complete.costs.gradient_evaluations / N)


def test_links_are_not_looked_at_where_none_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a server, and in local steps: among n clients there are n² links, more than a cohort's gradients cost."""
    sims = [
        Simulator(problem("lasso"), network, method, period=3, settings=settings(Participation(cohort=2)))
        for network, method in ((None, dp.algorithm("fedmid")), (RING, dp.Depositum(start="local")))
    ]
    for sim in sims:
        sim.start()
    sims[1].advance(1)

    def looked_at(*arguments: Any) -> Tensor:
        raise AssertionError("a link was looked at")

    monkeypatch.setattr(dp.Network, "present", looked_at)
    sims[0].advance(6)
    sims[1].advance(2)
    method = dp.algorithm("fedmid")
    (x,) = run_threads(
        1,
        lambda c: advanced(
            DistributedEngine(problem("lasso"), None, method, c, period=3, settings=settings(Participation(cohort=2)))
        ),
    )
    assert (x - sims[0].state.x).abs().max() < 1e-14


def test_twenty_thousand_clients_of_a_server() -> None:
    """Whom links between all clients would be 4·10⁸ entries. Fails if a method with a server runs on a graph."""
    n = 20_000
    shared = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 1, dtype=torch.float64)
    problem = from_client_data(nn.Linear(3, 1), [shared] * n, loss="mse")
    sim = Simulator(problem, None, dp.algorithm("fedavg"), batch_size=2, settings=settings(Participation(cohort=5)))
    sim.start()
    sim.advance(3)
    assert (sim.network.edges, sim.network.lam) == (0, 0.0)
    assert (sim.state.x == sim.state.x[0]).all()
    assert sim.costs.gradient_evaluations == pytest.approx(3 * 5 * 2 / n)


def advanced(engine: DistributedEngine) -> Tensor:
    engine.start()
    engine.advance(6)
    x: Tensor = engine.state.x
    return x


def test_weights_by_samples_are_those_of_the_cohort() -> None:
    """w = Σ_S N_i w_i / Σ_S N_i: a cohort of clients that agree keeps what they agree on."""
    method = dp.algorithm("fedavg", alpha=1e-30, server_weights="samples")
    sim = Simulator(
        problem_of_ranks(4, composite=False, weighting="samples"),
        None,
        method,
        batch_size=4,
        settings=settings(Participation(cohort=2)),
    )
    sim.start()
    before = sim.state.x.clone()
    sim.advance(3)
    assert (sim.state.x - before).abs().max() < 1e-15


def test_numbers_that_differ_between_trials_are_those_of_the_cohort_s_rows() -> None:
    """Two stepsizes in one simulator, with β and weights per row, give what each gives alone."""
    whole = problem_of_ranks(4)
    methods = [dp.Depositum(alpha=0.02), dp.Depositum(alpha=0.05, gamma=0.2)]
    chosen = settings(Participation(cohort=3))
    both = Simulator(whole, dp.ring(4), methods, period=2, batch_size=4, settings=chosen)
    both.start()
    both.advance(5)
    for k, (label, method) in enumerate(zip(whole.labels, methods, strict=True)):
        alone = Simulator(whole.restricted_to([label]), dp.ring(4), method, period=2, batch_size=4, settings=chosen)
        alone.start()
        alone.advance(5)
        assert (alone.state.x - both.state.x[4 * k : 4 * k + 4]).abs().max() < 1e-14


# Among processes


def distributed(
    communicator: ThreadCommunicator, name: str, period: int, channel: str, resumes: bool
) -> tuple[dict[str, Tensor], float, int]:
    """The final state of the rows held here, the bytes counted for a client, and those that were posted."""
    whole, network, method = setting(name, 4)

    def make() -> DistributedEngine:
        made = DistributedEngine(
            whole,
            network,
            method,
            communicator,
            period=period,
            batch_size=4,
            settings=settings(Participation(cohort=2)),
            channel=as_channel(channel),
        )
        made.start()
        return made

    engine = make()
    for t in range(7):
        if resumes and t == 3:
            resumed = make()
            resumed.restore(engine.snapshot(), engine.t, engine.costs)
            engine = resumed
        engine.step()
    sent = sum(cost.bytes_sent for cost in Loop(engine, 7)._costs()) / len(SEEDS)
    return engine.snapshot(), sent, communicator.bytes_posted


@pytest.mark.parametrize("size", [4, 2])
@pytest.mark.parametrize(
    ("name", "channel"),
    [
        ("depositum", "exact"),
        ("depositum", "sparse"),
        ("dsgt", "float16"),
        ("prox-dasa-gt", "exact"),
        ("d-psgd", "exact"),
        ("gut", "exact"),
        ("cdproxsgt", "exact"),
        *((name, "exact") for name in WITH_COHORTS),
    ],
)
def test_processes_have_the_simulator_s_trajectory_and_bytes(name: str, channel: str, size: int) -> None:
    """With one client per process, some of which rest, and with two; evaluations and bytes are equal too."""
    whole, network, method = setting(name, 4)
    period = 1 if method.periods is not None and 2 not in method.periods else 2
    chosen = settings(Participation(cohort=2))
    sim = Simulator(whole, network, method, period=period, batch_size=4, settings=chosen, channel=as_channel(channel))
    sim.start()
    for _ in range(7):
        sim.step()
    parts = run_threads(size, lambda c: distributed(c, name, period, channel, False))
    for key, expected in sim.snapshot().items():
        rows = [snapshot[key] for snapshot, _, _ in parts]
        if expected.dim() and len(expected) == len(SEEDS) * 4:
            blocks = [row.view(len(SEEDS), -1, *row.shape[1:]) for row in rows]
            found = torch.cat(blocks, dim=1).flatten(0, 1)
        else:
            found = rows[0]
        if key != "channel.bytes" or size == 4:  # two clients of one process need no message
            assert (found - expected).abs().max() <= 1e-11 * max(1.0, float(expected.abs().max())), key
    if size == 4:
        costs = sum(cost.bytes_sent for cost in Loop(sim, 7)._costs()) / len(SEEDS)
        assert all(sent == pytest.approx(costs) for _, sent, _ in parts)


@pytest.mark.parametrize("name", ["depositum", "feddr"])
def test_a_resumed_run_ends_in_the_same_bytes(name: str) -> None:
    """In the simulator and among processes, from the middle of a round."""
    straight, resumed = (run_threads(4, lambda c, r=r: distributed(c, name, 2, "exact", r)) for r in (False, True))
    for (one, sent, _), (other, again, _) in zip(straight, resumed, strict=True):
        assert sent == again
        assert all(torch.equal(one[key], other[key]) for key in one)
    whole = simulate(dp.algorithm(name), Participation(cohort=2), 7, 2)
    half = simulate(dp.algorithm(name), Participation(cohort=2), 3, 2)
    rest = simulate(dp.algorithm(name), Participation(cohort=2), 0, 2)
    rest.restore(half.snapshot(), 3, half.costs)
    rest.watch(4)
    rest.advance(4)
    assert rest.costs == whole.costs
    assert all(torch.equal(value, rest.snapshot()[key]) for key, value in whole.snapshot().items())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["depositum", "feddr"])
def test_compiled_iterations_have_the_same_trajectory(name: str) -> None:
    """Cohorts change while the compiled program does not."""
    method = dp.algorithm(name)
    made = []
    for compile in ("always", "never"):
        sim = Simulator(
            problem(problem_kind(method)),
            None if method.server else RING,
            method,
            period=2,
            batch_size=4,
            settings=settings(Participation(cohort=2), compile=compile),
        )
        sim.start()
        sim.watch(8)
        sim.advance(8)
        made.append((sim.snapshot(), sim.costs, sim.monitor.read_errors(8)))
    (compiled, costs, errors), (plain, same_costs, same_errors) = made
    assert costs == same_costs
    assert [error[2] for error in errors] == pytest.approx([error[2] for error in same_errors], abs=1e-14)
    for key, value in plain.items():
        assert (compiled[key] - value).abs().max() < 1e-13, key


def test_a_client_that_diverges_is_found_though_others_rest() -> None:
    sim = simulate(dp.algorithm("fedavg", alpha=1e200), Participation(cohort=1), 4, 1)
    (found,) = sim.monitor.diverged()
    assert found.iteration <= 4


# From a configuration and from Python


def test_fit_and_folders_know_the_participation(tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(20, 3)), rng.normal(size=20)) for _ in range(4)]
    model = torch.nn.Linear(3, 1)
    shared: dict[str, Any] = {"steps": 6, "period": 2, "loss": "mse", "progress": False, "seed": 3}
    half = dp.fit(model, clients, participation=0.5, out=tmp_path / "run", **shared)
    same = dp.fit(model, clients, participation={"cohort": 2}, **shared)
    other = dp.fit(model, clients, **shared)
    assert torch.equal(half.snapshot.tensors["x"], same.snapshot.tensors["x"])
    assert not torch.equal(half.snapshot.tensors["x"], other.snapshot.tensors["x"])
    assert "[run.participation]\nshare = 0.5" in (tmp_path / "run" / "config.toml").read_text()
    given = replace(dp.ring(4), participation=Participation(share=0.5))
    assert torch.equal(
        half.snapshot.tensors["x"], dp.fit(model, clients, network=given, **shared).snapshot.tensors["x"]
    )
    assert half.history["bytes_sent"].iloc[-1] < other.history["bytes_sent"].iloc[-1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (0.0, r"^participation: 0.0 given; it must be in \(0, 1\]$"),
        (50, r"^participation: 50 given.*for a number of clients: \{ cohort = 50 \}"),
        (50.0, r"^participation: 50.0 given.*for a number of clients: \{ cohort = 50 \}"),
        (1.5, r"^participation: 1.5 given; it must be in \(0, 1\]$"),
        (True, r"^participation: True given; it must be in \(0, 1\]$"),
        ({"share": 1.5}, r"^participation.share: 1.5 given; it must be in \(0, 1\]$"),
        ({"cohort": 0}, "^participation.cohort: 0 given; it must be a whole number ≥ 1"),
        ({"cohort": 2, "share": 0.5}, "^participation: both are given of share and cohort"),
        ({}, "^participation: neither is given"),
        ({"cohorts": 2}, r"^participation.cohorts: unknown key.*did you mean 'cohort'"),
        ({"cohort": 2, "phases": 0}, "^participation.phases: 0 given"),
        ({"cohort": 2, "phases": 1 << 63}, "^participation.phases: 9223372036854775808 given; .* at most 64 bits"),
        ({"cohort": 2, "seed": 1 << 63}, "^participation.seed: 9223372036854775808 given; .* at most 64 bits"),
    ],
)
def test_a_wrong_participation_is_refused_in_one_line(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        as_participation(given)


def test_what_cannot_have_clients_that_rest_says_why() -> None:
    chosen = settings(Participation(cohort=2))
    with pytest.raises(ConfigError, match="^participation: a share of 0.95 given, which is all of 6 clients"):
        Simulator(problem("lasso"), RING, dp.Depositum(), settings=settings(Participation(share=0.95)))
    own = replace(RING, participation=Participation(cohort=3))
    for other in (Participation(cohort=2), Participation(cohort=N)):
        with pytest.raises(ConfigError, match="^participation: given, but the network has another one"):
            Simulator(problem("lasso"), own, dp.Depositum(), settings=settings(other))
    Simulator(problem("lasso"), own, dp.Depositum(), settings=settings(Participation(cohort=3)))
    with pytest.raises(ConfigError, match="participation.cohort: 9 given, but there are 6 clients"):
        Simulator(problem("lasso"), RING, dp.Depositum(), settings=settings(Participation(cohort=9)))
    for name in set(SERVER) - set(WITH_COHORTS):
        with pytest.raises(ConfigError, match=f"^participation: given, but '{name}' "):
            Simulator(problem("lasso"), None, dp.algorithm(name), settings=chosen)
    directed = DirectedNetwork.from_digraph(RING.graph.to_directed())
    with pytest.raises(ConfigError, match="^participation: given, but the network is directed, "):
        Simulator(problem("lasso"), directed, dp.algorithm("depositum-directed"), settings=chosen)
    with pytest.raises(ConfigError, match="^participation: given, but the network is directed"):
        replace(directed, participation=Participation(cohort=2))
    with pytest.raises(ConfigError, match="^channel: .* links of this network come and go"):
        Simulator(problem("lasso"), RING, dp.Depositum(), settings=chosen, channel=as_channel("top-k"))
