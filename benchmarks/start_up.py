"""Seconds from the start of a process to the end of its first iterations, with empty caches and with filled ones.

    python benchmarks/start_up.py OUT [--cases mlp:10:1,cnn:10:1,resnet18:10:1,vit:10:1] [--together]

Every case (model, clients and seeds, as for `simulator.py`) is run by two new processes, one after the other: the first
finds the compilers' caches empty ("cold"), the second finds what the first has stored ("warm"). Each makes the problem
from random data, builds the engine, and runs an iteration of each kind, compiled. `--together` runs all cases at the
same time, which shows the time that a sweep of several processes waits. To measure another version of the package, set
PYTHONPATH to its `src`. A table is printed, and OUT/start-up.json written.

The processor seconds are those of the process and its compilers: on a machine that does other work too, they vary less
than what a clock shows.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

#: What precedes the end of the first iteration, in order, and the first of the other kind.
STAGES = ("imports", "problem", "engine", "first", "other kind")
CASES = "mlp:10:1,cnn:10:1,resnet18:10:1,vit:10:1"


def run_once(case: str, started: float, backend: str) -> dict[str, Any]:
    """The stages of a process that began at `started`, in seconds; called in that process."""
    times = [started]

    def stage_ends() -> None:
        times.append(time.time())

    import simulator as bench
    import torch

    stage_ends()
    name, n, seeds = case.split(":")
    task = bench.problem(name, int(n), int(seeds))
    stage_ends()
    sim = bench.simulator(task, backend=backend)
    sim.watch(100)
    stage_ends()
    for count in (1, 1):  # an exchange, then a local step
        sim.advance(count)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        stage_ends()
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = {stage: after - before for stage, before, after in zip(STAGES, times, times[1:], strict=False)}
    processor = sum(use.ru_utime + use.ru_stime for use in usage)
    return {**seconds, "first iteration": times[4] - times[0], "processor": processor, "machine": bench.machine()}


def measured(case: str, caches: Path, backend: str) -> dict[str, Any]:
    """The stages of two new processes with the same caches, empty at first."""
    found: dict[str, Any] = {"case": case}
    names = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
    folders = {variable: str(caches / case.replace(":", "-") / name) for variable, name in names.items()}
    for label in ("cold", "warm"):
        command = [sys.executable, __file__, "--process", case, str(time.time()), backend]
        done = subprocess.run(command, env={**os.environ, **folders}, capture_output=True, text=True, check=False)
        if done.returncode:
            found[label] = None
            print(f"  {case}, {label}: {' '.join(done.stderr.split())[-300:]}", flush=True)
            continue
        found[label] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(found: dict[str, Any]) -> str:
    """A line of the table."""

    def show(label: str, key: str) -> str:
        return f"{found[label][key]:.1f}" if found[label] else "–"

    cells = [show(label, key) for label in ("cold", "warm") for key in ("first iteration", "other kind", "processor")]
    return f"| {found['case']} | {' | '.join(cells)} | " + " | ".join(show("warm", key) for key in STAGES[:4]) + " |"


HEADER = (
    "| model:clients:seeds | cold: first iteration | other kind | processor | warm: first iteration | other kind | "
    "processor | of it imports | problem | engine | iteration |\n" + 11 * "|---" + "|"
)


def main() -> None:
    if sys.argv[1:2] == ["--process"]:
        print(json.dumps(run_once(sys.argv[2], float(sys.argv[3]), sys.argv[4])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--backend", default="auto", help="as in run.backend; on a CPU, measured unless it is given")
    parser.add_argument("--together", action="store_true", help="run all cases at the same time")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    cases = options.cases.split(",")
    print(HEADER)
    with tempfile.TemporaryDirectory() as caches, ThreadPoolExecutor(len(cases) if options.together else 1) as pool:
        results = []
        for found in pool.map(lambda case: measured(case, Path(caches), options.backend), cases):
            results.append(found)
            print(row(found), flush=True)
    together = {"together": options.together, "cases": results}
    (options.out / "start-up.json").write_text(json.dumps(together, indent=1))


if __name__ == "__main__":
    main()
