"""Mermaid diagrams without JavaScript: code hosts draw the fences themselves, the site shows pictures of them.

    python docs/_tools/diagrams.py

draws every ```mermaid fence of docs/ that has no picture yet (with Mermaid's command line, by `npx`, in Chromium), and
deletes pictures of diagrams that are gone. A picture is named after the text of its diagram, so a diagram that was
changed has none, and the build says so.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent
PICTURES = DOCS / "images" / "diagrams"
THEMES = {"light": "neutral", "dark": "dark"}
MERMAID = "@mermaid-js/mermaid-cli@12"


def picture(text: str, theme: str) -> Path:
    """Return the path of the picture of a diagram."""
    return PICTURES / f"{hashlib.sha256(text.strip().encode()).hexdigest()[:12]}-{theme}.svg"


def diagrams() -> list[str]:
    """Return the texts of all diagrams of the documents."""
    pages = sorted(DOCS.glob("**/*.md"))
    return [
        text for page in pages for text in re.findall(r"^```mermaid\n(.*?)^```", page.read_text("utf-8"), re.S | re.M)
    ]


def render(text: str, theme: str) -> None:
    """Draw one diagram as an SVG file."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with tempfile.TemporaryDirectory() as scratch:
        source, settings = Path(scratch, "diagram.mmd"), Path(scratch, "puppeteer.json")
        source.write_text(text, encoding="utf-8")
        settings.write_text(json.dumps({"executablePath": chromium, "args": ["--no-sandbox"]}), encoding="utf-8")
        options = ["-t", THEMES[theme], "-b", "transparent", "-p", str(settings), "--quiet"]
        command = ["npx", "--yes", MERMAID, "-i", str(source), "-o", str(picture(text, theme)), *options]
        subprocess.run(command, check=True, env={**os.environ, "PUPPETEER_SKIP_DOWNLOAD": "1"})


def main() -> int:
    """Draw what is missing, delete what is not used."""
    wanted = {picture(text, theme): (text, theme) for text in diagrams() for theme in THEMES}
    for path, (text, theme) in wanted.items():
        if not path.exists():
            render(text, theme)
            print(f"drawn: {path.relative_to(DOCS.parent)}")
    for path in set(PICTURES.glob("*.svg")) - set(wanted):
        path.unlink()
        print(f"deleted: {path.relative_to(DOCS.parent)}")
    return 0


def setup(app: Any) -> dict[str, Any]:
    """Register the directive `mermaid` with Sphinx."""
    from docutils import nodes
    from sphinx.util.docutils import SphinxDirective

    class Mermaid(SphinxDirective):  # type: ignore[misc]
        """A diagram, as its pictures in light and dark."""

        has_content = True

        def run(self) -> list[nodes.Node]:
            text = "\n".join(self.content)
            out: list[nodes.Node] = []
            for theme in THEMES:
                path = picture(text, theme)
                if not path.exists():
                    raise self.error(
                        "this diagram has no picture: run python docs/_tools/diagrams.py and add its files"
                    )
                uri = os.path.relpath(path, Path(self.env.doc2path(self.env.docname)).parent)
                out.append(nodes.image(uri=uri, alt=text, classes=["diagram", f"only-{theme}"]))
            return out

    app.add_directive("mermaid", Mermaid)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    sys.exit(main())
