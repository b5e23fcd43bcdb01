"""Sweeps that are stopped and resumed: finished cells are not run again, changed ones are, and results are the same."""

import csv
import json
import signal
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from depositum import experiments
from depositum.cli.reproduce import InterruptibleProgress
from depositum.engines import Callback, Loop, Snapshot
from depositum.errors import ConfigError
from depositum.experiments import SweepOptions, SweepStopped, cache, sweep
from depositum.experiments.cache import CellConfig
from depositum.experiments.results import NotRunError
from depositum.experiments.results_folder import tuning_frame
from depositum.interrupt import StopOnSignal
from depositum.runs import Config, checkpoint, parse, resolve
from depositum.runs.config_file import from_table
from depositum.runs.resolved import build_method
from tests.support.small_experiments import read_experiment, run_small_experiment, small, write_experiment
from tests.support.small_runs import USER_MODEL, Killed, LimitedMemory, command


def results_of(table: dict[str, Any], store: Path, out: Path, **arguments: Any) -> dict[str, bytes]:
    """Run an experiment and return its files, except the one with times."""
    results, _, plan = run_small_experiment(table, store, **arguments)
    experiments.write_results(plan, results, out)
    return {path.name: path.read_bytes() for path in out.iterdir() if path.name != "summary.json"}


class EndAt(Callback):
    """Kills the sweep, or asks it to stop, when the k-th loop reaches iteration t."""

    def __init__(self, k: int, t: int, kill: bool) -> None:
        self.k, self.t, self.kill, self.loops = k, t, kill, 0

    def on_start(self, loop: Loop) -> None:
        self.loops += 1

    def on_step(self, loop: Loop) -> None:
        if self.loops == self.k and loop.t == self.t:
            if self.kill:
                raise Killed
            loop.stop_requested = True


@pytest.mark.slow
@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
@pytest.mark.parametrize(("k", "t"), [(1, 3), (1, 7), (2, 7), (2, 12)])
def test_an_interrupted_sweep_resumes(tmp_path: Path, kill: bool, k: int, t: int) -> None:
    """Finished cells are not touched, unfinished ones resume, and the files equal those of an uninterrupted sweep."""
    complete = results_of(small(), tmp_path / "complete", tmp_path / "a")
    store = tmp_path / "store"
    if kill or t < 12:  # asked to stop at its last iteration, a sweep is complete
        with pytest.raises(Killed if kill else SweepStopped):
            run_small_experiment(small(), store, callback=EndAt(k, t, kill))
    done = {path: path.stat().st_mtime_ns for path in store.rglob("cell.json")}
    if kill or t < 12:
        assert len(done) == 2 * (k - 1)
    results, recorder, plan = run_small_experiment(small(), store)
    assert recorder.cells == 4 - len(done)
    experiments.write_results(plan, results, tmp_path / "b")
    parts = {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir() if path.name != "summary.json"}
    assert parts == complete
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert run_small_experiment(small(), store)[1].cells == 0
    assert not list(store.rglob("*.safetensors"))


@pytest.mark.slow
def test_no_checkpoint_is_written_at_the_end_of_a_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints and models at the end of a cell would be deleted immediately."""
    written = []

    def write(path: Path, snapshot: Snapshot) -> None:
        written.append(snapshot.t)

    monkeypatch.setattr(checkpoint, "write", write)
    assert run_small_experiment(small(), tmp_path / "side by side")[1].cells == 4
    run_small_experiment(small(), tmp_path / "alone", only=("alpha=small", "period=T0 = 1"))
    assert set(written) == {5, 10}  # of 12 iterations
    assert len(written) == 2 * (4 + 1)


@pytest.mark.slow
def test_a_cell_whose_seeds_do_not_fit_in_memory(tmp_path: Path) -> None:
    """It is run in halves, and leaves the same files and the same history."""
    one = ("alpha=small", "period=T0 = 1")
    complete, _, _ = run_small_experiment(small(), tmp_path / "complete", only=one)
    halves, recorder, _ = run_small_experiment(small(), tmp_path / "halves", LimitedMemory(1), only=one)
    assert recorder.cells == 1
    expected, found = (next(iter(results)).history for results in (complete, halves))
    assert expected is not None
    assert found is not None
    key = ["seed", "iteration"]
    found, expected = (table.drop(columns="seconds").sort_values(key, ignore_index=True) for table in (found, expected))
    pd.testing.assert_frame_equal(found, expected, rtol=1e-5)
    left = {path.name for path in (tmp_path / "halves").rglob("*") if path.is_file()}
    assert left == {path.name for path in (tmp_path / "complete").rglob("*") if path.is_file()}


@pytest.mark.slow
def test_only_changed_cells_are_run_again(tmp_path: Path) -> None:
    """Changed labels, claims, panels and tables run nothing; a changed setting runs its cells, a new value its own."""
    assert run_small_experiment(small(), tmp_path)[1].cells == 4
    relabelled = small(title="Other", claim=[], table=[], figure={"series": ["alpha"], "panel": []})
    relabelled.pop("figure")
    relabelled["sweep"][1]["values"][0]["label"] = "tiny"
    assert run_small_experiment(relabelled, tmp_path)[1].cells == 0
    changed = small()
    changed["sweep"][1]["values"][0]["set"] = {"algorithm.alpha": 0.02}
    assert run_small_experiment(changed, tmp_path)[1].cells == 2
    longer = small(table=[])
    longer["sweep"][1]["values"].append({"label": "larger", "set": {"algorithm.alpha": 0.2}})
    assert run_small_experiment(longer, tmp_path)[1].cells == 2
    assert (
        run_small_experiment(small(), tmp_path, options=SweepOptions(overrides=("run.checkpoint_every=3",)))[1].cells
        == 0
    )
    assert run_small_experiment(small(), tmp_path, options=SweepOptions(device="cpu"))[1].cells == 0
    assert run_small_experiment(small(), tmp_path, options=SweepOptions(overrides=("run.steps=8",)))[1].cells == 4


def test_the_hash_of_a_cell() -> None:
    """Everything that changes results changes the hash; the device and the seeds do not."""
    config = resolve(parse({"run": {"steps": 5}}))
    same = [
        {"run": {"steps": 5, "device": "cpu"}},
        {"run": {"steps": 5, "seeds": [3]}},
        {"run": {"steps": 5, "period": 1}},
        {"run": {"steps": 5, "evaluate_from": 0}},
    ]
    other = [
        {"run": {"steps": 6}},
        {"run": {"steps": 5}, "problem": {"beta": 2e-5}},
        {"run": {"steps": 5, "dtype": "float64"}},
        {"run": {"steps": 5, "evaluate_from": 1}},
    ]
    digest = CellConfig(config).digest
    assert {CellConfig(resolve(parse(table))).digest for table in same} == {digest}
    assert len({CellConfig(resolve(parse(table))).digest for table in other} | {digest}) == 5
    # As in the first version: cells that were cached since then are found, whatever keys were added with defaults.
    assert digest == "0b0efcab9d00ede7"
    assert CellConfig(config).folder(Path("c")).name == "seeds-0"


@pytest.mark.slow
def test_results_of_an_older_version_are_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_small_experiment(small(), tmp_path)
    monkeypatch.setattr(cache, "RESULTS", cache.RESULTS + 1)
    assert run_small_experiment(small(), tmp_path)[1].cells == 4


@pytest.mark.slow
def test_a_missing_trace_is_made(tmp_path: Path) -> None:
    """A cell that was cached without its trace is run again if the trace is needed, and only then."""
    results, _, _ = run_small_experiment(small(), tmp_path)
    assert all(cell.trace is None for cell in results)
    results, recorder, _ = run_small_experiment(small(trace=True), tmp_path)
    assert recorder.cells == 4
    assert all(cell.trace is not None and len(cell.trace) == 2 * 12 for cell in results)
    assert run_small_experiment(small(), tmp_path)[1].cells == 0


@pytest.mark.slow
def test_running_some_cells_of_a_sweep(tmp_path: Path) -> None:
    """Other cells are not run; those of earlier calls stay in the results, with the seeds they have."""
    results, recorder, _ = run_small_experiment(small(), tmp_path, only=("alpha=SMALL",))
    assert recorder.cells == 2
    assert [cell.cached is not None for cell in results] == [True, False, True, False]
    results, recorder, plan = run_small_experiment(
        small(), tmp_path, only=("alpha!=small", "period=T0 = 1"), options=SweepOptions(seeds=1)
    )
    assert recorder.cells == 1
    assert [cell.cached and cell.cached.seeds for cell in results] == [[0, 1], [0], [0, 1], None]
    experiments.write_results(plan, results, tmp_path / "out")
    table = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert next(line for line in table if line.startswith("| T0 = 1")).endswith("| 1 to 2 |")
    assert "not run" in next(line for line in table if line.startswith("| T0 = 2"))
    assert "**not run**" in (tmp_path / "out" / "claims.md").read_text()


@pytest.mark.slow
def test_equal_cells_are_run_once(tmp_path: Path) -> None:
    table = small()
    table["sweep"][1]["values"][1]["set"] = {"algorithm.alpha": 0.01}
    results, recorder, _ = run_small_experiment(table, tmp_path)
    assert recorder.cells == 2
    assert all(cell.cached is not None for cell in results)


@pytest.mark.slow
def test_divergence_is_reported(tmp_path: Path) -> None:
    """It is reported in every file and not judged, and the other cells continue."""
    np.savez(tmp_path / "line.npz", x=np.linspace(-1, 1, 24)[:, None], y=np.zeros(24))
    table = small()
    table["base"]["problem"] |= {"dataset": str(tmp_path / "line.npz"), "beta": 0.0}
    table["base"]["run"] |= {"batch_size": "full", "steps": 40}
    table["sweep"][1]["values"][1]["set"] = {"algorithm.alpha": 1e6}
    results, recorder, plan = run_small_experiment(table, tmp_path / "store")
    assert [bool(cell.diverged) for cell in results] == [False, True, False, True]
    assert any("diverged" in line for line in recorder.messages)
    out = tmp_path / "out"
    judged = experiments.write_results(plan, results, out)
    assert [each.verdict for each in judged] == ["diverged"]
    assert "diverged 2 of 2" in (out / "table.md").read_text()
    assert "**diverged**" in (out / "claims.md").read_text()
    with (out / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["alpha"], row["diverged"]) for row in rows} == {("small", "0"), ("large", "1")}
    summary = json.loads((out / "summary.json").read_text())
    assert sum(bool(cell["diverged"]) for cell in summary["cells"].values()) == 2
    assert (out / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert run_small_experiment(table, tmp_path / "store")[1].cells == 0  # diverged cells are finished


@pytest.mark.slow
def test_perplexities_are_measures(tmp_path: Path) -> None:
    """Perplexities of a language model can be tabulated; its adapters are deleted."""
    results, _, _ = run_small_experiment(small(), tmp_path)
    folder = results.cells[0].cached.folder
    (folder / "perplexity.csv").write_text(
        "seed,iteration,overall,open_qa\n0,0,9.0,8.0\n0,12,5.0,4.0\n1,0,9.0,8.0\n1,12,7.0,6.0\n"
    )
    (folder / "adapter").mkdir()
    (folder / "adapter" / "tokenizer.json").write_text("{}")
    results, recorder, _ = run_small_experiment(small(), tmp_path)
    assert recorder.cells == 0
    assert results.cells[0].values("perplexity:overall").tolist() == [5.0, 7.0]
    assert results.cells[0].values("perplexity:open_qa").tolist() == [4.0, 6.0]
    with pytest.raises(NotRunError, match="has no perplexity:overall"):
        results.cells[1].values("perplexity:overall")
    assert not (folder / "adapter").exists()


# Tuning


def tuned() -> dict[str, Any]:
    """One α, chosen for `large` on period 1, for both periods."""
    table = small()
    table["sweep"][1]["values"][1]["set"] = {}
    table["tune"] = [
        {
            "where": {"alpha": "large"},
            "cell": {"period": "T0 = 1"},
            "grid": {"algorithm.alpha": [1e-6, 0.3, 0.1]},
            "seeds": [7, 8, 9],
            "holdout": 0.25,
        }
    ]
    return table


def last_losses(cell: CellConfig, store: Path) -> list[float]:
    """The final held-out loss of every seed of a grid point."""
    cached = cache.find_exact(store, cell)
    assert cached is not None
    history = cached.history
    return history[history["iteration"] == history["iteration"].max()]["test_loss"].tolist()


@pytest.mark.slow
def test_tuning_judges_the_worst_of_several_seeds_on_held_out_data(tmp_path: Path) -> None:
    """The value of a point is its worst seed's; the choice is set in all target cells, and recorded."""
    results, recorder, plan = run_small_experiment(tuned(), tmp_path)
    assert recorder.cells == 3 + 4
    (task,) = plan.tuning
    losses = []
    for point in task.points:
        (cell,) = point.configs
        assert cell.config.problem.holdout == 0.25
        assert cell.config.run.seeds == [7, 8, 9]
        losses.append(last_losses(cell, tmp_path))
    assert task.values == [max(each) for each in losses]
    best = task.tuning.grid["algorithm.alpha"][task.best]
    assert best != 1e-6  # a tiny step is not the best
    for cell in results:
        method = build_method(cell.config)
        assert method.alpha == (0.01 if cell.labels["alpha"] == "small" else best)
        assert cell.config.problem.holdout == 0
    frame = tuning_frame(plan.tuning)
    assert frame["validation test_loss"].tolist() == task.values
    assert frame["chosen"].sum() == 1
    edge = best in (1e-6, 0.1)
    assert (frame["edge"] != "").any() == edge
    assert any("at the edge of its grid" in line for line in recorder.messages) == edge
    assert run_small_experiment(tuned(), tmp_path)[1].cells == 0  # the grid points are cached as cells are


@pytest.mark.slow
def test_tuning_on_several_cells_uses_the_worst_value(tmp_path: Path) -> None:
    """The value of a point is its worst cell's; labels that select no cell are rejected."""
    table = tuned()
    table["tune"][0]["cell"] = {"period": ["T0 = 1", "T0 = 2"]}
    _, recorder, plan = run_small_experiment(table, tmp_path)
    assert recorder.cells == 2 * 3 + 4
    (task,) = plan.tuning
    losses = [[last_losses(config, tmp_path) for config in point.configs] for point in task.points]
    assert all(len(each) == 2 and each[0] != each[1] for each in losses)
    assert task.values == [max(max(of_cell) for of_cell in each) for each in losses]
    table["tune"][0]["cell"] = {"period": "T0 = 1", "alpha": ["small", "large"]}
    with pytest.raises(ConfigError, match="must select 2 of the cells to tune, not 1"):
        run_small_experiment(table, tmp_path)


@pytest.mark.slow
def test_cells_that_are_not_selected_are_not_tuned(tmp_path: Path) -> None:
    """Once they were tuned, they stay in the results of later calls."""
    results, recorder, _ = run_small_experiment(tuned(), tmp_path, only=("alpha=small",))
    assert recorder.cells == 2
    assert [cell.cached is not None for cell in results] == [True, False, True, False]
    run_small_experiment(tuned(), tmp_path, only=("alpha=large",))
    results, recorder, _ = run_small_experiment(tuned(), tmp_path, only=("alpha=small",))
    assert recorder.cells == 0
    assert all(cell.cached is not None for cell in results)


@pytest.mark.slow
def test_a_point_beside_one_that_diverges_is_not_chosen(tmp_path: Path) -> None:
    """Of one seed the largest stable stepsize had the lowest loss, and was chosen: it diverged in the sweep."""
    table = tuned()
    table["base"]["problem"]["beta"] = 0.0
    table["tune"][0]["grid"] = {"algorithm.alpha": [0.05, 0.1, 3e38]}
    _, _, plan = run_small_experiment(table, tmp_path)
    (task,) = plan.tuning
    assert tuning_frame(plan.tuning)["validation test_loss"].iloc[2] == "diverged"
    assert task.points[task.best].settings == {"algorithm.alpha": 0.05}


# In a separate process


@pytest.mark.slow
def test_ctrl_c_stops_a_sweep_that_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 130 and a line that says how to resume; resumed, the results are the same."""
    (tmp_path / "user_model.py").write_text(USER_MODEL, encoding="utf-8")
    table = small()
    table["base"]["problem"]["model"] = "user_model:normalised"
    table["base"]["run"] |= {"backend": "loop", "evaluate_every": 12}
    write_experiment(tmp_path / "mine.toml", table)
    monkeypatch.chdir(tmp_path)
    process = command("reproduce", "mine.toml", PAUSE="0.02")
    history = None
    for _ in range(600):
        history = next(iter(Path("runs/reproduce").rglob("history.csv")), None)
        if history is not None and history.read_text().count("\n") > 1:
            break
        time.sleep(0.1)
    assert history is not None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "mine stopped; run the same command to resume"
    assert not Path("results").exists()
    resumed = command("reproduce", "mine.toml")
    _, err = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, err
    complete = command("reproduce", "mine.toml", "--cache", "other", "--out", "complete")
    complete.communicate(timeout=120)
    assert Path("results/mine/runs.csv").read_bytes() == Path("complete/runs.csv").read_bytes()


class EngineCounter(InterruptibleProgress):
    """Counts the engines in memory whenever a group starts; may request a stop before the second group's loop."""

    def __init__(self, stop: StopOnSignal, ask: bool = False) -> None:
        super().__init__(stop)
        self.engines: list[weakref.ref[object]] = []
        self.alive: list[int] = []
        self.ask, self.done = ask, 0

    def group(self, name: str, cells: int, work: float) -> None:
        self.alive.append(sum(engine() is not None for engine in self.engines))
        if self.ask and len(self.alive) == 2:
            self._stop.requested = True  # as a signal does before the next loop is attached

    def attach(self, loop: Loop) -> None:
        super().attach(loop)
        self.engines.append(weakref.ref(loop.engine))


@pytest.mark.slow
def test_a_group_is_freed_before_the_next_starts(tmp_path: Path) -> None:
    """Rows, data and graphs of two groups may not fit on a GPU; a reference to a loop would keep them alive."""
    with StopOnSignal() as stop:
        counter = EngineCounter(stop)
        experiments.run_experiment(experiments.make_plan(read_experiment(small()), SweepOptions()), tmp_path, counter)
    assert counter.alive == [0, 0]
    assert [engine() for engine in counter.engines] == [None, None]


@pytest.mark.slow
def test_a_stop_between_two_groups(tmp_path: Path) -> None:
    """A stop that is requested while data is loaded does not wait for the next group."""
    plan = experiments.make_plan(read_experiment(small()), SweepOptions())
    with StopOnSignal() as stop, pytest.raises(experiments.SweepStopped):
        experiments.run_experiment(plan, tmp_path, EngineCounter(stop, ask=True))
    assert len(list(tmp_path.rglob("cell.json"))) == 2  # only the first group's


@pytest.mark.slow
def test_each_configuration_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four cells; with tuning, three grid points more, and again the two cells that the choice changes."""
    tables: list[dict[str, Any]] = []

    def count(table: dict[str, Any], *arguments: Any) -> Config:
        tables.append(table)
        return from_table(table, *arguments)

    monkeypatch.setattr(sweep, "from_table", count)
    run_small_experiment(small(), tmp_path)
    assert len(tables) == 4
    tables.clear()
    _, _, plan = run_small_experiment(tuned(), tmp_path)
    assert len(tables) == 3 + 4 + (2 if plan.tuning[0].best else 0)


def test_a_plan_has_all_cells() -> None:
    assert len(experiments.make_plan(read_experiment(small()), SweepOptions()).cells) == 4


@pytest.mark.slow
def test_at_once_limits_the_size_of_groups(tmp_path: Path) -> None:
    """Cells with such a value never run in larger groups, and give the same results."""
    complete = results_of(small(), tmp_path / "complete", tmp_path / "a")
    table = small()
    table["sweep"][0]["values"][0]["at_once"] = 1
    results, recorder, plan = run_small_experiment(table, tmp_path / "store")
    assert [count for _, count in recorder.groups] == [1, 1, 2]
    experiments.write_results(plan, results, tmp_path / "b")
    assert (tmp_path / "b" / "table.md").read_bytes() == complete["table.md"]
