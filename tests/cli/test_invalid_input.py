"""Invalid input: one line that names the key as the user wrote it, exit code 2, no traceback, nothing written."""

import errno
import os
import re
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from tests.support.small_runs import cli, files, write_config


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration next to some broken files, without datasets and without network access."""

    def unreachable(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "there is no network in tests")

    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    monkeypatch.setenv("DEPOSITUM_DATA", str(tmp_path / "no data"))
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "complete.npz", x=np.ones((8, 2)), y=np.arange(8) % 2)
    np.savez(tmp_path / "nan.npz", x=np.array([[0.0], [1.0], [np.nan], [3.0]]), y=np.zeros(4, dtype=int))
    content = (tmp_path / "complete.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(content[: len(content) // 2])
    (tmp_path / "split.txt").write_text("0 1\n2 3\n")
    (tmp_path / "broken.py").write_text(
        "from torch import nn\n"
        "def narrow(shape, classes): return nn.Linear(7, classes)\n"
        "def fails(shape, classes): raise RuntimeError('of its own,\\nover two lines')\n"
        "def number(shape, classes): return 3\n"
    )
    return write_config(tmp_path / "c.toml")


#: Settings, the key that the error must name, and a pattern for the rest of the message.
WRONG: list[tuple[str | tuple[str, ...], str, str]] = [
    # names of keys and sections
    ("problem.clinets=3", "problem.clinets", "unknown key; it can be 'dataset', .*; did you mean 'clients'?"),
    ("problme.clients=3", "problme", "unknown section; it can be 'problem', .*; did you mean 'problem'?"),
    ("overide.extra.run.period=1", "overide", "unknown section; .*; did you mean 'override'?"),
    ("algorithm.alhpa=0.1", "algorithm.alhpa", "unknown key; it can be 'alpha', .*; did you mean 'alpha'?"),
    ("algorithm.alpha={cosine={start=0.1, steps=3, edn=0}}", "algorithm.alpha.cosine.edn", "did you mean 'end'?"),
    ("network.topology={ring={hop=2}}", "network.topology.ring.hop", "did you mean 'hops'?"),
    # choices by name
    ("algorithm.name=depositun", "algorithm.name", "'depositun' is not an algorithm; .*did you mean 'depositum'?"),
    ("network.topology=rnig", "network.topology", "'rnig' is not a topology; .*did you mean 'ring'?"),
    ("network.mixing=metropols", "network.mixing", "'metropols' is not a mixing rule; .*did you mean 'metropolis'?"),
    ("problem.regularizer=l11", "problem.regularizer", "'l11' is not a regularizer; .*did you mean 'l1'?"),
    ("problem.dataset=digts", "problem.dataset", "'digts' is not a dataset; .*did you mean 'digits'?"),
    ("problem.model=linaer", "problem.model", "'linaer' is not a model; .*did you mean 'linear'?"),
    ("problem.partition=iidd", "problem.partition", "'iidd' is not a partition; .*did you mean 'iid'?"),
    ("problem.loss=mes", "problem.loss", "'mes' is not a loss; .*did you mean 'mse'?"),
    ("algorithm.alpha={cosin={start=0.1, steps=3}}", "algorithm.alpha", "is not a schedule; .*did you mean 'cosine'?"),
    ("run.dtype=float23", "run.dtype", "'float23' given; it must be 'float32' or 'float64'; did you mean 'float32'?"),
    ("problem.weighting=sample", "problem.weighting", "did you mean 'samples'?"),
    ("run.batch_size=ful", "run.batch_size", "'ful' given; it must be a whole number or 'full'; did you mean 'full'?"),
    ("metrics.smoothness=mesure", "metrics.smoothness", "a number or 'measure'; did you mean 'measure'?"),
    ("run.device=mps", "run.device", "'mps' given; it can be 'auto', 'cpu', 'cuda'"),
    ("run.device=meta", "run.device", "'meta' given; it can be 'auto', 'cpu', 'cuda'"),
    ("problem.loss=tokens", "problem.loss", "'tokens' given, but the dataset is not text"),
    # types
    ('problem.clients="four"', "problem.clients", "'four' given; it must be a whole number"),
    ("problem.clients=4.0", "problem.clients", "4.0 given; it must be a whole number"),
    ("problem.clients=true", "problem.clients", "True given; it must be a whole number"),
    ("problem.partition=3", "problem.partition", "3 given; it must be a string or a table"),
    (
        "algorithm.alpha=fast",
        "algorithm.alpha",
        r"'fast' given; it must be a number or a schedule \{ power \| step \| cosine = \{ … \} \} or 'auto'",
    ),
    (
        "problem.model={mlp={hidden=8}}",
        "problem.model.mlp.hidden",
        "8 given; it must be a list of whole numbers ≥ 1$",
    ),
    (
        'problem.model={mlp={hidden="a"}}',
        "problem.model.mlp.hidden",
        "'a' given; it must be a list of whole numbers ≥ 1$",
    ),
    (
        "problem.model={mlp={hidden=[8, 0]}}",
        "problem.model.mlp.hidden",
        r"\[8, 0\] given; it must be a list of whole numbers ≥ 1$",
    ),
    ("problem.partition={dirichlet=0}", "problem.partition.dirichlet.theta", "0 given; it must be a number > 0$"),
    ("algorithm.name=3", "algorithm.name", "3 given; it must be a string"),
    ("run.seeds=x", "run.seeds", "'x' given; it must be a list"),
    ("run.seeds=[0, 1.5]", "run.seeds", "1.5 given; it must be a whole number"),
    # ranges
    ("algorithm.alpha=0", "algorithm.alpha", "given; it must be a number > 0"),
    ("algorithm.alpha=-0.5", "algorithm.alpha", "-0.5 given; it must be a number > 0"),
    ("algorithm.alpha=nan", "algorithm.alpha", "nan given; it must be a number > 0"),
    ("algorithm.alpha=inf", "algorithm.alpha", "inf given; it must be a number > 0"),
    ("algorithm.alpha={cosine={start=0, steps=3}}", "algorithm.alpha.cosine.start", "it must be a number > 0"),
    ("algorithm.gamma=1", "algorithm.gamma", "given; it must lie in"),
    ("algorithm.gamma=nan", "algorithm.gamma", "given; it must lie in"),
    ("problem.beta=nan", "problem.beta", "nan given; it must be a finite number"),
    ("problem.beta=inf", "problem.beta", "inf given; it must be a finite number"),
    ("problem.beta=-1", "problem.beta", "given; it must be a number ≥ 0"),
    ("problem.clients=0", "problem.clients", "0 given; it must be a whole number ≥ 1"),
    ("run.period=0", "run.period", "0 given; it must be a whole number ≥ 1"),
    ("run.steps=-1", "run.steps", "-1 given; it must be a whole number ≥ 0"),
    ("run.batch_size=0", "run.batch_size", "0 given; it must be a whole number ≥ 1"),
    ("run.evaluate_every=0", "run.evaluate_every", "0 given; it must be a whole number ≥ 1"),
    (
        "run.evaluate_from=-1",
        "run.evaluate_from",
        "-1 given; it must be a whole number from 0 to run.evaluate_every − 1",
    ),
    (
        ("run.evaluate_every=5", "run.evaluate_from=7", "metrics.costly_every=0"),
        "run.evaluate_from",
        "7 given; it must be a whole number from 0 to run.evaluate_every − 1 = 4",
    ),
    ("run.evaluate_from=0.5", "run.evaluate_from", "0.5 given; it must be a whole number"),
    ("run.checkpoint_every=0", "run.checkpoint_every", "0 given; it must be a whole number ≥ 1"),
    ("run.seeds=[]", "run.seeds", "given; it must be a list of different whole numbers"),
    ("run.seeds=[1, 1]", "run.seeds", "given; it must be a list of different whole numbers"),
    ("run.seeds=[-1]", "run.seeds", "given; it must be a list of different whole numbers from 0"),
    ("run.seeds=[9223372036854775808]", "run.seeds[0]", "a whole number must be from −2⁶³ to 2⁶³ − 1"),
    ("metrics.costly_every=-1", "metrics.costly_every", "-1 given"),
    ("metrics.costly_every=7", "metrics.costly_every", "must be a multiple of run.evaluate_every"),
    ("metrics.alpha=nan", "metrics.alpha", "nan given; it must be a finite number"),
    # incompatible settings
    (
        ("problem.regularizer=mcp", "problem.beta=1", "algorithm.alpha=9"),
        "algorithm.alpha",
        "αβρ = 9·0.2 = 1.8, but the prox is single-valued only below 1, for prox steps < 5; change alpha",
    ),
    ("problem.loss=mse", "problem.loss", "1 target and 3 outputs; use 'cross-entropy' for class labels$"),
    ("problem.loss=logistic", "problem.loss", "'logistic' given, but 'synthetic' has 3 classes; it is for two"),
    (("network.topology=hypercube", "problem.clients=10"), "network.topology", "10"),
    ("network.topology=split.txt", "network.topology", "2 components: client 2 cannot reach client 0"),
    ("network.topology=no.txt", "network.topology", "no.txt does not exist"),
    ("network.mixing=uniform", "network.mixing", "clients 0 and 2 are not linked"),
    ("problem.clients=61", "problem.clients", "61 given, but it must be from 1 to the 60 training samples"),
    ("run.precision=tf32", "run.precision", "'tf32' needs a GPU"),
    (("run.dtype=float64", "run.precision=bf16"), "run.precision", "'bf16' given with dtype float64"),
    ("problem.model=cnn", "problem.model", "'cnn' takes images"),
    # user-defined data and models
    ("problem.dataset=no.npz", "problem.dataset", "no.npz: no such file or folder"),
    ("problem.dataset=cut.npz", "problem.dataset", "cut.npz: is damaged"),
    ("problem.dataset=nan.npz", "problem.dataset", "nan.npz: x has a value that is not finite, first in row 2"),
    ("problem.dataset=mnist", "problem.dataset", "could not be downloaded from .*; download it on another machine"),
    ("problem.model=broken:narow", "problem.model", "module 'broken' has no 'narow'; did you mean 'narrow'?"),
    ("problem.model=nowhere:f", "problem.model", "no module 'nowhere'"),
    ("problem.model=broken:fails", "problem.model", "failed: RuntimeError: of its own, over two lines"),
    ("problem.model=broken:number", "problem.model", "returned an int, not a torch.nn.Module"),
    ("problem.model=broken:narrow", "problem.model", "RuntimeError"),
    # --set itself
    ("run.steps", "--set", "'run.steps' given; it must be section.key=value"),
    ("steps=3", "--set", "'steps=3' given; it must be section.key=value"),
    ("=3", "--set", "'=3' given; it must be section.key=value"),
]


def one_line(result: Any) -> str:
    """The error message of a command that failed with exit code 2 and one line."""
    lines = result.err.splitlines()
    assert result.code == 2, result
    assert result.out == ""
    assert "Traceback" not in result.err
    assert lines, "no error was printed"
    assert lines[-1].startswith("error: ")
    return str(lines[-1]).removeprefix("error: ")


@pytest.mark.parametrize(("settings", "key", "message"), WRONG, ids=[str(case[0]) for case in WRONG])
def test_invalid_setting(config: Path, settings: str | tuple[str, ...], key: str, message: str) -> None:
    before = files(config.parent)
    given = [settings] if isinstance(settings, str) else settings
    result = cli("run", config, "--out", "run", *(part for setting in given for part in ("--set", setting)))
    error = one_line(result)
    assert error.startswith(f"{key}: ")
    assert re.search(message.replace("?", r"\?"), error), error
    if "mnist" not in given[0]:  # a download announces itself first
        assert len(result.err.splitlines()) == 1
    assert not (config.parent / "run").exists()
    assert files(config.parent) == {**before, **{k: v for k, v in files(config.parent).items() if "pycache" in k}}


def test_a_pattern_that_matches_no_parameter(config: Path) -> None:
    error = one_line(cli("run", config, "--set", 'problem.regularizer={ l1 = {}, on = "none*" }', "--out", "run"))
    assert error.startswith("problem.regularizer.on: 'none*' matches no parameter")
    assert not Path("run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here, so asking for one is allowed")
def test_missing_gpu(config: Path) -> None:
    error = one_line(cli("run", config, "--set", "run.device=cuda", "--out", "run"))
    assert error == "run.device: 'cuda' given, but no GPU is available; use 'auto' or 'cpu'"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[run]\nsteps = 3\nperiod = = 2\n", "is not valid TOML: Invalid value (at line 3, column 10)"),
        ("problem = 3\n", "problem: 3 given; it must be a table"),
        ("[run]\nsteps = 3\nsteps = 4\n", "is not valid TOML: Cannot overwrite a value (at line 3"),
    ],
)
def test_invalid_toml(config: Path, text: str, message: str) -> None:
    config.write_text(text)
    assert message in one_line(cli("run", config, "--out", "run"))
    assert not Path("run").exists()


def test_binary_file(config: Path) -> None:
    config.write_bytes(b"\xff\xfe\x00")
    assert one_line(cli("run", config, "--out", "run")).startswith(f"{config}: cannot be read")


def test_missing_file(config: Path) -> None:
    assert one_line(cli("run", "nowhere.toml")) == "nowhere.toml: no such file"
    assert one_line(cli("theory", "nowhere.toml")) == "nowhere.toml: no such file"
    Path("compare.png").touch()
    Path("show.png").touch()  # an existing figure is reported after a missing configuration
    assert one_line(cli("show", "nowhere.toml")) == "nowhere.toml: no such file"
    assert one_line(cli("compare", "nowhere.toml", "--out", ".")) == "nowhere.toml: no such file"
    assert one_line(cli("run", config.parent)) == f"{config.parent}: is a folder; it must be a file"
    assert not Path("runs").exists()


def test_errors_come_before_data_is_loaded(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors that the configuration alone shows do not wait for a dataset."""
    from depositum import data

    def load(*_: Any, **__: Any) -> Any:
        raise AssertionError("data was loaded")

    monkeypatch.setattr(data, "load", load)
    for settings, key, _ in WRONG:
        # These depend on the data.
        if settings in (
            "problem.clients=61",
            "problem.model=cnn",
            "problem.dataset=mnist",
            "problem.loss=mse",
            "problem.loss=logistic",
        ):
            continue
        given = [settings] if isinstance(settings, str) else settings
        if any(word in given[0] for word in ("cut.npz", "nan.npz", "broken:fails", "broken:number", "broken:narrow")):
            continue
        result = cli("run", config, "--out", "run", *(part for setting in given for part in ("--set", setting)))
        assert one_line(result).startswith(f"{key}: ")


def test_invalid_run_folders(config: Path) -> None:
    """Each is one line that starts with the option."""
    (config.parent / "file").write_text("mine")
    assert one_line(cli("run", config, "--out", "file")) == "--out file: is a file; it must be a folder"
    os.mkdir("mine")
    Path("mine/thesis.tex").touch()
    assert one_line(cli("run", config, "--out", "mine")).startswith("--out mine: is not empty and holds no run")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("theory", "c.toml", "--smoothness", "0"), "--smoothness: 0 given; it must be a finite number > 0"),
        (("theory", "c.toml", "--variance", "nan"), "--variance: nan given; it must be a finite number ≥ 0"),
        (("compare", "nowhere"), "nowhere: holds no run (there is no history.csv)"),
        (("compare", "nowhere", "--out", "a.jpg"), "--out: 'a.jpg' given; it must end in .png, .pdf or .svg"),
        (("compare", "x", "--out", "no/a.png"), "--out: 'no/a.png' given; it must be a file in an existing folder"),
        (("compare", "c.toml", "./c.toml"), "c.toml: given twice; give the folder of each run once"),
        (
            ("compare", "nowhere", "--against", "byte_sent"),
            "--against: 'byte_sent' given; it can be 'iteration', 'phases', 'bytes_sent', 'gradient_evaluations' or "
            "'seconds'; did you mean 'bytes_sent'?",
        ),
        (("show", "c.toml", "--out", "a.jpg"), "--out: 'a.jpg' given; it must end in .png, .pdf or .svg"),
        (
            ("data", "minst"),
            "'minst' has no files to download; it can be 'a9a', 'mnist', 'fashion-mnist', 'cifar10' or 'dolly'; "
            "did you mean 'mnist'?",
        ),
    ],
)
def test_invalid_arguments_of_other_commands(config: Path, arguments: tuple[str, ...], message: str) -> None:
    before = files(config.parent)
    result = cli(*arguments)
    assert one_line(result) == message
    assert len(result.err.splitlines()) == 1
    assert files(config.parent) == before


@pytest.mark.parametrize("command", ["show", "compare"])
def test_figure_in_a_folder_without_permission(config: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """It is reported before anything is read. (The tests may run as root, so that os.access is replaced.)"""
    os.mkdir("ro")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != Path("ro"))
    read = "c.toml" if command == "show" else "nowhere"
    message = "--out: 'ro/x.png' cannot be written (no permission in 'ro')"
    assert one_line(cli(command, read, "--out", "ro/x.png")) == message


@pytest.mark.slow
@pytest.mark.parametrize("command", ["show", "compare"])
def test_figure_that_cannot_be_written(config: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """An error while writing is one line too, and leaves no incomplete file."""
    assert cli("run", config, "--out", "run").code == 0
    before = files(config.parent)

    def full(self: Figure, path: Path, **_: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Figure, "savefig", full)
    result = cli(command, config if command == "show" else "run", "--out", "x.png")
    assert (result.code, result.err) == (2, "error: x.png: cannot be written (No space left on device)\n")
    assert files(config.parent) == before


def test_usage_errors_have_the_same_exit_code(config: Path) -> None:
    """Errors that typer reports have the same exit code, and no traceback."""
    for arguments in (
        ("run",),
        ("run", config, "--otu", "x"),
        ("trian", config),
    ):
        result = cli(*arguments)
        assert result.code == 2
        assert "Error: " in result.err
        assert "Traceback" not in result.err
