"""Anchors written as HTML, which code hosts need, as targets of Sphinx."""

import re
from typing import Any


def targets_of_anchors(app: Any, page: str, source: list[str]) -> None:
    """Make `<a id="name"></a>` before a heading, an anchor on code hosts, a target that Sphinx can check."""
    source[0] = re.sub(r'^<a id="([\w-]+)"></a>$', r"(\1)=", source[0], flags=re.MULTILINE)


def setup(app: Any) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.connect("source-read", targets_of_anchors)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
