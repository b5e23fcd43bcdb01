"""The loop: iterations, and the moments at which callbacks are asked.

Everything that is not the method happens in a callback: writing files, progress, tracking, a person's own.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from depositum.algorithms import Depositum
from depositum.engines.monitor import Divergence
from depositum.engines.processes.engine import ProcessEngine
from depositum.engines.simulator import Costs, Simulator, select_trials
from depositum.engines.whole import AllRows, Averaged, Whole
from depositum.errors import ConfigError
from depositum.metrics import Evaluations, History, MetricSettings, record

#: Iterations after which progress is shown, at the latest.
LONGEST_STRETCH = 256

#: Whoever advances the rows: all of them, or those of one process among many.
Engine = Simulator | ProcessEngine


@dataclass
class Snapshot:
    """A run at one iteration, on the host: what a checkpoint holds; of one process among many, its clients' rows.

    The rows of a seed that diverged are its last finite ones, of the checkpoint before. Where several configurations
    run side by side, `seeds` are the labels of their trials.
    """

    seeds: tuple[int, ...]
    t: int
    costs: Costs
    tensors: dict[str, torch.Tensor]
    diverged: dict[int, Divergence] = field(default_factory=dict)
    #: How gradients were made: found by measuring where nobody said, and kept, since another way rounds otherwise.
    backend: str = "auto"

    @property
    def live(self) -> list[int]:
        """Seeds that go on."""
        return [seed for seed in self.seeds if seed not in self.diverged]

    def rows_of(self, seeds: Sequence[int]) -> dict[str, torch.Tensor]:
        """The tensors with the rows of these seeds only."""
        rows = len(self.tensors["x"])
        keep = [self.seeds.index(seed) for seed in seeds]
        return {k: select_trials(v, keep, rows, rows // len(self.seeds)) for k, v in self.tensors.items()}

    def of_seeds(self, seeds: Sequence[int]) -> "Snapshot":
        """The same of these seeds alone."""
        diverged = {seed: found for seed, found in self.diverged.items() if seed in seeds}
        return replace(self, seeds=tuple(seeds), tensors=self.rows_of(seeds), diverged=diverged)

    @staticmethod
    def joined(parts: "Sequence[Snapshot]") -> "Snapshot":
        """One of the seeds of all, in this order; its iteration is the last that one of them has reached."""
        furthest = max(parts, key=lambda part: part.t)

        def join(name: str) -> torch.Tensor:
            tensor = furthest.tensors[name]
            if tensor.dim() == 0 or len(tensor) != len(furthest.tensors["x"]):
                return tensor  # of all rows alike
            return torch.cat([part.tensors[name] for part in parts])

        return replace(
            furthest,
            seeds=tuple(seed for part in parts for seed in part.seeds),
            tensors={name: join(name) for name in furthest.tensors},
            diverged={seed: found for part in parts for seed, found in part.diverged.items()},
        )

    def update(self, engine: Engine) -> None:
        """Take over the iteration, and the rows of the seeds that the engine still holds."""
        self.t, self.costs = engine.t, engine.costs
        n, new = len(engine.oracle.clients), engine.snapshot()
        places = [self.seeds.index(label) for label in engine.problem.labels]
        rows = torch.tensor([place * n + i for place in places for i in range(n)])
        for name, tensor in new.items():
            if tensor.dim() and len(tensor) == len(rows) and len(places) < len(self.seeds):
                self.tensors[name][rows] = tensor
            else:
                self.tensors[name] = tensor


class Callback:
    """Asked at the moments of a run; override what is needed."""

    def on_start(self, loop: "Loop") -> None:
        """Before the first iteration (or the first after a resumption)."""

    def on_compile(self, loop: "Loop") -> None:
        """Iterations are about to be compiled, which takes seconds to a minute."""

    def on_step(self, loop: "Loop") -> None:
        """After every iteration, which is then run one at a time; reading the state here makes the device wait."""

    def on_progress(self, loop: "Loop") -> None:
        """After some iterations, as many as are run at once."""

    def on_evaluation(self, loop: "Loop", records: list[dict[str, object]]) -> None:
        """After an evaluation, with one record per seed."""

    def on_trace(self, loop: "Loop", errors: list[tuple[int, int, float]]) -> None:
        """With (seed, iteration, consensus error) of the iterations since the last time."""

    def on_divergence(self, loop: "Loop", divergence: Divergence) -> None:
        """When a seed is found to have left the finite numbers; it does not go on."""

    def on_checkpoint(self, loop: "Loop") -> None:
        """When `loop.snapshot` is new and worth keeping."""

    def on_end(self, loop: "Loop") -> None:
        """After the last iteration, or when the run was asked to stop."""


class Loop:
    """Runs a simulator, or one process among many, to `steps` iterations.

    Among processes every rank runs a loop of its own, with the same numbers: they meet at evaluations and checkpoints.

    Parameters
    ----------
    snapshot
        Where to go on from; without one the run begins.
    history
        The records so far, of a run that goes on.
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
    ) -> None:
        for key, value, least in (("steps", steps, 0), ("checkpoint_every", checkpoint_every, 1)):
            if value < least:
                raise ConfigError(f"run.{key}", f"{value} given; it must be a whole number ≥ {least}")
        self.engine = engine
        self.steps = steps
        self.evaluations, self.checkpoint_every = Evaluations(evaluate_every, evaluate_from), checkpoint_every
        self.metrics = metrics or MetricSettings()
        self._smoothness = self.metrics.smoothness_of(engine.oracle)
        self.callbacks = list(callbacks)
        self.history = history or History()
        self.stop_requested = False
        self._resume = snapshot
        self._began = time.perf_counter()
        self._seconds_before = max((float(r["seconds"]) for r in self.history.records), default=0.0)

    @property
    def t(self) -> int:
        return self.engine.t

    @property
    def seconds(self) -> float:
        """Wall time of the run, earlier sittings included."""
        return self._seconds_before + time.perf_counter() - self._began

    def run(self) -> Snapshot:
        """Run to the end (or until `stop_requested`), and return the last snapshot."""
        self._begin()
        try:
            self._ask("on_start")
            self._iterate()
        finally:
            self._ask("on_end")
        return self.snapshot

    def _iterate(self) -> None:
        if self._resume is None:
            self._read_monitor()
            if self.snapshot.live:
                self._evaluate()
            if self.t == self.steps or not self.snapshot.live:
                self._keep()
        due = True
        while self.t < self.steps and self.snapshot.live and not self.whole.stops(self.stop_requested, due):
            self.engine.advance(self._stretch(), lambda: self.stop_requested, lambda: self._ask("on_compile"))
            self._ask("on_step")
            self._ask("on_progress")
            last = self.t == self.steps
            evaluates = last or self.evaluations.due(self.t)
            keeps = last or self.t % self.checkpoint_every == 0
            due = evaluates or keeps
            if due:
                self._read_monitor()
            if self.snapshot.live and evaluates:
                self._evaluate()
            if keeps or not self.snapshot.live:
                self._keep()
        if self.t < self.steps and self.snapshot.live and self.snapshot.t < self.t:
            self._read_monitor()
            self._keep()

    def _stretch(self) -> int:
        """Iterations until somebody has to be asked: an evaluation, a checkpoint, or a callback that sees every one."""
        if any(getattr(callback.on_step, "__func__", None) is not Callback.on_step for callback in self.callbacks):
            return 1
        to_checkpoint = self.checkpoint_every - self.t % self.checkpoint_every
        return min(self.steps - self.t, LONGEST_STRETCH, self.evaluations.left(self.t), to_checkpoint)

    def _begin(self) -> None:
        seeds = self.engine.problem.labels
        if self._resume is None:
            self.engine.start()
            backend = self.engine.oracle.model.backend
            self.snapshot = Snapshot(seeds, 0, self.engine.costs, self.engine.snapshot(), backend=backend)
        else:
            self.snapshot = self._resume
            live = self.snapshot.live
            if live:
                if len(live) < len(seeds):
                    self.engine = self.engine.with_seeds(live)
                self.engine.restore(self.snapshot.rows_of(live), self.snapshot.t, self.snapshot.costs)
        if self.snapshot.live:
            self._watch()

    def _watch(self) -> None:
        """Have every state watched from now on."""
        engine = self.engine
        engine.steps = self.steps
        self.whole: Whole = engine if isinstance(engine, ProcessEngine) else AllRows(engine, self.evaluations.every)

    def _read_monitor(self) -> None:
        """Pass on the errors since the last read, and stop the seeds that diverged; others go on with fewer rows."""
        errors, found = self.whole.read_errors(self.t), self.whole.diverged()
        # Of a seed that diverged, up to there: what is passed on must not depend on when it is read.
        end = {divergence.seed: divergence.iteration for divergence in found}
        errors = [error for error in errors if error[1] < end.get(error[0], self.t + 1)]
        if errors:
            self._ask("on_trace", errors)
        if not found:
            return
        for divergence in found:
            self.snapshot.diverged[divergence.seed] = divergence
            self._ask("on_divergence", divergence)
        if self.snapshot.live:
            self.engine = self.engine.restricted_to(self.snapshot.live)
            self._watch()

    def _evaluate(self) -> None:
        whole, problem = self.whole, self.engine.problem
        last = self.t == self.steps
        values = whole.measure_cheap(self.metrics.train_at(self.t, last, self.evaluations))
        alphas = self._alphas()
        if self.metrics.costly_at(self.t, last, self.evaluations):
            values |= self._measure_costly(alphas)
        spent = whole.mean_costs()
        costs = {
            "iteration": self.t,
            "phases": spent.phases,
            "bytes_sent": spent.bytes_sent,
            "gradient_evaluations": spent.gradient_evaluations,
        }
        measured = record(values, len(problem.trials))
        for row, alpha in zip(measured, alphas, strict=True):
            if alpha is None:  # and others have one
                row.pop("stationarity", None)
                row.pop("s", None)
        seconds = self.seconds
        records = [
            self.history.add({"seed": seed, **costs, "seconds": seconds, **row})
            for seed, row in zip(problem.labels, measured, strict=True)
        ]
        self._ask("on_evaluation", records)

    def _measure_costly(self, alphas: list[float | None]) -> dict[str, torch.Tensor]:
        smoothness = [self._smoothness[label] for label in self.engine.problem.labels if self._smoothness]
        if len(set(alphas)) == 1:
            return self.whole.measure_costly(alphas[0], smoothness)
        assert isinstance(self.whole, AllRows), "trials differ in a simulator only"
        each = [float("nan") if alpha is None else alpha for alpha in alphas]
        return self.whole.measure_costly(torch.tensor(each, dtype=torch.float64), smoothness)

    def _alphas(self) -> list[float | None]:
        """The α of G^α of each trial: the one asked for, the method's own, or DEPOSITUM's for a method that has none.

        None where G^α is not defined: at the end of a schedule that ends at 0, and for αβρ ≥ 1.
        """
        engine, moduli = self.engine, self.engine.problem.prox_moduli
        methods = engine.algorithms if isinstance(engine, Simulator) else [engine.algorithm] * len(moduli)
        alphas: list[float | None] = []
        for method, modulus in zip(methods, moduli, strict=True):
            own = method.stepsize(self.t)
            alpha = self.metrics.alpha or (Depositum().stepsize(0) if own is None else own)
            alphas.append(alpha if alpha > 0 and alpha * modulus < 1 else None)
        return alphas

    def _keep(self) -> None:
        if self.snapshot.live:
            self.snapshot.update(self.engine)
        self._ask("on_checkpoint")

    def averaged(self, seed: int) -> Averaged:
        """x̄ `[d]` of a seed in the last snapshot, and its buffers averaged over clients; all ranks must ask."""
        return self.whole.averaged(self.snapshot.rows_of([seed]))

    def _ask(self, moment: str, *arguments: object) -> None:
        for callback in self.callbacks:
            getattr(callback, moment)(self, *arguments)
