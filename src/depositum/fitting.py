"""`fit`: a person's own model and data, in one call."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import Tensor, nn

from depositum.algorithms import Algorithm, Depositum
from depositum.engines import Callback, Divergence, EngineSettings, Loop, Simulator
from depositum.engines.processes import ProcessEngine, ProcessSettings, check_built, join, launched, problem_of_all
from depositum.errors import ConfigError, is_integer, is_number, short_repr
from depositum.metrics import Evaluations, MetricSettings
from depositum.networks import Network
from depositum.problem import BatchSize, Weighting, from_client_data
from depositum.problem.losses import Loss
from depositum.problem.precision import no_autocast
from depositum.regularizers import Regularizer
from depositum.report.progress import ProgressBar

if TYPE_CHECKING:
    import pandas as pd

Pair = tuple[Tensor | np.ndarray, Tensor | np.ndarray]


@dataclass(frozen=True)
class FitResult:
    """What training gave.

    Attributes
    ----------
    model
        The average of the clients' models, a plain module on the CPU.
    history
        One row per evaluated iteration (columns: docs/metrics.md).
    consensus
        (1/n)‖Jx − x‖² after every iteration; empty among processes, which would all have to meet for it.
    state
        The algorithm's variables by name (`x`, `y`, `nu`, …), each `[clients, d]`; of a process among many, its own
        clients' rows.
    diverged
        Where training left the finite numbers, or None; model and state are then the last finite ones kept.
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
    """Train one model over clients that keep their data, talking to neighbours only.

    Parameters
    ----------
    model
        Any module; its parameters as passed are the common start x_0, and it is left as it is.
    clients
        One (inputs, targets) pair per client. In a script that torchrun has started: those of this process's own
        clients, or one pair alone; each process has the same number of clients (docs/processes.md).
    network
        Who talks to whom (default: a ring of all clients).
    regularizer, beta
        h and β of φ = f + βh; without h there is no β to give, and with it there must be one.
    algorithm
        The method and its hyper-parameters (default: `Depositum()`).
    period
        T0: iterations from one communication to the next.
    batch_size
        Samples per client and iteration, drawn with replacement; `"full"` for full local gradients.
    loss
        A name (`"tokens"` of a language model), one of torch's losses, or a function or module of (outputs, targets)
        with one value per sample; default cross-entropy for whole-number targets, half the squared error for real ones.
        Means are over samples, also of `CrossEntropyLoss(weight=…)`, where torch's own mean divides by the sum of the
        samples' weights.
    test
        An (inputs, targets) pair that is evaluated and never trained on.
    weighting
        `"uniform"`: f is the mean of the clients' mean losses; `"samples"`: of all samples' losses.
    seed
        Of the mini-batches (and of dropout). All else is fixed by what is passed.
    device, dtype, precision
        Where (`"auto"`: a GPU if there is one), the state's numbers, and those of the model's passes alone.
    evaluate_every, evaluate_from, metrics
        Iterations between records of the history, the first of them after t = 0 (0: a whole stride), and its costly
        measures (none by default; docs/metrics.md).
    callbacks
        Asked at the moments of training (`depositum.Callback`).
    progress
        Whether to show a progress bar.
    processes
        Under torchrun, how processes talk to each other: time-out, encoding of rows, what may be sent for measures.

    >>> import torch, depositum as dp
    >>> data = [(torch.randn(50, 4), torch.randint(0, 2, (50,))) for _ in range(3)]
    >>> result = dp.fit(torch.nn.Linear(4, 2), data, regularizer=dp.L1(), beta=0.01, steps=20, progress=False)
    >>> result.state["x"].shape
    torch.Size([3, 10])
    """
    for key, value, kind, example in (
        ("network", network, Network, "dp.ring(10)"),
        ("regularizer", regularizer, Regularizer, "dp.L1()"),
        ("algorithm", algorithm, Algorithm, "dp.Depositum(alpha=0.1)"),
        ("metrics", metrics, MetricSettings, "dp.MetricSettings(costly_every=50)"),
        ("processes", processes, ProcessSettings, "dp.ProcessSettings(timeout=60.0)"),
    ):
        if value is not None and not isinstance(value, kind):
            raise ConfigError(key, f"{short_repr(value)} given; it must be of type {kind.__name__}, such as {example}")
    counts = {"period": period, "steps": steps, "evaluate_every": evaluate_every, "evaluate_from": evaluate_from}
    for key, number in counts.items():
        if not is_integer(number):
            raise ConfigError(f"run.{key}", f"{number!r} given; it must be a whole number")
    (metrics or MetricSettings()).check(Evaluations(evaluate_every, evaluate_from))
    asked = list(callbacks) if isinstance(callbacks, Iterable) else [None]
    if not all(isinstance(callback, Callback) for callback in asked):
        raise ConfigError("callbacks", f"{callbacks!r} given; it must be a list of dp.Callback objects")
    if beta is not None and not is_number(beta):
        raise ConfigError("beta", f"{beta!r} given; it must be a number ≥ 0")
    if regularizer is not None and beta is None:
        raise ConfigError("beta", f"missing; {regularizer} is weighted by it: give a number > 0, or 0 to switch it off")
    if regularizer is None and beta:
        raise ConfigError("beta", f"{beta!r} given, but no regularizer that it could weigh; give one, or leave β out")
    if dtype not in ("float32", "float64"):
        raise ConfigError("dtype", f"{dtype!r} given; it can be 'float32' or 'float64'")
    own = processes or ProcessSettings()
    group = join(own.timeout, device) if launched() else None
    method, settings = algorithm or Depositum(), EngineSettings(device, dtype, precision)
    given: dict[str, Any] = {
        "seed": seed,
        "loss": loss,
        "test": test,
        "regularizer": regularizer,
        "beta": beta or 0.0,
        "weighting": weighting,
    }
    trace = _Trace()
    with no_autocast():
        engine: Simulator | ProcessEngine
        if group is None:
            problem = from_client_data(model, clients, **given)  # type: ignore[arg-type]
            engine = Simulator(problem, network, method, period=period, batch_size=batch_size, settings=settings)
        else:
            with group.together("compare the arguments"):
                group.check_alike(
                    {
                        "algorithm": repr(method),
                        "network": None if network is None else f"{network.n} clients",
                        "period": period,
                        "batch_size": batch_size,
                        "steps": steps,
                        "dtype": dtype,
                        "precision": precision,
                        "evaluate_every": evaluate_every,
                        "evaluate_from": evaluate_from,
                        "metrics": repr(metrics),
                        "processes": repr(own),
                    }
                )
            problem = problem_of_all(group, model, clients, given)
            check_built(group, problem, network)
            with group.together("make the engine"):
                engine = ProcessEngine(
                    problem,
                    network,
                    method,
                    group,
                    period=period,
                    batch_size=batch_size,
                    settings=settings,
                    send=own.send,
                    evaluate=own.evaluate,
                )
        shown = progress and (group is None or group.rank == 0)
        loop = Loop(
            engine,
            steps,
            evaluate_every=evaluate_every,
            evaluate_from=evaluate_from,
            checkpoint_every=max(1, evaluate_every),
            metrics=metrics,
            callbacks=[trace, *([ProgressBar()] if shown else []), *asked],
        )
        snapshot = loop.run()
    import pandas as pd  # slow to import, and needed only here

    row, buffers = loop.averaged(seed)
    if group is not None:
        group.leave()
    return FitResult(
        model=problem.averaged_model(row, buffers),
        history=loop.history.frame,
        consensus=pd.Series(trace.errors, name="consensus_x", dtype="float64").rename_axis("iteration"),
        state={k: v for k, v in snapshot.tensors.items() if not k.startswith("buffer.")},
        diverged=snapshot.diverged.get(seed),
    )
