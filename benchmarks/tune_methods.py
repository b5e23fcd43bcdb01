"""Choose each method's stepsize for `examples/methods.toml`, from a grid, on a seed that is not reported.

    python benchmarks/tune_methods.py            (minutes on two cores)

Every method gets the same budget: the grid below for its main stepsize, all else at its defaults; the choice is the one
with the lowest training loss at the end, seed 99. Prints the `[override.METHOD.algorithm]` parts.
"""

import tempfile
from pathlib import Path

from depositum.algorithms import ALGORITHMS
from depositum.errors import DepositumError
from depositum.runs import execute, load

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "methods.toml"
GRID = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
#: Methods whose main stepsize has another name, with a grid of its own where its scale differs.
KEYS = {
    "prox-dasa": ("eta", GRID),
    "prox-dasa-gt": ("eta", GRID),
    "sppdm": ("s", (1.0, 3.0, 10.0, 30.0)),
    "fast-fedda": ("G", (1.0, 3.0, 10.0, 30.0, 100.0)),
}


def final_loss(method: str, key: str, value: float, out: Path) -> float:
    """Training loss of the averaged model at the end; infinite where the run diverges or is refused."""
    settings = ["run.seeds=[99]", "run.evaluate_every=300", f"override.{method}.algorithm.{key}={value}"]
    try:
        result = execute(load(EXAMPLE, settings, method), out)
    except DepositumError as error:
        print(f"# {method} {key}={value}: {error}")
        return float("inf")
    last = result.history.last(99)
    return float("inf") if result.diverged or last is None else float(last["train_loss"])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for method in ALGORITHMS:
            key, grid = KEYS.get(method, ("alpha", GRID))
            losses = {v: final_loss(method, key, v, Path(folder) / method / str(v)) for v in grid}
            best = min(losses, key=lambda v: losses[v])
            print(f"# {method}: " + ", ".join(f"{v:g} → {loss:.3f}" for v, loss in losses.items()))
            print(f"[override.{method}.algorithm]\n{key} = {best}\n", flush=True)


if __name__ == "__main__":
    main()
