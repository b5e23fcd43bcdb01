"""The commands: arguments, output, files and exit codes."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import depositum
from depositum.algorithms import SCHEDULES, as_schedule
from depositum.errors import ConfigError
from depositum.report.tensorboard import TensorBoard
from depositum.runs import Config, apply_override, from_table, load
from depositum.runs.folder import MAY_CHANGE
from tests.support.small_runs import KillAt, Killed, cli, files, train, write_config

PNG = b"\x89PNG"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return write_config(tmp_path / "c.toml")


# run


@pytest.mark.slow
def test_run_writes_its_files_and_a_table(config: Path) -> None:
    """A run writes the files that the help names, and prints a table; run again, there is nothing to do."""
    first = cli("run", config, "--out", "out")
    assert first.code == 0
    assert first.err == ""
    assert "test accuracy" in first.out
    assert first.out.splitlines()[-2:] == [
        f"curves: {Path('out/curves.png')}",
        "one page about it: depositum report out",
    ]
    assert set(files(Path("out"))) == {
        "config.toml",
        "environment.toml",
        "history.csv",
        "consensus.csv",
        "clients.csv",
        "participants.json",
        "state.safetensors",
        "state.previous.safetensors",
        "model.safetensors",
        "curves.png",
    }
    assert Path("out/curves.png").read_bytes().startswith(PNG)
    before = files(Path("out"))
    second = cli("run", config, "--out", "out")
    assert (second.code, second.out) == (0, first.out)
    assert second.err == "out: nothing to do, 20 iterations are done\n"
    before.pop("curves.png")
    after = files(Path("out"))
    assert {name: after[name] for name in before} == before


@pytest.mark.slow
def test_run_without_out_has_a_default_folder(config: Path) -> None:
    assert cli("run", config, "--set", "run.steps=1").code == 0
    assert Path("runs/c/config.toml").exists()


@pytest.mark.slow
def test_settings_on_the_command_line_are_applied(config: Path) -> None:
    """Several --set options with values of all types reach the run's config.toml."""
    settings = ("algorithm.alpha=0.2", "run.steps=1", "run.seeds=[4, 5]", "network.topology.ring.hops=2")
    arguments = [part for setting in settings for part in ("--set", setting)]
    assert cli("run", config, "--out", "out", *arguments).code == 0
    written = tomllib.loads(Path("out/config.toml").read_text())
    assert written["algorithm"]["alpha"] == 0.2
    assert written["run"]["steps"] == 1
    assert written["run"]["seeds"] == [4, 5]
    assert written["network"]["topology"] == {"ring": {"hops": 2}}
    assert written["problem"]["clients"] == 4  # the rest of the file is unchanged


def test_override_replaces_a_name_by_a_table() -> None:
    table = {"network": {"topology": "star"}}
    apply_override(table, "network.topology.ring.hops=2")
    apply_override(table, "problem.dataset = a path/with spaces.npz")
    assert table == {
        "network": {"topology": {"ring": {"hops": 2}}},
        "problem": {"dataset": "a path/with spaces.npz"},
    }
    with pytest.raises(ConfigError, match="--set: 'run..steps=1' given"):
        apply_override(table, "run..steps=1")


@pytest.mark.slow
def test_divergence_is_reported(config: Path) -> None:
    """Exit code 2 and one line with the seed, variable, client and iteration, and the path of the last state."""
    x = np.linspace(-1, 1, 12)[:, None]
    np.savez("line.npz", x=x, y=np.zeros(12))
    settings = ("problem.dataset=line.npz", "problem.partition=iid", "algorithm.alpha=1e6", "run.batch_size=full")
    arguments = [part for setting in settings for part in ("--set", setting)]
    result = cli("run", config, "--out", "out", *arguments, "--set", "problem.beta=0.0", "--set", "run.steps=40")
    assert result.code == 2
    warning, error = result.err.splitlines()
    assert warning.startswith("seed 0 diverged: ")
    assert error.startswith("error: algorithm.alpha = 1000000.0: seed 0 diverged: ")
    assert "of client" in error
    assert "is not finite at iteration" in error
    assert error.endswith("the last finite state is kept in out/state.safetensors; try a smaller alpha")
    assert "train loss" in result.out  # the table is still shown
    # For a method whose stepsize has another name, the error names that one.
    problem = '[problem]\ndataset = "digits"\nmodel = "mlp"\nclients = 4\n'
    other = f'{problem}[algorithm]\nname = "prox-dasa"\neta = 1e38\n[run]\nsteps = 20\n'
    Path("eta.toml").write_text(other)
    error = cli("run", "eta.toml", "--out", "eta").err.splitlines()[-1]
    assert error.startswith("error: algorithm.eta = 1e+38: seed 0 diverged: ")
    assert error.endswith("try a smaller eta")
    assert Path("out/curves.png").read_bytes().startswith(PNG)


@pytest.mark.slow
def test_tensorboard_files(config: Path) -> None:
    """The option works in a new folder, and for every seed; a finished run writes nothing."""
    assert cli("run", config, "--out", "out", "--tensorboard", "--set", "run.seeds=[0, 1]").code == 0
    assert cli("run", config, "--out", "out", "--tensorboard", "--set", "run.seeds=[0, 1]").code == 0
    assert len(list(Path("out/tensorboard").glob("seed-?/events.out.tfevents.*"))) == 2
    for seed in (0, 1):
        assert [event.step for event in scalars(seed, "train_loss")] == [0, 4, 8, 12, 16, 20]


def test_tensorboard_of_a_killed_run(config: Path) -> None:
    """Records after the last checkpoint (12) are written again, and shown once."""
    with pytest.raises(Killed):
        train(config, Path("out"), TensorBoard("out/tensorboard"), KillAt(17))
    assert [event.step for event in scalars(0, "train_loss")] == [0, 4, 8, 12, 16]
    result, _ = train(config, Path("out"), TensorBoard("out/tensorboard"))
    losses = scalars(0, "train_loss")
    assert [event.step for event in losses] == [0, 4, 8, 12, 16, 20]
    np.testing.assert_allclose([event.value for event in losses], result.history.frame["train_loss"], rtol=1e-6)


def scalars(seed: int, name: str) -> list[Any]:
    events = EventAccumulator(f"out/tensorboard/seed-{seed}")
    events.Reload()
    return list(events.Scalars(name))


# compare


@pytest.mark.slow
def test_compare_prints_a_table_and_draws_a_figure(config: Path) -> None:
    train(config, Path("a"))
    train(config, Path("b"), overrides=("algorithm.alpha=0.2", "run.seeds=[0, 1]"))
    first = cli("compare", "a", "b")
    assert first.code == 0
    header = next(line for line in first.out.splitlines() if "a" in line and "b" in line)
    assert header.index("a") < header.index("b")
    assert "±" in first.out  # b has two seeds
    picture = Path("compare.png").read_bytes()
    assert picture.startswith(PNG)

    failed = cli("compare", "a", "b", "--against", "phases")
    assert failed.code == 2
    assert failed.err == ("error: --out: 'compare.png' exists; choose another file, or pass --force to overwrite it\n")
    assert Path("compare.png").read_bytes() == picture
    assert cli("compare", "a", "b", "--against", "phases", "--force").code == 0
    assert Path("compare.png").read_bytes() != picture
    assert cli("compare", "a", "--out", "one.svg").code == 0
    assert "<svg" in Path("one.svg").read_text()


@pytest.mark.slow
def test_compare_does_not_overwrite_a_foreign_figure(config: Path) -> None:
    """It redraws its own figure with every call, but not another file in the same folder."""
    Path("mine").mkdir()
    Path("mine/compare.png").write_text("mine")
    arguments = ("compare", config, "--methods", "depositum", "--set", "run.steps=4", "--out", "mine")
    assert cli(*arguments).err == (
        "error: --out: 'mine/compare.png' exists; choose another file, or pass --force to overwrite it\n"
    )
    assert Path("mine/compare.png").read_text() == "mine"
    assert cli(*arguments, "--force").code == 0
    assert cli(*arguments).code == 0
    assert Path("mine/compare.png").read_bytes().startswith(PNG)


@pytest.mark.slow
def test_compare_distinguishes_runs_with_equal_names(config: Path) -> None:
    train(config, Path("x/run"), overrides=("run.steps=4",))
    train(config, Path("y/run"), overrides=("run.steps=8",))
    out = cli("compare", "x/run", "y/run").out
    assert "x/run" in out
    assert "y/run" in out
    row = next(line for line in out.splitlines() if "iterations" in line)
    assert row.split()[3:] == ["4", "│", "8", "│"]


# show, data


def test_show_prints_the_heterogeneity(config: Path) -> None:
    """The heterogeneity is that of the run's partition, by its definition."""
    result = cli("show", config)
    assert result.code == 0
    assert Path("show.png").read_bytes().startswith(PNG)
    from depositum import data

    checked = load(config).config
    dataset = data.load(checked.problem.dataset)
    parts = data.partition(checked.problem.partition, dataset, 4, 0)
    labels = dataset.train.targets.numpy()
    overall = np.bincount(labels, minlength=3) / len(labels)
    shares = [np.bincount(labels[part], minlength=3) / len(part) for part in parts]
    expected = sum(len(p) / len(labels) * np.abs(q - overall).sum() / 2 for p, q in zip(parts, shares, strict=True))
    assert f"label distributions): {expected:.3f}" in result.out
    assert f"samples per client: {min(map(len, parts))} to {max(map(len, parts))}, 60 in all" in result.out
    assert "ring of 4 clients, 4 edges" in result.out
    assert cli("show", config).code == 2
    assert cli("show", config, "--force").code == 0


def test_show_without_classes(config: Path) -> None:
    """For a regression, only the network is drawn."""
    np.savez("line.npz", x=np.ones((12, 1)), y=np.zeros(12))
    result = cli("show", config, "--set", "problem.dataset=line.npz", "--set", "problem.partition=iid")
    assert result.code == 0
    assert "heterogeneity" not in result.out
    assert Path("show.png").exists()


def test_a_byte_order_mark_is_ignored(config: Path) -> None:
    """Some editors put one at the start of every file."""
    text = config.read_bytes()
    config.write_bytes(b"\xef\xbb\xbf" + text)
    assert load(config).config.run.steps == 20


def test_data_lists_present_and_missing_files(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPOSITUM_DATA", "mine")
    Path("mine/a9a").mkdir(parents=True)
    Path("mine/a9a/a9a.t").write_bytes(b"x" * 2048)
    result = cli("data")
    assert result.code == 0
    rows = {line.split()[1]: line for line in result.out.splitlines() if line.startswith("│")}
    assert "1 file, 2.0 KiB" in rows["a9a"]
    assert rows["a9a"].rstrip("│ ").endswith("│ a9a")
    assert "train-images-idx3-ubyte" in rows["mnist"]
    assert "digits and synthetic need no files" in result.out


# help


@pytest.mark.parametrize(
    ("command", "mentions"),
    [
        ("run", ["--set", "--out", "--tensorboard", "history.csv", "model.safetensors", "checkpoint", "130"]),
        ("compare", ["--out", "--against", "--force", "curves", "table"]),
        ("show", ["--set", "--out", "--force", "heterogeneous"]),
        ("theory", ["--smoothness", "--variance", "Theorem 1", "Corollary 1"]),
        ("data", ["NAME", "DEPOSITUM_DATA"]),
    ],
)
def test_help_explains_a_command(command: str, mentions: list[str]) -> None:
    result = cli(command, "--help")
    assert result.code == 0
    for word in mentions:
        assert word in result.out
    assert command in cli("--help").out


def test_version() -> None:
    assert cli("--version").out == f"depositum {depositum.__version__}\n"


# docs/cli.md


DOCS = Path(__file__).parents[2] / "docs" / "cli.md"


def documented() -> dict[str, str]:
    rows = (line.split("|") for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("| `"))
    return {cells[1].strip().strip("`"): cells[2].strip() for cells in rows}


def test_every_setting_is_documented_with_its_default() -> None:
    """A key that is added, renamed or given another default must be changed in the table of docs/cli.md too."""
    table = {key: text for key, text in documented().items() if key.partition(".")[0] in Config.model_fields}
    complete = from_table({}).table
    for name, section in Config.model_fields.items():
        keys = {*section.annotation.model_fields, *complete[name]}  # type: ignore[union-attr]
        for key in keys:
            default = complete[name].get(key)
            documented_default = table.pop(f"{name}.{key}")
            if default is None:
                assert documented_default == "not set"
            else:
                assert tomllib.loads(f"v = {documented_default.strip('`')}")["v"] == default
    assert table == {}


def test_schedules_are_documented_as_they_are_written() -> None:
    rows = [key for key in documented() if key.startswith("{")]
    assert len(rows) == len(list(SCHEDULES)) - 1  # a constant is written as a number
    for row in rows:
        as_schedule(tomllib.loads(f"alpha = {row}")["alpha"])


def test_settings_that_may_change_when_resuming_are_documented() -> None:
    line = next(line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("- Only "))
    assert all(f"`{key}`" in line for key in MAY_CHANGE)
    assert line.count("`run.") + line.count("`processes.") == len(MAY_CHANGE)
