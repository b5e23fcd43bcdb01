"""A person's own method, as docs/methods.md shows it: run, compared, overridden, explained, and tried before work."""

import tomllib
from pathlib import Path

import pytest
import tomli_w

from depositum.algorithms import ALGORITHMS
from depositum.cli.compare import selected_methods
from tests.support.small_runs import cli, outcome, write_config

DOCUMENTED = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
METHOD = DOCUMENTED.split("```python\n")[1].split("```")[0]
#: Each with one mistake.
BROKEN = """
from depositum.algorithms import Depositum


@dataclass(frozen=True)
class Lacking(Algorithm):
    alpha: float = 0.1

    def init(self, x0, oracle, mix):
        return None


@dataclass(frozen=True)
class Bare(ProxDSGD):
    def step(self, s, oracle, mix, kind):
        return s.x


@dataclass(frozen=True)
class Short(ProxDSGD):
    def step(self, s, oracle, mix, kind):
        return State(s.t + 1, s.x[:, :3] if kind == "local" else s.x)


@dataclass(frozen=True)
class Late(ProxDSGD):
    def init(self, x0, oracle, mix):
        return State(torch.zeros((), dtype=torch.int64), x0[0])


@dataclass(frozen=True)
class Raising(ProxDSGD):
    def step(self, s, oracle, mix, kind):
        return State(s.t + 1, oracle.gradient(s.x))


@dataclass(frozen=True)
class Bolder(Depositum):
    pass


@dataclass(frozen=True)
class Large(ProxDSGD):
    def init(self, x0, oracle, mix):
        if len(x0) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().init(x0, oracle, mix)


@dataclass(frozen=True)
class Needing(ProxDSGD):
    rate: float = None

    def __init__(self, rate: float):
        pass
"""


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ALGORITHMS, "_factories", dict(ALGORITHMS._factories))


def config(folder: Path, name: str = "mine:ProxDSGD", **more: object) -> Path:
    (folder / "mine.py").write_text(METHOD + BROKEN, encoding="utf-8")
    path = write_config(folder / "c.toml", problem={"model": "own_model:normalised"})
    table = tomllib.loads(path.read_text())
    table["algorithm"] = {"name": name}
    path.write_text(tomli_w.dumps({**table, **more}), encoding="utf-8")
    return path


def test_a_run(tmp_path: Path) -> None:
    """By `name = "module:Class"`; that it was tried before leaves no trace, in buffers neither, and it can go on."""
    path = config(tmp_path)
    assert cli("run", path, "--out", tmp_path / "out").code == 0
    assert 'name = "mine:ProxDSGD"' in (tmp_path / "out" / "config.toml").read_text()
    assert cli("run", path, "--out", tmp_path / "parts", "--set", "run.steps=7").code == 0
    assert cli("run", path, "--out", tmp_path / "parts").code == 0
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "out")


def test_no_trace_of_the_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if the running statistics of a batch norm begin with what the trial left there."""
    path = config(tmp_path)
    assert cli("run", path, "--out", tmp_path / "tried").code == 0
    monkeypatch.setattr("depositum.runs.build.try_method", lambda simulator: None)
    assert cli("run", path, "--out", tmp_path / "untried").code == 0
    assert outcome(tmp_path / "tried") == outcome(tmp_path / "untried")


@pytest.mark.parametrize("part", ["mine:ProxDSGD", "prox-dsgd", "smooth"])
def test_an_override_by_either_name(tmp_path: Path, part: str) -> None:
    """Breaks if a part by the name that the method gives itself is accepted and has no effect."""
    path = config(tmp_path, override={part: {"run": {"period": 2}}})
    assert cli("run", path, "--out", tmp_path / "out").code == 0
    written = tomllib.loads((tmp_path / "out" / "config.toml").read_text())
    assert written["run"]["period"] == (3 if part == "smooth" else 2)


def test_a_relative_is_not_the_method_itself(tmp_path: Path) -> None:
    """Breaks if what a file says of a method is taken to be of a class that extends it without a name of its own."""
    path = config(tmp_path, "mine:Bolder", override={"depositum": {"run": {"period": 2}}})
    assert cli("run", path, "--out", tmp_path / "out").code == 0
    assert tomllib.loads((tmp_path / "out" / "config.toml").read_text())["run"]["period"] == 3


def test_a_lack_of_memory_in_the_trial_is_one(tmp_path: Path) -> None:
    """Seeds that do not fit together are run in halves, of a method of one's own too."""
    path = config(tmp_path, "mine:Large")
    said = cli("run", path, "--out", tmp_path / "out", "--set", "run.seeds=[0, 1]")
    assert said.code == 0, said
    assert "2 seeds at once do not fit the memory" in said.err


def test_a_base_that_is_run_by_its_name_alone(tmp_path: Path) -> None:
    """A server's method has no use for the network that the others take: compared, it leaves it out."""
    network, override = {"mixing": "lazy-metropolis"}, {"smooth": {"problem": {"beta": 0}}}
    path = config(tmp_path, "fedmid", network=network, override=override)
    own = selected_methods(None, path, [])
    assert "fedmid" in own
    assert "depositum" in own
    names = selected_methods("all", config(tmp_path, "mine:ProxDSGD"), [])
    assert "mine:ProxDSGD" in names
    assert "prox-dsgd" not in names


@pytest.mark.parametrize("base", ["depositum", "mine:ProxDSGD"])
def test_compared_with_others(tmp_path: Path, base: str) -> None:
    """Named on the command line, or the configuration's own; each in a folder of its own, with its own part."""
    path = config(tmp_path, base, override={"mine:ProxDSGD": {"algorithm": {"alpha": 0.03}}})
    out = tmp_path / "both"
    said = cli("compare", path, "--methods", "depositum,mine:ProxDSGD", "--out", out)
    assert said.code == 0, said.err
    assert "mine:ProxDSGD" in said.out
    assert {p.name for p in out.iterdir()} == {"depositum", "mine.ProxDSGD", "compare.png"}
    assert tomllib.loads((out / "mine.ProxDSGD" / "config.toml").read_text())["algorithm"]["alpha"] == 0.03


def test_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config(tmp_path)
    monkeypatch.chdir(tmp_path)
    said = cli("methods", "mine:ProxDSGD")
    assert said.code == 0
    assert "mine:ProxDSGD: Decentralized proximal SGD" in said.out
    assert "alpha = 0.1" in said.out
    needing = cli("methods", "mine:Needing")
    assert needing.code == 2
    assert "has no defaults for 'rate'" in needing.err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mine:ProxDSG", "module 'mine' has no 'ProxDSG'; did you mean 'ProxDSGD'?"),
        ("mime:ProxDSGD", "no module 'mime'"),
        ("mine:State", "is no method: it must be a dataclass that extends Algorithm"),
        ("mine:Lacking", "'mine:Lacking' lacks step, vectors, name, about; write what they give"),
        ("mine:Bare", "a step of 'prox-dsgd' ('exchange') gave a Tensor; it must be a state: a NamedTuple with t, x"),
        ("mine:Short", "after a step of 'prox-dsgd' ('local'), x is [4, 3] of torch.float32; before it was [4, 53]"),
        ("mine:Late", "init of 'prox-dsgd' gave models x of shape [53], not [4, 53]"),
        ("mine:Raising", "a step of 'prox-dsgd' ('exchange') fails: AttributeError: "),
    ],
)
def test_mistakes(tmp_path: Path, name: str, said: str) -> None:
    """Found before anything is written, and said in one line."""
    result = cli("run", config(tmp_path, name), "--out", tmp_path / "run")
    assert result.code == 2
    assert result.err.startswith("error: algorithm.name: ")
    assert said in result.err
    assert len(result.err.splitlines()) == 1
    assert not (tmp_path / "run").exists()
