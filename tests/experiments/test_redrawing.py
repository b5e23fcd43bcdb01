"""`depositum reproduce ID --redraw`: the figure from the results in a folder, without the cache that they came from."""

import json
import shutil
from pathlib import Path

import pytest

from depositum.experiments.figures import draw_figure
from depositum.experiments.results_folder import read_results
from tests.support.small_experiments import run_small_experiment, small, write_experiment
from tests.support.small_runs import cli

ROOT = Path(__file__).parents[2]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a small experiment with a trace, whose file is mine.toml; the cache is deleted."""
    monkeypatch.chdir(tmp_path)
    panels = [{"title": "Loss", "y": "train_loss"}, {"title": "Trace", "kind": "trace", "log": True}]
    table = small(trace=True, figure={"series": ["period", "alpha"], "panel": panels}, claim=[], table=[])
    write_experiment(tmp_path / "mine.toml", table)
    result = cli("reproduce", "mine.toml", "--out", "out")
    assert result.code == 0, result.err
    shutil.rmtree("runs")
    return tmp_path / "out"


def test_a_figure_is_drawn_again_without_running_anything(results: Path) -> None:
    """The table has six digits, so the file is the same up to rounding: its text and lines; other files stay."""
    before = {path.name: path.read_bytes() for path in results.iterdir()}
    for name in ("figure.svg", "figure.png", "figure.pdf"):
        (results / name).unlink()
    result = cli("reproduce", "mine.toml", "--redraw", "--out", "out")
    assert result.code == 0, result.err
    assert result.out.strip() == "mine: –; results: out"
    assert not Path("runs").exists()
    after = {path.name: path.read_bytes() for path in results.iterdir()}
    assert set(after) == set(before)
    unchanged = {"runs.csv", "summary.json", "trace.csv.gz", "claims.md"}
    assert {name: after[name] for name in unchanged} == {name: before[name] for name in unchanged}
    assert after["figure.svg"].count(b"<path") == before["figure.svg"].count(b"<path")
    # Drawn from its own table, it has the same bytes.
    cli("reproduce", "mine.toml", "--redraw", "--out", "out")
    assert (results / "figure.svg").read_bytes() == after["figure.svg"]


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    """Every cell's seeds, divergences and history; a cell that was not run stays without one."""
    from depositum import experiments

    found, _, plan = run_small_experiment(small(), tmp_path / "store")
    experiments.write_results(plan, found, tmp_path / "out")
    read = read_results(plan.experiment, tmp_path / "out")
    for one, other in zip(found, read, strict=True):
        assert one.labels == other.labels
        assert one.history is not None
        assert other.history is not None
        for measure in ("train_loss", "consensus_x"):
            a, b = one.frame(measure), other.frame(measure)
            assert a[["seed", "t"]].equals(b[["seed", "t"]])
            assert abs(a["y"] - b["y"]).max() <= 1e-5 * abs(a["y"]).max()
        assert other.cached is not None
        assert (other.cached.seeds, other.diverged) == ([0, 1], [])
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    del summary["cells"]["T0 = 1, small"]
    (tmp_path / "out" / "summary.json").write_text(json.dumps(summary))
    read = read_results(plan.experiment, tmp_path / "out")
    assert [cell.cached is None for cell in read] == [True, False, False, False]
    draw_figure(plan.experiment, read, tmp_path)


def test_mistakes_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, expected in {
        ("stepsize", "--redraw"): "results/stepsize: contains no results of an experiment",
        ("--redraw",): "--redraw: needs the ID of one experiment",
        ("stepsize", "--redraw", "--seeds", "2"): "--seeds: given with --redraw",
        ("stepsize", "--redraw", "--set", "run.steps=3"): "--set: given with --redraw",
    }.items():
        result = cli("reproduce", *arguments)
        assert result.code == 2
        assert expected in result.err
    Path("results/stepsize").mkdir(parents=True)
    Path("results/stepsize/summary.json").write_text("[]")
    assert "summary.json: cannot be read" in cli("reproduce", "stepsize", "--redraw").err
    other = json.loads((ROOT / "results" / "momentum" / "summary.json").read_text(encoding="utf-8"))
    Path("results/stepsize/summary.json").write_text(json.dumps(other))
    assert "contains the results of another experiment" in cli("reproduce", "stepsize", "--redraw").err


@pytest.mark.parametrize("name", ["stepsize", "momentum", "period", "sparsity", "topology", "clients"])
def test_committed_figures_are_vectors_of_a_moderate_size(name: str) -> None:
    """Beside the PNG; less than a MiB, and without a picture of pixels inside."""
    svg = (ROOT / "results" / name / "figure.svg").read_bytes()
    assert len(svg) < 1 << 20
    assert b"<image" not in svg
    assert svg.count(b"<path") > 50
    assert (ROOT / "results" / name / "figure.png").exists()
