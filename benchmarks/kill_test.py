"""Kill -9 of a random process at a random time, over and over: does the run end in the same bytes?

    python benchmarks/kill_test.py [--times 20] [--processes 4] [--clients 8] [--steps 400] [--seed 0]

A run of several processes under `torchrun --max-restarts` is first left alone. Then, as often as asked, the same run is
started in a folder of its own, and one of its processes, whichever, is killed, at any time from its start to its end.
What each then ends in (all variables of all clients, the averaged model, the history but for wall time) is compared
with the first. Exits with 1 if any differs.
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
    """Start a run under torchrun, which begins its processes anew when one fails."""
    arguments = ["--nproc-per-node", str(processes), "--max-restarts", str(restarts), "--monitor-interval", "0.1"]
    # A rendezvous of its own on a free port: several runs may be under way on this machine.
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
    """The process of each rank that a launcher has running."""
    found = {}
    for task in Path(f"/proc/{launcher}/task").glob("*/children"):
        for pid in task.read_text().split():
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue  # ended meanwhile
            rank = next((v for v in environment if v.startswith(b"RANK=")), None)
            if rank is not None:
                found[int(rank[5:])] = int(pid)
    return found


def outcome(folder: Path) -> dict[str, object]:
    """What may not depend on whether a run was killed."""
    kept: dict[str, object] = {p.name: p.read_bytes() for p in (folder / "clients").glob("?.safetensors")}
    kept |= {name: (folder / name).read_bytes() for name in ("state.safetensors", "model.safetensors")}
    with (folder / "history.csv").open(newline="") as file:
        kept["history"] = [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]
    return kept


def reached(folder: Path) -> str:
    """The last thing that rank 0 noted before now."""
    log = folder / "logs" / "rank-0.log"
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return lines[-1].split(" ", 2)[2] if lines else "before training"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("times", 20), ("processes", 4), ("clients", 8), ("steps", 400), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    chosen = parser.parse_args()
    dice = random.Random(chosen.seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        config = folder / "run.toml"
        config.write_text(CONFIG.format(clients=chosen.clients, steps=chosen.steps), encoding="utf-8")
        began = time.monotonic()
        whole = start(config, folder / "whole", chosen.processes)
        said, _ = whole.communicate()
        duration = time.monotonic() - began
        assert whole.returncode == 0, said
        expected = outcome(folder / "whole")
        print(f"left alone: {duration:.1f} s")
        differing = done = tried = 0
        while done < chosen.times:
            tried += 1
            rank, at, out = dice.randrange(chosen.processes), dice.uniform(0, duration), folder / str(tried)
            began = time.monotonic()
            run = start(config, out, chosen.processes)
            while (time.monotonic() - began < at or rank not in ranks(run.pid)) and run.poll() is None:
                time.sleep(0.01)
            victim = ranks(run.pid).get(rank)
            if victim is None:
                run.communicate()
                print(f"  {at:5.1f} s was too late, once more")
                continue
            where = reached(out)
            os.kill(victim, signal.SIGKILL)
            said, _ = run.communicate()
            same = run.returncode == 0 and outcome(out) == expected
            differing += not same
            done += 1
            took = time.monotonic() - began
            print(f"{done:3d}: rank {rank} after {at:5.1f} s ({where}), {took:5.1f} s: {'same' if same else 'DIFFERS'}")
            if not same:
                print(said)
        print(f"{done - differing} of {done} ended in the same bytes")
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
