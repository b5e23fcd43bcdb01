"""One base configuration for many methods: what a method needs differently is in `[override.METHOD.SECTION]`.

`METHOD` is a method's name, or a trait that several share: `smooth` (those that do not support a regularizer), `convex`
(those that need a convex one) or `server`. What is set for a method takes precedence over what is set for its traits.
"""

from collections.abc import Collection, Mapping
from typing import Any

from depositum.algorithms import ALGORITHMS, Algorithm
from depositum.errors import ConfigError, listing, nearest, short_repr

TRAITS = ("smooth", "convex", "server")

#: The sections of a configuration and their keys.
Sections = Mapping[str, Collection[str]]


def for_method(table: dict[str, Any], sections: Sections, method: str | None = None) -> dict[str, Any]:
    """The plain table of one method: that of the base configuration, or `method` in its place.

    A method other than the base's has none of the base's hyper-parameters, and one with a server not its network.
    """
    table = {k: dict(v) if isinstance(v, dict) else v for k, v in table.items()}
    overrides = table.pop("override", {})
    _check(overrides, sections)
    base = table.get("algorithm", {})
    chosen = str(base.get("name", "depositum")) if isinstance(base, dict) else ""
    if method is not None and method != chosen:
        table["algorithm"] = {"name": method}
        chosen = method
    if chosen not in ALGORITHMS:
        return table  # refused, with the nearest name, where the method is built
    kind = ALGORITHMS[chosen]
    assert isinstance(kind, type)
    assert issubclass(kind, Algorithm)
    if method is not None and kind.server:
        table.pop("network", None)
    traits = [trait for trait in TRAITS if trait == kind.handles or (trait == "server" and kind.server)]
    # A user-defined method has two names: that of its class in its module, and one that it may give itself.
    own = [kind.name] if "name" in vars(kind) else []
    for key in dict.fromkeys((*traits, *own, chosen)):
        for section, values in overrides.get(key, {}).items():
            table[section] = {**table.get(section, {}), **values}
    return table


def _check(overrides: Any, sections: Sections) -> None:
    """Refuse what no method could use, also for methods that are not run."""
    if not isinstance(overrides, dict):
        raise ConfigError("override", f"{short_repr(overrides)} given; it must be tables [override.METHOD.SECTION]")
    allowed = [*TRAITS, *ALGORITHMS]
    for key, override in overrides.items():
        if key not in allowed:
            raise ConfigError(
                f"override.{key}", f"is not a method, nor one of {listing(TRAITS)}{nearest(key, allowed)}"
            )
        if not isinstance(override, dict):
            raise ConfigError(
                f"override.{key}", f"{short_repr(override)} given; it must be tables [override.{key}.SECTION]"
            )
        for section, values in override.items():
            if section not in sections:
                raise ConfigError(
                    f"override.{key}.{section}",
                    f"unknown section; it can be {listing(sections)}{nearest(section, sections)}",
                )
            if not isinstance(values, dict):
                raise ConfigError(f"override.{key}.{section}", f"{short_repr(values)} given; it must be a table")
            if section == "algorithm" and "name" in values:
                raise ConfigError(f"override.{key}.algorithm.name", "unknown key; the table's name is the method's")
            if section != "algorithm":
                _check_keys(f"override.{key}.{section}", values, sections[section])
            elif key in ALGORITHMS:
                _check_keys(f"override.{key}.{section}", values, ALGORITHMS.parameters(key))


def _check_keys(path: str, values: Mapping[str, Any], known: Collection[str]) -> None:
    for key in values:
        if key not in known:
            raise ConfigError(f"{path}.{key}", f"unknown key; it can be {listing(known)}{nearest(key, known)}")
