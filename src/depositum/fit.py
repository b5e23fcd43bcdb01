"""`fit`: a person's own model and data, in one call."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from torch import Tensor, nn

from depositum.algorithms import Algorithm, Depositum
from depositum.engines import Callback, Divergence, EngineSettings, Loop, Simulator
from depositum.errors import ConfigError
from depositum.metrics import MetricSettings
from depositum.networks import Network
from depositum.problem import BatchSize, Weighting, from_client_data
from depositum.problem.losses import Loss
from depositum.problem.precision import no_autocast
from depositum.regularizers import Regularizer
from depositum.report.progress import ProgressBar
from depositum.runs.execute import averaged

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
        (1/n)‖Jx − x‖² after every iteration.
    state
        The algorithm's variables by name (`x`, `y`, `nu`, …), each `[clients, d]`.
    diverged
        Where training left the finite numbers, or None; model and state are then the last finite ones kept.
    """

    model: nn.Module
    history: pd.DataFrame
    consensus: pd.Series
    state: dict[str, Tensor]
    diverged: Divergence | None


class _Trace(Callback):
    def __init__(self) -> None:
        self.errors: dict[int, float] = {}

    def on_trace(self, loop: Loop, errors: list[tuple[int, int, float]]) -> None:
        self.errors |= {iteration: error for _, iteration, error in errors}


def fit(
    model: nn.Module,
    clients: Sequence[Pair],
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
    metrics: MetricSettings | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
) -> FitResult:
    """Train one model over clients that keep their data, talking to neighbours only.

    Parameters
    ----------
    model
        Any module; its parameters as passed are the common start x_0, and it is left as it is.
    clients
        One (inputs, targets) pair per client.
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
        A name, one of torch's losses, or a function or module of (outputs, targets) with one value per sample; default
        cross-entropy for whole-number targets, half the squared error for real ones.
    test
        An (inputs, targets) pair that is evaluated and never trained on.
    weighting
        `"uniform"`: f is the mean of the clients' mean losses; `"samples"`: of all samples' losses.
    seed
        Of the mini-batches (and of dropout). All else is fixed by what is passed.
    device, dtype, precision
        Where (`"auto"`: a GPU if there is one), the state's numbers, and those of the model's passes alone.
    evaluate_every, metrics
        Iterations between records of the history, and its costly measures (none by default; docs/metrics.md).
    callbacks
        Asked at the moments of training (`depositum.Callback`).
    progress
        Whether to show a progress bar.

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
    ):
        if value is not None and not isinstance(value, kind):
            raise ConfigError(key, f"{value!r} given; it must be of type {kind.__name__}, such as {example}")
    if regularizer is not None and beta is None:
        raise ConfigError("beta", f"missing; {regularizer} is weighted by it: give a number > 0, or 0 to switch it off")
    if dtype not in ("float32", "float64"):
        raise ConfigError("dtype", f"{dtype!r} given; it can be 'float32' or 'float64'")
    problem = from_client_data(
        model, clients, seed=seed, loss=loss, test=test, regularizer=regularizer, beta=beta or 0.0, weighting=weighting
    )
    trace = _Trace()
    with no_autocast():
        simulator = Simulator(
            problem,
            network,
            algorithm or Depositum(),
            period=period,
            batch_size=batch_size,
            settings=EngineSettings(device, dtype, precision),
        )
        loop = Loop(
            simulator,
            steps,
            evaluate_every=evaluate_every,
            checkpoint_every=max(1, evaluate_every),
            metrics=metrics,
            callbacks=[trace, *([ProgressBar()] if progress else []), *callbacks],
        )
        snapshot = loop.run()
    row, buffers = averaged(snapshot, seed)
    return FitResult(
        model=problem.averaged_model(row, buffers),
        history=loop.history.frame,
        consensus=pd.Series(trace.errors, name="consensus_x", dtype="float64").rename_axis("iteration"),
        state={k: v for k, v in snapshot.tensors.items() if not k.startswith("buffer.")},
        diverged=snapshot.diverged.get(seed),
    )
