"""Compare the speed of this package with that of other libraries on the CPU, in milliseconds per iteration.

    python benchmarks/peers.py OUT [--peers torch,fedjax] [--settings linear-10] [--steps N] [--cache FOLDER]

Creates a virtual environment for each peer in the cache folder, installs the peer, and runs its script from
`benchmarks/peers/` there: one setting after another, on two cores, with one thread and with two (the faster counts),
on random data from a fixed seed. Writes `OUT/peers.json` and prints a Markdown table. A peer that cannot be installed
or run is reported with the reason, and the others are still measured.

An iteration is one mini-batch gradient step (32 samples) of every client, with a communication every T0 = 10
iterations. A round of a peer is 10 local steps of every client and one communication; the reported number is the median
time of a round divided by 10, after a warm-up that compiles and fills caches. Evaluation and logging are off.

depositum     DEPOSITUM on a ring, on the simulator; a round is ten iterations, one of which exchanges two rows per
              client.
torch         A loop over clients, each an `nn.Module` with its SGD; a round is ten steps each and an average.
fedjax        `fed_avg.federated_averaging` through `for_each_client`; a round is one `apply` of ten local steps.
pfl           `FederatedAveraging` on `SimulatedBackend`; a round is one central iteration of ten local steps.
gossipy-dfl   `GossipSimulator`, push on a ring; a round is one message per node, whose receiver merges it and takes
              ten SGD steps, so that a node takes ten steps on average.
flwr          `FedAvg` in a simulation on Ray, one actor per core; a round is the time between two aggregations, in
              which each client takes ten steps. Starting Ray is not counted.

The methods differ (averaging by a server, gossip, tracking with momentum): each is the closest that the peer offers.
The convolutional setting is run for torch and depositum only.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from depositum.provenance import describe_device

SCRIPTS = Path(__file__).resolve().parent / "peers"
ROOT = SCRIPTS.parent.parent
CORES = 2
RUN_SECONDS = 300  # time limit of one setting of one peer
SETTINGS = ("linear-10", "linear-1000", "mlp-10", "cnn-20")


@dataclass(frozen=True)
class Peer:
    """Packages of a peer, whether torch is installed first, its settings, and the numbers of threads to try."""

    packages: tuple[str, ...] = ()
    torch: bool = True
    settings: tuple[str, ...] = SETTINGS[:3]
    threads: tuple[int, ...] = (1, CORES)


PEERS = {
    "depositum": Peer(settings=SETTINGS),  # runs in the environment of this process
    "torch": Peer(("numpy",), settings=SETTINGS),
    # fedjax calls jax.tree_map, which later versions of jax removed. XLA uses all available cores.
    "fedjax": Peer(("fedjax", "jax<0.5"), torch=False, threads=(CORES,)),
    "pfl": Peer(("pfl",)),
    "gossipy-dfl": Peer(("gossipy-dfl",)),
    "flwr": Peer(("flwr[simulation]",), threads=(CORES,)),  # as many Ray actors
}


class NotInstalledError(Exception):
    """A peer's environment could not be created; the message is the reason."""


def torch_pin() -> str:
    """Return the line of `constraints.txt` that pins torch: the version with which this package is tested.

    The other pins are for this package, and some contradict the requirements of peers.
    """
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith("torch=="))


def install(name: str, cache: Path) -> Path:
    """Return the Python of the peer's environment, which is created unless the cache has a complete one."""
    peer, folder = PEERS[name], cache / name
    python, ready = folder / "bin" / "python", folder / "ready"
    wanted = "\n".join([sys.version, torch_pin() if peer.torch else "", *peer.packages])
    if ready.exists() and ready.read_text() == wanted:
        return python
    print(f"installing {name} into {folder}", file=sys.stderr)
    # Cleared, since an incomplete environment or one of another Python would be mixed with the new one.
    run_quietly([sys.executable, "-m", "venv", "--clear", str(folder)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if peer.torch:
        # First and by itself: this selects the CPU build where there is one, and satisfies the peer.
        run_quietly([*pip, torch_pin()])
        constraint = folder / "torch.txt"
        constraint.write_text(torch_pin() + "\n")
        pip += ["-c", str(constraint)]
    run_quietly([*pip, *peer.packages])
    listed = run_quietly([str(python), "-m", "pip", "list", "--format", "freeze"]).splitlines()
    if cuda := [line for line in listed if line.startswith("nvidia-")]:
        raise NotInstalledError(f"it installed CUDA libraries ({cuda[0]} and others), so it is not a CPU build")
    ready.write_text(wanted)
    return python


def run_quietly(command: list[str]) -> str:
    """Run a command and return its output; raise with the reason if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NotInstalledError(reason(done.stderr or done.stdout))
    return done.stdout


def reason(text: str) -> str:
    """Return the line of a failed command's output that gives the reason: the last error, or else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no reason given"])[-1][:200]


def measure(name: str, python: Path, setting: str, steps: int | None) -> dict[str, Any]:
    """Measure a peer on a setting with each number of threads; return the fastest (one thread suits small models)."""
    runs = [run_script(name, python, setting, steps, threads) for threads in PEERS[name].threads]
    return min(runs, key=lambda record: record["ms_per_iteration"] or float("inf"))


def run_script(name: str, python: Path, setting: str, steps: int | None, threads: int) -> dict[str, Any]:
    """Run a peer's script; return the record it prints, or one without a time whose note is the reason."""
    script = SCRIPTS / f"{name.partition('-')[0]}_peer.py"
    command = [
        str(python),
        str(script),
        setting,
        "--threads",
        str(threads),
        *(["--steps", str(steps)] if steps else []),
    ]
    # Passive: threads that busy-wait would distort the measurement where a core does other work.
    environment = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
            timeout=RUN_SECONDS,
            preexec_fn=keep_to_cores,
        )
    except subprocess.TimeoutExpired:
        return no_time(name, setting, f"not finished after {RUN_SECONDS} s")
    records = [line for line in done.stdout.splitlines() if line.startswith('{"peer"')]
    if done.returncode or not records:
        return no_time(name, setting, f"failed: {reason(done.stderr or done.stdout)}")
    return dict(json.loads(records[-1]))


def no_time(name: str, setting: str, note: str) -> dict[str, Any]:
    """Return a record without a time, with the reason."""
    return {"peer": name, "setting": setting, "n": int(setting.split("-")[1]), "ms_per_iteration": None, "note": note}


def keep_to_cores() -> None:
    """Restrict this process and its children to CORES cores: not all peers limit their threads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])


def table(records: list[dict[str, Any]]) -> str:
    """Return a Markdown table of milliseconds per iteration (rows: peers; columns: settings), with notes below."""
    peers = list(dict.fromkeys(str(r["peer"]) for r in records))
    settings = [s for s in SETTINGS if any(r["setting"] == s for r in records)]
    times = {(r["peer"], r["setting"]): r["ms_per_iteration"] for r in records}
    lines = ["| ms per iteration | " + " | ".join(settings) + " |", "|---" * (len(settings) + 1) + "|"]
    for peer in peers:
        cells = [times.get((peer, setting)) for setting in settings]
        lines.append(f"| {peer} | " + " | ".join("–" if c is None else f"{c:.3g}" for c in cells) + " |")
    notes = dict.fromkeys(
        f"{r['peer']}: {r['note']}"
        if r["ms_per_iteration"] is not None
        else f"{r['peer']}, {r['setting']}: {r['note']}"
        for r in records
    )
    return "\n".join([*lines, "", *notes])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--peers", default=",".join(PEERS), help=f"comma-separated, from {', '.join(PEERS)}")
    parser.add_argument("--settings", default=",".join(SETTINGS), help=f"comma-separated, from {', '.join(SETTINGS)}")
    parser.add_argument("--steps", type=int, help="iterations to time (default: as many as take a few seconds)")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "depositum" / "peers")
    arguments = parser.parse_args()
    peers, settings = arguments.peers.split(","), arguments.settings.split(",")
    for key, given, allowed in (("--peers", peers, PEERS), ("--settings", settings, SETTINGS)):
        if unknown := [name for name in given if name not in allowed]:
            parser.error(f"{key}: {unknown[0]!r} given; it can be some of {', '.join(allowed)}")
    records: list[dict[str, Any]] = []
    for name in peers:
        chosen = [s for s in PEERS[name].settings if s in settings]
        if not chosen:
            continue
        try:
            python = Path(sys.executable) if name == "depositum" else install(name, arguments.cache.expanduser())
        except NotInstalledError as error:
            records += [no_time(name, setting, f"not installed: {error}") for setting in chosen]
            continue
        for setting in chosen:
            records.append(measure(name, python, setting, arguments.steps))
            print(json.dumps(records[-1]), file=sys.stderr, flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    measured = {"machine": f"{describe_device('cpu')}, {CORES} of them used", "records": records}
    (arguments.out / "peers.json").write_text(json.dumps(measured, indent=1) + "\n")
    print(table(records))


if __name__ == "__main__":
    main()
