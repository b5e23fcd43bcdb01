"""Results say which version and commit of the package they came from, and which libraries and device computed them."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy
import pytest
import torch

import depositum
from depositum import provenance
from tests.support.small_runs import cli, write_config

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(provenance.COMMIT_VARIABLE, raising=False)
    provenance.commit.cache_clear()


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package in `src/p` of a repository that ignores `.venv`, with one commit."""
    folder = tmp_path / "repository" / "src" / "p"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("a = 1\n")
    top = tmp_path / "repository"
    (top / ".gitignore").write_text(".venv/\n__pycache__/\n")
    git(top, "init", "-q")
    git(top, "add", ".")
    git(top, "commit", "-q", "-m", "first")
    return folder


def commit_of(folder: Path) -> str | None:
    provenance.commit.cache_clear()
    return provenance.commit(folder)


def test_the_commit_of_a_checkout_has_a_mark_if_files_of_the_package_differ(package: Path) -> None:
    head = git(package, "rev-parse", "HEAD")[:12]
    assert commit_of(package) == head
    # Neither results elsewhere in the repository nor compiled files change what the package computes.
    (package.parents[1] / "results.csv").write_text("1\n")
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "x.pyc").write_text("")
    assert commit_of(package) == head
    (package / "new.py").write_text("b = 2\n")
    assert commit_of(package) == head + "+changes"
    (package / "new.py").unlink()
    (package / "__init__.py").write_text("a = 2\n")
    assert commit_of(package) == head + "+changes"


def test_a_repository_that_the_package_is_merely_installed_in_is_not_its_commit(package: Path) -> None:
    """A virtual environment inside the user's own repository: its HEAD says nothing about the package."""
    installed = package.parents[1] / ".venv" / "lib" / "p"
    shutil.copytree(package, installed)
    assert commit_of(installed) is None


def test_a_commit_that_cannot_be_found_can_be_given(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside of a repository and without git the commit is unknown, unless the environment names it."""
    assert commit_of(tmp_path) is None
    git_folder = shutil.which("git")
    assert git_folder is not None
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        assert commit_of(package) is None
    monkeypatch.setenv(provenance.COMMIT_VARIABLE, "abc123")
    assert commit_of(tmp_path) == "abc123"


def test_variables_of_a_git_hook_do_not_lead_elsewhere(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git sets GIT_DIR while it runs a hook of another repository."""
    head = commit_of(package)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert commit_of(package) == head is not None


def test_the_version_is_that_of_the_code_and_stands_in_one_place() -> None:
    """Not that of some installed metadata, nor unknown where there are none."""
    assert re.fullmatch(r"\d+\.\d+\.\d+", depositum.__version__)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "depositum.__version__"}
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {depositum.__version__}\n" in citation


def test_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(provenance.COMMIT_VARIABLE, "abc123")
    assert provenance.versions() == {
        "depositum": depositum.__version__,
        "commit": "abc123",
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }
    assert provenance.describe_versions().startswith(f"depositum {depositum.__version__}, commit abc123, python 3.")


def sessions(folder: Path) -> list[dict[str, object]]:
    return tomllib.loads((folder / "environment.toml").read_text(encoding="utf-8"))["session"]


def test_a_run_records_what_computed_which_iterations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry per environment, not per session: a run that was resumed has the same file as one that was not."""
    config, out = str(write_config(tmp_path / "c.toml")), tmp_path / "run"
    monkeypatch.setenv(provenance.COMMIT_VARIABLE, "first")
    assert cli("run", config, "--set", "run.steps=6", "--out", str(out)).code == 0
    (session,) = sessions(out)
    assert session["from_iteration"] == 0
    assert session["commit"] == "first"
    assert session["depositum"] == depositum.__version__
    assert session["torch"] == torch.__version__
    assert str(session["device"]).startswith("CPU (")

    assert cli("run", config, "--set", "run.steps=12", "--out", str(out)).code == 0
    assert len(sessions(out)) == 1

    provenance.commit.cache_clear()
    monkeypatch.setenv(provenance.COMMIT_VARIABLE, "second")
    assert cli("run", config, "--out", str(out)).code == 0
    assert [(s["from_iteration"], s["commit"]) for s in sessions(out)] == [(0, "first"), (12, "second")]


def test_a_run_of_a_version_that_recorded_nothing_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or whose file cannot be read: what computed the earlier iterations is not known, and is not invented."""
    config, out = str(write_config(tmp_path / "c.toml")), tmp_path / "run"
    monkeypatch.setenv(provenance.COMMIT_VARIABLE, "first")
    assert cli("run", config, "--set", "run.steps=6", "--out", str(out)).code == 0
    (out / "environment.toml").write_text("session = [1]\n")
    assert cli("run", config, "--set", "run.steps=12", "--out", str(out)).code == 0
    assert [s["from_iteration"] for s in sessions(out)] == [6]
    (out / "environment.toml").unlink()
    assert cli("run", config, "--out", str(out)).code == 0
    assert [s["from_iteration"] for s in sessions(out)] == [12]


@pytest.mark.slow
def test_results_of_an_experiment_have_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(provenance.COMMIT_VARIABLE, "abc123")
    result = cli("reproduce", "stepsize", "--quick", "--only", "alpha=α = 0.1", "--seeds", "1")
    assert result.code == 0, result.err
    summary = json.loads((tmp_path / "results/quick/stepsize/summary.json").read_text(encoding="utf-8"))
    assert summary["versions"] == [dict(sorted(provenance.versions().items()))]
    assert summary["versions"][0]["commit"] == "abc123"


def test_the_output_of_benchmarks_names_the_commit() -> None:
    """Those whose numbers are quoted in documents print the versions that they measured."""
    quoted = (
        "simulator",
        "iteration",
        "lora",
        "processes",
        "practical_stepsizes",
        "tune_methods",
        "mnist_table",
        "published_blazefl",
        "published_pfl",
    )
    for name in (*quoted, "peers/depositum_peer"):
        text = (ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
        assert "describe_versions()" in text or "bench.machine()" in text, name  # the latter calls the former
    unknown = [path for path in (ROOT / "src").rglob("*.py") if "0+unknown" in path.read_text(encoding="utf-8")]
    assert unknown == []
