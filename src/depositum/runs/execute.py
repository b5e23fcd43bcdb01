"""Run a configuration in a folder: begin, resume or extend what is there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from depositum.engines import Callback, Divergence, Loop, Simulator, Snapshot
from depositum.errors import DivergedError, RunError
from depositum.metrics import History, MetricSettings
from depositum.problem import Problem, mean_buffer
from depositum.problem.constants import smoothness
from depositum.runs import checkpoint
from depositum.runs.build import build_simulator
from depositum.runs.checkpoint import Latest
from depositum.runs.config import Config
from depositum.runs.folder import RunFolder


class Keeper(Callback):
    """Writes what happens into a run's folder."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def on_evaluation(self, loop: Loop, records: list[dict[str, object]]) -> None:
        self.folder.append_history(records)

    def on_trace(self, loop: Loop, errors: list[tuple[int, int, float]]) -> None:
        self.folder.append_trace(errors)

    def on_checkpoint(self, loop: Loop) -> None:
        # The models first: a run whose last checkpoint is there is finished, and has them.
        write_models(self.folder, loop.simulator.problem, loop.snapshot)
        checkpoint.write(self.folder.path, loop.snapshot)


@dataclass
class RunResult:
    """A run as far as it has come."""

    folder: Path
    snapshot: Snapshot
    history: History
    finished: bool
    diverged: list[Divergence]

    def raise_if_diverged(self, alpha: Any) -> None:
        """Say where seeds diverged, in one line."""
        if not self.diverged:
            return
        what = "; ".join(map(str, self.diverged))
        raise DivergedError(
            f"algorithm.alpha = {alpha}: {what}; the last finite state is kept in "
            f"{self.folder / checkpoint.CURRENT}; try a smaller alpha"
        )


def execute(
    config: Config,
    out: Path,
    *,
    base: Path | None = None,
    callbacks: Sequence[Callback] = (),
    say: Callable[[str], None] = lambda _: None,
    on_loop: Callable[[Loop], None] = lambda _: None,
) -> RunResult:
    """Run a checked configuration in the folder `out`, going on from what it holds.

    Parameters
    ----------
    base
        The folder that relative paths in the configuration start from.
    say
        Told, in a line each, what a person should know: a resumption, a broken checkpoint.
    on_loop
        Given the loop before it runs, for whoever may want to ask it to stop.
    """
    folder = RunFolder(out)
    folder.check(config)
    latest = checkpoint.read_latest(out)
    snapshot = latest.snapshot if latest else None
    if snapshot is not None and (snapshot.t >= config.run.steps or not snapshot.live):
        why = "every seed has diverged" if not snapshot.live else f"{snapshot.t} iterations are done"
        say(f"{out}: nothing to do, {why}")
        return RunResult(out, snapshot, folder.history(), True, list(snapshot.diverged.values()))
    # Everything a person can have got wrong is found before anything is written.
    simulator = build_simulator(config, base)
    if latest is not None:
        _check_fits(latest, simulator.problem)
        problem = f"{latest.problem}; " if latest.problem else ""
        say(f"{problem}{out}: going on from iteration {latest.snapshot.t}")
    history = folder.begin(config, latest)
    loop = Loop(
        simulator,
        config.run.steps,
        evaluate_every=config.run.evaluate_every,
        checkpoint_every=config.run.checkpoint_every,
        metrics=metric_settings(config, simulator),
        callbacks=[Keeper(folder), *callbacks],
        snapshot=snapshot,
        history=history,
    )
    on_loop(loop)
    final = loop.run()
    finished = final.t >= config.run.steps or not final.live
    return RunResult(out, final, history, finished, list(final.diverged.values()))


def _check_fits(latest: Latest, problem: Problem) -> None:
    """Refuse a checkpoint of another model: a person's own can change while the configuration stays the same."""
    there, here = tuple(latest.snapshot.tensors["x"].shape), (len(problem.trials) * problem.n, problem.layout.size)
    if there != here:
        raise RunError(
            f"{latest.path}: holds models of shape {there}, but the configuration's are {here}; choose another folder"
        )


def metric_settings(config: Config, simulator: Simulator) -> MetricSettings:
    section = config.metrics
    measured = smoothness(simulator.oracle).value if section.smoothness == "measure" else section.smoothness
    return MetricSettings(section.costly_every, section.alpha, measured)


def write_models(folder: RunFolder, problem: Problem, snapshot: Snapshot) -> None:
    """The averaged model of every seed, as plain state dictionaries."""
    for seed in snapshot.seeds:
        row, buffers = averaged(snapshot, seed)
        folder.write_model(problem.averaged_model(row, buffers), seed, first=seed == snapshot.seeds[0])


def averaged(snapshot: Snapshot, seed: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """x̄ `[d]` of a seed, and its buffers averaged over clients."""
    tensors = snapshot.rows_of([seed])
    buffers = {name: tensor for name, tensor in tensors.items() if name.startswith("buffer.")}
    means = {name.removeprefix("buffer."): mean_buffer(buffer, 1)[0] for name, buffer in buffers.items()}
    return tensors["x"].mean(0), means
