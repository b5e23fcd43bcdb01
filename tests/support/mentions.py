"""Paths and names of the package that a document mentions, and which of them do not exist."""

import ast
import builtins
import functools
import importlib
import re
from pathlib import Path
from typing import Any

import torch

import depositum
from depositum.runs import Config

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "src" / "depositum"
#: Folders of the repository; a path that begins with one of them must exist.
TOP = ("src", "tests", "benchmarks", "docs", "examples", "results", ".ci")
#: First parts of paths that runs and users make.
MADE = ("adapter", "build", "clients", "data", "logs", "runs", "seeds", "tensorboard", "results", "mine")
#: Names of files that users write, in examples.
USER_FILES = ("mine.py", "train.py", "make_csv.py", "use.py")
#: First parts of dotted names that are variables in examples.
VARIABLES = ("pd", "s", "state", "result", "model", "override", "np", "nn", "mine", "loop", "keep", "stopping")
#: Names of other libraries that documents explain.
ELSEWHERE = (
    "DataFrame",
    "DataLoader",
    "FedAvg",
    "FedProx",
    "GridSearchCV",
    "LogisticRegression",
    "NumPyClient",
    "Ridge",
)
ELSEWHERE += ("SGD", "StandardScaler", "fit", "predict")
#: Endings by which a dotted name is a file.
ENDINGS = (".cff", ".csv", ".gguf", ".gz", ".html", ".json", ".jsonl", ".log", ".md", ".npz", ".pdf", ".png", ".svg")
ENDINGS += (".safetensors", ".sh", ".tex", ".toml", ".txt")
#: Words in the place of a part of a path.
PLACEHOLDER = re.compile(r"\b(?:[A-Z]+|…|N|i)\b|\{\w+\}")


def missing(text: str) -> list[str]:
    """Return what a document mentions and does not exist, as it is written there.

    Paths are found anywhere; names of Python objects in code blocks (imports) and between backticks.
    """
    fenced = re.findall(r"```.*?```", text, re.DOTALL)
    quoted = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    out = missing_paths(text)
    out += [name for name in quoted if not _quoted_exists(name.strip())]
    for block in fenced:
        out += [name for name in _imported(block) if not _resolves(name)]
    out += [name for name in re.findall(r"\b(?:depositum|dp)(?:\.[A-Za-z_]\w*)+", text) if not _resolves(name)]
    return sorted(set(out))


def missing_paths(text: str) -> list[str]:
    """Return the paths of the repository or of Python files that a text mentions and that do not exist."""
    return [path for path in re.findall(r"(?<![\w/:.{}-])[\w.-]+(?:/[\w.*{}-]+)+/?", text) if not _path_exists(path)]


def _path_exists(path: str) -> bool:
    """Whether a path exists in the repository or the package, or is not one of theirs."""
    path = path.rstrip(".")
    first, last = path.split("/")[0], path.rstrip("/").split("/")[-1]
    if last in USER_FILES or path.startswith("results/quick"):
        return True
    pattern = PLACEHOLDER.sub("*", path).rstrip("/")
    if any(any(base.glob(pattern)) for base in (ROOT, PACKAGE)):
        return True
    return not (first in TOP or path.endswith(".py"))


def _quoted_exists(text: str) -> bool:
    """Whether what stands between backticks exists, if it is a path or a name of the package."""
    if re.fullmatch(r"[\w.-]+\.py", text):
        return text in USER_FILES or any(ROOT.glob(f"*/**/{text}")) or (ROOT / text).exists()
    if re.fullmatch(r"[a-z][\w-]*(?:/[\w-]+)*/", text) or re.fullmatch(r"[a-z]\w*(?:/\w+)+", text):
        return text.split("/")[0] in MADE or (ROOT / text).exists() or (PACKAGE / text).exists()
    called = re.fullmatch(r"([A-Za-z_][\w.]*)\(.*\)", text)
    name = called[1] if called else text
    if name.split(".")[0] in ELSEWHERE:
        return True
    if re.fullmatch(r"[A-Za-z_]\w*(?:\.\w+)+", name):
        return _dotted_exists(name)
    if called or re.fullmatch(r"[A-Z]\w*[a-z]\w*", name):
        return name in _defined() or hasattr(builtins, name) or hasattr(torch, name) or hasattr(torch.nn, name)
    return True


def _dotted_exists(name: str) -> bool:
    """Whether a dotted name is a key of a configuration, a file, a variable or an object."""
    first, *rest = name.split(".")
    if name.endswith(ENDINGS) or first in VARIABLES or _is_key(first, rest[0]):
        return True
    if first in ("depositum", "dp", "torch"):
        return _resolves(name)
    if first[0].isupper():
        return any(hasattr(found, rest[0]) or rest[0] in _fields(found) for found in _classes(first))
    return _resolves(f"depositum.{name}")


def _is_key(section: str, key: str) -> bool:
    fields = Config.model_fields
    if section == "algorithm":
        return True  # hyper-parameters are the methods' own
    return section in fields and key in fields[section].annotation.model_fields  # type: ignore[union-attr]


def _imported(block: str) -> list[str]:
    """Names of the package that a code block imports."""
    found = re.findall(r"^from (depositum[\w.]*) import (.+)$", block, re.MULTILINE)
    return [f"{module}.{name.strip()}" for module, names in found for name in names.split("#")[0].split(",")]


def _resolves(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    first, *rest = name.split(".")
    value: Any = depositum if first in ("depositum", "dp") else importlib.import_module(first)
    path = value.__name__
    for part in rest:
        if not hasattr(value, part):
            try:
                importlib.import_module(f"{path}.{part}")
            except ImportError:
                return False
        value = getattr(value, part)
        path = f"{path}.{part}"
    return True


@functools.cache
def _defined() -> set[str]:
    """Names of all functions and classes of the package."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")]
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, kinds)}


def _classes(name: str) -> list[Any]:
    """All classes of a name in the package."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if re.search(rf"^class {name}\b", path.read_text(encoding="utf-8"), re.MULTILINE):
            module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
            found.append(getattr(importlib.import_module(module), name))
    return found


def _fields(found: Any) -> dict[str, Any]:
    return {name: kind for base in found.__mro__ for name, kind in getattr(base, "__annotations__", {}).items()}
