"""What pydantic found wrong with a value, in a person's words: what was given, and what it must be."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from depositum.errors import nearest

_CALLED = "called"

#: What pydantic's types of error ask for; a name in braces is the limit.
_ASKED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "greater_than": "a number > {gt:g}",
    "greater_than_equal": "a number ≥ {ge:g}",
    "less_than": "a number < {lt:g}",
    "less_than_equal": "a number ≤ {le:g}",
    "string_type": "a text in quotes",
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
class Called:
    """What a type is called where a value is none: `Annotated[Sequence[int], Called("a list of whole numbers")]`."""

    words: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Let pydantic say these words, in the place of whatever it found in the parts of the type."""
        return core_schema.custom_error_schema(
            handler(source), custom_error_type=_CALLED, custom_error_message=self.words
        )


def refusal(errors: Sequence[ErrorDetails]) -> str:
    """`"X given; it must be A or B"`, from the errors of one value: several where a type has alternatives.

    Of a list with one bad entry, X is the entry.

    >>> from pydantic import TypeAdapter, ValidationError
    >>> try:
    ...     TypeAdapter(int | bool).validate_python("three", strict=True)
    ... except ValidationError as error:
    ...     print(refusal(error.errors()))
    'three' given; it must be a whole number or true or false
    """
    value = errors[0]["input"]
    asked = dict.fromkeys(map(_words, errors))
    names = [text for error in errors for text in _names(error)]
    near = nearest(value, names) if isinstance(value, str) else ""
    return f"{value!r} given; it must be {' or '.join(asked)}{near}"


def _words(error: ErrorDetails) -> str:
    """What one error asks for."""
    context = error.get("ctx", {})
    if error["type"] == "is_instance_of":
        return "a list" if context["class"] == "Sequence" else f"a {context['class']}"
    if error["type"] in _ASKED:
        return _ASKED[error["type"]].format_map(context)
    return str(context.get("expected") or error["msg"])


def _names(error: ErrorDetails) -> list[str]:
    """The names, of those that an error asks for, that a value may have been meant for."""
    expected = str(error.get("ctx", {}).get("expected", ""))
    return [part for part in expected.split("'")[1::2] if part]
