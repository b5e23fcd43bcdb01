"""Run a configuration as one process among many: begin, resume or extend what the folder holds.

Every rank does the same here. Whatever one of them cannot do is found before work, and ends all. One rank for each
folder writes what exists once (`config.toml`, `history.csv`, the models); each rank writes its clients' checkpoints and
its log.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from depositum import data, models
from depositum.engines import Callback, Engine, Loop, Snapshot
from depositum.engines.distributed import ClusterCommunicator, Placement, ProcessSettings
from depositum.engines.distributed.torch_communicator import join
from depositum.errors import DataError, DepositumError, PeerLost
from depositum.launch import Launch
from depositum.metrics import History
from depositum.networks import MIXINGS, TOPOLOGIES
from depositum.runs import checkpoint, client_checkpoints
from depositum.runs.common_checkpoint import find_common_checkpoint
from depositum.runs.config_file import load
from depositum.runs.config_keys import config_keys
from depositum.runs.execution import RunResult, check_fits, is_finished, make_loop, stopped_early, why_finished
from depositum.runs.folder import RunFolder
from depositum.runs.folder_lock import exclusive
from depositum.runs.folder_writers import is_writer
from depositum.runs.given_problem import is_in_memory
from depositum.runs.participants import PARTICIPANTS, describe_participants
from depositum.runs.problems import build_engine
from depositum.runs.resolved import ResolvedConfig
from depositum.runs.writing import RankLog, RankWriter


@config_keys()
def join_run(path: Path, overrides: Sequence[str] = ()) -> tuple[ClusterCommunicator, ResolvedConfig]:
    """Join the other processes, and agree with them on the configuration."""
    launch = Launch.from_environment()
    spec, mistake = None, None
    try:
        spec = load(path, overrides, held=lambda n: Placement(n, launch.size).clients(launch.rank))
    except DepositumError as error:
        mistake = error  # reported when the other ranks can be told
    settings = spec.config.processes.settings() if spec else ProcessSettings()
    communicator = join(settings.timeout, spec.config.run.device if spec else "cpu")
    with communicator.all_or_none("read the configuration"):
        if isinstance(mistake, DataError):
            raise DataError(f"{mistake}; this is {communicator.names[communicator.rank]}")
        if mistake is not None:
            raise mistake
    assert spec is not None
    check_agreement(communicator, spec)
    return communicator, spec


@config_keys()
def check_agreement(communicator: ClusterCommunicator, spec: ResolvedConfig) -> None:
    """Refuse, on all ranks, configurations that differ between them; a collective call."""
    communicator.check_same(_compared(spec))


@config_keys()
def execute_distributed(
    spec: ResolvedConfig,
    communicator: ClusterCommunicator,
    out: Path | None,
    *,
    callbacks: Sequence[Callback] = (),
    say: Callable[[str], None] = lambda _: None,
    on_loop: Callable[[Loop], None] = lambda _: None,
    before_leaving: Callable[[Engine, Snapshot], None] = lambda *_: None,
) -> RunResult:
    """Run an agreed configuration in the folder `out`, resuming from the last checkpoint that all ranks have.

    Parameters
    ----------
    out
        One folder that all ranks share, or one per host under the same name; None for a run that is held in memory
        alone.
    callbacks, say
        As for `execute`; what is said is said by rank 0.
    on_loop
        Called with each rank's loop before it runs.
    before_leaving
        Called on each rank with its engine and the last snapshot while processes can still communicate.
    """
    if out is None:
        engine = build_engine([spec], communicator=communicator)
        history = History()
        with communicator.all_or_none("check the measures"):
            loop = make_loop(spec, engine, None, history, callbacks)
        on_loop(loop)
        final = loop.run()
        before_leaving(engine, final)
        communicator.leave()
        finished = is_finished(final, spec.config.run.steps)
        return RunResult(None, final, history, finished, list(final.diverged.values()), stop_reason=loop.stop_reason)
    folder = RunFolder(out)
    with ExitStack() as locks:
        with communicator.all_or_none("check the folder"):
            if communicator.rank == 0:
                locks.enter_context(exclusive(out))
            folder.check(spec, may_differ=_local_files(spec) if communicator.rank else ())
        return _execute(spec, communicator, folder, locks, callbacks, say, on_loop, before_leaving)


def _execute(
    spec: ResolvedConfig,
    communicator: ClusterCommunicator,
    folder: RunFolder,
    locks: ExitStack,
    callbacks: Sequence[Callback],
    say: Callable[[str], None],
    on_loop: Callable[[Loop], None],
    before_leaving: Callable[[Engine, Snapshot], None],
) -> RunResult:
    out, first = folder.path, communicator.rank == 0
    say = say if first else lambda _: None
    if data.needs_tokenizer(spec.config.problem.dataset):
        say("reading the language model and its texts")
    engine = build_engine([spec], communicator=communicator)
    clients = engine.clients
    latest = find_common_checkpoint(communicator, out, spec.config.problem.clients, clients)
    snapshot = latest.snapshot if latest else None
    done = snapshot is not None and is_finished(snapshot, spec.config.run.steps)
    with communicator.all_or_none("read the checkpoint"):
        if latest is not None:
            check_fits(latest, engine.problem, engine.oracle.rows)
    writes = is_writer(communicator, folder)
    history = _prepare(spec, communicator, folder, locks, snapshot, writes, done)
    if snapshot is not None and done:
        say(f"{out}: nothing to do, {why_finished(snapshot)}")
        result = RunResult(out, snapshot, history, True, list(snapshot.diverged.values()), writes=writes)
        before_leaving(engine, snapshot)
        return _leave(communicator, result, engine)
    log = RankLog(out / "logs" / f"rank-{communicator.rank}.log")
    log.log(f"{communicator.names[communicator.rank]}, one of {communicator.size} processes, on {communicator.device}")
    if snapshot is not None:
        say(f"{out}: resuming from iteration {snapshot.t}")
        if latest is not None and latest.problem is not None:
            say(latest.problem)
            log.log(latest.problem)
    writers = [RankWriter(folder, communicator, clients, writes), log]
    with communicator.all_or_none("check the measures"):
        loop = make_loop(spec, engine, snapshot, history, [*writers, *callbacks], out if writes else None)
    on_loop(loop)
    try:
        final = loop.run()
        before_leaving(engine, final)
        finished = is_finished(final, spec.config.run.steps)
        if loop.stop_reason:
            say(stopped_early(loop))
        diverged, reason = list(final.diverged.values()), loop.stop_reason
        result = RunResult(out, final, history, finished, diverged, writes=writes, stop_reason=reason)
        return _leave(communicator, result, engine)
    except DepositumError as error:
        log.log(str(error))
        if not isinstance(error, PeerLost):
            communicator.leave_reason(str(error))
        raise


def _prepare(
    spec: ResolvedConfig,
    communicator: ClusterCommunicator,
    folder: RunFolder,
    locks: ExitStack,
    snapshot: Snapshot | None,
    writes: bool,
    done: bool,
) -> History:
    """Prepare the folder of every host that has its own; return the history, which is the same on all ranks.

    A host may have missed a part of the history (it had no folder of its own before, or lost it), so that of rank 0's
    host is copied first.
    """
    first, history = communicator.rank == 0, History()
    tables = communicator.exchange_values(folder.tables() if first else None, "prepare the folder")[0]
    with communicator.all_or_none("prepare the folder"):
        if writes and not first:
            locks.enter_context(exclusive(folder.path))
            folder.copy_tables(tables)
        if writes and not done:
            own = () if first else _local_files(spec)
            history = folder.begin(spec, snapshot.t if snapshot else None, traced=False, may_differ=own)
            folder.write_text(PARTICIPANTS, describe_participants(spec.network, None))
        elif writes:
            history = folder.history()
    return History(communicator.exchange_values(history.records if first else None, "prepare the folder")[0])


def _compared(spec: ResolvedConfig) -> dict[str, Any]:
    """What must be the same on all ranks; files of clients, graphs, weights and language models may lie anywhere.

    What these files hold, except those of clients, is compared when it has been read; so are models and networks that
    the user passed.
    """
    table = {section: dict(keys) for section, keys in spec.table.items()}
    for section in ("problem", "network"):
        for key, value in table.get(section, {}).items():
            if is_in_memory(value):
                table[section][key] = "in memory"
    for section, key in (name.split(".") for name in _local_files(spec)):
        if key == "model":  # the other arguments of a language model are compared
            (arguments,) = table[section][key].values()
            table[section][key] = {k: "a file" if Path(str(v)).is_absolute() else v for k, v in arguments.items()}
        else:
            table[section][key] = "a file"
    return table


def _local_files(spec: ResolvedConfig) -> list[str]:
    """The keys that name files which each rank may have at a path of its own."""
    table, found = spec.table, []
    if spec.client_files is not None or spec.given is not None:
        found.append("problem.dataset")
    for key, registry in (("topology", TOPOLOGIES), ("mixing", MIXINGS)):
        given = table.get("network", {}).get(key)
        if isinstance(given, str) and given not in registry:
            found.append(f"network.{key}")
    model = table["problem"]["model"]
    reads_files = isinstance(model, dict) and models.MODELS.attribute(model, "path_arguments", ())
    return [*found, "problem.model"] if reads_files else found


def _complete_checkpoints(out: Path) -> dict[int, Path]:
    """Checkpoints of all clients in one file, by iteration."""
    return checkpoint.by_iteration((out / checkpoint.PREVIOUS, out / checkpoint.CURRENT))


def _leave(communicator: ClusterCommunicator, result: RunResult, engine: Engine) -> RunResult:
    """Leave the other processes; of a finished run, rank 0 then combines the checkpoints if it has all clients'."""
    everyone, t, folder = range(engine.problem.n), result.snapshot.t, result.folder
    assert folder is not None
    communicator.leave()
    missing = communicator.rank == 0 and result.finished and t not in _complete_checkpoints(folder)
    if missing and t in client_checkpoints.iterations(folder, everyone):
        checkpoint.write(folder / checkpoint.CURRENT, client_checkpoints.read(folder, everyone, t))
    return result
