"""Run configurations in folders: begin, resume or extend what is there, as many at once as can share a simulator.

Configurations that differ in numbers (α, γ, β, …), in the partition, the weighting or the seeds take the same steps on
rows of the same length, so they are trials of one simulator. Each has its own folder all the same, like a run alone.
Trials that do not fit in memory are run in smaller groups.
"""

import gc
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from depositum import data
from depositum.algorithms import merge_key
from depositum.engines import Callback, Divergence, Engine, Loop, Snapshot, describe_divergences
from depositum.errors import DivergedError, RunError, renamed_keys
from depositum.metrics import SINGLE_PROCESS, History
from depositum.problem import Problem
from depositum.runs import checkpoint, client_checkpoints
from depositum.runs.checkpoint import Latest
from depositum.runs.config_keys import config_keys, setting_name
from depositum.runs.folder import RunFolder
from depositum.runs.folder_lock import exclusive
from depositum.runs.participants import PARTICIPANTS, describe_participants
from depositum.runs.problems import build_problem, engine_of
from depositum.runs.resolved import ResolvedConfig
from depositum.runs.writing import RunWriter, records_at_end, write_models

Say = Callable[[str], None]
OnLoop = Callable[[Loop], None]

#: Keys in which configurations of one simulator may differ, besides the numbers of their method and the seeds.
_MAY_DIFFER = (("problem", "beta"), ("problem", "partition"), ("problem", "partition_seed"), ("problem", "weighting"))
#: Approximate number of rows at once on a CPU: up to 100 small models gain by sharing, 300 lose what caches hold.
CPU_ROWS = 128
#: Approximate number of vectors of a row's length that an iteration has in memory per row.
VECTORS_PER_ROW = 24
#: The share of a GPU's memory that they may take.
MEMORY_SHARE = 0.5


@dataclass
class RunResult:
    """A run as far as it has come; `folder` is None if it is held in memory alone.

    `damage` describes a newer checkpoint that could not be read, if the run was resumed from an older one. `writes`:
    whether this process writes what the folder has once, as one of several processes on its host may not.
    `stop_reason` is why a callback has ended the run before its last iteration, if one has.
    """

    folder: Path | None
    snapshot: Snapshot
    history: History
    finished: bool
    diverged: list[Divergence]
    damage: str | None = None
    writes: bool = True
    stop_reason: str = ""

    def raise_if_diverged(self, spec: ResolvedConfig) -> None:
        """Report where seeds diverged, in one line, with the stepsize by the method's own name for it."""
        if self.diverged:
            raise DivergedError(self.divergence(spec))

    def divergence(self, spec: ResolvedConfig) -> str:
        """Where seeds diverged, and what to do, in one line."""
        settings, key = spec.table["algorithm"], spec.algorithm.stepsize_key
        value = settings.get(key)
        chosen = ("algorithm.name", repr(settings["name"])) if value is None else (f"algorithm.{key}", value)
        what = describe_divergences(self.diverged, len(self.snapshot.seeds))
        kept = "in the result" if self.folder is None else f"in {self.folder / checkpoint.CURRENT}"
        return (
            f"{setting_name(chosen[0])} = {chosen[1]}: {what}; the last finite state is kept {kept}; "
            f"try {spec.algorithm.shorter_steps()}"
        )


def execute(
    spec: ResolvedConfig,
    out: Path | None,
    *,
    callbacks: Sequence[Callback] = (),
    say: Say = lambda _: None,
    on_loop: OnLoop = lambda _: None,
    keep_end: bool = True,
) -> RunResult:
    """Run a configuration in the folder `out`, resuming what it holds, or in memory; see `execute_all`."""
    return execute_all([spec], [out], callbacks=callbacks, say=say, on_loop=on_loop, keep_end=keep_end)[0]


@config_keys()
def execute_all(
    specs: Sequence[ResolvedConfig],
    folders: Sequence[Path | None],
    *,
    callbacks: Sequence[Callback] = (),
    say: Say = lambda _: None,
    on_loop: OnLoop = lambda _: None,
    keep_end: bool = True,
) -> list[RunResult]:
    """Run configurations, each in its folder, resuming what the folders hold: as many at once as possible.

    What remains to be done is done in groups of compatible configurations at the same iteration, as large as memory
    allows. The wall time in a run's history is that of its group.

    Parameters
    ----------
    folders
        One for each configuration; None for a run that is held in memory alone.
    callbacks
        Called at the moments of each group's loop, with the records of all its runs.
    say
        Called with one line for each thing that the user should know: a resumption, a damaged checkpoint.
    on_loop
        Called with each loop before it runs, so that it can be asked to stop. Once one was, the later ones stop at
        once.
    keep_end
        Whether the last state and the models are written, which can take longer than the run. Without them a run
        cannot be extended, and starts again from its last checkpoint if it is executed once more.
    """
    paths = [folder for folder in folders if folder is not None]
    if len({folder.absolute() for folder in paths}) < len(paths):
        raise RunError(f"two of {len(paths)} runs have the same folder; each needs its own")
    with ExitStack() as locks:
        for folder in paths:
            locks.enter_context(exclusive(folder))
        runs = [Run(spec, folder) for spec, folder in zip(specs, folders, strict=True)]
        executor = _Executor(callbacks, say, on_loop, keep_end)
        for indices in compatible(specs):
            unfinished = []
            for run in (runs[index] for index in indices):
                if run.is_finished():
                    say(run.resumed.with_problem(f"{run.out}: nothing to do, {why_finished(run.resumed.snapshot)}"))
                else:
                    unfinished.append(run)
            for group in _groups(unfinished):
                executor.run(group)
        return [run.result() for run in runs]


class Run:
    """One configuration in its folder, or in memory."""

    def __init__(self, spec: ResolvedConfig, out: Path | None) -> None:
        self.spec, self.out = spec, out
        self.folder = None if out is None else RunFolder(out)
        if self.folder is not None:
            self.folder.check(spec)
        self._result: RunResult | None = None
        self.look()

    @property
    def seeds(self) -> list[int]:
        return self.spec.config.run.seeds

    @property
    def rows(self) -> int:
        return len(self.seeds) * self.spec.config.problem.clients

    def look(self) -> None:
        """Find out how far the folder has come."""
        self.latest = None if self.out is None else newest_checkpoint(self.out, self.spec.config.problem.clients)

    @property
    def resumed(self) -> Latest:
        assert self.latest is not None, "there is a checkpoint to resume from"
        return self.latest

    @property
    def t(self) -> int:
        """The iteration that it resumes from; −1 if it begins."""
        return self.latest.snapshot.t if self.latest else -1

    @property
    def backend(self) -> str:
        """The backend of earlier sessions, where there were any."""
        return self.latest.snapshot.backend if self.latest else "auto"

    def is_finished(self) -> bool:
        return self.latest is not None and is_finished(self.latest.snapshot, self.spec.config.run.steps)

    def go_back(self, t: int) -> None:
        """Resume from the checkpoint before the last instead, if it is of iteration t."""
        assert self.out is not None
        path = self.out / checkpoint.PREVIOUS
        if t in checkpoint.by_iteration([path]):
            self.latest = Latest(checkpoint.read(path), path)

    def begin(self) -> History:
        """Prepare the folder, and read its history."""
        if self.folder is None:
            return History()
        history = self.folder.begin(self.spec, self.t if self.latest else None)
        if self.latest is not None:
            checkpoint.make_current(self.latest)
        return history

    def write_participants(self, problem: Problem, trials: range) -> None:
        """Write who takes part into the folder; `trials` are the indices of this run's trials in the problem."""
        if self.folder is not None:
            self.folder.write_text(PARTICIPANTS, describe_participants(self.spec.network, problem, trials))

    def finish(self, snapshot: Snapshot, history: History, stop_reason: str = "") -> None:
        """Set the result."""
        finished, diverged = is_finished(snapshot, self.spec.config.run.steps), list(snapshot.diverged.values())
        damage = self.latest.problem if self.latest else None
        self._result = RunResult(self.out, snapshot, history, finished, diverged, damage, stop_reason=stop_reason)

    def result(self) -> RunResult:
        if self._result is None:
            assert self.folder is not None
            self.finish(self.resumed.snapshot, self.folder.history())
        assert self._result is not None
        return self._result


class _Executor:
    """Runs groups of runs, one group after another."""

    def __init__(self, callbacks: Sequence[Callback], say: Say, on_loop: OnLoop, keep_end: bool) -> None:
        self.callbacks, self.say, self.on_loop, self.keep_end = callbacks, say, on_loop, keep_end
        self._stopped = False

    def run(self, runs: Sequence[Run]) -> None:
        """Run a group that resumes from one iteration; what does not fit in memory, in smaller groups."""
        if data.needs_tokenizer(runs[0].spec.config.problem.dataset):
            self.say("reading the language model and its texts")
        try:
            fits = self._run_at_once(runs)
        finally:
            free_memory()
        if fits:
            return
        for run in runs:
            run.look()
        if len(runs) == 1:
            self._run_by_seeds(runs[0])
            return
        half = len(runs) // 2
        self.say(f"{len(runs)} runs at once do not fit in memory; running {half} and {len(runs) - half} instead")
        for some in (runs[:half], runs[half:]):
            for group in _groups(some):
                self.run(group)

    def _run_at_once(self, runs: Sequence[Run]) -> bool:
        """Run all trials in one simulator; return whether they fit in memory."""
        specs = [run.spec for run in runs]
        problem = build_problem(specs)
        if len(runs) > 1 and not _fits(problem, specs[0]):
            return False
        try:
            self._run_trials(runs, engine_of(specs, problem, runs[0].backend))
        except torch.OutOfMemoryError:
            return False
        return True

    def _run_trials(self, runs: Sequence[Run], engine: Engine) -> None:
        labels = iter(engine.problem.labels)
        seeds = [{next(labels): seed for seed in run.seeds} for run in runs]
        self._announce_resumption(runs, engine.problem)
        writers = [RunWriter(run.folder, own, self.keep_end) for run, own in zip(runs, seeds, strict=True)]
        resumed = [
            run.latest.snapshot.relabelled(list(own)) for run, own in zip(runs, seeds, strict=True) if run.latest
        ]
        folder = runs[0].out if len(runs) == 1 else None
        loop = self._loop(runs[0], engine, Snapshot.joined(resumed) if resumed else None, writers, folder)
        loop.prepare()
        histories = [run.begin() for run in runs]
        first = 0
        for run in runs:
            run.write_participants(engine.problem, range(first, first + len(run.seeds)))
            first += len(run.seeds)
        loop.history = History(
            {**record, "trial": label}
            for own, history in zip(seeds, histories, strict=True)
            for record in history.records
            for label, seed in own.items()
            if seed == record["seed"]
        )
        self._attach(loop)
        loop.run()
        self._stopped |= loop.stop_requested and not loop.stop_reason
        for run, writer, history in zip(runs, writers, histories, strict=True):
            run.finish(writer.snapshot, _extended(history, writer.records), loop.stop_reason)
        if loop.stop_reason:
            self.say(stopped_early(loop))

    def _run_by_seeds(self, run: Run) -> None:
        """Run groups of seeds in turn, each from one checkpoint to the next, and write checkpoints of all of them."""
        seeds = run.seeds
        if len(seeds) == 1:
            raise RunError(_too_large(run.spec))
        problem = build_problem([run.spec])
        self._announce_resumption([run], problem)
        history, snapshot = run.begin(), run.latest.snapshot if run.latest else None
        run.write_participants(problem, range(len(seeds)))
        steps, every = run.spec.config.run.steps, run.spec.config.run.checkpoint_every
        groups, t, stopped = _halves(seeds), max(run.t, 0), False
        self._say_groups(run, groups)
        while snapshot is None or not (is_finished(snapshot, steps) or stopped):
            end = min(steps, (t // every + 1) * every)
            events = _Events()
            parts: list[Snapshot] = []
            waiting, groups = groups, []
            while waiting:
                group = waiting.pop(0)
                part = None if snapshot is None else snapshot.of_trials(group)
                if part is None or part.live:
                    recorded = History(record for record in history.records if record["seed"] in group)
                    own = _Events()
                    try:
                        engine = engine_of([run.spec], problem.restricted_to(group), run.backend)
                        loop = self._loop(run, engine, part, [own], run.out)
                        loop.history = recorded
                        if not stopped:
                            self._attach(loop)
                        part = loop.run(end)
                    except torch.OutOfMemoryError:
                        if len(group) == 1:
                            raise RunError(_too_large(run.spec)) from None
                        waiting = [*_halves(group), *waiting]
                        self._say_groups(run, [*groups, *waiting])
                        continue
                    finally:
                        engine = loop = None  # type: ignore[assignment]
                        free_memory()
                    events.add(own)
                    # Asked to stop, the other groups run to the same iteration.
                    stopped = stopped or (bool(part.live) and part.t < end)
                    end = part.t if part.live else end
                groups.append(group)
                parts.append(part)
            snapshot = Snapshot.joined(parts)
            t = snapshot.t
            events.write(run.folder, history)
            if run.folder is not None and (t < steps or self.keep_end):
                clients = range(problem.n)
                run.folder.write_clients(events.clients)
                write_models(run.folder, snapshot, problem, SINGLE_PROCESS, steps, clients)
                checkpoint.write(run.folder.path / checkpoint.CURRENT, snapshot)
        self._stopped |= stopped
        run.finish(snapshot, history)

    def _say_groups(self, run: Run, groups: Sequence[Sequence[int]]) -> None:
        sizes = " + ".join(str(len(group)) for group in groups)
        every = setting_name("run.checkpoint_every")
        self.say(
            f"{run.out or 'this run'}: {len(run.seeds)} seeds at once do not fit in memory; running {sizes} in turn, "
            f"from one checkpoint to the next (a larger {every} is faster)"
        )

    def _announce_resumption(self, runs: Sequence[Run], problem: Problem) -> None:
        """Report which runs are resumed, after checking that their checkpoints fit the problem."""
        for run in runs:
            if run.latest is not None:
                check_fits(run.latest, problem, run.rows)
                if list(run.latest.snapshot.seeds) != run.seeds:
                    found = f"{run.latest.path}: holds other seeds than the configuration"
                    raise RunError(f"{found}; choose another folder")
                self.say(run.latest.with_problem(f"{run.out}: resuming from iteration {run.t}"))

    def _loop(
        self,
        run: Run,
        engine: Engine,
        snapshot: Snapshot | None,
        writers: Sequence[Callback],
        folder: Path | None,
    ) -> Loop:
        """A loop without a history, which the folder has: what the loop refuses is refused before it is prepared."""
        return make_loop(run.spec, engine, snapshot, History(), [*writers, *self.callbacks], folder)

    def _attach(self, loop: Loop) -> None:
        self.on_loop(loop)
        loop.stop_requested = loop.stop_requested or self._stopped


class _Events(Callback):
    """Collects what a loop reports, to be written later in the order of iterations."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.errors: list[tuple[int, int, float]] = []
        self.clients: list[dict[str, Any]] = []

    def on_checkpoint(self, loop: Loop) -> None:
        self.clients += records_at_end(loop, {seed: seed for seed in loop.snapshot.live})

    def on_evaluation(self, loop: Loop, records: list[dict[str, object]]) -> None:
        self.records += records

    def on_trace(self, loop: Loop, errors: list[tuple[int, int, float]]) -> None:
        self.errors += errors

    def add(self, other: "_Events") -> None:
        """Append what another loop reported."""
        self.records += other.records
        self.errors += other.errors
        self.clients += other.clients

    def write(self, folder: RunFolder | None, history: History) -> None:
        """Append everything to the folder's files, if there is one, and to the history."""
        records = sorted(self.records, key=lambda record: record["iteration"])
        if folder is not None:
            folder.append_history(records)
            folder.append_trace(sorted(self.errors, key=lambda error: error[1]))
        _extended(history, records)


def make_loop(
    spec: ResolvedConfig,
    engine: Engine,
    snapshot: Snapshot | None,
    history: History,
    callbacks: Sequence[Callback],
    folder: Path | None = None,
) -> Loop:
    """The loop of a configuration, resuming from a snapshot if there is one; see `Loop`."""
    run = spec.config.run
    stopping = run.early_stopping()
    with renamed_keys(lambda key: f"run.stop.{key}" if stopping and key in ("monitor", "mode") else key):
        return Loop(
            engine,
            run.steps,
            evaluate_every=run.evaluate_every,
            evaluate_from=run.evaluate_from,
            checkpoint_every=run.checkpoint_every,
            metrics=spec.metrics,
            callbacks=[*callbacks, *([stopping] if stopping else [])],
            snapshot=snapshot,
            history=history,
            folder=folder,
            first_seed=run.seeds[0],
        )


def stopped_early(loop: Loop) -> str:
    """The line that tells the user why a run has ended."""
    return f"{loop.folder or 'this run'}: stopped at iteration {loop.t} of {loop.steps}: {loop.stop_reason}"


def compatible(specs: Sequence[ResolvedConfig]) -> list[list[int]]:
    """Which configurations can be trials of one simulator: their indices, in order of first appearance."""
    groups: dict[str, list[int]] = {}
    for index, spec in enumerate(specs):
        alone = "" if spec.config.run.stop is None else f"run {index}"  # each stops at its own iteration
        groups.setdefault(_common_settings(spec) + alone, []).append(index)
    return list(groups.values())


def _common_settings(spec: ResolvedConfig) -> str:
    """Everything that must be equal in configurations of one simulator, as text."""
    table: dict[str, Any] = {section: dict(keys) for section, keys in spec.table.items()}
    table["algorithm"] = {"name": spec.config.algorithm.name, **merge_key(spec.algorithm)}
    if spec.config.problem.holdout:  # what is held out depends on the seed of the partition
        table["held out by"] = spec.config.problem.partition_seed or 0
    if spec.given is not None:
        table["given"] = id(spec.given.model), id(spec.given.train)
    for section, key in (*_MAY_DIFFER, ("run", "seeds")):
        table[section].pop(key, None)
    return json.dumps(table, sort_keys=True, default=repr)


def _groups(runs: Sequence[Run]) -> Iterator[list[Run]]:
    """Runs that resume from the same iteration, in the same way, with no more rows than pay off on a CPU."""
    lowest = min((run.t for run in runs), default=0)
    for run in runs:
        if run.t > lowest:  # a kill between two checkpoints of one moment must not separate runs of one simulator
            run.go_back(lowest)
    groups: dict[object, list[Run]] = {}
    for run in runs:
        groups.setdefault((run.t, run.backend), []).append(run)
    for group in groups.values():
        if group[0].spec.engine_settings.resolve_device().type == "cuda":
            yield group
            continue
        some: list[Run] = []
        for run in group:
            if some and sum(other.rows for other in some) + run.rows > CPU_ROWS:
                yield some
                some = []
            some.append(run)
        yield some


def _fits(problem: Problem, spec: ResolvedConfig) -> bool:
    """Whether a GPU is likely to hold the rows of all trials."""
    device = spec.engine_settings.resolve_device()
    if device.type != "cuda":
        return True
    row = problem.layout.size * spec.engine_settings.resolve_dtype().itemsize
    memory = torch.cuda.get_device_properties(device).total_memory
    return len(problem.trials) * problem.n * row * VECTORS_PER_ROW <= MEMORY_SHARE * memory


def _halves(seeds: Sequence[int]) -> list[list[int]]:
    half = len(seeds) // 2
    return [list(seeds[:half]), list(seeds[half:])]


def _extended(history: History, records: Sequence[dict[str, Any]]) -> History:
    """A run's history with records of its trials, which it knows by their seeds alone."""
    for record in records:
        history.add({key: value for key, value in record.items() if key != "trial"})
    return history


def _too_large(spec: ResolvedConfig) -> str:
    clients = spec.config.problem.clients
    model = repr(spec.config.problem.model) if spec.given is None else "the model"
    return (
        f"{setting_name('run.device')}: {clients} clients of {model} do not fit in the memory of "
        f"{spec.engine_settings.resolve_device()}; use fewer clients, a smaller model, or 'cpu'"
    )


def free_memory() -> None:
    """Release what a run that has ended had in memory, of a GPU above all."""
    gc.collect()  # a simulator and its parts refer to each other
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def newest_checkpoint(out: Path, clients: int) -> Latest | None:
    """Where a run of all clients resumes: its own last checkpoint, or a later one that processes left."""
    latest, problems = checkpoint.find_latest(out)
    later = [t for t in client_checkpoints.iterations(out, range(clients)) if latest is None or t > latest.snapshot.t]
    damage = [*problems.values(), *client_checkpoints.damaged(out, range(clients)).values()]
    problem = damage[0] if damage else None
    if later:
        snapshot = client_checkpoints.read(out, range(clients), max(later))
        return Latest(snapshot, out / checkpoint.CURRENT, problem, tuple(problems))
    if latest is None and problems:
        raise checkpoint.unusable(problems)
    return latest and latest._replace(problem=problem)


def is_finished(snapshot: Snapshot, steps: int) -> bool:
    """Whether nothing remains to be done."""
    return snapshot.t >= steps or not snapshot.live


def why_finished(snapshot: Snapshot) -> str:
    """Why nothing remains to be done, in a few words."""
    return "every seed has diverged" if not snapshot.live else f"{snapshot.t} iterations are done"


def check_fits(latest: Latest, problem: Problem, rows: int) -> None:
    """Refuse a checkpoint of another model: a user-defined one can change while the configuration stays the same."""
    found, expected = tuple(latest.snapshot.tensors["x"].shape), (rows, problem.layout.size)
    if found != expected:
        raise RunError(
            f"{latest.path}: holds models of shape {found}, but the configuration's are {expected}; "
            "choose another folder"
        )
