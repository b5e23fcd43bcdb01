"""A report page: one HTML file with its data, styles, scripts and plotting library inside, which loads nothing."""

import json
import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from depositum.errors import ConfigError, RunError

#: The scripts of a page in order: the library (see page/README.md), then ours.
LIBRARIES = ("d3.min.js", "plot.min.js")
SCRIPTS = ("format.js", "state.js", "tables.js", "charts.js", "network.js", "sections.js", "main.js")
#: By this a page is known as one of ours, which may be written anew.
GENERATOR = '<meta name="generator" content="depositum report">'


def render_page(views: Sequence[dict[str, Any]], version: str) -> str:
    """The page of one view or several as HTML."""
    title = " · ".join(view["title"] for view in views[:3]) + " …" * (len(views) > 3)
    data = {"version": version, "views": list(views)}
    parts = {
        "generator": GENERATOR,
        "title": escape(title),
        "style": _asset("page.css"),
        "data": embedded_json(data),
        "libraries": "\n".join(f"<script>{_asset(name)}</script>" for name in LIBRARIES),
        "scripts": "\n".join(map(_asset, SCRIPTS)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("page.html"))


def embedded_json(data: Any) -> str:
    r"""JSON that can stand in a `<script>` element, whatever text it has.

    >>> embedded_json({"name": "</script><!--"})
    '{"name":"\\u003c/script>\\u003c!--"}'
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def check_page_file(out: Path, force: bool = False, key: str = "--out") -> None:
    """Raise, before any work, if a page cannot be written to `out`, or if another file exists there."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(key, f"{str(out)!r} given; it must end in .html")
    if out.is_dir() or not out.parent.is_dir():
        raise ConfigError(key, f"{str(out)!r} given; it must be a file in an existing folder")
    if out.exists() and not force and not _is_page(out):
        raise ConfigError(
            key, f"{str(out)!r} exists and is not a report; choose another file, or overwrite it by force"
        )


def write_page(html: str, out: Path) -> None:
    """Write a page; an existing one is replaced only once all is written."""
    part = out.with_name(out.name + ".part")
    try:
        part.write_text(html, encoding="utf-8")
        part.replace(out)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise RunError(f"{out}: cannot be written ({error.strerror or error})") from None


def _is_page(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return GENERATOR.encode() in file.read(4096)
    except OSError:
        return False


def _asset(name: str) -> str:
    return resources.files("depositum.report").joinpath("page", name).read_text(encoding="utf-8")
