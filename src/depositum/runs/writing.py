"""Callbacks that write what happens in a loop into the folders of runs."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from depositum.engines import Callback, Divergence, Loop, Snapshot, average
from depositum.engines.distributed import ClusterCommunicator
from depositum.metrics import OVERALL, Reduction, client_records
from depositum.models import ExportableModel
from depositum.problem import Problem
from depositum.runs import checkpoint, client_checkpoints
from depositum.runs.folder import PERPLEXITIES, RunFolder, seed_file_name


class RunWriter(Callback):
    """Writes the trials of one run into its folder, whether or not others run in the same loop.

    Parameters
    ----------
    folder
        None for a run without one: its records and its last snapshot are then held in memory alone.
    seeds
        The seed of each trial of the run, by the trial's label in the loop.
    keep_end
        Whether the last state and the models at the end are written.
    """

    def __init__(self, folder: RunFolder | None, seeds: Mapping[int, int], keep_end: bool = True) -> None:
        self.folder, self.seeds, self.keep_end = folder, seeds, keep_end
        self.records: list[dict[str, object]] = []
        self.snapshot: Snapshot
        self._ended = False

    def on_start(self, loop: Loop) -> None:
        self.snapshot = self._own(loop.snapshot)

    def on_evaluation(self, loop: Loop, records: list[dict[str, object]]) -> None:
        own = [record for record in records if record["trial"] in self.seeds]
        if own:
            self.records += own
            if self.folder is not None:
                self.folder.append_history(own)

    def on_trace(self, loop: Loop, errors: list[tuple[int, int, float]]) -> None:
        own = [(self.seeds[label], t, error) for label, t, error in errors if label in self.seeds]
        if own and self.folder is not None:
            self.folder.append_trace(own)

    def on_divergence(self, loop: Loop, divergence: Divergence) -> None:
        if divergence.seed in self.seeds:
            self.snapshot.diverged[self.seeds[divergence.seed]] = divergence._replace(seed=self.seeds[divergence.seed])
            if not self.snapshot.live:  # on its own, the run would end here
                self._write(loop)

    def on_checkpoint(self, loop: Loop) -> None:
        if self.snapshot.live:
            self.snapshot = self._own(loop.snapshot)
            self._write(loop)

    def _own(self, snapshot: Snapshot) -> Snapshot:
        """The rows of this run's trials, as a run of its own has them."""
        if tuple(self.seeds) == snapshot.seeds == tuple(self.seeds.values()):
            return snapshot
        return snapshot.of_trials(list(self.seeds)).relabelled(list(self.seeds.values()))

    def _write(self, loop: Loop) -> None:
        """Write models and checkpoint; the models first: a run that has its last checkpoint is finished."""
        if self.folder is None or (loop.t == loop.steps and not self.keep_end):
            return
        engine = loop.engine
        write_models(self.folder, self.snapshot, engine.problem, engine.reduction, loop.steps, engine.clients)
        self.folder.write_clients(records_at_end(loop, self.seeds))
        checkpoint.write(self.folder.path / checkpoint.CURRENT, self.snapshot)


def records_at_end(loop: Loop, seeds: Mapping[int, int]) -> list[dict[str, Any]]:
    """The measures of each client where a run of all clients has ended; empty before, and without training losses.

    `seeds` are the seeds of the run's trials, by their labels in the loop.
    """
    ended = loop.t == loop.steps or loop.stop_reason
    if not ended or loop.metrics.train_every == 0 or not loop.snapshot.live:
        return []
    engine = loop.engine
    return client_records(engine.state.x, engine.oracle, loop.metrics.functions, seeds)


class RankWriter(Callback):
    """Writes one rank's part of a run of several processes into the run's folder.

    Each rank writes the checkpoints of its clients, and one for each folder what exists once (history, models).

    Parameters
    ----------
    writes
        Whether this rank is the one.
    """

    def __init__(
        self, folder: RunFolder, communicator: ClusterCommunicator, clients: Sequence[int], writes: bool
    ) -> None:
        self.folder, self.communicator, self.clients, self.writes = folder, communicator, clients, writes

    def on_evaluation(self, loop: Loop, records: list[dict[str, object]]) -> None:
        if self.writes:
            self.folder.append_history(records)

    def on_checkpoint(self, loop: Loop) -> None:
        # The models first: a run that has its last checkpoint is finished.
        write_models(
            self.folder, loop.snapshot, loop.engine.problem, self.communicator, loop.steps, self.clients, self.writes
        )
        client_checkpoints.write(self.folder.path, loop.snapshot, self.clients)
        # No rank begins the next checkpoint before all have this one: all clients share one of their two iterations.
        self.communicator.barrier()
        client_checkpoints.mark_saved_by_all(self.folder.path)


class RankLog(Callback):
    """Logs what one process among many does, in a file of its own; a restart appends to the same file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def log(self, line: str) -> None:
        """Write one line, with the time; on a full disk it is written later, and the run ends elsewhere."""
        with suppress(OSError):
            self._file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
            self._file.flush()

    def on_start(self, loop: Loop) -> None:
        self.log(f"training from iteration {loop.t} to {loop.steps}")

    def on_evaluation(self, loop: Loop, records: list[dict[str, object]]) -> None:
        self.log(f"evaluated iteration {loop.t}")

    def on_divergence(self, loop: Loop, divergence: Divergence) -> None:
        self.log(str(divergence))

    def on_checkpoint(self, loop: Loop) -> None:
        self.log(f"saved iteration {loop.snapshot.t}")

    def on_end(self, loop: Loop) -> None:
        self.log(f"ended at iteration {loop.t}")


def write_models(
    folder: RunFolder,
    snapshot: Snapshot,
    problem: Problem,
    reduction: Reduction,
    steps: int,
    clients: Sequence[int],
    write: bool = True,
) -> None:
    """Write the averaged model of every seed: as a state dictionary, or as the model exports itself.

    Among processes this is a collective call, and the one with `write` writes the averages.
    """
    for seed in snapshot.seeds:
        rows = snapshot.rows_of([seed])
        row, buffers = average(rows, problem.n, reduction)
        first = seed == snapshot.seeds[0]
        if isinstance(problem.model, ExportableModel):
            name = seed_file_name(problem.model.export_folder, seed, first)
            if write:
                _export_average(problem.model, folder, name, seed, row, snapshot.t, steps)
            if problem.model.exports_clients:
                for client, own in zip(clients, rows["x"], strict=True):
                    folder.write_folder(f"{name}/clients/{client}", partial(problem.model.export_client, row=own))
        elif write:
            folder.write_model(problem.averaged_model(row, buffers), seed, first=first)


def _export_average(
    model: ExportableModel, folder: RunFolder, name: str, seed: int, row: Tensor, t: int, steps: int
) -> None:
    settings = folder.config_path.read_text(encoding="utf-8") if folder.config_path.exists() else ""
    perplexities = _perplexities(folder, seed, steps)
    folder.write_folder(
        name, lambda part: model.export(part, row, iterations=t, perplexities=perplexities, settings=settings)
    )


def _perplexities(folder: RunFolder, seed: int, steps: int) -> dict[str, tuple[float, float]]:
    """The perplexities of a seed at the start and at the end, overall and by category; empty before the end."""
    measured = {r["iteration"]: r for r in folder.read_table(PERPLEXITIES) if r["seed"] == seed}
    if 0 not in measured or steps not in measured:
        return {}
    before, after = measured[0], measured[steps]
    names = [OVERALL, *(name for name in after if name not in ("seed", "iteration", OVERALL))]
    return {name: (before[name], after[name]) for name in names if after[name] == after[name]}  # nan: no test data
