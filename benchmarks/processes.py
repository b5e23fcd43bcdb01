"""Measure runs with one process per client: time of an exchange, overlap, sparse models, scaling, compilation.

    python benchmarks/processes.py OUT [--parts exchange,sparsity,scaling,compiled] [--steps 400] [--processes 10]

- `exchange`: the time of one mixing on a ring, compared with a bare exchange of the same bytes on the same links (one
  `batch_isend_irecv` into allocated memory), for rows of several lengths, on 2 and 4 processes; and the share of a
  mixing that overlaps with computation, 1 − (time of both − time of the computation) / time of the mixing. Medians of
  interleaved repetitions, averaged over ranks.
- `sparsity`: bytes per link and phase for the paper's CNN on MNIST (`examples/mnist-sparsity.toml`: 20 clients on a
  ring) with `channel = "sparse"` compared with dense rows, for x and y, with β = 5e-4 and 1e-3, and the share of zeros
  in x when it is sent and after mixing. Requires `DEPOSITUM_DATA`.
- `scaling`: milliseconds per iteration of a fixed problem of 8 clients on 1, 2, 4 and 8 processes.
- `compiled`: milliseconds of a local iteration, of one with an exchange, and of an iteration at T0 = 10, uncompiled and
  compiled, for 8 clients on 4 processes on the CPU and, if there is a GPU, on 2 processes that share it; and in one
  simulator. `--models` names the models.

All processes run on this machine and communicate over the loopback interface with gloo. Prints Markdown tables and
writes `OUT/processes.json`.
"""

import argparse
import json
import multiprocessing as mp
import os
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
from depositum.channels import ANNOUNCEMENT_BYTES, Sparse
from depositum.data import Samples
from depositum.engines import EngineSettings, Simulator
from depositum.engines.distributed import DistributedEngine, Placement
from depositum.engines.distributed.links import LinkMix
from depositum.engines.distributed.torch_communicator import join
from depositum.layout import Layout
from depositum.metrics import cheap
from depositum.models import build
from depositum.problem import Problem, Trial, as_loss
from depositum.provenance import describe_device, describe_versions
from depositum.runs import build_engine, load

EXAMPLE = Path(__file__).parent.parent / "examples" / "mnist-sparsity.toml"
#: Lengths of rows, among them those of the paper's CNN and ResNet-18 on MNIST.
LENGTHS = (1_000, 30_000, 268_362, 3_000_000, 11_175_370)
#: Clients, and T0, of the part `compiled`.
CLIENTS, PERIOD = 8, 10
#: Recorded for each phase of a sparse model: bytes of a message with x and with y, zeros in x before and after mixing.
CURVES = ("x", "y", "zeros sent", "zeros mixed")
Row = dict[str, Any]


# Processes


def _main(rank: int, size: int, port: int, pipe: Connection, work: Callable[..., Any], arguments: Any) -> None:
    torch.set_num_threads(1)
    variables = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ.update({k: str(v) for k, v in variables.items()}, MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    pipe.send(work(*arguments))


def launch(work: Callable[..., Any], size: int, *arguments: Any) -> list[Any]:
    """Return the results of `work(*arguments)` on each of `size` processes."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["depositum.cli"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(size):
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_main, args=(rank, size, port, there, work, arguments), daemon=True)
        process.start()
        there.close()
        processes.append((process, here))
    results = [pipe.recv() for _, pipe in processes]
    for process, _ in processes:
        process.join()
    return results


def _milliseconds(work: Callable[[], object], times: int = 1) -> float:
    """Return the mean time of a number of calls."""
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times * 1e3


# Exchanges


def exchange(d: int, rounds: int) -> Row:
    """Return this rank's milliseconds of a bare exchange, a mixing, its sum, a computation, and a mixing during it."""
    group = join(60, "cpu")
    links = LinkMix(dp.ring(group.size), group, 1, torch.float32)
    z, peers, terms = torch.randn(1, d), list(links.route.sends), links.route.mixing[0]
    buffers = [torch.randn(d) for _ in peers]
    a, out = torch.randn(128, 128), torch.empty(d)

    def bare() -> None:
        operations = [dist.P2POp(dist.irecv, buffer, p) for p, buffer in zip(peers, buffers, strict=True)]
        operations += [dist.P2POp(dist.isend, z[0], p) for p in peers]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    def mixing() -> None:
        links(z)
        links.wait()

    def summing() -> None:
        torch.mul(z[0], terms.own, out=out)
        for (_, weight), buffer in zip(terms.others, buffers, strict=True):
            out.add_(buffer, alpha=weight)

    def compute() -> None:
        for _ in range(count):
            torch.mm(a, a)

    def overlapped() -> None:
        links(z)
        compute()
        links.wait()

    # A fixed amount of computation that takes about twice the time of a mixing.
    count = 100
    first = _alternate({"mixing": mixing, "compute": compute}, 10)
    ratio = torch.tensor(2 * first["mixing"] / first["compute"])
    count = max(1, int(count * group.sum(ratio) / group.size))
    works = {"bare": bare, "mixing": mixing, "sum": summing, "compute": compute, "overlapped": overlapped}
    times = _alternate(works, rounds)
    group.leave()
    return {"floats": d, "processes": group.size, **times}


def _alternate(works: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each function, and of its CPU time under `"NAME (cpu)"`.

    All ranks start each repetition at a barrier. The functions alternate, so that other load on the machine affects all
    of them equally.
    """
    times: dict[str, list[float]] = {key: [] for name in works for key in (name, f"{name} (cpu)")}
    for _ in range(rounds):
        for name, work in works.items():
            dist.barrier()
            cpu = time.process_time()
            times[name].append(_milliseconds(work))
            times[f"{name} (cpu)"].append((time.process_time() - cpu) * 1e3)
    return {name: statistics.median(measured) for name, measured in times.items()}


def exchanged(size: int, d: int) -> Row:
    """Average `exchange` over ranks; add the ratio of mixing to bare exchange and the share that overlaps."""
    rows = launch(exchange, size, d, max(15, min(150, 90_000_000 // d)))
    row = {k: statistics.mean(r[k] for r in rows) for k in rows[0]}
    hidden = 1 - (row["overlapped"] - row["compute"]) / row["mixing"]
    cpu = row["mixing (cpu)"] / row["bare (cpu)"]
    return row | {"ratio": row["mixing"] / row["bare"], "ratio (cpu)": cpu, "hidden": hidden}


# Sparse models


class RecordingChannel(Sparse):
    """The sparse channel, which records the bytes of every message and the share of zeros in its rows."""

    def __init__(self) -> None:
        self.messages: list[tuple[float, float]] = []

    def encode(self, sent: Tensor, words: Tensor) -> Tensor:
        message = super().encode(sent, words)
        self.messages.append((message.numel() + ANNOUNCEMENT_BYTES * len(sent), _zeros(sent)))
        return message


def _zeros(rows: Tensor) -> float:
    return 1 - rows.count_nonzero().item() / rows.numel()


def train(beta: float, steps: int) -> Row:
    """Train the example; return the bytes of messages with x and with y, and the share of zeros in x, by phase.

    Each list has one value per phase, the mean over this rank's messages. With two clients per process on a ring, every
    client's row is in exactly one message per mixing.
    """
    overrides = [f"problem.beta={beta}", f"run.steps={steps}", "run.seeds=[0]", "run.device=cpu"]
    group = join(300, "cpu")
    spec = load(
        EXAMPLE, [*overrides, "network.channel=sparse"], held=lambda n: Placement(n, group.size).clients(group.rank)
    )
    engine = build_engine([spec], communicator=group)
    assert isinstance(engine, DistributedEngine)
    recording = RecordingChannel()
    engine.links.channel = recording
    engine.start()
    curves: dict[str, list[float]] = {name: [] for name in CURVES}
    for t in range(steps):
        recording.messages.clear()
        engine.step()
        if t % spec.config.run.period:
            continue
        half = len(recording.messages) // 2  # x is mixed first, then y
        (x, zeros), (y, _) = (
            [statistics.mean(column) for column in zip(*part, strict=True)]
            for part in (recording.messages[:half], recording.messages[half:])
        )
        for name, value in zip(CURVES, (x, y, zeros, _zeros(engine.state.x)), strict=True):
            curves[name].append(value)
    measured, d = cheap(engine.state, engine.oracle, False, engine.reduction), engine.state.x.shape[1]
    group.leave()
    accuracy, sparsity = float(measured["test_accuracy"]), float(measured["sparsity"])
    return {"beta": beta, "dense": 4 * d, "sparsity": sparsity, "accuracy": accuracy, **curves}


def trained(size: int, *case: Any) -> Row:
    """Average `train` over all ranks."""
    rows: list[Row] = launch(train, size, *case)
    curves = {k: [statistics.mean(at) for at in zip(*(row[k] for row in rows), strict=True)] for k in CURVES}
    return rows[0] | curves


# Scaling


def made(model_name: str, n: int) -> Problem:
    """A problem of n clients on MNIST's shapes (for the CNN as the paper resizes them), with random data."""
    shape, classes, samples = (1, 32, 32) if model_name == "cnn" else (1, 28, 28), 10, 200 * n
    generator = torch.Generator().manual_seed(0)
    data = Samples(
        torch.rand(samples, *shape, generator=generator), torch.randint(0, classes, (samples,), generator=generator)
    )
    model = build(model_name, shape, classes, 0)
    start = Layout.of(model).row({k: p.detach() for k, p in model.named_parameters()})
    owned = torch.arange(samples).view(n, -1).numpy()
    return Problem(
        model, as_loss("cross-entropy"), data, (Trial(0, start, list(owned)),), regularizer=dp.L1(), beta=1e-4
    )


def iteration(n: int, steps: int) -> Row:
    """Return the time of an iteration of an MLP with T0 = 1 and `n` clients on all processes."""
    group = join(120, "cpu")
    engine = DistributedEngine(
        made("mlp", n),
        dp.ring(n),
        dp.Depositum(0.05),
        group,
        batch_size=32,
        settings=EngineSettings("cpu", backend="loop"),
    )
    engine.start()
    engine.advance(5)
    times = []
    for _ in range(5):
        dist.barrier()
        times.append(_milliseconds(engine.step, steps))
    group.leave()
    return {"processes": group.size, "clients": n, "milliseconds": statistics.median(times)}


# Compilation


def compiled(model: str, n: int, device: str, compile: Any, rounds: int, simulated: bool = False) -> Row:
    """Return the milliseconds of local iterations, of those with an exchange, and of compilation; T0 = 10."""
    group = None if simulated else join(300, device)
    settings = EngineSettings(device, compile=compile)
    parts, options = (made(model, n), dp.ring(n), dp.Depositum(0.05)), {"period": PERIOD, "batch_size": 32}
    engine: DistributedEngine | Simulator
    if group is None:
        engine = Simulator(*parts, **options, settings=settings)  # type: ignore[arg-type]
    else:
        engine = DistributedEngine(*parts, group, **options, settings=settings)  # type: ignore[arg-type]
    engine.start()
    engine.watch(PERIOD)

    def advance(count: int) -> float:
        if group is not None:
            group.barrier()
        return _milliseconds(lambda: (engine.advance(count), synchronize()))

    def synchronize() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    began = time.perf_counter()
    for count in (1, PERIOD - 1) * 3:  # compiles each kind of step, and captures local ones
        advance(count)
    ready = time.perf_counter() - began
    exchanges, locals_ = zip(*((advance(1), advance(PERIOD - 1)) for _ in range(rounds)), strict=True)
    advance(PERIOD)  # a simulator captures a complete round
    complete = [advance(PERIOD) for _ in range(rounds)]
    sent = engine.costs.bytes_sent / max(1, engine.costs.phases)
    if group is not None:
        group.leave()
    return {
        "local": statistics.median(locals_) / (PERIOD - 1),
        "exchange": statistics.median(exchanges),
        "iteration": statistics.median(complete) / PERIOD,
        "ready": ready,
        "bytes": sent,
    }


def compiled_rows(models: list[str], rounds: int) -> list[Row]:
    """The measurements of every model: uncompiled and compiled processes, and a compiled simulator."""
    rows = []
    places = [("cpu", 4), *([("cuda", 2)] if torch.cuda.is_available() else [])]
    for model in models:
        for device, size in places:
            for compile in ("never", "always"):
                ranks = launch(compiled, size, model, CLIENTS, device, compile, rounds)
                row = {key: max(rank[key] for rank in ranks) for key in ranks[0]}
                rows.append({"model": model, "where": f"{size} processes, {device}", "compile": compile, **row})
                print(rows[-1], flush=True)
            row = launch(compiled, 1, model, CLIENTS, device, "always", rounds, True)[0]
            rows.append({"model": model, "where": f"simulator, {device}", "compile": "always", **row})
            print(rows[-1], flush=True)
    return rows


# Output


def _table(columns: dict[str, Callable[[Row], str]], rows: list[Row]) -> None:
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(shown(row) for shown in columns.values())} |", flush=True)
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--parts", default="exchange,sparsity,scaling,compiled")
    parser.add_argument("--steps", type=int, default=400, help="iterations of the sparse models")
    parser.add_argument(
        "--processes", type=int, default=10, help="processes of the sparse models, which have 20 clients"
    )
    parser.add_argument("--models", default="linear,mlp,cnn", help="models of the part 'compiled'")
    parser.add_argument("--rounds", type=int, default=20, help="repetitions of the part 'compiled'")
    options = parser.parse_args()
    parts = options.parts.split(",")
    results: dict[str, Any] = {"machine": f"{describe_device('cpu')} ({describe_versions()})"}
    if torch.cuda.is_available():
        results["machine"] = f"{describe_device('cuda')}; {results['machine']}"
    print(results["machine"], "\n")
    if "exchange" in parts:
        results["exchange"] = [exchanged(size, d) for size in (2, 4) for d in LENGTHS]
        _table(
            {
                "processes": lambda r: f"{r['processes']:.0f}",
                "floats per row": lambda r: f"{r['floats']:,.0f}",
                "bare exchange, ms": lambda r: f"{r['bare']:.2f}",
                "sum alone, ms": lambda r: f"{r['sum']:.2f}",
                "mixing, ms": lambda r: f"{r['mixing']:.2f}",
                "mixing / bare": lambda r: f"{r['ratio']:.2f}",
                "in CPU time": lambda r: f"{r['ratio (cpu)']:.2f}",
                "overlaps with computation": lambda r: f"{r['hidden']:.0%}",
            },
            results["exchange"],
        )
    if "sparsity" in parts:
        results["sparsity"] = [trained(options.processes, beta, options.steps) for beta in (5e-4, 1e-3)]
        _table(
            {
                "β": lambda r: f"{r['beta']:g}",
                "zeros in x as sent, at the end": lambda r: f"{r['zeros sent'][-1]:.1%}",
                "after mixing": lambda r: f"{r['zeros mixed'][-1]:.1%}",
                "kB per link and phase at the end: x": lambda r: f"{r['x'][-1] / 1e3:.0f}",
                "y": lambda r: f"{r['y'][-1] / 1e3:.0f}",
                "dense": lambda r: f"{r['dense'] / 1e3:.0f}",
                "MB per link in total: x": lambda r: f"{sum(r['x']) / 1e6:.1f}",
                "y ": lambda r: f"{sum(r['y']) / 1e6:.1f}",
                "dense, each": lambda r: f"{len(r['x']) * r['dense'] / 1e6:.1f}",
                "test accuracy": lambda r: f"{r['accuracy']:.2%}",
            },
            results["sparsity"],
        )
    if "scaling" in parts:
        results["scaling"] = [launch(iteration, size, 8, 20)[0] for size in (1, 2, 4, 8)]
        _table(
            {
                "processes": lambda r: f"{r['processes']}",
                "clients": lambda r: f"{r['clients']}",
                "ms per iteration": lambda r: f"{r['milliseconds']:.1f}",
            },
            results["scaling"],
        )
    if "compiled" in parts:
        results["compiled"] = compiled_rows(options.models.split(","), options.rounds)
        _table(
            {
                "model": lambda r: r["model"],
                "8 clients in": lambda r: r["where"],
                "compiled": lambda r: "yes" if r["compile"] == "always" else "no",
                "local iteration, ms": lambda r: f"{r['local']:.3f}",
                "with an exchange, ms": lambda r: f"{r['exchange']:.3f}",
                "per iteration, T0 = 10, ms": lambda r: f"{r['iteration']:.3f}",
                "kB sent per client and phase": lambda r: f"{r['bytes'] / 1e3:.0f}",
                "until compiled, s": lambda r: f"{r['ready']:.1f}",
            },
            results["compiled"],
        )
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "processes.json").write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
