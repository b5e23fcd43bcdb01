"""Check every link of the built site: files and anchors exist, and nothing is loaded from another host.

    python docs/_tools/links.py build/site

Links to other sites are not followed.
"""

import os
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

#: Attributes by which a page loads something, as opposed to linking to it.
LOADING = {
    ("script", "src"),
    ("img", "src"),
    ("link", "href"),
    ("iframe", "src"),
    ("source", "src"),
    ("object", "data"),
}


class Page(HTMLParser):
    """The anchors of a page, and what it links to: (tag, attribute, address)."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[tuple[str, str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect one tag's anchor and links."""
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value or "")
            elif name in ("href", "src", "data") and value is not None:
                self.links.append((tag, name, value))


def problems(site: Path) -> Iterator[str]:
    """Yield one line for every link that leads nowhere, and for everything that is loaded from another host."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in _pages(site)}
    for path, page in pages.items():
        where = path.relative_to(site)
        for tag, attribute, address in page.links:
            if urlsplit(address).scheme or address.startswith("//"):
                if (tag, attribute) in LOADING and not address.startswith("data:"):
                    yield f"{where}: loads {address}"
                continue
            target, anchor = urldefrag(address)
            file = Path(os.path.normpath(path.parent / unquote(target.split("?")[0]))) if target else path
            if not file.is_file() or not file.is_relative_to(site):
                yield f"{where}: {address} does not exist in the site"
            elif anchor and file in pages and unquote(anchor) not in pages[file].anchors:
                yield f"{where}: {address} has no such anchor"
    for path in sorted(site.rglob("*.css")):
        for address in re.findall(r"(?:url\(|@import\s)\s*['\"]?((?:https?:)?//[^'\")\s]+)", path.read_text("utf-8")):
            yield f"{path.relative_to(site)}: loads {address}"


def _pages(site: Path) -> list[Path]:
    """Return the pages; the theme's static files contain templates."""
    return [path for path in sorted(site.rglob("*.html")) if "_static" not in path.relative_to(site).parts]


def main(folder: str) -> int:
    """Print the problems; return 1 if there are any."""
    site = Path(folder).resolve()
    found = list(problems(site))
    pages = _pages(site)
    print(*found, f"{len(pages)} pages, {len(found)} problems with links", sep="\n")
    return 1 if found or not pages else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
