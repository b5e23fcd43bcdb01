"""Groups of cells as jobs of a cluster, through submitit: on Slurm, or as processes of this machine to try it out.

A job runs cells in one simulator, in the cache that all jobs and the command share, and is nothing but that: a job that
is requeued, because its time was over, another job took its place or its host failed, resumes them from their last
checkpoints. submitit pickles jobs and their results in a folder of the user's on the cluster's own file system; nothing
comes from anyone else.
"""

import copy
import re
import time
from collections import deque
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from depositum.engines import Callback, Loop
from depositum.errors import ConfigError, RunError, listing, nearest
from depositum.experiments.cache import CellConfig
from depositum.runs.config_file import from_table
from depositum.toml_file import check_values, read_toml
from depositum.validation import describe_errors

Executor = Literal["slurm", "local"]
#: Seconds between two looks at the jobs, by executor.
LOOK: dict[str, float] = {"slurm": 5.0, "local": 0.2}
#: Options of sbatch that are set here, and the setting that they follow from, if any: a job is one process.
SET_HERE = {"time": "timeout_minutes", "gpus_per_node": "gpus", "cpus_per_task": "cpus"}
SET_HERE |= {"job_name": "", "nodes": "", "ntasks_per_node": ""}


class JobSettings(BaseModel):
    """How jobs are submitted: the file of `--parallel`.

    Attributes
    ----------
    executor
        `"slurm"`, or `"local"`: processes of this machine.
    folder
        Where submitit writes scripts, logs and pickled jobs; jobs must be able to read and write it.
    cells_per_job
        The most cells that share a job, and in it a simulator.
    jobs_at_once
        The most jobs that are queued or running.
    timeout_minutes
        The time of a job, after which it is requeued.
    requeues
        How often a job is requeued because its time was over.
    gpus, cpus
        Of each job.
    slurm
        Further options of `sbatch`, as `partition`, `account` or `mem`.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    executor: Executor = "slurm"
    folder: str = "runs/jobs"
    cells_per_job: int = Field(8, ge=1)
    jobs_at_once: int = Field(64, ge=1)
    timeout_minutes: int = Field(60, ge=1)
    requeues: int = Field(100, ge=0)
    gpus: Literal[0, 1] = 1
    cpus: int = Field(2, ge=1)
    slurm: dict[str, Any] = {}

    def make_executor(self) -> Any:
        """The executor of submitit; what it would refuse is refused here, in one line."""
        try:
            submitit = import_module("submitit")
        except ImportError:
            raise ConfigError("--parallel", "needs submitit; run: pip install 'depositum[slurm]'") from None
        if self.executor == "local" and self.slurm:
            raise ConfigError("slurm", "given with executor = 'local', which has no options of sbatch")
        try:
            submitit.core.utils.JobPaths.get_first_id_independent_folder(self.folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError("folder", f"{self.folder!r} given, which cannot be made ({error.strerror})") from None
        if self.executor == "local":
            executor = submitit.LocalExecutor(self.folder, max_num_timeout=self.requeues)
            executor.update_parameters(timeout_min=self.timeout_minutes, gpus_per_node=self.gpus)
            return executor
        known = sorted(submitit.SlurmExecutor._valid_parameters() - {*SET_HERE})
        for key in self.slurm:
            if setting := SET_HERE.get(key):
                raise ConfigError(f"slurm.{key}", f"given; use the setting {setting!r}, outside [slurm]")
            if key not in known:
                raise ConfigError(f"slurm.{key}", f"unknown key; it can be {listing(known)}{nearest(key, known)}")
        try:
            executor = submitit.SlurmExecutor(self.folder, max_num_timeout=self.requeues)
        except RuntimeError:
            raise ConfigError(
                "executor", "'slurm' given, but this machine has no 'srun'; start the command on the cluster"
            ) from None
        gpus = {"gpus_per_node": self.gpus} if self.gpus else {}
        executor.update_parameters(
            job_name="depositum", time=self.timeout_minutes, cpus_per_task=self.cpus, **gpus, **self.slurm
        )
        return executor


def read_job_settings(path: Path) -> JobSettings:
    """The settings in a file; whatever is wrong with them is one line, before any work."""
    table = read_toml(path)
    check_values(table)
    try:
        settings = JobSettings.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        key, known = ".".join(map(str, first["loc"])), list(JobSettings.model_fields)
        if first["type"] == "extra_forbidden":
            problem = f"unknown key; it can be {listing(known)}{nearest(key, known)}"
        elif key == "executor":
            given, choices = str(first["input"]), get_args(Executor)
            problem = f"{first['input']!r} given; it can be {listing(choices)}{nearest(given, choices)}"
        else:
            problem = describe_errors([first])
        raise ConfigError(f"{path}: {key}", problem) from None
    try:
        settings.make_executor()
    except ConfigError as error:
        raise ConfigError(error.key if error.key == "--parallel" else f"{path}: {error.key}", error.problem) from None
    return settings


class CellJob:
    """Cells that one job runs, as plain tables: it can be pickled, and run again wherever it was stopped."""

    def __init__(self, cells: Sequence[CellConfig], store: Path, trace: bool) -> None:
        self.tables = [(cell.spec.table, cell.spec.base.absolute()) for cell in cells]
        self.store, self.trace = store.absolute(), trace

    def __call__(self) -> list[str]:
        """Run the cells, or what remains of them; return what the user should know."""
        from depositum.experiments.runner import run_cells

        log = JobLog()
        cells = [CellConfig(from_table(copy.deepcopy(table), base)) for table, base in self.tables]
        run_cells(cells, self.store, self.trace, log)
        return log.messages

    def checkpoint(self) -> Any:
        """What submitit requeues."""
        return import_module("submitit").helpers.DelayedSubmission(self)


class JobLog:
    """Observes the cells of a job: what happens is printed, which goes to the job's log."""

    def __init__(self) -> None:
        self.callback: Callback = _PrintedStart()
        self.messages: list[str] = []

    def begin(self, title: str, work: float) -> None:
        print(title, flush=True)

    def group(self, name: str, cells: int, work: float) -> None:
        print(f"{name}: {cells} cells", flush=True)

    def attach(self, loop: Loop) -> None:
        pass

    def message(self, line: str) -> None:
        print(line, flush=True)
        self.messages.append(line)

    def end(self) -> None:
        pass

    def stopped(self) -> bool:
        return False


class _PrintedStart(Callback):
    def on_start(self, loop: Loop) -> None:
        print(f"iteration {loop.t} of {loop.steps}", flush=True)


class JobObserver(Protocol):
    """What is told about jobs, and can stop them."""

    def message(self, line: str) -> None: ...

    def stopped(self) -> bool: ...


def run_jobs(settings: JobSettings, jobs: Sequence[CellJob], observer: JobObserver) -> bool:
    """Submit jobs and wait for all; return whether that was so, not if asked to stop, which cancels what is left.

    Jobs that fail are reported in one line when the others have ended. If one cannot be submitted, because the cluster
    limits them perhaps, it is submitted again when another has ended; if there is no other, that is an error.
    """
    executor = settings.make_executor()
    waiting = deque(jobs)
    running: list[Any] = []
    failed: list[str] = []
    most, reported = settings.jobs_at_once, ""
    while waiting or running:
        if observer.stopped():
            for job in running:
                job.cancel(check=False)
            return False
        while waiting and len(running) < most:
            try:
                running.append(executor.submit(waiting[0]))
            except Exception as refusal:  # of the scheduler or the file system
                reason = f"a job could not be submitted: {_reason(refusal)}"
                if not running:
                    raise RunError(f"{reason}; run the same command to resume") from None
                if reason != reported:
                    observer.message(f"{reason}; trying again when one of {len(running)} has ended")
                most, reported = len(running), reason
                break
            waiting.popleft()
        for job in [job for job in running if job.done()]:
            running.remove(job)
            most = settings.jobs_at_once
            error = job.exception()
            if error is None:
                for line in job.result():
                    observer.message(line)
            else:
                failed.append(f"job {job.job_id}: {_reason(error)} (log: {job.paths.stderr})")
            observer.message(f"{len(jobs) - len(waiting) - len(running)} of {len(jobs)} jobs have ended")
        time.sleep(LOOK[settings.executor])
    if failed:
        raise RunError(f"{len(failed)} of {len(jobs)} jobs failed; run the same command to resume: {failed[0]}")
    return True


def _reason(error: BaseException) -> str:
    """What happened, in one line, of an error of submitit's: a job's traceback or state, or what a program printed.

    submitit puts a traceback between lines of dashes, and where the logs are after it.
    """
    text = str(error)
    if lost := re.search(r"has not produced any output \(state: .*\)", text):
        return f"it {lost[0]}"
    parts = re.split(r"^-{10,}$", text, flags=re.MULTILINE)
    lines = [line.strip() for line in parts[1 if len(parts) == 3 else -1].splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
