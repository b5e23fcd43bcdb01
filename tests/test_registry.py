"""The grammar of components selected by name, and its error messages."""

import inspect
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

import numpy as np
import pytest
import tomli_w
from pydantic import PositiveInt

from depositum.algorithms import ALGORITHMS, Depositum
from depositum.algorithms.schedules import SCHEDULES, Stepsize
from depositum.data import DATASETS, PARTITIONS
from depositum.errors import ConfigError
from depositum.models import MODELS
from depositum.networks import MIXINGS, TOPOLOGIES
from depositum.problem import LOSSES
from depositum.registry import Registry
from depositum.regularizers import MCP, REGULARIZERS


@pytest.fixture
def shapes():
    registry = Registry("shape", supplied=1)

    @registry.register("box")
    def box(
        n: int,
        width: float = 1.0,
        corners: PositiveInt = 4,
        sides: Sequence[int] = (),
        style: Literal["plain", "round"] = "plain",
    ):
        return "box", n, width, corners, list(sides), style

    @registry.register("ball")
    @dataclass(frozen=True)
    class Ball:
        n: int
        radius: float

    registry.register("dot")(lambda n: ("dot", n))
    registry.register("cloud")(lambda n, anything=None: ("cloud", n, anything))
    return registry


@pytest.mark.parametrize(
    ("spec", "made"),
    [
        ("box", ("box", 3, 1.0, 4, [], "plain")),
        ({"box": {}}, ("box", 3, 1.0, 4, [], "plain")),
        ({"box": {"width": 2.5, "corners": 8}}, ("box", 3, 2.5, 8, [], "plain")),
        ({"box": 2.5}, ("box", 3, 2.5, 4, [], "plain")),
        ({"box": {"width": 2}}, ("box", 3, 2.0, 4, [], "plain")),
        ({"box": {"sides": [1, 2], "style": "round"}}, ("box", 3, 1.0, 4, [1, 2], "round")),
        ("dot", ("dot", 3)),
        ({"cloud": "whatever"}, ("cloud", 3, "whatever")),
    ],
)
def test_a_choice_is_a_name_a_table_or_the_first_argument(shapes, spec, made):
    """A name, a table of arguments, or the first argument alone; the package supplies n."""
    assert shapes.parse(spec, "key").make(3) == made


def test_a_class_can_be_registered(shapes):
    ball = shapes.parse({"ball": {"radius": 2.0}}, "key").make(3)
    assert (ball.n, ball.radius) == (3, 2.0)


def test_a_choice_can_be_made_repeatedly_and_with_extra_arguments(shapes):
    """A choice is validated once and made later: it stores the arguments and passes on extra keywords."""
    choice = shapes.parse({"box": {"corners": 8}}, "key")
    assert (choice.name, choice.arguments) == ("box", {"corners": 8})
    assert choice.make(3, width=7.0) == ("box", 3, 7.0, 8, [], "plain")
    assert choice.make(4)[1] == 4


def test_names_and_parameters_are_listed_in_order(shapes):
    """Without the supplied parameter, which the user cannot set."""
    assert list(shapes) == ["box", "ball", "dot", "cloud"]
    assert "box" in shapes
    assert "bax" not in shapes
    assert list(shapes.parameters("box")) == ["width", "corners", "sides", "style"]
    assert shapes["dot"](5) == ("dot", 5)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("bax", "p.shape: 'bax' is not a shape; it can be 'box', 'ball', 'dot' or 'cloud'; did you mean 'box'?"),
        ({"zzzzzz": {}}, "p.shape: 'zzzzzz' is not a shape; it can be 'box', 'ball', 'dot' or 'cloud'"),
        (
            {"box": {"widht": 1.0}},
            "p.shape.box.widht: unknown key; it can be 'width', 'corners', 'sides' or 'style'; did you mean 'width'?",
        ),
        ({"dot": {"x": 1}}, "p.shape.dot.x: unknown key; no arguments are allowed"),
        ({"dot": 1}, "p.shape.dot: 1 given, but 'dot' takes no arguments"),
        ({"box": {"n": 5}}, "p.shape.box.n: unknown key; it can be 'width', 'corners', 'sides' or 'style'"),
        ({"box": {"width": "2"}}, "p.shape.box.width: '2' given; it must be a number"),
        ({"box": {"width": True}}, "p.shape.box.width: True given; it must be a number"),
        ({"box": {"corners": 0}}, "p.shape.box.corners: 0 given; it must be a number > 0"),
        ({"box": {"corners": 4.0}}, "p.shape.box.corners: 4.0 given; it must be a whole number"),
        (
            {"box": {"style": "rounded"}},
            "p.shape.box.style: 'rounded' given; it can be 'plain' or 'round'; did you mean 'round'?",
        ),
        ({"box": {"sides": [1, "2"]}}, "p.shape.box.sides: '2' given; it must be a whole number"),
        ("ball", "p.shape.ball.radius: missing; write { ball = { radius = … } }"),
        ({"ball": {}}, "p.shape.ball.radius: missing; write { ball = { radius = … } }"),
        ({}, "p.shape: {} given; it must be a name or a table { name = { … } } with one name"),
        (
            {"box": {}, "ball": {}},
            "p.shape: {'box': {}, 'ball': {}} given; it must be a name or a table { name = { … } } with one name",
        ),
        (3, "p.shape: 3 given; it must be a name or a table { name = { … } } with one name"),
        (None, "p.shape: None given; it must be a name or a table { name = { … } } with one name"),
        (["box"], "p.shape: ['box'] given; it must be a name or a table { name = { … } } with one name"),
    ],
)
def test_error_messages_verbatim(shapes, spec, message):
    """One line with the key, the value, what is allowed and the nearest name."""
    with pytest.raises(ConfigError) as error:
        shapes.parse(spec, "p.shape")
    assert str(error.value) == message


def test_postponed_annotations_are_checked(shapes):
    """A module with `from __future__ import annotations` has strings for types; values are checked all the same."""
    namespace = {"Literal": Literal}
    source = "from __future__ import annotations\ndef star(n: int, tips: Literal[5, 6] = 5):\n    return n, tips\n"
    exec(source, namespace)  # a user's module
    shapes.register("star")(namespace["star"])
    assert shapes.parse({"star": {"tips": 6}}, "key").make(1) == (1, 6)
    with pytest.raises(ConfigError, match="7 given; it must be 5 or 6"):
        shapes.parse({"star": {"tips": 7}}, "key")


def test_variadic_keywords_are_not_parameters(shapes):
    """`**options` of a user's factory is neither required nor a valid name."""
    shapes.register("open")(lambda n, size=1, **options: (n, size, options))
    assert shapes.parse("open", "key").make(2) == (2, 1, {})
    with pytest.raises(ConfigError, match="it can be 'size'"):
        shapes.parse({"open": {"colour": "red"}}, "key")


def test_defaults_are_filled_in(shapes) -> None:
    """All parameters that the user may set and whose default is not None, in order; other choices are unchanged."""
    full = {"box": {"width": 2.0, "corners": 4, "sides": (), "style": "plain"}}
    assert shapes.with_defaults({"box": 2.0}) == shapes.with_defaults(full) == full
    assert list(shapes.with_defaults({"box": {"style": "round"}})["box"]) == ["width", "corners", "sides", "style"]
    assert shapes.with_defaults({"ball": 1.5}) == {"ball": {"radius": 1.5}}
    for alone in ("dot", "cloud", "mine.py:Shape", {"mine.py:Shape": {"a": 1}}, {"a": 1, "b": 2}):
        assert shapes.with_defaults(alone) == alone
    assert shapes.with_defaults({"box": {"colour": "red"}})["box"]["colour"] == "red"  # which `parse` rejects


@pytest.mark.parametrize("registry", [DATASETS, MODELS, PARTITIONS, TOPOLOGIES, MIXINGS, SCHEDULES, REGULARIZERS])
def test_filled_in_defaults_survive_a_configuration_file(registry: Registry) -> None:
    """A configuration written with its defaults and read again is accepted, with the values of the factory."""
    for name in registry:
        needed = {k: 1.0 for k, p in registry.parameters(name).items() if p.default is inspect.Parameter.empty}
        if name in ("instructions", "lora", "table", "images"):
            needed = dict.fromkeys(needed, "a-name")
        needed |= {k: 3 for k in ("steps", "every", "size") if k in needed}
        written = registry.with_defaults({name: needed})
        again = registry.parse(tomllib.loads(tomli_w.dumps({"v": written}))["v"], "key")
        expected = {k: p.default for k, p in registry.parameters(name).items()} | needed
        assert again.arguments == {
            k: list(v) if isinstance(again.arguments[k], list) else v for k, v in expected.items() if v is not None
        }


def test_the_description_of_a_stepsize_names_every_schedule() -> None:
    """A schedule missing from the error message would not be discovered (a constant one is written as a number)."""
    (description,) = (kind.__metadata__[0] for kind in get_args(Stepsize) if hasattr(kind, "__metadata__"))
    names = " | ".join(name for name in SCHEDULES if name != "constant")
    assert description.words == f"a schedule {{ {names} = {{ … }} }}"


def test_a_user_cannot_replace_a_name_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a user-defined method silently becomes `depositum`; redefining user-defined names is allowed."""
    monkeypatch.setattr(ALGORITHMS, "_factories", dict(ALGORITHMS._factories))
    user_defined = type("UserDefined", (Depositum,), {"__module__": "mine"})
    message = "^depositum: the package already defines this algorithm; choose another name$"
    with pytest.raises(ConfigError, match=message):
        ALGORITHMS.register("depositum")(user_defined)
    for _ in range(2):
        assert ALGORITHMS.register("mine")(user_defined) is user_defined


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MCP(theta="a"), "theta: 'a' given; MCP needs a finite theta > 0"),  # type: ignore[arg-type]
        (
            lambda: TOPOLOGIES.parse(np.eye(40), "network"),
            "network: a ndarray of shape (40, 40) given; ",
        ),
        (lambda: TOPOLOGIES.parse({"rng": {}, "x": 1}, "network"), "with one name; did you mean 'ring'?"),
    ],
)
def test_unusable_values_are_reported_in_one_line(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_factory_registered_by_path_is_imported_when_needed(shapes):
    """Its name is known before; a path to a missing module matters only when it is used."""
    shapes.register_path("fraction", "fractions:Fraction")
    shapes.register_path("missing", "no_such_module:factory")
    assert list(shapes)[-2:] == ["fraction", "missing"]
    assert shapes["fraction"](1, 2) == Fraction(1, 2)
    with pytest.raises(ModuleNotFoundError):
        shapes["missing"]


@pytest.mark.parametrize(
    ("spec", "value"),
    [("ball", 3), ({"ball": {"radius": 1.0}}, 3), ("box", 0), ("unknown", 0), ({"ball": 1, "box": 2}, 0), (None, 0)],
)
def test_attributes_that_factories_declare(shapes, spec, value):
    """The default is returned if the factory declares none, or if nothing registered is chosen."""
    shapes["ball"].dimensions = 3
    assert shapes.attribute(spec, "dimensions", 0) == value


def test_every_registered_path_exists():
    """Fails if a factory that is registered by its import path was moved or renamed."""
    for registry in (ALGORITHMS, DATASETS, LOSSES, MIXINGS, MODELS, PARTITIONS, REGULARIZERS, SCHEDULES, TOPOLOGIES):
        for name in registry:
            assert callable(registry[name])
