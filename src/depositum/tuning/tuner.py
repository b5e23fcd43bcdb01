"""`tune`: choose the stepsize of a configuration, and other hyper-parameters when asked."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from depositum.engines import Callback, Loop
from depositum.errors import ConfigError
from depositum.problem import Oracle, Problem
from depositum.problem.constants import smoothness
from depositum.runs import ResolvedConfig, build_problem
from depositum.runs.config_keys import config_keys, setting_name
from depositum.tuning.candidate_runs import CandidateRuns
from depositum.tuning.configured import check_key, check_values, settings_of, with_seeds, with_settings
from depositum.tuning.held_out import hold_out_by_client
from depositum.tuning.judging import Candidate, Outcome
from depositum.tuning.stepsize_search import Request, Search, search_stepsize
from depositum.tuning.tuning_result import TuningResult, summarize

#: Where "auto" stands for a value that is searched for.
AUTO = "auto"
#: Seeds of tuning besides those of the run, if it has fewer than are needed.
FURTHER_SEEDS = (97, 98, 99, 100, 101, 102, 103, 104, 105, 106)
#: The most combinations of values that are tried.
MOST_COMBINATIONS = 10_000
#: Samples of each client, and power iterations, with which L is estimated: its order of magnitude is enough.
SMOOTHNESS_SAMPLES, SMOOTHNESS_ITERATIONS = 128, 15

#: The default number of seeds of a candidate is between these.
FEWEST_SEEDS, MOST_DEFAULT_SEEDS = 3, 5


@config_keys()
def tune(
    spec: ResolvedConfig,
    over: Mapping[str, Sequence[Any] | str] | None = None,
    *,
    seeds: int | None = None,
    holdout: float = 0.1,
    callbacks: Sequence[Callback] = (),
    on_loop: Callable[[Loop], None] = lambda _: None,
) -> TuningResult:
    """Choose hyper-parameters of a configuration on held-out parts of its clients' training data.

    Parameters
    ----------
    over
        The hyper-parameters to vary: a list of values for each, or `"auto"` for the stepsize, which is searched for
        at every combination of the others. Default: the stepsize. Keys are those of a configuration, with or
        without their section.
    seeds
        How many seeds every candidate has: the first of the run's own, and further ones if it has fewer. Default: as
        many as the run, but at least 3 and at most 5.
    holdout
        The share of every client's training samples that candidates are judged on.
    callbacks, on_loop
        Called at the moments of every loop, and with every loop before it runs, so that it can be asked to stop.
    """
    own = spec.config.run.seeds
    seeds = min(max(len(own), FEWEST_SEEDS), MOST_DEFAULT_SEEDS) if seeds is None else seeds
    if seeds < 1:
        raise ConfigError("seeds", f"{seeds} given; it must be a whole number ≥ 1")
    if spec.config.run.steps < 1:
        raise ConfigError("steps", f"{spec.config.run.steps} given; tuning needs a run of at least one iteration")
    key, grids = _parse(spec, over)
    count = math.prod(map(len, grids.values()))
    if count > MOST_COMBINATIONS:
        raise ConfigError("over", f"{count} combinations given; at most {MOST_COMBINATIONS} can be tried")
    combinations = [tuple(zip(grids, values, strict=True)) for values in itertools.product(*grids.values())]
    base = with_seeds(spec, tuning_seeds(own, seeds))
    if base.engine_settings.compile == "auto":  # many short runs with different numbers of rows do not repay it
        base = replace(base, engine_settings=replace(base.engine_settings, compile="never"))
    for others in combinations:  # refuses, before any work, what no stepsize makes possible
        with_settings(base, dict(others))
    with_test_replaced = hold_out_by_client(build_problem([base]), holdout)
    runs = CandidateRuns(
        with_test_replaced,
        lambda candidate: with_settings(base, settings_of(candidate, spec.algorithm)),
        callbacks=callbacks,
        on_loop=on_loop,
    )
    start, origin = _start(spec, with_test_replaced, base) if key else (math.nan, "")
    steps = spec.config.run.steps
    searches = [search_stepsize(others, start, steps) if key else _only(others, steps) for others in combinations]
    chosen = _advance_in_step(searches, runs)
    if not chosen:
        raise ConfigError(key or "over", _why_none(runs))
    return summarize(spec, runs, chosen, stepsize=key, origin=origin)


def _why_none(runs: CandidateRuns) -> str:
    """Why there is nothing to choose."""
    if not runs.outcomes:
        return f"no candidate is possible: {next(iter(runs.impossible.values()))}"
    steps = sorted(outcome.step for outcome in runs.outcomes if outcome.step is not None)
    tried = f" from {steps[0]:.2g} to {steps[-1]:.2g}" if steps else ""
    return f"every value{tried} diverges, or ends worse than it began, in one of {len(runs.seeds)} seeds"


def tuning_seeds(own: Sequence[int], count: int) -> list[int]:
    """The seeds of tuning: the first of the run's own, and further ones if it has fewer.

    >>> tuning_seeds([0, 1, 2, 3], 3), tuning_seeds([0], 3)
    ([0, 1, 2], [0, 97, 98])
    """
    further = (seed for seed in itertools.chain(FURTHER_SEEDS, itertools.count(1000)) if seed not in own)
    return [*own[:count], *itertools.islice(further, max(0, count - len(own)))]


def _parse(
    spec: ResolvedConfig, over: Mapping[str, Sequence[Any] | str] | None
) -> tuple[str | None, dict[str, list[Any]]]:
    """The key of the stepsize, if it is searched for, and the values of the other keys."""
    name = spec.algorithm.stepsize_key
    stepsize = f"algorithm.{name}" if hasattr(spec.algorithm, name) else None
    if over is None:
        if stepsize is None:
            raise ConfigError(
                "algorithm.name", f"{spec.algorithm.name!r} has no stepsize to search for; name what to vary"
            )
        return stepsize, {}
    grids: dict[str, list[Any]] = {}
    searched = spec.algorithm.automatic
    for given, values in over.items():
        key = check_key(spec, given)
        if isinstance(values, str) and values == AUTO:
            if key != stepsize:
                allowed = (
                    f"only the stepsize, {setting_name(stepsize)}, is searched for"
                    if stepsize
                    else "it has no stepsize"
                )
                raise ConfigError(key, f"'auto' given, but {allowed}; give a list of values")
            searched = True
        else:
            grids[key] = check_values(key, values)
    if stepsize in grids:
        searched = False
    if not searched and not grids:
        raise ConfigError("over", "nothing given; name a hyper-parameter and its values")
    return stepsize if searched else None, grids


def _start(spec: ResolvedConfig, problem: Problem, base: ResolvedConfig) -> tuple[float, str]:
    """Around which stepsize to search, and where that comes from: 1/L, or the method's default."""
    measured = _smoothness(problem, base)
    if measured is not None:
        return 1 / measured, f"1/L = {1 / measured:.3g}, from L = {measured:.3g} measured on the data"
    method = spec.algorithm
    default = type(method).__dataclass_fields__[method.stepsize_key].default  # type: ignore[attr-defined]
    start = 1 / default if method.stepsize_inverse else float(default)
    return start, f"the method's default, {default:g}"


def _smoothness(problem: Problem, spec: ResolvedConfig) -> float | None:
    """An estimate of L from some samples of the first trial's clients; None where it cannot be measured."""
    if problem.loss.terms is not None:  # a language model
        return None
    trial = problem.trials[0]
    few = replace(trial, parts=[part[:SMOOTHNESS_SAMPLES] for part in trial.parts], test_indices=None)
    settings = spec.engine_settings
    try:
        oracle = Oracle(
            replace(problem, trials=(few,), test=None),
            1,
            device=settings.resolve_device(),
            dtype=settings.resolve_dtype(),
            backend="loop",
        )
        value = smoothness(oracle, SMOOTHNESS_ITERATIONS).value
    except (RuntimeError, NotImplementedError, TypeError):  # a model without second derivatives
        return None
    return value if math.isfinite(value) and value > 0 else None


def _only(others: tuple[tuple[str, Any], ...], steps: int) -> Search:
    """A combination of values without a stepsize to search for: one run of full length."""
    outcomes = yield Request((Candidate(others),), steps)
    return outcomes[0] if outcomes[0].stable else None


def _advance_in_step(searches: Sequence[Search], runs: CandidateRuns) -> list[Outcome]:
    """Advance searches together, what they ask for at the same time side by side; return their choices."""
    chosen: list[Outcome] = []
    requests: dict[int, Request] = {}
    answers: dict[int, Sequence[Outcome] | None] = dict.fromkeys(range(len(searches)))
    while answers:
        for index, answer in answers.items():
            try:
                requests[index] = searches[index].send(answer)  # type: ignore[arg-type]  # None starts a generator
            except StopIteration as stop:
                chosen += [stop.value] if stop.value is not None else []
        until = min((request.until for request in requests.values()), default=0)
        due = {index: request.candidates for index, request in requests.items() if request.until == until}
        runs.run([candidate for candidates in due.values() for candidate in candidates], until)
        answers = {index: runs.run(candidates, until) for index, candidates in due.items()}  # known by now
        requests = {index: request for index, request in requests.items() if index not in due}
    return chosen
