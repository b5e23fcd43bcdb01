"""One configuration among several that run side by side: its folder, and its part of the loop of all.

In that loop a trial is known by its label, which is its place among the trials of all; in a cell's files it is known by
its seed, as if the cell had run alone.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from depositum.engines import Callback, Divergence, Loop, Snapshot
from depositum.runs import checkpoint
from depositum.runs.checkpoint import Latest
from depositum.runs.config import Config
from depositum.runs.execute import Keeper, RunResult, is_finished, newest
from depositum.runs.folder import RunFolder


class Cell:
    """One configuration of a group, in its folder.

    Its files are written by an ordinary run's keeper, which is shown a loop of the cell alone.
    """

    def __init__(self, config: Config, out: Path, keep_end: bool = True) -> None:
        self.config, self.out, self.folder = config, out, RunFolder(out)
        self.folder.check(config)
        self.keeper = Keeper(self.folder, keep_end)
        self.labels: range
        self.loop: Loop
        self._result: RunResult | None = None
        self.look()

    def look(self) -> None:
        """See how far the folder has come."""
        self.latest = newest(self.out, self.config.problem.clients)

    @property
    def reached(self) -> Latest:
        assert self.latest is not None, "there is a checkpoint to go on from"
        return self.latest

    @property
    def t(self) -> int:
        """The iteration it goes on from; −1 if it begins."""
        return self.latest.snapshot.t if self.latest else -1

    def is_finished(self) -> bool:
        return self.latest is not None and is_finished(self.latest.snapshot, self.config)

    def go_back(self, t: int) -> None:
        """Go on from the checkpoint before the last instead, if it is of iteration t."""
        path = self.out / checkpoint.PREVIOUS
        if path.exists() and checkpoint.iteration(path) == t:
            self.latest = Latest(checkpoint.read(path), path)

    def begin(self) -> None:
        """Make the folder ready, and read its history."""
        self.history = self.folder.begin(self.config, self.t if self.latest else None)
        if self.latest is not None:
            checkpoint.make_current(self.latest)

    def result(self, result: RunResult | None = None) -> RunResult:
        """What came of it; given one, that is it."""
        self._result = result or self._result
        if self._result is None:
            snapshot = self.reached.snapshot
            diverged = list(snapshot.diverged.values())
            self._result = RunResult(self.out, snapshot, self.folder.history(), True, diverged)
        return self._result

    # Its part of a loop of several

    def seed(self, label: int) -> int:
        return self.config.run.seeds[label - self.labels.start]

    def part(self, snapshot: Snapshot) -> Snapshot:
        """The rows of this cell, as a run alone has them."""
        return renamed(snapshot.of_seeds(self.labels), self.config.run.seeds)

    def let_go(self) -> None:
        """Forget the loop, and with it the memory that its rows take."""
        self.__dict__.pop("loop", None)

    def follow(self, loop: Loop) -> Loop:
        """The loop of this cell alone, at the moment where that of all is; its snapshot is the last that was kept."""
        self.loop.engine, self.loop.whole = loop.engine, loop.whole
        return self.loop


class Keepers(Callback):
    """Keeps what happens in a loop of several cells in the folders of each."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = cells

    def on_start(self, loop: Loop) -> None:
        for cell in self.cells:
            cell.loop = copy.copy(loop)
            cell.loop.history, cell.loop.callbacks = cell.history, [cell.keeper]
            cell.loop.snapshot = cell.part(loop.snapshot)
            cell.keeper.on_start(cell.loop)

    def on_evaluation(self, loop: Loop, records: list[dict[str, Any]]) -> None:
        for cell in self.cells:
            own = [{**r, "seed": cell.seed(r["seed"])} for r in records if r["seed"] in cell.labels]
            if own:
                cell.keeper.on_evaluation(cell.follow(loop), [cell.history.add(record) for record in own])

    def on_trace(self, loop: Loop, errors: list[tuple[int, int, float]]) -> None:
        for cell in self.cells:
            own = [(cell.seed(label), t, error) for label, t, error in errors if label in cell.labels]
            if own:
                cell.keeper.on_trace(cell.follow(loop), own)

    def on_divergence(self, loop: Loop, divergence: Divergence) -> None:
        cell = next(cell for cell in self.cells if divergence.seed in cell.labels)
        own = divergence._replace(seed=cell.seed(divergence.seed))
        snapshot = cell.follow(loop).snapshot
        snapshot.diverged[own.seed] = own
        cell.keeper.on_divergence(cell.loop, own)
        if not snapshot.live:  # alone, the run would end here
            cell.keeper.on_checkpoint(cell.loop)

    def on_checkpoint(self, loop: Loop) -> None:
        for cell in self.cells:
            if cell.follow(loop).snapshot.live:
                cell.loop.snapshot = cell.part(loop.snapshot)
                cell.keeper.on_checkpoint(cell.loop)

    def on_end(self, loop: Loop) -> None:
        for cell in self.cells:
            cell.keeper.on_end(cell.follow(loop))


class WithSeeds(Callback):
    """A person's callback in a loop of several cells: told of seeds, not of labels."""

    def __init__(self, callback: Callback, seeds: Sequence[int]) -> None:
        self._callback, self._seeds = callback, seeds
        for moment in ("on_start", "on_compile", "on_step", "on_progress", "on_checkpoint", "on_end"):
            setattr(self, moment, getattr(callback, moment))

    def on_evaluation(self, loop: Loop, records: list[dict[str, Any]]) -> None:
        self._callback.on_evaluation(loop, [{**record, "seed": self._seeds[record["seed"]]} for record in records])

    def on_trace(self, loop: Loop, errors: list[tuple[int, int, float]]) -> None:
        self._callback.on_trace(loop, [(self._seeds[label], t, error) for label, t, error in errors])

    def on_divergence(self, loop: Loop, divergence: Divergence) -> None:
        self._callback.on_divergence(loop, divergence._replace(seed=self._seeds[divergence.seed]))


def label(cells: Sequence[Cell]) -> None:
    """Give each cell the labels that its trials have side by side with the others'."""
    first = 0
    for cell in cells:
        cell.labels = range(first, first + len(cell.config.run.seeds))
        first = cell.labels.stop


def joined(cells: Sequence[Cell]) -> Snapshot:
    """One snapshot of all cells' checkpoints, which are of one iteration."""
    return Snapshot.joined([renamed(cell.reached.snapshot, cell.labels) for cell in cells])


def renamed(snapshot: Snapshot, names: Sequence[int]) -> Snapshot:
    """The same, with its seeds called otherwise."""
    known = dict(zip(snapshot.seeds, names, strict=True))
    diverged = {known[seed]: found._replace(seed=known[seed]) for seed, found in snapshot.diverged.items()}
    return replace(snapshot, seeds=tuple(names), diverged=diverged)
