"""The benchmark of peers, without installing any: clock, table, failures, and the run of this package."""

import importlib.util
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def load(path: Path, name: str) -> ModuleType:
    """Import a script as a module under a name that is not otherwise used."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module there
    spec.loader.exec_module(module)
    return module


peers = load(BENCHMARKS / "peers.py", "benchmark_peers")
timed_settings = load(BENCHMARKS / "peers" / "timed_settings.py", "benchmark_timed_settings")


def test_clock_excludes_the_warm_up_and_divides_rounds_by_their_steps():
    """Breaks if compilation were timed, or a round were reported as an iteration."""
    now = iter([100.0, 151.0, 151.2, 151.6, 151.9])  # two rounds of warm-up, the last slow, then 0.2, 0.4 and 0.3 s
    clock = timed_settings.Clock(steps=30, steps_per_round=10, now=lambda: next(now))
    while not clock.done:
        clock.tick()
    assert clock.rounds == pytest.approx([0.2, 0.4, 0.3])
    assert clock.milliseconds == pytest.approx(30)


def test_clock_without_steps_times_enough_seconds_and_rounds():
    """Breaks if slow peers were judged by one round, or fast ones by a fraction of a second."""
    for seconds, expected in ((0.001, 4000), (100.0, 3)):
        times = iter(np.arange(10_000) * seconds)
        clock = timed_settings.Clock(now=lambda times=times: float(next(times)))
        while not clock.done:
            clock.tick()
        assert len(clock.rounds) == pytest.approx(expected, abs=1)


def test_settings_have_the_documented_sizes_and_fixed_data():
    """Breaks if a peer were given other shapes or sizes than the table states, or data that differ between peers."""
    assert tuple(timed_settings.SETTINGS) == peers.SETTINGS
    parameters = {}
    for name, setting in timed_settings.SETTINGS.items():
        inputs, labels = timed_settings.client_data(setting, 3)
        assert inputs.shape == (setting.samples, *setting.shape)
        assert inputs.dtype == np.float32
        assert labels.shape == (setting.samples,)
        assert labels.dtype == np.int64
        assert set(labels) <= set(range(setting.classes))
        np.testing.assert_array_equal(inputs, timed_settings.client_data(setting, 3)[0])
        assert not np.array_equal(inputs, timed_settings.client_data(setting, 4)[0])
        assert name.endswith(f"-{setting.n}")
        assert setting.samples >= timed_settings.BATCH_SIZE
        dense = sum((wide + 1) * narrow for wide, narrow in pairwise(setting.widths))
        parameters[name] = dense + (setting.cnn and 16 * 10 + 32 * (16 * 9 + 1))
    # The paper's models: 248, 109,386 and 268,362 parameters.
    assert parameters == {"linear-10": 248, "linear-1000": 248, "mlp-10": 109_386, "cnn-20": 268_362}


def test_every_peer_has_a_script():
    """Breaks if a name on the command line had no script."""
    for name in peers.PEERS:
        assert (BENCHMARKS / "peers" / f"{name.partition('-')[0]}_peer.py").is_file()


def test_torch_pin_is_that_of_the_package():
    """Breaks if the torch peers ran on another torch than the package was tested with."""
    assert peers.torch_pin() in (BENCHMARKS.parent / "constraints.txt").read_text().splitlines()


def test_reason_is_the_last_error():
    """Breaks if a failed installation were reported by its first line, or by a warning after the error."""
    assert peers.reason("looking\nERROR: no such version\n\nnotice: upgrade pip\n") == "ERROR: no such version"
    assert peers.reason("one\ntwo\n") == "two"
    assert peers.reason("") == "no reason given"


def test_failed_installation_is_reported_and_other_peers_are_measured(tmp_path, monkeypatch, capsys):
    """Breaks if a failed peer stopped the others, or left an environment that is considered complete."""

    def run_quietly(command: list[str]) -> str:
        if "pip" in command:
            raise peers.NotInstalledError("no such version")
        return ""

    def measure(name: str, python: Path, setting: str, steps: int | None) -> dict[str, object]:
        assert name == "depositum"
        assert python == Path(sys.executable)
        return {"peer": name, "setting": setting, "n": 10, "ms_per_iteration": 1.5, "note": "measured"}

    monkeypatch.setattr(peers, "run_quietly", run_quietly)
    monkeypatch.setattr(peers, "measure", measure)
    options = ["--peers", "fedjax,depositum", "--settings", "linear-10", "--cache", str(tmp_path / "cache")]
    monkeypatch.setattr(sys, "argv", ["peers.py", str(tmp_path / "out"), *options])
    peers.main()
    records = json.loads((tmp_path / "out" / "peers.json").read_text())["records"]
    assert [r["ms_per_iteration"] for r in records] == [None, 1.5]
    assert records[0]["note"] == "not installed: no such version"
    printed = capsys.readouterr().out
    assert "| fedjax | – |" in printed
    assert "| depositum | 1.5 |" in printed
    assert "fedjax, linear-10: not installed: no such version" in printed
    assert not (tmp_path / "cache" / "fedjax" / "ready").exists()


def test_environment_with_cuda_is_not_complete(tmp_path, monkeypatch):
    """Breaks if a peer with CUDA libraries were measured as a CPU build, or its environment reused."""
    (tmp_path / "pfl").mkdir()
    monkeypatch.setattr(peers, "run_quietly", lambda command: "numpy==2.4\nnvidia-cublas==13.1\n")
    with pytest.raises(peers.NotInstalledError, match=r"nvidia-cublas==13\.1"):
        peers.install("pfl", tmp_path)
    assert not (tmp_path / "pfl" / "ready").exists()
    monkeypatch.setattr(peers, "run_quietly", lambda command: "numpy==2.4\n")
    assert peers.install("pfl", tmp_path) == tmp_path / "pfl" / "bin" / "python"
    monkeypatch.setattr(peers, "run_quietly", lambda command: pytest.fail("a complete environment is created again"))
    peers.install("pfl", tmp_path)


def test_script_that_fails_is_a_record_with_its_reason(tmp_path, monkeypatch):
    """Breaks if a crash of a peer ended the benchmark, or left the peer out of the table."""
    (tmp_path / "broken_peer.py").write_text('print("half way")\nraise RuntimeError("it broke")\n')
    monkeypatch.setattr(peers, "SCRIPTS", tmp_path)
    record = peers.run_script("broken", Path(sys.executable), "linear-10", None, 1)
    assert record["ms_per_iteration"] is None
    assert record["note"] == "failed: RuntimeError: it broke"


def test_faster_number_of_threads_counts(monkeypatch):
    """Breaks if a peer were judged by its slower number of threads, or by one that failed."""
    times = {1: None, 2: 7.0}
    monkeypatch.setattr(peers, "run_script", lambda *a: {"threads": a[-1], "ms_per_iteration": times[a[-1]]})
    assert peers.measure("torch", Path(sys.executable), "linear-10", None)["threads"] == 2
    times[1] = 5.0
    assert peers.measure("torch", Path(sys.executable), "linear-10", None)["threads"] == 1


@pytest.mark.parametrize("options", [["--peers", "torhc"], ["--settings", "linear-11"]])
def test_unknown_names_are_rejected(tmp_path, options):
    """Breaks if a misspelt peer were skipped silently."""
    command = [sys.executable, str(BENCHMARKS / "peers.py"), str(tmp_path), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert repr(options[1]) in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["depositum", "torch"])
def test_peers_without_installation_run(name, monkeypatch):
    """Breaks if the scripts of this package or of plain torch no longer ran, or did not print their record."""
    monkeypatch.setenv("DEPOSITUM_PEER_COMPILE", "never")
    record = peers.run_script(name, Path(sys.executable), "linear-10", 20, 1)
    assert record["peer"] == name, record
    assert record["n"] == 10
    assert record["rounds"] == 2
    assert record["ms_per_iteration"] > 0
