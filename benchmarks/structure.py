"""Measure the structure of the package: its size, the code that three walks enter, duplicates and import times.

    python benchmarks/structure.py [--root DIR] [--out FILE.json] [--parts size,walks,duplicates,times]

`--root` is a checkout of the repository (default: the one of this file). Every part runs in new processes with that
checkout first on the path, so that one script measures all versions.

size
    Files below `src/`, and lines of code without blank lines, comments and docstrings.
walks
    Files and functions of the package that are entered by `depositum.fit` on three clients, by
    `depositum run examples/demo.toml` and by `depositum reproduce stepsize --quick`. All modules are imported before.
duplicates
    Number of pairs that the command `duplicates` lists; left out where it is not installed.
times
    CPU seconds that `import depositum` takes beyond `import torch`, and that `depositum --help` and `depositum methods`
    take from start to end.
"""

import argparse
import ast
import io
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import tokenize
from pathlib import Path
from typing import Any

#: Imports all modules of the package, runs a statement, and prints which files and functions of the package it entered.
PROFILED = """
import importlib, inspect, json, pkgutil, sys, threading
import torch
import depositum
torch.set_num_threads(1)
from depositum.cli import main
for module in pkgutil.walk_packages(depositum.__path__, "depositum."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ImportError:
            pass  # kernels need Triton
root = depositum.__path__[0]
entered = set()

def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_flags & inspect.CO_OPTIMIZED and code.co_filename.startswith(root):
        entered.add((code.co_filename[len(root) + 1:], code.co_qualname))

def walk():
    STATEMENT

threading.setprofile(note)
sys.setprofile(note)
try:
    walk()
except SystemExit as end:
    assert not end.code, end.code
finally:
    sys.setprofile(None)
    threading.setprofile(None)
files = sorted({file for file, _ in entered})
with open("TEMPORARY/walk.json", "w") as out:
    json.dump({"files": len(files), "functions": len(entered), "entered": files}, out)
"""

WALKS = {
    "fit": """
    data = [(torch.randn(50, 4), torch.randint(0, 2, (50,))) for _ in range(3)]
    model = torch.nn.Linear(4, 2)
    depositum.fit(model, data, regularizer=depositum.L1(), beta=0.01, steps=20, progress=False)""",
    "run": """
    settings = ["--set", "run.steps=20", "--set", "run.device=cpu"]
    sys.argv = ["depositum", "run", "ROOT/examples/demo.toml", "--out", "TEMPORARY/run", *settings]
    main()""",
    "reproduce": """
    folders = ["--out", "TEMPORARY/results", "--cache", "TEMPORARY/cache"]
    sys.argv = ["depositum", "reproduce", "stepsize", "--quick", *folders]
    main()""",
}


def code_lines(source: str) -> int:
    r"""Count the lines of a module that hold code: neither blank, nor comments, nor docstrings.

    >>> code_lines('"It."\n\nx = 1  # one\n# two\ny = (\n    x\n)\n')
    4
    """
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            docstrings |= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def measure_size(root: Path) -> dict[str, Any]:
    """Count files and lines of code of the package and its tests."""
    out = {}
    for folder in ("src", "tests", "benchmarks"):
        files = [path for path in sorted((root / folder).rglob("*.py")) if "__pycache__" not in path.parts]
        texts = [path.read_text(encoding="utf-8") for path in files]
        lines = [code_lines(text) for text in texts]
        out[folder] = {"files": len(files), "lines": sum(text.count("\n") for text in texts), "code": sum(lines)}
        if folder == "src":
            out[folder]["largest"] = max(zip(lines, (str(p.relative_to(root)) for p in files), strict=True))  # type: ignore[assignment]
    return out


def environment(root: Path) -> dict[str, str]:
    """Return environment variables with which a checkout's package is the one that is imported."""
    return {**os.environ, "PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}


def measure_walks(root: Path) -> dict[str, Any]:
    """Run each walk in a new process and count the files and functions that it enters."""
    out = {}
    for name, statement in WALKS.items():
        with tempfile.TemporaryDirectory() as folder:
            script = PROFILED.replace("STATEMENT", statement.lstrip())
            script = script.replace("ROOT", str(root)).replace("TEMPORARY", folder)
            ended = subprocess.run(
                [sys.executable, "-c", script], env=environment(root), capture_output=True, text=True, check=False
            )
            if ended.returncode:
                raise RuntimeError(f"{name}: {ended.stderr[-2000:]}")
            out[name] = json.loads((Path(folder) / "walk.json").read_text(encoding="utf-8"))
    return out


def measure_duplicates(root: Path) -> dict[str, Any]:
    """Count the pairs of similar code that `duplicates` lists."""
    if shutil.which("duplicates") is None:
        return {"pairs": None}
    command = ["duplicates", "--repo", str(root / "src"), "--most", "200"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    pairs = [line for line in text.splitlines() if re.match(r"D\d+ ", line)]
    return {"pairs": len(pairs), "pairs without boilerplate": sum("boilerplate" not in pair for pair in pairs)}


def seconds(root: Path, *arguments: str) -> float:
    """Return the CPU time of a process, the median of five: wall time would depend on what else the machine does."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], env=environment(root), stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(times)


def measure_times(root: Path) -> dict[str, Any]:
    """Measure how long imports and the light commands take."""
    python, torch, package = (seconds(root, "-c", text) for text in ("", "import torch", "import torch, depositum"))
    commands = {name: seconds(root, "-m", "depositum", name) for name in ("--help", "methods")}
    return {
        "python": round(python, 3),
        "import torch": round(torch - python, 3),
        "import depositum beyond torch": round(package - torch, 3),
        **{f"depositum {name}": round(value, 3) for name, value in commands.items()},
    }


PARTS = {
    "size": measure_size,
    "walks": measure_walks,
    "duplicates": measure_duplicates,
    "times": measure_times,
}


def main() -> None:
    """Measure the chosen parts, print them, and write them as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--parts", default=",".join(PARTS))
    given = parser.parse_args()
    numbers = {part: PARTS[part](given.root.resolve()) for part in given.parts.split(",")}
    if given.out is not None:
        given.out.write_text(json.dumps(numbers, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for part, values in numbers.items():
        for name, value in values.items():
            if isinstance(value, dict):
                value = ", ".join(f"{number} {key}" for key, number in value.items() if isinstance(number, int))
            print(f"{part:10} {name:32} {value}")


if __name__ == "__main__":
    main()
