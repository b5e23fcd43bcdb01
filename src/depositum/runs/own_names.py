"""A person's own methods and regularizers, made known by the names that a configuration has for them."""

from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from depositum.algorithms import ALGORITHMS, Algorithm
from depositum.errors import ConfigError
from depositum.regularizers import REGULARIZERS, Regularizer
from depositum.user_code import import_user_object


def register_own(table: dict[str, Any], base: Path) -> None:
    """Make known what a configuration's table names as `"package.module:Class"`."""
    algorithm, problem, override = (table.get(section) for section in ("algorithm", "problem", "override"))
    if isinstance(algorithm, dict) and isinstance(algorithm.get("name"), str):
        register_method(algorithm["name"], base)
    for name in override if isinstance(override, dict) else ():
        register_method(name, base, f"override.{name}")
    if isinstance(problem, dict):
        for name in regularizers_of_ones_own(problem.get("regularizer")):
            _register_regularizer(name, base)


def register_method(name: str, base: Path, key: str = "algorithm.name") -> None:
    """Make a person's own method known by `"package.module:Class"`; any other name is left as it is."""
    if ":" not in name:
        return
    kind = import_user_object(name, key, "method", base)
    fits = isinstance(kind, type) and issubclass(kind, Algorithm) and is_dataclass(kind)
    if not fits:
        raise ConfigError(key, f"{name!r} is no method: it must be a dataclass that extends Algorithm")
    _check_whole(name, kind, key, ("name", "about"))
    ALGORITHMS.register(name)(kind)


def _register_regularizer(name: str, base: Path) -> None:
    key = "problem.regularizer"
    kind = import_user_object(name, key, "regularizer", base)
    if not (isinstance(kind, type) and issubclass(kind, Regularizer)):
        raise ConfigError(key, f"{name!r} is no regularizer: it must be a class that extends Regularizer")
    _check_whole(name, kind, key)
    REGULARIZERS.register(name)(kind)


def _check_whole(name: str, kind: type, key: str, more: Sequence[str] = ()) -> None:
    """Refuse a class that leaves out what every one of its kind must have."""
    lacking = [*sorted(getattr(kind, "__abstractmethods__", ())), *(own for own in more if not hasattr(kind, own))]
    if lacking:
        gives = "they give" if lacking[1:] else "it gives"
        raise ConfigError(key, f"{name!r} lacks {', '.join(lacking)}; write what {gives}")


def regularizers_of_ones_own(spec: Any) -> Iterator[str]:
    """The names of classes in a choice of a regularizer: one, a table, or a list of tables."""
    if isinstance(spec, list):
        for part in spec:
            yield from regularizers_of_ones_own(part)
    else:
        names = [spec] if isinstance(spec, str) else spec if isinstance(spec, dict) else []
        yield from (name for name in names if ":" in name)
