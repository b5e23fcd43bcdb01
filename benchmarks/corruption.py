"""Damage the newest checkpoint of a run at random: it must be detected, and the run must end in the same bytes.

Each case copies a run that was stopped, changes bytes of its newest checkpoint (or of both) and resumes it:

- one damaged: one line reports it, the damaged bytes are kept, and the run resumes from the checkpoint before, to the
  same state, models and history (apart from wall time) as a run that was not disturbed;
- both damaged: one line refuses the folder, of which no byte changes;
- the checkpoint of one client (`clients/N.safetensors`, as processes write them) damaged: the newest iteration that
  all clients have is the one before, and its rows are those that were written.

    python benchmarks/corruption.py [--cases 300] [--seed 0]

prints a table, and exits with 1 if a case fails.
"""

import argparse
import csv
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from depositum.engines import Callback, Loop, Snapshot
from depositum.errors import MAX_MESSAGE, RunError
from depositum.runs import checkpoint, client_checkpoints, execute, from_table

CONFIG: dict[str, dict[str, Any]] = {
    "problem": {"dataset": {"synthetic": {"samples": 60, "features": 4, "classes": 3}}, "clients": 4},
    "algorithm": {"alpha": 0.1, "gamma": 0.5},
    "run": {"steps": 60, "period": 3, "batch_size": 4, "evaluate_every": 20, "checkpoint_every": 20, "device": "cpu"},
}
CONFIG["problem"] |= {"regularizer": "l1", "beta": 1e-3}
#: Where the run is stopped: after checkpoints at 20 and 40.
STOP, PREVIOUS, NEWEST = 40, 20, 40
CLIENTS = 4

Bytes = bytearray
Damage = Callable[[Bytes, range, random.Random], None]


def flip(content: Bytes, where: range, source: random.Random) -> None:
    """Flip one bit."""
    content[source.choice(where)] ^= 1 << source.randrange(8)


def flips(content: Bytes, where: range, source: random.Random) -> None:
    """Flip a bit of up to ten bytes."""
    for index in source.sample(where, min(10, len(where))):
        content[index] ^= 1 << source.randrange(8)


def zeros(content: Bytes, where: range, source: random.Random) -> None:
    """Overwrite a block by zeros, as a file system may after a crash."""
    start = source.choice(where)
    end = min(start + source.randrange(1, 65), where.stop)
    content[start:end] = bytes(end - start)


def swap(content: Bytes, where: range, source: random.Random) -> None:
    """Exchange two blocks."""
    size = source.randrange(1, max(2, min(33, len(where) // 2)))
    first = source.randrange(where.start, where.stop - 2 * size + 1)
    second = source.randrange(first + size, where.stop - size + 1)
    one, two = content[first : first + size], content[second : second + size]
    content[first : first + size], content[second : second + size] = two, one


def noise(content: Bytes, where: range, source: random.Random) -> None:
    """Overwrite a block by random bytes."""
    start = source.choice(where)
    end = min(start + source.randrange(1, 33), where.stop)
    content[start:end] = source.randbytes(end - start)


def truncate(content: Bytes, where: range, source: random.Random) -> None:
    """Cut the file off."""
    del content[source.choice(where) :]


DAMAGES: tuple[Damage, ...] = (flip, flips, zeros, swap, noise, truncate)
PARTS = ("data", "header", "metadata")


def part_of_file(content: bytes, part: str) -> range:
    """The positions of a part of a safetensors file: the tensors, the header, or the run's metadata in the header."""
    data = 8 + int.from_bytes(content[:8], "little")
    if part == "data":
        return range(data, len(content))
    if part == "header":
        return range(data)
    start = content.index(b'"depositum":"')
    return range(start, content.index(b'"}', start))


def damage_file(path: Path, damage: Damage, part: str, source: random.Random) -> None:
    """Damage a part of a file; its bytes are others than before."""
    before = path.read_bytes()
    while (content := bytearray(before)) == before:
        damage(content, part_of_file(before, part), source)
        if content != before:
            path.write_bytes(content)
            return


class Stop(Callback):
    def on_step(self, loop: Loop) -> None:
        loop.stop_requested = loop.t == STOP


class Case(NamedTuple):
    """A kind of damage and where it is done: the newest checkpoint, both, or one client's."""

    damage: Damage
    part: str
    which: str


def cases(count: int, seed: int) -> Iterator[tuple[Case, random.Random]]:
    """Every kind of damage in every part in turn; one in eleven damages both files, one in seven a client's."""
    for number in range(count):
        source = random.Random(f"{seed}/{number}")
        which = "both" if number % 11 == 5 else "client" if number % 7 == 3 else "newest"
        yield Case(DAMAGES[number % len(DAMAGES)], PARTS[number // len(DAMAGES) % len(PARTS)], which), source


class Campaign:
    """A stopped run, and what it becomes if it is not disturbed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.spec = folder, from_table({section: dict(keys) for section, keys in CONFIG.items()})
        execute(self.spec, folder / "undisturbed")
        self.expected = outcome(folder / "undisturbed")
        execute(self.spec, folder / "stopped", callbacks=[Stop()])
        found = checkpoint.by_iteration(folder / "stopped" / name for name in (checkpoint.CURRENT, checkpoint.PREVIOUS))
        assert set(found) == {PREVIOUS, NEWEST}, found
        self.snapshots = {t: checkpoint.read(path) for t, path in found.items()}
        for t in sorted(self.snapshots):  # the same states, as processes write them
            (folder / "processes").mkdir(exist_ok=True)
            client_checkpoints.write(folder / "processes", self.snapshots[t], range(CLIENTS))

    def run(self, case: Case, source: random.Random) -> str | None:
        """Try one case; return what is wrong with its outcome, if anything."""
        out = self.folder / "case"
        shutil.rmtree(out, ignore_errors=True)
        if case.which == "client":
            return self._run_clients(case, source, out)
        shutil.copytree(self.folder / "stopped", out)
        names = (checkpoint.CURRENT, checkpoint.PREVIOUS) if case.which == "both" else (checkpoint.CURRENT,)
        for name in names:
            damage_file(out / name, case.damage, case.part, source)
        before, lines = files(out), list[str]()
        try:
            execute(self.spec, out, say=lines.append)
        except RunError as error:
            if case.which != "both":
                return f"refused: {error}"
            return check_line(str(error)) or (None if files(out) == before else "refused, but files changed")
        if case.which == "both":
            return "both were damaged, and it ran"
        if len(lines) != 1 or not lines[0].endswith(f"resuming from iteration {PREVIOUS}"):
            return f"reported {lines}"
        if before[checkpoint.CURRENT] not in files(out).values():
            return "the damaged file is lost"
        return check_line(lines[0].partition(";")[0]) or (None if outcome(out) == self.expected else "other results")

    def _run_clients(self, case: Case, source: random.Random, out: Path) -> str | None:
        shutil.copytree(self.folder / "processes", out)
        everyone, client = range(CLIENTS), source.randrange(CLIENTS)
        path = out / client_checkpoints.FOLDER / f"{client}.safetensors"
        damage_file(path, case.damage, case.part, source)
        damaged = path.read_bytes()
        problems = client_checkpoints.damaged(out, everyone)
        if list(problems) != [path] or client_checkpoints.iterations(out, everyone) != {PREVIOUS}:
            return f"reported {problems}"
        client_checkpoints.make_current(out, everyone, PREVIOUS)
        if damaged not in files(out).values():
            return "the damaged file is lost"
        found = client_checkpoints.read(out, everyone, PREVIOUS)
        return check_line(problems[path]) or (None if equal(found, self.snapshots[PREVIOUS]) else "other rows")


def check_line(line: str) -> str | None:
    """What is wrong with a message, if anything."""
    return None if line.isprintable() and len(line) <= MAX_MESSAGE else f"message of {len(line)} characters: {line!r}"


def equal(one: Snapshot, other: Snapshot) -> bool:
    """Whether two snapshots are the same in every bit."""
    same = one.tensors.keys() == other.tensors.keys() and (one.t, one.costs) == (other.t, other.costs)
    return same and all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())


def files(folder: Path) -> dict[str, bytes]:
    """The bytes of every file of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def outcome(folder: Path) -> dict[str, Any]:
    """What must be the same in the end: the state, the models, and the history apart from wall time."""
    with (folder / "history.csv").open(newline="") as file:
        history = [{key: value for key, value in row.items() if key != "seconds"} for row in csv.DictReader(file)]
    names = (checkpoint.CURRENT, "model.safetensors", "consensus.csv")
    return {"history": history, **{name: (folder / name).read_bytes() for name in names}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    total, failed = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(Path(folder))
        for case, source in cases(arguments.cases, arguments.seed):
            key = (case.which, f"{case.damage.__name__} in {case.part}")
            total[key] += 1
            problem = campaign.run(case, source)
            if problem:
                failed[key] += 1
                print(f"FAILED {key[0]}, {key[1]}: {problem}", flush=True)
    print(f"{'damaged':10}{'how':24}{'cases':>6}{'failed':>8}")
    for key in sorted(total):
        print(f"{key[0]:10}{key[1]:24}{total[key]:6}{failed[key]:8}")
    print(f"{'all':34}{total.total():6}{failed.total():8}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
