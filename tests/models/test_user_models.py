"""User-defined models: imported, called, seeded, and rejected in one line if they are invalid."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from depositum.errors import ConfigError
from depositum.models import build, check
from tests.support.module_sizes import parameter_count

USER_MODULE = """
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
    (tmp_path / "user_model.py").write_text(USER_MODULE)
    return tmp_path


def test_a_factory_is_called_with_shape_and_classes(folder: Path) -> None:
    """Fails if the configuration's folder is not importable or stays on the path, or if arguments are lost."""
    path = list(sys.path)
    assert tuple(build("user_model:full", (5,), 4, seed=0, base=folder)(torch.rand(2, 5)).shape) == (2, 4)
    wide = build({"user_model:full": {"width": 7}}, (5,), 4, seed=0, base=folder)
    assert tuple(wide.get_parameter("1.weight").shape) == (7, 5)
    assert sys.modules["user_model"].calls == [((5,), 4, 3), ((5,), 4, 7)]
    assert isinstance(build("user_model:Net", (5,), 4, seed=0, base=folder), nn.Module)
    assert parameter_count(build({"user_model:anything": {"more": 1}}, (5,), 4, seed=0, base=folder)) == 30
    assert sys.path == path


def test_a_factory_without_positional_parameters(folder: Path) -> None:
    """Fails if the shape is passed to a factory with fewer than two positional parameters."""
    assert parameter_count(build("user_model:bare", (5,), 4, seed=0, base=folder)) == 6
    assert parameter_count(build({"user_model:keywords": {"width": 3}}, (5,), 4, seed=0, base=folder)) == 12


def test_a_factory_is_seeded(folder: Path) -> None:
    """Fails if the initial parameters of user-defined layers do not depend on the seed."""
    rows = [build("user_model:bare", (5,), 4, seed=s, base=folder).get_parameter("weight") for s in (0, 0, 1)]
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])


def test_a_factory_in_the_current_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if only the configuration's folder is searched."""
    monkeypatch.chdir(folder)
    assert parameter_count(build("user_model:bare", (5,), 4, seed=0)) == 6


def test_each_configuration_uses_the_module_beside_it(folder: Path) -> None:
    """Fails if a module of the same name, imported earlier from another folder, is used instead."""
    other = folder / "other"
    other.mkdir()
    (other / "user_model.py").write_text("from torch import nn\ndef bare():\n    return nn.Linear(1, 1)\n")
    counts = [parameter_count(build("user_model:bare", (5,), 4, seed=0, base=b)) for b in (folder, other, folder)]
    assert counts == [6, 2, 6]


def test_check_builds_nothing(folder: Path) -> None:
    """Fails if checking a configuration calls the factory."""
    choice = check({"user_model:full": {"width": 7}}, base=folder)
    assert choice.arguments == {"width": 7}
    assert sys.modules["user_model"].calls == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "lineer",
            "'lineer' is not a model; it can be 'linear', 'mlp', 'cnn', 'resnet18' or 'lora'; did you mean 'linear'?",
        ),
        ({"mlp": {"hiden": [3]}}, "unknown key; it can be 'hidden'; did you mean 'hidden'?"),
        ({"mlp": {"hidden": [3, 0]}}, "model.mlp.hidden: [3, 0] given; it must be a list of whole numbers ≥ 1"),
        ({"mlp": {"hidden": 3}}, "3 given"),
        ({"linear": {"bias": "no"}}, "'no' given"),
        ({}, "must be a name or a table"),
        (3, "must be a name or a table"),
        ("absent_module:factory", "no module 'absent_module', neither installed nor in "),
        ("user_model.deeper:factory", "no module 'user_model.deeper'"),
        ("user_model:ful", "module 'user_model' has no 'ful'; did you mean 'full'?"),
        ("user_model:constant", "'user_model:constant' is an int, not a function that returns a model"),
        ({"user_model:full": {"widht": 3}}, "called as full(input_shape, classes, …): got an unexpected keyword"),
        ({"user_model:keywords": {}}, "called as keywords(…): missing a required"),
        ({"user_model:full": 3}, 'write { "user_model:full" = { argument = … } }'),
        ("user_model:", "is written 'package.module:name'"),
        (":full", "is written 'package.module:name'"),
        ("user/model.py:full", "is written 'package.module:name'"),
    ],
)
def test_an_invalid_choice_is_rejected_before_work(spec: object, message: str, folder: Path) -> None:
    """The message is one line that names the key."""
    with pytest.raises(ConfigError) as error:
        check(spec, base=folder)  # type: ignore[arg-type]
    assert message in str(error.value)
    assert str(error.value).startswith("model")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("user_model:number", "'user_model:number' returned an int, not a torch.nn.Module"),
        ("user_model:broken", "called as broken(input_shape, classes, …), failed: RuntimeError: out of luck"),
    ],
)
def test_the_error_of_a_factory_that_fails(name: str, message: str, folder: Path) -> None:
    """Fails if an object that is not a module is accepted, or if a failure is not reported in one line."""
    with pytest.raises(ConfigError, match="^model: ") as error:
        build(name, (5,), 4, seed=0, base=folder)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_error_of_a_module_that_cannot_be_imported(tmp_path: Path) -> None:
    """Fails if a missing dependency of the user's module is reported as the module missing."""
    name = "needs_more"
    (tmp_path / f"{name}.py").write_text("import a_package_not_installed\n")
    with pytest.raises(ConfigError, match=f"importing '{name}' failed: .*a_package_not_installed"):
        check(f"{name}:factory", base=tmp_path)
    (tmp_path / f"{name}.py").write_text("def factory(:\n")
    with pytest.raises(ConfigError, match=f"importing '{name}' failed: SyntaxError"):
        check(f"{name}:factory", base=tmp_path)
