"""The layout is the architecture: a part imports only the parts above it."""

import ast
from pathlib import Path

import pytest

import depositum

ROOT = Path(depositum.__file__).parent
#: From the bottom of what everyone may know to the top of what knows everything (docs/architecture.md).
FOUNDATIONS = (
    *(
        "errors",
        "validation",
        "registry",
        "layout",
        "operators",
        "randomness",
        "user_code",
        "launch",
        "channels",
        "kernels",
    ),
    *("interrupt", "bounded_reading", "memory", "provenance", "toml_file"),
)
ORDER = (
    "regularizers",
    "networks",
    "data",
    "models",
    "problem",
    "language",
    "algorithms",
    "metrics",
    "engines",
    "theory",
    "runs",
    "report",
    "federation",
    "peers",
    "tuning",
    "experiments",
    "fitting",
    "cli",
)
#: Parts that know nothing of some part that stands before them.
BLIND = {
    "algorithms": {"regularizers", "networks", "data", "models", "problem"},
    "theory": set(ORDER) - {"theory"},
    "networks": {"regularizers"},
    "data": {"regularizers", "networks"},
    "models": {"regularizers", "networks", "data"},
    "problem": {"networks", "models"},
    "language": {"regularizers", "networks", "models"},
}
#: Parts that no other part imports: what they define is registered by import path.
LEAVES = {"language"}


def imported_parts(part: str) -> set[str]:
    """The parts of the package that a part's files import, wherever in the file."""
    path = ROOT / part
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    found = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("depositum."):
                found.add(node.module.split(".")[1])
            elif isinstance(node, ast.ImportFrom) and node.module == "depositum":
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Import):
                found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("depositum.")}
    return found - {part, "__version__"}


@pytest.mark.parametrize("part", ORDER)
def test_a_part_imports_only_parts_above_it(part: str) -> None:
    """An import the other way round would make the parts one lump."""
    allowed = {*FOUNDATIONS, *ORDER[: ORDER.index(part)]} - BLIND.get(part, set()) - LEAVES
    assert imported_parts(part) <= allowed


@pytest.mark.parametrize("part", FOUNDATIONS)
def test_foundations_stand_alone(part: str) -> None:
    assert imported_parts(part) <= set(FOUNDATIONS)


def test_every_part_is_in_the_order() -> None:
    """A new folder or file of the package must take its place here and in docs/architecture.md."""
    parts = {p.stem for p in ROOT.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert parts - {"__init__", "__main__"} == {*FOUNDATIONS, *ORDER}


def test_torch_distributed_is_one_transport_in_one_module() -> None:
    """Nothing above the communicator may depend on how messages travel."""
    users = {file.relative_to(ROOT).as_posix() for file in ROOT.rglob("*.py") if _uses_torch_distributed(file)}
    assert users == {"engines/distributed/torch_communicator.py"}


def _uses_torch_distributed(file: Path) -> bool:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if any(name.startswith("torch.distributed") for name in names):
            return True
    return False


def test_the_environment_of_torchrun_is_read_in_one_module() -> None:
    variables = ("WORLD_SIZE", "MASTER_ADDR", "LOCAL_RANK", "TORCHELASTIC")
    readers = {
        file.relative_to(ROOT).as_posix()
        for file in ROOT.rglob("*.py")
        if any(f'"{name}' in file.read_text(encoding="utf-8") for name in variables)
    }
    assert readers == {"launch.py"}


def test_no_pickle_anywhere() -> None:
    """Nothing that is loaded can run code: no pickle, no torch.load."""
    for file in ROOT.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert "import pickle" not in text, file
        assert "torch.load" not in text, file
        assert "allow_pickle=True" not in text, file
