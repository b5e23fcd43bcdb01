"""`import depositum` and `depositum --help` load no heavy library before it is needed."""

import importlib
import subprocess
import sys

import pytest

import depositum
from depositum.cli import COMMANDS
from tests.support.small_runs import cli

HEAVY = ("torch", "matplotlib", "pandas", "pooch", "sklearn", "scipy", "networkx", "transformers", "peft")


def loaded(code: str) -> set[str]:
    """The heavy libraries that a fresh interpreter has loaded after running `code`."""
    report = f"{code}\nimport sys; print('\\nloaded:', *[name for name in {HEAVY} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    return set(result.stdout.splitlines()[-1].split()[1:])


def command_line(*arguments: str) -> str:
    """Code that runs the command line in a fresh interpreter."""
    return (
        "import sys; from depositum.cli import main\n"
        f"sys.argv = ['depositum', *{arguments!r}]\n"
        "try: main()\nexcept SystemExit as end: assert not end.code"
    )


def test_import_depositum_loads_no_heavy_library() -> None:
    assert loaded("import depositum, depositum.cli; dir(depositum)") == set()


@pytest.mark.slow
def test_fit_needs_neither_matplotlib_nor_pooch() -> None:
    code = "import depositum as dp, torch; dp.fit, dp.ring(3), dp.TensorBoard"
    assert loaded(code).isdisjoint({"matplotlib", "pandas", "pooch", "sklearn", "transformers", "peft"})


@pytest.mark.slow
def test_an_uncompiled_run_does_not_import_the_compiler() -> None:
    """It is slow to import. Fails if an operator of such a run is made by `torch.library.custom_op`."""
    code = """
import depositum as dp, sys, torch
data = [(torch.randn(8, 4), torch.randint(0, 3, (8,))) for _ in range(3)]
settings = {"channel": "float16", "network": dp.star(3), "compile": "never", "progress": False}
dp.fit(torch.nn.Linear(4, 3), data, steps=4, period=2, batch_size=2, **settings)
assert "torch._dynamo" not in sys.modules
"""
    loaded(code)


@pytest.mark.parametrize("arguments", [("--help",), ("--version",)])
def test_help_and_version_load_no_heavy_library(arguments: tuple[str, ...]) -> None:
    assert loaded(command_line(*arguments)) == set()


@pytest.mark.parametrize("arguments", [("methods",), ("methods", "depositum")])
def test_the_methods_are_listed_and_explained_without_loading_a_heavy_library(arguments: tuple[str, ...]) -> None:
    assert loaded(command_line(*arguments)) == set()


def test_every_public_name_is_found() -> None:
    """The table of modules, the imports for type checkers and `__all__` agree."""
    for name in depositum.__all__:
        assert getattr(depositum, name) is not None
    assert set(depositum.__all__) == {*depositum._MODULE_OF, "__version__"}
    assert set(depositum.__all__) <= set(dir(depositum))
    for name, module in depositum._MODULE_OF.items():
        assert getattr(depositum, name) is getattr(importlib.import_module(module), name)


@pytest.mark.slow
def test_submodules_are_attributes() -> None:
    """`import depositum as dp; dp.networks` works without importing the submodule."""
    code = "import depositum as dp; assert dp.networks.__name__ == 'depositum.networks'"
    assert "networkx" in loaded(code)
    with pytest.raises(AttributeError, match="module 'depositum' has no attribute 'networs'"):
        _ = depositum.networs


@pytest.mark.slow
def test_fit_is_the_function_in_whatever_order_names_are_used() -> None:
    loaded("import depositum as dp; dp.FitResult; assert callable(dp.fit)")
    loaded("from depositum import fitting; import depositum as dp; assert callable(dp.fit)")


@pytest.mark.parametrize("command", list(COMMANDS))
def test_the_list_of_commands_repeats_their_help(command: str) -> None:
    """`depositum --help` does not import the commands, so that their first sentences are written twice."""
    docstring = importlib.import_module(f"depositum.cli.{command}").command.__doc__
    assert docstring.splitlines()[0] == COMMANDS[command]
    assert command in cli("--help").out
