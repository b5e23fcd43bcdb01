"""Kill random members of a federation at random times, restart each alone, and compare the end with an undisturbed run.

    python benchmarks/peer_restarts.py [--kills 100] [--members 5] [--steps 90] [--per-federation 5] [--seed 0]
                                        [--jobs 1]

Members are processes on a ring over mutual TLS on the loopback interface. At random times, 1 to 3 of them are killed
with SIGKILL at once; in a third of the cases, the newest checkpoint of one of these is then deleted, and in another
third truncated. Each is started again, alone, after a random pause; the others wait. Every federation must end in the
bytes of the undisturbed one: all members' checkpoints, models and histories (but for wall time). Exits with 1 if any
differ, or if a federation does not come to an end. `--jobs` federations run at the same time, each on ports of its own.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.peer_federations import free_ports, make_agreement, run_config, write_folders  # noqa: E402
from tests.support.peer_processes import Ending, Processes, at_once, ports_of, wait_for  # noqa: E402

from depositum.federation.member_folder import MemberFolder  # noqa: E402
from depositum.provenance import describe_versions  # noqa: E402

#: Seconds within which a federation must come to an end after the last restart.
PATIENCE = 120.0


@dataclass(frozen=True)
class Setting:
    """What all federations of the campaign have in common."""

    folder: Path
    members: int
    steps: int
    seed: int
    #: Of an iteration at least, so that a member can be killed in the middle of a run.
    seconds: float = 0.02

    def folders(self, number: int, name: str) -> list[MemberFolder]:
        """The folders of a federation's members."""
        config = run_config(steps=self.steps, evaluate_every=9, checkpoint_every=10)
        ports = free_ports(self.members, ports_of(number))
        return write_folders(self.folder / name, make_agreement(nx.cycle_graph(self.members), config, ports))


@dataclass
class Found:
    """What came of one federation; `failure` is empty if it ended in the undisturbed bytes."""

    seconds: float = 0.0
    kills: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    failure: str = ""


def undisturbed(setting: Setting) -> list[Ending]:
    """How each member ends if nothing happens."""
    processes, folders = Processes(), setting.folders(0, "undisturbed")
    codes = wait_for([processes.start(folder) for folder in folders], PATIENCE)
    assert codes == [0] * setting.members, f"the undisturbed federation ended with {codes}"
    return [Ending.of(folder) for folder in folders]


def disturb(setting: Setting, expected: list[Ending], kills: int, number: int) -> Found:
    """One federation, numbered from 1, in which members are killed so many times."""
    began, found, pick = time.monotonic(), Found(), random.Random(f"{setting.seed}-{number}")
    processes, folders = Processes(), setting.folders(number, f"federation-{number}")
    running = [processes.start(folder, setting.seconds) for folder in folders]
    length = setting.steps * setting.seconds
    for _ in range(kills):
        time.sleep(pick.uniform(0.1, length / 2))
        alive = [i for i, process in enumerate(running) if process.is_alive()]
        if not alive:
            break
        chosen = pick.sample(alive, min(pick.randint(1, 3), len(alive)))
        for i in chosen:
            running[i].kill()
        for i in chosen:
            running[i].join()
        kind = pick.choice(["intact", "deleted", "truncated"])
        _damage(folders[chosen[0]], kind, pick)
        found.kills += 1
        found.kinds[f"{len(chosen)} killed, {kind}"] += 1
        pick.shuffle(chosen)
        for i in chosen:
            time.sleep(pick.uniform(0.0, 0.6))
            running[i] = processes.start(folders[i], setting.seconds)
    found.failure = _failure(folders, running, expected)
    found.seconds = time.monotonic() - began
    return found


def _damage(folder: MemberFolder, kind: str, pick: random.Random) -> None:
    client = folder.agreement.client(folder.name)
    newest = folder.runs / "clients" / f"{client}.safetensors"
    if not newest.exists() or kind == "intact":
        return
    if kind == "deleted":
        newest.unlink()
    else:
        content = newest.read_bytes()
        newest.write_bytes(content[: pick.randrange(len(content))])


def _failure(folders: list[MemberFolder], running: list[BaseProcess], expected: list[Ending]) -> str:
    codes = wait_for(running, PATIENCE)
    if codes != [0] * len(folders):
        for process in running:
            process.kill()
        return f"exit codes {codes}"
    for folder, ending in zip(folders, expected, strict=True):
        found = Ending.of(folder)
        for part in ("state", "model", "history"):
            if getattr(found, part) != getattr(ending, part):
                return f"the {part} of {folder.name} differs"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--per-federation", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="federations at the same time")
    parser.add_argument("--folder", type=Path, help="where federations are kept; default: a temporary folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        setting = Setting(arguments.folder or Path(temporary), arguments.members, arguments.steps, arguments.seed)
        expected = undisturbed(setting)
        kinds: Counter[str] = Counter()
        kills, number, failures = 0, 0, 0
        while kills < arguments.kills:  # a federation may end before its last kill
            more = -(-(arguments.kills - kills) // arguments.per_federation)
            tasks = [(setting, expected, arguments.per_federation, number + k) for k in range(1, more + 1)]
            for found in at_once(disturb, tasks, arguments.jobs):
                number, kills, failures = number + 1, kills + found.kills, failures + bool(found.failure)
                kinds += found.kinds
                what = found.failure or "the same bytes"
                print(f"federation {number}: {found.kills} kills, {found.seconds:.0f} s, {what}", flush=True)
        for kind, count in sorted(kinds.items()):
            print(f"{count:4} × {kind}")
        print(f"{kills} kills in {number} federations; {number - failures} ended in the undisturbed bytes")
        print(describe_versions())
        return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
