"""The loop: iterations, and the moments at which callbacks are called.

Everything that is not the method happens in a callback: writing files, progress, tracking, the user's own.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from depositum.algorithms import DEFAULT_ALPHA
from depositum.engines.engine import Costs, Engine, restricted
from depositum.engines.monitor import Divergence
from depositum.engines.snapshot import Snapshot
from depositum.errors import ConfigError
from depositum.metrics import (
    Average,
    Evaluations,
    History,
    MetricSettings,
    as_records,
    averaged,
    cheap,
    costly,
    dry_run,
    evaluate_functions,
    own,
)

#: Iterations after which progress is shown, at the latest.
LONGEST_STRETCH = 256


class Callback:
    """Called at the moments of a run; override what is needed.

    Trials are known by their labels: in a run of one configuration, their seeds. docs/callbacks.md describes what can
    be read at each moment.
    """

    def check(self, engine: Engine, metrics: MetricSettings) -> None:
        """Before anything is computed or written: raise a `ConfigError` if the callback cannot be used in this run."""

    def on_start(self, loop: "Loop") -> None:
        """Before the first iteration (or the first after a resumption)."""

    def on_compile(self, loop: "Loop") -> None:
        """Iterations are about to be compiled, which takes seconds to a minute."""

    def on_step(self, loop: "Loop") -> None:
        """After every iteration, which is then run one at a time; reading the state here makes the device wait."""

    def on_progress(self, loop: "Loop") -> None:
        """After some iterations, as many as are run at once."""

    def on_evaluate(self, loop: "Loop") -> None:
        """Before an evaluation, which can take longer than the iterations since the last one."""

    def on_evaluation(self, loop: "Loop", records: list[dict[str, object]]) -> None:
        """After an evaluation, with one record per trial; `loop.average` has the averaged models."""

    def on_trace(self, loop: "Loop", errors: list[tuple[int, int, float]]) -> None:
        """With (label, iteration, consensus error) of the iterations since the last call."""

    def on_divergence(self, loop: "Loop", divergence: Divergence) -> None:
        """When a trial is found to have left the finite numbers; it does not continue."""

    def on_checkpoint(self, loop: "Loop") -> None:
        """When `loop.snapshot` is new and should be saved."""

    def on_end(self, loop: "Loop") -> None:
        """After the last iteration, or when the run was asked to stop."""


class Loop:
    """Runs an engine to `steps` iterations.

    Among processes every rank runs its own loop, with the same numbers: they meet at evaluations and checkpoints.

    Attributes
    ----------
    average
        The averaged model of each trial at the last evaluation (`Average`); not set where measures are not shared.
    stop_requested
        Set it to stop the loop before the next iteration; among processes, at the next evaluation or checkpoint.
    stop_reason
        Why the run has ended before its last iteration, if a callback called `stop`.

    Parameters
    ----------
    folder
        The run's folder, if it has one and this process writes to it.
    first_seed
        The first seed of the run, whose files do not have a seed in their names; default the first trial's.
    snapshot
        Where to resume; without one the run begins.
    history
        The records so far, of a run that is resumed.
    """

    def __init__(
        self,
        engine: Engine,
        steps: int,
        *,
        evaluate_every: int = 10,
        evaluate_from: int = 0,
        checkpoint_every: int = 100,
        metrics: MetricSettings | None = None,
        callbacks: Sequence[Callback] = (),
        snapshot: Snapshot | None = None,
        history: History | None = None,
        folder: Path | None = None,
        first_seed: int | None = None,
    ) -> None:
        for key, value, least in (("steps", steps, 0), ("checkpoint_every", checkpoint_every, 1)):
            if value < least:
                raise ConfigError(key, f"{value} given; it must be a whole number ≥ {least}")
        self.engine = engine
        self.steps = steps
        self.evaluations, self.checkpoint_every = Evaluations(evaluate_every, evaluate_from), checkpoint_every
        self.metrics = metrics or MetricSettings()
        self.callbacks = list(callbacks)
        self._check()
        self._smoothness = self.metrics.smoothness_of(engine.oracle)
        self.history = history or History()
        self.folder = folder
        self.first_seed = engine.problem.seeds[0] if first_seed is None else first_seed
        self.average: Average
        self.stop_requested = False
        self.stop_reason = ""
        self._resume = snapshot
        self._prepared = False
        self._began = time.perf_counter()
        self._seconds_before = 0.0

    def _check(self) -> None:
        """Refuse callbacks that do not fit the run, and user-defined measures that fail."""
        for callback in self.callbacks:
            callback.check(self.engine, self.metrics)
        for name in self.metrics.functions if self.engine.sharing == "none" else ():
            raise ConfigError(f"functions.{name}", "given, but with evaluate = 'none' processes share no measures")
        dry_run(self.metrics.functions, self.engine.oracle, self.engine.reduction)

    @property
    def t(self) -> int:
        return self.engine.t

    @property
    def seconds(self) -> float:
        """Wall time of the run, earlier sessions included."""
        return self._seconds_before + time.perf_counter() - self._began

    def stop(self, reason: str) -> None:
        """Stop the loop, as `stop_requested` does, because the run has reached its end: `reason` is for the user."""
        self.stop_requested, self.stop_reason = True, reason

    def run(self, until: int | None = None) -> Snapshot:
        """Run to the end, to iteration `until`, or until `stop_requested`; return the last snapshot."""
        self._begin()
        try:
            self._call("on_start")
            self._iterate(self.steps if until is None else min(until, self.steps))
        finally:
            self._call("on_end")
        return self.snapshot

    def _iterate(self, end: int) -> None:
        if self._resume is None:
            self._read_monitor()
            if self.snapshot.live:
                self._evaluate()
            if self.t == end or not self.snapshot.live:
                self._save()
        while self.t < end and self.snapshot.live and not self._stops():
            self.engine.advance(self._stretch(end), lambda: self.stop_requested, lambda: self._call("on_compile"))
            self._call("on_step")
            self._call("on_progress")
            last = self.t == self.steps
            evaluates = last or self.evaluations.due(self.t)
            saves = last or self.t == end or self.t % self.checkpoint_every == 0
            if evaluates or saves:
                self._read_monitor()
            if self.snapshot.live and evaluates:
                self._evaluate()
            if saves or not self.snapshot.live:
                self._save()
        if self.t < end and self.snapshot.live and self.snapshot.t < self.t:
            if self.engine.reduction.stops_together or self.stop_reason:
                self._read_monitor()
            self._save()

    def _stretch(self, end: int) -> int:
        """Iterations until the next evaluation, checkpoint, or callback that sees every iteration."""
        if any(getattr(callback.on_step, "__func__", None) is not Callback.on_step for callback in self.callbacks):
            return 1
        to_checkpoint = self.checkpoint_every - self.t % self.checkpoint_every
        return min(end - self.t, LONGEST_STRETCH, self.evaluations.left(self.t), to_checkpoint)

    def _stops(self) -> bool:
        """Whether to stop now. Processes agree on it at evaluations and checkpoints, where they meet.

        Which iterations these are must not depend on where a process was resumed: the others may not have been.
        """
        reduction = self.engine.reduction
        if reduction.size == 1:
            return self.stop_requested
        if self.stop_requested and not self.stop_reason and not reduction.stops_together:
            return True
        if not (self.evaluations.due(self.t) or self.t % self.checkpoint_every == 0):
            return False
        stops, reasons = reduction.sum(
            torch.tensor([float(self.stop_requested), float(bool(self.stop_reason))])
        ).tolist()
        if reasons and not self.stop_reason:
            self.stop_reason = "another rank has ended the run"
        return bool(stops)

    def prepare(self) -> None:
        """Compute the first state of a run that begins: a method that refuses its network does so here.

        `run` does it otherwise. Whoever writes to a folder calls this before anything is written.
        """
        if self._resume is None and not self._prepared:
            self.engine.start()
            self._prepared = True

    def _begin(self) -> None:
        self._seconds_before = max((float(r["seconds"]) for r in self.history.records), default=0.0)
        labels = self.engine.problem.labels
        self.prepare()
        if self._resume is None:
            backend = self.engine.oracle.model.backend
            self.snapshot = Snapshot(labels, 0, self.engine.costs, self.engine.snapshot(), backend=backend)
        else:
            self.snapshot = self._resume
            live = self.snapshot.live
            if live:
                if len(live) < len(labels):
                    self.engine = self.engine.with_trials(live)
                self.engine.restore(self.snapshot.rows_of(live), self.snapshot.t, self.snapshot.costs)
        if self.snapshot.live:
            self._watch()

    def _watch(self) -> None:
        """Have every state monitored from now on."""
        self.engine.steps = self.steps
        self.engine.watch(min(self.evaluations.every, self.checkpoint_every, max(1, self.steps)))

    def _read_monitor(self) -> None:
        """Report the consensus errors since the last read, and stop trials that diverged; the others continue."""
        engine = self.engine
        errors, found = engine.monitor.read_errors(self.t), engine.monitor.diverged(engine.reduction)
        # Of a trial that diverged, only up to there: what is reported must not depend on when it is read.
        end = {divergence.seed: divergence.iteration for divergence in found}
        errors = [error for error in errors if error[1] < end.get(error[0], self.t + 1)]
        if errors:
            self._call("on_trace", errors)
        if not found:
            return
        for divergence in found:
            self.snapshot.diverged[divergence.seed] = divergence
            self._call("on_divergence", divergence)
        if self.snapshot.live:
            self.engine = restricted(engine, self.snapshot.live)
            self._watch()

    def _evaluate(self) -> None:
        self._call("on_evaluate")
        problem, seconds = self.engine.problem, self.seconds
        alphas = self._alphas()
        table = self._measure(alphas)
        costs = self._costs()
        records = []
        for trial, label, alpha, cost, measured in zip(
            problem.trials, problem.labels, alphas, costs, table, strict=True
        ):
            if alpha is None:  # and other trials have one
                measured.pop("stationarity", None)
                measured.pop("s", None)
            record = {
                "seed": trial.seed,
                "trial": label,
                "iteration": self.t,
                "phases": cost.phases,
                "bytes_sent": cost.bytes_sent,
                "gradient_evaluations": cost.gradient_evaluations,
                "seconds": seconds,
                **measured,
            }
            records.append(self.history.add(record))
        self._call("on_evaluation", records)

    def _measure(self, alphas: list[float | None]) -> list[dict[str, float]]:
        """The measures that are due, as plain numbers by name, for each trial."""
        engine, last = self.engine, self.t == self.steps
        train = self.metrics.train_at(self.t, last, self.evaluations)
        if engine.sharing == "none":
            # A history that several processes have in common cannot have the measures of one of them.
            alone = engine.reduction.size == 1 and train
            return as_records(own(engine.state, engine.oracle) if alone else {}, len(alphas))
        self.average = averaged(engine.state, engine.oracle, engine.reduction)
        values = cheap(engine.state, engine.oracle, train, engine.reduction, self.average)
        if self.metrics.costly_at(self.t, last, self.evaluations):
            values |= costly(
                engine.state,
                engine.oracle,
                self._alpha_of_rows(alphas),
                [self._smoothness[label] for label in engine.problem.labels if self._smoothness],
                engine.algorithms[0].estimate,
                engine.reduction,
                engine.sharing,
            )
        functions = self.metrics.functions
        if functions:
            values |= evaluate_functions(functions, self.average, engine.oracle, engine.reduction)
        # A user-defined measure that is not defined here is left out, as any measure that is not evaluated.
        return [
            {name: value for name, value in record.items() if name not in functions or value == value}
            for record in as_records(values, len(alphas))
        ]

    def _alphas(self) -> list[float | None]:
        """The α of G^α of each trial: the configured one, the method's, or the default for a method that has none.

        None where G^α is not defined: at the end of a schedule that ends at 0, and for αβρ ≥ 1.
        """
        alphas: list[float | None] = []
        for method, modulus in zip(self.engine.algorithms, self.engine.problem.prox_moduli, strict=True):
            own = method.stepsize(self.t)
            alpha = self.metrics.alpha or (DEFAULT_ALPHA if own is None else own)
            alphas.append(alpha if alpha > 0 and alpha * modulus < 1 else None)
        return alphas

    def _alpha_of_rows(self, alphas: list[float | None]) -> float | Tensor | None:
        """One α for all rows if trials agree, else one per row, `[rows, 1]`."""
        if len(set(alphas)) == 1:
            return alphas[0]
        each = torch.tensor([float("nan") if alpha is None else alpha for alpha in alphas], dtype=torch.float64)
        return each.to(self.engine.state.x).repeat_interleave(len(self.engine.clients))[:, None]

    def _costs(self) -> list[Costs]:
        """What a client of each trial has cost on average over all processes."""
        engine, reduction = self.engine, self.engine.reduction
        own = torch.tensor([engine.costs.bytes_sent, engine.costs.gradient_evaluations], dtype=torch.float64)
        sent, evaluations = (reduction.sum(own) / reduction.size).tolist()
        trials = len(engine.problem.trials)
        varying = [0.0] * trials
        if engine.bytes_by_row is not None:
            varying = (reduction.sum(engine.bytes_by_row.view(trials, -1).sum(1)) / engine.problem.n).tolist()
        return [Costs(engine.costs.phases, sent + extra, evaluations) for extra in varying]

    def _save(self) -> None:
        if self.snapshot.live:
            self.snapshot.update(self.engine)
        self._call("on_checkpoint")

    def _call(self, moment: str, *arguments: object) -> None:
        for callback in self.callbacks:
            getattr(callback, moment)(self, *arguments)
