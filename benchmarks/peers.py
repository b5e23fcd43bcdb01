"""What a person would use instead, on the CPU: milliseconds per iteration of each peer, beside this package.

    python benchmarks/peers.py OUT [--peers torch,fedjax] [--settings linear-10] [--steps N] [--cache FOLDER]

Makes for each peer a virtual environment of its own (kept in the cache folder), installs it there, and runs its script
of `benchmarks/peers/` in it: one setting after another, on two cores, with one thread and with two (the better
counts), on data of the right shapes from a fixed seed. Writes `OUT/peers.json` and prints a Markdown table. A peer that
cannot be installed or run is reported with the reason, and the rest goes on.

An iteration is one mini-batch gradient step (32 samples) of every client, with one communication every T0 = 10
iterations in it. A round of a peer is 10 local steps of every client and one communication, and the number given is the
median round's time over 10, after a warm-up that compiles and fills caches; evaluation and logging are off.

depositum     DEPOSITUM on a ring: `Simulator`, one round is ten iterations, one of which exchanges two rows per client.
torch         A loop over clients, each an `nn.Module` with its SGD; a round is ten steps each, then the average.
fedjax        `fed_avg.federated_averaging` through `for_each_client`; a round is one `apply` of ten local steps.
pfl           `FederatedAveraging` on `SimulatedBackend`; a round is one central iteration of ten local steps.
gossipy-dfl   `GossipSimulator`, push on a ring; a round is one message per node, which its receiver merges and then
              makes ten SGD steps, so that every node makes ten steps on average.
flwr          `FedAvg` in a simulation on Ray, one actor per core; a round is the time from one aggregation to the next,
              each client making ten steps. Starting Ray is not counted.

The methods differ (a server's average, gossip, tracking with momentum): each is the peer's nearest. The convolutional
setting runs for torch and depositum only.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parent / "peers"
ROOT = SCRIPTS.parent.parent
CORES = 2
RUN_SECONDS = 300  # the most one setting of one peer may take
SETTINGS = ("linear-10", "linear-1000", "mlp-10", "cnn-20")


@dataclass(frozen=True)
class Peer:
    """What to install for a peer, whether torch must be there first, the settings it runs, the threads to try."""

    packages: tuple[str, ...] = ()
    torch: bool = True
    settings: tuple[str, ...] = SETTINGS[:3]
    threads: tuple[int, ...] = (1, CORES)


PEERS = {
    "depositum": Peer(settings=SETTINGS),  # in the environment of this process
    "torch": Peer(("numpy",), settings=SETTINGS),
    # It calls jax.tree_map, which a later jax removed. XLA takes the cores it finds.
    "fedjax": Peer(("fedjax", "jax<0.5"), torch=False, threads=(CORES,)),
    "pfl": Peer(("pfl",)),
    "gossipy-dfl": Peer(("gossipy-dfl",)),
    "flwr": Peer(("flwr[simulation]",), threads=(CORES,)),  # as many Ray actors
}


class NotInstalledError(Exception):
    """A peer's environment could not be made; the message is the reason."""


def torch_pin() -> str:
    """The torch this package is tested with: its line of `constraints.txt`.

    The other pins there are this package's own, and some contradict what the peers ask for.
    """
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith("torch=="))


def install(name: str, cache: Path) -> Path:
    """The Python of the peer's environment, made unless a complete one is in the cache."""
    peer, folder = PEERS[name], cache / name
    python, ready = folder / "bin" / "python", folder / "ready"
    wanted = "\n".join([sys.version, torch_pin() if peer.torch else "", *peer.packages])
    if ready.exists() and ready.read_text() == wanted:
        return python
    print(f"installing {name} into {folder}", file=sys.stderr)
    # Cleared: over an environment of another Python, or one half made, it would be a mixture of two.
    run_quietly([sys.executable, "-m", "venv", "--clear", str(folder)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if peer.torch:
        # First and alone: it then is the CPU build where one is on offer, and the peer finds it there.
        run_quietly([*pip, torch_pin()])
        constraint = folder / "torch.txt"
        constraint.write_text(torch_pin() + "\n")
        pip += ["-c", str(constraint)]
    run_quietly([*pip, *peer.packages])
    listed = run_quietly([str(python), "-m", "pip", "list", "--format", "freeze"]).splitlines()
    if cuda := [line for line in listed if line.startswith("nvidia-")]:
        raise NotInstalledError(f"it brought CUDA with it, {cuda[0]} and others: not the CPU build of its tensors")
    ready.write_text(wanted)
    return python


def run_quietly(command: list[str]) -> str:
    """What a command prints; a failure is the last line it wrote that says why."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NotInstalledError(reason(done.stderr or done.stdout))
    return done.stdout


def reason(text: str) -> str:
    """The line of a failed command's output that says why: the last error, or else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no reason given"])[-1][:200]


def measure(name: str, python: Path, setting: str, steps: int | None) -> dict[str, Any]:
    """One peer on one setting, with the number of threads that suits it best (small models want one)."""
    runs = [run_script(name, python, setting, steps, threads) for threads in PEERS[name].threads]
    return min(runs, key=lambda record: record["ms_per_iteration"] or float("inf"))


def run_script(name: str, python: Path, setting: str, steps: int | None, threads: int) -> dict[str, Any]:
    """What a peer's script printed, or a record without a time whose note says what went wrong."""
    script = SCRIPTS / f"{name.partition('-')[0]}_peer.py"
    command = [
        str(python),
        str(script),
        setting,
        "--threads",
        str(threads),
        *(["--steps", str(steps)] if steps else []),
    ]
    # Passive: threads that wait in a loop for others make any measurement absurd where a core is busy with other work.
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
        return no_time(name, setting, f"not done after {RUN_SECONDS} s")
    records = [line for line in done.stdout.splitlines() if line.startswith('{"peer"')]
    if done.returncode or not records:
        return no_time(name, setting, f"failed: {reason(done.stderr or done.stdout)}")
    return dict(json.loads(records[-1]))


def no_time(name: str, setting: str, note: str) -> dict[str, Any]:
    """The record of a peer that gave no time, and why."""
    return {"peer": name, "setting": setting, "n": int(setting.split("-")[1]), "ms_per_iteration": None, "note": note}


def keep_to_cores() -> None:
    """Run on CORES cores only, as do all threads and processes started from here: not every peer counts its threads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])


def table(records: list[dict[str, Any]]) -> str:
    """Markdown: a row per peer, a column per setting, in milliseconds per iteration; what failed, beneath."""
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
    parser.add_argument("--peers", default=",".join(PEERS), help=f"some of {', '.join(PEERS)}")
    parser.add_argument("--settings", default=",".join(SETTINGS), help=f"some of {', '.join(SETTINGS)}")
    parser.add_argument("--steps", type=int, help="iterations to time (default: a few seconds of them)")
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
    (arguments.out / "peers.json").write_text(json.dumps(records, indent=2) + "\n")
    print(table(records))


if __name__ == "__main__":
    main()
