"""The documentation site: every page is in its navigation, every public name in its reference, every link works."""

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import depositum
from tests.support.mentions import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_tools" not in path.parts)
#: Parts that users have no need to import from, and that have no page in the API reference.
WITHOUT_PAGE = {"cli", "experiments", "federation", "fitting", "kernels", "peers", "report"}


def tool(name: str) -> ModuleType:
    """One of the modules in docs/_tools, which are not installed."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "_tools" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def navigation(page: Path) -> list[Path]:
    """The pages that a page has below it in the navigation."""
    trees = re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    names = [line.strip() for tree in trees for line in tree.splitlines() if line.strip() and not line.startswith(":")]
    return [(page.parent / f"{name}.md").resolve() for name in names]


def test_every_page_is_in_the_navigation_once() -> None:
    """A new page of docs/ that no reader would find fails here."""
    listed = [below for page in PAGES for below in navigation(page)]
    for page in PAGES:
        count = listed.count(page.resolve())
        assert count == (page != DOCS / "index.md"), (
            f"docs/{page.relative_to(DOCS)} is {count} times in the navigation: add it once to the toctree and the "
            "table of docs/start.md, docs/how-to.md, docs/reference.md, docs/explanations.md or docs/tutorials/index.md"
        )
    assert set(listed) <= {page.resolve() for page in PAGES}


@pytest.mark.parametrize("page", [page for page in PAGES if navigation(page)], ids=lambda page: page.stem)
def test_sections_link_to_their_pages(page: Path) -> None:
    """On a code host a toctree is not a link: the page itself leads to each page below it."""
    text = page.read_text(encoding="utf-8")
    links = {(page.parent / target).resolve() for target in re.findall(r"\]\(([^)#:]+\.md)\)", text)}
    assert set(navigation(page)) <= links


def test_every_public_name_of_the_package_is_in_the_reference() -> None:
    """`depositum.__all__` and the page are the same list, without building the site."""
    text = (DOCS / "api" / "index.md").read_text(encoding="utf-8")
    described = re.findall(r"^\.\. (?:auto\w+|data):: (\w+)$", text, re.MULTILINE)
    assert sorted(described) == sorted(depositum.__all__)


def test_every_part_has_a_page_in_the_reference() -> None:
    """A new part of the package is documented, or declared as not for users."""
    parts = {path.parent.name for path in Path(depositum.__file__).parent.glob("*/__init__.py")}
    pages = {path.stem for path in (DOCS / "api").glob("*.md")} - {"index"}
    assert pages == parts - WITHOUT_PAGE


def test_every_diagram_has_its_pictures() -> None:
    diagrams = tool("diagrams")
    wanted = {diagrams.picture(text, theme) for text in diagrams.diagrams() for theme in diagrams.THEMES}
    assert wanted
    assert wanted == set(diagrams.PICTURES.glob("*.svg")), "run python docs/_tools/diagrams.py"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as by `make docs`."""
    pytest.importorskip("sphinx")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", DOCS, out]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.slow
def test_site_is_built_without_warnings_and_its_links_work(site: Path) -> None:
    """`make docs`: no warning, no link that leads nowhere, nothing that is loaded from the network."""
    links = tool("links")
    assert list(links.problems(site)) == []
    assert len(list(site.rglob("*.html"))) > 40


@pytest.mark.slow
def test_reference_has_every_public_name_with_its_signature(site: Path) -> None:
    """`__all__` of the package and of every part that has a page; functions and classes have their parameters."""
    from sphinx.util.inventory import InventoryFile

    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    found = {name for kind, names in inventory.data.items() if kind.startswith("py:") for name in names}
    expected = {f"depositum.{name}" for name in depositum.__all__}
    for page in (DOCS / "api").glob("*.md"):
        for part in re.findall(r"automodule:: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            public = getattr(importlib.import_module(part), "__all__", [])
            expected |= {f"{part}.{name}" for name in public if name not in depositum.__all__}
    assert len(expected) > 200
    assert expected - found == set()
    html = (site / "api" / "index.html").read_text(encoding="utf-8")
    signature = re.search(r'<dt[^>]*id="depositum\.ring">(.*?)</dt>', html, re.DOTALL)
    assert signature
    assert "hops" in re.sub("<.*?>", "", signature[1])


def test_check_of_links_finds_what_is_wrong(tmp_path: Path) -> None:
    """Otherwise the test above could not fail."""
    (tmp_path / "page.html").write_text(
        '<h1 id="here"></h1><a href="#here"></a><a href="#absent"></a><a href="absent.html"></a>'
        '<script src="https://cdn.example/x.js"></script><a href="https://example.org"></a>'
    )
    (tmp_path / "page.css").write_text("@font-face { src: url(https://fonts.example/f.woff2) }")
    assert list(tool("links").problems(tmp_path)) == [
        "page.html: #absent has no such anchor",
        "page.html: absent.html does not exist in the site",
        "page.html: loads https://cdn.example/x.js",
        "page.css: loads https://fonts.example/f.woff2",
    ]
