"""An agreement as the configuration of a run: the network of its edges, the member's own data, nothing unagreed."""

import re
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

from depositum.errors import DepositumError
from depositum.federation.agreement import Agreement, Member
from depositum.federation.member_config import LOCAL_KEYS, check_local, resolve_agreement
from depositum.networks import Network
from depositum.runs import load
from depositum.runs.problems import build_own_problem
from tests.support.federations import RUN, agreement
from tests.support.small_runs import write_config


def changed(**sections: dict[str, Any]) -> Agreement:
    """An agreement with some keys of its run changed."""
    return agreement(config={name: {**RUN.get(name, {}), **sections.get(name, {})} for name in {*RUN, *sections}})


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "mine.npz", x=rng.normal(size=(20, 3)), y=rng.integers(0, 2, 20))
    return tmp_path / "mine.npz"


@pytest.mark.parametrize("mixing", ["metropolis", "max-degree"])
def test_the_network_is_that_of_the_edges(mixing: str) -> None:
    """Compared with the same graph given to a network directly; clients are numbered as the members are."""
    edges = (("b", "a"), ("c", "d"), ("a", "d"), ("d", "b"))
    members = tuple(Member(name, f"{name}:1") for name in "abcd")
    found = resolve_agreement(Agreement("s", members, edges, {"network": {"mixing": mixing}})).network
    graph = nx.Graph([("abcd".index(a), "abcd".index(b)) for a, b in edges])
    graph = nx.relabel_nodes(graph, {i: i for i in range(4)})
    expected = Network.from_graph(graph, mixing)
    assert found is not None
    assert abs(found.weights - expected.weights).max() == 0
    assert [tuple(n) for n in found.neighbours] == [(1, 3), (0, 3), (3,), (0, 1, 2)]


def test_all_members_resolve_the_same_run(mine: Path, tmp_path: Path) -> None:
    """Breaks if a member's name, or the path of its data, became part of what is trained."""
    other = tmp_path / "other.npz"
    other.write_bytes(mine.read_bytes())
    one, two = resolve_agreement(agreement(), "m0", mine), resolve_agreement(agreement(), "m1", other)
    assert one.table == two.table
    assert (one.own_file, two.own_file) == (str(mine), str(other))
    assert one.config.problem.clients == 4


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ({"x_test": np.ones((2, 3)), "y_test": np.array([0, 1])}, "has 'x_test' and 'y_test'; leave them out"),
        ({"client": np.zeros(20, int)}, "has 'client'; leave them out"),
    ],
)
def test_arrays_that_a_member_would_not_use_are_refused(mine: Path, arrays: dict[str, Any], named: str) -> None:
    """Breaks if test samples of a member were left out of the measures without a word."""
    with np.load(mine) as file:
        np.savez(mine, **{**file, **arrays})
    with pytest.raises(DepositumError, match=f"problem.dataset: .*mine.npz: {named}"):
        build_own_problem(resolve_agreement(agreement(), "m0", mine), 0, None)


def test_the_run_is_that_of_the_same_configuration(tmp_path: Path) -> None:
    """Every section but the network as `depositum run` resolves it."""
    for client in range(4):
        np.savez(tmp_path / f"{client}.npz", x=np.ones((4, 3)), y=np.arange(4) % 2)
    config = write_config(
        tmp_path / "run.toml",
        problem={"dataset": str(tmp_path / "{client}.npz"), "partition": "natural"},
    )
    spec = load(config)
    sections = spec.config.model_dump(exclude_none=True, exclude_unset=True)
    found = resolve_agreement(agreement(config={k: sections[k] for k in ("problem", "algorithm", "run", "metrics")}))
    assert found.config.problem == spec.config.problem
    assert (found.algorithm, found.config.run) == (spec.algorithm, spec.config.run)
    assert repr(found.regularizer) == repr(spec.regularizer)
    assert found.network is not None
    assert spec.network is not None
    assert abs(found.network.weights - spec.network.weights).max() == 0  # both are rings of four


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"problem": {"dataset": "digits"}}, "problem.dataset: 'digits' given, but each member has its own file"),
        ({"problem": {"dataset": "data.npz"}}, "each member has its own file"),
        ({"problem": {"dataset": {"table": {"path": "all.csv", "target": "y"}}}}, "each member has its own file"),
        (
            {"problem": {"dataset": {"table": {"path": "{client}.csv", "target": "y", "test": "t.csv"}}}},
            "a path is another file at each member",
        ),
        ({"problem": {"partition": {"dirichlet": 0.5}}}, "problem.partition"),
        ({"problem": {"holdout": 0.2}}, "problem.holdout"),
        (
            {"problem": {"weighting": "samples"}},
            "problem.weighting: 'samples' given, but members .* do not tell each other how many samples",
        ),
        ({"problem": {"modle": "mlp"}}, "problem.modle: unknown key.*did you mean 'model'"),
        ({"algorithm": {"name": "fedavg", "gamma": None}}, "algorithm"),
        ({"algorithm": {"alpha": "auto"}}, "'auto' given"),
        ({"network": {"mixing": "W.npy"}}, "network.mixing: 'W.npy' given; .*another one at each member"),
        ({"network": {"mixing": "metropols"}}, "did you mean 'metropolis'"),
        ({"network": {"channel": "flot16"}}, "network.channel"),
        ({"run": {"steps": -1}}, "run.steps: -1 given"),
        ({"metrics": {"smoothness": "measure"}}, "metrics.smoothness"),
    ],
)
def test_runs_that_members_cannot_train_are_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(DepositumError) as caught:
        resolve_agreement(changed(**sections))
    assert re.search(message, str(caught.value))


def test_a_method_with_a_server_is_refused() -> None:
    with pytest.raises(DepositumError, match=r"'fedavg' given, which needs a server|'fedavg' has a server"):
        resolve_agreement(agreement(config={"algorithm": {"name": "fedavg"}}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "sums of measures need all members"),
        ({"evaluate": "none", "config": {"network": {"channel": "sparse"}}}, "through the channel sparse"),
        ({"evaluate": "none", "config": {"network": {"drop": 0.2}}}, "network.drop drops links too"),
        ({"evaluate": "none", "config": {"run": {"participation": 0.5}}}, "run.participation drops links too"),
        ({"evaluate": "none", "config": {"algorithm": {"name": "cdproxsgt"}}}, "sends differences"),
    ],
)
def test_what_needs_every_member_is_refused_where_absent_ones_are_dropped(
    settings: dict[str, Any], message: str
) -> None:
    """It would wait for a member for ever, or train with numbers that are wrong."""
    with pytest.raises(DepositumError, match=f"federation.absent: 'drop' given, but .*{message}"):
        resolve_agreement(agreement(absent="drop", patience=60.0, **settings))
    resolve_agreement(agreement(absent="drop", patience=60.0, evaluate="none"))


def test_a_member_chooses_where_it_computes_and_nothing_else(mine: Path) -> None:
    spec = resolve_agreement(agreement(), "m0", mine, overrides=["run.device=cpu", "run.compile=never"])
    assert (spec.config.run.device, spec.config.run.compile) == ("cpu", "never")
    for key in LOCAL_KEYS:
        check_local(f"{key}=x")
    for override in ("run.steps=3", "problem.beta=0", "run=3", "x", "", "run.devices=cpu", "network.channel=exact"):
        with pytest.raises(DepositumError, match="--set: .* but this is agreed by all members; a member can set"):
            resolve_agreement(agreement(), "m0", mine, overrides=[override])


def test_data_is_checked_before_work(tmp_path: Path) -> None:
    with pytest.raises(DepositumError, match=r"absent.npz: no such file"):
        resolve_agreement(agreement(), "m0", tmp_path / "absent.npz")
    (tmp_path / "mine.csv").write_text("x,y\n1,2\n")
    with pytest.raises(DepositumError, match="for a table, use"):
        resolve_agreement(agreement(), "m0", tmp_path / "mine.csv")
    table = {"dataset": {"table": {"path": "{client}.csv", "target": "y"}}}
    spec = resolve_agreement(changed(problem=table), "m0", tmp_path / "mine.csv")
    assert spec.own_file == str(tmp_path / "mine.csv")
