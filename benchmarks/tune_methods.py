"""Choose each method's stepsize for `examples/methods.toml` from a grid, with seeds that are not reported.

    python benchmarks/tune_methods.py            (takes minutes on two cores)

All methods have the same budget: the grid below for the main stepsize, and defaults for the rest. The value with the
lowest final training loss, the worst over three seeds, is chosen. Prints the `[override.METHOD.algorithm]` sections.
"""

import tempfile
from pathlib import Path

from depositum.algorithms import ALGORITHMS
from depositum.errors import DepositumError
from depositum.provenance import describe_versions
from depositum.runs import execute, load

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "methods.toml"
SEEDS = (97, 98, 99)
GRID = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
#: Methods whose main stepsize has another name: that name, and a grid on its scale.
KEYS = {
    "prox-dasa": ("eta", GRID),
    "prox-dasa-gt": ("eta", GRID),
    "sppdm": ("s", (1.0, 3.0, 10.0, 30.0)),
    "fast-fedda": ("G", (1.0, 3.0, 10.0, 30.0, 100.0)),
}


def final_loss(method: str, key: str, value: float, out: Path) -> float:
    """Return the worst seed's final training loss; infinite where a seed diverges or the value is rejected."""
    settings = [f"run.seeds={list(SEEDS)}", "run.evaluate_every=300", f"override.{method}.algorithm.{key}={value}"]
    try:
        result = execute(load(EXAMPLE, settings, method), out)
    except DepositumError as error:
        print(f"# {method} {key}={value}: {error}")
        return float("inf")
    last = [result.history.last(seed) for seed in SEEDS]
    return float("inf") if result.diverged else max(float(record["train_loss"]) for record in last if record)


def main() -> None:
    print(f"# {describe_versions()}\n")
    with tempfile.TemporaryDirectory() as folder:
        for method in ALGORITHMS:
            key, grid = KEYS.get(method, ("alpha", GRID))
            losses = {v: final_loss(method, key, v, Path(folder) / method / str(v)) for v in grid}
            best = min(losses, key=lambda v: losses[v])
            print(f"# {method}: " + ", ".join(f"{v:g} → {loss:.3f}" for v, loss in losses.items()))
            print(f"[override.{method}.algorithm]\n{key} = {best}\n", flush=True)


if __name__ == "__main__":
    main()
