"""Compare the stepsizes that Theorem 1 admits with those that work: the table in docs/theory.md.

    python benchmarks/practical_stepsizes.py            (about two minutes on two cores; A9A must be downloaded)

Every configuration is run with αL = 0.001, …, 30, one seed, and the final objective φ(x̄) is printed.
"""

import tempfile
from pathlib import Path

from depositum import theory
from depositum.cli.theory import measure
from depositum.provenance import describe_versions
from depositum.runs import execute_all, load

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
PRODUCTS = (0.001, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
CASES = {
    "digits, MLP, ring, T0 = 5, γ = 0.8": ("demo.toml", ()),
    "digits, MLP, ring, T0 = 5, γ = 0.95": ("demo.toml", ("algorithm.gamma=0.95",)),
    "digits, MLP, complete, T0 = 1, γ = 0.5": (
        "demo.toml",
        ("network.topology=complete", "run.period=1", "algorithm.gamma=0.5"),
    ),
    "digits, linear, ring, T0 = 5, γ = 0.5": ("demo.toml", ("problem.model=linear", "algorithm.gamma=0.5")),
    "A9A, linear, ring, T0 = 5, γ = 0.5": ("a9a-stepsize.toml", ()),
    "A9A, linear, ring, T0 = 1, γ = 0.5": ("a9a-stepsize.toml", ("run.period=1",)),
}
COMMON = ("run.seeds=[0]", "metrics.costly_every=0", "run.evaluate_every=100", "run.compile=never")


def main() -> None:
    print("| problem | L | theorem's αL | " + " | ".join(f"αL = {product:g}" for product in PRODUCTS) + " |")
    print("|---|" + "---|" * (len(PRODUCTS) + 2))
    for name, (file, changes) in CASES.items():
        overrides = [*changes, *COMMON]
        setting = measure(load(EXAMPLES / file, overrides)).setting
        specs = [load(EXAMPLES / file, [*overrides, f"algorithm.alpha={p / setting.L}"]) for p in PRODUCTS]
        with tempfile.TemporaryDirectory() as folder:
            results = execute_all(specs, [Path(folder) / str(p) for p in PRODUCTS], keep_end=False)
        values = [
            "diverged" if result.diverged else f"{result.history.frame['phi'].iloc[-1]:.3f}" for result in results
        ]
        product = theory.largest_alpha(setting).alpha * setting.L
        print(f"| {name} | {setting.L:.2f} | {product:.2g} | " + " | ".join(values) + " |", flush=True)
    print(f"\n{describe_versions()}")


if __name__ == "__main__":
    main()
