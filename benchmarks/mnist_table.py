"""Compare our MNIST results with the paper's: accuracies, sparsities, and the accuracy that sparsity costs.

    python benchmarks/mnist_table.py OUT [SEEDS]     (requires the MNIST files; takes minutes on a GPU, hours without)

Runs all variants of `examples/mnist-accuracy.toml` and `examples/mnist-sparsity.toml` with SEEDS (default 5) seeds each
in the folder OUT, and prints a Markdown table. A second call resumes unfinished runs.
"""

import sys
import time
from pathlib import Path

import pandas as pd

from depositum.provenance import describe_versions
from depositum.report.history_tables import final_values
from depositum.report.progress import ProgressBar
from depositum.runs import execute, load

SEEDS = int(sys.argv[2]) if len(sys.argv) > 2 else 5
EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
#: Mean and standard deviation in the paper, in percent.
ACCURACY = {
    ("mlp", "polyak"): (94.20, 0.13),
    ("mlp", "nesterov"): (94.24, 0.15),
    ("cnn", "polyak"): (97.99, 0.11),
    ("cnn", "nesterov"): (97.95, 0.14),
}
#: β: (sparsity in percent, accuracy lost against β = 0 in points)
SPARSITY = {
    "polyak": {5e-4: (27.242, 0.763), 1e-3: (65.387, 2.060)},
    "nesterov": {5e-4: (26.041, 0.867), 1e-3: (63.612, 2.797)},
}


def final(out: Path, example: str, *settings: str) -> pd.DataFrame:
    """Run one variant unless it is finished; return the last record of every seed."""
    name = "-".join([example, *(s.split("=")[1] for s in settings), f"{SEEDS}-seeds"])
    print(name, file=sys.stderr)
    config = load(EXAMPLES / f"{example}.toml", [*settings, f"run.seeds={list(range(SEEDS))}"])
    return final_values(execute(config, out / name, callbacks=[ProgressBar()]).history.frame)


def main() -> None:
    out = Path(sys.argv[1])
    began = time.perf_counter()
    print("| setting | ours | paper | difference | allowed | within |")
    print("|---|---|---|---|---|---|")
    for (model, momentum), (mean, std) in ACCURACY.items():
        last = final(out, "mnist-accuracy", f"problem.model={model}", f"algorithm.momentum={momentum}")
        ours = 100 * last["test_accuracy"]
        difference, allowed = ours.mean() - mean, 2 * (ours.std() ** 2 + std**2) ** 0.5
        row(f"accuracy %, {model}, {momentum}", f"{ours.mean():.2f} ± {ours.std():.2f}", f"{mean:.2f} ± {std:.2f}",
            difference, allowed)  # fmt: skip
    for momentum, points in SPARSITY.items():
        dense = final(out, "mnist-sparsity", "problem.beta=0", f"algorithm.momentum={momentum}")["test_accuracy"]
        for beta, (sparsity, lost) in points.items():
            last = final(out, "mnist-sparsity", f"problem.beta={beta}", f"algorithm.momentum={momentum}")
            ours = 100 * last["sparsity"]
            row(f"sparsity %, β = {beta:g}, {momentum}", f"{ours.mean():.2f} ± {ours.std():.2f}", f"{sparsity:.2f}",
                ours.mean() - sparsity, 1.5)  # fmt: skip
            drop = 100 * (dense.to_numpy() - last["test_accuracy"].to_numpy())
            row(f"accuracy lost, points, β = {beta:g}, {momentum}", f"{drop.mean():.2f} ± {drop.std(ddof=1):.2f}",
                f"{lost:.2f}", drop.mean() - lost, 0.4)  # fmt: skip
    print(f"\n{describe_versions()}")
    print(f"{time.perf_counter() - began:.0f} s in total", file=sys.stderr)


def row(setting: str, ours: str, paper: str, difference: float, allowed: float) -> None:
    within = "yes" if abs(difference) <= allowed else "no"
    print(f"| {setting} | {ours} | {paper} | {difference:+.2f} | {allowed:.2f} | {within} |", flush=True)


if __name__ == "__main__":
    main()
