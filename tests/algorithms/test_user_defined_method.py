"""The user-defined method of docs/methods.md: run, swept, compared, overridden, explained, and checked before work."""

import tomllib
from pathlib import Path

import pytest
import tomli_w

from depositum.algorithms import ALGORITHMS
from depositum.cli.compare import selected_methods
from depositum.errors import ConfigError
from depositum.runs import Config, execute, execute_all, load
from tests.support.small_runs import cli, outcome, write_config
from tests.support.small_sweeps import assert_same_results, run_folders

DOCUMENTED = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
METHOD = DOCUMENTED.split("```python\n")[1].split("```")[0]
#: Variants, most of them with one mistake.
VARIANTS = """
from depositum.algorithms import Depositum


@dataclass(frozen=True)
class Incomplete(Algorithm):
    alpha: float = 0.1

    def init(self, x0, oracle, mix):
        return None


@dataclass(frozen=True)
class ReturningTensor(ProxDSGD):
    def step(self, s, oracle, mix, kind):
        return s.x


@dataclass(frozen=True)
class CuttingRows(ProxDSGD):
    def step(self, s, oracle, mix, kind):
        return State(s.t + 1, s.x[:, :3] if kind == "local" else s.x)


@dataclass(frozen=True)
class StartingWithOneRow(ProxDSGD):
    def init(self, x0, oracle, mix):
        return State(torch.zeros((), dtype=torch.int64), x0[0])


@dataclass(frozen=True)
class Raising(ProxDSGD):
    def step(self, s, oracle, mix, kind):
        return State(s.t + 1, oracle.gradient(s.x))


@dataclass(frozen=True)
class RenamedDepositum(Depositum):
    pass


@dataclass(frozen=True)
class OutOfMemory(ProxDSGD):
    def init(self, x0, oracle, mix):
        if len(x0) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().init(x0, oracle, mix)


@dataclass(frozen=True)
class Branching(ProxDSGD):
    def step(self, s, oracle, mix, kind):
        return super().step(s, oracle, mix, kind) if self.alpha > 0.5 else s._replace(t=s.t + 1)


@dataclass(frozen=True)
class BranchingOnScalar(Branching):
    scalar_parameters = ("alpha",)


@dataclass(frozen=True)
class WithoutDefault(ProxDSGD):
    rate: float = None

    def __init__(self, rate: float):
        pass
"""


@pytest.fixture(autouse=True)
def registry_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ALGORITHMS, "_factories", dict(ALGORITHMS._factories))


def config(folder: Path, name: str = "mine:ProxDSGD", **more: object) -> Path:
    (folder / "mine.py").write_text(METHOD + VARIANTS, encoding="utf-8")
    path = write_config(folder / "c.toml", problem={"model": "user_model:normalised"})
    table = tomllib.loads(path.read_text())
    table["algorithm"] = {"name": name}
    path.write_text(tomli_w.dumps({**table, **more}), encoding="utf-8")
    return path


@pytest.mark.slow
def test_it_runs_and_resumes_by_the_name_of_its_class(tmp_path: Path) -> None:
    """`name = "module:Class"`; a resumed run ends in the same state, buffers included."""
    path = config(tmp_path)
    assert cli("run", path, "--out", tmp_path / "out").code == 0
    assert 'name = "mine:ProxDSGD"' in (tmp_path / "out" / "config.toml").read_text()
    assert cli("run", path, "--out", tmp_path / "parts", "--set", "run.steps=7").code == 0
    assert cli("run", path, "--out", tmp_path / "parts").code == 0
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "out")


@pytest.mark.slow
def test_the_dry_run_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the running statistics of a batch norm start from those of the dry run."""
    path = config(tmp_path)
    assert cli("run", path, "--out", tmp_path / "checked").code == 0
    monkeypatch.setattr("depositum.runs.problems.try_method", lambda simulator: None)
    assert cli("run", path, "--out", tmp_path / "unchecked").code == 0
    assert outcome(tmp_path / "checked") == outcome(tmp_path / "unchecked")


def sweep(folder: Path, name: str) -> list[Config]:
    """Two configurations that differ in the stepsize of a method."""
    path = config(folder, name)
    return [load(path, [f"algorithm.alpha={alpha}", 'run.backend="vmap"']) for alpha in (0.05, 0.1)]


@pytest.mark.slow
def test_a_sweep_over_its_stepsize_equals_single_runs(tmp_path: Path) -> None:
    """The trials run side by side in one loop, and each ends where its single run does."""
    configs, loops = sweep(tmp_path, "mine:ProxDSGD"), []
    swept = execute_all(configs, run_folders(tmp_path, 2), on_loop=loops.append)
    assert len(loops) == 1
    for one, single, folder in zip(swept, configs, run_folders(tmp_path, 2, "alone"), strict=True):
        assert_same_results(one, execute(single, folder), "float32")


@pytest.mark.slow
def test_a_step_that_needs_a_plain_number_must_declare_it(tmp_path: Path) -> None:
    """The error names the attribute `scalar_parameters`, with which the same sweep runs."""
    message = "a step of 'prox-dsgd' .* fails with one value per row for 'alpha' .*add it to scalar_parameters"
    with pytest.raises(ConfigError, match=message) as error:
        execute_all(sweep(tmp_path, "mine:Branching"), run_folders(tmp_path, 2))
    assert error.value.key == "algorithm.name"
    assert "\n" not in str(error.value)
    results = execute_all(sweep(tmp_path, "mine:BranchingOnScalar"), run_folders(tmp_path, 2, "scalar"))
    assert all(result.finished for result in results)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["mine:ProxDSGD", "prox-dsgd", "smooth"])
def test_an_override_may_use_either_name(tmp_path: Path, part: str) -> None:
    """Fails if an override by the `name` of the class is accepted but has no effect."""
    path = config(tmp_path, override={part: {"run": {"period": 2}}})
    assert cli("run", path, "--out", tmp_path / "out").code == 0
    written = tomllib.loads((tmp_path / "out" / "config.toml").read_text())
    assert written["run"]["period"] == (3 if part == "smooth" else 2)


def test_an_override_of_a_method_does_not_apply_to_its_subclasses(tmp_path: Path) -> None:
    """Even if the subclass inherits the `name`."""
    path = config(tmp_path, "mine:RenamedDepositum", override={"depositum": {"run": {"period": 2}}})
    assert cli("run", path, "--out", tmp_path / "out").code == 0
    assert tomllib.loads((tmp_path / "out" / "config.toml").read_text())["run"]["period"] == 3


@pytest.mark.slow
def test_lack_of_memory_in_the_dry_run_is_handled_like_any_other(tmp_path: Path) -> None:
    """Seeds that do not fit into memory at once are run in smaller groups."""
    path = config(tmp_path, "mine:OutOfMemory")
    result = cli("run", path, "--out", tmp_path / "out", "--set", "run.seeds=[0, 1]")
    assert result.code == 0, result
    assert "2 seeds at once do not fit in memory" in result.err


def test_compare_includes_the_method_of_the_configuration(tmp_path: Path) -> None:
    """Even if it has a server, and no use for the network of the others; one named by its class is listed once."""
    network, override = {"mixing": "lazy-metropolis"}, {"smooth": {"problem": {"beta": 0}}}
    path = config(tmp_path, "fedmid", network=network, override=override)
    selected = selected_methods(None, path, [])
    assert "fedmid" in selected
    assert "depositum" in selected
    names = selected_methods("all", config(tmp_path, "mine:ProxDSGD"), [])
    assert "mine:ProxDSGD" in names
    assert "prox-dsgd" not in names


@pytest.mark.slow
@pytest.mark.parametrize("base", ["depositum", "mine:ProxDSGD"])
def test_it_is_compared_with_other_methods(tmp_path: Path, base: str) -> None:
    """Named on the command line or in the configuration; each method has its own folder and override."""
    path = config(tmp_path, base, override={"mine:ProxDSGD": {"algorithm": {"alpha": 0.03}}})
    out = tmp_path / "both"
    result = cli("compare", path, "--methods", "depositum,mine:ProxDSGD", "--out", out)
    assert result.code == 0, result.err
    assert "mine:ProxDSGD" in result.out
    assert {p.name for p in out.iterdir()} == {"depositum", "mine.ProxDSGD", "compare.png"}
    assert tomllib.loads((out / "mine.ProxDSGD" / "config.toml").read_text())["algorithm"]["alpha"] == 0.03


def test_it_is_explained_by_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config(tmp_path)
    monkeypatch.chdir(tmp_path)
    result = cli("methods", "mine:ProxDSGD")
    assert result.code == 0
    assert "mine:ProxDSGD: Decentralized proximal SGD" in result.out
    assert "alpha = 0.1" in result.out
    without_default = cli("methods", "mine:WithoutDefault")
    assert without_default.code == 2
    assert "has no defaults for 'rate'" in without_default.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine:ProxDSG", "module 'mine' has no 'ProxDSG'; did you mean 'ProxDSGD'?"),
        ("mime:ProxDSGD", "no module 'mime'"),
        ("mine:State", "is not a method: it must be a dataclass that extends Algorithm"),
        ("mine:Incomplete", "'mine:Incomplete' does not define step, vectors, name, about"),
        (
            "mine:ReturningTensor",
            "a step of 'prox-dsgd' ('exchange') gave a Tensor; it must be a NamedTuple with t, x and its own variables",
        ),
        (
            "mine:CuttingRows",
            "after a step of 'prox-dsgd' ('local'), x is [4, 3] of torch.float32; before it was [4, 53]",
        ),
        ("mine:StartingWithOneRow", "init of 'prox-dsgd' gave models x of shape [53], not [4, 53]"),
        ("mine:Raising", "a step of 'prox-dsgd' ('exchange') fails: AttributeError: "),
    ],
)
def test_mistakes_are_reported_in_one_line_before_anything_is_written(tmp_path: Path, name: str, message: str) -> None:
    result = cli("run", config(tmp_path, name), "--out", tmp_path / "run")
    assert result.code == 2
    assert result.err.startswith("error: algorithm.name: ")
    assert message in result.err
    assert len(result.err.splitlines()) == 1
    assert not (tmp_path / "run").exists()
