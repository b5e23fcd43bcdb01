"""Sweeps as jobs of a cluster, by submitit's local executor: the results of a sweep in one process."""

import os
import pickle
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from depositum import experiments
from depositum.errors import ConfigError, DataError, RunError
from depositum.experiments import SweepOptions, cache
from depositum.experiments.cache import CellConfig
from depositum.experiments.jobs import CellJob, JobLog, JobSettings, read_job_settings, run_jobs
from depositum.experiments.runner import run_cells
from depositum.runs import folder_lock
from tests.support.small_experiments import Recorder, read_experiment, run_small_experiment, small

pytest.importorskip("submitit")

#: A measure whose process is asked to leave, as by a scheduler, when it is evaluated after the first checkpoint.
PREEMPTED = """
import os
from pathlib import Path
from submitit.core.job_environment import JobEnvironment

def preempted(outputs, targets):
    marker = Path(__file__).with_suffix(".preempted")
    if not marker.exists() and list(Path(__file__).parent.rglob("state.safetensors")):
        marker.touch()
        os.kill(os.getpid(), JobEnvironment._usr_sig())
    return 0.0
"""


def cells_of(table: dict[str, Any]) -> list[CellConfig]:
    return [cell.checked for cell in experiments.make_plan(read_experiment(table), SweepOptions()).cells]


def curves(store: Path, cells: list[CellConfig]) -> list[Any]:
    """The histories of cells, without times."""
    found = [cache.find_exact(store, cell) for cell in cells]
    assert all(cell is not None for cell in found)
    return [cell.history.drop(columns="seconds").to_csv() for cell in found if cell is not None]


@pytest.mark.slow
def test_a_sweep_of_jobs_has_the_results_of_one_process(tmp_path: Path) -> None:
    """Two jobs, each with the cells that share a simulator; what is in the cache is not run again."""
    settings = JobSettings(executor="local", folder=str(tmp_path / "jobs"), gpus=0, jobs_at_once=2)
    plan = experiments.make_plan(read_experiment(small()), SweepOptions())
    recorder = Recorder()
    experiments.run_experiment(plan, tmp_path / "jobs-store", recorder, settings)
    assert recorder.messages == ["1 of 2 jobs have ended", "2 of 2 jobs have ended"]
    run_small_experiment(small(), tmp_path / "store")
    cells = [cell.checked for cell in plan.cells]
    assert curves(tmp_path / "jobs-store", cells) == curves(tmp_path / "store", cells)
    again = Recorder()
    experiments.run_experiment(plan, tmp_path / "jobs-store", again, settings)
    assert again.messages == []


@pytest.mark.slow
def test_a_job_that_is_requeued_resumes_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the results of a run that was never stopped; it continues from its checkpoint, not from the start."""
    (tmp_path / "preempting.py").write_text(PREEMPTED)
    monkeypatch.chdir(tmp_path)
    table = small()
    table["base"]["metrics"] = {"functions": {"zero": "preempting:preempted"}}
    cells, store = cells_of(table)[:1], tmp_path / "store"
    settings = JobSettings(executor="local", folder=str(tmp_path / "jobs"), gpus=0)
    assert run_jobs(settings, [CellJob(cells, store, False)], Recorder())
    assert (tmp_path / "preempting.preempted").exists()
    (log,) = (tmp_path / "jobs").glob("*.out")
    assert "iteration 5 of 12" in log.read_text()
    run_cells(cells, tmp_path / "other", False, JobLog())
    assert curves(store, cells) == curves(tmp_path / "other", cells)


def test_a_job_is_plain_data_that_can_be_run_again(tmp_path: Path) -> None:
    """Its cells have the hashes of the sweep's; once they are in the cache, nothing is done."""
    cells = cells_of(small())[:2]
    job: CellJob = pickle.loads(pickle.dumps(CellJob(cells, tmp_path, False)))
    assert job() == []
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("cell.json")}
    assert len(times) == 2
    assert {path.parent for path in times} == {cell.folder(tmp_path) for cell in cells}
    assert job.checkpoint().result() == []
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_a_cell_that_another_process_is_running_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if it is run twice, or refused."""
    cells, log = cells_of(small())[:1], JobLog()
    folder = cells[0].folder(tmp_path)
    folder.mkdir(parents=True)
    waits = threading.Event()
    monkeypatch.setattr(log, "message", lambda line: waits.set())
    with folder_lock.exclusive(folder):
        descriptor = folder_lock._locked.pop(folder.resolve())  # as if another process held it
        runner = threading.Thread(target=run_cells, args=(cells, tmp_path, False, log))
        runner.start()
        assert waits.wait(60)
        assert not (folder / "config.toml").exists()
        folder_lock._locked[folder.resolve()] = descriptor
    runner.join(60)
    assert cache.find_exact(tmp_path, cells[0]) is not None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('executer = "local"', "executer: unknown key; .*did you mean 'executor'"),
        ('executor = "slrum"', "executor: 'slrum' given; it can be 'slurm' or 'local'; did you mean 'slurm'"),
        ('executor = "local"\ngpus = 2', "gpus: 2 given; it must be 0 or 1"),
        ('executor = "local"\ncells_per_job = 0', "cells_per_job: 0 given; it must be a number ≥ 1"),
        ('executor = "local"\nslurm = {mem = "8GB"}', "slurm: given with executor = 'local'"),
        ('executor = "local"\nfolder = "jobs.toml"', "folder: 'jobs.toml' given, which cannot be made "),
        ("slurm = {time = 30}", "slurm.time: given; use the setting 'timeout_minutes', outside"),
        ("slurm = {particion = 'gpu'}", "slurm.particion: unknown key; .*did you mean 'partition'"),
    ],
)
def test_invalid_settings_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem) as caught:
        read_job_settings(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_slurm_is_needed_on_this_machine_and_asked_for_what_the_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(f'folder = "{tmp_path}"\ntimeout_minutes = 30\n[slurm]\npartition = "gpu"\naccount = "me"\n')
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="executor: 'slurm' given, but this machine has no 'srun'"):
        read_job_settings(path)
    (tmp_path / "srun").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    executor = read_job_settings(path).make_executor()
    script = executor._make_submission_file_text("run", "1")
    for line in ("--partition=gpu", "--account=me", "--time=30", "--gpus-per-node=1", "--cpus-per-task=2"):
        assert f"#SBATCH {line}" in script


class FailingJob(CellJob):
    """Fails, or is killed."""

    def __init__(self, killed: bool) -> None:
        self.killed = killed

    def __call__(self) -> list[str]:
        if self.killed:
            os.kill(os.getpid(), signal.SIGKILL)
        raise DataError("x.npz: no such file")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("killed", "reason"),
    [
        (False, "depositum.errors.DataError: x.npz: no such file"),
        (True, r"it has not produced any output \(state: FINISHED\)"),
    ],
)
def test_what_happened_to_a_job_is_told(tmp_path: Path, killed: bool, reason: str) -> None:
    settings = JobSettings(executor="local", folder=str(tmp_path), gpus=0)
    with pytest.raises(RunError, match=rf": job \d+: {reason} \(log: .*\.err\)$"):
        run_jobs(settings, [FailingJob(killed)], Recorder())


def test_a_failed_job_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line of its error, and where its log is; the others end before it is raised."""

    class Submitted:
        job_id = "7"
        paths = SimpleNamespace(stderr="7.err")

        def done(self) -> bool:
            return True

        def exception(self) -> Exception:
            dashes = "-" * 22  # as submitit writes it
            trace = f"{dashes}\nTraceback\nDataError: x.npz: no such file\n\n{dashes}\n"
            return RuntimeError(f"Job failed with trace:\n{trace}You can check logs at paths:\n  - 7.err\n  - 7.out")

    monkeypatch.setattr(JobSettings, "make_executor", lambda self: SimpleNamespace(submit=lambda job: Submitted()))
    settings, recorder = JobSettings(executor="local", folder=str(tmp_path)), Recorder()
    expected = r"^2 of 2 jobs failed.*: job 7: DataError: x.npz: no such file \(log: 7.err\)$"
    with pytest.raises(RunError, match=expected):
        run_jobs(settings, [CellJob([], tmp_path, False)] * 2, recorder)
    assert recorder.messages == ["1 of 2 jobs have ended", "2 of 2 jobs have ended"]


class Limited:
    """A scheduler that takes a few jobs at once, each of which has ended when it is asked for the second time."""

    def __init__(self, most: int) -> None:
        self.most, self.running, self.submitted = most, 0, 0

    def submit(self, job: CellJob) -> Any:
        if self.running >= self.most:
            raise RuntimeError("sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Job violates a limit\n")
        self.running += 1
        self.submitted += 1
        asked = iter([False, True])

        def done() -> bool:
            ended = next(asked)
            self.running -= ended
            return ended

        return SimpleNamespace(done=done, exception=lambda: None, result=lambda: [])


def test_a_job_that_cannot_be_submitted_yet_is_submitted_when_another_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, recorder = Limited(2), Recorder()
    monkeypatch.setattr(JobSettings, "make_executor", lambda self: scheduler)
    settings = JobSettings(executor="local", folder=str(tmp_path))
    assert run_jobs(settings, [CellJob([], tmp_path, False)] * 5, recorder)
    assert scheduler.submitted == 5
    refused = "a job could not be submitted: sbatch: error: Job violates a limit; trying again when one of 2 has ended"
    assert recorder.messages.count(refused) == 1
    assert recorder.messages[-1] == "5 of 5 jobs have ended"


def test_a_job_that_cannot_be_submitted_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobSettings, "make_executor", lambda self: Limited(0))
    with pytest.raises(RunError, match=r"^a job could not be submitted: sbatch: error: Job violates a limit; run the"):
        run_jobs(JobSettings(executor="local", folder=str(tmp_path)), [CellJob([], tmp_path, False)], Recorder())
