"""Let members and links of a federation fail at random under `absent = "drop"`, and check what must hold all the same.

    python benchmarks/peer_absence.py [--schedules 100] [--members 5] [--steps 60] [--patience 0.4] [--seed 0]
                                       [--jobs 1]

Members are processes on a ring; every connection passes through a proxy. A schedule is a few random events: members
are killed and return after a random time, connections are cut for a while (also so that the ring falls into two
parts), frozen, or slowed down. When all has healed and all members have ended, each exchange must have taken place at
both ends of its edge or at neither, J y = J ν must hold over all members to 1e-12 at every iteration that all have
saved, what was saved twice must be equal, and the loss of the averaged model is compared with an undisturbed run's.
Exits with 1 if anything does not hold. `--jobs` schedules run at the same time, each on ports of its own.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
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
from tests.support.peer_processes import Processes, at_once, ports_of, wait_for  # noqa: E402

from depositum.federation.member_folder import MemberFolder  # noqa: E402
from depositum.peers.journal import Journal, Outcome  # noqa: E402
from depositum.provenance import describe_versions  # noqa: E402

#: Seconds within which a federation must come to an end after it has healed.
ENOUGH = 120.0
#: Seconds that an iteration takes at least, so that something can happen meanwhile.
SECONDS = 0.08


@dataclass(frozen=True)
class Setting:
    """What all schedules have in common."""

    folder: Path
    members: int
    steps: int
    patience: float
    seed: int


@dataclass
class Found:
    """What came of one schedule; `problems` is what did not hold."""

    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    events: Counter[str] = field(default_factory=Counter)
    exchanges: int = 0
    dropped: int = 0
    #: Iterations at which J y = J ν was checked, since all members have saved them.
    common: int = 0
    #: Of the averaged model, compared with the undisturbed run's.
    loss: float = 0.0


class Federation:
    """Members as processes, each behind a proxy."""

    def __init__(self, setting: Setting, number: int, name: str, patience: float, seconds: float) -> None:
        members = setting.members
        config = run_config(steps=setting.steps, checkpoint_every=3)
        config["algorithm"]["start"] = "local"
        ports = free_ports(2 * members, ports_of(number))
        public, self.private = ports[:members], ports[members:]
        agreement = make_agreement(
            nx.cycle_graph(members), config, public, evaluate="none", absent="drop", patience=patience
        )
        self.folders = write_folders(setting.folder / name, agreement)
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


def undisturbed(setting: Setting) -> float:
    """The loss if nothing happens."""
    federation = Federation(setting, 0, "undisturbed", 60.0, 0.0)
    codes = federation.end()
    assert codes == [0] * setting.members, f"the undisturbed federation ended with {codes}"
    return averaged_loss(setting, federation.folders)


def run_schedule(setting: Setting, expected: float, number: int) -> Found:
    """One schedule of random events."""
    began, found, pick = time.monotonic(), Found(), random.Random(f"{setting.seed}-{number}")
    federation = Federation(setting, number, f"schedule-{number}", setting.patience, SECONDS)
    time.sleep(pick.uniform(0.3, 1.0))
    undo: list[tuple[float, Callable[[], None]]] = []
    end = time.monotonic() + setting.steps * SECONDS
    while time.monotonic() < end:
        now = time.monotonic()
        for _, heal in [event for event in undo if event[0] <= now]:
            heal()
        undo = [event for event in undo if event[0] > now]
        if pick.random() < 0.4:
            undo.append((now + pick.uniform(0.1, 2.5), begin_event(federation, pick, found.events)))
        time.sleep(0.15)
    for _, heal in undo:
        heal()
    codes = federation.end()
    if codes != [0] * setting.members:
        found.problems.append(f"exit codes {codes}")
    else:
        check_exchanges(setting, federation.folders, found)
        check_invariant(federation.folders, found)
        found.loss = averaged_loss(setting, federation.folders) / expected
    found.seconds = time.monotonic() - began
    return found


def begin_event(federation: Federation, pick: random.Random, events: Counter[str]) -> Callable[[], None]:
    """Begin a random event; return what ends it."""
    kind = pick.choice(["absence", "absence", "cut", "partition", "freeze", "throttle"])
    if kind == "absence":
        alive = [i for i, process in enumerate(federation.running) if process.is_alive()]
        if not alive:
            return lambda: None
        gone = pick.choice(alive)
        federation.kill(gone)
        events[kind] += 1
        return lambda: federation.restart(gone)
    events[kind] += 1
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


def check_exchanges(setting: Setting, folders: list[MemberFolder], found: Found) -> None:
    """Each exchange took place at both ends or at neither, and what was saved twice is equal."""
    outcomes = {}
    for folder in folders:
        journal = Journal(folder.runs, folder.agreement.neighbours(folder.name))
        outcomes[folder.name] = {
            name: {n: journal.outcome(name, n) for n in range(2 * setting.steps)}
            for name in folder.agreement.neighbours(folder.name)
        }
        journal.close()
        if (folder.path / "saved" / "differs").exists():
            found.problems.append(f"{folder.name} saved another state the second time")
    for a, b in folders[0].agreement.edges:
        for number in range(2 * -(-setting.steps // 3)):
            decider, other = outcomes[a][b][number], outcomes[b][a][number]
            took_place = decider is Outcome.COMMITTED
            found.exchanges += 1
            found.dropped += not took_place
            if took_place != (other is Outcome.SENT) or None in (decider, other):
                found.problems.append(f"exchange {number} of {a} and {b}: {decider} at one end, {other} at the other")


def check_invariant(folders: list[MemberFolder], found: Found) -> None:
    """J y = J ν at every iteration that all members have saved."""
    saved = [{int(path.stem) for path in (folder.path / "saved").glob("*.npz")} for folder in folders]
    for t in sorted(set.intersection(*saved)):
        rows = [np.load(folder.path / "saved" / f"{t}.npz") for folder in folders]
        y, nu = (sum(row[name] for row in rows) / len(rows) for name in ("y", "nu"))
        found.common += 1
        if (error := np.abs(y - nu).max()) > 1e-12 * max(1.0, np.abs(nu).max()):
            found.problems.append(f"J y − J ν is {error:.3g} at iteration {t}")


def averaged_loss(setting: Setting, folders: list[MemberFolder]) -> float:
    """φ's smooth part at the averaged model of all members, over all data."""
    rows = [np.load(folder.path / "saved" / f"{setting.steps}.npz")["x"] for folder in folders]
    row, problem = torch.tensor(np.mean(rows, axis=0)[0]), dirichlet_problem(setting.members)
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
    parser.add_argument("--jobs", type=int, default=1, help="schedules at the same time")
    parser.add_argument("--folder", type=Path, help="where federations are kept; default: a temporary folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        setting = Setting(folder, arguments.members, arguments.steps, arguments.patience, arguments.seed)
        expected = undisturbed(setting)
        tasks = [(setting, expected, number) for number in range(1, arguments.schedules + 1)]
        results: list[Found] = []
        for found in at_once(run_schedule, tasks, arguments.jobs):
            results.append(found)
            what = "; ".join(found.problems[:3]) or f"holds; loss × {found.loss:.3f}"
            print(f"schedule {len(results)}: {found.seconds:.0f} s, {what}", flush=True)
    events = sum((found.events for found in results), Counter[str]())
    print("events: " + ", ".join(f"{count} × {kind}" for kind, count in sorted(events.items())))
    exchanges, dropped = sum(found.exchanges for found in results), sum(found.dropped for found in results)
    print(f"{exchanges} exchanges, of which {dropped} were dropped")
    print(f"J y = J ν checked at {sum(found.common for found in results)} common iterations")
    if losses := [found.loss for found in results if found.loss]:
        quartiles = statistics.median(losses), max(losses)
        print("loss compared with the undisturbed run: median {:.3f}, largest {:.3f}".format(*quartiles))
    failed = sum(bool(found.problems) for found in results)
    print(f"{failed} of {len(results)} schedules failed")
    print(describe_versions())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
