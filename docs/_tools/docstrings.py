"""The docstrings of the package, which are written to be read in Python, as reStructuredText for the API reference."""

import functools
import importlib
import inspect
import sys
from typing import Any

import depositum


def as_restructured_text(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape the bars of |x|, and make indented equations after a colon literal."""
    out: list[str] = []
    for i, line in enumerate(lines):
        indent = _indent(line)
        if line.endswith(":") and i + 2 < len(lines) and not lines[i + 1].strip() and _indent(lines[i + 2]) > indent:
            line = f"{line}:"
        out.append(line)
    literal, before = False, 0
    for i, line in enumerate(out):
        if literal and line.strip() and _indent(line) <= before:
            literal = False
        if not literal and not line.lstrip().startswith((">>>", "...")):
            out[i] = line.replace("|", "\\|")
        if line.endswith("::"):
            literal, before = True, _indent(line)
    lines[:] = out


def leave_out(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Document a name once: in `depositum` if it is public there; of a class, only members with their own docstring."""
    module = app.env.current_document.docname.removeprefix("api/")
    if what == "module":
        return True if module != "index" and name in depositum.__all__ else None
    is_method = inspect.isroutine(obj) or isinstance(obj, property | classmethod | functools.cached_property)
    return None if is_method and obj.__doc__ else True  # fields are in the signature, and in the class's docstring


def _comments() -> dict[str, list[str]]:
    """Return the `#:` comments of all constants of the modules that are imported, by name."""
    from sphinx.pycode import ModuleAnalyzer

    found: dict[str, list[str]] = {}
    for module in sorted(name for name in sys.modules if name.startswith("depositum.")):
        analyzer = ModuleAnalyzer.for_module(module)
        analyzer.analyze()
        found |= {name: lines for (owner, name), lines in analyzer.attr_docs.items() if not owner}
    return found


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def setup(app: Any) -> dict[str, Any]:
    """Connect to autodoc, and register the directive `constants`."""
    from docutils import nodes
    from docutils.statemachine import StringList
    from sphinx.util.docutils import SphinxDirective

    class Constants(SphinxDirective):  # type: ignore[misc]
        """The constants and type aliases in `__all__` of a package, which autodoc omits since they are imported."""

        required_arguments = 1

        def run(self) -> list[nodes.Node]:
            module = importlib.import_module(self.arguments[0])
            comments, lines = _comments(), [f".. py:currentmodule:: {module.__name__}", ""]
            for name in module.__all__:
                value = getattr(module, name)
                if name in depositum.__all__ or (callable(value) and getattr(value, "__name__", name) == name):
                    continue
                lines += [f".. py:data:: {name}"]
                if len(shown := repr(value)) < 80 and "<" not in shown:
                    lines += [f"   :value: {shown}"]
                lines += ["", *(f"   {line}" for line in comments.get(name, [])), ""]
            return self.parse_text_to_nodes(StringList(lines, source=module.__file__))

    app.add_directive("constants", Constants)
    app.connect("autodoc-process-docstring", as_restructured_text)
    app.connect("autodoc-skip-member", leave_out)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
