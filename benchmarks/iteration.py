"""The kernels of an iteration on a GPU, in order, each with the mean of its time over replays.

    python benchmarks/iteration.py mlp:10:5 [mlp:10:1 …]

A case is model, clients and seeds, as for `simulator.py`, whose problems are used. The iteration is a local one (no
exchange), compiled, monitored, and captured in a CUDA graph. The last line is the complete iteration, as measured by
`simulator.py`: kernels of one graph may overlap a little, and wait a little for one another.
"""

import argparse

import simulator as bench
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from depositum.provenance import describe_versions

REPLAYS = 20


def kernels(name: str, n: int, seeds: int) -> list[tuple[str, float]]:
    """The names of an iteration's kernels, and their microseconds."""
    task = bench.problem(name, n, seeds)
    sim = bench.simulator(task)
    sim.watch(10**4)
    sim.advance(3 * 2 * bench.PERIOD)
    accelerator = sim._accelerator
    assert accelerator is not None
    local, graph = accelerator._programs["local"], torch.cuda.CUDAGraph()
    local()
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
    return [(event.name, mean) for event, mean in zip(events[:count], means, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+", metavar="MODEL:CLIENTS:SEEDS")
    cases = parser.parse_args().cases
    if not bench.GPU:
        parser.error("needs a GPU")
    for case in cases:
        name, n, seeds = case.split(":")
        print(f"{case}, {torch.cuda.get_device_name()} ({describe_versions()})")
        found = kernels(name, int(n), int(seeds))
        for label, microseconds in found:
            print(f"  {microseconds:8.1f} µs  {label[:100]}")
        total = bench.engine(bench.problem(name, int(n), int(seeds)), "always", 0.5)["ms"]
        print(f"  {sum(time for _, time in found):8.1f} µs in {len(found)} kernels; {1e3 * total:.1f} µs per iteration")


if __name__ == "__main__":
    main()
