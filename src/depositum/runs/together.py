"""Run a configuration as one process among many: begin, resume or extend what the folder holds.

Every rank does the same here. Whatever any of them cannot do is found before work, and ends all. Rank 0 writes what
there is one of (`config.toml`, `history.csv`, the models); each rank writes its clients' checkpoints and its log.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from depositum import data, models
from depositum.data import DATASETS, PUBLISHED
from depositum.engines import Callback, Loop
from depositum.engines.processes import Group, Placement, ProcessEngine, ProcessSettings, check_built, join, own_data
from depositum.engines.processes.group import Address
from depositum.errors import DataError, DepositumError, RunError
from depositum.metrics import History
from depositum.networks import MIXINGS, TOPOLOGIES
from depositum.problem import Problem
from depositum.runs import checkpoint, parts
from depositum.runs.build import build_problem
from depositum.runs.checkpoint import Latest
from depositum.runs.config import Config
from depositum.runs.execute import RunResult, check_fits, is_finished, tell_of_reading, why_finished, write_models
from depositum.runs.folder import RunFolder
from depositum.runs.lock import alone_in
from depositum.runs.log import RankLog
from depositum.runs.own_files import build_own_problem
from depositum.runs.reading import load

#: Seconds that fetching data may take.
FETCHING = 7200.0


def meet(path: Path, overrides: Sequence[str] = ()) -> tuple[Group, Config]:
    """Join the other processes, and agree with them on the configuration."""
    address = Address.from_environment()
    config, mistake = None, None
    try:
        config = load(path, overrides, held=lambda n: Placement(n, address.size).clients(address.rank))
    except DepositumError as error:
        mistake = error  # to be said when the others can hear it
    settings = config.process_settings() if config else ProcessSettings()
    group = join(settings.timeout, config.run.device if config else "cpu")
    with group.together("read the configuration"):
        if mistake is not None:
            raise mistake
    assert config is not None
    with group.together("compare the configurations"):
        group.check_alike(_compared(config))
    return group, config


def execute_together(
    config: Config,
    group: Group,
    out: Path,
    *,
    base: Path | None = None,
    callbacks: Sequence[Callback] = (),
    say: Callable[[str], None] = lambda _: None,
    on_loop: Callable[[Loop], None] = lambda _: None,
) -> RunResult:
    """Run an agreed configuration in the folder `out`, going on from the last checkpoint that all ranks have.

    Parameters
    ----------
    out
        One folder that all ranks share, or one per host under the same name.
    callbacks, say
        As for `execute`, of rank 0.
    on_loop
        Given each rank's loop before it runs.
    """
    folder = RunFolder(out)
    with ExitStack() as held:
        with group.together("look at the folder"):
            if group.rank == 0:
                held.enter_context(alone_in(out))
            folder.check(config, elsewhere=_elsewhere(config) if group.rank else ())
        return _execute(config, group, folder, base, callbacks, say, on_loop)


def _execute(
    config: Config,
    group: Group,
    folder: RunFolder,
    base: Path | None,
    callbacks: Sequence[Callback],
    say: Callable[[str], None],
    on_loop: Callable[[Loop], None],
) -> RunResult:
    out, first = folder.path, group.rank == 0
    say = say if first else lambda _: None
    tell_of_reading(config, say)
    engine = _build(config, group, base)
    clients = engine.clients
    latest = _agreed(group, out, config.problem.clients, clients)
    snapshot = latest.snapshot if latest else None
    with group.together("make the folder"):
        if latest is not None:
            check_fits(latest, engine.problem, engine.oracle.rows)
        done = snapshot is not None and is_finished(snapshot, config)
        history = folder.history() if first and done else History()
        if first and not done:
            history = folder.begin(config, snapshot.t if snapshot else None, traced=False)
        elif group.first_of_host and not done:
            folder.claim(config, by=f".rank-{group.rank}")
    if snapshot is not None and done:
        say(f"{out}: nothing to do, {why_finished(snapshot)}")
        return _ended(group, RunResult(out, snapshot, history, True, list(snapshot.diverged.values())), engine)
    log = RankLog(out / "logs" / f"rank-{group.rank}.log")
    log.say(f"{group.watch.names[group.rank]}, {group.rank + 1} of {group.size} processes, on {group.device}")
    if latest is not None and snapshot is not None:
        say(f"{out}: going on from iteration {snapshot.t}")
    loop = Loop(
        engine,
        config.run.steps,
        evaluate_every=config.run.evaluate_every,
        evaluate_from=config.run.evaluate_from,
        checkpoint_every=config.run.checkpoint_every,
        metrics=config.metrics.settings(),
        callbacks=[PartKeeper(folder, group, clients), log, *(callbacks if first else ())],
        snapshot=snapshot,
        history=history,
    )
    on_loop(loop)
    try:
        final = loop.run()
        finished = is_finished(final, config)
        return _ended(group, RunResult(out, final, history, finished, list(final.diverged.values())), engine)
    except DepositumError as error:
        log.say(str(error))
        raise


class PartKeeper(Callback):
    """Writes one rank's part of what happens into a run's folder."""

    def __init__(self, folder: RunFolder, group: Group, clients: Sequence[int]) -> None:
        self.folder, self.group, self.clients = folder, group, clients

    def on_evaluation(self, loop: Loop, records: list[dict[str, object]]) -> None:
        if self.group.rank == 0:
            self.folder.append_history(records)

    def on_checkpoint(self, loop: Loop) -> None:
        # The models first: a run whose last checkpoint is there is finished, and has them.
        write_models(self.folder, loop, write=self.group.rank == 0)
        parts.write(self.folder.path, loop.snapshot, self.clients)
        # Nobody begins the next before all have this one: what two files of a client hold, all clients then share.
        self.group.meet()


def _compared(config: Config) -> dict[str, Any]:
    """What must be the same on all ranks; files of clients, graphs, weights and language models may lie anywhere.

    What all of them but the first hold is compared when it has been read.
    """
    table = config.complete()
    for section, key in (name.split(".") for name in _elsewhere(config)):
        if key == "model":  # of a language model, the other settings stay
            (arguments,) = table[section][key].values()
            table[section][key] = {k: _place(v) for k, v in arguments.items()}
        else:
            table[section][key] = "a file"
    return table


def _elsewhere(config: Config) -> list[str]:
    """The keys by which files are named that each rank may have in a place of its own."""
    table, found = config.complete(), []
    if config.files_of_clients is not None:
        found.append("problem.dataset")
    for key, registry in (("topology", TOPOLOGIES), ("mixing", MIXINGS)):
        given = table.get("network", {}).get(key)
        if isinstance(given, str) and given not in registry:
            found.append(f"network.{key}")
    model = table["problem"]["model"]
    reads_files = isinstance(model, dict) and models.MODELS.attribute(model, "path_arguments", ())
    return [*found, "problem.model"] if reads_files else found


def _place(value: object) -> object:
    return "a file" if Path(str(value)).is_absolute() else value


def _build(config: Config, group: Group, base: Path | None) -> ProcessEngine:
    """The engine of this rank, ready to start."""
    held = Placement(config.problem.clients, group.size).clients(group.rank)
    with group.together("fetch the data", patience=FETCHING):
        spec = config.problem.dataset
        name = DATASETS.parse(spec, "problem.dataset").name if isinstance(spec, dict) or spec in DATASETS else ""
        if group.first_of_host and name in PUBLISHED:
            data.fetch(name)
    problem: Problem | None = None
    if config.files_of_clients is not None:
        problem = build_own_problem(config, group, held, base)
    with group.together("build the problem"):
        problem = problem or own_data(build_problem(config, base), held)
        network = config.make_network(base)
    check_built(group, problem, network)
    _check_bases(group, problem)
    with group.together("make the engine"):
        settings = config.process_settings()
        return ProcessEngine(
            problem,
            network,
            config.make_algorithm(),
            group,
            period=config.run.period,
            batch_size=config.run.batch_size,
            settings=config.engine_settings(),
            send=settings.send,
            evaluate=settings.evaluate,
        )


def _check_bases(group: Group, problem: Problem) -> None:
    """Refuse, on its own rank, a language model whose weights are not rank 0's."""
    digest = models.frozen_digest(problem.model)
    digests = group.tell(digest, "compare the models")
    with group.together("compare the models"):
        if digest != digests[0]:
            where = f"on {group.name(group.rank)} are not those on {group.name(0)}"
            raise DataError(f"problem.model.lora.base: the weights {where}; every process needs the same")


def _agreed(group: Group, out: Path, n: int, clients: range) -> Latest | None:
    """The newest checkpoint that all ranks have, of which this one reads its part; None if there is none."""
    with group.together("look for checkpoints"):
        whole = _whole(out)
        own = parts.iterations(out, clients)
    told = group.tell(sorted(own | set(whole)), "look for checkpoints")
    common: set[int] = set.intersection(*map(set, told))
    if not common:
        return None
    t = max(common)
    with group.together("read the checkpoint"):
        if t in own:
            parts.keep_only(out, clients, t)
            return Latest(parts.read(out, clients, t), out / parts.FOLDER)
        # All clients' rows in one file, as a simulator leaves them.
        return Latest(parts.of_clients(checkpoint.read(whole[t]), n, clients), whole[t])


def _whole(out: Path) -> dict[int, Path]:
    """Checkpoints of all clients in one file, by iteration."""
    found = {}
    for path in (out / checkpoint.PREVIOUS, out / checkpoint.CURRENT):
        if path.exists():
            try:
                found[checkpoint.iteration(path)] = path
            except RunError:
                continue
    return found


def _ended(group: Group, result: RunResult, engine: ProcessEngine) -> RunResult:
    """Leave the others; of a finished run, rank 0 then puts the state together if it has all clients' files."""
    everyone, t = range(engine.problem.n), result.snapshot.t
    group.leave()
    lacking = group.rank == 0 and result.finished and t not in _whole(result.folder)
    if lacking and t in parts.iterations(result.folder, everyone):
        checkpoint.write(result.folder / checkpoint.CURRENT, parts.read(result.folder, everyone, t))
    return result
