"""The documents are true: their code runs, links, paths and names exist, configurations are accepted."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from depositum.algorithms import ALGORITHMS
from depositum.data import load as load_data
from depositum.runs import load, parse, resolve
from tests.support.markdown_links import dead_links
from tests.support.mentions import ROOT, missing, missing_paths

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
#: All Markdown of the repository.
OTHERS = [path for top in ("benchmarks", "examples", "results", "tests") for path in (ROOT / top).rglob("*.md")]
ALL_MARKDOWN = sorted([*DOCUMENTS, *(path for path in OTHERS if "quick" not in path.parts)])


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)


def test_python_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The ten lines that a new user copies first."""
    (code,) = blocks(ROOT / "README.md", "python")
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["result"].history["train_loss"].iloc[-1] < names["result"].history["train_loss"].iloc[0]


def test_documented_user_defined_method_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The method is complete and short, is found by its name, takes local steps, and sends what it states."""
    monkeypatch.setattr(ALGORITHMS, "_factories", dict(ALGORITHMS._factories))
    method, use, *_ = blocks(ROOT / "docs" / "methods.md", "python")
    assert len([line for line in method.splitlines() if line.strip()]) < 40
    names: dict[str, object] = {}
    for code in (method, use):
        exec(compile(code, "methods.md", "exec"), names)
    history = names["result"].history
    assert history["train_loss"].iloc[-1] < history["train_loss"].iloc[0]
    assert history["phases"].iloc[-1] == 17
    assert history["bytes_sent"].iloc[-1] == 17 * 2 * 10 * 4


def test_documented_forms_of_user_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The blocks in order: a table, torch datasets, and arrays with owners; the same table from a file is accepted."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in blocks(ROOT / "docs" / "data.md", "python"):
        exec(compile(code, "data.md", "exec"), names)
    assert capsys.readouterr().out == "('ill', 'well')\n"
    assert len(load_data("mine.npz").clients) == 3
    names["patients"].to_csv("patients.csv", index=False)
    _, table = blocks(ROOT / "docs" / "data.md", "toml")
    config = resolve(parse(tomllib.loads(table))).config.problem
    found = load_data(config.dataset)
    assert (found.class_names, len(found.clients)) == (("ill", "well"), config.clients)
    assert found.feature_names == ("age", "dose", "sex=f", "sex=m")


def test_documented_callbacks_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The blocks of the page in order: a first callback, early stopping with the best model, a logger."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in blocks(ROOT / "docs" / "callbacks.md", "python"):
        exec(compile(code, "callbacks.md", "exec"), names)
    assert capsys.readouterr().out.startswith("t = 0: training loss ")
    assert names["stopping"].stopped_at < 500
    assert not names["model"].training
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("page", ["index.md", "start.md", "python.md", "coming-from.md"])
def test_python_of_a_page_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The blocks in order; that DEPOSITUM with one client is torch's SGD is an assertion in the page itself."""
    names: dict[str, Any] = {}
    for code in blocks(ROOT / "docs" / page, "python"):
        exec(compile(code, page, "exec"), names)


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_examples_in_python_run(script: str, tmp_path: Path) -> None:
    """As a user would run them, in an empty folder."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_documented_measures_run(capsys: pytest.CaptureFixture[str]) -> None:
    """A user-defined measure in the history and for each client."""
    (code,) = blocks(ROOT / "docs" / "metrics.md", "python")
    names: dict[str, Any] = {}
    exec(compile(code, "metrics.md", "exec"), names)
    assert names["result"].history["f1"].notna().all()
    assert len(names["result"].client_metrics) == 3
    (shown,) = blocks(ROOT / "docs" / "metrics.md", "toml")
    assert parse(tomllib.loads(shown)).metrics.functions == {"f1": "mine:f1"}


def test_documented_groups_of_parameters_are_the_same_in_a_file_and_in_python() -> None:
    """Weights become sparse, biases do not."""
    _, _, code, _ = blocks(ROOT / "docs" / "methods.md", "python")
    names: dict[str, Any] = {}
    exec(compile(code, "methods.md", "exec"), names)
    shown = next(block for block in blocks(ROOT / "docs" / "methods.md", "toml") if "regularizer" in block)
    spec = resolve(parse(tomllib.loads(shown)))
    assert repr(spec.regularizer) == repr(names["h"])
    zeros = {name: bool((p == 0).any()) for name, p in names["result"].client_model(0).named_parameters()}
    assert zeros == {"0.weight": True, "0.bias": False, "2.weight": True, "2.bias": False}


def test_configuration_of_the_readme_is_that_of_the_demo() -> None:
    (shown,) = blocks(ROOT / "README.md", "toml")
    config = parse(tomllib.loads(shown))
    resolve(config)
    demo = load(ROOT / "examples" / "demo.toml").config
    assert config.problem == demo.problem
    assert config.algorithm == demo.algorithm
    assert config.run.steps == demo.run.steps


@pytest.mark.parametrize("method", list(ALGORITHMS))
def test_comparison_of_all_methods_accepts(method: str) -> None:
    """`depositum compare examples/methods.toml` sets a valid regularizer, period, network and stepsize for each."""
    assert load(ROOT / "examples" / "methods.toml", method=method).algorithm.name == method


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.toml")), ids=lambda p: p.name)
def test_example_is_a_valid_configuration(example: Path) -> None:
    load(example)


@pytest.mark.parametrize("document", ALL_MARKDOWN, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_of_documents_exist(document: Path) -> None:
    """Files, and the headings in them that a link names."""
    assert dead_links(document) == []


def test_dead_links_are_found(tmp_path: Path) -> None:
    """Otherwise the test above could not fail: files, headings (as code hosts number them), images, links in tables."""
    (tmp_path / "other.md").write_text('# Of α: what `x.y` is\n## Same\n## Same\n<a id="mine"></a>\n')
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md#of-α-what-xy-is) [b](other.md#same-1) [c](other.md#mine) [d](https://example.org/x#y)\n"
        "[e](other.md#same-2) [f](absent.md)\n![g](absent.png)\n\n| a |\n|---|\n| [h](#absent) |\n"
        "```\n[i](in-code.md)\n```\n"
    )
    assert dead_links(page) == ["other.md#same-2", "absent.md", "absent.png", "#absent"]


@pytest.mark.parametrize(
    "document", [d for d in DOCUMENTS if d.name != "CHANGELOG.md"], ids=lambda p: str(p.relative_to(ROOT))
)
def test_paths_and_names_in_documents_exist(document: Path) -> None:
    """A document that mentions a file, module, class, function or configuration key that was renamed fails here."""
    assert missing(document.read_text(encoding="utf-8")) == []


def test_paths_in_sources_and_examples_exist() -> None:
    """The same for paths in comments, docstrings and error messages."""
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "examples").glob("*.toml")]
    files += [ROOT / "Makefile", ROOT / "pyproject.toml", *(ROOT / "src").rglob("*.toml")]
    found = {path.name: missing_paths(path.read_text(encoding="utf-8")) for path in files}
    assert {name: paths for name, paths in found.items() if paths} == {}


@pytest.mark.parametrize(
    "mention",
    [
        "see `benchmarks/absent.py`",
        "run `python benchmarks/absent.py OUT`",
        "the folder `engines/absent/`",
        "in `absent/module.py`",
        "in `absent_module.py`",
        "`docs/absent.md`",
        "`depositum.data.absent(parts)`",
        "`dp.absent`",
        "`runs.absent`",
        "`Absentee` does it",
        "`Depositum.absent` does it",
        "`problem.absent`",
        "`absent(x)` is called",
        "```python\nfrom depositum.data import load, absent\n```",
    ],
)
def test_mention_of_what_does_not_exist_is_found(mention: str) -> None:
    assert missing(mention)


@pytest.mark.parametrize(
    "mention",
    [
        "`python benchmarks/simulator.py OUT`, `results/ID`, `src/depositum/experiments/*.toml`",
        "`depositum.data.load`, `dp.fit`, `dp.algorithm(name, …)`, `torch.vmap`, `Depositum.alpha`, `Depositum`",
        "`problem.clients`, `algorithm.alpha`, `run.steps`, `history.csv`, `runs/demo`, `data/{client}.npz`, `1/n`",
        "```python\nfrom depositum.data import load\n```",
    ],
)
def test_mention_of_what_exists_is_accepted(mention: str) -> None:
    assert missing(mention) == []
