"""Run a configuration in a folder: begin, resume or extend what is there."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from depositum import data
from depositum.engines import Callback, Divergence, Loop, Snapshot
from depositum.errors import DivergedError, RunError
from depositum.metrics import OVERALL, History
from depositum.models import ExportableModel
from depositum.problem import Problem
from depositum.runs import checkpoint, parts, seed_groups
from depositum.runs.build import build_simulator
from depositum.runs.checkpoint import Latest
from depositum.runs.config import Config
from depositum.runs.folder import PERPLEXITIES, RunFolder, of_seed
from depositum.runs.lock import alone_in


class Keeper(Callback):
    """Writes what happens into a run's folder; without `keep_end`, neither the last state nor the models of the end."""

    def __init__(self, folder: RunFolder, keep_end: bool = True) -> None:
        self.folder, self.keep_end = folder, keep_end

    def on_evaluation(self, loop: Loop, records: list[dict[str, object]]) -> None:
        self.folder.append_history(records)

    def on_trace(self, loop: Loop, errors: list[tuple[int, int, float]]) -> None:
        self.folder.append_trace(errors)

    def on_checkpoint(self, loop: Loop) -> None:
        if loop.t == loop.steps and not self.keep_end:
            return
        # The models first: a run whose last checkpoint is there is finished, and has them.
        write_models(self.folder, loop)
        checkpoint.write(self.folder.path / checkpoint.CURRENT, loop.snapshot)


@dataclass
class RunResult:
    """A run as far as it has come."""

    folder: Path
    snapshot: Snapshot
    history: History
    finished: bool
    diverged: list[Divergence]

    def raise_if_diverged(self, config: Config) -> None:
        """Say where seeds diverged, in one line, and with which stepsize, by the method's own name for it."""
        if not self.diverged:
            return
        settings = config.complete()["algorithm"]
        key = next((key for key in ("alpha", "eta") if settings.get(key) is not None), None)
        said = f"algorithm.{key} = {settings[key]}" if key else f"algorithm.name = {config.algorithm.name!r}"
        what = "; ".join(map(str, self.diverged))
        raise DivergedError(
            f"{said}: {what}; the last finite state is kept in {self.folder / checkpoint.CURRENT}; "
            f"try a smaller {key or 'stepsize'}"
        )


def execute(
    config: Config,
    out: Path,
    *,
    base: Path | None = None,
    callbacks: Sequence[Callback] = (),
    say: Callable[[str], None] = lambda _: None,
    on_loop: Callable[[Loop], None] = lambda _: None,
    keep_end: bool = True,
) -> RunResult:
    """Run a checked configuration in the folder `out`, going on from what it holds.

    Seeds that do not fit the memory together are run one half after the other.

    Parameters
    ----------
    base
        The folder that relative paths in the configuration start from.
    say
        Told, in a line each, what a person should know: a resumption, a broken checkpoint.
    on_loop
        Given the loop before it runs, for whoever may want to ask it to stop.
    keep_end
        Whether the last state and the models are written, which can take longer than the run. Without them it cannot be
        extended, and is run again from its last checkpoint if asked for once more.
    """
    with alone_in(out):
        folder = RunFolder(out)
        folder.check(config)
        if not seed_groups.divided(config, out):
            seed_groups.forget(config, out)
            try:
                return _execute_at_once(config, folder, base, callbacks, say, on_loop, keep_end)
            except torch.OutOfMemoryError:
                if len(config.run.seeds) == 1:
                    raise RunError(_too_large(config)) from None
            free_memory()
            say(f"{out}: {len(config.run.seeds)} seeds at once do not fit the memory; one half is run after the other")
            latest = newest(out, config.problem.clients)
            seed_groups.divide(config, out, latest.snapshot if latest else None)
        seed_groups.check_steps(config, out)
        results = []
        for path, half in seed_groups.halves(config, out / seed_groups.FOLDER).items():
            results.append(execute(half, path, base=base, callbacks=callbacks, say=say, on_loop=on_loop))
            if not results[-1].finished:
                break
            free_memory()
        whole = _of_halves(out, results)
        if whole.finished:
            seed_groups.put_together(config, out, whole.snapshot)
        return whole


def _of_halves(out: Path, halves: Sequence[RunResult]) -> RunResult:
    """What the runs of some seeds and then of others are as one; the last may have been stopped."""
    records = sorted((r for half in halves for r in half.history.records), key=lambda record: record["iteration"])
    diverged = [found for half in halves for found in half.diverged]
    if not halves[-1].finished:
        return replace(halves[-1], folder=out, history=History(records), diverged=diverged)
    return RunResult(out, Snapshot.joined([half.snapshot for half in halves]), History(records), True, diverged)


def _execute_at_once(
    config: Config,
    folder: RunFolder,
    base: Path | None,
    callbacks: Sequence[Callback],
    say: Callable[[str], None],
    on_loop: Callable[[Loop], None],
    keep_end: bool,
) -> RunResult:
    out = folder.path
    latest = newest(out, config.problem.clients)
    snapshot = latest.snapshot if latest else None
    if snapshot is not None and is_finished(snapshot, config):
        say(f"{out}: nothing to do, {why_finished(snapshot)}")
        return RunResult(out, snapshot, folder.history(), True, list(snapshot.diverged.values()))
    tell_of_reading(config, say)
    # Everything a person can have got wrong is found before anything is written.
    simulator = build_simulator(config, base, snapshot.backend if snapshot else "auto")
    if latest is not None:
        check_fits(latest, simulator.problem, simulator.oracle.rows)
        problem = f"{latest.problem}; " if latest.problem else ""
        say(f"{problem}{out}: going on from iteration {latest.snapshot.t}")
    history = folder.begin(config, snapshot.t if snapshot else None)
    if latest is not None:
        checkpoint.make_current(latest)
    loop = Loop(
        simulator,
        config.run.steps,
        evaluate_every=config.run.evaluate_every,
        evaluate_from=config.run.evaluate_from,
        checkpoint_every=config.run.checkpoint_every,
        metrics=config.metrics.settings(),
        callbacks=[Keeper(folder, keep_end), *callbacks],
        snapshot=snapshot,
        history=history,
    )
    on_loop(loop)
    final = loop.run()
    return RunResult(out, final, history, is_finished(final, config), list(final.diverged.values()))


def tell_of_reading(config: Config, say: Callable[[str], None]) -> None:
    """Say what takes long before the first iteration."""
    if data.needs_tokenizer(config.problem.dataset):
        say("reading the language model and its texts")


def _too_large(config: Config) -> str:
    section = config.problem
    return (
        f"run.device: {section.clients} clients of {section.model!r} do not fit the memory of "
        f"{config.engine_settings().resolve_device()}; use fewer clients, a smaller model, or 'cpu'"
    )


def free_memory() -> None:
    """Let go of what a run that has ended had in memory, of a GPU above all."""
    gc.collect()  # a simulator and its parts know each other
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def newest(out: Path, clients: int) -> Latest | None:
    """Where a run of all clients goes on: its own last checkpoint, or a later one that processes left."""
    latest = checkpoint.read_latest(out)
    later = [t for t in parts.iterations(out, range(clients)) if latest is None or t > latest.snapshot.t]
    if not later:
        return latest
    return Latest(parts.read(out, range(clients), max(later)), out / checkpoint.CURRENT)


def is_finished(snapshot: Snapshot, config: Config) -> bool:
    """Whether nothing is left to do."""
    return snapshot.t >= config.run.steps or not snapshot.live


def why_finished(snapshot: Snapshot) -> str:
    """Why nothing is left to do, in a few words."""
    return "every seed has diverged" if not snapshot.live else f"{snapshot.t} iterations are done"


def check_fits(latest: Latest, problem: Problem, rows: int) -> None:
    """Refuse a checkpoint of another model: a person's own can change while the configuration stays the same."""
    there, here = tuple(latest.snapshot.tensors["x"].shape), (rows, problem.layout.size)
    if there != here:
        raise RunError(
            f"{latest.path}: holds models of shape {there}, but the configuration's are {here}; choose another folder"
        )


def write_models(folder: RunFolder, loop: Loop, write: bool = True) -> None:
    """Write the averaged model of every seed: as a state dictionary, or as the model exports itself.

    All processes call this, and those with `write` (one of them) write the averages.
    """
    snapshot, problem = loop.snapshot, loop.engine.problem
    for seed in snapshot.seeds:
        row, buffers = loop.averaged(seed)
        first = seed == snapshot.seeds[0]
        if isinstance(problem.model, ExportableModel):
            _export(problem.model, folder, loop, seed, row, first=first, write=write)
        elif write:
            folder.write_model(problem.averaged_model(row, buffers), seed, first=first)


def _export(
    model: ExportableModel, folder: RunFolder, loop: Loop, seed: int, row: Tensor, *, first: bool, write: bool
) -> None:
    """Write a seed's averaged model `[d]`, and each client's if the model asks for it, in the model's own format."""
    name, snapshot = of_seed(model.export_folder, seed, first), loop.snapshot
    if write:
        settings = folder.config_path.read_text(encoding="utf-8") if folder.config_path.exists() else ""
        perplexities = _perplexities(folder, seed, loop.steps)
        folder.write_folder(
            name,
            lambda part: model.export(part, row, iterations=snapshot.t, perplexities=perplexities, settings=settings),
        )
    if model.exports_clients:
        clients = getattr(loop.engine, "clients", range(loop.engine.problem.n))
        for client, own in zip(clients, snapshot.rows_of([seed])["x"], strict=True):
            folder.write_folder(f"{name}/clients/{client}", partial(model.export_client, row=own))


def _perplexities(folder: RunFolder, seed: int, steps: int) -> dict[str, tuple[float, float]]:
    """The perplexities of a seed at the start and at the end, overall and by category; empty before the end."""
    measured = {r["iteration"]: r for r in folder.read_table(PERPLEXITIES) if r["seed"] == seed}
    if 0 not in measured or steps not in measured:
        return {}
    before, after = measured[0], measured[steps]
    names = [OVERALL, *(name for name in after if name not in ("seed", "iteration", OVERALL))]
    return {name: (before[name], after[name]) for name in names if after[name] == after[name]}  # nan: no test data
