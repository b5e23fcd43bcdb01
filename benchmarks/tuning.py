"""How good the stepsize of `alpha = "auto"` is, and what it costs.

    python benchmarks/tuning.py [--cases digits,a9a,tabular,cnn] [--methods depositum,…] [--device cuda] [--out FILE]

For every case and method the stepsize is tuned as `depositum run` does with `alpha = "auto"`, and the run is then
trained on all its training data with five seeds. The final training loss, the mean over seeds of f at the averaged
model, is compared with the best of a fine grid: 20 stepsizes with a common ratio of 1.2 around the tuned one, trained
in the same way, of which those with a seed that diverged are out. A grid whose best point is its first or last is
moved there and run again, so that it contains the optimum. The column ± is the standard error of the excess over the
seeds: of the difference between the losses with the tuned stepsize and with the grid's best, seed by seed.

Results are added to FILE (default `tuning.json`), from which the table is printed: a case that is already there from
the same commit is not run again. A9A and MNIST are read from `DEPOSITUM_DATA`.
"""

import argparse
import json
import math
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from depositum.problem import Problem
from depositum.provenance import commit, describe_device
from depositum.runs import ResolvedConfig, build_problem, from_table
from depositum.tuning import Candidate, Outcome, tune
from depositum.tuning.candidate_runs import CandidateRuns
from depositum.tuning.configured import settings_of, with_settings

METHODS = ("depositum", "d-psgd", "gut", "fedavg", "deepstorm")
SEEDS = [0, 1, 2, 3, 4]
GRID, RATIO = 20, 1.2
TOLERANCE = 0.02
#: In a copy of the checkout without its history, the environment variable DEPOSITUM_COMMIT names it.
COMMIT = commit() or "unknown"


class TabularNet(nn.Module):
    """The user's own model: two hidden layers with a skip connection, for rows of numbers."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(features, 32), nn.Linear(32, 32)
        self.last = nn.Linear(32, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        return self.last(hidden + torch.tanh(self.second(hidden)))


def tabular_net(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The factory that the configuration of the case `tabular` names."""
    return TabularNet(input_shape[0], classes)


def write_tabular(folder: Path) -> str:
    """scikit-learn's diabetes data, standardised, as a .npz file: 442 patients, ten features, a real target."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    np.savez(folder / "diabetes.npz", x=x.astype(np.float32), y=y.astype(np.float32))
    return str(folder / "diabetes.npz")


def case_table(case: str, folder: Path) -> dict[str, Any]:
    """The configuration of a case, without the method."""
    run = {"batch_size": 32, "seeds": SEEDS, "steps": 200}
    if case == "digits":
        problem = {"dataset": "digits", "model": "linear", "clients": 10, "partition": {"dirichlet": 0.5}}
        return {"problem": problem, "run": {**run, "steps": 100}}
    if case == "a9a":
        problem = {"dataset": "a9a", "model": "linear", "clients": 10, "partition": {"dirichlet": 0.5}}
        return {"problem": problem, "run": {**run, "steps": 300}}
    if case == "tabular":
        problem = {"dataset": write_tabular(folder), "model": "tuning:tabular_net", "clients": 8, "partition": "iid"}
        return {"problem": problem, "run": {**run, "steps": 100, "batch_size": 16}}
    if case == "cnn":
        problem = {"dataset": "mnist", "model": "cnn", "clients": 10, "partition": {"dirichlet": 0.5}}
        return {"problem": problem, "run": {**run, "steps": 500}}
    raise SystemExit(f"--cases: {case!r} is not a case; it can be digits, a9a, tabular, cnn")


def configuration(case: str, method: str, device: str, folder: Path) -> ResolvedConfig:
    """The configuration of a case and a method, with a stepsize to be found."""
    table = case_table(case, folder)
    table["problem"]["beta"] = 0.0
    table["algorithm"] = {"name": method, "alpha": "auto"}
    table["run"] |= {"device": device, "period": 5 if method == "fedavg" else 1}
    if method != "fedavg":
        table["network"] = {"topology": "ring"}
    return from_table(table, Path(__file__).resolve().parent)


class FullRuns:
    """Runs of one configuration with all its training data and seeds, for several stepsizes side by side."""

    def __init__(self, spec: ResolvedConfig, problem: Problem) -> None:
        self.steps = spec.config.run.steps
        self.by_seed: dict[float, list[float]] = {}
        spec = replace(spec, engine_settings=replace(spec.engine_settings, compile="never"))
        self._runs = CandidateRuns(problem, lambda one: with_settings(spec, settings_of(one, spec.algorithm)))

    def final_losses(self, stepsizes: list[float]) -> dict[float, float]:
        """The mean final training loss of each stepsize; infinite where a seed diverged."""
        outcomes = self._runs.run([Candidate((), step) for step in stepsizes], self.steps)
        self.by_seed |= {step: list(outcome.objective) for step, outcome in zip(stepsizes, outcomes, strict=True)}
        return {step: _mean_loss(outcome) for step, outcome in zip(stepsizes, outcomes, strict=True)}


def _mean_loss(outcome: Outcome) -> float:
    loss = outcome.measures["train_loss"]  # not finite if one seed's is not
    return loss if math.isfinite(loss) else math.inf


def fine_grid(runs: FullRuns, centre: float) -> dict[float, float]:
    """Losses at 20 stepsizes around one; moved until the best is not at an end."""
    first = centre * RATIO ** -(GRID // 2)
    for _ in range(10):
        losses = runs.final_losses([first * RATIO**k for k in range(GRID)])
        best = min(losses, key=losses.__getitem__)
        position = list(losses).index(best)
        if 0 < position < GRID - 1:
            return losses
        first = best * RATIO ** -(GRID // 2)
    raise SystemExit("the loss has no minimum over stepsizes, or every stepsize diverges")


def measure(case: str, method: str, device: str) -> dict[str, Any]:
    """Tune one case, and compare the choice with the fine grid."""
    with tempfile.TemporaryDirectory() as folder:
        spec = configuration(case, method, device, Path(folder))
        began = time.perf_counter()
        tuned = tune(spec)
        seconds = time.perf_counter() - began
        alpha = float(tuned.best["algorithm.alpha"])
        runs = FullRuns(spec, build_problem([spec]))
        began = time.perf_counter()
        loss = runs.final_losses([alpha])[alpha]
        run_seconds = time.perf_counter() - began
        grid = fine_grid(runs, alpha)
    best = min(grid, key=grid.__getitem__)
    difference = np.subtract(runs.by_seed[alpha], runs.by_seed[best])
    return {
        "case": case,
        "method": method,
        "steps": spec.config.run.steps,
        "alpha": alpha,
        "loss": loss,
        "best_alpha": best,
        "best_loss": grid[best],
        "noise": float(np.std(difference, ddof=1) / math.sqrt(len(SEEDS))),
        "margin": tuned.margin,
        "stable_up_to": tuned.stable_up_to,
        "cost": tuned.cost,
        "tuning_seconds": seconds,
        "run_seconds": run_seconds,
        "grid": {f"{step:.4g}": value for step, value in grid.items()},
        "commit": COMMIT,
        "machine": _machine(device),
    }


def print_table(results: list[dict[str, Any]]) -> None:
    """The results as Markdown, and how many are within the tolerance."""
    print(
        "| case | method | steps | α auto | loss | best α of the grid | its loss | excess | ± | unstable from | cost |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    good = 0
    for r in results:
        excess = r["loss"] / r["best_loss"] - 1
        good += excess <= TOLERANCE
        noise = r["noise"] / r["best_loss"]
        margin = f"{r['margin']:.2f} α" if r["margin"] else f"> {r['stable_up_to']:.2f} α"
        print(
            f"| {r['case']} | {r['method']} | {r['steps']} | {r['alpha']:.4g} | {r['loss']:.4f} "
            f"| {r['best_alpha']:.4g} | {r['best_loss']:.4f} | {excess:+.1%} | {noise:.1%} | {margin} "
            f"| {r['cost']:.1f} runs |"
        )
    finite = sum(math.isfinite(r["loss"]) for r in results)
    print(f"\n{good} of {len(results)} within {TOLERANCE:.0%}; {len(results) - finite} diverged.")
    for machine in sorted({f"{r['machine']}, commit {r['commit']}" for r in results}):
        print(machine)


def _machine(device: str) -> str:
    return f"{describe_device(device)}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="digits,a9a,tabular,cnn")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("tuning.json"))
    arguments = parser.parse_args()
    results = json.loads(arguments.out.read_text()) if arguments.out.exists() else []
    for case in arguments.cases.split(","):
        for method in arguments.methods.split(","):
            if any((r["case"], r["method"], r["commit"]) == (case, method, COMMIT) for r in results):
                continue
            result = measure(case, method, arguments.device)
            print(
                f"{case} {method}: α = {result['alpha']:.4g}, {result['loss'] / result['best_loss'] - 1:+.2%}, "
                f"{result['cost']:.1f} runs, {result['tuning_seconds']:.0f} s",
                flush=True,
            )
            results = [r for r in results if (r["case"], r["method"]) != (case, method)] + [result]
            arguments.out.write_text(json.dumps(results, indent=1))
    print_table(results)


if __name__ == "__main__":
    main()
