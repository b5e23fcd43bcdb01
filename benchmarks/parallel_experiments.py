"""Experiments whose cells share no simulator, side by side on one device: `depositum reproduce` runs them in turn.

    python benchmarks/parallel_experiments.py OUT [ID…] [--jobs N] [--limit SECONDS] [--device DEVICE] [--quick]

Each process takes the next group of cells that can share a simulator, those of the longest runs first. Results of each
experiment are then written to OUT/ID, as `depositum reproduce ID` writes them: cells that were not finished within the
limit are reported as not run. Finished cells are in OUT/cache, so that the same command continues. By default the
five experiments about imperfect networks are run. The time of a cell is that of its process, on a shared device.
"""

import argparse
import multiprocessing
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from multiprocessing.pool import AsyncResult
from pathlib import Path

from depositum import experiments
from depositum.engines import Callback, Loop
from depositum.experiments import Plan, SweepOptions
from depositum.experiments.results_folder import count_verdicts
from depositum.experiments.runner import collect
from depositum.experiments.sweep import SweepCell
from depositum.provenance import describe_versions
from depositum.runs import compatible

IMPERFECT = ("compression", "direction", "loss", "noise", "participation")


class Silent:
    """Observes a sweep without a word, except for what a user should know."""

    callback = Callback()

    def begin(self, title: str, work: float) -> None:
        pass

    def group(self, name: str, cells: int, work: float) -> None:
        pass

    def attach(self, loop: Loop) -> None:
        pass

    def message(self, line: str) -> None:
        print(line, flush=True)

    def end(self) -> None:
        pass

    def stopped(self) -> bool:
        return False


def groups(plan: Plan) -> Iterator[list[SweepCell]]:
    """The cells of a plan that share a simulator."""
    for indices in compatible([cell.checked.spec for cell in plan.selected]):
        yield [plan.selected[index] for index in indices]


def work(cells: list[SweepCell]) -> float:
    """Iterations × rows."""
    runs = [(cell.checked.config.run, cell.checked.config.problem) for cell in cells]
    return float(sum(run.steps * len(run.seeds) * problem.clients for run, problem in runs))


def run_cells(name: str, labels: list[dict[str, str]], options: SweepOptions, cache: Path) -> float:
    """Run some cells of an experiment; the seconds that they took."""
    start = time.perf_counter()
    plan = experiments.make_plan(experiments.load_experiment(name), options)
    plan.selected = [cell for cell in plan.selected if cell.labels in labels]
    experiments.run_experiment(plan, cache, Silent())
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("ids", nargs="*", default=IMPERFECT)
    parser.add_argument("--jobs", type=int, default=14)
    parser.add_argument("--limit", type=float, default=3600.0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    start, cache = time.perf_counter(), given.out / "cache"
    print(describe_versions(), flush=True)
    options = SweepOptions(quick=given.quick, device=given.device)
    plans = [experiments.make_plan(experiments.load_experiment(name), options) for name in given.ids]
    tasks = [(plan.experiment.id, cells) for plan in plans for cells in groups(plan)]
    tasks.sort(key=lambda task: -work(task[1]))
    with multiprocessing.get_context("spawn").Pool(min(given.jobs, len(tasks))) as pool:
        pending = {}
        for name, cells in tasks:
            what = f"{name}: {' | '.join(', '.join(cell.labels.values()) for cell in cells)}"
            pending[what] = pool.apply_async(run_cells, (name, [cell.labels for cell in cells], options, cache))
        while pending and time.perf_counter() - start < given.limit:
            time.sleep(0.2)
            for what in [what for what, result in pending.items() if result.ready()]:
                report(pending.pop(what), what, start)
        if pending:
            print(f"not finished within {given.limit:g} s: {', '.join(pending)}", flush=True)
    for plan in plans:
        judged = experiments.write_results(plan, collect(plan, cache), given.out / plan.experiment.id)
        print(f"{plan.experiment.id}: {count_verdicts(Counter(each.verdict for each in judged))}", flush=True)
    print(f"{time.perf_counter() - start:.1f} s in all", flush=True)


def report(result: AsyncResult[float], what: str, start: float) -> None:
    """One line about a group of cells that is finished, or why it is not."""
    try:
        print(f"{time.perf_counter() - start:6.1f} s: {what}: {result.get():.1f} s", flush=True)
    except Exception:  # whatever one group raises, the others go on
        print(f"{what}: {traceback.format_exc()}", flush=True)


if __name__ == "__main__":
    main()
