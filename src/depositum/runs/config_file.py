"""From a file to a resolved configuration: overrides, paths, and mistakes reported in one line."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from depositum import data, models
from depositum.algorithms import ALGORITHMS
from depositum.errors import ConfigError, listing, nearest, short_repr
from depositum.registry import Registry
from depositum.runs.config import Config
from depositum.runs.method_overrides import for_method
from depositum.runs.resolved import Held, ResolvedConfig, resolve
from depositum.runs.user_extensions import register_extensions, register_method
from depositum.toml_file import check_values, load_bounded, read_toml
from depositum.validation import describe_errors

#: The keys of every section; beside a method's name stand its hyper-parameters.
SECTIONS = {name: list(type(section).model_fields) for name, section in Config()}


def load(
    path: Path, overrides: Sequence[str] = (), method: str | None = None, held: Held | None = None
) -> ResolvedConfig:
    """Read a configuration file, apply `key=value` overrides, check it in full and build it.

    `method` replaces the file's own method, with what the file's `[override]` sets for it. `held` is for a process
    among many, which need not have the files of other clients.
    """
    return from_table(read_toml(path), path.parent, method, held, overrides)


def from_table(
    table: dict[str, Any],
    base: Path | None = None,
    method: str | None = None,
    held: Held | None = None,
    overrides: Sequence[str] = (),
) -> ResolvedConfig:
    """Resolve the table of a configuration file; its paths start from `base`."""
    base = base or Path()
    for override in overrides:
        apply_override(table, override)
    check_values(table)
    register_extensions(table, base)
    if method is not None:
        register_method(method, base, "--methods")
    table = for_method(table, SECTIONS, method)
    if method is None:  # for one run the command line has the last word; of many methods, each keeps its own settings
        for override in overrides:
            if not override.startswith("override."):
                apply_override(table, override)
    return resolve(parse(_with_absolute_paths(table, base)), base, held)


def parse(table: Mapping[str, Any]) -> Config:
    """The sections of a configuration from a plain table, with mistakes reported in one line."""
    try:
        return Config.model_validate(_upgraded(table))
    except ValidationError as error:
        raise _one_line(error) from None


def register_extensions_of(path: Path, overrides: Sequence[str] = ()) -> None:
    """Register the user-defined methods and regularizers that a configuration file names, even if it cannot be run."""
    table = read_toml(path)
    for override in overrides:
        apply_override(table, override)
    check_values(table)
    register_extensions(table, path.parent)


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
        raise ConfigError(
            "--set", f"{short_repr(override)} given; it must be section.key=value, as in algorithm.alpha=0.1"
        )
    try:
        value = load_bounded(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    except ValueError as error:
        raise ConfigError("--set", f"{short_repr(override)} given: {error}") from None
    inner = table
    for part in parts[:-1]:
        nested = inner.setdefault(part, {})
        if not isinstance(nested, dict):
            nested = inner[part] = {}
        inner = nested
    inner[parts[-1]] = value


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The keys `section.key` in which two complete tables differ, with both values (None: not set)."""
    out = {}
    for section in sorted({*a, *b}):
        one, two = a.get(section, {}), b.get(section, {})
        for key in sorted({*one, *two}):
            if one.get(key) != two.get(key):
                out[f"{section}.{key}"] = (one.get(key), two.get(key))
    return out


def _upgraded(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """The table with keys of earlier releases under their present names: `processes.send` is `network.channel`.

    It had no effect for a method with a server, which has no network.
    """
    processes = table.get("processes")
    if not isinstance(processes, Mapping) or "send" not in processes:
        return table
    send = processes["send"]
    out = {**table, "processes": {key: value for key, value in processes.items() if key != "send"}}
    network, method = table.get("network", {}), table.get("algorithm", {})
    server = isinstance(method, Mapping) and ALGORITHMS.attribute(method.get("name"), "server", False)
    if send != "float32" and isinstance(network, Mapping) and not server:
        out["network"] = {"channel": send, **network}
    return out


def _with_absolute_paths(table: dict[str, Any], base: Path) -> dict[str, Any]:
    """The table with absolute paths of the user's files, so that a run's `config.toml` means the same anywhere."""
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
    """The absolute path of a file that exists, or of a pattern of files; anything else as it is."""
    if isinstance(value, list):
        return [_absolute(one, base) for one in value]
    if isinstance(value, str) and ((base / value).exists() or data.CLIENT_PLACEHOLDER in value):
        return str((base / value).resolve())
    return value


def _one_line(error: ValidationError) -> ConfigError:
    first = error.errors()[0]
    # Alternatives of a union have a location of their own; the key that the user wrote is the first two parts.
    location = [str(part) for part in first["loc"][:2]]
    key = ".".join(location)
    if first["type"] == "extra_forbidden":
        known = SECTIONS[location[0]] if len(location) > 1 else [*SECTIONS, "override"]
        what = "key" if len(location) > 1 else "section"
        return ConfigError(key, f"unknown {what}; it can be {listing(known)}{nearest(location[-1], known)}")
    alternatives = [e for e in error.errors() if e["loc"][:2] == first["loc"][:2]]
    return ConfigError(key, describe_errors(alternatives))
