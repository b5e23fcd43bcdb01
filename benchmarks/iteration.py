"""The kernels of an iteration on a GPU, in order, each with its time, traffic and arithmetic: a roofline.

    python benchmarks/iteration.py mlp:10:5 [mlp:10:1 …] [--json FILE]

A case is model, clients and seeds, as for `simulator.py`, whose problems are used. The iteration is a local one (no
exchange), compiled, monitored, and captured in a CUDA graph. A line has the mean microseconds over replays, the bytes
that the kernel has to read and write (of what it uses of each of its arguments, once) as a share of the measured
bandwidth, and the operations of its products as a share of those of a large product. Where both shares are small, time
is lost in the kernel itself, or waiting. A dash means that the size of a kernel's arguments is not known here.

The last lines compare the sum with the time of the complete iteration, as `simulator.py` measures it (kernels of one
graph may overlap a little, and wait a little for one another), and with bounds: the sum of each kernel's larger bound,
and the passes over the state alone, of which DEPOSITUM needs nine at least.
"""

import argparse
import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import simulator as bench
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import flop_registry

REPLAYS = 20
#: x, y and ν read and written, the gradient written and read, and the argument of the prox.
STATE_PASSES = 9
Shape = Sequence[int]


@dataclass
class Kernel:
    """A launch: its name, microseconds, bytes and floating-point operations; None if not known."""

    name: str
    microseconds: float
    bytes: float | None = None
    operations: float | None = None


def work(name: str, shapes: Sequence[Shape], constants: Sequence[Any]) -> tuple[float | None, float | None]:
    """Bytes and operations of an operator with inputs of these shapes, and these lists and numbers."""
    if name in ("aten::bmm", "aten::mm"):
        a, b = shapes[:2]
        return 4.0 * (prod(a) + prod(b) + prod(a[:-1]) * b[-1]), 2.0 * prod(a) * b[-1]
    if name == "depositum::row_convolution":
        x, w, size = shapes[0], shapes[1], constants[5]
        outputs = prod(x[:2]) * w[3] * prod(size)
        return 4.0 * (prod(x) + prod(w) + outputs), 2.0 * outputs * prod(w[1:3]) * w[4]
    if name in ("depositum::row_convolution_inputs", "depositum::row_convolution_weights"):
        outputs, x, w = shapes[:3]
        return 4.0 * sum(map(prod, (outputs, x, w))), 2.0 * prod(outputs) * prod(w[1:3]) * w[4]
    if name == "depositum::taps_first":
        return 8.0 * prod(shapes[0]), 0.0
    given = [shape for shape in shapes if shape]
    traffic = 4.0 * sum(map(prod, given)) if given else None
    operator = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
    return traffic, float(flop_registry[operator](*given[:4])) if operator in flop_registry else 0.0


def generated_bytes() -> dict[str, float]:
    """What the compiler estimates that its kernels read and write, by their names."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    metas = [kernel.inductor_meta for kernel in gc.get_objects() if isinstance(kernel, CachingAutotuner)]
    return {meta["kernel_name"]: 1e9 * meta["kernel_num_gb"] for meta in metas if "kernel_num_gb" in meta}


def launches(program: Callable[[], None]) -> list[Kernel]:
    """The kernels that a program launches, in order, with their work; their times are those of single launches."""
    program()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as profiler:
        program()
        torch.cuda.synchronize()
    sizes, found = generated_bytes(), []
    events = [event for event in profiler.events() if event.device_type == DeviceType.CPU and event.kernels]
    for event in sorted(events, key=lambda event: event.time_range.start):
        for kernel in event.kernels:
            try:
                traffic, operations = work(event.name, event.input_shapes or [], event.concrete_inputs or [])
            except (IndexError, TypeError, ValueError):  # not recorded by this version of the profiler
                traffic, operations = None, None
            if event.name in sizes:
                traffic, operations = sizes[event.name], 0.0
            found.append(Kernel(kernel.name, kernel.duration, traffic, operations))
    return found


def kernels(name: str, n: int, seeds: int) -> list[Kernel]:
    """An iteration's kernels."""
    task = bench.problem(name, n, seeds)
    # With these settings the compiler stores what its kernels read and write.
    with torch._inductor.config.patch(benchmark_kernel=True):
        sim = bench.simulator(task)
        sim.watch(10**4)
        sim.advance(3 * 2 * bench.PERIOD)
    accelerator = sim._accelerator
    assert accelerator is not None
    local, graph = accelerator._programs["local"], torch.cuda.CUDAGraph()
    known = launches(local)
    with torch.cuda.graph(graph):
        local()
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(REPLAYS):
            graph.replay()
        torch.cuda.synchronize()
    events = [event for event in profiler.events() if event.device_type == DeviceType.CUDA]
    events.sort(key=lambda event: event.time_range.start)
    count = len(events) // REPLAYS
    means = [sum(event.time_range.elapsed_us() for event in events[k::count]) / REPLAYS for k in range(count)]
    found = [Kernel(event.name, mean) for event, mean in zip(events[:count], means, strict=True)]
    return with_work(found, known)


def with_work(found: list[Kernel], known: list[Kernel]) -> list[Kernel]:
    """Kernels of a graph, with the work of the same launches outside of it: the k-th of a name is the k-th of it."""
    by_name: dict[str, list[Kernel]] = {}
    for kernel in known:
        by_name.setdefault(kernel.name, []).append(kernel)
    for kernel in found:
        if same := by_name.get(kernel.name):
            first = same.pop(0)
            kernel.bytes, kernel.operations = first.bytes, first.operations
    return found


def line(kernel: Kernel, limits: tuple[float, float]) -> str:
    """Time, megabytes and share of the bandwidth, GFLOP and share of the arithmetic, name."""

    def share(amount: float | None, limit: float, unit: float) -> str:
        if not amount:
            return f"{'–':>9} {'–':>4}"
        return f"{amount / unit:9.2f} {100 * amount / limit / (1e-6 * max(kernel.microseconds, 1e-3)):3.0f}%"

    cells = share(kernel.bytes, limits[0], 1e6), share(kernel.operations, limits[1], 1e9)
    return f"{kernel.microseconds:9.1f} {' '.join(cells)}  {kernel.name[:80]}"


def bound(kernel: Kernel, limits: tuple[float, float]) -> float:
    """Microseconds that a kernel takes at least."""
    return 1e6 * max((kernel.bytes or 0.0) / limits[0], (kernel.operations or 0.0) / limits[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+", metavar="MODEL:CLIENTS:SEEDS")
    parser.add_argument("--json", type=Path, help="also write the kernels to this file")
    options = parser.parse_args()
    if not bench.GPU:
        parser.error("needs a GPU")
    limits, written = bench.ceilings(), []
    for case in options.cases:
        name, n, seeds = case.split(":")
        print(f"{case}, {bench.machine()}; {limits[0] / 1e12:.2f} TB/s, {limits[1] / 1e12:.0f} TFLOP/s")
        print(f"{'µs':>9} {'MB':>9}      {'GFLOP':>9}       kernel")
        found = kernels(name, int(n), int(seeds))
        for kernel in found:
            print(line(kernel, limits))
        task = bench.problem(name, int(n), int(seeds))
        total = bench.engine(task, "always", 0.5)["ms"]
        rows = int(n) * int(seeds)
        state = 1e6 * STATE_PASSES * 4 * rows * task.layout.size / limits[0]
        least = sum(bound(kernel, limits) for kernel in found)
        print(
            f"{sum(kernel.microseconds for kernel in found):9.1f} µs in {len(found)} kernels; {1e3 * total:.1f} µs per "
            f"iteration; bounds: {least:.1f} µs of all kernels, {state:.1f} of {STATE_PASSES} passes over the state",
            flush=True,
        )
        written.append(
            {"case": case, "machine": bench.machine(), "limits": limits, "iteration_ms": total, "state_us": state,
             "kernels": [asdict(kernel) for kernel in found]}
        )  # fmt: skip
        if options.json:
            options.json.write_text(json.dumps(written, indent=1))


if __name__ == "__main__":
    main()
