"""Links and anchors of Markdown documents, as code hosts make them."""

import re
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt

PARSER = MarkdownIt("commonmark").enable("table")


def links(text: str) -> list[str]:
    """The targets of all links and images."""
    inline = [child for token in PARSER.parse(text) for child in token.children or []]
    return [str(child.attrs[name]) for child in inline for name in ("href", "src") if name in child.attrs]


def anchors(text: str) -> set[str]:
    """The anchors of all headings, numbered where they repeat, and those written as HTML."""
    tokens = PARSER.parse(text)
    found: set[str] = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for heading, content in pairwise(tokens):
        if heading.type == "heading_open":
            shown = "".join(child.content for child in content.children or [] if child.type in ("text", "code_inline"))
            slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
            number = next(n for n in range(1000) if (f"{slug}-{n}" if n else slug) not in found)
            found.add(f"{slug}-{number}" if number else slug)
    return found


def dead_links(document: Path) -> list[str]:
    """The links of a document to files or anchors that do not exist; links to other sites are not followed."""
    text = document.read_text(encoding="utf-8")
    dead = []
    for link in links(text):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = unquote(link).partition("#")
        file = document.parent / target if target else document
        if not file.exists() or (
            anchor and (file.suffix != ".md" or anchor not in anchors(file.read_text(encoding="utf-8")))
        ):
            dead.append(link)
    return dead
