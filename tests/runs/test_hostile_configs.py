"""Configurations that no one would write by hand are refused in one short line, quickly, before anything is built."""

import os
from pathlib import Path
from typing import Any

import pytest

from depositum.errors import MAX_MESSAGE, ConfigError, DepositumError, RunError
from depositum.networks import complete, erdos_renyi, ring
from depositum.networks.graphs import expected_links
from depositum.runs import build_engine, from_table, load
from tests.benchmarks.test_peers import BENCHMARKS
from tests.benchmarks.test_peers import load as load_script
from tests.support.small_runs import cli, train, write_config

hostile_configs = load_script(BENCHMARKS / "hostile_configs.py", "benchmark_hostile_configs")

#: Configurations of the campaign that are tried here.
SLICE = range(150)


def test_mutated_configurations_end_in_one_line_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if any of them ended in a traceback, or in a message that is long or not printable."""
    monkeypatch.chdir(tmp_path)
    outcomes = {
        number: hostile_configs.attempt(*hostile_configs.configuration(0, number), tmp_path) for number in SLICE
    }
    assert {number: outcome for number, outcome in outcomes.items() if not outcome[0].islower()} == {}
    assert {"accepted", "refused"} <= {word for word, _ in outcomes.values()}


DEEP = 100_000
TEXTS = {
    "nested lists": ("x = " + "[" * DEEP + "]" * DEEP, "nested deeper than 16 levels"),
    "nested tables": ("x = " + "{a=" * 5000 + "1" + "}" * 5000, "nested deeper than 16 levels"),
    "a few too many levels": (
        "[problem]\ndataset = " + "[" * 20 + "]" * 20,
        r"problem.dataset.*: nested deeper than 16",
    ),
    "a dotted key": (".".join(["a"] * DEEP) + " = 1", "a key has more than 32 parts"),
    "quoted parts": (" . ".join(['"a"'] * DEEP) + " = 1", "a key has more than 32 parts"),
    "a dotted section": (f"[{'.'.join(['a'] * DEEP)}]", "a key has more than 32 parts"),
    "thousands of digits": (f"[run]\nsteps = {'9' * 5000}", "whole number of thousands of digits"),
    "thousands of hexadecimal digits": (f"[run]\nsteps = 0x{'f' * 5000}", "run.steps: a whole number of more than 60"),
    "a step count of 10^30": (f"[run]\nsteps = {10**30}", "run.steps: 10{30} given; a whole number must be from"),
    "a seed of 10^30": (f"[run]\nseeds = [{10**30}]", r"run.seeds\[0\]: 10{30} given; a whole number must be from"),
    "a text of half a megabyte": (
        f'[problem]\nmodel = "{"m" * 500_000}"',
        "problem.model: 'm{19}…' .500000 characters",
    ),
    "a name with NUL": (
        '[problem]\ndataset = "a\\u0000b"',
        r"problem.dataset: 'a\\x00b' given; a text must not contain",
    ),
    "a long key": (f"[run]\n{'k' * 100_000} = 1", "run: the key 'k{19}…' .100000 characters. given"),
    "a date": ("[run]\nsteps = 1979-05-27", "run.steps: 1979-05-27 given; a setting cannot be a date or a time"),
    "two megabytes": ("#" * 2_000_000, "has more than 1000000 bytes"),
}


@pytest.mark.parametrize(("text", "problem"), TEXTS.values(), ids=TEXTS.keys())
def test_a_file_that_is_out_of_bounds_is_one_line(tmp_path: Path, text: str, problem: str) -> None:
    """A dotted key of 100,000 parts takes 40 GB in the parser; 5,000 digits and deep nesting end in tracebacks."""
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem) as error:
        load(path)
    assert len(str(error.value)) <= MAX_MESSAGE
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        (
            f"run.steps={'9' * 5000}",
            "--set: 'run.steps=999999999…' .5010 characters. given: it has a whole number of tho",
        ),
        (f"run.steps={10**30}", "run.steps: 10{30} given; a whole number must be from"),
        (f"problem.model={'[' * 2000}", "--set: .* nested deeper than 16 levels"),
        (f"problem.{'a.' * 50}b=1", "nested deeper than 16 levels"),
    ],
)
def test_an_option_that_is_out_of_bounds_is_one_line(tmp_path: Path, override: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as error:
        load(write_config(tmp_path / "c.toml"), [override])
    assert len(str(error.value)) <= MAX_MESSAGE


@pytest.mark.parametrize("topology", ["ring", "complete", "star", "grid", "erdos-renyi", "hypercube"])
@pytest.mark.parametrize("clients", [10**6, 2**40, 2**62, 2**63 - 1])
def test_clients_beyond_the_machine_are_refused_before_a_graph_is_built(topology: str, clients: int) -> None:
    table: dict[str, Any] = {"problem": {"clients": clients}, "network": {"topology": topology}}
    with pytest.raises(ConfigError, match=f"problem.clients: {clients} given; a network can have at most 100000"):
        from_table(table)


def test_links_beyond_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The complete graph of 50,000 clients has a billion links."""
    monkeypatch.setattr("depositum.networks.graphs.available_memory", lambda: 16 << 30)
    with pytest.raises(
        ConfigError, match="problem.clients: 50000 given, but 'complete' has about 1.2e.09 links, which"
    ):
        from_table({"problem": {"clients": 50_000}, "network": {"topology": "complete"}})
    with pytest.raises(ConfigError, match="^n: 60000 given, but 'ring' has about 1.8e.09 links"):
        ring(60_000, hops=10**9)


@pytest.mark.parametrize("network", [complete(50), ring(50, hops=3), erdos_renyi(400, p=0.1)], ids=lambda n: n.name)
def test_the_estimate_of_links_is_close(network: Any) -> None:
    name, _, rest = network.name.partition("(")
    arguments = dict(part.split("=") for part in rest.rstrip(")").split(", ") if part)
    estimate = expected_links(name, network.n, **{key: float(value) for key, value in arguments.items()})
    assert estimate == pytest.approx(network.edges, rel=0.1)


@pytest.mark.parametrize(
    ("problem", "run", "message"),
    [
        ({"dataset": {"synthetic": {"samples": 10**13}}}, {}, "problem.dataset.synthetic.samples: 10{13} given, which"),
        ({"model": {"mlp": {"hidden": [10**7, 10**7]}}}, {}, "problem.model: 'mlp' with these arguments takes 363"),
        (
            {"model": {"mlp": {"hidden": [10**12, 10**12]}}},
            {},
            "problem.model: 'mlp' with these arguments is too large",
        ),
        ({}, {"batch_size": 10**15}, "run.batch_size: 10{15} given, but batches take .* of memory"),
    ],
)
def test_what_does_not_fit_into_memory_is_refused(tmp_path: Path, problem: Any, run: Any, message: str) -> None:
    """Torch and NumPy raise RuntimeError and MemoryError, or the system ends the process."""
    with pytest.raises(DepositumError, match=message) as error:
        build_engine([load(write_config(tmp_path / "c.toml", problem=problem, run=run))])
    assert len(str(error.value)) <= MAX_MESSAGE


def test_rows_that_do_not_fit_into_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("depositum.runs.problems.available_memory", lambda: 1000)
    message = "problem.clients: 4 given, but 8 models of 15 parameters .clients × seeds. take 1.4 KiB of memory; 1000 B"
    with pytest.raises(ConfigError, match=message):
        build_engine([load(write_config(tmp_path / "c.toml", run={"seeds": [0, 1]}))])


def test_a_huge_number_of_steps_is_accepted(tmp_path: Path) -> None:
    """As many steps as 63 bits can count: the run is stopped by hand."""
    spec = load(write_config(tmp_path / "c.toml", run={"steps": 2**63 - 1, "evaluate_every": 8}))
    assert spec.config.run.steps == 2**63 - 1


@pytest.mark.parametrize("make", ["nested", "fifo", "folder", "digits"])
def test_a_run_folder_with_such_a_configuration_is_refused(tmp_path: Path, make: str) -> None:
    config = write_config(tmp_path / "c.toml")
    stored = tmp_path / "run" / "config.toml"
    stored.parent.mkdir()
    if make == "fifo":
        os.mkfifo(stored)
    elif make == "folder":
        stored.mkdir()
    else:
        stored.write_text("x = " + "[" * DEEP if make == "nested" else f"[run]\nsteps = {'9' * 5000}")
    with pytest.raises(RunError, match="its config.toml is not that of a run"):
        train(config, tmp_path / "run")


@pytest.mark.parametrize("command", ["run", "show", "theory"])
def test_commands_print_one_line_and_exit_with_2(tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text("x = " + "[" * DEEP)
    result = cli(command, tmp_path / "c.toml")
    assert result.code == 2
    assert result.err == f"error: {tmp_path / 'c.toml'}: is not valid TOML: it is nested deeper than 16 levels\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.toml"]
