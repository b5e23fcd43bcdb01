"""`tune`: choose hyper-parameters for the user's model and data, in one call."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from depositum.errors import ConfigError, is_integer, is_number, listing, nearest, short_repr
from depositum.fitting.training import MOST_SEEDS, build_folder, check_progress, fit, measures_named, resolve_arguments
from depositum.launch import launched
from depositum.problem.precision import no_autocast
from depositum.report.progress import TuningProgress
from depositum.runs import RunFolder
from depositum.runs.config_keys import argument_names
from depositum.tuning import TuningResult, automatic, write_result
from depositum.tuning import tune as tune_configuration

#: Arguments of `fit` that concern the run alone.
_OF_THE_RUN = ("checkpoint_every", "callbacks", "on_divergence", "processes", "federation")


def tune(
    model: nn.Module,
    clients: Any,
    *,
    over: Mapping[str, Sequence[Any] | str] | None = None,
    seeds_per_candidate: int | None = None,
    holdout: float = 0.1,
    progress: bool = True,
    **arguments: Any,
) -> TuningResult:
    """Choose the stepsize of a call of `fit`, and other hyper-parameters when asked, on held-out training data.

    Parameters
    ----------
    model, clients, arguments
        As for `fit`. `test` is not looked at, and `callbacks`, `checkpoint_every`, `on_divergence` and `processes` are
        not accepted: they concern the run alone. With `out`, the result is written to that folder, where a `fit` with
        `alpha="auto"` takes it from.
    over
        The hyper-parameters to vary: those of the method, `beta`, `period` and `batch_size`, with a list of values
        each, or `"auto"` for the stepsize. Default: `{"alpha": "auto"}`, or what the method's stepsize is called.
    seeds_per_candidate
        How many seeds every candidate has, of which the worst counts: the first of the call's own, and further ones.
        Default: as many as the call, but at least 3 and at most 5.
    holdout
        The share of every client's samples that candidates are judged on, between 0 and 1.
    progress
        Whether to show a progress bar.

    Returns
    -------
    TuningResult
        The choice in `best`, the method with it in `algorithm`, the candidates in `table`, the factor to the smallest
        unstable stepsize in `margin`, and `figure(path)`.

    >>> import torch, depositum as dp
    >>> data = [(x := torch.randn(50, 4), (x[:, 0] > 0).long()) for _ in range(3)]
    >>> found = dp.tune(torch.nn.Linear(4, 2), data, steps=20, over={"gamma": [0.0, 0.5]}, progress=False)
    >>> sorted(found.best), found.margin is None or found.margin > 1
    (['gamma'], True)
    """
    with argument_names(), measures_named(arguments.get("metrics")), no_autocast():
        check_progress(progress)
        _check(over, seeds_per_candidate, holdout, arguments)
        parameters = inspect.signature(fit).parameters.items()
        defaults = {k: p.default for k, p in parameters if p.default is not inspect.Parameter.empty}
        given = {**defaults, **arguments, "model": model, "clients": clients}
        folder = build_folder(given["out"])
        spec = resolve_arguments(given, folder, None)
        if folder is not None:
            RunFolder(folder).check(automatic(spec))
        result = tune_configuration(
            spec,
            over,
            seeds=None if seeds_per_candidate is None else int(seeds_per_candidate),
            holdout=float(holdout),
            callbacks=[TuningProgress()] if progress else [],
        )
        if folder is not None:
            write_result(result, automatic(spec), folder)
        return result.by_argument()


def _check(over: object, seeds: object, holdout: object, arguments: Mapping[str, Any]) -> None:
    allowed = [k for k in inspect.signature(fit).parameters if k not in (*_OF_THE_RUN, "model", "clients", "progress")]
    for name in arguments:
        if name not in allowed:
            why = "it concerns the run alone" if name in _OF_THE_RUN else f"it can be {listing(allowed)}"
            raise ConfigError(name, f"is not an argument of tune; {why}{nearest(name, allowed)}")
    if over is not None and not isinstance(over, Mapping):
        raise ConfigError("over", f"{short_repr(over)} given; it must be a table such as {{'gamma': [0.5, 0.9]}}")
    counts = is_integer(seeds) and not isinstance(seeds, bool) and 1 <= int(seeds) <= MOST_SEEDS  # type: ignore[call-overload]
    if seeds is not None and not counts:
        must_be = f"it must be a whole number from 1 to {MOST_SEEDS}"
        raise ConfigError("seeds_per_candidate", f"{short_repr(seeds)} given; {must_be}")
    if not is_number(holdout) or not 0 < float(holdout) < 1:  # type: ignore[arg-type]
        raise ConfigError("holdout", f"{short_repr(holdout)} given; it must be a number between 0 and 1")
    if launched():
        raise ConfigError("model", "tune was called under torchrun; tune in a simulation, with all clients' data")
