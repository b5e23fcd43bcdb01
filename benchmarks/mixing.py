"""What one mixing W·z costs, against the number of edges.

    python benchmarks/mixing.py [--clients 4000] [--length 7850]

Rings of 2 to 64 neighbours, random graphs of the same degrees, and the complete graph (a mean): milliseconds, how many
times the device's own copy of the rows that is (no mixing can be below one), and nanoseconds that each further edge
end costs, per 1,000 numbers: the difference to the line of half as many neighbours.
"""

import argparse

import networkx as nx
import torch
from simulator import DEVICE, machine, timed

import depositum as dp
from depositum.engines.mixing import Exchange


def measure(network: dp.Network, d: int) -> float:
    """Milliseconds of one mixing of rows `[n, d]`."""
    mix = Exchange(network, 1, DEVICE, torch.float32)
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
    chosen = parser.parse_args()
    n, d = chosen.clients, chosen.length
    print(
        f"{machine()}; n = {n}, d = {d}\n\n"
        "| graph | neighbours | ms | copies of the rows | ns per further edge end and 1,000 numbers |\n"
        "|---|---|---|---|---|",
        flush=True,
    )
    z, other = (torch.randn(n, d, device=DEVICE) for _ in range(2))
    copy = timed(lambda count: [other.copy_(z) for _ in range(count)], 1, 0.3)
    before: dict[str, float] = {}
    for degree in (2, 4, 8, 16, 32, 64):
        for name, network in (
            ("ring", dp.ring(n, hops=degree // 2)),
            ("random", dp.Network.from_graph(nx.random_regular_graph(degree, n, seed=0)) if degree > 2 else None),
        ):
            if network is None:
                continue  # two neighbours at random make several rings
            took = measure(network, d)
            more = took - before.get(name, took)
            each = f"{1e6 * more / (n * degree / 2) / (d / 1000):.3f}" if more else ""
            print(f"| {name} | {degree} | {took:.3f} | {took / copy:.1f} | {each} |", flush=True)
            before[name] = took
    # The complete graph as servers and the start use it: an exact mean, which needs no matrix.
    mix = Exchange(dp.ring(n), 1, DEVICE, torch.float32)
    z = torch.randn(n, d, device=DEVICE)

    def means(count: int) -> None:
        for _ in range(count):
            mix.average(z)

    means(3)
    took = timed(means, 1, 0.3)
    print(f"| complete (a mean) | {n - 1} | {took:.3f} | {took / copy:.1f} | |")


if __name__ == "__main__":
    main()
