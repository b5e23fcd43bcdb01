"""Kill random members of a federation at random times, restart each alone, and compare the end with an undisturbed run.

    python benchmarks/peer_restarts.py [--kills 100] [--members 5] [--steps 90] [--per-federation 5] [--seed 0]

Members are processes on a ring over mutual TLS on the loopback interface. At random times, 1 to 3 of them are killed
with SIGKILL at once; in a third of the cases, the newest checkpoint of one of these is then deleted, and in another
third truncated. Each is started again, alone, after a random pause; the others wait. Every federation must end in the
bytes of the undisturbed one: all members' checkpoints, models and histories (but for wall time). Exits with 1 if any
differ, or if a federation does not come to an end.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.peer_federations import make_agreement, run_config, write_folders  # noqa: E402
from tests.support.peer_processes import Ending, Processes, wait_for  # noqa: E402

from depositum.federation.member_folder import MemberFolder  # noqa: E402
from depositum.provenance import describe_versions  # noqa: E402

#: Seconds within which a federation must come to an end after the last restart.
PATIENCE = 120.0


class Campaign:
    """Kills members of federations, and counts what came of it."""

    def __init__(self, folder: Path, members: int, steps: int, seed: int, seconds: float = 0.02) -> None:
        self.folder, self.members, self.steps, self.seconds = folder, members, steps, seconds
        self.random = random.Random(seed)
        self.processes = Processes()
        self.kinds: Counter[str] = Counter()
        self.kills = 0
        self.failures: list[str] = []
        self.expected = self._undisturbed()

    def _folders(self, name: str) -> list[MemberFolder]:
        config = run_config(steps=self.steps, evaluate_every=9, checkpoint_every=10)
        return write_folders(self.folder / name, make_agreement(nx.cycle_graph(self.members), config))

    def _undisturbed(self) -> list[Ending]:
        folders = self._folders("undisturbed")
        codes = wait_for([self.processes.start(folder) for folder in folders], PATIENCE)
        assert codes == [0] * self.members, f"the undisturbed federation ended with {codes}"
        return [Ending.of(folder) for folder in folders]

    def disturb(self, name: str, kills: int) -> bool:
        """One federation with so many kills; whether it ended as it must."""
        folders = self._folders(name)
        running = [self.processes.start(folder, self.seconds) for folder in folders]
        length = self.steps * self.seconds
        for _ in range(kills):
            time.sleep(self.random.uniform(0.1, length / 2))
            alive = [i for i, process in enumerate(running) if process.is_alive()]
            if not alive:
                break
            chosen = self.random.sample(alive, min(self.random.randint(1, 3), len(alive)))
            for i in chosen:
                running[i].kill()
            for i in chosen:
                running[i].join()
            kind = self.random.choice(["intact", "deleted", "truncated"])
            self._damage(folders[chosen[0]], kind)
            self.kills += 1
            self.kinds[f"{len(chosen)} killed, {kind}"] += 1
            self.random.shuffle(chosen)
            for i in chosen:
                time.sleep(self.random.uniform(0.0, 0.6))
                running[i] = self.processes.start(folders[i], self.seconds)
        return self._check(name, folders, running)

    def _damage(self, folder: MemberFolder, kind: str) -> None:
        client = folder.agreement.client(folder.name)
        newest = folder.runs / "clients" / f"{client}.safetensors"
        if not newest.exists() or kind == "intact":
            return
        if kind == "deleted":
            newest.unlink()
        else:
            content = newest.read_bytes()
            newest.write_bytes(content[: self.random.randrange(len(content))])

    def _check(self, name: str, folders: list[MemberFolder], running: list[BaseProcess]) -> bool:
        codes = wait_for(running, PATIENCE)
        if codes != [0] * self.members:
            self.failures.append(f"{name}: exit codes {codes}")
            for process in running:
                process.kill()
            return False
        for folder, expected in zip(folders, self.expected, strict=True):
            found = Ending.of(folder)
            for part in ("state", "model", "history"):
                if getattr(found, part) != getattr(expected, part):
                    self.failures.append(f"{name}: the {part} of {folder.name} differs")
                    return False
        return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--per-federation", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where federations are kept; default: a temporary folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        campaign = Campaign(arguments.folder or Path(temporary), arguments.members, arguments.steps, arguments.seed)
        federations = 0
        while campaign.kills < arguments.kills:
            began, before = time.monotonic(), campaign.kills
            equal = campaign.disturb(f"federation-{federations}", arguments.per_federation)
            federations += 1
            print(
                f"federation {federations}: {campaign.kills - before} kills, {time.monotonic() - began:.0f} s, "
                f"{'the same bytes' if equal else campaign.failures[-1]}",
                flush=True,
            )
        for kind, count in sorted(campaign.kinds.items()):
            print(f"{count:4} × {kind}")
        equal_ones = federations - len(campaign.failures)
        print(f"{campaign.kills} kills in {federations} federations; {equal_ones} ended in the undisturbed bytes")
        print(describe_versions())
        return 1 if campaign.failures else 0


if __name__ == "__main__":
    sys.exit(main())
