"""Processes that are started by environment variables alone, in the restart loop that the documents recommend."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.rank_processes import launch
from tests.support.rank_runs import run_watching_pickles
from tests.support.small_runs import write_config

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def process_faults() -> ModuleType:
    """The campaign of faults, whose scenarios are single tests here."""
    spec = importlib.util.spec_from_file_location("process_faults", ROOT / "benchmarks" / "process_faults.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_documented_loop_is_the_one_that_is_tested(process_faults: ModuleType) -> None:
    documented = process_faults.RESTART_LOOP.format(command="python -m depositum run CONFIG.toml")
    assert documented in (ROOT / "docs" / "processes.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_no_pickle_is_looked_up(tmp_path: Path) -> None:
    """From the meeting to the end of a run. Fails if something from the network is unpickled: whoever can reach the
    store could then execute code.
    """
    config = write_config(tmp_path / "c.toml", processes={"timeout": 20.0})
    for result, lookups in launch(run_watching_pickles, 2, str(config), "--out", str(tmp_path / "out")):
        assert result.code == 0, result.err
        assert lookups == []


@pytest.mark.slow
def test_a_host_that_dies_returns_alone_to_the_same_bytes(process_faults: ModuleType, tmp_path: Path) -> None:
    """Three hosts with restart loops; one is killed with its loop and started again. `benchmarks/process_faults.py` has
    all other faults.
    """
    campaign = process_faults.Campaign(tmp_path)
    for name, scenario in (("undisturbed", campaign.undisturbed), ("host", lambda c: campaign.host(c, 2))):
        cluster = process_faults.Cluster(tmp_path / name)
        try:
            assert scenario(cluster)
        finally:
            cluster.kill()
