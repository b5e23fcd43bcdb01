"""What the processes of a run must have built alike, though each reads files of its own: models, graphs, labels."""

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
from tests.support.rank_runs import client_data, fit_each, run_each
from tests.support.small_runs import CommandResult, train, write_config

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


def of_hosts(tmp_path: Path, problem: dict[str, Any], network: dict[str, Any] | None = None) -> list[Path]:
    """The configurations of two hosts that hold two clients each, in folders of their own."""
    return [
        write_config(tmp_path / f"host{rank}" / "c.toml", problem=problem, network=network or {}) for rank in range(2)
    ]


def start(tmp_path: Path, configs: list[Path], *more: str) -> list[CommandResult]:
    own = [[str(config), *more] for config in configs]
    answers: list[CommandResult] = launch(run_each, 2, ["--out", str(tmp_path / "out")], per_rank=own)
    return answers


def refused(tmp_path: Path, configs: list[Path]) -> str:
    """What the second rank says, in one line; the first names it, and nothing is written."""
    first, second = start(tmp_path, configs)
    assert (first.code, second.code) == (2, 2), (first, second)
    assert first.err.startswith("error: rank 1 (")
    assert second.err.count("\n") == 1
    assert not (tmp_path / "out").exists()
    return second.err


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"seed": 1}, "problem.model: its initial parameters on rank 1"),
        ({"width": 7}, "problem.model: 59 parameters on rank 1"),
        ({"scale": 2.0}, "problem.model: what is not trained of it"),
    ],
)
def test_models_that_differ(tmp_path: Path, other: dict[str, Any], said: str) -> None:
    """Breaks if a host's own file is only compared by its name: another start trains without a word, and another size
    ends in the transport.
    """
    configs = of_hosts(tmp_path, {"model": "mine:build"})
    for config, changes in zip(configs, ({}, other), strict=True):
        values = {"seed": 0, "width": 5, "scale": 1.0, **changes}
        (config.parent / "mine.py").write_text(MODEL.format(**values), encoding="utf-8")
    assert refused(tmp_path, configs).startswith(f"error: {said}")


RING = "0 1\n1 2\n2 3\n3 0\n"


@pytest.mark.parametrize("same", [True, False])
def test_edges_that_each_host_has_a_file_of(tmp_path: Path, same: bool) -> None:
    """Where it lies is each host's affair; what it says is not."""
    configs = of_hosts(tmp_path, {}, {"topology": "edges.txt"})
    for config, edges in zip(configs, (RING, RING if same else "0 1\n1 2\n2 3\n"), strict=True):
        (config.parent / "edges.txt").write_text(edges, encoding="utf-8")
    if not same:
        assert refused(tmp_path, configs).startswith("error: network: its links or weights on rank 1")
        return
    assert [said.code for said in start(tmp_path, configs)] == [0, 0]
    train(configs[0], tmp_path / "simulated")
    ours, theirs = (load_file(tmp_path / folder / "state.safetensors") for folder in ("out", "simulated"))
    assert torch.allclose(ours["x"], theirs["x"], atol=1e-5)


def test_weights_that_differ(tmp_path: Path) -> None:
    """Breaks if only the graph, or only λ, is compared: W would then not be symmetric, and averages would drift."""
    configs = of_hosts(tmp_path, {}, {"topology": "ring", "mixing": "W.npy"})
    for config, weight in zip(configs, (0.3, 0.4), strict=True):
        ring = np.roll(np.eye(4), 1, axis=1) + np.roll(np.eye(4), -1, axis=1)
        np.save(config.parent / "W.npy", weight * ring + (1 - 2 * weight) * np.eye(4))
    assert refused(tmp_path, configs).startswith("error: network: its links or weights on rank 1")


def test_fit_refuses_another_graph_of_the_same_spectrum() -> None:
    """A path through the clients in another order has the same λ and links."""
    paths = [nx.path_graph(4), nx.relabel_nodes(nx.path_graph(4), {0: 1, 1: 0})]
    own = [{"network": dp.Network.from_graph(path)} for path in paths]
    first, second = launch(fit_each, 2, 4, per_rank=own)
    assert second.startswith("ConfigError: network: its links or weights on rank 1")
    assert "rank 1" in first


@pytest.mark.parametrize("value", [1.0, 1.5])
def test_labels_that_one_organisation_saved_as_floats(tmp_path: Path, value: float) -> None:
    """They are labels to all, as they are to a simulator; what is no label is said by its own rank, and by it alone."""
    problem = {"dataset": "data/{client}.npz", "model": "linear", "partition": "natural"}
    configs = of_hosts(tmp_path, problem)
    everything = write_config(tmp_path / "all" / "c.toml", problem=problem)
    for client in range(4):
        x, y = client_data(client)
        if client == 2:
            y = np.where(y == 1, value, y).astype(float)
        for config in (configs[client // 2], everything):
            (config.parent / "data").mkdir(exist_ok=True)
            np.savez(config.parent / "data" / f"{client}.npz", x=x, y=y)
    if value != 1.0:
        said = refused(tmp_path, configs)
        assert "2.npz: y has 1.5 in row" in said
        return
    assert [said.code for said in start(tmp_path, configs)] == [0, 0]
    train(everything, tmp_path / "simulated")
    ours, theirs = (load_file(tmp_path / folder / "state.safetensors") for folder in ("out", "simulated"))
    assert torch.allclose(ours["x"], theirs["x"], atol=1e-5)


def test_a_run_goes_on_though_its_files_lie_elsewhere(tmp_path: Path) -> None:
    """A folder that hosts share has the first one's paths in its config.toml; the others have their own."""
    configs = of_hosts(tmp_path, {}, {"topology": "edges.txt"})
    for config in configs:
        (config.parent / "edges.txt").write_text(RING, encoding="utf-8")
    assert [said.code for said in start(tmp_path, configs, "--set", "run.steps=10")] == [0, 0]
    again = start(tmp_path, configs)
    assert [said.code for said in again] == [0, 0], again
    assert "resuming from iteration 10" in again[0].err
    other = start(tmp_path, configs, "--set", "algorithm.alpha=0.3")
    assert all("algorithm.alpha is 0.1" in said.err for said in other)


@pytest.mark.parametrize("broken", [True, False])
def test_a_checkpoint_that_not_all_can_read(tmp_path: Path, broken: bool) -> None:
    """Breaks if a state of a simulator's that is damaged, or that one host alone has, is taken for another's run."""
    (config, _) = of_hosts(tmp_path, {})
    outs = [tmp_path / f"out{rank}" for rank in range(2)]
    train(config, outs[0], overrides=("run.steps=6",))
    if broken:
        for name in ("state.safetensors", "state.previous.safetensors"):
            if (outs[0] / name).exists():
                (outs[0] / name).write_bytes(b"cut off")
        outs[1] = outs[0]
    said = launch(run_each, 2, [str(config)], per_rank=[["--out", str(out)] for out in outs])
    assert [one.code for one in said] == [0, 0], said


def test_buffers_that_are_not_finite() -> None:
    """A mask of −∞, as attention has them, is like itself, and hides no other difference."""

    def fixed(*buffers: torch.Tensor) -> list[list[float]]:
        model = nn.Linear(2, 2)
        for k, buffer in enumerate(buffers):
            model.register_buffer(f"b{k}", buffer)
        return _frozen_and_buffers(problem_with(model))

    mask, odd = torch.full((4, 4), -torch.inf).triu(1), torch.tensor([torch.nan, 1.0])
    own = fixed(mask, mask, odd, torch.ones(3))
    assert all(map(_close, own, fixed(mask, mask, odd, torch.ones(3))))
    assert not all(map(_close, own, fixed(mask, mask, odd, torch.ones(3) + 1e-3)))
    assert not all(map(_close, own, fixed(mask, mask.tril(-1), odd, torch.ones(3))))


def problem_with(model: nn.Module) -> Problem:
    return from_client_data(model, [(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64))])


@pytest.mark.parametrize("n", [50, 200])
def test_one_link_in_thousands(n: int) -> None:
    """Breaks if what counts as rounding grows with the number of links."""
    for seed in range(10):
        graph = nx.gnp_random_graph(n, 0.3, seed=seed)
        moved = graph.copy()
        moved.remove_edge(*next(iter(graph.edges)))
        moved.add_edge(*next(iter(nx.complement(graph).edges)))
        assert not _close(*(_weights(dp.Network.from_graph(own)) for own in (graph, moved)))


def test_sums_see_what_matters_and_not_the_last_digit() -> None:
    """Breaks if processors that round the last digit otherwise cannot train together, or if another order passes."""
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    rounded = x * (1 + ROUNDING / 100 * torch.randn(1000, generator=torch.Generator().manual_seed(1)))
    assert _close(sketch(x), sketch(rounded))
    assert not _close(sketch(x), sketch(x.flip(0)))
    assert not _close(sketch(x), sketch(x + 1e-2))
    assert not _close(sketch(x), sketch(x[:-1]))
    long = torch.ones(CHUNK + 3)
    assert sketch(long)[0] == pytest.approx(len(long) ** 0.5, rel=1e-12)
    assert max(map(abs, sketch(long)[1:])) < 20 * len(long) ** 0.5  # signs are drawn anew in every part
