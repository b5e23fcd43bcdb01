"""`fit`: train the user's model on the user's data, in one call."""

import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, get_args

import networkx as nx
from torch import Tensor, nn

from depositum import networks, regularizers
from depositum.algorithms import ALGORITHMS, Algorithm, Depositum
from depositum.channels import Channel, as_channel
from depositum.engines import Callback, Engine, Loop, Snapshot, average
from depositum.engines.distributed import ClusterCommunicator, ProcessSettings, problem_from_local_clients
from depositum.errors import (
    ConfigError,
    DivergedError,
    check_choice,
    is_integer,
    is_number,
    renamed_keys,
    short_repr,
)
from depositum.fitting.federation_call import fit_member
from depositum.fitting.result import FitResult, consensus_series, series
from depositum.interrupt import Interrupted, StopOnSignal
from depositum.launch import launched
from depositum.metrics import MetricSettings, ended_worse
from depositum.metrics.functions import MetricFunction
from depositum.networks import Network, Participation, as_participation
from depositum.networks.graphs import Graph
from depositum.problem import BatchSize, Problem, Sampling, Weighting, from_client_data
from depositum.problem.losses import Loss
from depositum.problem.precision import no_autocast
from depositum.registry import Spec
from depositum.regularizers import Regularizer, Zero
from depositum.report.progress import ProgressBar, TuningProgress
from depositum.runs import ResolvedConfig, RunFolder, check_agreement, execute, execute_distributed
from depositum.runs.config_keys import argument_names
from depositum.runs.given_problem import resolve_given
from depositum.runs.keep_best import KeepBest
from depositum.tuning import Tuned, tuned
from depositum.validation import as_list, as_path

#: The most seeds that are trained side by side.
MOST_SEEDS = 1000
OnDivergence = Literal["raise", "warn"]

#: Iterations from one checkpoint in a folder to the next, as for `depositum run`.
CHECKPOINT_EVERY = 100


def fit(
    model: nn.Module,
    clients: Any,
    *,
    by: str | None = None,
    target: str | None = None,
    network: Network | Spec | Path | Graph | None = None,
    channel: Channel | Spec = "exact",
    regularizer: Regularizer | Spec | Sequence[Spec] | None = None,
    beta: float | None = None,
    algorithm: Algorithm | Spec | None = None,
    period: int = 1,
    batch_size: BatchSize = 32,
    sampling: Sampling = "replacement",
    participation: Participation | Mapping[str, Any] | float | None = None,
    steps: int = 500,
    loss: str | Loss | Callable[..., Any] | None = None,
    test: Any = None,
    weighting: Weighting = "uniform",
    seed: int = 0,
    seeds: Sequence[int] | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    dtype: Literal["float32", "float64"] = "float32",
    precision: Literal["auto", "float32", "tf32", "bf16"] = "auto",
    compile: Literal["auto", "always", "never"] = "auto",
    evaluate_every: int = 10,
    evaluate_from: int = 0,
    checkpoint_every: int | None = None,
    metrics: MetricSettings | Mapping[str, MetricFunction] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    on_divergence: OnDivergence = "raise",
    processes: ProcessSettings | None = None,
    federation: str | Path | None = None,
) -> FitResult:
    """Train one model over clients that keep their data and communicate with their neighbours only.

    Whatever a configuration file chooses by name can be chosen by the same name here: `algorithm="fedavg"`,
    `regularizer={"mcp": {"theta": 3.0}}`, `network="ring"`.

    Parameters
    ----------
    model
        Any module; its parameters as passed are the common start x_0. The module itself is not changed.
    clients
        The clients' data: one (inputs, targets) pair of arrays or tensors per client, one torch dataset or loader per
        client, one table per client (a pandas DataFrame, or the path of a CSV or Parquet file), or one table of all
        (docs/data.md). In a script that torchrun has started: those of this process's own clients, or a single pair;
        each process has the same number of clients (docs/processes.md).
    by, target
        Of tables: the column that names the client of each row, and the column to predict.
    network
        Who communicates with whom (default: a ring of all clients): a network such as `dp.ring(10)`, a name or table
        such as `"star"`, a networkx graph, or the path of a file of edges.
    channel
        What happens to rows between clients: `"exact"`, `"float16"`, `"bfloat16"`, `"sparse"`, or a `Channel`.
    regularizer, beta
        h and β of φ = f + βh; β is given if and only if h is. h is a regularizer such as `dp.L1()`, a name or table
        such as `{"mcp": {"theta": 3.0}}`, or a list of tables with `on`, for groups of parameters:
        `[{"l1": {}, "on": "*.weight"}, {"squared-l2": {}, "on": "*.bias", "scale": 0.5}]`.
    algorithm
        The method and its hyper-parameters (default: `Depositum()`): a method, a name, or a table such as
        `{"fedavg": {"alpha": 0.1}}`. With `alpha="auto"` the stepsize is searched for first (docs/tuning.md), and the
        search is in the result's `tuning`.
    period
        T0: iterations from one communication to the next.
    batch_size
        Samples per client and iteration; `"full"` for full local gradients.
    sampling
        How they are drawn: with `"replacement"`, as theory assumes, or in `"epochs"`: each of a client's samples once,
        in a random order, before any of them again.
    participation
        Which clients take part in a phase, the others rest (docs/links.md): a share in (0, 1], a table such as
        `{"cohort": 50}`, or a `Participation`; default all.
    loss
        A name (`"tokens"` for a language model), one of torch's losses, or a function or module of (outputs, targets)
        with one value per sample; default cross-entropy for integer targets, half the squared error for real ones.
        Means are over samples, also of `CrossEntropyLoss(weight=…)`, where torch's own mean divides by the sum of the
        samples' weights.
    test
        Data that are evaluated and never trained on, in the form of one client's: an (inputs, targets) pair, a table.
    weighting
        `"uniform"`: f is the mean of the clients' mean losses; `"samples"`: of all samples' losses.
    seed, seeds
        Seed of the mini-batches (and of dropout), or several, which are trained side by side. Everything else is fixed
        by what is passed.
    out
        The run's folder, with the same files as that of `depositum run`: checkpoints, history, models. If it holds
        this run already, the run is resumed from its last checkpoint and, with more steps, extended; it ends in the
        same bytes as one that was never stopped.
    device, dtype, precision, compile
        Where to compute (`"auto"`: a GPU if there is one), the numbers of the state, those of the model's passes, and
        whether iterations are compiled.
    evaluate_every, evaluate_from, metrics
        Iterations between records of the history, the first of them after t = 0 (0: `evaluate_every`), and further
        measures: a table of functions of (outputs, targets) by name, such as `{"f1": f1}`, or `MetricSettings`, for
        costly measures as well (none by default; docs/metrics.md).
    checkpoint_every
        Iterations between checkpoints (default: 100 with a folder, `evaluate_every` in memory).
    callbacks
        Called at the moments of training (`depositum.Callback`).
    progress
        Whether to show a progress bar.
    on_divergence
        What to do when training leaves the finite numbers: `"raise"` a `DivergedError`, whose `result` is what there
        is, or `"warn"` and return it.
    processes
        Under torchrun, how processes communicate: time-out, and what may be sent for measures.
    federation
        The folder of a member of a federation (docs/federation.md): train as that member. `clients` is its own data,
        and the agreement decides all but the model, its loss and where to compute.

    Returns
    -------
    FitResult
        The trained model, the history and the state. After Ctrl-C (the first; a second one raises
        `KeyboardInterrupt`), what there is, with `finished` False: with `out`, the same call resumes it.

    >>> import torch, depositum as dp
    >>> data = [(torch.randn(50, 4), torch.randint(0, 2, (50,))) for _ in range(3)]
    >>> result = dp.fit(torch.nn.Linear(4, 2), data, regularizer=dp.L1(), beta=0.01, steps=20, progress=False)
    >>> result.state["x"].shape
    torch.Size([3, 10])
    """
    arguments = dict(locals())
    with argument_names(), measures_named(metrics), no_autocast():
        _check_types(processes, on_divergence)
        check_progress(progress)
        called = _build_callbacks(callbacks)
        if federation is not None:
            say: Callable[[str], None] = _print_line if progress else _ignore
            result, divergence = fit_member(fit, arguments, called, say, _stopped_by_interrupt())
            _report(result, divergence, on_divergence, "shorter steps in the agreement")
            return result
        settings = processes or ProcessSettings()
        folder = build_folder(out)
        communicator = _join(settings.timeout, device) if launched() else None
        spec = resolve_arguments(arguments, folder, communicator)
        found = _tuned(spec, folder, communicator, progress)
        result, divergence = _train(found.spec, folder, communicator, called, progress)
        result = replace(result, tuning=found.result and found.result.by_argument())
    _report(result, divergence, on_divergence, f"{spec.algorithm.shorter_steps()}, or dp.tune")
    return result


def resolve_arguments(
    given: Mapping[str, Any], folder: Path | None, communicator: ClusterCommunicator | None
) -> ResolvedConfig:
    """The configuration that the arguments of `fit` stand for, checked in full."""
    settings, beta = given["processes"] or ProcessSettings(), given["beta"]
    h = _build_regularizer(given["regularizer"], beta)
    method = _build_method(given["algorithm"])
    problem = _build_problem(
        communicator,
        given["model"],
        given["clients"],
        by=given["by"],
        target=given["target"],
        loss=given["loss"],
        test=given["test"],
        regularizer=h,
        beta=0.0 if beta is None else beta,
        weighting=given["weighting"],
    )
    return resolve_given(
        problem,
        method,
        network=_build_network(given["network"], problem.n),
        channel=as_channel(given["channel"]),
        regularizer=h,
        metrics=_build_metrics(given["metrics"]),
        run={
            "steps": _as_integer(given["steps"]),
            "period": _as_integer(given["period"]),
            "batch_size": _as_integer(given["batch_size"]),
            "sampling": given["sampling"],
            "participation": _participation_table(given["participation"]),
            "seeds": _build_seeds(given["seed"], given["seeds"]),
            "device": given["device"],
            "dtype": given["dtype"],
            "precision": given["precision"],
            "compile": given["compile"],
            "evaluate_every": _as_integer(given["evaluate_every"]),
            "evaluate_from": _as_integer(given["evaluate_from"]),
            "checkpoint_every": _checkpoint_every(given["checkpoint_every"], given["evaluate_every"], folder),
        },
        processes={"timeout": settings.timeout, "evaluate": settings.evaluate},
        digests=folder is not None,
    )


def _participation_table(given: Participation | Mapping[str, Any] | float | None) -> float | dict[str, Any] | None:
    """As a configuration has it."""
    participation = as_participation(given)
    return None if participation is None else {k: v for k, v in asdict(participation).items() if v is not None}


def _tuned(
    spec: ResolvedConfig, folder: Path | None, communicator: ClusterCommunicator | None, progress: bool
) -> Tuned:
    """The configuration with a stepsize in place of `"auto"`."""
    if communicator is None:
        callbacks, say = ([TuningProgress()], _print_line) if progress else ([], _ignore)
        return tuned(spec, folder, callbacks=callbacks, say=say)
    if spec.algorithm.automatic:
        raise ConfigError(
            spec.algorithm.stepsize_key,
            "'auto' given, but processes do not search for a stepsize; find one in a simulation, with dp.tune",
        )
    return Tuned(spec)


class _Trace(Callback):
    """Collects the consensus errors, by (seed, iteration)."""

    def __init__(self) -> None:
        self.errors: dict[tuple[int, int], float] = {}

    def on_trace(self, loop: Loop, errors: list[tuple[int, int, float]]) -> None:
        self.errors |= {(seed, iteration): error for seed, iteration, error in errors}


def _train(
    spec: ResolvedConfig,
    folder: Path | None,
    communicator: ClusterCommunicator | None,
    callbacks: Sequence[Callback],
    progress: bool,
) -> tuple[FitResult, str | None]:
    """Train in a simulator, or as one process among many; return the result, and where it diverged."""
    trace = _Trace()
    averages: dict[int, tuple[Tensor, dict[str, Tensor]]] = {}
    shown = progress and (communicator is None or communicator.rank == 0)
    called = [trace, *([ProgressBar()] if shown else []), *callbacks]
    say = _print_line if shown else _ignore
    if communicator is None:
        try:
            with _stopped_by_interrupt() as stop:
                ended = execute(spec, folder, callbacks=called, say=say, on_loop=stop.attach if stop else _ignore)
        except Interrupted:
            raise KeyboardInterrupt from None
    else:

        def keep_averages(engine: Engine, snapshot: Snapshot) -> None:
            for seed in snapshot.seeds:
                averages[seed] = average(snapshot.rows_of([seed]), engine.problem.n, engine.reduction)

        check_agreement(communicator, spec)
        ended = execute_distributed(spec, communicator, folder, callbacks=called, say=say, before_leaving=keep_averages)
    if ended.damage is not None:
        warnings.warn(ended.damage, RuntimeWarning, stacklevel=4)
    seeds, given = ended.snapshot.seeds, spec.given
    assert given is not None
    if folder is not None and communicator is None:
        consensus = consensus_series(RunFolder(folder), seeds)
    else:
        consensus = series(trace.errors, seeds)
    result = FitResult(
        history=ended.history.frame,
        consensus=consensus,
        snapshot=ended.snapshot,
        finished=ended.finished,
        folder=folder,
        _architecture=lambda: given.model,
        _problem=lambda: given,
        _averages=averages,
        _functions=spec.metrics.functions,
        _keep_best=next((callback for callback in callbacks if isinstance(callback, KeepBest)), None),
    )
    return result, ended.divergence(spec) if ended.diverged else None


def _report(result: FitResult, divergence: str | None, on_divergence: OnDivergence, remedy: str) -> None:
    """Report what the user must not overlook: divergence, an early end, and a loss that has risen."""
    if divergence is not None:
        if on_divergence == "raise":
            raise DivergedError(divergence, result)
        warnings.warn(divergence, RuntimeWarning, stacklevel=3)
        return
    worse = ended_worse(result.history, remedy)
    if worse is not None:
        warnings.warn(worse, RuntimeWarning, stacklevel=3)


@contextmanager
def _stopped_by_interrupt() -> Iterator[StopOnSignal | None]:
    """The first Ctrl-C stops the loop; only the main thread can react to it, and no handler of the user is replaced."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield None
        return
    with StopOnSignal([signal.SIGINT]) as stop:
        yield stop
    if stop.requested:
        warnings.warn("interrupted; the result is of the iterations so far", RuntimeWarning, stacklevel=5)


def _print_line(line: str) -> None:
    print(line, file=sys.stderr)


def _ignore(_: object) -> None:
    pass


# From arguments to what they stand for


def _join(timeout: float, device: str) -> ClusterCommunicator:
    from depositum.engines.distributed.torch_communicator import join  # imports torch.distributed

    return join(timeout, device)


def _build_problem(
    communicator: ClusterCommunicator | None, model: nn.Module, clients: Any, **settings: Any
) -> Problem:
    if communicator is None:
        return from_client_data(model, clients, **settings)
    return problem_from_local_clients(communicator, model, clients, settings)


def _build_method(given: Algorithm | Spec | None) -> Algorithm:
    if given is None or isinstance(given, Algorithm):
        return given or Depositum()
    if not isinstance(given, str | Mapping):
        raise ConfigError(
            "algorithm",
            f"{short_repr(given)} given; it must be of type Algorithm, such as dp.Depositum(alpha=0.1), or a name such "
            "as 'fedavg'",
        )
    return ALGORITHMS.parse(given, "algorithm").make()


def _build_regularizer(given: Regularizer | Spec | Sequence[Spec] | None, beta: object) -> Regularizer:
    if beta is not None and not is_number(beta):
        raise ConfigError("beta", f"{short_repr(beta)} given; it must be a number ≥ 0")
    if given is None:
        if beta:
            problem = f"{short_repr(beta)} given, but no regularizer that it could weight; give one, or leave β out"
            raise ConfigError("beta", problem)
        return Zero()
    if not isinstance(given, Regularizer | str | Mapping | list | tuple):
        raise ConfigError(
            "regularizer",
            f"{short_repr(given)} given; it must be of type Regularizer, such as dp.L1(), or a name such as 'l1'",
        )
    h = regularizers.build(given)
    if beta is None:
        raise ConfigError("beta", f"missing; it weights {short_repr(h)}: give a number > 0, or 0 to switch it off")
    return h


def _build_network(given: Network | Spec | Path | Graph | None, n: int) -> Network | None:
    if given is None or isinstance(given, Network):
        return given
    if not isinstance(given, str | Mapping | Path | nx.Graph):
        raise ConfigError(
            "network",
            f"{short_repr(given)} given; it must be of type Network, such as dp.ring(10), or a name such as 'ring'",
        )
    with renamed_keys(lambda key: f"network{key.removeprefix('topology')}" if key.startswith("topology") else key):
        return networks.build(given, "metropolis", n)


def _build_seeds(seed: object, seeds: object) -> list[Any]:
    if seeds is None:
        if not is_integer(seed) or not 0 <= int(seed) < 1 << 63:  # type: ignore[call-overload]
            raise ConfigError("seed", f"{short_repr(seed)} given; it must be a whole number from 0 to 2⁶³ − 1")
        return [int(seed)]  # type: ignore[call-overload]
    if not is_integer(seed) or int(seed):  # type: ignore[call-overload]
        raise ConfigError("seeds", f"given beside seed = {short_repr(seed)}; give one of the two")
    return [
        _as_integer(each) for each in as_list(seeds, "seeds", "a list of whole numbers, such as range(5)", MOST_SEEDS)
    ]


def build_folder(out: object) -> Path | None:
    """The folder of a run, from the argument of `fit`."""
    return None if out is None else as_path(out, "out", "the path of a folder, such as 'runs/first'")


def _checkpoint_every(given: object, evaluate_every: Any, folder: Path | None) -> Any:
    if given is not None:
        return _as_integer(given)
    in_memory = folder is None and is_integer(evaluate_every)  # the last finite state is kept at evaluations
    return max(1, int(evaluate_every)) if in_memory else CHECKPOINT_EVERY


def _as_integer(value: object) -> Any:
    """A whole number of any type as Python's own; anything else as it is, to be refused when it is checked."""
    return int(value) if is_integer(value) and not isinstance(value, bool) else value  # type: ignore[call-overload]


def _build_metrics(given: MetricSettings | Mapping[str, MetricFunction] | None) -> MetricSettings:
    if given is None or isinstance(given, MetricSettings):
        return given or MetricSettings()
    if not isinstance(given, Mapping) or not all(map(callable, given.values())):
        raise ConfigError(
            "metrics",
            f"{short_repr(given)} given; it must be of type MetricSettings, such as dp.MetricSettings(costly_every=50) "
            "or a table of functions of (outputs, targets)",
        )
    return MetricSettings(functions=given)


def measures_named(given: object) -> AbstractContextManager[None]:
    """Name the user's measures in errors as they were given: in a table, or as `functions` of `MetricSettings`."""
    is_table = isinstance(given, Mapping)
    return renamed_keys(lambda key: re.sub(r"^functions(?![\w])", "metrics", key) if is_table else key)


def _build_callbacks(given: object) -> list[Callback]:
    expected = "a list of dp.Callback objects"
    callbacks = as_list(given, "callbacks", expected)
    if not all(isinstance(callback, Callback) for callback in callbacks):
        raise ConfigError("callbacks", f"{short_repr(given)} given; it must be {expected}")
    return callbacks


def check_progress(progress: object) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(progress, bool):
        raise ConfigError("progress", f"{short_repr(progress)} given; it must be True or False")


def _check_types(processes: object, on_divergence: object) -> None:
    if processes is not None and not isinstance(processes, ProcessSettings):
        example = "it must be of type ProcessSettings, such as dp.ProcessSettings(timeout=60.0)"
        raise ConfigError("processes", f"{short_repr(processes)} given; {example}")
    check_choice("on_divergence", on_divergence, get_args(OnDivergence))
