"""One process per client: what an exchange costs, what of it is hidden, how few bytes sparse models need, scaling.

    python benchmarks/processes.py OUT [--parts exchange,sparsity,scaling] [--steps 400] [--processes 10]

- `exchange`: the time of one mixing on a ring, against a bare exchange of the same bytes on the same links (one
  `batch_isend_irecv` into memory that is there already), for rows of several lengths, on 2 and 4 processes; and the
  share of a mixing that is hidden behind computation, 1 − (computing meanwhile − computing alone) / mixing. Medians of
  single runs in turn, averaged over ranks.
- `sparsity`: bytes of a link and phase in the paper's CNN on MNIST (`examples/mnist-sparsity.toml`: 20 clients on a
  ring) with `send = "sparse"` against whole rows, x and y apart, for β = 5e-4 and 1e-3, and how many zeros x has when
  it is sent and after mixing. Needs `DEPOSITUM_DATA`.
- `scaling`: milliseconds per iteration of a fixed problem of 8 clients on 1, 2, 4 and 8 processes.

All processes are on this machine and talk over its loopback by gloo. Prints Markdown tables and writes
`processes.json` into OUT.
"""

import argparse
import json
import multiprocessing as mp
import os
import platform
import socket
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import depositum as dp
from depositum.data import Samples
from depositum.engines import EngineSettings
from depositum.engines.processes import Placement, ProcessEngine, join, own_data
from depositum.engines.processes.encoding import Encoding
from depositum.engines.processes.links import Links
from depositum.engines.processes.transfer import SIZE_BYTES
from depositum.layout import Layout
from depositum.models import build
from depositum.problem import Problem, Trial, as_loss
from depositum.runs import build_problem, load

EXAMPLE = Path(__file__).parent.parent / "examples" / "mnist-sparsity.toml"
#: Rows of the paper's CNN and ResNet-18 on MNIST, and others.
LENGTHS = (1_000, 30_000, 268_362, 3_000_000, 11_175_370)
#: What is noted of each phase of a sparse model: bytes of a message with x and with y, zeros in x before and after.
CURVES = ("x", "y", "zeros sent", "zeros mixed")
Row = dict[str, Any]


# Processes


def _main(rank: int, size: int, port: int, pipe: Connection, work: Callable[..., Any], arguments: Any) -> None:
    torch.set_num_threads(1)
    places = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ.update({k: str(v) for k, v in places.items()}, MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    pipe.send(work(*arguments))


def launch(work: Callable[..., Any], size: int, *arguments: Any) -> list[Any]:
    """What `work(*arguments)` returns on each of `size` processes."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["depositum.cli"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(size):
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_main, args=(rank, size, port, there, work, arguments), daemon=True)
        process.start()
        there.close()
        started.append((process, here))
    results = [pipe.recv() for _, pipe in started]
    for process, _ in started:
        process.join()
    return results


def _milliseconds(work: Callable[[], object], times: int = 1) -> float:
    """The mean time of some runs."""
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times * 1e3


# Exchanges


def exchange(d: int, rounds: int) -> Row:
    """Milliseconds, on this rank, of a bare exchange, of a mixing, of its sum alone, and of computing meanwhile."""
    group = join(60, "cpu")
    links = Links(dp.ring(group.size), group, 1, torch.float32)
    z, peers, terms = torch.randn(1, d), list(links.route.sends), links.route.mixing[0]
    rooms = [torch.randn(d) for _ in peers]
    a, out = torch.randn(128, 128), torch.empty(d)

    def bare() -> None:
        operations = [dist.P2POp(dist.irecv, room, p) for p, room in zip(peers, rooms, strict=True)]
        operations += [dist.P2POp(dist.isend, z[0], p) for p in peers]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    def mixing() -> None:
        links(z)
        links.settle()

    def summing() -> None:
        torch.mul(z[0], terms.own, out=out)
        for (_, weight), room in zip(terms.others, rooms, strict=True):
            out.add_(room, alpha=weight)

    def compute() -> None:
        for _ in range(count):
            torch.mm(a, a)

    def meanwhile() -> None:
        links(z)
        compute()
        links.settle()

    # As much computing as takes twice the time of a mixing; a fixed amount of it, whoever has the cores.
    count = 100
    first = _in_turn({"mixing": mixing, "compute": compute}, 10)
    per = torch.tensor(2 * first["mixing"] / first["compute"])
    count = max(1, int(count * group.sum(per) / group.size))
    works = {"bare": bare, "mixing": mixing, "sum": summing, "compute": compute, "meanwhile": meanwhile}
    found = _in_turn(works, rounds)
    group.leave()
    return {"floats": d, "processes": group.size, **found}


def _in_turn(works: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """The median time of each, in milliseconds, and of the processor's time that it took, under `"… (cpu)"`.

    All ranks begin each run together. The works take turns, so that whatever else the machine does meets all alike.
    """
    times: dict[str, list[float]] = {key: [] for name in works for key in (name, f"{name} (cpu)")}
    for _ in range(rounds):
        for name, work in works.items():
            dist.barrier()
            cpu = time.process_time()
            times[name].append(_milliseconds(work))
            times[f"{name} (cpu)"].append((time.process_time() - cpu) * 1e3)
    return {name: statistics.median(found) for name, found in times.items()}


def exchanged(size: int, d: int) -> Row:
    """The same, averaged over ranks, with the mixing against the bare exchange, and the share of it that is hidden."""
    rows = launch(exchange, size, d, max(15, min(150, 90_000_000 // d)))
    row = {k: statistics.mean(r[k] for r in rows) for k in rows[0]}
    hidden = 1 - (row["meanwhile"] - row["compute"]) / row["mixing"]
    cpu = row["mixing (cpu)"] / row["bare (cpu)"]
    return row | {"ratio": row["mixing"] / row["bare"], "ratio (cpu)": cpu, "hidden": hidden}


# Sparse models


class Noted:
    """An encoding that notes, of every message, its bytes and which share of the rows in it is exactly zero."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        self.notes: list[tuple[float, float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoding, name)

    def encode(self, rows: Tensor) -> Tensor:
        message = self._encoding.encode(rows)
        announced = SIZE_BYTES if self._encoding.variable else 0
        self.notes.append((message.numel() * message.element_size() + announced, _zeros(rows)))
        return message


def _zeros(rows: Tensor) -> float:
    return 1 - rows.count_nonzero().item() / rows.numel()


def train(beta: float, send: Any, steps: int) -> Row:
    """What a link carries in each phase of the example, x and y apart, and how many zeros there are in x.

    Each list has one value per phase, the mean over this rank's messages. Where processes share clients in pairs on a
    ring, every client's row is in exactly one message per mixing.
    """
    settings = [f"problem.beta={beta}", f"run.steps={steps}", "run.seeds=[0]", "run.device=cpu"]
    config = load(EXAMPLE, settings)
    group = join(300, "cpu")
    with group.together("build"):
        problem = build_problem(config, EXAMPLE.parent)
        engine = ProcessEngine(
            own_data(problem, Placement(problem.n, group.size).clients(group.rank)),
            config.make_network(),
            config.make_algorithm(),
            group,
            period=config.run.period,
            batch_size=config.run.batch_size,
            settings=config.engine_settings(),
            send=send,
        )
    noted = Noted(engine.links.encoding)
    engine.links.encoding = noted
    engine.start()
    curves: dict[str, list[float]] = {name: [] for name in CURVES}
    for t in range(steps):
        noted.notes.clear()
        engine.step()
        if t % config.run.period:
            continue
        half = len(noted.notes) // 2  # x is mixed first, then y
        (x, zeros), (y, _) = (
            [statistics.mean(column) for column in zip(*part, strict=True)]
            for part in (noted.notes[:half], noted.notes[half:])
        )
        for name, value in zip(CURVES, (x, y, zeros, _zeros(engine.state.x)), strict=True):
            curves[name].append(value)
    found, d = engine.measure_cheap(), engine.state.x.shape[1]
    group.leave()
    accuracy, sparsity = float(found["test_accuracy"]), float(found["sparsity"])
    return {"beta": beta, "send": send, "dense": 4 * d, "sparsity": sparsity, "accuracy": accuracy, **curves}


def trained(size: int, *case: Any) -> Row:
    """The same, averaged over all ranks."""
    rows = launch(train, size, *case)
    curves = {k: [statistics.mean(at) for at in zip(*(row[k] for row in rows), strict=True)] for k in CURVES}
    return rows[0] | curves


# Scaling


def iteration(n: int, steps: int) -> Row:
    """Time of an iteration of an MLP at T0 = 1, with all clients of this many processes."""
    group = join(120, "cpu")
    shape, classes, samples = (1, 28, 28), 10, 200 * n
    generator = torch.Generator().manual_seed(0)
    data = Samples(
        torch.rand(samples, *shape, generator=generator), torch.randint(0, classes, (samples,), generator=generator)
    )
    model = build("mlp", shape, classes, 0)
    start = Layout.of(model).row({k: p.detach() for k, p in model.named_parameters()})
    owned = torch.arange(samples).view(n, -1).numpy()
    problem = Problem(
        model, as_loss("cross-entropy"), data, (Trial(0, start, list(owned)),), regularizer=dp.L1(), beta=1e-4
    )
    engine = ProcessEngine(
        problem, dp.ring(n), dp.Depositum(0.05), group, batch_size=32, settings=EngineSettings("cpu", backend="loop")
    )
    engine.start()
    engine.advance(5)
    found = []
    for _ in range(5):
        dist.barrier()
        found.append(_milliseconds(engine.step, steps))
    group.leave()
    return {"processes": group.size, "clients": n, "milliseconds": statistics.median(found)}


# All of it


def _table(columns: dict[str, Callable[[Row], str]], rows: list[Row]) -> None:
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(shown(row) for shown in columns.values())} |", flush=True)
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--parts", default="exchange,sparsity,scaling")
    parser.add_argument("--steps", type=int, default=400, help="of the sparse models")
    parser.add_argument("--processes", type=int, default=10, help="of the sparse models, which have 20 clients")
    chosen = parser.parse_args()
    parts = chosen.parts.split(",")
    found: dict[str, Any] = {"machine": f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}"}
    print(found["machine"], "\n")
    if "exchange" in parts:
        found["exchange"] = [exchanged(size, d) for size in (2, 4) for d in LENGTHS]
        _table(
            {
                "processes": lambda r: f"{r['processes']:.0f}",
                "floats per row": lambda r: f"{r['floats']:,.0f}",
                "bare exchange, ms": lambda r: f"{r['bare']:.2f}",
                "sum alone, ms": lambda r: f"{r['sum']:.2f}",
                "mixing, ms": lambda r: f"{r['mixing']:.2f}",
                "mixing / bare": lambda r: f"{r['ratio']:.2f}",
                "in processor time": lambda r: f"{r['ratio (cpu)']:.2f}",
                "hidden behind computation": lambda r: f"{r['hidden']:.0%}",
            },
            found["exchange"],
        )
    if "sparsity" in parts:
        found["sparsity"] = [trained(chosen.processes, beta, "sparse", chosen.steps) for beta in (5e-4, 1e-3)]
        _table(
            {
                "β": lambda r: f"{r['beta']:g}",
                "zeros in x as sent, at the end": lambda r: f"{r['zeros sent'][-1]:.1%}",
                "after mixing": lambda r: f"{r['zeros mixed'][-1]:.1%}",
                "kB per link and phase at the end: x": lambda r: f"{r['x'][-1] / 1e3:.0f}",
                "y": lambda r: f"{r['y'][-1] / 1e3:.0f}",
                "dense": lambda r: f"{r['dense'] / 1e3:.0f}",
                "MB per link in all: x": lambda r: f"{sum(r['x']) / 1e6:.1f}",
                "y ": lambda r: f"{sum(r['y']) / 1e6:.1f}",
                "dense, each": lambda r: f"{len(r['x']) * r['dense'] / 1e6:.1f}",
                "test accuracy": lambda r: f"{r['accuracy']:.2%}",
            },
            found["sparsity"],
        )
    if "scaling" in parts:
        found["scaling"] = [launch(iteration, size, 8, 20)[0] for size in (1, 2, 4, 8)]
        _table(
            {
                "processes": lambda r: f"{r['processes']}",
                "clients": lambda r: f"{r['clients']}",
                "ms per iteration": lambda r: f"{r['milliseconds']:.1f}",
            },
            found["scaling"],
        )
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "processes.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
