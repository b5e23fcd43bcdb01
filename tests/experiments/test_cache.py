"""Sweeps that stop and go on: no finished cell is run twice, only what changed is run again, results are the same."""

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
from depositum.cli.interrupt import StopOnSignal
from depositum.cli.reproduce import InterruptibleProgress
from depositum.engines import Callback, Loop, Snapshot
from depositum.errors import ConfigError
from depositum.experiments import Options, StoppedError, cache
from depositum.experiments.output import tuning
from depositum.experiments.results import NotRunError
from depositum.runs import checkpoint, parse
from tests.support.small_experiments import perform, read_experiment, small, write_experiment
from tests.support.small_runs import OWN_MODEL, Killed, Short, command


def results_of(table: dict[str, Any], store: Path, out: Path, **arguments: Any) -> dict[str, bytes]:
    """Run an experiment and return what it left, but for times."""
    results, _, plan = perform(table, store, **arguments)
    experiments.write(plan, results, out)
    return {path.name: path.read_bytes() for path in out.iterdir() if path.name != "summary.json"}


class At(Callback):
    """Does something when the k-th loop has come to iteration t."""

    def __init__(self, k: int, t: int, kill: bool) -> None:
        self.k, self.t, self.kill, self.loops = k, t, kill, 0

    def on_start(self, loop: Loop) -> None:
        self.loops += 1

    def on_step(self, loop: Loop) -> None:
        if self.loops == self.k and loop.t == self.t:
            if self.kill:
                raise Killed
            loop.stop_requested = True


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
@pytest.mark.parametrize(("k", "t"), [(1, 3), (1, 7), (2, 7), (2, 12)])
def test_a_sweep_that_was_ended_goes_on(tmp_path: Path, kill: bool, k: int, t: int) -> None:
    """Finished cells are not touched again, those under way go on, and the files are those of a sweep never ended."""
    whole = results_of(small(), tmp_path / "whole", tmp_path / "a")
    store = tmp_path / "store"
    if kill or t < 12:  # asked to stop at its last iteration, a sweep is simply done
        with pytest.raises(Killed if kill else StoppedError):
            perform(small(), store, moment=At(k, t, kill))
    done = {path: path.stat().st_mtime_ns for path in store.rglob("cell.json")}
    if kill or t < 12:
        assert len(done) == 2 * (k - 1)
    results, watch, plan = perform(small(), store)
    assert watch.cells == 4 - len(done)
    experiments.write(plan, results, tmp_path / "b")
    parts = {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir() if path.name != "summary.json"}
    assert parts == whole
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert perform(small(), store)[1].cells == 0
    assert not list(store.rglob("*.safetensors"))


def test_the_end_of_a_cell_is_its_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No checkpoint and no models are written at the end of a cell, where they would be removed at once."""
    written = []

    def write(path: Path, snapshot: Snapshot) -> None:
        written.append(snapshot.t)

    monkeypatch.setattr(checkpoint, "write", write)
    assert perform(small(), tmp_path / "side by side")[1].cells == 4
    perform(small(), tmp_path / "alone", only=("alpha=small", "period=T0 = 1"))
    assert set(written) == {5, 10}  # of 12 iterations
    assert len(written) == 2 * (4 + 1)


def test_a_cell_whose_seeds_do_not_fit(tmp_path: Path) -> None:
    """It is run in halves, which do need their ends, and leaves what it leaves at once."""
    one = ("alpha=small", "period=T0 = 1")
    whole, _, _ = perform(small(), tmp_path / "whole", only=one)
    halves, watch, _ = perform(small(), tmp_path / "halves", Short(1), only=one)
    assert watch.cells == 1
    expected, found = (next(iter(results)).history for results in (whole, halves))
    assert expected is not None
    assert found is not None
    key = ["seed", "iteration"]
    found, expected = (table.drop(columns="seconds").sort_values(key, ignore_index=True) for table in (found, expected))
    pd.testing.assert_frame_equal(found, expected, rtol=1e-5)
    left = {path.name for path in (tmp_path / "halves").rglob("*") if path.is_file()}
    assert left == {path.name for path in (tmp_path / "whole").rglob("*") if path.is_file()}


def test_only_what_changed_is_run_again(tmp_path: Path) -> None:
    """Labels, claims, panels and tables run nothing; a changed number runs its own cells, a new value its own."""
    assert perform(small(), tmp_path)[1].cells == 4
    relabelled = small(title="Other", claim=[], table=[], figure={"series": ["alpha"], "panel": []})
    relabelled.pop("figure")
    relabelled["sweep"][1]["values"][0]["label"] = "tiny"
    assert perform(relabelled, tmp_path)[1].cells == 0
    changed = small()
    changed["sweep"][1]["values"][0]["set"] = {"algorithm.alpha": 0.02}
    assert perform(changed, tmp_path)[1].cells == 2
    longer = small(table=[])
    longer["sweep"][1]["values"].append({"label": "larger", "set": {"algorithm.alpha": 0.2}})
    assert perform(longer, tmp_path)[1].cells == 2
    assert perform(small(), tmp_path, options=Options(overrides=("run.checkpoint_every=3",)))[1].cells == 0
    assert perform(small(), tmp_path, options=Options(device="cpu"))[1].cells == 0
    assert perform(small(), tmp_path, options=Options(overrides=("run.steps=8",)))[1].cells == 4


def test_what_a_cell_is() -> None:
    """The hash is of all that makes results: every other key changes it, where it runs does not."""
    config = parse({"run": {"steps": 5}})
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
    assert {cache.identity(parse(table)) for table in same} == {cache.identity(config)}
    assert len({cache.identity(parse(table)) for table in other} | {cache.identity(config)}) == 5
    # As of the first version: cells that were kept since then are found, whatever keys have come with their defaults.
    assert cache.identity(config) == "0b0efcab9d00ede7"
    assert cache.place(Path("c"), config).name == "seeds-0"


def test_results_of_an_older_package_are_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    perform(small(), tmp_path)
    monkeypatch.setattr(cache, "RESULTS", cache.RESULTS + 1)
    assert perform(small(), tmp_path)[1].cells == 4


def test_a_trace_that_is_needed_later_is_made(tmp_path: Path) -> None:
    """A cell kept without its trace is run again where one is needed, and only then."""
    results, _, _ = perform(small(), tmp_path)
    assert all(outcome.trace is None for outcome in results)
    results, watch, _ = perform(small(trace=True), tmp_path)
    assert watch.cells == 4
    assert all(outcome.trace is not None and len(outcome.trace) == 2 * 12 for outcome in results)
    assert perform(small(), tmp_path)[1].cells == 0


def test_a_part_of_a_sweep(tmp_path: Path) -> None:
    """Other cells are not run, those of earlier calls stay in the results, with as many seeds as they have."""
    results, watch, _ = perform(small(), tmp_path, only=("alpha=SMALL",))
    assert watch.cells == 2
    assert [outcome.kept is not None for outcome in results] == [True, False, True, False]
    results, watch, plan = perform(small(), tmp_path, only=("alpha!=small", "period=T0 = 1"), options=Options(seeds=1))
    assert watch.cells == 1
    assert [outcome.kept and outcome.kept.seeds for outcome in results] == [[0, 1], [0], [0, 1], None]
    experiments.write(plan, results, tmp_path / "out")
    table = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert next(line for line in table if line.startswith("| T0 = 1")).endswith("| 1 to 2 |")
    assert "not run" in next(line for line in table if line.startswith("| T0 = 2"))
    assert "**not run**" in (tmp_path / "out" / "claims.md").read_text()


def test_cells_that_are_the_same_are_run_once(tmp_path: Path) -> None:
    table = small()
    table["sweep"][1]["values"][1]["set"] = {"algorithm.alpha": 0.01}
    results, watch, _ = perform(table, tmp_path)
    assert watch.cells == 2
    assert all(outcome.kept is not None for outcome in results)


def test_divergence(tmp_path: Path) -> None:
    """Said in every file, judged nowhere, and the rest of the sweep goes on."""
    np.savez(tmp_path / "line.npz", x=np.linspace(-1, 1, 24)[:, None], y=np.zeros(24))
    table = small()
    table["base"]["problem"] |= {"dataset": str(tmp_path / "line.npz"), "beta": 0.0}
    table["base"]["run"] |= {"batch_size": "full", "steps": 40}
    table["sweep"][1]["values"][1]["set"] = {"algorithm.alpha": 1e6}
    results, watch, plan = perform(table, tmp_path / "store")
    assert [bool(outcome.diverged) for outcome in results] == [False, True, False, True]
    assert any("diverged" in line for line in watch.said)
    out = tmp_path / "out"
    judged = experiments.write(plan, results, out)
    assert [own.verdict for own in judged] == ["diverged"]
    assert "diverged (2 of 2)" in (out / "table.md").read_text()
    assert "**diverged**" in (out / "claims.md").read_text()
    with (out / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["alpha"], row["diverged"]) for row in rows} == {("small", "0"), ("large", "1")}
    summary = json.loads((out / "summary.json").read_text())
    assert sum(bool(cell["diverged"]) for cell in summary["cells"].values()) == 2
    assert (out / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert perform(table, tmp_path / "store")[1].cells == 0  # what diverged is finished


def test_perplexities_are_measures(tmp_path: Path) -> None:
    """What a language model's run leaves beside its history can be tabulated; its adapters are not kept."""
    results, _, _ = perform(small(), tmp_path)
    folder = results.outcomes[0].kept.folder
    (folder / "perplexity.csv").write_text(
        "seed,iteration,overall,open_qa\n0,0,9.0,8.0\n0,12,5.0,4.0\n1,0,9.0,8.0\n1,12,7.0,6.0\n"
    )
    (folder / "adapter").mkdir()
    (folder / "adapter" / "tokenizer.json").write_text("{}")
    results, watch, _ = perform(small(), tmp_path)
    assert watch.cells == 0
    assert results.outcomes[0].values("perplexity:overall").tolist() == [5.0, 7.0]
    assert results.outcomes[0].values("perplexity:open_qa").tolist() == [4.0, 6.0]
    with pytest.raises(NotRunError, match="has no perplexity:overall"):
        results.outcomes[1].values("perplexity:overall")
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
            "seed": 9,
            "holdout": 0.25,
        }
    ]
    return table


def test_tuning_chooses_what_ends_lowest_on_held_out_data(tmp_path: Path) -> None:
    """The choice is the lowest validation loss, found by hand; it is set in all cells it is for, and recorded."""
    results, watch, plan = perform(tuned(), tmp_path)
    assert watch.cells == 3 + 4
    (choice,) = plan.choices
    losses = []
    for point in choice.points:
        (config,) = point.configs
        assert config.problem.holdout == 0.25
        assert config.run.seeds == [9]
        kept = cache.find(cache.place(tmp_path, config))
        assert kept is not None
        losses.append(kept.history["test_loss"].iloc[-1])
    best = choice.tune.grid["algorithm.alpha"][int(np.argmin(losses))]
    assert losses[0] > min(losses)  # no step at all is not the best
    for outcome in results:
        method = outcome.config.make_algorithm()
        assert method.alpha == (0.01 if outcome.labels["alpha"] == "small" else best)
        assert outcome.config.problem.holdout == 0
    frame = tuning(plan.choices)
    assert frame["validation test_loss"].tolist() == losses
    assert frame["chosen"].sum() == 1
    edge = best in (1e-6, 0.1)
    assert (frame["edge"] != "").any() == edge
    assert any("at the edge of its grid" in line for line in watch.said) == edge
    assert perform(tuned(), tmp_path)[1].cells == 0  # choices are kept as cells are


def test_tuning_on_several_cells_takes_the_worst(tmp_path: Path) -> None:
    """A point counts by its worst cell, found by hand; labels that lead to no cell are refused."""
    table = tuned()
    table["tune"][0]["cell"] = {"period": ["T0 = 1", "T0 = 2"]}
    _, watch, plan = perform(table, tmp_path)
    assert watch.cells == 2 * 3 + 4
    (choice,) = plan.choices
    losses = []
    for point in choice.points:
        kept = [cache.find(cache.place(tmp_path, config)) for config in point.configs]
        losses.append([own.history["test_loss"].iloc[-1] for own in kept if own is not None])
    assert all(len(each) == 2 and each[0] != each[1] for each in losses)
    assert choice.values == [max(each) for each in losses]
    table["tune"][0]["cell"] = {"period": "T0 = 1", "alpha": ["small", "large"]}
    with pytest.raises(ConfigError, match="must name 2 of the cells to choose for, not 1"):
        perform(table, tmp_path)


def test_tuning_of_cells_that_are_not_asked_for(tmp_path: Path) -> None:
    """They are not tuned; once they were, they stay in the results of later calls."""
    results, watch, _ = perform(tuned(), tmp_path, only=("alpha=small",))
    assert watch.cells == 2
    assert [outcome.kept is not None for outcome in results] == [True, False, True, False]
    perform(tuned(), tmp_path, only=("alpha=large",))
    results, watch, _ = perform(tuned(), tmp_path, only=("alpha=small",))
    assert watch.cells == 0
    assert all(outcome.kept is not None for outcome in results)


def test_a_point_that_diverges_is_never_chosen(tmp_path: Path) -> None:
    table = tuned()
    table["base"]["problem"]["beta"] = 0.0
    table["tune"][0]["grid"] = {"algorithm.alpha": [3e38, 0.1]}
    _, _, plan = perform(table, tmp_path)
    assert tuning(plan.choices)["validation test_loss"].iloc[0] == "diverged"
    assert plan.choices[0].points[plan.choices[0].best].settings == {"algorithm.alpha": 0.1}


# A process of its own


def test_interrupted_by_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 130, a line that says that the same command goes on, and it does, to the same results."""
    (tmp_path / "own_model.py").write_text(OWN_MODEL, encoding="utf-8")
    table = small()
    table["base"]["problem"]["model"] = "own_model:normalised"
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
    going_on = command("reproduce", "mine.toml")
    _, err = going_on.communicate(timeout=120)
    assert going_on.returncode == 0, err
    whole = command("reproduce", "mine.toml", "--cache", "other", "--out", "whole")
    whole.communicate(timeout=120)
    assert Path("results/mine/runs.csv").read_bytes() == Path("whole/runs.csv").read_bytes()


class Looking(InterruptibleProgress):
    """Looks which simulators are left whenever a group begins; perhaps asks to stop while the second is made ready."""

    def __init__(self, stop: StopOnSignal, ask: bool = False) -> None:
        super().__init__(stop)
        self.engines: list[weakref.ref[object]] = []
        self.left: list[int] = []
        self.ask, self.done = ask, 0

    def group(self, name: str, cells: int, work: float) -> None:
        self.left.append(sum(engine() is not None for engine in self.engines))
        if self.ask and len(self.left) == 2:
            self._stop.requested = True  # as a signal does, of which the loop to come knows nothing

    def attach(self, loop: Loop) -> None:
        super().attach(loop)
        self.engines.append(weakref.ref(loop.engine))


def test_a_group_is_out_of_memory_before_the_next_begins(tmp_path: Path) -> None:
    """Rows, data and graphs of two groups at once may be more than a GPU has; whoever keeps a loop would keep them."""
    with StopOnSignal() as stop:
        watch = Looking(stop)
        experiments.perform(experiments.plan(read_experiment(small()), Options()), tmp_path, watch)
    assert watch.left == [0, 0]
    assert [engine() for engine in watch.engines] == [None, None]


def test_asked_to_stop_between_two_groups(tmp_path: Path) -> None:
    """A person who asks while data are loaded does not wait for the group that comes."""
    plan = experiments.plan(read_experiment(small()), Options())
    with StopOnSignal() as stop, pytest.raises(experiments.StoppedError):
        experiments.perform(plan, tmp_path, Looking(stop, ask=True))
    assert len(list(tmp_path.rglob("cell.json"))) == 2  # those of the first group alone


def test_plans_check_before_work() -> None:
    assert len(experiments.plan(read_experiment(small()), Options()).cells) == 4


def test_at_most_so_many_at_once(tmp_path: Path) -> None:
    """A value that says so is never run in larger company, and gives the same."""
    whole = results_of(small(), tmp_path / "whole", tmp_path / "a")
    table = small()
    table["sweep"][0]["values"][0]["at_once"] = 1
    results, watch, plan = perform(table, tmp_path / "store")
    assert [count for _, count in watch.groups] == [1, 1, 2]
    experiments.write(plan, results, tmp_path / "b")
    assert (tmp_path / "b" / "table.md").read_bytes() == whole["table.md"]
