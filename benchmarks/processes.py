"""One process per client: what an exchange costs, what of it is hidden, how few bytes sparse models need, scaling.

    python benchmarks/processes.py OUT [--parts phase,hidden,sparsity,scaling] [--steps 400] [--clients 4]

- `phase`: the time of one mixing on a ring, against a bare exchange of the same bytes on the same links (one
  `batch_isend_irecv` into fresh memory), for rows of several lengths, on 2 and 4 processes; median of alternating runs.
- `hidden`: the share of a mixing's time that disappears behind computation of the same length.
- `sparsity`: bytes that a client sends in the paper's CNN on MNIST (`examples/mnist-sparsity.toml`) with
  `send = "sparse"` against whole rows, for β = 5e-4 and 1e-3, and the sparsity at the end. Needs `DEPOSITUM_DATA`.
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

import depositum as dp
from depositum.data import Samples
from depositum.engines import EngineSettings
from depositum.engines.processes import ProcessEngine, join, own_data
from depositum.engines.processes.links import Links
from depositum.layout import Layout
from depositum.models import build
from depositum.problem import Problem, Trial, as_loss
from depositum.runs import build_problem, load

EXAMPLE = Path(__file__).parent.parent / "examples" / "mnist-sparsity.toml"
LENGTHS = (1_000, 30_000, 300_000, 3_000_000)
ROUNDS = 9
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


def _milliseconds(work: Callable[[], object], times: int) -> float:
    """The mean time of some runs that all ranks begin together."""
    dist.barrier()
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times * 1e3


# Exchanges


def exchange(d: int) -> Row:
    """One mixing against a bare exchange; and against computing meanwhile, and afterwards."""
    group = join(60, "cpu")
    links = Links(dp.ring(group.size), group, 1, torch.float32)
    z, peers = torch.randn(1, d), list(links.route.sends)
    times = max(4, min(60, 3_000_000 // d))

    def bare() -> None:
        rooms = [torch.empty(d) for _ in peers]
        operations = [dist.P2POp(dist.irecv, room, p) for p, room in zip(peers, rooms, strict=True)]
        operations += [dist.P2POp(dist.isend, z[0], p) for p in peers]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    def mixing() -> None:
        links(z)
        links.settle()

    for work in (bare, mixing):
        _milliseconds(work, 3)
    # In turn, so that whatever else the machine does meets both alike.
    pairs = [(_milliseconds(bare, times), _milliseconds(mixing, times)) for _ in range(ROUNDS)]
    plain, mixed = (statistics.median(column) for column in zip(*pairs, strict=True))
    a = torch.randn(64, 64)

    def compute() -> None:
        # Between two looks at the clock the transport's own thread gets its turn too.
        end = time.perf_counter() + mixed / 1e3
        while time.perf_counter() < end:
            torch.mm(a, a)

    def meanwhile() -> None:
        links(z)
        compute()
        links.settle()

    def afterwards() -> None:
        mixing()
        compute()

    both = [(_milliseconds(meanwhile, times), _milliseconds(afterwards, times)) for _ in range(ROUNDS)]
    overlapped, apart = (statistics.median(column) for column in zip(*both, strict=True))
    ratio = statistics.median(after / before for before, after in pairs)
    group.leave()
    return {
        "floats": d,
        "processes": group.size,
        "bare": plain,
        "mixing": mixed,
        "ratio": ratio,
        "hidden": min(1.0, max(0.0, (apart - overlapped) / mixed)),
    }


# Sparse models


def train(beta: float, send: Any, steps: int, clients: int) -> Row:
    """Bytes of a client, sparsity and accuracy after some steps of the example."""
    settings = [f"problem.beta={beta}", f"run.steps={steps}", f"problem.clients={clients}", "run.seeds=[0]"]
    config = load(EXAMPLE, [*settings, "run.device=cpu"])
    group = join(300, "cpu")
    with group.together("build"):
        engine = ProcessEngine(
            own_data(build_problem(config, EXAMPLE.parent), range(group.rank, group.rank + 1)),
            config.make_network(),
            config.make_algorithm(),
            group,
            period=config.run.period,
            batch_size=config.run.batch_size,
            settings=config.engine_settings(),
            send=send,
        )
    engine.start()
    engine.advance(steps)
    found, costs = engine.measure_cheap(), engine.mean_costs()
    group.leave()
    return {
        "beta": beta,
        "send": send,
        "phases": costs.phases,
        "bytes": costs.bytes_sent,
        "sparsity": float(found["sparsity"]),
        "accuracy": float(found["test_accuracy"]),
    }


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
    found = [_milliseconds(engine.step, steps) for _ in range(5)]
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
    parser.add_argument("--parts", default="phase,hidden,sparsity,scaling")
    parser.add_argument("--steps", type=int, default=400, help="of the sparse models")
    parser.add_argument("--clients", type=int, default=4, help="of the sparse models, each a process")
    chosen = parser.parse_args()
    parts = chosen.parts.split(",")
    found: dict[str, Any] = {"machine": f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}"}
    print(found["machine"], "\n")
    if "phase" in parts or "hidden" in parts:
        found["exchange"] = [launch(exchange, size, d)[0] for size in (2, 4) for d in LENGTHS]
        _table(
            {
                "processes": lambda r: f"{r['processes']}",
                "floats per row": lambda r: f"{r['floats']:,}",
                "bare exchange, ms": lambda r: f"{r['bare']:.3f}",
                "mixing, ms": lambda r: f"{r['mixing']:.3f}",
                "ratio": lambda r: f"{r['ratio']:.2f}",
                "hidden behind computation": lambda r: f"{r['hidden']:.0%}",
            },
            found["exchange"],
        )
    if "sparsity" in parts:
        cases = [(beta, send) for beta in (5e-4, 1e-3) for send in ("float32", "sparse")]
        found["sparsity"] = [launch(train, chosen.clients, *case, chosen.steps, chosen.clients)[0] for case in cases]
        _table(
            {
                "β": lambda r: f"{r['beta']:g}",
                "sent as": lambda r: r["send"],
                "MB per client": lambda r: f"{r['bytes'] / 1e6:.1f}",
                "kB per phase": lambda r: f"{r['bytes'] / max(1, r['phases']) / 1e3:.0f}",
                "sparsity at the end": lambda r: f"{r['sparsity']:.1%}",
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
