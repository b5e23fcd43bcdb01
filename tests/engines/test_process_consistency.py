"""Processes that read different files must still build the same models, graphs and labels."""

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import depositum as dp
from depositum.engines.distributed.consistency import (
    CHUNK,
    ROUNDING,
    _close,
    _frozen_and_buffers,
    _weights,
    sketch,
)
from depositum.problem import Problem, from_client_data
from tests.support.rank_processes import launch
from tests.support.rank_runs import client_data, fit_with_changes, run_with_arguments
from tests.support.small_runs import CommandResult, files, train, write_config

pytestmark = pytest.mark.slow

MODEL = """
import torch
from torch import nn

def build(shape, classes):
    torch.manual_seed({seed})
    model = nn.Sequential(nn.Linear(shape[0], {width}), nn.ReLU(), nn.Linear({width}, classes))
    model.register_buffer("scale", torch.tensor({scale}))
    return model
"""


def configs_of_two_hosts(tmp_path: Path, problem: dict[str, Any], network: dict[str, Any] | None = None) -> list[Path]:
    """The configuration files of two hosts with two clients each, in separate folders."""
    return [
        write_config(tmp_path / f"host{rank}" / "c.toml", problem=problem, network=network or {}) for rank in range(2)
    ]


def run_hosts(tmp_path: Path, configs: list[Path], *more: str) -> list[CommandResult]:
    """Run one process per configuration file, with a common folder."""
    own = [[str(config), *more] for config in configs]
    results: list[CommandResult] = launch(run_with_arguments, 2, ["--out", str(tmp_path / "out")], per_rank=own)
    return results


def rejection(tmp_path: Path, configs: list[Path]) -> str:
    """The second rank's error, in one line; the first rank repeats it with the second's name; nothing is written."""
    first, second = run_hosts(tmp_path, configs)
    assert (first.code, second.code) == (2, 2), (first, second)
    assert first.err.startswith("error: rank 1 (")
    assert first.err.endswith(f" stopped: {second.err.removeprefix('error: ')}")
    assert second.err.count("\n") == 1
    assert not (tmp_path / "out").exists()
    return second.err


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"seed": 1}, "problem.model: initial parameters differ between rank 1 ("),
        ({"width": 7}, "problem.model: 59 parameters on rank 1"),
        ({"scale": 2.0}, "problem.model: frozen parameters or buffers differ between rank 1 ("),
    ],
)
def test_different_models_are_rejected(tmp_path: Path, other: dict[str, Any], message: str) -> None:
    """Fails if hosts' files are compared by name only: another start would train unnoticed, another size would fail
    in the transport.
    """
    configs = configs_of_two_hosts(tmp_path, {"model": "mine:build"})
    for config, changes in zip(configs, ({}, other), strict=True):
        values = {"seed": 0, "width": 5, "scale": 1.0, **changes}
        (config.parent / "mine.py").write_text(MODEL.format(**values), encoding="utf-8")
    assert rejection(tmp_path, configs).startswith(f"error: {message}")


RING = "0 1\n1 2\n2 3\n3 0\n"


@pytest.mark.parametrize("same", [True, False])
def test_edge_lists_may_have_different_paths_but_not_different_edges(tmp_path: Path, same: bool) -> None:
    """Each host has its own file."""
    configs = configs_of_two_hosts(tmp_path, {}, {"topology": "edges.txt"})
    for config, edges in zip(configs, (RING, RING if same else "0 1\n1 2\n2 3\n"), strict=True):
        (config.parent / "edges.txt").write_text(edges, encoding="utf-8")
    if not same:
        assert rejection(tmp_path, configs).startswith("error: network: links or weights differ between rank 1 (")
        return
    assert [result.code for result in run_hosts(tmp_path, configs)] == [0, 0]
    train(configs[0], tmp_path / "simulated")
    found, expected = (load_file(tmp_path / folder / "state.safetensors") for folder in ("out", "simulated"))
    assert torch.allclose(found["x"], expected["x"], atol=1e-5)


def test_different_weights_are_rejected(tmp_path: Path) -> None:
    """Fails if only the graph or only λ is compared: W would not be symmetric, and averages would drift."""
    configs = configs_of_two_hosts(tmp_path, {}, {"topology": "ring", "mixing": "W.npy"})
    for config, weight in zip(configs, (0.3, 0.4), strict=True):
        ring = np.roll(np.eye(4), 1, axis=1) + np.roll(np.eye(4), -1, axis=1)
        np.save(config.parent / "W.npy", weight * ring + (1 - 2 * weight) * np.eye(4))
    assert rejection(tmp_path, configs).startswith("error: network: links or weights differ between rank 1 (")


def test_fit_rejects_another_graph_with_the_same_spectrum() -> None:
    """A path through the clients in another order has the same λ and number of links."""
    paths = [nx.path_graph(4), nx.relabel_nodes(nx.path_graph(4), {0: 1, 1: 0})]
    own = [{"network": dp.Network.from_graph(path)} for path in paths]
    first, second = launch(fit_with_changes, 2, 4, per_rank=own)
    assert second.startswith("ConfigError: network: links or weights differ between rank 1 (")
    assert "rank 1" in first


@pytest.mark.parametrize("value", [1.0, 1.5])
def test_labels_that_one_host_saved_as_floats_are_labels(tmp_path: Path, value: float) -> None:
    """As in a simulator. A value that is not a label is reported by the rank that has it."""
    problem = {"dataset": "data/{client}.npz", "model": "linear", "partition": "natural"}
    configs = configs_of_two_hosts(tmp_path, problem)
    everything = write_config(tmp_path / "all" / "c.toml", problem=problem)
    for client in range(4):
        x, y = client_data(client)
        if client == 2:
            y = np.where(y == 1, value, y).astype(float)
        for config in (configs[client // 2], everything):
            (config.parent / "data").mkdir(exist_ok=True)
            np.savez(config.parent / "data" / f"{client}.npz", x=x, y=y)
    if value != 1.0:
        assert "2.npz: y has 1.5 in row" in rejection(tmp_path, configs)
        return
    assert [result.code for result in run_hosts(tmp_path, configs)] == [0, 0]
    train(everything, tmp_path / "simulated")
    found, expected = (load_file(tmp_path / folder / "state.safetensors") for folder in ("out", "simulated"))
    assert torch.allclose(found["x"], expected["x"], atol=1e-5)


def test_a_run_resumes_on_hosts_whose_files_have_other_paths(tmp_path: Path) -> None:
    """The config.toml of a shared folder has the paths of rank 0."""
    configs = configs_of_two_hosts(tmp_path, {}, {"topology": "edges.txt"})
    for config in configs:
        (config.parent / "edges.txt").write_text(RING, encoding="utf-8")
    assert [result.code for result in run_hosts(tmp_path, configs, "--set", "run.steps=10")] == [0, 0]
    again = run_hosts(tmp_path, configs)
    assert [result.code for result in again] == [0, 0], again
    assert "resuming from iteration 10" in again[0].err
    other = run_hosts(tmp_path, configs, "--set", "algorithm.alpha=0.3")
    assert all("algorithm.alpha is 0.1" in result.err for result in other)


@pytest.mark.parametrize("broken", [True, False])
def test_a_checkpoint_that_not_all_ranks_can_read_is_not_replaced(tmp_path: Path, broken: bool) -> None:
    """A simulator's checkpoint that is damaged, or that only one host has: as in the simulator, all ranks refuse in one
    line, and nothing is changed. Fails if the run begins again at 0.
    """
    config, _ = configs_of_two_hosts(tmp_path, {})
    outs = [tmp_path / f"out{rank}" for rank in range(2)]
    train(config, outs[0], overrides=("run.steps=6",))
    if broken:
        for name in ("state.safetensors", "state.previous.safetensors"):
            if (outs[0] / name).exists():
                (outs[0] / name).write_bytes(b"cut off")
        outs[1] = outs[0]
    before = files(outs[0])
    results = launch(run_with_arguments, 2, [str(config)], per_rank=[["--out", str(out)] for out in outs])
    for out, result in zip(outs, results, strict=True):
        assert result.code == 2
        assert result.err.startswith(
            f"error: --out {out}: {'no rank has a' if broken else 'rank 1 (clients 2–3, host '}"
        )
        assert result.err.count("\n") == 1
    assert files(outs[0]) == before


def test_infinite_buffers_are_compared() -> None:
    """An attention mask of −∞ equals itself and does not hide other differences."""

    def with_buffers(*buffers: torch.Tensor) -> list[list[float]]:
        model = nn.Linear(2, 2)
        for k, buffer in enumerate(buffers):
            model.register_buffer(f"b{k}", buffer)
        return _frozen_and_buffers(problem_with(model))

    mask, odd = torch.full((4, 4), -torch.inf).triu(1), torch.tensor([torch.nan, 1.0])
    own = with_buffers(mask, mask, odd, torch.ones(3))
    assert all(map(_close, own, with_buffers(mask, mask, odd, torch.ones(3))))
    assert not all(map(_close, own, with_buffers(mask, mask, odd, torch.ones(3) + 1e-3)))
    assert not all(map(_close, own, with_buffers(mask, mask.tril(-1), odd, torch.ones(3))))


def problem_with(model: nn.Module) -> Problem:
    return from_client_data(model, [(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64))])


@pytest.mark.parametrize("n", [50, 200])
def test_one_moved_link_in_thousands_is_noticed(n: int) -> None:
    """Fails if the tolerance for rounding grows with the number of links."""
    for seed in range(10):
        graph = nx.gnp_random_graph(n, 0.3, seed=seed)
        moved = graph.copy()
        moved.remove_edge(*next(iter(graph.edges)))
        moved.add_edge(*next(iter(nx.complement(graph).edges)))
        assert not _close(*(_weights(dp.Network.from_graph(one)) for one in (graph, moved)))


def test_sketches_differ_with_values_and_order_but_not_with_the_last_digit() -> None:
    """Fails if processors that round the last digit differently are rejected, or if another order is accepted."""
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    rounded = x * (1 + ROUNDING / 100 * torch.randn(1000, generator=torch.Generator().manual_seed(1)))
    assert _close(sketch(x), sketch(rounded))
    assert not _close(sketch(x), sketch(x.flip(0)))
    assert not _close(sketch(x), sketch(x + 1e-2))
    assert not _close(sketch(x), sketch(x[:-1]))
    long = torch.ones(CHUNK + 3)
    assert sketch(long)[0] == pytest.approx(len(long) ** 0.5, rel=1e-12)
    assert max(map(abs, sketch(long)[1:])) < 20 * len(long) ** 0.5  # every chunk has different signs
