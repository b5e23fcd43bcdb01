"""The tables of docs/performance.md are those of the committed measurements."""

import pytest

from tests.benchmarks.test_peers import BENCHMARKS, load

tables = load(BENCHMARKS / "performance_tables.py", "benchmark_performance_tables")
PAGE = tables.PAGE.read_text(encoding="utf-8")
NAMES = [name for _, name, _ in tables.MARKED.findall(PAGE)]


def test_every_file_of_measurements_is_shown() -> None:
    shown = {file for name in NAMES for file in tables.TABLES[name][1]}
    assert {path.name for path in tables.RESULTS.iterdir()} <= shown


def test_the_page_shows_the_committed_measurements() -> None:
    """`python benchmarks/performance_tables.py --write` puts them there."""
    assert tables.with_tables(PAGE) == PAGE


@pytest.mark.parametrize("name", [name for name in NAMES if tables.text_of(name)])
def test_a_changed_measurement_changes_the_page(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a table does not come from the files."""

    def doubled(value: object) -> object:
        if isinstance(value, dict):
            return {key: doubled(each) for key, each in value.items()}
        if isinstance(value, list):
            return [doubled(each) for each in value]
        return 2 * value if isinstance(value, float) else value

    read = tables.read
    monkeypatch.setattr(tables, "read", lambda file: doubled(read(file)))
    assert tables.text_of(name) not in PAGE


def test_kernels_are_grouped_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [
        {"name": "triton_poi_fused_add_3", "microseconds": 10.0, "bytes": 21e6, "operations": 0.0},
        {"name": "triton_poi_fused_add_4", "microseconds": 10.0, "bytes": 21e6, "operations": None},
        {"name": "void cutlass::Kernel2<x_64>(y)", "microseconds": 20.0, "bytes": None, "operations": 3.5e9},
    ]
    case = {"case": "mlp:10:1", "machine": "here", "limits": [4.2e12, 3.5e14], "iteration_ms": 0.05, "state_us": 3.0}
    monkeypatch.setattr(tables, "read", lambda file: [{**case, "kernels": kernels}])
    text = tables.roofline()
    assert "50 µs per iteration, 40 in its 3 kernels, at least 20 by the bounds" in text
    assert "| `triton_poi_fused_add` | 2 | 20 | 42 | 50 % | 0.0 | 0 % | 10 |" in text
    assert "| `cutlass::Kernel2` | 1 | 20 | 0 | 0 % | 3.5 | 50 % | 10 |" in text
