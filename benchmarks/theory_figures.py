"""The remarks after the paper's theorem as plots, and its figures of graphs and partitions.

    python benchmarks/theory_figures.py docs/images     (seconds on a CPU)

`theory-remarks.png`: the orders that the paper states for λ close to 1 and ρ = 0. `graphs-and-partitions.png`: the four
graphs with ten clients, and who holds which classes under Dir(1) and Dir(0.5), on scikit-learn's digits.
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import depositum as dp
from depositum.data.partitions import dirichlet
from depositum.networks.drawing import draw_network
from depositum.theory import delta1, delta2

PERIODS = (1, 2, 5, 10)
GAPS = np.logspace(-4, -0.5, 40)
CLIENTS = np.array([4, 8, 16, 32, 64, 128])


def coefficient(lam: float, period: int) -> float:
    """The factor of the last term of Corollary 1 without its correction: T0(11δ1 + 6T0)/(δ1δ2)."""
    d1, d2 = delta1(lam, period), delta2(lam, period)
    return period * (11 * d1 + 6 * period) / (d1 * d2)


def crossover(n: int, lam: float, period: int) -> float:
    """The T + 1 from which the network's term of Corollary 1 is below that of the objective gap (σ² = L·gap = 1).

    c·16√n/(T+1) = 192/√(n(T+1)), where c is `coefficient`, gives √(T+1) = 16 c n/192.
    """
    return (16 * coefficient(lam, period) * n / 192) ** 2


def slope(x: np.ndarray, y: np.ndarray) -> float:
    """The exponent of a power law, from logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def remarks(path: Path) -> None:
    figure = Figure(figsize=(10.5, 3.2), layout="constrained")
    margin, factor, transient = figure.subplots(1, 3)
    small = GAPS < 1e-2
    for period in PERIODS:
        margins = np.array([delta1(1 - gap, period) for gap in GAPS])
        margin.loglog(GAPS, margins * period, label=f"T0 = {period}, slope {slope(GAPS[small], margins[small]):.3f}")
        factors = np.array([coefficient(1 - gap, period) for gap in GAPS])
        factor.loglog(GAPS, factors / period**4, label=f"T0 = {period}, slope {slope(GAPS[small], factors[small]):.3f}")
        times = np.array([crossover(int(n), 0.9, period) for n in CLIENTS])
        transient.loglog(CLIENTS, times, "o-", ms=3, label=f"T0 = {period}, slope {slope(CLIENTS, times):.2f}")
    margin.loglog(GAPS, GAPS**2, "k:", label="(1 − λ)²")
    factor.loglog(GAPS, 6 / GAPS**4, "k:", label="6/(1 − λ)⁴")
    transient.set_ylim(top=1e25)
    for axes, title, x in (
        (margin, "δ1·T0 = δ2·T0 (ρ = 0)", "1 − λ"),
        (factor, "network factor / T0⁴", "1 − λ"),
        (transient, "T + 1 from which 1/√(nT) dominates: n²", "clients n (λ = 0.9)"),
    ):
        axes.set_title(title, fontsize=10)
        axes.set_xlabel(x)
        axes.legend(fontsize=7)
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def graphs_and_partitions(path: Path) -> None:
    figure = Figure(figsize=(11, 6.8), layout="constrained")
    graphs, partitions = figure.subfigures(2, 1, height_ratios=(1.2, 1))
    networks = {"Ring": dp.ring(10), "2-hop ring": dp.ring(10, hops=2), "3-hop ring": dp.ring(10, hops=3)}
    networks["Complete"] = dp.complete(10)
    for axes, (name, network) in zip(graphs.subplots(1, 4), networks.items(), strict=True):
        draw_network(network, axes)
        axes.set_title(name, fontsize=10, pad=12)
    targets = load_digits().target
    classes = np.unique(targets)
    for axes, theta in zip(partitions.subplots(1, 2), (1.0, 0.5), strict=True):
        parts = dirichlet(targets, 10, np.random.default_rng(0), theta)
        bottom = np.zeros(10)
        for label in classes:
            counts = np.array([(targets[part] == label).sum() for part in parts]) / (targets == label).sum()
            axes.bar(range(10), counts, bottom=bottom, label=str(label))
            bottom += counts
        axes.set_title(f"Dir({theta:g}): share of each class", fontsize=10)
        axes.set_xlabel("client")
        axes.set_xticks(range(10))
    axes.legend(title="class", fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=150)


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
    out.mkdir(parents=True, exist_ok=True)
    remarks(out / "theory-remarks.png")
    graphs_and_partitions(out / "graphs-and-partitions.png")
    print(f"{out / 'theory-remarks.png'}, {out / 'graphs-and-partitions.png'}")


if __name__ == "__main__":
    main()
