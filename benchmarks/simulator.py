"""The simulator compared to a loop over clients, and to centralized SGD on as many samples.

    python benchmarks/simulator.py OUT [--models linear,mlp,cnn,resnet18] [--clients 10,20,100,1000] [--seeds 1,5]
    python benchmarks/simulator.py OUT --any-model [--scale] [--uncompiled]

For every model, number of clients and number of seeds, this measures in milliseconds per complete iteration (batch,
gradient, prox, momentum, tracking, mixing at T0 = 10 on a ring; B = 32):

- this engine, compiled (and captured in CUDA graphs on a GPU), with the seconds of preparation; and only captured;
- the eager loop: the same algorithm, one client's gradient after another; and with `--uncompiled`, instead of the
  compiled engine, gradients of all clients in one call, uncompiled too;
- centralized SGD on the same n·S·B samples: eager, and (on a GPU) compiled in a CUDA graph;

and the lower bound by the machine's memory bandwidth and arithmetic. It prints a Markdown table and writes
`simulator.json` and `simulator.png` to OUT. Data are random, with the shapes of real ones; no time depends on values.
`--any-model` measures the paper's models and those of common layers (`benchmark_models.py`), `--scale` more clients and
seeds of the paper's models. The first iteration is reported with everything that precedes it in a new process: imports,
making the problem, building the engine, reading what was compiled. `--warm` only fills the compiler's caches, so that a
later run needs no compiler; processes may do so for several cases at the same time.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmark_models import ANY_MODEL, CASES, PAPER, SCALE
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import depositum as dp
from depositum.data import Samples
from depositum.engines import EngineSettings, Simulator
from depositum.layout import Layout
from depositum.problem import Loss, Problem, Trial, as_loss
from depositum.problem.precision import forward_backward
from depositum.provenance import describe_versions

BATCH, PERIOD = 32, 10
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
PRECISION = "tf32" if GPU else "float32"


@lru_cache(maxsize=1)
def data(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The inputs and targets of a case, which take seconds to draw."""
    return CASES[name].data(CASES[name].samples)


def problem(name: str, n: int, seeds: int) -> Problem:
    case = CASES[name]
    samples, train, model = case.samples, Samples(*data(name)), case.model()
    start = Layout.of(model).row({k: p.detach() for k, p in model.named_parameters()})
    parts = [np.arange(i, samples, n) for i in range(n)]
    trials = tuple(Trial(seed, start, parts) for seed in range(seeds))
    return Problem(model, as_loss(case.loss), train, trials, regularizer=dp.L1(), beta=1e-5)


def simulator(task: Problem, *, backend: str = "auto", compile: str = "always", topology: str = "ring") -> Simulator:
    settings = EngineSettings(str(DEVICE), "float32", PRECISION, backend, compile)  # type: ignore[arg-type]
    method, network = dp.Depositum(alpha=0.01, gamma=0.5), dp.network(topology, task.n)
    simulator = Simulator(task, network, method, period=PERIOD, batch_size=BATCH, settings=settings)
    simulator.start()
    return simulator


@cache
def import_seconds() -> float:
    """Seconds that a new process takes to start and import the package and torch."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import depositum, torch"], check=True)
    return time.perf_counter() - start


def wait() -> None:
    if GPU:
        torch.cuda.synchronize()


def timed(run: Callable[[int], None], unit: int, budget: float) -> float:
    """Milliseconds per iteration: the median over calls of `run(unit · k)`, k such that a call takes budget / 5."""
    wait()
    start = time.perf_counter()
    run(unit)
    wait()
    once = time.perf_counter() - start
    count = unit * max(1, int(budget / 5 / max(once, 1e-6)))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        run(count)
        wait()
        times.append((time.perf_counter() - start) / count)
        if sum(times) * count > 2 * budget:
            break
    return 1e3 * statistics.median(times)


def engine(task: Problem, compile: str, budget: float, topology: str = "ring") -> dict[str, float]:
    """Milliseconds per iteration, seconds of preparation, and memory in vectors of length d per row."""
    if GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    sim = simulator(task, compile=compile, topology=topology)
    sim.watch(10**4)  # as in every run
    sim.advance(1)
    wait()
    first = time.perf_counter() - start
    start = time.perf_counter()
    sim.advance(3 * 2 * PERIOD)
    wait()
    preparation = time.perf_counter() - start
    milliseconds = timed(sim.advance, 2 * PERIOD, budget)
    rows, d = sim.state.x.shape
    memory = (torch.cuda.max_memory_allocated() - sim.oracle.inputs.nbytes) / (4 * rows * d) if GPU else float("nan")
    return {"ms": milliseconds, "prepare_s": first + preparation, "first_s": first, "vectors": memory}


def eager(task: Problem, backend: str, budget: float) -> float:
    """Uncompiled iterations with one client's gradient after another, or those of all clients in one call."""
    sim = simulator(task, backend=backend, compile="never")

    def run(count: int) -> None:
        for _ in range(count):
            sim.step()

    run(1)
    return timed(run, 1, budget)


def centralized(name: str, samples: int, budget: float, *, compiled: bool) -> float:
    """One SGD step on `samples` samples drawn from the same data, in place."""
    case = CASES[name]
    total, model, loss = case.samples, case.model().to(DEVICE), as_loss(case.loss)
    inputs, targets = (z.to(DEVICE) for z in data(name))
    parameters = list(model.parameters())

    def step() -> None:
        index = torch.randint(0, total, (samples,), device=DEVICE)
        mean = loss.per_sample(model(inputs[index]), targets[index]).mean()
        gradients = torch.autograd.grad(mean, parameters)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-0.01)

    # cuDNN may choose among all its kernels here, unlike in runs, which must be reproducible to the bit.
    torch.backends.cudnn.benchmark = True
    with forward_backward(PRECISION):
        one = captured(_compiled_sgd(model, loss, inputs, targets, samples)) if compiled else step

        def run(count: int) -> None:
            for _ in range(count):
                one()

        run(3)
        return timed(run, 1, budget)


def _compiled_sgd(
    model: nn.Module, loss: Loss, inputs: torch.Tensor, targets: torch.Tensor, samples: int
) -> Callable[[], None]:
    """The same step with forward pass, backward pass and update each compiled."""
    parameters = list(model.parameters())

    @torch.compile(dynamic=False)
    def loss_of(index: torch.Tensor) -> torch.Tensor:
        return loss.per_sample(model(inputs[index]), targets[index]).mean()

    @torch.compile(dynamic=False)
    def update(gradients: list[torch.Tensor]) -> None:
        torch._foreach_add_(parameters, gradients, alpha=-0.01)

    def step() -> None:
        index = torch.randint(0, len(targets), (samples,), device=DEVICE)
        gradients = torch.autograd.grad(loss_of(index), parameters)
        with torch.no_grad():
            update(list(gradients))

    return step


def captured(step: Callable[[], None]) -> Callable[[], None]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def flops(name: str, samples: int) -> float:
    """Floating-point operations of a forward and backward pass, as counted by torch."""
    case = CASES[name]
    model, (inputs, targets) = case.model(), case.data(2)
    with FlopCounterMode(display=False) as counter:
        as_loss(case.loss).per_sample(model(inputs), targets).mean().backward()
    return samples * counter.get_total_flops() / 2


def ceilings() -> tuple[float, float]:
    """Bytes per second of a copy (read and write), and FLOP per second of a matrix product, as measured."""
    size = 1 << (29 if GPU else 25)
    a, b = torch.empty(size // 4, device=DEVICE), torch.empty(size // 4, device=DEVICE)

    def copies(count: int) -> None:
        for _ in range(count):
            b.copy_(a)

    m = torch.randn(*(2 * [8192 if GPU else 1024]), device=DEVICE)

    def products(count: int) -> None:
        for _ in range(count):
            m @ m

    copies(3)
    with forward_backward(PRECISION):
        products(3)
        return 2 * size / (timed(copies, 1, 0.3) / 1e3), 2 * len(m) ** 3 / (timed(products, 1, 0.5) / 1e3)


@contextmanager
def reported_failure(what: str, results: dict[str, Any]) -> Iterator[None]:
    """Print the error of a measurement that fails, mostly for lack of memory, and leave it out of the results."""
    try:
        yield
    except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
        results[what] = None
        print(f"  {what}: {' '.join(str(error).split())[:160]}", flush=True)


def measure(
    name: str,
    n: int,
    seeds: int,
    limits: tuple[float, float],
    budget: float,
    topology: str,
    brief: bool,
    compiled: bool,
    ratio_only: bool,
) -> dict[str, Any]:
    began = time.perf_counter()
    task = problem(name, n, seeds)
    made = time.perf_counter() - began
    rows, d = n * seeds, task.layout.size
    out: dict[str, Any] = {"model": name, "clients": n, "seeds": seeds, "d": d}
    if compiled:
        with reported_failure("engine", out):
            out["engine"] = engine(task, "always", budget, topology)
            out["first_iteration_s"] = import_seconds() + made + out["engine"]["first_s"]
    else:
        with reported_failure("batched_ms", out):
            out["batched_ms"] = eager(task, "vmap", budget)
    if not (brief or ratio_only):
        with reported_failure("captured", out):
            out["captured"] = engine(task, "never", budget, topology)
    if GPU:
        torch.cuda.empty_cache()
    if rows <= 100 and not ratio_only:
        with reported_failure("loop_ms", out):
            out["loop_ms"] = eager(task, "loop", budget)
    peers = [("central_ms", False)] if not (ratio_only and GPU) else []
    for key, as_graph in (*peers, *([("central_compiled_ms", True)] if GPU else [])):
        with reported_failure(key, out):
            out[key] = centralized(name, rows * BATCH, budget, compiled=as_graph)
    bandwidth, arithmetic = limits
    # Nine passes: x, y, ν read and written, the gradient written and read, and the argument of the prox.
    out["byte_ms"] = 1e3 * 9 * 4 * rows * d / bandwidth
    out["flop_ms"] = 1e3 * flops(name, rows * BATCH) / arithmetic
    return out


def line(case: dict[str, Any]) -> str:
    ours = (case.get("engine") or {}).get("ms")

    def show(value: float | None, form: str = ".3f") -> str:
        return "–" if value is None else format(value, form)

    def ratio(key: str) -> str:
        other = case.get(key)
        return "–" if not ours or not other else f"{other / ours:.2f}"

    central = case.get("central_compiled_ms") or case.get("central_ms")
    engine, captured_only = case.get("engine") or {}, case.get("captured") or {}
    floor = max(case["byte_ms"], case["flop_ms"])
    cells = [
        f"{case['model']}, {case['clients']}" + (f" × {case['seeds']}" if case["seeds"] > 1 else ""),
        show(ours), show(captured_only.get("ms")), show(case.get("loop_ms"), ".1f"),
        show(case.get("central_ms")), show(case.get("central_compiled_ms")),
        ratio("loop_ms"), show(ours / central if ours and central else None, ".2f"),
        show(100 * floor / ours if ours else None, ".0f"),
        show(engine.get("vectors"), ".1f"), show(engine.get("prepare_s"), ".0f"),
        show(case.get("first_iteration_s"), ".1f"),
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def throughput_of_batched_seeds(cases: list[dict[str, Any]]) -> list[str]:
    """The throughput of several seeds in one batch, relative to consecutive runs."""
    single = {(c["model"], c["clients"]): c["engine"]["ms"] for c in cases if c["seeds"] == 1 and c.get("engine")}
    return [
        f"{c['model']}, {c['clients']} clients: {c['seeds']} seeds in one batch have "
        f"{c['seeds'] * single[key] / c['engine']['ms']:.2f} times the throughput of consecutive runs"
        for c in cases
        if c["seeds"] > 1 and c.get("engine") and (key := (c["model"], c["clients"])) in single
    ]


COLUMNS = (
    "model, clients (× seeds)", "this engine", "uncompiled", "eager loop", "SGD eager", "SGD compiled", "loop / engine",
    "engine / SGD", "% of limit", "memory, vectors", "start-up s", "first iteration s",
)  # fmt: skip
HEADER = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def figure(cases: list[dict[str, Any]], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(case["model"] for case in cases))
    fig, axes = plt.subplots(1, len(names), figsize=(4 * len(names), 3.6), squeeze=False, layout="constrained")
    series = {
        "eager loop over clients": ("loop_ms", "tab:red", "o"),
        "SGD of the same samples, eager": ("central_ms", "tab:gray", "s"),
        "SGD, compiled": ("central_compiled_ms", "black", "s"),
    }
    for axis, name in zip(axes[0], names, strict=True):
        single = [c for c in cases if c["model"] == name and c["seeds"] == 1]
        for label, (key, colour, marker) in series.items():
            points = [(c["clients"], c[key]) for c in single if c.get(key)]
            if points:
                axis.loglog(*zip(*points, strict=True), marker=marker, color=colour, label=label)
        points = [(c["clients"], c["engine"]["ms"]) for c in single if c.get("engine")]
        if points:
            axis.loglog(*zip(*points, strict=True), marker="D", color="tab:blue", label="this engine", linewidth=2)
        axis.set(title=name, xlabel="clients")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("milliseconds per iteration")
    labelled = {label: line for axis in axes[0] for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    fig.legend(labelled.values(), labelled.keys(), loc="outside upper center", ncols=len(labelled), fontsize=9)
    fig.savefig(out / "simulator.png", dpi=120)


def machine() -> str:
    name = torch.cuda.get_device_name() if GPU else f"{torch.get_num_threads()} CPU threads, {platform.machine()}"
    return f"{name}, {PRECISION} ({describe_versions()})"


def selected_cases(options: argparse.Namespace) -> list[tuple[str, int, int]]:
    """The combinations to measure: `--cases`, or all that fit on one GPU."""
    chosen = [*[ANY_MODEL] * options.any_model, *[SCALE] * options.scale]
    if cases := options.cases or ",".join(chosen):
        return [(name, int(n), int(seeds)) for name, n, seeds in (case.split(":") for case in cases.split(","))]
    counts = [(int(n), int(s)) for n in options.clients.split(",") for s in options.seeds.split(",")]
    largest = {"resnet18": 100}
    return [(name, n, s) for name in options.models.split(",") for n, s in counts if n * s <= largest.get(name, 1000)]


def warm(name: str, n: int, seeds: int, topology: str) -> None:
    """Fill the compilers' caches for a case."""
    seconds = engine(problem(name, n, seeds), "always", 0.01, topology)["prepare_s"]
    print(f"{name}:{n}:{seeds}: prepared in {seconds:.1f} s", flush=True)
    centralized(name, n * seeds * BATCH, 0.01, compiled=GPU)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", default=",".join(PAPER))
    parser.add_argument("--any-model", action="store_true", help="the paper's models and those of common layers")
    parser.add_argument("--scale", action="store_true", help="more clients and seeds of the paper's models")
    parser.add_argument("--uncompiled", action="store_true", help="all clients in one call against a loop, uncompiled")
    parser.add_argument("--clients", default="10,20,100,1000")
    parser.add_argument("--seeds", default="1,5")
    parser.add_argument("--topology", default="ring")
    parser.add_argument("--brief", action="store_true", help="do not measure the engine without compilation")
    parser.add_argument("--ratio-only", action="store_true", help="measure only this engine and compiled SGD")
    parser.add_argument("--warm", action="store_true", help="only fill the compiler's caches")
    parser.add_argument("--cases", help="model:clients:seeds,… instead of all combinations")
    parser.add_argument("--seconds", type=float, default=0.5, help="duration of each measurement")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.warm:
        for name, n, seeds in selected_cases(options):
            warm(name, n, seeds, options.topology)
        return
    limits = ceilings()
    print(
        f"{machine()}; copy {limits[0] / 1e12:.2f} TB/s, product {limits[1] / 1e12:.1f} TFLOP/s\n\n{HEADER}", flush=True
    )
    cases: list[dict[str, Any]] = []
    for name, n, seeds in selected_cases(options):
        cases.append(
            measure(
                name,
                n,
                seeds,
                limits,
                options.seconds,
                options.topology,
                options.brief,
                not options.uncompiled,
                options.ratio_only,
            )
        )
        print(line(cases[-1]), flush=True)
        if options.uncompiled and (batched := cases[-1].get("batched_ms")) and (loop := cases[-1].get("loop_ms")):
            print(
                f"  {name}, {n}: in one call {batched:.1f} ms, one after another {loop:.1f}, ratio {batched / loop:.2f}"
            )
        torch.compiler.reset()
        (options.out / "simulator.json").write_text(
            json.dumps({"machine": machine(), "limits": limits, "cases": cases}, indent=1)
        )
    print("\n" + "\n".join(throughput_of_batched_seeds(cases)))
    figure(cases, options.out)


if __name__ == "__main__":
    main()
