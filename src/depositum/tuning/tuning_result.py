"""The result of tuning: the choice, what it was chosen from, and its files in a run's folder."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depositum.algorithms import Algorithm
from depositum.report.figure_file import save_figure
from depositum.runs import ResolvedConfig
from depositum.runs.config_keys import argument_name, setting_name
from depositum.tuning.candidate_runs import REPORTED, CandidateRuns
from depositum.tuning.configured import settings_of, with_settings
from depositum.tuning.judging import Outcome, choose, tied

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class TuningResult:
    """The result of tuning.

    Attributes
    ----------
    best
        The chosen values: by configuration key (`{"algorithm.alpha": 0.12}`), in Python by argument
        (`{"alpha": 0.12}`).
    algorithm
        The method with its chosen values, as `fit` takes it.
    table
        One row per candidate and length: its settings, `iterations`, the losses of its worst seed (`held_out`,
        `objective`), those of each seed (`held_out_seed_0`, …), means of further measures, `stable`, `diverged` (the
        number of seeds that left the finite numbers), `selected` (the best stepsize for its other settings) and
        `chosen`.
    margin
        The smallest stepsize that was unstable, divided by the chosen one; None if none was, or no stepsize was varied.
    stable_up_to
        The largest stepsize that was stable up to the full length, divided by the chosen one, in the same way.
    cost
        Iterations of tuning, over all candidates and seeds, as a multiple of those of the run with all its seeds.
    seeds
        The seeds of every candidate.
    stepsize
        The key of the stepsize, if it was searched for.
    reasons
        How the choice was made, a line each.
    """

    best: dict[str, Any]
    algorithm: Algorithm
    table: "pd.DataFrame"
    margin: float | None
    stable_up_to: float | None
    cost: float
    seeds: tuple[int, ...]
    stepsize: str | None
    reasons: list[str] = field(default_factory=list)

    def apply(self, spec: ResolvedConfig) -> ResolvedConfig:
        """A configuration with the chosen values."""
        return with_settings(spec, self.best)

    @property
    def summary(self) -> list[str]:
        """The choice, the margin and the cost, a line each."""
        values = ", ".join(f"{setting_name(key)} = {value!r}" for key, value in self.best.items())
        return [f"chosen: {values}", *self.reasons, f"cost: {self.cost:.1f} times the run ({len(self.seeds)} seeds)"]

    def by_argument(self) -> "TuningResult":
        """The same result for the user of a Python function, who knows settings by the names of arguments."""
        names = {key: argument_name(key) for key in self.best}
        return replace(
            self,
            best={names[key]: value for key, value in self.best.items()},
            table=self.table.rename(columns=names),
            stepsize=None if self.stepsize is None else names[self.stepsize],
        )

    def __repr__(self) -> str:
        values = ", ".join(f"{key} = {value!r}" for key, value in self.best.items())
        margin = "" if self.margin is None else f", unstable from {self.margin:.3g} times the stepsize"
        return f"TuningResult({values}{margin}, cost {self.cost:.1f} runs)"

    def figure(self, path: str | Path) -> None:
        """Draw the losses of the candidates against what was varied."""
        from matplotlib.figure import Figure

        keys = [key for key in self.best if self.table[key].nunique() > 1]
        key = self.stepsize or (keys[0] if keys else next(iter(self.best)))
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        last = self.table.sort_values("iterations").groupby([*self.best], sort=False).tail(1)
        ends = last[(last["iterations"] == self.table["iterations"].max()) | ~last["stable"]]
        others = [other for other in self.best if other != key]
        groups = ends.groupby(others, sort=False) if others else [((), ends)]
        axes = figure.subplots(1, 2)
        for values, group in groups:
            label = ", ".join(f"{other} = {value}" for other, value in zip(others, values, strict=True))
            stable = group[group["stable"]].sort_values(key)
            for axis, column in zip(axes, ("held_out", "objective"), strict=True):
                axis.plot(stable[key], stable[column], "o-", markersize=4, label=label or None)
        unstable = ends[~ends["stable"]]
        chosen = self.table[self.table["chosen"]]
        titles = ("held-out loss, worst seed", "training objective φ, worst seed")
        for axis, column, title in zip(axes, ("held_out", "objective"), titles, strict=True):
            for value in unstable[key].unique():
                axis.axvline(value, color="tab:red", linestyle=":", linewidth=1)
            axis.plot(chosen[key], chosen[column], "*", color="black", markersize=12, label="chosen")
            axis.set_title(title)
            axis.set_xlabel(f"{key} (dotted: unstable)" if len(unstable) else key)
            values = self.table[key]
            if values.map(lambda value: isinstance(value, int | float) and value > 0).all():
                axis.set_xscale("log")
            if (ends[column].dropna() > 0).all():
                axis.set_yscale("log")
            axis.legend(fontsize=8)
        save_figure(figure, Path(path))


def summarize(
    spec: ResolvedConfig, runs: CandidateRuns, chosen: Sequence[Outcome], *, stepsize: str | None, origin: str
) -> TuningResult:
    """The result of searches: of what each has chosen, the best."""
    best = _best(chosen)
    settings = settings_of(best.candidate, spec.algorithm)
    reasons = _reasons(best, chosen, runs)
    margin = stable_up_to = None
    if best.step is not None:
        known = [outcome for outcome in runs.outcomes if outcome.candidate.others == best.candidate.others]
        margin, stable_up_to = margins(best, known)
        reasons += [_describe_margin(margin, stable_up_to), f"the search began at {origin}"]
    run = spec.config.run
    cost = runs.iterations / (run.steps * len(run.seeds)) if run.steps else 0.0
    return TuningResult(
        best=settings,
        algorithm=with_settings(spec, settings).algorithm,
        table=_table(runs, chosen, best, spec),
        margin=margin,
        stable_up_to=stable_up_to,
        cost=cost,
        seeds=runs.seeds,
        stepsize=stepsize,
        reasons=reasons,
    )


def margins(best: Outcome, outcomes: Sequence[Outcome]) -> tuple[float | None, float | None]:
    """By which factors the smallest unstable, and the largest stable, stepsize exceed the chosen one."""
    assert best.step is not None
    last = {o.step: o for o in sorted(outcomes, key=lambda outcome: outcome.iterations)}
    unstable = [step for step, o in last.items() if step is not None and not o.stable and step > best.step]
    stable = [o.step for o in outcomes if o.step is not None and o.stable and o.iterations == best.iterations]
    return min(unstable) / best.step if unstable else None, max(stable) / best.step


def _describe_margin(margin: float | None, stable_up_to: float | None) -> str:
    if margin is None:
        return f"margin: no instability was seen up to {stable_up_to:.3g} times the chosen stepsize"
    return f"margin: unstable from {margin:.3g} times the chosen stepsize on, stable up to {stable_up_to:.3g} times it"


def _best(chosen: Sequence[Outcome]) -> Outcome:
    """The best of the searches' choices; where β differs, the sparsest of those that are tied."""
    betas = {dict(outcome.candidate.others).get("problem.beta") for outcome in chosen}
    if len(betas) > 1:
        return max(tied(chosen), key=lambda outcome: (outcome.measures["sparsity"], -outcome.worst_held_out))
    best = choose(chosen)
    assert best is not None, "a search chooses stable candidates only"
    return best


def _reasons(best: Outcome, chosen: Sequence[Outcome], runs: CandidateRuns) -> list[str]:
    lines = [
        f"held-out loss {best.worst_held_out:.4g} ± {best.deviation:.2g}, training objective "
        f"{best.worst_objective:.4g} (the worst of {len(runs.seeds)} seeds)"
    ]
    if len({dict(outcome.candidate.others).get("problem.beta") for outcome in chosen}) > 1:
        lines.append(
            "problem.beta: the sparsest model whose held-out loss is within one standard deviation of the best"
        )
    if runs.impossible:
        lines.append(f"{len(runs.impossible)} candidates left out: {next(iter(runs.impossible.values()))}")
    return lines


def _table(runs: CandidateRuns, chosen: Sequence[Outcome], best: Outcome, spec: ResolvedConfig) -> "pd.DataFrame":
    import pandas as pd

    rows: list[Mapping[str, Any]] = []
    for outcome in runs.outcomes:
        seeds = zip(runs.seeds, outcome.held_out, outcome.objective, strict=True)
        rows.append(
            {
                **settings_of(outcome.candidate, spec.algorithm),
                "iterations": outcome.iterations,
                "held_out": max(outcome.held_out) if not any(outcome.diverged) else math.nan,
                "deviation": outcome.deviation,
                "objective": max(outcome.objective) if not any(outcome.diverged) else math.nan,
                **{name: outcome.measures.get(name, math.nan) for name in REPORTED},
                "stable": outcome.stable,
                "diverged": sum(outcome.diverged),
                "selected": outcome in chosen,
                "chosen": outcome is best,
                **{
                    f"{name}_seed_{seed}": value
                    for seed, held_out, objective in seeds
                    for name, value in (("held_out", held_out), ("objective", objective))
                },
            }
        )
    return pd.DataFrame(rows)
