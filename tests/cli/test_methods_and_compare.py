"""Methods on the command line: selected, rejected, compared on one configuration, explained."""

from pathlib import Path

import pytest

from depositum.algorithms import ALGORITHMS
from depositum.runs import load
from tests.support.small_runs import cli, write_config


def plain(path: Path, name: str, **changes: dict) -> Path:
    """A configuration for the method `name`, without DEPOSITUM's hyper-parameters."""
    write_config(path, algorithm={"name": name}, **changes)
    lines = [line for line in path.read_text().splitlines() if not line.startswith(("alpha =", "gamma ="))]
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("depositun", {}, "algorithm.name: 'depositun' is not an algorithm"),
        ("deepstrom", {}, "did you mean 'deepstorm'?"),
        ("extra", {"problem": {"beta": 0.0}}, "run.period: 3 given, but 'extra' supports only 1"),
        ("d-psgd", {}, "problem.regularizer: 'd-psgd' is for smooth problems"),
        ("fedmid", {"network": {"topology": "ring"}}, "network.topology: 'ring' given, but 'fedmid' has a server"),
    ],
)
def test_invalid_methods_are_reported_in_one_line(name: str, changes: dict, message: str, tmp_path: Path) -> None:
    result = cli("run", plain(tmp_path / "c.toml", name, **changes), "--out", tmp_path / "out")
    assert result.code == 2
    assert message in result.err
    assert len(result.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_an_unknown_hyper_parameter(tmp_path: Path) -> None:
    config = write_config(tmp_path / "c.toml", algorithm={"name": "fedmid", "gama": 0.5})
    result = cli("run", config, "--out", tmp_path / "out")
    assert result.code == 2
    assert "unknown key" in result.err


def test_a_server_method_runs_without_a_network(tmp_path: Path) -> None:
    """Its complete configuration has no network section, and can be run again."""
    config = plain(tmp_path / "c.toml", "fedmid")
    assert cli("run", config, "--out", tmp_path / "out").code == 0
    written = (tmp_path / "out" / "config.toml").read_text()
    assert "[network]" not in written
    assert load(tmp_path / "out" / "config.toml").algorithm.name == "fedmid"


METHODS = "depositum,dsgt,fedmid,extra"


@pytest.mark.slow
def test_compare_runs_methods_on_one_configuration(tmp_path: Path) -> None:
    """One table and one figure; methods share seeds, partition and initial model, and have their overrides."""
    config = write_config(
        tmp_path / "c.toml",
        network={"topology": "ring"},
        override={
            "smooth": {"problem": {"beta": 0.0}},
            "extra": {"run": {"period": 1}, "algorithm": {"alpha": 0.05}},
        },
    )
    result = cli("compare", config, "--methods", METHODS, "--out", tmp_path / "all")
    assert result.code == 0, result.err
    for name in METHODS.split(","):
        assert name in result.out
        assert (tmp_path / "all" / name / "state.safetensors").exists()
    assert (tmp_path / "all" / "compare.png").stat().st_size > 10_000
    extra = load(tmp_path / "all" / "extra" / "config.toml").config
    assert (extra.problem.beta, extra.run.period) == (0.0, 1)
    first = {name: (tmp_path / "all" / name / "history.csv").read_text().splitlines()[1] for name in METHODS.split(",")}
    losses = {name: line.split(",")[6] for name, line in first.items()}
    assert len(set(losses.values())) == 1, "at t = 0 every method has the same model"
    again = cli("compare", config, "--methods", METHODS, "--out", tmp_path / "all")
    assert again.code == 0
    assert "0.0 s left" not in again.err


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({"extr": {"run": {"period": 1}}}, "override.extr: is not a method"),
        ({"extra": {"rnu": {"period": 1}}}, "override.extra.rnu: unknown section"),
        ({"extra": {"run": {"perod": 1}}}, "override.extra.run.perod: unknown key"),
        ({"gut": {"algorithm": {"alpa": 1.0}}}, "override.gut.algorithm.alpa: unknown key; it can be 'alpha', "),
        ({"smooth": {"problem": {"bta": 0.0}}}, "override.smooth.problem.bta: unknown key"),
        ({"extra": {"algorithm": {"name": "fedavg"}}}, "override.extra.algorithm.name: unknown key"),
        ({"smooth": {"algorithm": {"name": "fedavg"}}}, "override.smooth.algorithm.name: unknown key"),
    ],
)
def test_invalid_overrides_are_rejected(override: dict, message: str, tmp_path: Path) -> None:
    """Also those of methods that are not run: otherwise the error would appear only when they are."""
    config = write_config(tmp_path / "c.toml", override=override)
    result = cli("compare", config, "--methods", "depositum,extra", "--out", tmp_path / "all")
    assert result.code == 2
    assert message in result.err
    assert not (tmp_path / "all").exists()


def test_the_command_line_takes_precedence_in_a_single_run(tmp_path: Path) -> None:
    """With several methods, --set changes the base configuration, and each method keeps its overrides."""
    path = write_config(tmp_path / "c.toml", override={"depositum": {"run": {"steps": 3}}})
    assert load(path).config.run.steps == 3
    assert load(path, ["run.steps=9"]).config.run.steps == 9
    assert load(path, ["override.depositum.run.steps=5"]).config.run.steps == 5
    steps = {name: load(path, ["run.steps=9"], name).config.run.steps for name in ("depositum", "deepstorm")}
    assert steps == {"depositum": 3, "deepstorm": 9}


@pytest.mark.parametrize("option", [("--methods", "extra"), ("--set", "run.steps=3")])
def test_options_for_a_configuration_are_rejected_with_folders(option: tuple[str, str], tmp_path: Path) -> None:
    """If they were ignored, the table would seem to show what was asked for."""
    result = cli("compare", tmp_path / "a", tmp_path / "b", *option)
    assert result.code == 2
    assert f"{option[0]}: {option[1]} given; it can only be used with CONFIG.toml, not with folders" in result.err


def test_comparing_an_unknown_method(tmp_path: Path) -> None:
    result = cli("compare", write_config(tmp_path / "c.toml"), "--methods", "depositum,fedavgg")
    assert result.code == 2
    assert "did you mean 'fedavg'?" in result.err


def test_methods_are_listed() -> None:
    result = cli("methods")
    assert result.code == 0
    for name in ALGORITHMS:
        assert name in result.out
    for column in ("O(1/(n T0 ε²))", "O(1/(√n ε²))", "2K", "3K"):
        assert column in result.out


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_one_method_is_explained(name: str) -> None:
    result = cli("methods", name)
    assert result.code == 0
    assert "defaults:" in result.out
    assert "=" in result.out


def test_explaining_an_unknown_method() -> None:
    result = cli("methods", "depositun")
    assert result.code == 2
    assert "did you mean 'depositum'?" in result.err
