"""The paper's experiments as data: every one runs in quick mode, and their numbers are the paper's."""

import csv
import itertools
import json
import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from depositum import experiments, theory
from depositum.cli import reproduce
from depositum.errors import DataError, RunError
from depositum.experiments import SweepOptions
from depositum.experiments.bounds import theory_setting
from depositum.experiments.sweep import make_cells
from depositum.experiments.tables import PaperNumber
from depositum.problem.constants import smoothness as measured_smoothness
from depositum.runs import build_engine, parse
from tests.support.small_experiments import small, write_experiment
from tests.support.small_runs import cli

IDS = experiments.experiment_names()
#: Cells of each sweep; grid points of its tuning.
CELLS = {"stepsize": (10, 0), "momentum": (5, 0), "period": (8, 0), "sparsity": (10, 0), "topology": (16, 52),
         "clients": (8, 0), "accuracy": (133, 610), "llm": (7, 90), "theorem1": (16, 0),
         "corollary1": (20, 0)}  # fmt: skip


def tables(name: str) -> dict[str, dict[str, Any]]:
    """The complete tables of an experiment's cells, by their labels."""
    return {cell.name: cell.table for cell in make_cells(experiments.load_experiment(name), SweepOptions())}


# Contents of the files


def test_all_experiments_of_the_paper_exist() -> None:
    assert set(CELLS) <= set(IDS)


@pytest.mark.parametrize("name", list(CELLS))
def test_sweeps_have_the_papers_size(name: str) -> None:
    """A value that is added, lost or omitted by mistake changes the count."""
    experiment = experiments.load_experiment(name)
    made = make_cells(experiment, SweepOptions())
    points = sum(
        math.prod(map(len, tune.grid.values()))
        * len({tuple(cell.labels[axis] for axis in tune.per) for cell in made if _in(cell.labels, tune.where)})
        for tune in experiment.tune
    )
    assert (len(made), points) == CELLS[name]
    assert all(cell.table["run"]["seeds"] == [0, 1, 2, 3, 4] for cell in made)


def _in(labels: dict[str, str], where: dict[str, Any]) -> bool:
    return all(labels[axis] in ([asked] if isinstance(asked, str) else asked) for axis, asked in where.items())


@pytest.mark.parametrize("name", IDS)
def test_every_experiment_is_documented(name: str) -> None:
    """It has claims, unstated settings, and a figure or table."""
    experiment = experiments.load_experiment(name)
    assert experiment.claim
    assert experiment.unstated
    assert experiment.figure or experiment.table
    assert experiment.paper.startswith(("Fig. ", "Table ", "Theorem ", "Corollary ", "Future work: "))


def test_grids_are_wide_and_fine_enough() -> None:
    """At least five values of the main stepsize, in steps of a factor of 2 to 3.4."""
    for name in ("topology", "accuracy"):
        for tune in experiments.load_experiment(name).tune:
            main = next(iter(tune.grid.values()))
            assert len(main) >= 5
            assert all(2 - 1e-9 <= b / a <= 3.4 for a, b in itertools.pairwise(main)), main
            assert len(tune.seeds) >= 3
            assert not {*tune.seeds} & {*range(5)}
            assert tune.holdout == 0.1


@pytest.mark.parametrize("n", [4, 9, 16, 25])
def test_settings_of_the_client_count(n: int) -> None:
    """α_n, γ_n and B_n by their formulas."""
    for momentum in ("Polyak", "Nesterov"):
        table = tables("clients")[f"momentum = {momentum}, clients = n = {n}"]
        assert table["algorithm"]["alpha"] == pytest.approx(0.05 * math.sqrt(n / 16), rel=1e-15)
        assert 1 - table["algorithm"]["gamma"] == pytest.approx(math.sqrt(n / 801), rel=1e-14)
        assert table["run"]["batch_size"] == math.ceil(math.sqrt(n))
        assert table["problem"]["clients"] == n
        # Evaluated right after exchanges only, the last included: elsewhere ‖Gᵅ(x)‖² takes n full gradients.
        run = table["run"]
        assert run["evaluate_every"] % run["period"] == 0
        assert run["evaluate_from"] == run["steps"] % run["evaluate_every"] == 1


def theory_settings(name: str) -> Iterator[theory.Setting]:
    """The setting of every cell of an experiment on the theory."""
    experiment = experiments.load_experiment(name)
    assert experiment.variance is not None
    for cell in make_cells(experiment, SweepOptions()):
        yield theory_setting(parse(cell.table), experiment.variance)


@pytest.mark.parametrize("name", ["theorem1", "corollary1"])
def test_constants_of_the_theory_hold(name: str) -> None:
    """L and σ² are upper limits on every client of every cell: both follow from the inputs of a linear model."""
    experiment = experiments.load_experiment(name)
    assert experiment.variance is not None
    made = make_cells(experiment, SweepOptions(device="cpu"))
    found: dict[str, list[float]] = {"L": [], "σ²": []}
    distinct = {json.dumps(cell.table["problem"], sort_keys=True): cell.checked.spec for cell in made}
    for spec in distinct.values():
        oracle = build_engine([spec]).oracle
        measured = measured_smoothness(oracle)
        assert measured.how == "closed form"
        found["L"].append(measured.value)
        squares = oracle.inputs.flatten(1).double().square().sum(1) + 1  # the bias has the input 1
        ends = [*oracle.offsets.tolist(), len(oracle.table)]
        means = [float(squares[oracle.table[a:b]].mean()) for a, b in itertools.pairwise(ends)]
        # E‖∇F‖² = E‖p − e_y‖² ‖a‖² ≤ 2 E‖a‖², which no variance of ∇F exceeds.
        found["σ²"].append(2 * max(means))
    assert 0.8 * 3.5 <= max(found["L"]) <= 3.5
    assert {cell.table["metrics"]["smoothness"] for cell in made} == {3.5}
    assert 0.8 * experiment.variance <= max(found["σ²"]) <= experiment.variance


def test_settings_of_theorem_1() -> None:
    """α is the largest that the theorem admits, rounded down; all conditions hold."""
    for setting in theory_settings("theorem1"):
        assert theory.conditions_hold(setting)
        assert setting.alpha == theory.rounded_down(theory.largest_alpha(setting).alpha, 3)


def test_settings_of_corollary_1() -> None:
    """α, γ and B are prescribed by the corollary, whose conditions hold; λ does not depend on n."""
    for setting in theory_settings("corollary1"):
        prescribed = theory.corollary_setting(setting)
        assert theory.corollary_bound(setting).proven
        assert (setting.alpha, setting.gamma) == pytest.approx((prescribed.alpha, prescribed.gamma), rel=1e-12)
        assert setting.batch_size == prescribed.batch_size
        assert setting.lam == pytest.approx(0.0 if setting.n == 1 else 0.5)


def test_the_accuracy_table_is_the_papers() -> None:
    """21 rows of five methods; the sums of its columns were computed independently from the paper's text."""
    first, second = experiments.load_experiment("accuracy").table
    assert len(first.paper) == 21
    assert {len(row) for row in first.paper} == {3 + 5}
    printed = [[PaperNumber.parse(text, "paper") for text in row[3:]] for row in first.paper]
    assert [round(sum(row[k].mean for row in printed), 2) for k in range(5)] == SUMS_OF_MEANS
    assert [round(sum(row[k].std or 0 for row in printed), 2) for k in range(5)] == SUMS_OF_DEVIATIONS
    rows = {tuple(row[:3]): row[3:] for row in first.paper}
    assert rows["MNIST", "MLP", "IID"] == ["94.20±0.13", "94.24±0.15", "84.65±0.45", "91.13±0.15", "89.49±0.11"]
    assert rows["CIFAR-10", "ResNet-18", "Dir(0.5)"][3] == "59.26±0.52"
    # The second table shows the first's numbers next to both weightings.
    assert len(second.paper) == 14
    for row in second.paper:
        assert row[3:5] == row[5:7] == rows[tuple(row[:3])][:2]


SUMS_OF_MEANS = [1689.16, 1683.98, 1464.88, 1630.4, 1568.68]
SUMS_OF_DEVIATIONS = [13.53, 9.92, 11.98, 8.52, 12.29]


def test_numbers_in_the_papers_text() -> None:
    """Numbers that the paper prints in its text are in the tables and in the claims."""
    for name, numbers in (
        ("period", [0.233, 0.403]),
        ("sparsity", [27.242, 0.763, 65.387, 2.060, 26.041, 0.867, 63.612, 2.797]),
    ):
        experiment = experiments.load_experiment(name)
        lines = [float(line.paper) for table in experiment.table for line in table.line if line.paper]
        checks = [claim.check["number"]["value"] for claim in experiment.claim if "number" in claim.check]
        assert lines == checks == numbers


def test_weightings_and_server_methods() -> None:
    """Objectives weighted by samples everywhere; uniform ones additionally, for DEPOSITUM's Dirichlet rows only."""
    made = make_cells(experiments.load_experiment("accuracy"), SweepOptions())
    uniform = [cell for cell in made if cell.table["problem"]["weighting"] == "uniform"]
    assert len(uniform) == 28
    assert all("Dir" in cell.labels["partition"] and "DEPOSITUM" in cell.labels["method"] for cell in uniform)
    assert {cell.table["problem"]["partition_seed"] for cell in made} == {0}
    for cell in made:
        server = "Fed" in cell.labels["method"]
        assert cell.table["run"]["steps"] == (5000 if server else 1000)
        assert ("network" in cell.table) is not server


# Every experiment, from the command line to the files


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in IDS if name != "llm"]
)  # needs a model (test_language_model_experiment.py)
def test_quick_runs_are_complete(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweep, tuning, figure, tables and claims of every experiment run, without data files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEPOSITUM_DATA", str(tmp_path / "none"))
    result = cli("reproduce", name, "--quick")
    assert result.code == 0, result.err
    out = Path("results/quick") / name
    experiment = experiments.load_experiment(name)
    files = {path.name for path in out.iterdir()}
    assert {"runs.csv", "claims.md", "summary.json"} <= files
    assert ({"figure.svg", "figure.pdf", "figure.png"} <= files) is (experiment.figure is not None)
    assert ({"table.md", "table.tex"} <= files) is bool(experiment.table)
    assert ("tuning.csv" in files) is bool(experiment.tune)
    assert ("trace.csv.gz" in files) is experiment.trace
    with (out / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {"0", "1"} == {row["seed"] for row in rows}
    assert set(experiment.axes) < set(rows[0])
    summary = json.loads((out / "summary.json").read_text())
    assert summary["cells"]
    assert sum(summary["claims"].values()) == len(experiment.claim)
    suffixes = {path.suffix for path in Path("runs/reproduce").rglob("*") if path.is_file()}
    assert suffixes <= {".json", ".toml", ".csv"}  # no checkpoints, no models


@pytest.mark.slow
def test_quick_runs_do_not_touch_full_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_experiment(tmp_path / "mine.toml", small(quick={"set": {"run.steps": 4}}))
    assert cli("reproduce", "mine.toml", "--quick").code == 0
    assert not Path("results/mine").exists()
    assert "quick run" in Path("results/quick/mine/claims.md").read_text()


@pytest.mark.slow
def test_a_user_defined_experiment_and_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The documented example runs as it is; the page shows it, and is the same when generated again."""
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    example = next(block for block in text.split("```toml\n") if block.startswith('title = "Stepsize')).split("```")[0]
    table = tomllib.loads(example)
    table["base"]["run"]["steps"] = 4
    table["time_by"] = "graf"
    write_experiment(tmp_path / "graphs.toml", table)
    result = cli("reproduce", "graphs.toml")
    assert result.err.strip().endswith(
        "graphs: time_by: 'graf' is not an axis; it can be 'alpha' or 'graph'; did you mean 'graph'?"
    )
    table["time_by"] = "graph"
    write_experiment(tmp_path / "graphs.toml", table)
    result = cli("reproduce", "graphs.toml", "--page", "--device", "cpu")
    assert result.code == 0, result.err
    page = Path("docs/reproduction.md").read_text()
    assert "## Stepsize and graph (`graphs`)" in page
    assert "](../results/graphs/figure.png)" in page
    assert "A larger α ends with a lower loss" in page
    assert "CPU" in page
    times = json.loads(Path("results/graphs/summary.json").read_text())
    assert set(times["seconds_by"]) == set(labels := [value["label"] for value in table["sweep"][1]["values"]])
    assert sum(times["seconds_by"].values()) == pytest.approx(times["seconds"], abs=0.2)
    assert all(f"{label} " in page.split("By graph: ")[1] for label in labels)
    assert "| all | |" in page
    assert cli("reproduce", "--page").code == 0
    assert Path("docs/reproduction.md").read_text() == page


def test_the_page_without_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli("reproduce", "--page").code == 0
    assert "There are no results yet" in Path("docs/reproduction.md").read_text()


def test_all_skips_experiments_that_cannot_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing base model must not prevent the experiments after it, and must be reported."""
    ran = []

    def pretend(plan: experiments.Plan, *_: object) -> None:
        if plan.experiment.id == "llm":
            raise DataError("no such model")
        ran.append(plan.experiment.id)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reproduce, "_reproduce", pretend)
    with pytest.raises(RunError, match=f"^1 of {len(IDS)} experiments could not be run: llm$"):
        reproduce.command("all", quick=True)
    assert ran == [name for name in IDS if name != "llm"]
    assert capsys.readouterr().err == "llm skipped: no such model\n"


def test_experiments_are_listed() -> None:
    out = cli("reproduce").out
    assert all(name in out for name in IDS)
