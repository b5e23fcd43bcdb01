"""A user-defined regularizer, the example of docs/methods.md, named in a configuration."""

import tomllib
from pathlib import Path

import pytest
import torch

from depositum.regularizers import REGULARIZERS
from depositum.runs import load
from tests.support.small_runs import cli, outcome, write_config

DOCUMENTED = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
HUBER = DOCUMENTED.split("## User-defined regularizers")[1].split("```python\n")[1].split("```")[0]
WITHOUT_PROX = "from depositum.regularizers import Regularizer\n\nclass Half(Regularizer):\n    value = None\n"


BROKEN = """

class Long(Huber):
    def _prox(self, z, tau):
        return z.repeat(1, 2)

class One(Huber):
    def value(self, x):
        return x.sum()

class Odd(Huber):
    def _prox(self, z, tau):
        raise ValueError("no")
"""


@pytest.fixture(autouse=True)
def restore_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REGULARIZERS, "_factories", dict(REGULARIZERS._factories))


def config(folder: Path, regularizer: object) -> Path:
    (folder / "mine.py").write_text(HUBER + WITHOUT_PROX + BROKEN, encoding="utf-8")
    return write_config(folder / "c.toml", problem={"regularizer": regularizer, "beta": 0.05})


def test_the_documented_prox_is_correct(tmp_path: Path) -> None:
    """It minimises h(p) + (p − z)²/(2τ): no p of a fine grid is better."""
    h = load(config(tmp_path, {"mine:Huber": {"delta": 0.5}})).regularizer
    grid = torch.linspace(-4, 4, 80_001, dtype=torch.float64)[:, None]
    for z in (-2.3, -0.6, 0.0, 0.4, 0.51, 3.0):
        for tau in (0.1, 1.5):
            objective = h.value(grid) + (grid[:, 0] - z) ** 2 / (2 * tau)
            found = h.prox(torch.tensor([z], dtype=torch.float64), tau)
            assert abs(found.item() - grid[objective.argmin()].item()) <= 1e-4, (z, tau)


@pytest.mark.slow
@pytest.mark.parametrize(
    "regularizer", ["mine:Huber", {"mine:Huber": {"delta": 0.5}}, [{"mine:Huber": 0.5, "on": "*weight", "scale": 2.0}]]
)
def test_a_run_with_a_user_defined_regularizer(tmp_path: Path, regularizer: object) -> None:
    """It can be resumed, and is saved with its defaults; another δ is another run."""
    path, out = config(tmp_path, regularizer), tmp_path / "run"
    assert cli("run", path, "--out", out, "--set", "run.steps=9").code == 0
    assert cli("run", path, "--out", out).code == 0
    assert cli("run", path, "--out", tmp_path / "uninterrupted").code == 0
    assert outcome(out) == outcome(tmp_path / "uninterrupted")
    written = tomllib.loads((out / "config.toml").read_text())["problem"]["regularizer"]
    part = written[0] if isinstance(written, list) else written
    assert part["mine:Huber"] == {"delta": 1.0 if regularizer == "mine:Huber" else 0.5}
    other = cli("run", path, "--out", out, "--set", 'problem.regularizer={"mine:Huber"=0.1}')
    assert other.code == 2
    assert "holds another run (problem.regularizer is" in other.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("regularizer", "message"),
    [
        ("mine:Hubert", "module 'mine' has no 'Hubert'; did you mean 'Huber'?"),
        ("mime:Huber", "problem.regularizer: no module 'mime'"),
        ("mine:dataclass", "'mine:dataclass' is not a regularizer: it must be a class that extends Regularizer"),
        ("mine:Half", "'mine:Half' does not define _prox"),
        (
            "mine:Long",
            "problem.regularizer: the prox of Long(delta=1.0) is [2, 30] of torch.float32; it must have shape [2, 15]",
        ),
        ("mine:One", "the value of One(delta=1.0) is [] of torch.float32; it must have shape [2]"),
        (
            "mine:Odd",
            "problem.regularizer: the prox of Odd(delta=1.0) fails on [2, 15] of torch.float32: ValueError: no",
        ),
        ({"mine:Huber": {"detla": 1.0}}, "problem.regularizer.mine:Huber.detla: unknown key; it can be 'delta'"),
    ],
)
def test_invalid_definitions_are_rejected(tmp_path: Path, regularizer: object, message: str) -> None:
    result = cli("run", config(tmp_path, regularizer), "--out", tmp_path / "run")
    assert result.code == 2
    assert message in result.err
    assert len(result.err.splitlines()) == 1


def test_registered_regularizers_define_the_subdifferential_distance() -> None:
    """Only user-defined ones may omit it."""
    for name in REGULARIZERS:
        assert "subdifferential_distance" in vars(REGULARIZERS[name]) or any(
            "subdifferential_distance" in vars(kind)
            for kind in REGULARIZERS[name].__mro__[1:]  # type: ignore[attr-defined]
            if kind.__name__ != "Regularizer"
        ), name
