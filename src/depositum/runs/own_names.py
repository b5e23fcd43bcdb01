"""A person's own methods and regularizers, made known by the names that a configuration has for them."""

import inspect
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from depositum.algorithms import ALGORITHMS, Algorithm
from depositum.errors import ConfigError
from depositum.own_code import own
from depositum.regularizers import REGULARIZERS, Regularizer


def register_own(table: dict[str, Any], base: Path) -> None:
    """Make known what a configuration's table names as `"package.module:Class"`."""
    algorithm, problem = table.get("algorithm"), table.get("problem")
    if isinstance(algorithm, dict):
        _register_method(algorithm.get("name"), base)
    if isinstance(problem, dict):
        for name in _regularizers(problem.get("regularizer")):
            _register_regularizer(name, base)


def _register_method(name: Any, base: Path) -> None:
    if not isinstance(name, str) or ":" not in name:
        return
    kind = own(name, "algorithm.name", "method", base)
    fits = isinstance(kind, type) and issubclass(kind, Algorithm) and is_dataclass(kind)
    if not fits:
        raise ConfigError("algorithm.name", f"{name!r} is no method: it must be a dataclass that extends Algorithm")
    ALGORITHMS.register(name)(kind)


def _register_regularizer(name: str, base: Path) -> None:
    key = "problem.regularizer"
    kind = own(name, key, "regularizer", base)
    if not (isinstance(kind, type) and issubclass(kind, Regularizer)):
        raise ConfigError(key, f"{name!r} is no regularizer: it must be a class that extends Regularizer")
    if inspect.isabstract(kind):
        missing = ", ".join(sorted(kind.__abstractmethods__))
        raise ConfigError(key, f"{name!r} lacks {missing}; write what {'they give' if ',' in missing else 'it gives'}")
    REGULARIZERS.register(name)(kind)


def _regularizers(spec: Any) -> Iterator[str]:
    """The names of classes in a choice of a regularizer: one, a table, or a list of tables."""
    if isinstance(spec, list):
        for part in spec:
            yield from _regularizers(part)
    else:
        names = [spec] if isinstance(spec, str) else spec if isinstance(spec, dict) else []
        yield from (name for name in names if ":" in name)
