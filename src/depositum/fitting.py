"""`fit`: train the user's model on the user's data, in one call."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import Tensor, nn

from depositum.algorithms import Algorithm, Depositum
from depositum.channels import Channel, as_channel
from depositum.engines import Callback, Divergence, EngineSettings, Loop, average, make_engine
from depositum.engines.distributed import Communicator, ProcessSettings, problem_from_local_clients
from depositum.engines.snapshot import BUFFER, CHANNEL
from depositum.errors import ConfigError, is_integer, is_number, short_repr
from depositum.launch import launched
from depositum.metrics import Evaluations, MetricSettings
from depositum.networks import Network
from depositum.problem import BatchSize, Problem, Weighting, from_client_data
from depositum.problem.losses import Loss
from depositum.problem.precision import no_autocast
from depositum.registry import Spec
from depositum.regularizers import Regularizer
from depositum.report.progress import ProgressBar

if TYPE_CHECKING:
    import pandas as pd

Pair = tuple[Tensor | np.ndarray, Tensor | np.ndarray]


@dataclass(frozen=True)
class FitResult:
    """The result of training.

    Attributes
    ----------
    model
        The average of the clients' models, a plain module on the CPU.
    history
        One row per evaluated iteration (columns: docs/metrics.md).
    consensus
        (1/n)‖Jx − x‖² after every iteration; empty among processes, which would all have to meet for it.
    state
        The algorithm's variables by name (`x`, `y`, `nu`, …), each `[clients, d]`; of a process among many, the rows of
        its own clients.
    diverged
        Where training left the finite numbers, or None; model and state are then the last finite ones that were saved.
    """

    model: nn.Module
    history: "pd.DataFrame"
    consensus: "pd.Series"
    state: dict[str, Tensor]
    diverged: Divergence | None


class _Trace(Callback):
    def __init__(self) -> None:
        self.errors: dict[int, float] = {}

    def on_trace(self, loop: Loop, errors: list[tuple[int, int, float]]) -> None:
        self.errors |= {iteration: error for _, iteration, error in errors}


def fit(
    model: nn.Module,
    clients: Sequence[Pair] | Pair,
    *,
    network: Network | None = None,
    channel: Channel | Spec = "exact",
    regularizer: Regularizer | None = None,
    beta: float | None = None,
    algorithm: Algorithm | None = None,
    period: int = 1,
    batch_size: BatchSize = 32,
    steps: int = 500,
    loss: str | Loss | Callable[..., Any] | None = None,
    test: Pair | None = None,
    weighting: Weighting = "uniform",
    seed: int = 0,
    device: str = "auto",
    dtype: Literal["float32", "float64"] = "float32",
    precision: Literal["auto", "float32", "tf32", "bf16"] = "auto",
    evaluate_every: int = 10,
    evaluate_from: int = 0,
    metrics: MetricSettings | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    processes: ProcessSettings | None = None,
) -> FitResult:
    """Train one model over clients that keep their data and communicate with their neighbours only.

    Parameters
    ----------
    model
        Any module; its parameters as passed are the common start x_0. The module itself is not changed.
    clients
        One (inputs, targets) pair per client. In a script that torchrun has started: those of this process's own
        clients, or a single pair; each process has the same number of clients (docs/processes.md).
    network
        Who communicates with whom (default: a ring of all clients).
    channel
        What happens to rows between clients: `"exact"`, `"float16"`, `"bfloat16"`, `"sparse"`, or a `Channel`.
    regularizer, beta
        h and β of φ = f + βh; β is given if and only if h is.
    algorithm
        The method and its hyper-parameters (default: `Depositum()`).
    period
        T0: iterations from one communication to the next.
    batch_size
        Samples per client and iteration, drawn with replacement; `"full"` for full local gradients.
    loss
        A name (`"tokens"` for a language model), one of torch's losses, or a function or module of (outputs, targets)
        with one value per sample; default cross-entropy for integer targets, half the squared error for real ones.
        Means are over samples, also of `CrossEntropyLoss(weight=…)`, where torch's own mean divides by the sum of the
        samples' weights.
    test
        An (inputs, targets) pair that is evaluated and never trained on.
    weighting
        `"uniform"`: f is the mean of the clients' mean losses; `"samples"`: of all samples' losses.
    seed
        Seed of the mini-batches (and of dropout). Everything else is fixed by what is passed.
    device, dtype, precision
        Where to compute (`"auto"`: a GPU if there is one), the numbers of the state, and those of the model's passes.
    evaluate_every, evaluate_from, metrics
        Iterations between records of the history, the first of them after t = 0 (0: `evaluate_every`), and its costly
        measures (none by default; docs/metrics.md).
    callbacks
        Called at the moments of training (`depositum.Callback`).
    progress
        Whether to show a progress bar.
    processes
        Under torchrun, how processes communicate: time-out, and what may be sent for measures.

    >>> import torch, depositum as dp
    >>> data = [(torch.randn(50, 4), torch.randint(0, 2, (50,))) for _ in range(3)]
    >>> result = dp.fit(torch.nn.Linear(4, 2), data, regularizer=dp.L1(), beta=0.01, steps=20, progress=False)
    >>> result.state["x"].shape
    torch.Size([3, 10])
    """
    import pandas as pd

    _check_types(network, regularizer, algorithm, metrics, processes, callbacks)
    _check_numbers(regularizer, beta, dtype, period, steps, evaluate_every, evaluate_from)
    (metrics or MetricSettings()).check(Evaluations(evaluate_every, evaluate_from))
    method, processes = algorithm or Depositum(), processes or ProcessSettings()
    sent_through = as_channel(channel)
    communicator = _join(processes.timeout, device) if launched() else None
    if communicator is not None:
        communicator.check_same(
            {
                "algorithm": repr(method),
                "network": None if network is None else f"{network.n} clients",
                "channel": repr(sent_through),
                "period": period,
                "batch_size": batch_size,
                "steps": steps,
                "dtype": dtype,
                "precision": precision,
                "evaluate_every": evaluate_every,
                "evaluate_from": evaluate_from,
                "metrics": repr(metrics),
                "processes": repr(processes),
            }
        )
    with no_autocast():
        problem = _build_problem(
            communicator,
            model,
            clients,
            seed=seed,
            loss=loss,
            test=test,
            regularizer=regularizer,
            beta=beta or 0.0,
            weighting=weighting,
        )
        engine = make_engine(
            problem,
            network,
            method,
            period=period,
            batch_size=batch_size,
            settings=EngineSettings(device, dtype, precision),
            channel=sent_through,
            communicator=communicator,
            evaluate=processes.evaluate,
        )
        trace = _Trace()
        shown = progress and engine.reduction.rank == 0
        loop = Loop(
            engine,
            steps,
            evaluate_every=evaluate_every,
            evaluate_from=evaluate_from,
            checkpoint_every=max(1, evaluate_every),
            metrics=metrics,
            callbacks=[trace, *([ProgressBar()] if shown else []), *callbacks],
        )
        snapshot = loop.run()
    row, buffers = average(snapshot.rows_of([seed]), problem.n, engine.reduction)
    if communicator is not None:
        communicator.leave()
    return FitResult(
        model=problem.averaged_model(row, buffers),
        history=loop.history.frame,
        consensus=pd.Series(trace.errors, name="consensus_x", dtype="float64").rename_axis("iteration"),
        state={k: v for k, v in snapshot.tensors.items() if not k.startswith((BUFFER, CHANNEL))},
        diverged=snapshot.diverged.get(seed),
    )


def _join(timeout: float, device: str) -> Communicator:
    from depositum.engines.distributed.torch_communicator import join  # imports torch.distributed

    return join(timeout, device)


def _build_problem(
    communicator: Communicator | None, model: nn.Module, clients: Sequence[Pair] | Pair, **settings: Any
) -> Problem:
    if communicator is None:
        return from_client_data(model, clients, **settings)
    return problem_from_local_clients(communicator, model, clients, settings)


def _check_types(
    network: object, regularizer: object, algorithm: object, metrics: object, processes: object, callbacks: object
) -> None:
    for key, value, kind, example in (
        ("network", network, Network, "dp.ring(10)"),
        ("regularizer", regularizer, Regularizer, "dp.L1()"),
        ("algorithm", algorithm, Algorithm, "dp.Depositum(alpha=0.1)"),
        ("metrics", metrics, MetricSettings, "dp.MetricSettings(costly_every=50)"),
        ("processes", processes, ProcessSettings, "dp.ProcessSettings(timeout=60.0)"),
    ):
        if value is not None and not isinstance(value, kind):
            raise ConfigError(key, f"{short_repr(value)} given; it must be of type {kind.__name__}, such as {example}")
    given = list(callbacks) if isinstance(callbacks, Iterable) else [None]
    if not all(isinstance(callback, Callback) for callback in given):
        raise ConfigError("callbacks", f"{callbacks!r} given; it must be a list of dp.Callback objects")


def _check_numbers(
    regularizer: Regularizer | None,
    beta: object,
    dtype: object,
    period: object,
    steps: object,
    evaluate_every: object,
    evaluate_from: object,
) -> None:
    counts = {"period": period, "steps": steps, "evaluate_every": evaluate_every, "evaluate_from": evaluate_from}
    for key, number in counts.items():
        if not is_integer(number):
            raise ConfigError(key, f"{number!r} given; it must be a whole number")
    if beta is not None and not is_number(beta):
        raise ConfigError("beta", f"{beta!r} given; it must be a number ≥ 0")
    if regularizer is not None and beta is None:
        raise ConfigError("beta", f"missing; it weights {regularizer}: give a number > 0, or 0 to switch it off")
    if regularizer is None and beta:
        raise ConfigError("beta", f"{beta!r} given, but no regularizer that it could weight; give one, or leave β out")
    if dtype not in ("float32", "float64"):
        raise ConfigError("dtype", f"{dtype!r} given; it can be 'float32' or 'float64'")
