"""The time of one mixing W·z as a function of the number of edges.

    python benchmarks/mixing.py [--clients 4000] [--length 7850]

For rings with 2 to 64 neighbours, random graphs of the same degrees, and the complete graph (a mean): milliseconds, the
ratio to copying the rows on the device (a lower bound of mixing), and the nanoseconds that each additional end of an
edge costs per 1,000 numbers, relative to the row with half as many neighbours.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import networkx as nx
import torch
from simulator import DEVICE, machine, timed

import depositum as dp
from depositum.engines.mixing import MatrixMix


def measure(network: dp.Network, d: int) -> float:
    """Milliseconds of one mixing of rows `[n, d]`."""
    mix = MatrixMix(network, 1, DEVICE, torch.float32)
    z = torch.randn(network.n, d, device=DEVICE)

    def run(count: int) -> None:
        for _ in range(count):
            mix(z)

    run(3)
    return timed(run, 1, 0.3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=4000)
    parser.add_argument("--length", type=int, default=7850)
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    n, d = options.clients, options.length
    print(
        f"{machine()}; n = {n}, d = {d}\n\n"
        "| graph | neighbours | ms | copies of the rows | ns per additional edge end and 1,000 numbers |\n"
        "|---|---|---|---|---|",
        flush=True,
    )
    z, other = (torch.randn(n, d, device=DEVICE) for _ in range(2))
    copy = timed(lambda count: [other.copy_(z) for _ in range(count)], 1, 0.3)
    before: dict[str, float] = {}
    cases: list[dict[str, Any]] = []

    def report(name: str, degree: int, milliseconds: float, each: float | None) -> None:
        shown = "" if each is None else f"{each:.3f}"
        print(f"| {name} | {degree} | {milliseconds:.3f} | {milliseconds / copy:.1f} | {shown} |", flush=True)
        cases.append(
            {"graph": name, "neighbours": degree, "ms": milliseconds, "copies": milliseconds / copy, "each": each}
        )

    for degree in (2, 4, 8, 16, 32, 64):
        for name, network in (
            ("ring", dp.ring(n, hops=degree // 2)),
            ("random", dp.Network.from_graph(nx.random_regular_graph(degree, n, seed=0)) if degree > 2 else None),
        ):
            if network is None:
                continue  # random graphs of degree 2 are unions of rings
            milliseconds = measure(network, d)
            more = milliseconds - before[name] if name in before else None
            each = None if more is None else 1e6 * more / (n * degree / 2) / (d / 1000)
            report(name, degree, milliseconds, each)
            before[name] = milliseconds
    # The complete graph as used by servers and at the start: an exact mean, without a matrix.
    mix = MatrixMix(dp.ring(n), 1, DEVICE, torch.float32)
    z = torch.randn(n, d, device=DEVICE)

    def means(count: int) -> None:
        for _ in range(count):
            mix.average(z)

    means(3)
    milliseconds = timed(means, 1, 0.3)
    report("complete (a mean)", n - 1, milliseconds, None)
    if options.json:
        found = {"machine": machine(), "n": n, "d": d, "copy_ms": copy, "cases": cases}
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
