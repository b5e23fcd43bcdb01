"""Messages are one line of at most 300 printable characters, whatever the user gave, and quick to build."""

import pytest

from depositum.algorithms import ALGORITHMS
from depositum.errors import MAX_MESSAGE, ConfigError, RunError, listing, nearest, short_repr
from depositum.regularizers import REGULARIZERS


class Unrepresentable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def deeply_nested(depth: int) -> list[object]:
    nested: list[object] = []
    for _ in range(depth):
        nested = [nested]
    return nested


def self_referential() -> list[object]:
    loop: list[object] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (10**5000, "a whole number of more than 60 digits"),
        (-(10**40), str(-(10**40))),
        ("x" * 10**6, "'xxxxxxxxxxxxxxxxxxx…' (1000000 characters)"),
        ("it's " * 100, "\"it's it's it's it's…\" (500 characters)"),
        ([0] * 10**6, "a list"),
        ([[0] * 50] * 50, "a list"),
        (deeply_nested(10**5), "a list"),
        (self_referential(), "a list"),
        ({"a": {"b": 10**5000}}, "a dict"),
        ((1, "a", None), "(1, 'a', None)"),
        ("\x1b[2J", r"'\x1b[2J'"),
        (Unrepresentable(), "an Unrepresentable"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_is_shown_in_a_few_characters(value: object, shown: str) -> None:
    """`repr` of an integer of 5,000 digits raises, and of deeply nested lists too."""
    assert short_repr(value) == shown


def test_a_message_is_one_line_of_at_most_300_characters() -> None:
    """The beginning (the key) and the end (what to do) remain; control characters cannot reach a terminal."""
    error = ConfigError("run.steps", "0" * 10**6 + " given\r\n\x1b[2J; it must be a whole number; use --set")
    assert len(str(error)) == MAX_MESSAGE
    assert str(error).startswith("run.steps: 000")
    assert str(error).endswith(r" given \x1b[2J; it must be a whole number; use --set")
    assert len(str(ConfigError("k" * 10**6, "is unknown"))) <= MAX_MESSAGE
    assert str(ConfigError("k" * 10**6, "is unknown")).endswith("kkk: is unknown")
    assert str(RunError("one\ntwo\udc80")) == r"one two\udc80"


def test_a_long_list_of_names_is_shortened() -> None:
    with pytest.raises(ConfigError) as error:
        ALGORITHMS.parse("depozitum", "algorithm.name")
    message = str(error.value)
    assert f"… ({len(list(ALGORITHMS))} in all: depositum methods)" in message
    assert message.endswith("; did you mean 'depositum'?")
    assert len(message) <= MAX_MESSAGE
    assert listing("x" * 10**5 for _ in range(9)).endswith(", … (9 in all)")


def test_the_nearest_name_of_a_megabyte_is_found_quickly() -> None:
    assert nearest("x" * 10**6, ["alpha", "gamma"]) == ""


def test_a_number_that_no_float_can_hold_is_refused() -> None:
    """`math.isfinite` raises an OverflowError for it."""
    with pytest.raises(ConfigError, match="regularizer.mcp.lam: a whole number of more than 60 digits given"):
        REGULARIZERS.parse({"mcp": {"lam": 10**400}}, "regularizer").make()
