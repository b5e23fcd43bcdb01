"""`fit` as one member of a federation: the agreement decides what is trained, the call brings a model and data."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from depositum.engines import Callback
from depositum.errors import ConfigError, listing, renamed_keys, short_repr
from depositum.fitting.result import FitResult
from depositum.interrupt import Interrupted, StopOnSignal
from depositum.layout import Layout
from depositum.problem import Problem, from_client_data
from depositum.report.progress import ProgressBar
from depositum.runs import RunResult, tensor_file
from depositum.runs.folder import MODEL, seed_file_name
from depositum.validation import as_path

#: The arguments that a member chooses; all others are agreed.
OWN = (
    "model",
    "clients",
    "target",
    "loss",
    "federation",
    "device",
    "compile",
    "callbacks",
    "progress",
    "on_divergence",
)
EXPECTED = "the folder that `depositum federation accept` wrote"


def fit_member(
    function: Callable[..., FitResult],
    given: Mapping[str, Any],
    callbacks: Sequence[Callback],
    say: Callable[[str], None],
    stopped: AbstractContextManager[StopOnSignal | None],
) -> tuple[FitResult, str | None]:
    """Train as one member; return the result, and where it diverged.

    Parameters
    ----------
    function, given
        `fit`, and the arguments that it was called with.
    stopped
        What lets Ctrl-C stop the loop.
    """
    _check_arguments(function, given)
    path = as_path(given["federation"], "federation", EXPECTED)
    from depositum.federation.member_folder import MemberFolder  # needs the extra 'peer'
    from depositum.peers import run_member

    member = MemberFolder.open(path)
    problem = from_client_data(
        given["model"], _one_client(given["clients"]), target=given["target"], loss=given["loss"]
    )
    own = [f"run.{key}={given[key]}" for key in ("device", "compile") if given[key] != "auto"]
    called = [*([ProgressBar()] if given["progress"] else []), *callbacks]
    try:
        with stopped as stop, renamed_keys(lambda key: "clients" if key == "data" else key):
            attach = stop.attach if stop else _ignore
            ended = run_member(member, data=problem, overrides=own, callbacks=called, say=say, on_loop=attach)
    except Interrupted:
        raise KeyboardInterrupt from None
    return _result(ended, problem), str(ended.diverged[0]) if ended.diverged else None


def _check_arguments(function: Callable[..., FitResult], given: Mapping[str, Any]) -> None:
    """Refuse what all members have agreed on, even where it is what they agreed."""
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in OWN and given[name] is not parameter.default and given[name] != parameter.default:
            problem = f"{short_repr(given[name])} given beside federation, whose agreement decides it"
            raise ConfigError(name, f"{problem}; a member gives {listing(OWN)}")


def _one_client(clients: Any) -> Any:
    """The data of one client as a list: a pair, a table, the path of one, a dataset, or a list of one of these."""
    is_pair = isinstance(clients, tuple) and len(clients) == 2 and not isinstance(clients[0], tuple | list)
    if is_pair or not isinstance(clients, list | tuple):
        return [clients]
    if len(clients) != 1:
        raise ConfigError("clients", f"the data of {len(clients)} clients given; a member has its own only")
    return list(clients)


def _result(ended: RunResult, problem: Problem) -> FitResult:
    """The result with the averaged model, which the members computed together; before, with this member's own."""
    import pandas as pd  # heavy

    averages: dict[int, tuple[Tensor, dict[str, Tensor]]] = {}
    assert ended.folder is not None
    for seed in ended.snapshot.seeds:
        path = ended.folder / seed_file_name(MODEL, seed, seed == ended.snapshot.seeds[0])
        if ended.finished and path.exists():
            tensors, _ = tensor_file.read(path)
            names = Layout.of(problem.model).names
            buffers = {name: z for name, z in tensors.items() if name not in names}
            averages[seed] = Layout.of(problem.model).row({name: tensors[name] for name in names}), buffers
    return FitResult(
        history=ended.history.frame,
        consensus=pd.Series(dtype="float64"),
        snapshot=ended.snapshot,
        finished=ended.finished,
        folder=ended.folder,
        _architecture=lambda: problem.model,
        _problem=lambda: problem,
        _averages=averages,
    )


def _ignore(_: object) -> None:
    pass
