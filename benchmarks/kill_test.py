"""Kill random processes of a distributed run at random times and check that it ends in the same bytes.

    python benchmarks/kill_test.py [--times 20] [--processes 4] [--clients 8] [--steps 400] [--seed 0]

First, a run of several processes under `torchrun --max-restarts` is left undisturbed. Then, `--times` times, the same
run is started in a new folder and one of its processes is killed with SIGKILL at a random time. The final results (all
variables of all clients, the averaged model, the history without wall time) are compared with those of the first run.
Exits with 1 if any differ.
"""

import argparse
import csv
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIG = """
[problem]
dataset = {{ synthetic = {{ samples = 400, features = 20, classes = 5 }} }}
model = {{ mlp = {{ hidden = [32] }} }}
clients = {clients}
partition = {{ dirichlet = 0.5 }}
regularizer = "l1"
beta = 1e-3

[algorithm]
alpha = 0.05

[run]
steps = {steps}
period = 2
batch_size = 8
seeds = [0, 1]
evaluate_every = 20
checkpoint_every = 25
device = "cpu"

[processes]
timeout = 10.0
"""


def start(config: Path, out: Path, processes: int, restarts: int = 3) -> "subprocess.Popen[str]":
    """Start a run under torchrun, which restarts all processes when one fails."""
    arguments = ["--nproc-per-node", str(processes), "--max-restarts", str(restarts), "--monitor-interval", "0.1"]
    # A separate rendezvous on a free port: several runs may be active on this machine.
    arguments += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    arguments += ["-m", "depositum", "run", str(config), "--out", str(out)]
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ranks(launcher: int) -> dict[int, int]:
    """Return the process id of each running rank of a launcher."""
    found = {}
    for task in Path(f"/proc/{launcher}/task").glob("*/children"):
        for pid in task.read_text().split():
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue  # the process has ended
            rank = next((v for v in environment if v.startswith(b"RANK=")), None)
            if rank is not None:
                found[int(rank[5:])] = int(pid)
    return found


def outcome(folder: Path) -> dict[str, object]:
    """Read the results that must not depend on whether a run was killed."""
    results: dict[str, object] = {p.name: p.read_bytes() for p in (folder / "clients").glob("?.safetensors")}
    results |= {name: (folder / name).read_bytes() for name in ("state.safetensors", "model.safetensors")}
    with (folder / "history.csv").open(newline="") as file:
        results["history"] = [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]
    return results


def reached(folder: Path) -> str:
    """Return the last message in the log of rank 0."""
    log = folder / "logs" / "rank-0.log"
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return lines[-1].split(" ", 2)[2] if lines else "before training"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("times", 20), ("processes", 4), ("clients", 8), ("steps", 400), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    generator = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        config = folder / "run.toml"
        config.write_text(CONFIG.format(clients=options.clients, steps=options.steps), encoding="utf-8")
        began = time.monotonic()
        undisturbed = start(config, folder / "undisturbed", options.processes)
        output, _ = undisturbed.communicate()
        duration = time.monotonic() - began
        assert undisturbed.returncode == 0, output
        expected = outcome(folder / "undisturbed")
        print(f"undisturbed: {duration:.1f} s")
        differing = done = attempts = 0
        while done < options.times:
            attempts += 1
            rank, at = generator.randrange(options.processes), generator.uniform(0, duration)
            out = folder / str(attempts)
            began = time.monotonic()
            run = start(config, out, options.processes)
            while (time.monotonic() - began < at or rank not in ranks(run.pid)) and run.poll() is None:
                time.sleep(0.01)
            victim = ranks(run.pid).get(rank)
            if victim is None:
                run.communicate()
                print(f"  the run ended before {at:5.1f} s; trying again")
                continue
            where = reached(out)
            os.kill(victim, signal.SIGKILL)
            output, _ = run.communicate()
            same = run.returncode == 0 and outcome(out) == expected
            differing += not same
            done += 1
            took = time.monotonic() - began
            print(f"{done:3d}: rank {rank} after {at:5.1f} s ({where}), {took:5.1f} s: {'same' if same else 'DIFFERS'}")
            if not same:
                print(output)
        print(f"{done - differing} of {done} ended in the same bytes")
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
