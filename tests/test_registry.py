"""The one grammar of things chosen by name."""

import inspect
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
def test_names_tables_and_the_first_argument(shapes, spec, made):
    """A name, a table of arguments, or the first argument alone; the package supplies n itself."""
    assert shapes.parse(spec, "key").make(3) == made


def test_classes_are_factories_too(shapes):
    ball = shapes.parse({"ball": {"radius": 2.0}}, "key").make(3)
    assert (ball.n, ball.radius) == (3, 2.0)


def test_a_choice_is_made_as_often_as_wanted_and_with_extras(shapes):
    """Checking is once, making is later: arguments are kept, keyword extras are passed on."""
    choice = shapes.parse({"box": {"corners": 8}}, "key")
    assert (choice.name, choice.arguments) == ("box", {"corners": 8})
    assert choice.make(3, width=7.0) == ("box", 3, 7.0, 8, [], "plain")
    assert choice.make(4)[1] == 4


def test_what_is_there(shapes):
    """Names in order; the supplied parameter is not a person's to set."""
    assert list(shapes) == ["box", "ball", "dot", "cloud"]
    assert "box" in shapes
    assert "bax" not in shapes
    assert list(shapes.parameters("box")) == ["width", "corners", "sides", "style"]
    assert shapes["dot"](5) == ("dot", 5)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("bax", "p.shape: 'bax' is no shape; it can be 'box', 'ball', 'dot' or 'cloud'; did you mean 'box'?"),
        ({"zzzzzz": {}}, "p.shape: 'zzzzzz' is no shape; it can be 'box', 'ball', 'dot' or 'cloud'"),
        (
            {"box": {"widht": 1.0}},
            "p.shape.box.widht: unknown key; it can be 'width', 'corners', 'sides' or 'style'; did you mean 'width'?",
        ),
        ({"dot": {"x": 1}}, "p.shape.dot.x: unknown key; there are none here"),
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
def test_mistakes_are_said_in_one_line(shapes, spec, message):
    """The key, the value, what is allowed, the nearest name: to the letter, since a person reads it."""
    with pytest.raises(ConfigError) as error:
        shapes.parse(spec, "p.shape")
    assert str(error.value) == message


def test_annotations_may_be_postponed(shapes):
    """A module with `from __future__ import annotations` has strings for types; they are checked all the same."""
    namespace = {"Literal": Literal}
    source = "from __future__ import annotations\ndef star(n: int, tips: Literal[5, 6] = 5):\n    return n, tips\n"
    exec(source, namespace)  # a module of a person's own
    shapes.register("star")(namespace["star"])
    assert shapes.parse({"star": {"tips": 6}}, "key").make(1) == (1, 6)
    with pytest.raises(ConfigError, match="7 given; it must be 5 or 6"):
        shapes.parse({"star": {"tips": 7}}, "key")


def test_a_catch_all_is_not_a_missing_argument(shapes):
    """`**options` of a person's factory is neither required nor a name."""
    shapes.register("open")(lambda n, size=1, **options: (n, size, options))
    assert shapes.parse("open", "key").make(2) == (2, 1, {})
    with pytest.raises(ConfigError, match="it can be 'size'"):
        shapes.parse({"open": {"colour": "red"}}, "key")


def test_defaults_are_written_out(shapes) -> None:
    """All that a person may set and that has a value, in the order of the parameters; other names are left alone."""
    full = {"box": {"width": 2.0, "corners": 4, "sides": (), "style": "plain"}}
    assert shapes.with_defaults({"box": 2.0}) == shapes.with_defaults(full) == full
    assert list(shapes.with_defaults({"box": {"style": "round"}})["box"]) == ["width", "corners", "sides", "style"]
    assert shapes.with_defaults({"ball": 1.5}) == {"ball": {"radius": 1.5}}
    for alone in ("dot", "cloud", "mine.py:Shape", {"mine.py:Shape": {"a": 1}}, {"a": 1, "b": 2}):
        assert shapes.with_defaults(alone) == alone
    assert shapes.with_defaults({"box": {"colour": "red"}})["box"]["colour"] == "red"  # which `parse` refuses


@pytest.mark.parametrize("registry", [DATASETS, MODELS, PARTITIONS, TOPOLOGIES, MIXINGS, SCHEDULES, REGULARIZERS])
def test_defaults_written_out_are_what_would_be_used(registry: Registry) -> None:
    """A configuration that is run again from its own file is the same: types are accepted, values are the factory's."""
    for name in registry:
        needed = {k: 1.0 for k, p in registry.parameters(name).items() if p.default is inspect.Parameter.empty}
        if name in ("instructions", "lora"):
            needed = dict.fromkeys(needed, "a-name")
        if "steps" in needed or "every" in needed:
            needed |= {k: 3 for k in ("steps", "every") if k in needed}
        written = registry.with_defaults({name: needed})
        again = registry.parse(tomllib.loads(tomli_w.dumps({"v": written}))["v"], "key")
        own = {k: p.default for k, p in registry.parameters(name).items()} | needed
        assert again.arguments == {
            k: list(v) if isinstance(again.arguments[k], list) else v for k, v in own.items() if v is not None
        }


def test_what_a_stepsize_must_be_names_every_schedule() -> None:
    """One that is registered and not named in the message would be found by nobody; a constant is a number."""
    (called,) = (kind.__metadata__[0] for kind in get_args(Stepsize) if hasattr(kind, "__metadata__"))
    assert called.words == f"a schedule {{ {' | '.join(name for name in SCHEDULES if name != 'constant')} = {{ … }} }}"


def test_a_name_of_the_package_s_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a person's own method silently becomes what `depositum` means; their own they may write anew."""
    monkeypatch.setattr(ALGORITHMS, "_factories", dict(ALGORITHMS._factories))
    own = type("Own", (Depositum,), {"__module__": "mine"})
    with pytest.raises(ConfigError, match="^depositum: this algorithm is there already; give yours another name$"):
        ALGORITHMS.register("depositum")(own)
    for _ in range(2):
        assert ALGORITHMS.register("mine")(own) is own


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: MCP(theta="a"), "theta: 'a' given; MCP needs a finite theta > 0"),  # type: ignore[arg-type]
        (
            lambda: TOPOLOGIES.parse(np.eye(40), "network"),
            "network: a ndarray of shape (40, 40) given; ",
        ),
        (lambda: TOPOLOGIES.parse({"rng": {}, "x": 1}, "network"), "with one name; did you mean 'ring'?"),
    ],
)
def test_what_is_no_choice_is_said_in_one_line(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    assert said in str(error.value)
    assert "\n" not in str(error.value)
