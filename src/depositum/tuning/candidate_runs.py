"""Candidates run side by side: the seeds of all of them are trials of one simulator, without a folder for any.

A candidate that is asked for again continues from where it stopped.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from depositum.engines import Callback, Loop, Snapshot
from depositum.errors import DepositumError, RunError
from depositum.problem import Problem
from depositum.runs import ResolvedConfig, compatible
from depositum.runs.execution import CPU_ROWS, free_memory
from depositum.runs.problems import engine_of
from depositum.tuning.judging import Candidate, Outcome

#: Measures that are reported besides the losses.
REPORTED = ("test_accuracy", "sparsity")


class TuningStopped(DepositumError):
    """Tuning was asked to stop before a choice was made."""

    exit_code = 130


@dataclass
class _Progress:
    """How far a candidate has come."""

    spec: ResolvedConfig
    initial: tuple[float, ...] = ()
    snapshot: Snapshot | None = None
    outcome: Outcome | None = None

    @property
    def t(self) -> int:
        return 0 if self.snapshot is None else self.snapshot.t


class CandidateRuns:
    """Runs candidates on one problem.

    Parameters
    ----------
    problem
        With one trial per seed, and the held-out data in place of the test data.
    configure
        The configuration of a candidate, with the seeds of the problem; raises a `DepositumError` for one that is not
        possible.
    callbacks, on_loop
        Called at the moments of each loop, and with each loop before it runs.

    Attributes
    ----------
    iterations
        Iterations so far, summed over candidates and seeds.
    impossible
        Why candidates were left out, by candidate.
    """

    def __init__(
        self,
        problem: Problem,
        configure: Callable[[Candidate], ResolvedConfig],
        *,
        callbacks: Sequence[Callback] = (),
        on_loop: Callable[[Loop], None] = lambda _: None,
    ) -> None:
        self.problem, self.configure = problem, configure
        self.callbacks, self.on_loop = callbacks, on_loop
        self.iterations = 0
        self.impossible: dict[Candidate, str] = {}
        self.outcomes: list[Outcome] = []
        self._progress: dict[Candidate, _Progress] = {}
        self._backend = "auto"

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.problem.seeds

    def run(self, candidates: Sequence[Candidate], until: int) -> list[Outcome]:
        """Run candidates until an iteration; return their outcomes in order.

        A candidate that cannot be configured is unstable: its losses are infinite.
        """
        for candidate in candidates:
            if candidate not in self._progress and candidate not in self.impossible:
                try:
                    self._progress[candidate] = _Progress(self.configure(candidate))
                except DepositumError as error:
                    self.impossible[candidate] = str(error)
        possible = [c for c in dict.fromkeys(candidates) if c in self._progress and not self._is_known(c, until)]
        for group in self._groups(possible):
            self._run_group(group, until)
        return [self._outcome(candidate, until) for candidate in candidates]

    def _is_known(self, candidate: Candidate, until: int) -> bool:
        outcome = self._progress[candidate].outcome
        return outcome is not None and (outcome.iterations >= until or any(outcome.diverged))

    def _outcome(self, candidate: Candidate, until: int) -> Outcome:
        if candidate in self.impossible:
            infinite = (math.inf,) * len(self.seeds)
            return Outcome(candidate, infinite, infinite, iterations=until)
        outcome = self._progress[candidate].outcome
        assert outcome is not None
        return outcome

    def _groups(self, candidates: Sequence[Candidate]) -> list[list[Candidate]]:
        """Candidates that can share a simulator: the same steps from the same iteration."""
        specs = [self._progress[candidate].spec for candidate in candidates]
        groups = []
        for indices in compatible(specs) if specs else []:
            by_t: dict[int, list[Candidate]] = {}
            for index in indices:
                by_t.setdefault(self._progress[candidates[index]].t, []).append(candidates[index])
            on_cpu = specs[indices[0]].engine_settings.resolve_device().type == "cpu"
            rows = len(self.problem.trials) * self.problem.n
            for group in by_t.values():
                size = max(1, CPU_ROWS // rows) if on_cpu else len(group)
                groups += [group[first : first + size] for first in range(0, len(group), size)]
        return groups

    def _run_group(self, group: Sequence[Candidate], until: int) -> None:
        try:
            self._run_at_once(group, until)
        except torch.OutOfMemoryError:
            free_memory()
            if len(group) == 1:
                raise RunError(
                    f"{len(self.seeds)} seeds at once do not fit in memory; tune with fewer seeds, or on 'cpu'"
                ) from None
            half = len(group) // 2
            self._run_group(group[:half], until)
            self._run_group(group[half:], until)
        finally:
            if torch.cuda.is_available():  # the next simulator may need what this one had
                free_memory()

    def _run_at_once(self, group: Sequence[Candidate], until: int) -> None:
        runs = [self._progress[candidate] for candidate in group]
        specs = [run.spec for run in runs]
        count = len(self.problem.trials)
        labels = [list(range(k * count, (k + 1) * count)) for k in range(len(runs))]
        problem = self._problem(specs, labels)
        engine = engine_of(specs, problem, self._backend)
        self._backend = engine.oracle.model.backend
        resumed = [
            run.snapshot.relabelled(own) for run, own in zip(runs, labels, strict=True) if run.snapshot is not None
        ]
        loop = Loop(
            engine,
            until,
            evaluate_every=until,
            checkpoint_every=until,
            callbacks=self.callbacks,
            snapshot=Snapshot.joined(resumed) if resumed else None,
        )
        self.on_loop(loop)
        begin = runs[0].t
        snapshot = loop.run()
        if snapshot.live and snapshot.t < until:
            raise TuningStopped(f"tuning was stopped at iteration {snapshot.t} of {until}")
        self.iterations += (until - begin) * count * len(runs)
        records = {(record["trial"], record["iteration"]): record for record in loop.history.records}
        for candidate, run, own in zip(group, runs, labels, strict=True):
            if begin == 0:
                run.initial = tuple(_number(records.get((label, 0), {}), "phi") for label in own)
            ends = [records.get((label, until), {}) if label not in snapshot.diverged else {} for label in own]
            run.outcome = Outcome(
                candidate,
                held_out=tuple(_number(end, "test_loss") for end in ends),
                objective=tuple(_number(end, "phi") for end in ends),
                initial=run.initial,
                iterations=until,
                measures={name: sum(_number(end, name) for end in ends) / count for name in ("train_loss", *REPORTED)},
            )
            self.outcomes.append(run.outcome)
            # What has diverged is never resumed.
            finite = not any(run.outcome.diverged)
            run.snapshot = snapshot.of_trials(own).relabelled(self.seeds) if finite else None

    def _problem(self, specs: Sequence[ResolvedConfig], labels: Sequence[Sequence[int]]) -> Problem:
        """The problem with the trials of all these candidates."""
        trials = [
            replace(trial, label=label, beta=spec.config.problem.beta)
            for spec, own in zip(specs, labels, strict=True)
            for trial, label in zip(self.problem.trials, own, strict=True)
        ]
        # The problem of a configuration with β = 0 does not hold h.
        return replace(self.problem, trials=tuple(trials), regularizer=specs[0].regularizer)


def _number(record: dict[str, object], name: str) -> float:
    """A measure of a record; NaN if it was not evaluated."""
    value = record.get(name)
    return float(value) if isinstance(value, int | float) else math.nan
