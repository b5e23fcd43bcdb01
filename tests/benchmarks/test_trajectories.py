"""The comparison of recorded trajectories finds differences, and counts of code lines are right."""

from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.test_peers import BENCHMARKS, load

trajectories = load(BENCHMARKS / "trajectories.py", "benchmark_trajectories")
structure = load(BENCHMARKS / "structure.py", "benchmark_structure")


@pytest.mark.parametrize(
    ("old", "new", "relative"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, np.nan], [1.0, np.nan], 0.0),
        ([1.0, 1000.0], [1.0, 1001.0], 1e-3),
        ([0.001], [0.002], 1e-3),
        ([1.0, np.nan], [1.0, 2.0], np.inf),
        ([1.0], [1.0, 2.0], np.inf),
        (["a"], ["b"], np.inf),
        (["a"], ["a"], 0.0),
    ],
)
def test_difference_is_relative_to_values_above_one(old: list[object], new: list[object], relative: float) -> None:
    assert trajectories.difference(np.array(old), np.array(new))[1] == pytest.approx(relative)


def test_comparison_fails_for_differences_and_missing_arrays_unless_excepted() -> None:
    record = {"run": {"state/x": np.ones(3), "config.toml/text": np.array("{}")}}
    changed = {"run": {**record["run"], "state/x": np.full(3, 1 + 1e-9)}}
    rounded = {"run": {**record["run"], "state/x": np.full(3, 1 + 1e-15)}}
    written = {"run": {**record["run"], "config.toml/text": np.array('{"run": {"steps": 1}}')}}
    assert trajectories.compare(record, record, {}) == 0
    assert trajectories.compare(record, rounded, {}) == 0
    assert trajectories.compare(record, written, {}) == 0
    assert trajectories.compare(record, changed, {}) == 1
    assert trajectories.compare(record, {}, {}) == 1
    assert trajectories.compare(record, changed, {"run": "a reason"}) == 0


def test_records_are_read_as_written(tmp_path: Path) -> None:
    record = {"a/b.csv/x": np.array([1.0, np.nan]), "c/text": np.array("{}"), "n": np.arange(3)}
    trajectories.write_record(tmp_path / "r.npz", record)
    again = trajectories.read_record(tmp_path / "r.npz")
    assert list(again) == list(record)
    assert all(np.array_equal(again[key], record[key], equal_nan=key != "c/text") for key in record if key != "c/text")
    assert str(again["c/text"]) == "{}"


def test_code_lines_exclude_blank_lines_comments_and_docstrings() -> None:
    source = '"""It."""\n\nx = 1  # one\n# two\n\n\ndef f():\n    """\n    Text.\n    """\n    return """a\nb"""\n'
    assert structure.code_lines(source) == 4
