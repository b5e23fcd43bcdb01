"""Checks of hyper-parameters: an error names the hyper-parameter, the value and what is allowed."""

import math
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from depositum.errors import ConfigError, check_choice, is_integer, is_number, short_repr

#: A stepsize that is chosen by tuning.
AUTO: Final = "auto"


@dataclass(frozen=True)
class _OrAuto:
    """Makes pydantic accept `"auto"` in place of a number."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.union_schema([handler(source), core_schema.literal_schema([AUTO])])


#: A number for which `"auto"` can be given. To methods it is a number: they run only once it is one.
TunableFloat = Annotated[float, _OrAuto()]


def check_positive(key: str, value: float) -> None:
    """Reject a value that is not a finite number > 0."""
    if not (is_number(value) and math.isfinite(value) and value > 0):
        raise ConfigError(key, f"{short_repr(value)} given; it must be a number > 0")


def check_nonnegative(key: str, value: float) -> None:
    """Reject a value that is not a finite number ≥ 0."""
    if not (is_number(value) and math.isfinite(value) and value >= 0):
        raise ConfigError(key, f"{short_repr(value)} given; it must be a number ≥ 0")


def check_interval(key: str, value: float, interval: str) -> None:
    """Reject a value that is not a number in an interval, written as `"[0, 1)"`.

    >>> check_interval("gamma", 1.0, "[0, 1)")
    Traceback (most recent call last):
    depositum.errors.ConfigError: gamma: 1.0 given; it must lie in [0, 1)
    """
    low, high = map(float, interval[1:-1].split(","))
    open_ends = {low} if interval[0] == "(" else set()
    open_ends |= {high} if interval[-1] == ")" else set()
    if not (is_number(value) and low <= value <= high and value not in open_ends):
        raise ConfigError(key, f"{short_repr(value)} given; it must lie in {interval}")


def check_count(key: str, value: int) -> None:
    """Reject a value that is not a whole number ≥ 1."""
    if not is_integer(value) or value < 1:
        raise ConfigError(key, f"{short_repr(value)} given; it must be a whole number ≥ 1")


def check_choices(method: object) -> None:
    """Reject values of a dataclass's `Literal` fields that are not among their choices."""
    for name, annotation in parameter_types(type(method)).items():  # type: ignore[arg-type]  # a class is hashable
        if get_origin(annotation) is Literal:
            check_choice(name, getattr(method, name), get_args(annotation))


@cache
def parameter_types(method: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields, resolved if its module postpones annotations."""
    try:
        hints = get_type_hints(method, include_extras=True)
    except NameError:  # a name that is imported for type checkers only
        hints = {}
    return {field.name: hints.get(field.name, field.type) for field in fields(method)}
