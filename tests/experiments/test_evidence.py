"""Every number of the committed documents follows from committed files: results, their tables and claims, the pages."""

import functools
import itertools
import json
import re
from pathlib import Path

import pandas as pd
import pytest

from depositum import experiments
from depositum.experiments.claims import JudgedClaim
from depositum.experiments.results import Results
from depositum.experiments.results_folder import judge_all, read_results, read_summary, report_texts

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
NAMES = [path.parent.name for path in sorted(RESULTS.glob("*/summary.json"))]
PERFORMANCE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")


@functools.cache
def judged_results(name: str) -> tuple[Results, list[JudgedClaim]]:
    """The committed results of an experiment, and its claims judged by them."""
    experiment = experiments.load_experiment(name)
    results = read_results(experiment, RESULTS / name)
    return results, judge_all(experiment, results)


@pytest.mark.parametrize("name", NAMES)
def test_tables_and_claims_follow_from_the_runs(name: str) -> None:
    """Fails if a number in them was edited, or if an experiment's file changed without `reproduce ID --redraw`."""
    experiment, folder = experiments.load_experiment(name), RESULTS / name
    results, judged = judged_results(name)
    for file, text in report_texts(experiment, results, judged, quick=False).items():
        assert (folder / file).read_text(encoding="utf-8") == text, file
    summary = read_summary(folder)
    verdicts = [each.verdict for each in judged]
    assert summary["claims"] == {verdict: verdicts.count(verdict) for verdict in summary["claims"]}
    assert sum(summary["claims"].values()) == len(verdicts)
    assert not summary["quick"]


@pytest.mark.parametrize("name", NAMES)
def test_every_verdict_has_its_test_and_its_reason(name: str) -> None:
    for each in judged_results(name)[1]:
        assert each.verdict != "not run", each.claim.text
        assert each.test, each.claim.text
        assert each.numbers
        if each.verdict != "holds":
            assert each.claim.reason, each.claim.text
            assert each.claim.reason in (RESULTS / name / "claims.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_summaries_follow_from_the_runs(name: str) -> None:
    """Seeds, divergences and chosen settings agree with `runs.csv` and `tuning.csv`; every cell took time."""
    folder, summary = RESULTS / name, read_summary(RESULTS / name)
    axes = experiments.load_experiment(name).axes
    runs = pd.read_csv(folder / "runs.csv", dtype=dict.fromkeys(axes, str))
    for labels, frame in runs.groupby(axes):
        cell = summary["cells"][", ".join(map(str, labels))]
        assert sorted(frame["seed"].unique()) == sorted(cell["seeds"])
        diverged = {int(text.split()[1]) for text in cell["diverged"]}
        assert set(frame.loc[frame["diverged"] == 1, "seed"]) == diverged
        assert cell["seconds"] > 0
    assert len(summary["cells"]) == runs.groupby(axes).ngroups
    assert summary["machines"]
    assert all({"depositum", "python", "torch"} <= set(each) for each in summary["versions"])
    if (folder / "tuning.csv").exists():
        chosen = pd.read_csv(folder / "tuning.csv").query("chosen == 1")["settings"]
        settings = [
            " ".join(f"{key}={value}" for key, value in one["settings"].items()) for one in summary["chosen"].values()
        ]
        assert sorted(chosen) == sorted(settings)


def test_the_page_follows_from_the_results() -> None:
    """Fails if docs/reproduction.md was edited by hand, or is older than the results: `reproduce --page` writes it."""
    path = ROOT / "docs" / "reproduction.md"
    assert path.read_text(encoding="utf-8") == experiments.reproduction_page(RESULTS, path)


#: Numbers in the prose of experiments: settings, and shares that a check states. Anything measured has two digits after
#: the point, a deviation, or a unit of time.
MEASURED = re.compile(r"±|\d+\.\d{2,} ?(?:%|points|seconds)|\d+ (?:s|ms|min|h)\b")


@pytest.mark.parametrize("name", experiments.experiment_names())
def test_prose_of_experiments_states_no_measurement(name: str) -> None:
    """A measured number belongs into a table or a claim, where a command makes it."""
    experiment = experiments.load_experiment(name)
    prose = [
        *experiment.remarks,
        *experiment.unstated,
        experiment.former,
        *(claim.reason for claim in experiment.claim),
    ]
    assert [text for text in prose if MEASURED.search(text)] == []


# docs/performance.md


def _paragraphs(text: str) -> list[str]:
    return [part for part in re.split(r"\n\s*\n", text) if part.strip()]


def test_measurements_name_the_command_that_prints_them() -> None:
    """In every paragraph of docs/performance.md with a measured number, or above its table; the command exists."""
    command, unit = (
        re.compile(r"`python (benchmarks/\w+\.py)"),
        re.compile(r"\d (?:ms|µs|ns|s|seconds|MB|GB|TB/s|TFLOP/s)\b"),
    )
    section = PERFORMANCE[PERFORMANCE.index("## Measurements") : PERFORMANCE.index("## Possible improvements")]
    paragraphs = _paragraphs(section)[1:]
    for before, text in itertools.pairwise(["", *paragraphs]):
        if not unit.search(text) and not text.startswith("|"):
            continue
        named = command.findall(text) or command.findall(before)
        assert named, text
        assert all((ROOT / script).exists() for script in named)


def test_measured_numbers_are_in_generated_tables_alone() -> None:
    """What is printed in docs/performance.md comes from files (`tests/benchmarks/test_performance_tables.py`)."""
    prose = re.sub(r"<!-- table: .*?<!-- end -->", "", PERFORMANCE, flags=re.DOTALL)
    measured = re.compile(r"\d(?:\.\d+)? ?(?:ms|µs|ns|s|seconds|times|MB|GB|GiB|TB/s|TFLOP/s|×)(?![\w(])")
    assert [line for line in prose.splitlines() if measured.search(line)] == []


def test_no_page_of_results_without_a_source() -> None:
    """Tables with a paper column are in the generated page alone."""
    for path in sorted((ROOT / "docs").glob("*.md")):
        if path.name != "reproduction.md":
            assert "| ours | paper |" not in path.read_text(encoding="utf-8"), path.name


def test_committed_summaries_are_json() -> None:
    assert NAMES
    for name in NAMES:
        assert json.loads((RESULTS / name / "summary.json").read_text(encoding="utf-8"))["id"] == name
