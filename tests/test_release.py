"""What a release consists of agrees: version, changelog, citation, files of the package, the workflow of public CI."""

import datetime
import re
import tomllib
from fnmatch import fnmatch
from typing import Any

import pytest

import depositum
from tests.support.mentions import PACKAGE, ROOT

yaml = pytest.importorskip("yaml")


def load_yaml(path: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
    return found


def test_version_is_that_of_the_changelog_and_the_citation() -> None:
    heading = re.search(r"^## (\S+) – (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heading
    version, date = heading.groups()
    citation = load_yaml("CITATION.cff")
    assert version == depositum.__version__ == str(citation["version"])
    if date == "unreleased":
        assert "date-released" not in citation, "the changelog calls this version unreleased"
    else:
        assert str(citation["date-released"]) == datetime.date.fromisoformat(date).isoformat()


def test_citation_has_what_its_format_requires() -> None:
    """CFF 1.2.0: the required keys, names of authors, and a preferred citation of a known type."""
    citation = load_yaml("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "license", "version"} <= set(citation)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation["license"] == project["license"]
    for entry in (citation, citation["preferred-citation"]):
        assert entry["title"]
        assert entry["authors"]
        assert all("name" in author or {"given-names", "family-names"} <= set(author) for author in entry["authors"])
    assert citation["preferred-citation"]["type"] == "article"
    assert re.fullmatch(r"https://\S+", citation["preferred-citation"]["url"])


def test_every_file_of_the_package_is_in_the_wheel() -> None:
    """Data files that package-data does not name would be missing after installation only."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["depositum"]
    files = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*") if path.is_file()]
    data = [str(path) for path in files if path.suffix not in (".py", ".pyc")]
    assert "py.typed" in data
    assert [path for path in data if not any(fnmatch(path, pattern) for pattern in patterns)] == []


def test_workflow_runs_the_commands_of_the_repository() -> None:
    """Valid YAML, actions pinned by major version, targets of the Makefile, and the Python versions of the metadata."""
    workflow = load_yaml(".github/workflows/ci.yml")
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    for step in steps:
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"]), step
        else:
            assert step["run"].split()[0] == "make"
            assert step["run"].split()[1] in targets, step
    assert {"make test", "make docs", "make wheel-test"} <= {step.get("run") for step in steps}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for job in ("test", "wheel"):
        for version in workflow["jobs"][job]["strategy"]["matrix"]["python"]:
            assert f"Programming Language :: Python :: {version}" in project["classifiers"]


def test_ci_runs_what_the_readme_says() -> None:
    command = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()[-1]
    assert command == "make test"
    assert re.search(rf"^{command}\b", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
