"""The documentation site: `make docs` builds it from the Markdown in this folder (CONTRIBUTING.md, "Documentation")."""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).parent / "_tools")]

import depositum  # noqa: E402

project = "depositum"
author = "The depositum developers"
project_copyright = author
release = version = depositum.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "diagrams", "docstrings", "anchors"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "_tools", "_static"]

# Markdown as code hosts read it: anchors of headings as they make them, mermaid as a fence.
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]

# Docstrings: names between single backticks become links where they are names of the package.
default_role = "py:obj"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_default_options = {"members": True, "undoc-members": True, "show-inheritance": True}
autodoc_class_signature = "mixed"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 100
python_display_short_literal_types = True
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "pydata_sphinx_theme"
html_title = "depositum"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_show_search_summary = False  # a page of a file cannot be fetched by another
html_theme_options = {
    "logo": {"text": "depositum"},
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "article_footer_items": [],
}
html_sidebars = {"index": []}
