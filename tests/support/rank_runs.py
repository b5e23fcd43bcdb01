"""What ranks do in tests of complete runs: the command line or `fit`, as torchrun would start it."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import depositum as dp
from depositum.engines import Callback
from depositum.engines.distributed import ProcessSettings, communicator
from depositum.runs import checkpoint, distributed_run
from tests.support.small_runs import CommandResult, cli

Array = np.ndarray[Any, Any]


def run(*arguments: str) -> CommandResult:
    """`depositum run`: its output and exit code."""
    return cli("run", *arguments)


def run_with_arguments(common: list[str], own: list[str]) -> CommandResult:
    """`depositum run` with the arguments of all ranks and then those of this rank."""
    return cli("run", *common, *own)


def run_on_own_host(common: list[str], own: list[str]) -> CommandResult:
    """`depositum run` as the only process of its host."""
    os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    return cli("run", *common, *own)


def run_watching_pickles(*arguments: str) -> tuple[CommandResult, list[str]]:
    """`depositum run` by the four variables alone, and every name that a pickle looked up meanwhile."""
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        del os.environ[name]
    found: list[str] = []
    sys.addaudithook(lambda event, names: found.append(str(names)) if event == "pickle.find_class" else None)
    return cli("run", *arguments), found


def run_slowly(pause: str, *arguments: str) -> CommandResult:
    """`depositum run` of a model whose forward pass sleeps for `pause` seconds."""
    os.environ["PAUSE"] = pause
    return cli("run", *arguments)


def run_as_version(common: list[str], version: str) -> CommandResult:
    """`depositum run` with another version of the package."""
    communicator._versions = lambda: {"version of depositum": version}
    return cli("run", *common)


def run_without_peers(*arguments: str) -> CommandResult:
    """`depositum run` as the second of two processes, of which the first was not started."""
    os.environ.update(RANK="1", WORLD_SIZE="2")
    return cli("run", *arguments)


def run_until_killed(victim: int, moment: str, t: int, *arguments: str) -> CommandResult:
    """`depositum run`, in which one rank is killed by SIGKILL in a callback method at an iteration.

    `"on_write"` is during a checkpoint: the first of this rank's clients has been written, the second has not.
    """
    if int(os.environ["RANK"]) == victim:
        if moment == "on_write":
            _die_during_checkpoint(t)
        else:
            _die_at(moment, t)
    return cli("run", *arguments)


def _kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_at(moment: str, t: int) -> None:
    class Dying(distributed_run.RankLog):
        def _die(self, loop: Any, *_: object) -> None:
            if loop.t == t:
                _kill_itself()

    setattr(Dying, moment, Dying._die)
    distributed_run.RankLog = Dying  # type: ignore[misc]


def _die_during_checkpoint(t: int) -> None:
    write = checkpoint.write
    written: list[Path] = []

    def writing(path: Path, snapshot: Any) -> None:
        if snapshot.t == t:
            written.append(path)
            if len(written) == 2:
                _kill_itself()
        write(path, snapshot)

    checkpoint.write = writing  # type: ignore[attr-defined]


# fit


def client_data(client: int) -> tuple[Array, Array]:
    """The samples of one client; clients have unequal numbers of them."""
    rng = np.random.default_rng(client)
    size = 20 + 5 * client
    labels = rng.integers(0, 3, size)
    return rng.normal(size=(size, 4)) + labels[:, None], labels


def small_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))


def fit_arguments(n: int) -> dict[str, Any]:
    """Arguments of `dp.fit` for n clients."""
    return {
        "network": dp.ring(n),
        "regularizer": dp.L1(),
        "beta": 1e-3,
        "algorithm": dp.Depositum(alpha=0.1),
        "period": 2,
        "batch_size": 8,
        "steps": 15,
        "evaluate_from": 3,
        "test": client_data(99),
        "weighting": "samples",
        "dtype": "float64",
        "device": "cpu",
        "progress": False,
    }


class StepCounter(Callback):
    def __init__(self) -> None:
        self.steps = 0

    def on_step(self, loop: Any) -> None:
        self.steps += 1


def fit(n: int, as_pair: bool, **changes: Any) -> dict[str, Any] | str:
    """`dp.fit` with the data of this process's clients, twice, since a script may call it repeatedly."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    share = n // size
    own = [client_data(i) for i in range(rank * share, (rank + 1) * share)]
    counter = StepCounter()
    given = {**fit_arguments(n), **changes, "processes": ProcessSettings(timeout=20)}
    try:
        for _ in range(2):
            result = dp.fit(small_model(), own[0] if as_pair else own, callbacks=[counter], **given)
    except dp.DepositumError as error:
        return f"{type(error).__name__}: {error}"
    return {
        "state": {k: v.numpy() for k, v in result.state.items()},
        "model": {k: v.numpy() for k, v in result.model.state_dict().items()},
        "history": result.history.drop(columns="seconds").to_dict("list"),
        "steps": counter.steps,
    }


def fit_with_changes(n: int, changes: dict[str, Any]) -> dict[str, Any] | str:
    """`dp.fit` with some arguments changed on this rank."""
    return fit(n, False, **changes)


def fraction(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """A measure that is not a mean over samples: the largest output of a correct sample over that of all."""
    correct = outputs.argmax(1) == targets
    return float(outputs.amax(1)[correct].amax() / outputs.amax())


def only_on_rank_0(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    raise RuntimeError("fails where it is evaluated")


MEASURES = {"fraction": fraction, "only_on_rank_0": only_on_rank_0}


def fit_with_callbacks(n: int, measure: str, monitor: str, **changes: Any) -> dict[str, Any] | str:
    """`dp.fit` with a user-defined measure, early stopping and the best model."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    share = n // size
    own = [client_data(i) for i in range(rank * share, (rank + 1) * share)]
    callbacks, arguments = stopping_arguments(n, measure, monitor, **changes)
    try:
        settings = ProcessSettings(timeout=20)
        result = dp.fit(small_model(), own, callbacks=list(callbacks), processes=settings, **arguments)
    except dp.DepositumError as error:
        return f"{type(error).__name__}: {error}"
    stopping, keep = callbacks
    kept = {k: v.numpy() for k, v in keep.model().state_dict().items()} if keep.best else {}
    return {
        "t": result.iterations,
        "measure": result.history[measure].tolist(),
        "stopped": (stopping.best_iteration, stopping.stopped_at),
        "best": {seed: (best.iteration, best.value) for seed, best in keep.best.items()},
        "kept": kept,
    }


def stopping_arguments(
    n: int, measure: str, monitor: str, **changes: Any
) -> tuple[tuple[dp.EarlyStopping, dp.KeepBest], dict[str, Any]]:
    """Callbacks, and the other arguments of `dp.fit`, of a run that stops before its last iteration."""
    callbacks = dp.EarlyStopping(monitor, patience=2, min_delta=0.5, mode="min"), dp.KeepBest(monitor, mode="min")
    given = {"steps": 60, "evaluate_every": 4, "evaluate_from": 0, "metrics": {measure: MEASURES[measure]}}
    return callbacks, {**fit_arguments(n), **given, **changes}


def fit_with_callbacks_and_changes(n: int, measure: str, monitor: str, changes: dict[str, Any]) -> dict[str, Any] | str:
    """`fit_with_callbacks` with some arguments changed."""
    return fit_with_callbacks(n, measure, monitor, **changes)
