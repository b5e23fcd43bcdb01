"""TOML files that may come from anyone: read within bounds, and refused in one line.

A small file can be costly: the parser needs memory quadratic in the parts of a dotted key, and Python's stack bounds
how deeply it can nest. So a file's size, the parts of its keys, and the depth and size of its values are limited, to
far more than a configuration needs.
"""

import datetime
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from depositum.errors import ConfigError, short_repr

#: The most bytes of a file, characters of a text or a key, and levels of tables and lists.
MAX_BYTES, MAX_TEXT, MAX_KEY_LENGTH, MAX_DEPTH = 1_000_000, 4_096, 256, 16
#: A dotted key of more parts than any setting has.
_LONG_KEY = re.compile(r"""(?<![\w"'-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){32}""")


def read_toml(path: Path, pipes: bool = True) -> dict[str, Any]:
    """The table in a file; one that cannot be read, or is out of bounds, is a `ConfigError` that names it.

    Without `pipes`, whatever is not a regular file is refused: reading from it could block for ever.
    """
    name = str(path)
    try:
        if stat.S_ISDIR(path.stat().st_mode):
            raise ConfigError(name, "is a folder; it must be a file")
        if not (pipes or stat.S_ISREG(path.stat().st_mode)):
            raise ConfigError(name, "is a pipe, socket or device, not a file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(name, f"has more than {MAX_BYTES} bytes; a configuration is at most that long")
        return parse_toml(content.decode("utf-8-sig").replace("\r\n", "\n"), name)
    except FileNotFoundError:
        raise ConfigError(name, "no such file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(name, f"cannot be read: {error}") from None
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(name, f"cannot be read: {error}") from None


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """The table of a text; `name` is the file or the option that it comes from."""
    try:
        return load_bounded(text)
    except ValueError as error:
        raise ConfigError(name, f"is not valid TOML: {error}") from None


def load_bounded(text: str) -> dict[str, Any]:
    """As `tomllib.loads`, but quick for any text; what is out of bounds is a ValueError, like invalid TOML."""
    if len(text) > MAX_BYTES or _LONG_KEY.search(text):
        raise ValueError("a key has more than 32 parts" if len(text) <= MAX_BYTES else "it is too long")
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # Python's limit on the digits of an integer
        raise ValueError("it has a whole number of thousands of digits") from None
    return table


def check_values(table: Mapping[str, Any]) -> None:
    """Refuse values that no setting can have, wherever they are, so that what follows need not expect them."""
    for key, value, depth in _walk(table):
        if depth > MAX_DEPTH:
            raise ConfigError(key, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise ConfigError(key, f"{short_repr(value)} given; a whole number must be from −2⁶³ to 2⁶³ − 1")
        if isinstance(value, str) and (len(value) > MAX_TEXT or "\0" in value):
            problem = f"must have at most {MAX_TEXT} characters" if len(value) > MAX_TEXT else "must not contain NUL"
            raise ConfigError(key, f"{short_repr(value)} given; a text {problem}")
        if isinstance(value, datetime.date | datetime.time):
            raise ConfigError(key, f"{value.isoformat()} given; a setting cannot be a date or a time")
        if isinstance(value, Mapping):
            for name in value:
                if len(str(name)) > MAX_KEY_LENGTH:
                    raise ConfigError(key, f"the key {short_repr(name)} given; it can have {MAX_KEY_LENGTH}")


def _walk(table: Mapping[str, Any]) -> Iterator[tuple[str, Any, int]]:
    """Every value of nested tables and lists with its key and its depth, without recursion."""
    waiting: list[tuple[str, Any, int]] = [("", table, 0)]
    while waiting:
        key, value, depth = waiting.pop()
        yield key, value, depth
        if isinstance(value, Mapping):
            waiting += [(f"{key}.{name}" if key else str(name), inner, depth + 1) for name, inner in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [(f"{key}[{index}]", inner, depth + 1) for index, inner in enumerate(value)]
