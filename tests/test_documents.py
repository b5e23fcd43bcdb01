"""What the documents say is true: their code runs, their links lead somewhere, their configurations are accepted."""

import re
import tomllib
from pathlib import Path

import pytest

from depositum.algorithms import ALGORITHMS
from depositum.data import load as load_data
from depositum.runs import load, parse

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)


def test_the_readme_s_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The ten lines a newcomer copies first."""
    (code,) = blocks(ROOT / "README.md", "python")
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["result"].history["train_loss"].iloc[-1] < names["result"].history["train_loss"].iloc[0]


def test_the_method_of_your_own_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The documented method is complete, short, works by its name and in local steps, and sends what it says."""
    monkeypatch.setattr(ALGORITHMS, "_factories", dict(ALGORITHMS._factories))
    method, use, _ = blocks(ROOT / "docs" / "methods.md", "python")
    assert len([line for line in method.splitlines() if line.strip()]) < 40
    names: dict[str, object] = {}
    for code in (method, use):
        exec(compile(code, "methods.md", "exec"), names)
    history = names["result"].history
    assert history["train_loss"].iloc[-1] < history["train_loss"].iloc[0]
    assert history["phases"].iloc[-1] == 17
    assert history["bytes_sent"].iloc[-1] == 17 * 2 * 10 * 4


def test_data_of_your_own_as_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to a .npz file work: from arrays, with owners, and from a CSV file, whose numbers come through."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text("age,label,weight\n31,1,70.5\n28,0,60\n45,1,80\n")
    arrays, table = blocks(ROOT / "docs" / "data.md", "python")
    exec(compile(arrays, "data.md", "exec"), {})
    assert len(load_data("mine.npz").clients) == 3
    exec(compile(table, "data.md", "exec"), {})
    found = load_data("mine.npz")
    assert found.train.inputs.tolist() == [[31, 70.5], [28, 60], [45, 80]]
    assert (found.train.targets.tolist(), found.classes) == ([1, 0, 1], 2)


def test_the_readme_s_configuration_is_the_demo_s() -> None:
    """Shown and shipped must not part ways."""
    (shown,) = blocks(ROOT / "README.md", "toml")
    config = parse(tomllib.loads(shown))
    config.check()
    demo = load(ROOT / "examples" / "demo.toml")
    assert config.problem == demo.problem
    assert config.algorithm == demo.algorithm
    assert config.run.steps == demo.run.steps


@pytest.mark.parametrize("method", list(ALGORITHMS))
def test_every_method_has_its_place_in_the_comparison(method: str) -> None:
    """`depositum compare examples/methods.toml` is accepted for each: its regularizer, period, network and stepsize."""
    assert load(ROOT / "examples" / "methods.toml", method=method).algorithm.name == method


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.toml")), ids=lambda p: p.name)
def test_every_example_is_accepted(example: Path) -> None:
    load(example)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
