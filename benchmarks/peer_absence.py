"""Let members and links of a federation fail at random under `absent = "drop"`, and check what must hold all the same.

    python benchmarks/peer_absence.py [--schedules 100] [--members 5] [--steps 60] [--patience 0.4] [--seed 0]

Members are processes on a ring; every connection passes through a proxy. A schedule is a few random events: members
are killed and return after a random time, connections are cut for a while (also so that the ring falls into two
parts), frozen, or slowed down. When all has healed and all members have ended, each exchange must have taken place at
both ends of its edge or at neither, J y = J ν must hold over all members to 1e-12 at every iteration that all have
saved, what was saved twice must be equal, and the loss of the averaged model is compared with an undisturbed run's.
Exits with 1 if anything does not hold.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import networkx as nx
import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.faulty_proxy import FaultyProxy  # noqa: E402
from tests.support.peer_federations import (  # noqa: E402
    dirichlet_problem,
    free_ports,
    make_agreement,
    run_config,
    write_folders,
)
from tests.support.peer_processes import Processes, wait_for  # noqa: E402

from depositum.federation.member_folder import MemberFolder  # noqa: E402
from depositum.peers.journal import Journal, Outcome  # noqa: E402
from depositum.provenance import describe_versions  # noqa: E402

#: Seconds within which a federation must come to an end after it has healed.
ENOUGH = 120.0
#: Seconds that an iteration takes at least, so that something can happen meanwhile.
SECONDS = 0.08


class Federation:
    """Members as processes, each behind a proxy."""

    def __init__(self, folder: Path, members: int, steps: int, patience: float, seconds: float) -> None:
        config = run_config(steps=steps, checkpoint_every=3)
        config["algorithm"]["start"] = "local"
        public, self.private = free_ports(members), free_ports(members)
        agreement = make_agreement(
            nx.cycle_graph(members), config, public, evaluate="none", absent="drop", patience=patience
        )
        self.folders = write_folders(folder, agreement)
        self.proxies = [FaultyProxy(port, target) for port, target in zip(public, self.private, strict=True)]
        self.seconds, self.processes = seconds, Processes()
        self.running: list[BaseProcess] = [self._start(i) for i in range(members)]

    def _start(self, i: int) -> BaseProcess:
        return self.processes.start(self.folders[i], self.seconds, f"127.0.0.1:{self.private[i]}")

    def kill(self, i: int) -> None:
        self.running[i].kill()
        self.running[i].join()

    def restart(self, i: int) -> None:
        self.running[i] = self._start(i)

    def end(self) -> list[int | None]:
        codes = wait_for(self.running, ENOUGH)
        for process in self.running:
            process.kill()
        for proxy in self.proxies:
            proxy.close()
        return codes


class Campaign:
    """Schedules, and what was found."""

    def __init__(self, folder: Path, members: int, steps: int, patience: float, seed: int) -> None:
        self.folder, self.members, self.steps, self.patience = folder, members, steps, patience
        self.random = random.Random(seed)
        self.events: Counter[str] = Counter()
        self.failures: list[str] = []
        self.dropped, self.exchanges, self.common = 0, 0, 0
        self.losses: list[float] = []
        self.problem = dirichlet_problem(members)
        undisturbed = Federation(folder / "undisturbed", members, steps, 60.0, 0.0)
        codes = undisturbed.end()
        assert codes == [0] * members, f"the undisturbed federation ended with {codes}"
        self.expected = self._loss(undisturbed.folders)

    def run(self, name: str) -> list[str]:
        """One schedule; what did not hold."""
        federation = Federation(self.folder / name, self.members, self.steps, self.patience, SECONDS)
        pick = self.random
        time.sleep(pick.uniform(0.3, 1.0))
        undo: list[tuple[float, Callable[[], None]]] = []
        end = time.monotonic() + self.steps * SECONDS
        while time.monotonic() < end:
            now = time.monotonic()
            for _, heal in [event for event in undo if event[0] <= now]:
                heal()
            undo = [event for event in undo if event[0] > now]
            if pick.random() < 0.4:
                undo.append((now + pick.uniform(0.1, 2.5), self._event(federation)))
            time.sleep(0.15)
        for _, heal in undo:
            heal()
        codes = federation.end()
        if codes != [0] * self.members:
            return [f"exit codes {codes}"]
        return self._check(federation.folders)

    def _event(self, federation: Federation) -> Callable[[], None]:
        """Begin a random event; return what ends it."""
        pick = self.random
        kind = pick.choice(["absence", "absence", "cut", "partition", "freeze", "throttle"])
        if kind == "absence":
            alive = [i for i, process in enumerate(federation.running) if process.is_alive()]
            if not alive:
                return lambda: None
            gone = pick.choice(alive)
            federation.kill(gone)
            self.events[kind] += 1
            return lambda: federation.restart(gone)
        self.events[kind] += 1
        chosen = pick.sample(federation.proxies, 2 if kind == "partition" else 1)
        for proxy in chosen:
            if kind == "freeze":
                proxy.frozen = True
            elif kind == "throttle":
                proxy.rate = pick.uniform(500, 5000)
            else:
                proxy.cut()
        if kind == "cut" and pick.random() < 0.5:  # for a moment only
            chosen[0].heal()

        def heal() -> None:
            for proxy in chosen:
                proxy.heal()

        return heal

    def _check(self, folders: list[MemberFolder]) -> list[str]:
        found = []
        outcomes = {}
        for folder in folders:
            journal = Journal(folder.runs, folder.agreement.neighbours(folder.name))
            outcomes[folder.name] = {
                name: {n: journal.outcome(name, n) for n in range(2 * self.steps)}
                for name in folder.agreement.neighbours(folder.name)
            }
            journal.close()
            if (folder.path / "saved" / "differs").exists():
                found.append(f"{folder.name} saved another state the second time")
        for a, b in folders[0].agreement.edges:
            for number in range(2 * -(-self.steps // 3)):
                decider, other = outcomes[a][b][number], outcomes[b][a][number]
                took_place = decider is Outcome.COMMITTED
                self.exchanges += 1
                self.dropped += not took_place
                if took_place != (other is Outcome.SENT) or None in (decider, other):
                    found.append(f"exchange {number} of {a} and {b}: {decider} at one end, {other} at the other")
        found += self._check_invariant(folders)
        loss = self._loss(folders)
        self.losses.append(loss / self.expected)
        return found

    def _check_invariant(self, folders: list[MemberFolder]) -> list[str]:
        saved = [{int(path.stem) for path in (folder.path / "saved").glob("*.npz")} for folder in folders]
        found = []
        for t in sorted(set.intersection(*saved)):
            rows = [np.load(folder.path / "saved" / f"{t}.npz") for folder in folders]
            y, nu = (sum(row[name] for row in rows) / len(rows) for name in ("y", "nu"))
            self.common += 1
            if (error := np.abs(y - nu).max()) > 1e-12 * max(1.0, np.abs(nu).max()):
                found.append(f"J y − J ν is {error:.3g} at iteration {t}")
        return found

    def _loss(self, folders: list[MemberFolder]) -> float:
        """φ's smooth part at the averaged model of all members, over all data."""
        rows = [np.load(folder.path / "saved" / f"{self.steps}.npz")["x"] for folder in folders]
        row, problem = torch.tensor(np.mean(rows, axis=0)[0]), self.problem
        with torch.no_grad():
            outputs = torch.func.functional_call(problem.model, problem.layout.views(row), (problem.train.inputs,))
        return float(problem.loss.per_sample(outputs, problem.train.targets).mean())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=100)
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--patience", type=float, default=0.4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where federations are kept; default: a temporary folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        campaign = Campaign(folder, arguments.members, arguments.steps, arguments.patience, arguments.seed)
        for number in range(arguments.schedules):
            began = time.monotonic()
            found = campaign.run(f"schedule-{number}")
            campaign.failures += [f"schedule {number}: {problem}" for problem in found]
            what = "; ".join(found[:3]) if found else f"holds; loss × {campaign.losses[-1]:.3f}"
            print(f"schedule {number}: {time.monotonic() - began:.0f} s, {what}", flush=True)
        events = ", ".join(f"{count} × {kind}" for kind, count in sorted(campaign.events.items()))
        print(f"events: {events}")
        print(f"{campaign.exchanges} exchanges, of which {campaign.dropped} were dropped")
        print(f"J y = J ν checked at {campaign.common} common iterations")
        if campaign.losses:
            quartiles = statistics.median(campaign.losses), max(campaign.losses)
            print("loss compared with the undisturbed run: median {:.3f}, largest {:.3f}".format(*quartiles))
        print(f"{len(campaign.failures)} failures in {arguments.schedules} schedules")
        print(describe_versions())
        return 1 if campaign.failures else 0


if __name__ == "__main__":
    sys.exit(main())
