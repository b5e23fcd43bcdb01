"""A person's own model: found, called, seeded, and refused in one line where it is none."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from depositum.errors import ConfigError
from depositum.models import build, check
from tests.models.test_models import parameter_count

OWN = """
from torch import nn
calls = []

def full(input_shape, classes, width=3):
    calls.append((input_shape, classes, width))
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0], width), nn.Linear(width, classes))

def bare(width=2):
    return nn.Linear(width, width)

def keywords(*, width):
    return nn.Linear(width, width)

def anything(*args, **kwargs):
    return nn.Linear(args[0][0], args[1] + kwargs.get("more", 0))

class Net(nn.Module):
    def __init__(self, input_shape, classes):
        super().__init__()
        self.layer = nn.Linear(input_shape[0], classes)

def broken(input_shape, classes):
    raise RuntimeError("out of\\nluck")

def number(input_shape, classes):
    return 3

constant = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own_model.py").write_text(OWN)
    return tmp_path


def test_own_factory_is_called_with_shape_and_classes(folder: Path) -> None:
    """Breaks if the folder of the configuration is not importable, or stays on the path, or arguments are lost."""
    path = list(sys.path)
    assert tuple(build("own_model:full", (5,), 4, seed=0, base=folder)(torch.rand(2, 5)).shape) == (2, 4)
    wide = build({"own_model:full": {"width": 7}}, (5,), 4, seed=0, base=folder)
    assert tuple(wide.get_parameter("1.weight").shape) == (7, 5)
    assert sys.modules["own_model"].calls == [((5,), 4, 3), ((5,), 4, 7)]
    assert isinstance(build("own_model:Net", (5,), 4, seed=0, base=folder), nn.Module)
    assert parameter_count(build({"own_model:anything": {"more": 1}}, (5,), 4, seed=0, base=folder)) == 30
    assert sys.path == path


def test_own_factory_without_positional_parameters(folder: Path) -> None:
    """Breaks if a factory of fewer than two positional parameters is handed the shape."""
    assert parameter_count(build("own_model:bare", (5,), 4, seed=0, base=folder)) == 6
    assert parameter_count(build({"own_model:keywords": {"width": 3}}, (5,), 4, seed=0, base=folder)) == 12


def test_own_factory_is_seeded_too(folder: Path) -> None:
    """Breaks if the seed does not reach a person's own layers."""
    rows = [build("own_model:bare", (5,), 4, seed=s, base=folder).get_parameter("weight") for s in (0, 0, 1)]
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])


def test_own_factory_in_the_current_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if only the configuration's folder is searched."""
    monkeypatch.chdir(folder)
    assert parameter_count(build("own_model:bare", (5,), 4, seed=0)) == 6


def test_each_configuration_means_its_own_file(folder: Path) -> None:
    """Breaks if a module of the same name from another folder, imported earlier, is taken for this one."""
    other = folder / "other"
    other.mkdir()
    (other / "own_model.py").write_text("from torch import nn\ndef bare():\n    return nn.Linear(1, 1)\n")
    counts = [parameter_count(build("own_model:bare", (5,), 4, seed=0, base=b)) for b in (folder, other, folder)]
    assert counts == [6, 2, 6]


def test_check_builds_nothing(folder: Path) -> None:
    """Breaks if checking a configuration calls a person's factory."""
    choice = check({"own_model:full": {"width": 7}}, "problem.model", base=folder)
    assert choice.arguments == {"width": 7}
    assert sys.modules["own_model"].calls == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "lineer",
            "'lineer' is not a model; it can be 'linear', 'mlp', 'cnn', 'resnet18' or 'lora'; did you mean 'linear'?",
        ),
        ({"mlp": {"hiden": [3]}}, "unknown key; it can be 'hidden'; did you mean 'hidden'?"),
        ({"mlp": {"hidden": [3, 0]}}, "problem.model.mlp.hidden: [3, 0] given; it must be a list of whole numbers ≥ 1"),
        ({"mlp": {"hidden": 3}}, "3 given"),
        ({"linear": {"bias": "no"}}, "'no' given"),
        ({}, "must be a name or a table"),
        (3, "must be a name or a table"),
        ("absent_module:factory", "no module 'absent_module', neither installed nor in "),
        ("own_model.deeper:factory", "no module 'own_model.deeper'"),
        ("own_model:ful", "module 'own_model' has no 'ful'; did you mean 'full'?"),
        ("own_model:constant", "'own_model:constant' is a int, not a function that returns a model"),
        ({"own_model:full": {"widht": 3}}, "called as full(input_shape, classes, …): got an unexpected keyword"),
        ({"own_model:keywords": {}}, "called as keywords(…): missing a required"),
        ({"own_model:full": 3}, 'write { "own_model:full" = { argument = … } }'),
        ("own_model:", "is written 'package.module:name'"),
        (":full", "is written 'package.module:name'"),
        ("own/model.py:full", "is written 'package.module:name'"),
    ],
)
def test_a_wrong_choice_is_refused_before_work(spec: object, message: str, folder: Path) -> None:
    """Each mistake is one line that names the key; breaks if one is let through or ends in a traceback of ours."""
    with pytest.raises(ConfigError) as error:
        check(spec, base=folder)  # type: ignore[arg-type]
    assert message in str(error.value)
    assert str(error.value).startswith("problem.model")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_model:number", "'own_model:number' returned a int, not a torch.nn.Module"),
        ("own_model:broken", "called as broken(input_shape, classes, …), failed: RuntimeError: out of luck"),
    ],
)
def test_a_factory_that_fails_says_so(name: str, message: str, folder: Path) -> None:
    """Breaks if what is not a module gets through, or a failure is not told in one line."""
    with pytest.raises(ConfigError, match="problem.model: ") as error:
        build(name, (5,), 4, seed=0, base=folder)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_module_that_cannot_be_imported_says_why(tmp_path: Path) -> None:
    """Breaks if a missing dependency of a person's module is reported as their module missing."""
    name = "needs_more"
    (tmp_path / f"{name}.py").write_text("import a_package_not_installed\n")
    with pytest.raises(ConfigError, match=f"importing '{name}' failed: .*a_package_not_installed"):
        check(f"{name}:factory", base=tmp_path)
    (tmp_path / f"{name}.py").write_text("def factory(:\n")
    with pytest.raises(ConfigError, match=f"importing '{name}' failed: SyntaxError"):
        check(f"{name}:factory", base=tmp_path)
