"""The result of training: of a call of `fit`, or of any run folder."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from depositum.engines import Divergence, Snapshot, average
from depositum.engines.snapshot import BUFFER, CHANNEL
from depositum.errors import ConfigError, DataError, RunError, is_integer, short_repr
from depositum.layout import Layout
from depositum.metrics import SINGLE_PROCESS, MetricFunction, client_records, ended_worse
from depositum.problem import Oracle, Problem
from depositum.problem.model_copy import with_parameters
from depositum.runs import Config, RunFolder, build_problem, from_table, parse
from depositum.runs.execution import is_finished, newest_checkpoint
from depositum.runs.folder import CLIENTS, CONSENSUS, read_history
from depositum.runs.given_problem import IN_MEMORY, architecture_digest, is_in_memory
from depositum.runs.keep_best import BEST, KeepBest, read_best
from depositum.toml_file import check_values, read_toml
from depositum.tuning import TuningResult
from depositum.validation import as_path

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class FitResult:
    """The result of training.

    Attributes
    ----------
    history
        One row per seed and evaluated iteration (columns: docs/metrics.md).
    consensus
        (1/n)‖Jx − x‖² after every iteration, by iteration or, of several seeds, by (seed, iteration); empty among
        processes, which would all have to meet for it.
    snapshot
        The last state, with the iteration and the seeds; of a process among many, the rows of its own clients.
    finished
        Whether nothing remains to be done: all iterations are done, or every seed has diverged. A run that was stopped
        (Ctrl-C, early stopping) can be resumed if it has a folder.
    folder
        The run's folder, if it has one.
    tuning
        How the stepsize was chosen, if this call has searched for it.
    """

    history: "pd.DataFrame"
    consensus: "pd.Series"
    snapshot: Snapshot
    finished: bool
    folder: Path | None
    #: The module that was trained, with any parameters, and the problem; both are built when they are first used.
    _architecture: Callable[[], nn.Module] = field(repr=False)
    _problem: Callable[[], Problem] = field(repr=False)
    #: Among processes, the averages that they have computed together, by seed.
    _averages: Mapping[int, tuple[Tensor, dict[str, Tensor]]] = field(default_factory=dict, repr=False)
    #: The user's measures, and the callback that has kept the best models, if there was one.
    _functions: Mapping[str, MetricFunction] = field(default_factory=dict, repr=False)
    _keep_best: KeepBest | None = field(default=None, repr=False)
    tuning: TuningResult | None = None

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that were trained, side by side."""
        return self.snapshot.seeds

    @property
    def iterations(self) -> int:
        """The iterations that are done."""
        return self.snapshot.t

    @cached_property
    def problem(self) -> Problem:
        """The problem that was solved; of a run that was loaded, its data are read when this is first used."""
        return self._problem()

    @cached_property
    def models(self) -> dict[int, nn.Module]:
        """By seed, the average of the clients' models, a plain module on the CPU in evaluation mode."""
        return {seed: self._module(*self._average(seed)) for seed in self.seeds}

    @property
    def model(self) -> nn.Module:
        """The average of the clients' models, a plain module on the CPU in evaluation mode; of the first seed."""
        return self.models[self.seeds[0]]

    @property
    def state(self) -> dict[str, Tensor]:
        """The algorithm's variables by name (`x`, `y`, `nu`, …), each `[clients, d]`; those of a further seed below.

        Of a process among many, the rows of its own clients.
        """
        return {k: v for k, v in self.snapshot.tensors.items() if not k.startswith((BUFFER, CHANNEL))}

    @property
    def divergences(self) -> dict[int, Divergence]:
        """Where seeds left the finite numbers, by seed; their models and state are the last finite ones saved."""
        return dict(self.snapshot.diverged)

    @property
    def diverged(self) -> Divergence | None:
        """Where the first of the seeds that diverged left the finite numbers, or None."""
        return next(iter(self.snapshot.diverged.values()), None)

    def client_model(self, client: int, seed: int | None = None) -> nn.Module:
        """One client's own model, with its own buffers, on the CPU in evaluation mode.

        Of a process among many, clients are counted from the first that it holds.
        """
        seed = self.seeds[0] if seed is None else seed
        if not is_integer(seed) or seed not in self.seeds:
            raise ConfigError("seed", f"{short_repr(seed)} given; it can be {', '.join(map(str, self.seeds))}")
        rows = self.snapshot.rows_of([seed])
        n = len(rows["x"])
        if not is_integer(client) or not 0 <= client < n:
            raise ConfigError("client", f"{short_repr(client)} given; it must be a whole number from 0 to {n - 1}")
        buffers = {k.removeprefix(BUFFER): z[client] for k, z in rows.items() if k.startswith(BUFFER)}
        return self._module(rows["x"][client], buffers)

    @cached_property
    def client_metrics(self) -> "pd.DataFrame":
        """Measures of each client on its own training data, one row per seed and client (docs/metrics.md).

        `averaged_loss` and `averaged_accuracy` of the averaged model, `own_loss` and `own_accuracy` of the client's own
        model, and the same of user-defined measures; seeds that diverged are left out.
        """
        import pandas as pd

        if self.folder is not None and self.finished and (path := self.folder / CLIENTS).exists():
            return pd.read_csv(path)
        live = self.snapshot.live
        rows, problem = self.snapshot.rows_of(live), _with_seeds(self.problem, live)
        if len(rows["x"]) < len(live) * problem.n:
            raise RunError("client_metrics: this process has the rows of its own clients only; load the run's folder")
        oracle = Oracle(problem, 2, dtype=rows["x"].dtype, backend="loop")
        for name, buffer in oracle.buffers.items():
            buffer.copy_(rows[f"{BUFFER}{name}"])
        return pd.DataFrame(client_records(rows["x"], oracle, self._functions, {seed: seed for seed in live}))

    @property
    def best_model(self) -> nn.Module:
        """The averaged model that `dp.KeepBest` has kept, on the CPU in evaluation mode; of the first seed."""
        if self._keep_best is not None:
            return self._keep_best.model(self.seeds[0])
        if self.folder is None or not (path := self.folder / BEST).exists():
            raise ConfigError("callbacks", "no best model was kept; add dp.KeepBest('test_loss') to the callbacks")
        best = read_best(path, self._architecture())
        return self._module(best.row, best.buffers)

    def _average(self, seed: int) -> tuple[Tensor, dict[str, Tensor]]:
        if seed in self._averages:
            return self._averages[seed]
        rows = self.snapshot.rows_of([seed])
        return average(rows, len(rows["x"]), SINGLE_PROCESS)

    def _module(self, row: Tensor, buffers: dict[str, Tensor]) -> nn.Module:
        return with_parameters(self._architecture(), row, buffers)

    def _repr_html_(self) -> str:
        """What a notebook shows at the end of a cell: warnings, a table of final measures, and the curves."""
        from depositum.report.notebook import result_html

        diverged = {seed: str(divergence) for seed, divergence in self.divergences.items()}
        sound = self.history[~self.history["seed"].isin(list(diverged))]
        worse = None if sound.empty else ended_worse(sound)
        notes = [f"this run {worse}"] if worse else []
        if not self.finished:
            notes.append(f"not finished: {self.iterations} iterations are done")
        title = f"{self.iterations} iterations" + (f", in {self.folder}" if self.folder else "")
        return result_html(title, self.history, diverged, notes)

    def __repr__(self) -> str:
        seeds = f"{len(self.seeds)} seeds, " if len(self.seeds) > 1 else ""
        state = "" if self.finished else ", not finished"
        diverged = f", {self.diverged}" if self.diverged else ""
        last = self.history[self.history.iteration == self.history.iteration.max()].mean(numeric_only=True)
        measures = [name for name in ("train_loss", "test_accuracy") if last[name] == last[name]]
        shown = [f"{name} {last[name]:.4g}" for name in measures]
        where = f", in {self.folder}" if self.folder else ""
        return f"FitResult({seeds}{self.iterations} iterations{state}, {', '.join(shown)}{diverged}{where})"


@contextmanager
def _folder_named() -> Iterator[None]:
    """Name the argument in errors about what the run's folder holds."""
    try:
        yield
    except (RunError, DataError) as error:
        raise RunError(f"folder: {error}") from None


@_folder_named()
def load(folder: str | Path, model: nn.Module | None = None) -> FitResult:
    """The result of the run in a folder, finished or not, of `fit(…, out=…)` or `depositum run`.

    Parameters
    ----------
    folder
        The run's folder. Nothing in it is changed.
    model
        The module that was trained, for a run of `fit`: a folder holds its parameters, not its code. For a run of a
        configuration file the model is built again, which reads its data, when it is first asked for.

    >>> import tempfile, torch, depositum as dp
    >>> data = [(torch.randn(50, 4), torch.randint(0, 2, (50,))) for _ in range(3)]
    >>> with tempfile.TemporaryDirectory() as out:
    ...     trained = dp.fit(torch.nn.Linear(4, 2), data, steps=20, out=out, progress=False)
    ...     again = dp.load(out, torch.nn.Linear(4, 2))
    >>> torch.equal(again.model.weight, trained.model.weight)
    True
    """
    path = as_path(folder, "folder", "the path of a run's folder")
    if model is not None and not isinstance(model, nn.Module):
        raise ConfigError("model", f"{short_repr(model)} given; it must be a torch.nn.Module")
    history = read_history(path)
    files = RunFolder(path)
    try:
        table = read_toml(files.config_path)
        check_values(table)
        config = parse(table)
    except ConfigError as error:
        raise RunError(f"{path}: its config.toml cannot be read ({error})") from None
    latest = newest_checkpoint(path, config.problem.clients)
    if latest is None:
        raise RunError(f"{path}: holds no checkpoint")
    if latest.problem:
        warnings.warn(latest.with_problem("the checkpoint before is loaded"), RuntimeWarning, stacklevel=2)
    if model is not None:
        _check_model(model, config, latest.snapshot, path)
    build = cache(lambda: _problem_of_folder(path, table, config))
    return FitResult(
        history=history,
        consensus=consensus_series(files, latest.snapshot.seeds),
        snapshot=latest.snapshot,
        finished=is_finished(latest.snapshot, config.run.steps),
        folder=path,
        _architecture=(lambda: build().model) if model is None else (lambda: model),
        _problem=build,
    )


def _problem_of_folder(path: Path, table: dict[str, Any], config: Config) -> Problem:
    if is_in_memory(config.problem.dataset):
        raise ConfigError("model", f"missing; the model of the run in {path} was given in Python: pass it to dp.load")
    return build_problem([from_table(table, path)])


def _check_model(model: nn.Module, config: Config, snapshot: Snapshot, path: Path) -> None:
    """Refuse a module that is not the one that was trained."""
    if any(map(is_lazy, [*model.parameters(), *model.buffers()])):
        raise ConfigError("model", "its lazy layers are not initialised; call it on a sample before it is passed")
    own, found = Layout.of(model).size, snapshot.tensors["x"].shape[1]
    if own != found:
        raise ConfigError("model", f"it has {own:,} trainable parameters, but the run in {path} is of {found:,}")
    stored = config.problem.model
    described = stored.get(IN_MEMORY, {}) if isinstance(stored, dict) else {}
    if described.get("architecture") not in (None, architecture_digest(model)):
        raise ConfigError("model", f"its layers or its frozen parameters differ from those of the run in {path}")


def _with_seeds(problem: Problem, seeds: Sequence[int]) -> Problem:
    """The problem with the trials of these seeds; data that were passed in memory are the same for every seed."""
    trials = {trial.seed: trial for trial in problem.trials}
    return replace(problem, trials=tuple(replace(trials.get(s, problem.trials[0]), seed=s) for s in seeds))


def consensus_series(folder: RunFolder, seeds: Sequence[int]) -> "pd.Series":
    """The consensus errors that a folder holds, by iteration or, of several seeds, by (seed, iteration)."""
    return series({(r["seed"], r["iteration"]): r["consensus_x"] for r in folder.read_table(CONSENSUS)}, seeds)


def series(errors: Mapping[tuple[int, int], float], seeds: Sequence[int]) -> "pd.Series":
    """Consensus errors by (seed, iteration), as a table that is indexed by iteration alone if there is one seed."""
    import pandas as pd

    index = pd.MultiIndex.from_tuples(sorted(errors), names=["seed", "iteration"]) if errors else None
    if len(seeds) == 1 or index is None:
        values = {iteration: errors[seed, iteration] for seed, iteration in sorted(errors)}
        return pd.Series(values, name="consensus_x", dtype="float64").rename_axis("iteration")
    return pd.Series([errors[key] for key in index], index=index, name="consensus_x", dtype="float64")
