"""What a notebook shows: a result at the end of a cell, and a progress bar during `fit`."""

import base64
import re
import sys
import types
import warnings
from html.parser import HTMLParser
from typing import Any

import pandas as pd
import pytest
import torch
from rich.console import Console
from torch import nn

import depositum as dp
from depositum.report import progress
from depositum.report.notebook import result_html
from tests.support.small_fits import small_fit
from tests.support.small_histories import history


class Checker(HTMLParser):
    """Collects the text, the pictures and the tags that are still open."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.pictures: list[str] = []
        self.cells: list[str] = []
        self.links = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.links += sum(key in ("href", "src") and not str(v).startswith("data:") for key, v in values.items())
        if tag == "img":
            self.pictures.append(str(values["src"]))
        else:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.cells.append(data)


@pytest.mark.slow
def test_a_result_shows_its_table_and_curves() -> None:
    """One self-contained piece of HTML, with the measures in the formats of every table."""
    result = small_fit(seeds=[0, 1], regularizer=dp.L1(), beta=0.01)
    html = result._repr_html_()
    found = Checker(html)
    assert found.open == []
    assert found.links == 0
    assert "12 iterations" in found.cells
    last = result.history[result.history.iteration == 12]
    loss = f"{last.train_loss.mean():.4f} ± {last.train_loss.std():.4f}"
    assert found.cells[found.cells.index("train loss") :].count(loss) == 1
    (picture,) = found.pictures
    assert base64.b64decode(picture.removeprefix("data:image/png;base64,")).startswith(b"\x89PNG")
    assert len(html) < 500_000
    assert "warning" not in html
    assert "diverged" not in html


@pytest.mark.slow
def test_what_must_not_be_overlooked_is_shown() -> None:
    """A divergence, a run that ended worse than it began, one that was stopped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = [(torch.full((8, 1), 5.0), torch.full((8, 1), 1.0))] * 3
        bad = dp.fit(nn.Linear(1, 1), data, algorithm=dp.Depositum(alpha=9.0), steps=400, on_divergence="warn",
                     progress=False, device="cpu", compile="never")  # fmt: skip
        assert bad.diverged is not None
        assert f">{bad.diverged}<".replace("'", "&#x27;") in bad._repr_html_()
        worse = dp.fit(nn.Linear(1, 1), data, algorithm=dp.Depositum(alpha=0.5), steps=5, progress=False,
                       device="cpu", compile="never")  # fmt: skip
    assert "this run ended worse than it began: φ rose from" in worse._repr_html_()


def test_seeds_that_diverged_are_not_in_the_table_and_names_are_escaped() -> None:
    frame = history(seeds=3)
    frame = frame[(frame.seed != 2) | (frame.iteration < 30)]
    found = Checker(result_html("<runs>", frame, {2: "seed 2 diverged: y of client <0>"}, ["look & see"]))
    assert found.open == []
    assert found.cells[:3] == ["<runs>", "seed 2 diverged: y of client <0>", "look & see"]
    values = dict(zip(found.cells[3::1], found.cells[3 + (len(found.cells) - 3) // 2 :], strict=False))
    assert values["seeds"] == "2"
    assert values["train loss"] == "61.5000 ± 28.9914"  # of 41 and 82


class Notebook:
    """Stands for IPython: records what a cell shows."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.displayed = 0

    def HTML(self, html: str) -> str:
        return html

    def display(self, html: str, display_id: bool) -> "Notebook":
        assert display_id
        self.displayed += 1
        self.update(html)
        return self

    def update(self, html: str) -> None:
        self.shown.append(html)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    fake: Any = Notebook()
    module: Any = types.ModuleType("IPython.display")
    module.HTML, module.display = fake.HTML, fake.display
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(progress, "NOTEBOOK_SECONDS", 0.0)
    return fake


def test_fit_shows_one_bar_in_a_notebook(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    """One output that is updated; at the end it shows all iterations and the last measures."""
    monkeypatch.setattr(progress, "Console", lambda **_: Console(force_jupyter=True))
    result = small_fit(progress=True)
    assert notebook.displayed == 1
    assert len(notebook.shown) >= 3
    bars = [re.search(r"value='(\d+)' max='12'", html) for html in notebook.shown]
    values = [int(bar.group(1)) for bar in bars if bar]
    assert values == sorted(values)
    assert (values[0], values[-1]) == (0, 12)
    last = result.history.iloc[-1]
    assert f"12/12  loss {last.train_loss:.4f}" in notebook.shown[-1]
    assert isinstance(result.history, pd.DataFrame)
