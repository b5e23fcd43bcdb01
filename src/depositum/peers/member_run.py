"""The run of one member of a federation: the same assembly as any run, over the connections with its neighbours.

A member that is started again continues by itself. Its folder has what every run folder has (configuration, history,
models), its checkpoints in `clients/`, a log, its status, and the accounts of what was sent and received.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from depositum.data import encoding_digest
from depositum.engines import Callback, Engine, Loop, Snapshot
from depositum.engines.distributed import Facts, absent_part, restrict_data
from depositum.errors import ConfigError, DepositumError, RunError
from depositum.federation.agreement import Agreement
from depositum.federation.member_config import resolve_agreement
from depositum.federation.member_folder import MemberFolder
from depositum.interrupt import Interrupted
from depositum.metrics import OWN, History
from depositum.models import frozen_digest
from depositum.peers.member_checkpoints import MemberCheckpoints
from depositum.peers.peer_communicator import PeerCommunicator
from depositum.peers.resumption import START
from depositum.peers.status_writer import StatusWriter
from depositum.problem import Problem
from depositum.runs.config_keys import config_keys
from depositum.runs.execution import RunResult, is_finished, make_loop, stopped_early, why_finished
from depositum.runs.folder import RunFolder
from depositum.runs.folder_lock import exclusive
from depositum.runs.problems import build_own_problem, engine_of
from depositum.runs.resolved import ResolvedConfig
from depositum.runs.writing import RankLog, write_models

#: A file in the run folder that exists once no neighbour can need this member any more.
LEFT = "left"


@contextmanager
def _own_run_folder() -> Iterator[None]:
    """In errors about the run folder, advise what a member can do: it is always the one in the member's folder."""
    try:
        yield
    except RunError as error:
        text = str(error).removeprefix("--out ").replace("wait for it, or choose another folder", "wait for it")
        raise type(error)(
            text.replace("choose another folder", "move it away to begin anew, as all members must")
        ) from None


@_own_run_folder()
@config_keys()
def run_member(
    folder: MemberFolder,
    *,
    data: Path | Problem | None = None,
    overrides: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    say: Callable[[str], None] = lambda _: None,
    on_loop: Callable[[Loop], None] = lambda _: None,
    listen: str | None = None,
) -> RunResult:
    """Train as one member of a federation, from wherever this member's folder has come.

    Parameters
    ----------
    data
        The member's data: a file, or a problem with its samples (and, if it has those of all members, without them).
    overrides
        `key=value` for what each member chooses for itself.
    callbacks
        Called at the moments of the loop.
    say
        Called with one line for each thing that the user should know.
    on_loop
        Called with the loop before it runs, so that it can be asked to stop: this member then stops alone, and the
        others wait for it.
    listen
        Where this member listens, `host:port`, if that is not the address in the agreement: behind a forwarded port.
    """
    spec = _resolved(folder, data, overrides)
    run_folder = RunFolder(folder.runs)
    run_folder.check(spec)
    with exclusive(folder.runs):
        run_folder.write_config(spec)
        with exclusive(folder.runs):  # now that the folder exists
            return _MemberRun(folder, spec, run_folder, callbacks, say, on_loop, listen).run()


def _resolved(folder: MemberFolder, data: Path | Problem | None, overrides: Sequence[str]) -> ResolvedConfig:
    own_data = data if isinstance(data, Path) else None
    spec = resolve_agreement(folder.agreement, folder.name, own_data, folder.path, overrides)
    return replace(spec, given=data) if isinstance(data, Problem) else spec


class _MemberRun:
    """One session of a member's run."""

    def __init__(
        self,
        folder: MemberFolder,
        spec: ResolvedConfig,
        run_folder: RunFolder,
        callbacks: Sequence[Callback],
        say: Callable[[str], None],
        on_loop: Callable[[Loop], None],
        listen: str | None,
    ) -> None:
        self.folder, self.spec, self.run_folder = folder, spec, run_folder
        self.callbacks, self.say, self.on_loop = callbacks, say, on_loop
        self.log = RankLog(folder.runs / "logs" / f"{folder.name}.log")
        self.loop: Loop | None = None
        device = spec.engine_settings.resolve_device()
        self.communicator = PeerCommunicator(folder, device, self.log.log, self._stops, listen)
        self.checkpoints = MemberCheckpoints(
            folder.runs, self.communicator.rank, folder.agreement.neighbours(folder.name)
        )

    def _stops(self) -> bool:
        """Whether the user wants this member to stop, which it then does also while it waits."""
        return self.loop is not None and self.loop.stop_requested and not self.loop.stop_reason

    def run(self) -> RunResult:
        """Begin, or continue, and train to the end."""
        spec, communicator = self.spec, self.communicator
        for line in self.checkpoints.damage:
            self._tell(line)
        newest = self.checkpoints.read(self.checkpoints.candidates[0].t)
        if newest is not None and is_finished(newest, spec.config.run.steps) and (self.folder.runs / LEFT).exists():
            self.say(f"{self.folder.runs}: nothing to do, {why_finished(newest)}")
            communicator.close()
            return self._result(newest, self.run_folder.history())
        status = StatusWriter(communicator, spec.config.run.steps, spec.config.run.period, self._tell)
        try:
            with communicator.closing():
                result = self._train(status)
        except Interrupted:
            status.end("stopped", "stopped by the user; run the same command to continue")
            if self.loop is None:
                raise
            return self._result(self.loop.snapshot, self.loop.history)
        except DepositumError as error:
            self.log.log(str(error))
            status.end("failed", str(error))
            raise
        except BaseException as error:
            status.end("failed", type(error).__name__)
            raise
        status.end("finished" if result.finished or result.stop_reason else "stopped")
        return result

    def _train(self, status: StatusWriter) -> RunResult:
        spec, communicator = self.spec, self.communicator
        problem = _own_problem(spec, self.folder.agreement, communicator.rank)
        communicator.compare("data", lambda: _facts(problem), _check_data)
        engine = engine_of([spec], problem, communicator=communicator)
        row = len(problem.trials) * problem.layout.size * engine.dtype.itemsize
        communicator.largest = 2 * row + (1 << 20)
        loop = self._loop(engine, None, History(), [])  # refuses measures that cannot be evaluated
        chosen = communicator.connect(self.checkpoints.candidates)
        snapshot = self.checkpoints.read(chosen.t)
        if snapshot is not None:
            self._tell(f"continuing from iteration {snapshot.t}")
        own = OWN if engine.sharing == "none" else ()
        history = self.run_folder.begin(spec, None if chosen.t == START else chosen.t, traced=False, measures=own)
        (self.folder.runs / LEFT).unlink(missing_ok=True)
        communicator.start(chosen, self.checkpoints.covered)
        writer = MemberWriter(self.run_folder, communicator, self.checkpoints)
        loop = self.loop = self._loop(engine, snapshot, history, [writer, self.log, status])
        self.on_loop(loop)
        final = snapshot if snapshot is not None and is_finished(snapshot, spec.config.run.steps) else loop.run()
        finished = is_finished(final, spec.config.run.steps)
        if not finished and not loop.stop_reason:
            communicator.close()
            return self._result(final, history)
        if loop.stop_reason:
            self._tell(stopped_early(loop))
        self._write_models(engine, final)
        communicator.ended()
        if communicator.finish():
            (self.folder.runs / LEFT).touch()
        communicator.close()
        return self._result(final, history, loop.stop_reason)

    def _loop(self, engine: Engine, snapshot: Snapshot | None, history: History, own: Sequence[Callback]) -> Loop:
        return make_loop(self.spec, engine, snapshot, history, [*own, *self.callbacks], self.folder.runs)

    def _write_models(self, engine: Engine, final: Snapshot) -> None:
        """The averaged model; where nothing is shared, this member's own."""
        problem, clients, steps = engine.problem, engine.clients, self.spec.config.run.steps
        if engine.sharing == "none":
            for seed in final.seeds:
                rows = final.rows_of([seed])
                buffers = {k.removeprefix("buffer."): v[0] for k, v in rows.items() if k.startswith("buffer.")}
                own = problem.averaged_model(rows["x"][0], buffers)
                self.run_folder.write_model(own, seed, first=seed == final.seeds[0])
        else:
            write_models(self.run_folder, final, problem, self.communicator, steps, clients)

    def _result(self, snapshot: Snapshot, history: History, stop_reason: str = "") -> RunResult:
        finished, diverged = is_finished(snapshot, self.spec.config.run.steps), list(snapshot.diverged.values())
        return RunResult(self.folder.runs, snapshot, history, finished, diverged, stop_reason=stop_reason)

    def _tell(self, line: str) -> None:
        self.log.log(line)
        self.say(line)


class MemberWriter(Callback):
    """Writes a member's part of a run; what neighbours need to know of its checkpoints, they are told."""

    def __init__(self, folder: RunFolder, communicator: PeerCommunicator, checkpoints: MemberCheckpoints) -> None:
        self.folder, self.communicator, self.checkpoints = folder, communicator, checkpoints

    def on_evaluation(self, loop: Loop, records: list[dict[str, object]]) -> None:
        self.folder.append_history(records)

    def on_checkpoint(self, loop: Loop) -> None:
        on_schedule = loop.t % loop.checkpoint_every == 0 or loop.t == loop.steps or bool(loop.stop_reason)
        self.checkpoints.write(loop.snapshot, on_schedule or not loop.snapshot.live)
        self.communicator.saved(self.checkpoints.covered)


def _own_problem(spec: ResolvedConfig, agreement: Agreement, client: int) -> Problem:
    """The problem with this member's samples alone."""
    if spec.given is None:
        if spec.own_file is None:
            raise ConfigError("data", "not given; each member trains on its own data: --data FILE")
        return build_own_problem(spec, client, agreement.classes)
    given, n = spec.given, len(agreement.members)
    (trial,) = given.trials[:1]
    if given.n == 1 < n:
        parts = [trial.parts[0] if i == client else absent_part(1) for i in range(n)]
        given = replace(given, trials=(replace(trial, parts=parts),))
    elif given.n != n:
        raise ConfigError("data", f"of {given.n} clients given; the agreement has {n} members, and this is one")
    seeds = spec.config.run.seeds
    section = spec.config.problem
    trials = tuple(replace(given.trials[0], seed=seed) for seed in seeds)
    problem = replace(
        given, trials=trials, regularizer=spec.regularizer, beta=section.beta, weighting=section.weighting
    )
    return restrict_data(problem, [client])


def _facts(problem: Problem) -> Facts:
    """What members tell each other of their data: what a common model needs, and nothing about samples."""
    # Of texts, each member pads its own to the length of its longest one.
    texts = problem.loss.name == "tokens"
    return {
        "inputs": "tokens" if texts else f"{tuple(problem.train.inputs.shape[1:])} per sample",
        "targets": "real numbers" if problem.train.targets.is_floating_point() else "whole numbers",
        "encoding": encoding_digest(problem.class_names, problem.feature_names),
        "base": frozen_digest(problem.model),
    }


def _check_data(own: Facts, other: Facts, here: str, there: str) -> None:
    for key, value in own.items():
        if other[key] != value:
            problem = f"{key} are {value} at {here}, but {other[key]} at {there}"
            raise ConfigError("data", f"{problem}; all members need data of one form")
