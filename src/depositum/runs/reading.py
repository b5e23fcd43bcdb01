"""From a file to a checked configuration, and back: overrides, paths, and a person's mistakes said in one line."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from depositum import data, models, networks, regularizers
from depositum.algorithms.schedules import SCHEDULES
from depositum.data import CLIENT_PLACEHOLDER
from depositum.errors import ConfigError, listing, nearest
from depositum.registry import Registry
from depositum.runs.config import Config, Held
from depositum.runs.override import for_method
from depositum.runs.own_names import register_method, register_own
from depositum.validation import describe_errors

#: Every section's keys; beside a method's name stand its own.
SECTIONS = {name: list(type(section).model_fields) for name, section in Config()}
#: Where something is chosen by its name alone. (Beside a regularizer's name stand other keys.)
BY_NAME: tuple[tuple[str, str, Registry[Any]], ...] = (
    ("problem", "dataset", data.DATASETS),
    ("problem", "model", models.MODELS),
    ("problem", "partition", data.PARTITIONS),
    ("network", "topology", networks.TOPOLOGIES),
    ("network", "mixing", networks.MIXINGS),
)


def parse(table: Mapping[str, Any]) -> Config:
    """A configuration from a plain table, with a person's mistakes said in one line."""
    try:
        return Config.model_validate(table)
    except ValidationError as error:
        raise _one_line(error) from None


def load(path: Path, overrides: Sequence[str] = (), method: str | None = None, held: Held | None = None) -> Config:
    """Read a configuration file, apply `key=value` overrides, and check it in full.

    `method` puts another method in the place of the file's own, with what the file's `[override]` says of it. `held` is
    for a process among many, which need have no other clients' files.
    """
    return from_table(_table(path), path.parent, method, held, overrides)


def register_own_of(path: Path, overrides: Sequence[str] = ()) -> None:
    """Make known what a configuration file names of a person's own, whether or not it can be run as it is."""
    table = _table(path)
    for override in overrides:
        apply_override(table, override)
    register_own(table, path.parent)


def _table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(str(path), "no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), f"cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(path), f"is not valid TOML: {error}") from None


def from_table(
    table: dict[str, Any],
    base: Path | None = None,
    method: str | None = None,
    held: Held | None = None,
    overrides: Sequence[str] = (),
) -> Config:
    """The configuration that a file's table means, checked in full; its paths start from `base`."""
    base = base or Path()
    for override in overrides:
        apply_override(table, override)
    register_own(table, base)
    if method is not None:
        register_method(method, base, "--methods")
    table = for_method(table, SECTIONS, method)
    if method is None:  # of one run, the command line has the last word; of many methods, each keeps what is its own
        for override in overrides:
            if not override.startswith("override."):
                apply_override(table, override)
    config = parse(_with_absolute_paths(table, base))
    config.check(base, held)
    return config


def _with_absolute_paths(table: dict[str, Any], base: Path) -> dict[str, Any]:
    """The table with a person's own files named in full, so that a run's `config.toml` means the same anywhere."""
    for section, key in (("problem", "dataset"), ("network", "topology"), ("network", "mixing")):
        inside = table.get(section)
        if not isinstance(inside, dict):
            continue  # refused when it is parsed
        value = inside.get(key)
        if isinstance(value, str) and value not in data.DATASETS:
            inside[key] = _absolute(value, base)
    registries: tuple[tuple[str, Registry[Any]], ...] = (("dataset", data.DATASETS), ("model", models.MODELS))
    for key, registry in registries:
        chosen = table["problem"].get(key) if isinstance(table.get("problem"), dict) else None
        paths: tuple[str, ...] = registry.attribute(chosen, "path_arguments", ())
        if paths and isinstance(chosen, dict):
            ((name, value),) = chosen.items()
            given = value if isinstance(value, dict) else {paths[0]: value}
            absolute = {path: _absolute(given[path], base) for path in paths if path in given}
            table["problem"] = {**table["problem"], key: {name: {**given, **absolute}}}
    return table


def _absolute(value: Any, base: Path) -> Any:
    """A file that is there, or a pattern of files, named in full; anything else as it is."""
    if isinstance(value, list):
        return [_absolute(one, base) for one in value]
    if isinstance(value, str) and ((base / value).exists() or CLIENT_PLACEHOLDER in value):
        return str((base / value).resolve())
    return value


def apply_override(table: dict[str, Any], override: str) -> None:
    """Set one key of a table from `section.key=value`; the value is read as TOML, or else as a plain word.

    >>> table = {}
    >>> apply_override(table, "algorithm.alpha=0.1"); apply_override(table, "problem.partition={dirichlet=0.5}")
    >>> apply_override(table, "network.topology=star"); table
    {'algorithm': {'alpha': 0.1}, 'problem': {'partition': {'dirichlet': 0.5}}, 'network': {'topology': 'star'}}
    """
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or len(parts) < 2 or not all(parts):
        raise ConfigError("--set", f"{override!r} given; it must be section.key=value, as in algorithm.alpha=0.1")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    place = table
    for part in parts[:-1]:
        inner = place.setdefault(part, {})
        if not isinstance(inner, dict):
            inner = place[part] = {}
        place = inner
    place[parts[-1]] = value


def dump(config: Config) -> str:
    """The complete configuration as TOML, what is chosen by name with all its arguments."""
    table = config.complete()
    for section, key, registry in BY_NAME:
        if key in table.get(section, {}):
            table[section][key] = registry.with_defaults(table[section][key])
    table["problem"]["regularizer"] = regularizers.with_defaults(table["problem"]["regularizer"])
    for key, value in table["algorithm"].items():
        if isinstance(value, dict):  # numbers stand there otherwise, and names
            table["algorithm"][key] = SCHEDULES.with_defaults(value)
    return tomli_w.dumps(table)


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The keys `section.key` in which two complete tables differ, with both values (None: not set)."""
    out = {}
    for section in sorted({*a, *b}):
        one, two = a.get(section, {}), b.get(section, {})
        for key in sorted({*one, *two}):
            if one.get(key) != two.get(key):
                out[f"{section}.{key}"] = (one.get(key), two.get(key))
    return out


def _one_line(error: ValidationError) -> ConfigError:
    first = error.errors()[0]
    # Alternatives of a union have a location of their own; the key a person wrote is the first two parts.
    location = [str(part) for part in first["loc"][:2]]
    key = ".".join(location)
    if first["type"] == "extra_forbidden":
        known = SECTIONS[location[0]] if len(location) > 1 else [*SECTIONS, "override"]
        what = "key" if len(location) > 1 else "section"
        return ConfigError(key, f"unknown {what}; it can be {listing(known)}{nearest(location[-1], known)}")
    alternatives = [e for e in error.errors() if e["loc"][:2] == first["loc"][:2]]
    return ConfigError(key, describe_errors(alternatives))
