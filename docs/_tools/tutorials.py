"""Execute the tutorials as they stand, in a temporary folder each.

    python docs/_tools/tutorials.py [NAME…]

executes tutorials, writes what they print into them, and copies the figures that they show to docs/images/tutorials.
`tests/test_tutorials.py` executes them in the same way and compares.

In a tutorial, a block of code is
- written to a file, if the paragraph before it is only the name of a file: `` `train.toml`: ``;
- a session in a shell, if it is ```console: commands begin with "$ ", what they print follows;
- executed, if it is ```python, in one interpreter for the page; what it prints is in the ```text block that follows.
"""

import contextlib
import io
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent
TUTORIALS = DOCS / "tutorials"
FIGURES = DOCS / "images" / "tutorials"
FENCE = re.compile(r"^(?P<file>`[\w./-]+`:\n\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
SHOWN = re.compile(r"!\[[^\]]*\]\(\.\./images/tutorials/([\w.-]+)\)")


@dataclass(frozen=True)
class Output:
    """What a block printed, beside what the page shows."""

    line: int
    shown: str
    printed: str

    def differs(self) -> bool:
        """Whether the words differ, or numbers by more than 5 % and 0.005; times are not compared."""
        shown, printed = _words(self.shown), _words(self.printed)
        return len(shown) != len(printed) or not all(map(_alike, shown, printed))


def pages() -> list[Path]:
    """Return the tutorials."""
    return sorted(page for page in TUTORIALS.glob("*.md") if page.stem != "index")


def figures(page: Path) -> list[str]:
    """Return the names of the figures that a tutorial shows, which its code must have written."""
    return SHOWN.findall(page.read_text(encoding="utf-8"))


def execute(page: Path, folder: Path) -> tuple[str, list[Output]]:
    """Execute a tutorial in a folder; return its text with what was printed, and each output."""
    text = page.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}
    parts, outputs, end, printed = [], [], 0, ""
    for block in FENCE.finditer(text):
        line = text[: block.start()].count("\n") + 1
        parts.append(text[end : block.start("text")])
        end = block.end("text")
        new = code = block["text"]
        if block["file"]:
            file = folder / block["file"].strip().strip("`:")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(code, encoding="utf-8")
        elif block["kind"] == "python":
            printed = _python(code, names, f"{page.name}:{line}", folder)
            if printed and not text[end:].startswith("```\n\n```text\n"):
                raise AssertionError(f"{page.name}:{line}: prints, but no ```text block follows:\n{printed}")
        elif block["kind"] == "text":
            outputs.append(Output(line, code, printed))
            new = printed
        elif block["kind"] == "console":
            new = _session(code, folder)
            outputs.append(Output(line, code, new))
        parts.append(new)
    return "".join([*parts, text[end:]]), outputs


def _python(code: str, names: dict[str, Any], where: str, folder: Path) -> str:
    """Execute a block in the folder and return what it prints, warnings included."""
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as out, warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = lambda message, category, *_: print(f"{category.__name__}: {message}")  # type: ignore[assignment]
        exec(compile(code, where, "exec"), names)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _session(code: str, folder: Path) -> str:
    """Run the commands of a session and return it with what they print; a backslash continues a command."""
    environment = {**os.environ, "COLUMNS": "100", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    out = []
    for command in re.findall(r"^\$ (.*(?:\\\n.*)*)$", code, re.MULTILINE):
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        if done.returncode:
            raise AssertionError(f"{command}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
        printed = "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())
        out.append(f"$ {command}\n{printed}")
    return "\n".join(out)


def _words(text: str) -> list[str]:
    """Split at blanks, lines of tables, and `=`; times become one word."""
    text = re.sub(r"\d[\d.]*( ?s\b| ?min\b)", "TIME", text)
    return re.sub(r"[━─┃│┏┓┗┛┡┩╇┳┻└┘┴┬├┤┼]", " ", text).replace("=", " = ").split()


def _alike(shown: str, printed: str) -> bool:
    if shown == printed:
        return True
    try:
        a, b = (float(word.strip("()[]{},:;%").rstrip(".")) for word in (shown, printed))
    except ValueError:
        return False
    return math.isclose(a, b, rel_tol=0.05, abs_tol=0.005)


def main(names: list[str]) -> int:
    """Execute tutorials and store what they print and draw."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    for page in pages():
        if names and page.stem not in names:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            text, outputs = execute(page, Path(scratch))
            page.write_text(text, encoding="utf-8")
            for name in figures(page):
                shutil.copy(Path(scratch, name), FIGURES / name)
        print(f"{page.stem}: {len(outputs)} outputs, {len(figures(page))} figures")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "agg")
    sys.exit(main(sys.argv[1:]))
