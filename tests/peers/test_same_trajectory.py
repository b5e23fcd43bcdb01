"""A federation over mutual TLS ends in the state of the simulator, through every channel, with both momenta."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch

import depositum as dp
from depositum.channels import CHANNELS, as_channel
from depositum.engines import EngineSettings, Loop, Simulator, compilation
from depositum.federation.member_folder import MemberFolder
from depositum.metrics import MetricSettings
from depositum.networks import Participation
from depositum.peers import run_member, verify
from depositum.runs.execution import RunResult
from tests.support.peer_federations import (
    dirichlet_problem,
    make_agreement,
    run_all,
    run_config,
    run_threads,
    write_folders,
)

N = 8
SETTINGS = EngineSettings("cpu", "float64", backend="loop", compile="never")


def simulated(network: dp.Network, channel: str, momentum: str, steps: int) -> tuple[dict[str, torch.Tensor], Loop]:
    method = dp.Depositum(0.1, 0.5, momentum)  # type: ignore[arg-type]
    simulator = Simulator(
        dirichlet_problem(network.n),
        network,
        method,
        period=3,
        batch_size=4,
        settings=SETTINGS,
        channel=as_channel(channel),
    )
    loop = Loop(simulator, steps, evaluate_every=6, metrics=MetricSettings())
    return loop.run().tensors, loop


@pytest.mark.parametrize(
    ("channel", "momentum"),
    [
        ("exact", "polyak"),
        *(pytest.param(c, m, marks=pytest.mark.slow) for c in CHANNELS for m in ("polyak", "nesterov")),
    ],
)
def test_peers_and_simulator_have_one_trajectory(channel: str, momentum: str, tmp_path: Path) -> None:
    """Eight members on a ring, Dirichlet data, MCP, T0 = 3, mini-batches; rows, measures and models, to 1e-10.

    Breaks if a row is lost, doubled, mixed with another weight or in another phase, or if sums are not of all members.
    """
    config = run_config()
    config["algorithm"]["momentum"] = momentum
    config["network"] = {"channel": channel if channel != "top-k" else {"top-k": {"share": 0.3}}}
    agreement = make_agreement(nx.cycle_graph(N), config)
    chosen = as_channel(config["network"]["channel"])
    expected, loop = simulated(dp.network(nx.cycle_graph(N), N), chosen, momentum, 12)  # type: ignore[arg-type]
    results = run_all(write_folders(tmp_path, agreement), dirichlet_problem(N))
    for name in ("x", "y", "nu"):
        rows = torch.cat([result.snapshot.tensors[name] for result in results])
        assert (rows - expected[name]).abs().max() <= 1e-10, name
    models = [(tmp_path / f"m{i}" / "run" / "model.safetensors").read_bytes() for i in range(N)]
    assert len(set(models)) == 1
    for result in results:
        for own, theirs in zip(result.history.records, loop.history.records, strict=True):
            for measure in ("train_loss", "consensus_x", "phi", "phases"):
                assert own[measure] == pytest.approx(theirs[measure], abs=1e-10), measure


@pytest.mark.slow
def test_a_member_that_compiles_has_the_same_trajectory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`run.compile` is each member's own choice. Breaks if it compiles nothing, or not what the others run."""
    compiled: list[str] = []
    compile_part = compilation._compile_part

    def count(*arguments: Any) -> Any:
        compiled.append(threading.current_thread().name)
        return compile_part(*arguments)

    monkeypatch.setattr(compilation, "_compile_part", count)
    expected, _ = simulated(dp.network(nx.path_graph(2), 2), "exact", "polyak", 12)
    config = run_config()
    del config["run"]["backend"]
    folders, problem = write_folders(tmp_path, make_agreement(nx.path_graph(2), config)), dirichlet_problem(2)

    def work(folder: MemberFolder) -> RunResult:
        threading.current_thread().name = folder.name
        how = "always" if folder.name == "m0" else "never"
        return run_member(folder, data=problem, overrides=[f"run.compile={how}"])

    outcomes = run_threads(folders, work, timeout=300.0)
    for i, outcome in enumerate(outcomes):
        assert not isinstance(outcome, BaseException), outcome
        for name in ("x", "y", "nu"):
            assert (outcome.snapshot.tensors[name] - expected[name][i]).abs().max() <= 1e-10, name
    assert set(compiled) == {"m0"}


def test_members_that_rest_have_the_simulators_trajectory(tmp_path: Path) -> None:
    """Four on a ring, two in each phase. Fails if members do not know who rests, and wait for its messages."""
    agreement = make_agreement(nx.cycle_graph(4), run_config(participation={"cohort": 2}))
    simulator = Simulator(
        dirichlet_problem(4),
        dp.ring(4),
        dp.Depositum(0.1, 0.5),
        period=3,
        batch_size=4,
        settings=replace(SETTINGS, participation=Participation(cohort=2)),
    )
    expected = Loop(simulator, 12, evaluate_every=6, metrics=MetricSettings()).run().tensors
    results = run_all(write_folders(tmp_path, agreement), dirichlet_problem(4))
    for name in ("x", "y", "nu"):
        rows = torch.cat([result.snapshot.tensors[name] for result in results])
        assert (rows - expected[name]).abs().max() <= 1e-10, name


def test_every_member_has_an_account_of_its_messages(tmp_path: Path) -> None:
    """What one end has sent the other has received, by number and hash; the chain of each file is whole."""
    agreement = make_agreement(nx.path_graph(3), run_config())
    run_all(write_folders(tmp_path, agreement), dirichlet_problem(3))

    def lines(member: str, file: str, neighbour: str) -> list[tuple[str, ...]]:
        path = tmp_path / member / "run" / file
        assert verify(path) > 0
        table = [line.split(",") for line in path.read_text().splitlines()[1:]]
        return [tuple(fields[2:7]) for fields in table if fields[1] == neighbour]

    for a, b in (("m0", "m1"), ("m1", "m0"), ("m1", "m2"), ("m2", "m1")):
        sent, received = lines(a, "sent.csv", b), lines(b, "received.csv", a)
        assert sorted(sent) == sorted(received)
        assert {(phase, what) for phase, what, *_ in sent if phase} == {(str(p), v) for p in range(4) for v in "xy"}
    status = json.loads((tmp_path / "m1" / "run" / "status.json").read_text())
    assert status["state"] == "finished"
    assert [n["name"] for n in status["neighbours"]] == ["m0", "m2"]


def test_nothing_but_rows_leaves_a_member_that_shares_no_measures(tmp_path: Path) -> None:
    """With `evaluate = "none"` and a local start, every line of the account is a row of a phase."""
    config = run_config()
    config["algorithm"]["start"] = "local"
    agreement = make_agreement(nx.path_graph(3), config, evaluate="none")
    results = run_all(write_folders(tmp_path, agreement), dirichlet_problem(3))
    for i in range(3):
        for line in (tmp_path / f"m{i}" / "run" / "sent.csv").read_text().splitlines()[1:]:
            assert line.split(",")[3] in ("x", "y"), line
    assert all(result.finished for result in results)
    model = (tmp_path / "m0" / "run" / "model.safetensors").read_bytes()
    assert model != (tmp_path / "m1" / "run" / "model.safetensors").read_bytes()
