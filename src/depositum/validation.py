"""Validation in the user's terms: pydantic's errors, lists and paths; the value given, and what it must be."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from depositum.errors import ConfigError, describe_exception, nearest, short_repr, with_article

#: The most items that are read of what the user gave as a list, which can be an iterator without an end.
MOST_ITEMS = 1_000_000

#: What each pydantic error type expects; a name in braces is the limit.
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "greater_than": "a number > {gt:g}",
    "greater_than_equal": "a number ≥ {ge:g}",
    "less_than": "a number < {lt:g}",
    "less_than_equal": "a number ≤ {le:g}",
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "a list",
    "sequence_str": "a list",
    "dict_type": "a table",
    "mapping_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "too_short": "longer",
    "too_long": "shorter",
}


@dataclass(frozen=True)
class Description:
    """Describes a type in error messages: `Annotated[Sequence[int], Description("a list of whole numbers")]`."""

    words: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Make pydantic report this description instead of its findings about the parts of the type."""
        return core_schema.custom_error_schema(
            handler(source), custom_error_type="description", custom_error_message=self.words
        )


def describe_errors(errors: Sequence[ErrorDetails]) -> str:
    """Return `"X given; it must be A or B"` for the errors of one value (several if its type has alternatives).

    For a list with one invalid entry, X is the entry.

    >>> from pydantic import TypeAdapter, ValidationError
    >>> try:
    ...     TypeAdapter(int | bool).validate_python("three", strict=True)
    ... except ValidationError as error:
    ...     print(describe_errors(error.errors()))
    'three' given; it must be a whole number or true or false
    """
    value = errors[0]["input"]
    expected = dict.fromkeys(map(_expected, errors))
    names = [name for error in errors for name in _expected_names(error)]
    near = nearest(value, names) if isinstance(value, str) else ""
    return f"{short_repr(value)} given; it must be {' or '.join(expected)}{near}"


def _expected(error: ErrorDetails) -> str:
    """What one error says the value must be."""
    context = error.get("ctx", {})
    if error["type"] == "is_instance_of":
        return "a list" if context["class"] == "Sequence" else with_article(context["class"])
    if error["type"] in _EXPECTED:
        return _EXPECTED[error["type"]].format_map(context)
    return str(context.get("expected") or error["msg"])


def _expected_names(error: ErrorDetails) -> list[str]:
    """The quoted names among what an error expects, as candidates for a misspelt value."""
    expected = str(error.get("ctx", {}).get("expected", ""))
    return [part for part in expected.split("'")[1::2] if part]


def as_list(value: object, key: str, expected: str, most: int = MOST_ITEMS) -> list[Any]:
    """The items of a list or of another iterable, but not of text; `expected` describes the list in errors.

    >>> as_list(range(3), "seeds", "a list of whole numbers")
    [0, 1, 2]
    >>> as_list("012", "seeds", "a list of whole numbers")
    Traceback (most recent call last):
    depositum.errors.ConfigError: seeds: '012' given; it must be a list of whole numbers
    """
    if isinstance(value, str | bytes | bytearray) or not isinstance(value, Iterable):
        raise ConfigError(key, f"{short_repr(value)} given; it must be {expected}")
    try:
        items = list(islice(value, most + 1))
    except Exception as error:  # code of the user
        given = f"{short_repr(value)} given, which cannot be read ({describe_exception(error)})"
        raise ConfigError(key, f"{given}; it must be {expected}") from error
    if len(items) > most:
        raise ConfigError(key, f"more than {most} items given; it must be {expected}")
    return items


def as_path(value: object, key: str, expected: str) -> Path:
    """A path, with `~` for a home folder; one that cannot exist is refused: too long, or of a user who does not exist.

    >>> as_path(3, "out", "the path of a folder")
    Traceback (most recent call last):
    depositum.errors.ConfigError: out: 3 given; it must be the path of a folder
    """
    if not isinstance(value, str | Path) or not str(value):
        raise ConfigError(key, f"{short_repr(value)} given; it must be {expected}")
    try:
        path = Path(value).expanduser()
        path.stat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(key, f"{short_repr(value)} given; it must be {expected} ({reason})") from None
    return path
