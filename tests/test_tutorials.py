"""The tutorials as they stand: their code runs in order in an empty folder, and prints what the pages show.

Numbers are compared to 5 %, words exactly, times not at all. Every figure that a page shows is one that its code draws.
"""

import importlib.util
import os
import socket
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.mentions import ROOT


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tutorials", ROOT / "docs" / "_tools" / "tutorials.py")
    assert spec
    assert spec.loader
    module = sys.modules["tutorials"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tutorials = _load()


@pytest.mark.slow
@pytest.mark.parametrize("page", tutorials.pages(), ids=lambda page: page.stem)
def test_tutorial_runs_as_it_stands(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To show what a tutorial prints and draws now: `python docs/_tools/tutorials.py`."""
    if "transformers" in page.read_text(encoding="utf-8"):
        pytest.importorskip("transformers")
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))
    _, outputs = tutorials.execute(page, tmp_path)
    for output in outputs:
        assert not output.differs(), f"{page.name}:{output.line} shows\n{output.shown}\nbut prints\n{output.printed}"
    assert outputs
    for name in tutorials.figures(page):
        assert (tmp_path / name).stat().st_size > 1000, f"{page.name} shows {name}, which its code does not draw"


def test_every_figure_of_the_tutorials_is_shown() -> None:
    """A figure that no page shows any more is deleted."""
    shown = {name for page in tutorials.pages() for name in tutorials.figures(page)}
    assert shown == {path.name for path in tutorials.FIGURES.iterdir()}


@pytest.mark.parametrize(
    ("shown", "printed", "differ"),
    [
        ("loss 0.500", "loss 0.510", False),
        ("loss 0.500", "loss 0.530", True),
        ("loss 0.500", "cost 0.500", True),
        ("a b", "a", True),
        ("│ time │ 3.1 s │", "│ time   │ 12 s │", False),
        ("FitResult(3 iterations, train_loss 0.5)", "FitResult(3 iterations, train_loss 0.7)", True),
        ("", "a warning", True),
    ],
)
def test_outputs_are_compared(shown: str, printed: str, differ: bool) -> None:
    assert tutorials.Output(1, shown, printed).differs() == differ
