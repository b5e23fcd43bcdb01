"""Several configurations of a sweep at once: the cells of a figure, as rows of one matrix.

Configurations that differ in numbers (α, γ, β, …) or in whose data is whose take the same steps on rows of the same
length, so that they can be trials of one simulator. Each has a folder of its own all the same, like a run alone.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from depositum.algorithms import merge_key
from depositum.engines import Callback, Loop, Simulator
from depositum.errors import RunError
from depositum.metrics import History
from depositum.problem import Problem
from depositum.runs.build import build_side_by_side, simulator_of
from depositum.runs.cell import Cell, Keepers, WithSeeds, joined, label
from depositum.runs.config import Config
from depositum.runs.execute import (
    RunResult,
    check_fits,
    execute,
    free_memory,
    is_finished,
    why_finished,
)
from depositum.runs.lock import alone_in
from depositum.runs.seed_groups import divided

#: Keys in which cells may differ besides the numbers of their method.
OWN = (("problem", "beta"), ("problem", "partition"), ("problem", "partition_seed"), ("problem", "weighting"))
#: Rows held at once on a CPU, about: up to 100 small models gain by company there, and 300 lose what caches hold.
CPU_ROWS = 128
#: Vectors as long as a row that an iteration has in memory for each, about: the state twice, gradients, and between.
VECTORS_PER_ROW = 24
#: The share of a GPU's memory that they may take.
MEMORY_SHARE = 0.5


def together(configs: Sequence[Config]) -> list[list[int]]:
    """Which of them can run as rows of one matrix: places in `configs`, in order of first appearance."""
    groups: dict[str, list[int]] = {}
    for place, config in enumerate(configs):
        groups.setdefault(_shared(config, place), []).append(place)
    return list(groups.values())


def _shared(config: Config, place: int) -> str:
    """All that must be equal in cells of one group, as a text."""
    table: dict[str, Any] = config.complete()
    table["algorithm"] = {"name": config.algorithm.name, **merge_key(config.make_algorithm())}
    if config.problem.holdout:  # what is held out hangs on the seed of the partition
        table["held out by"] = config.problem.partition_seed or 0
    for section, key in (*OWN, ("run", "seeds")):
        table[section].pop(key, None)
    return json.dumps(table, sort_keys=True, default=repr)


def execute_cells(
    configs: Sequence[Config],
    folders: Sequence[Path],
    *,
    base: Path | None = None,
    callbacks: Sequence[Callback] = (),
    say: Callable[[str], None] = lambda _: None,
    on_loop: Callable[[Loop], None] = lambda _: None,
    keep_end: bool = True,
) -> list[RunResult]:
    """Run configurations, each in a folder of its own, going on from what the folders hold: all at once that can be.

    What is left to do is done by groups of `together`, of those at the same iteration, as large as memory allows. A
    configuration that is left alone in its group is run by `execute`. The wall time in a cell's history is the group's.

    Parameters
    ----------
    callbacks
        Asked at the moments of each group's loop, with the records of all its cells.
    on_loop
        Given each group's loop before it runs. Once one was asked to stop, the later ones stop where they are.
    keep_end
        As of `execute`.
    """
    if len({folder.absolute() for folder in folders}) < len(folders):
        raise RunError(f"two of {len(folders)} runs have the same folder; give each its own")
    with ExitStack() as held:
        for folder in folders:
            held.enter_context(alone_in(folder))
        cells = [Cell(config, folder, keep_end) for config, folder in zip(configs, folders, strict=True)]
        runner = _Runner(base, callbacks, say, on_loop, keep_end)
        for places in together(configs):
            unfinished = []
            for cell in (cells[place] for place in places):
                if cell.is_finished():
                    say(f"{cell.out}: nothing to do, {why_finished(cell.reached.snapshot)}")
                else:
                    unfinished.append(cell)
            for group in _alike(unfinished):
                runner.run(group)
        return [cell.result() for cell in cells]


class _Runner:
    """Runs groups of cells one after another."""

    def __init__(
        self,
        base: Path | None,
        callbacks: Sequence[Callback],
        say: Callable[[str], None],
        on_loop: Callable[[Loop], None],
        keep_end: bool,
    ) -> None:
        self.base, self.callbacks, self.say, self._tell, self.keep_end = base, callbacks, say, on_loop, keep_end
        self._stopped = False

    def run(self, cells: Sequence[Cell]) -> None:
        """Run cells of one group that go on from the same iteration."""
        try:
            fits = self._run_at_once(cells)
        finally:
            self._let_go(cells)
        if not fits:
            half = len(cells) // 2
            self.say(f"{len(cells)} runs at once do not fit the memory; {half} and {len(cells) - half} instead")
            for some in (cells[:half], cells[half:]):
                for cell in some:
                    cell.look()
                for group in _alike(some):
                    self.run(group)

    def _let_go(self, cells: Sequence[Cell]) -> None:
        """Free what a group had in memory, of a GPU above all, before the next begins."""
        for cell in cells:
            cell.let_go()
        free_memory()

    def _run_at_once(self, cells: Sequence[Cell]) -> bool:
        """Run cells, one alone as an ordinary run; whether they fit the memory."""
        if len(cells) == 1:
            cell = cells[0]
            alone = execute(
                cell.config,
                cell.out,
                base=self.base,
                callbacks=self.callbacks,
                say=self.say,
                on_loop=self._attach,
                keep_end=self.keep_end,
            )
            cell.result(alone)
            self._stopped |= not alone.finished
            return True
        configs = [cell.config for cell in cells]
        problem = build_side_by_side(configs, self.base)
        if not _fits(problem, configs[0]):
            return False
        try:
            self._run_trials(cells, configs, problem)
        except torch.OutOfMemoryError:
            return False
        return True

    def _run_trials(self, cells: Sequence[Cell], configs: list[Config], problem: Problem) -> None:
        first, backend = configs[0], cells[0].latest.snapshot.backend if cells[0].latest else "auto"
        simulator = simulator_of(configs, problem, self.base, backend)
        label(cells)
        for cell in cells:
            if cell.latest is not None:
                check_fits(cell.latest, problem, len(cell.labels) * problem.n)
                said = f"{cell.latest.problem}; " if cell.latest.problem else ""
                self.say(f"{said}{cell.out}: going on from iteration {cell.t}")
        for cell in cells:
            cell.begin()
        loop = self._loop(cells, simulator)
        self._attach(loop)
        loop.run()
        self._stopped |= loop.stop_requested
        for cell in cells:
            snapshot = cell.loop.snapshot
            diverged = list(snapshot.diverged.values())
            cell.result(RunResult(cell.out, snapshot, cell.history, is_finished(snapshot, first), diverged))

    def _loop(self, cells: Sequence[Cell], simulator: Simulator) -> Loop:
        run = cells[0].config.run
        return Loop(
            simulator,
            run.steps,
            evaluate_every=run.evaluate_every,
            evaluate_from=run.evaluate_from,
            checkpoint_every=run.checkpoint_every,
            metrics=cells[0].config.metrics.settings(),
            callbacks=[
                Keepers(cells),
                *(WithSeeds(callback, simulator.problem.seeds) for callback in self.callbacks),
            ],
            snapshot=joined(cells) if cells[0].latest else None,
            history=History(
                {**record, "seed": cell.labels.start + cell.config.run.seeds.index(record["seed"])}
                for cell in cells
                for record in cell.history.records
            ),
        )

    def _attach(self, loop: Loop) -> None:
        self._tell(loop)
        loop.stop_requested = loop.stop_requested or self._stopped


def _alike(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """Cells that go on from the same iteration, in the same way, and no more rows than are worth it on a CPU."""
    lowest = min((cell.t for cell in cells), default=0)
    for cell in cells:
        if cell.t > lowest:  # a kill between two checkpoints of one moment must not part those that ran together
            cell.go_back(lowest)
    groups: dict[object, list[Cell]] = {}
    for cell in cells:
        if divided(cell.config, cell.out):  # which has begun alone, and goes on so
            yield [cell]
            continue
        groups.setdefault((cell.t, cell.latest and cell.latest.snapshot.backend), []).append(cell)
    for group in groups.values():
        config = group[0].config
        if config.engine_settings().resolve_device().type == "cuda":
            yield group
            continue
        some: list[Cell] = []
        for cell in group:
            if some and _rows([*some, cell]) > CPU_ROWS:
                yield some
                some = []
            some.append(cell)
        yield some


def _rows(cells: Sequence[Cell]) -> int:
    return sum(len(cell.config.run.seeds) * cell.config.problem.clients for cell in cells)


def _fits(problem: Problem, config: Config) -> bool:
    """Whether a GPU is likely to hold the rows of all trials."""
    settings = config.engine_settings()
    device = settings.resolve_device()
    if device.type != "cuda":
        return True
    row = problem.layout.size * settings.resolve_dtype().itemsize
    memory = torch.cuda.get_device_properties(device).total_memory
    return len(problem.trials) * problem.n * row * VECTORS_PER_ROW <= MEMORY_SHARE * memory
