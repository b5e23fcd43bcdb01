"""Things a person picks by name in a configuration: `"ring"` or `{ ring = { hops = 2 } }`.

Topologies, regularizers, partitions, datasets, models, algorithms and schedules all use this one grammar, so that
they all check names and values alike, and before any work is done.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError

from depositum.errors import ConfigError, in_short, listing, nearest
from depositum.wording import refusal

T = TypeVar("T")
P = ParamSpec("P")

#: What a person writes: a name, or a table with the name as its only key.
Spec = str | Mapping[str, Any]


@dataclass(frozen=True)
class Choice(Generic[T]):
    """A checked choice: the name, what makes it, and the arguments a person gave."""

    name: str
    factory: Callable[..., T]
    arguments: dict[str, Any]

    def make(self, *positional: Any, **extra: Any) -> T:
        """Call the factory with what the package supplies and what the person gave."""
        return self.factory(*positional, **extra, **self.arguments)


def _home(factory: Callable[..., Any]) -> str:
    """The package that a factory comes from."""
    return factory.__module__.partition(".")[0]


class Registry(Generic[T]):
    """Named factories of one kind.

    Parameters
    ----------
    what
        What is chosen, for messages: `"topology"`.
    supplied
        How many leading positional parameters of each factory the package itself fills in (a client count, say);
        the remaining parameters are a person's to set.

    >>> shapes = Registry[str]("shape")
    >>> @shapes.register("box")
    ... def box(width: float = 1.0) -> str:
    ...     return f"a box of {width}"
    >>> shapes.parse({"box": {"width": 2.0}}, "problem.shape").make()
    'a box of 2.0'
    >>> shapes.parse("bax", "problem.shape")
    Traceback (most recent call last):
    depositum.errors.ConfigError: problem.shape: 'bax' is no shape; it can be 'box'; did you mean 'box'?
    """

    def __init__(self, what: str, supplied: int = 0) -> None:
        self.what = what
        self.supplied = supplied
        self._factories: dict[str, Callable[..., T]] = {}

    def register(self, name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Add a factory under `name` (a decorator, for functions and classes alike)."""

        def add(factory: Callable[P, T]) -> Callable[P, T]:
            there = self._factories.get(name)
            if there is not None and _home(there) == __package__ != _home(factory):
                raise ConfigError(name, f"this {self.what} is there already; give yours another name")
            self._factories[name] = factory
            return factory

        return add

    def __iter__(self) -> Iterator[str]:
        return iter(self._factories)

    def __getitem__(self, name: str) -> Callable[..., T]:
        return self._factories[name]

    def __contains__(self, name: object) -> bool:
        return name in self._factories

    def parameters(self, name: str) -> dict[str, inspect.Parameter]:
        """The parameters of `name` that a person may set, in order."""
        # Annotations are strings in a module that postpones them; here they must be types.
        own = list(inspect.signature(self._factories[name], eval_str=True).parameters.items())
        return {k: p for k, p in own[self.supplied :] if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}

    def parse(self, spec: Spec, key: str) -> Choice[T]:
        """Check a person's choice: its name, its arguments' names and their types.

        A table's value is a table of arguments, or the first argument itself: `{ dirichlet = 0.5 }`.
        """
        name, value = self._split(spec, key)
        if name not in self._factories:
            raise ConfigError(
                key, f"{name!r} is no {self.what}; it can be {listing(self._factories)}{nearest(name, self)}"
            )
        parameters = self.parameters(name)
        if not isinstance(value, Mapping):
            if not parameters:
                raise ConfigError(f"{key}.{name}", f"{value!r} given, but {name!r} takes no arguments")
            value = {next(iter(parameters)): value}
        arguments = {k: self._check(f"{key}.{name}", k, v, parameters) for k, v in value.items()}
        for k, parameter in parameters.items():
            if parameter.default is inspect.Parameter.empty and k not in arguments:
                raise ConfigError(f"{key}.{name}.{k}", f"missing; write {{ {name} = {{ {k} = … }} }}")
        return Choice(name, self._factories[name], arguments)

    def with_defaults(self, spec: Spec) -> Spec:
        """A checked choice with the arguments that were left to their defaults, but those whose default is "not set".

        Whatever is none of the names registered here (a file, code of a person's own) is returned as it is.

        >>> from depositum.regularizers import REGULARIZERS
        >>> REGULARIZERS.with_defaults({"mcp": 2.0}), REGULARIZERS.with_defaults("l1")
        ({'mcp': {'lam': 2.0, 'theta': 5.0}}, 'l1')
        """
        if isinstance(spec, Mapping) and len(spec) != 1:
            return spec
        name, value = (spec, {}) if isinstance(spec, str) else next(iter(spec.items()))
        parameters = self.parameters(name) if name in self else {}
        if not parameters:
            return spec
        given = value if isinstance(value, Mapping) else {next(iter(parameters)): value}
        defaults = {k: p.default for k, p in parameters.items() if p.default not in (None, inspect.Parameter.empty)}
        ordered = [k for k in parameters if k in defaults or k in given]
        arguments = {**dict.fromkeys(ordered), **defaults, **given}
        return {name: arguments} if arguments else name

    def _split(self, spec: Spec, key: str) -> tuple[str, Any]:
        if isinstance(spec, str):
            return spec, {}
        if isinstance(spec, Mapping) and len(spec) == 1:
            name, value = next(iter(spec.items()))
            return str(name), value
        names = list(spec) if isinstance(spec, Mapping) else []
        near = next((near for name in names if name not in self and (near := nearest(str(name), self))), "")
        said = f"{in_short(spec)} given; it must be a name or a table {{ name = {{ … }} }} with one name"
        raise ConfigError(key, said + near)

    def _check(self, key: str, name: str, value: Any, parameters: Mapping[str, inspect.Parameter]) -> Any:
        if name not in parameters:
            allowed = f"it can be {listing(parameters)}" if parameters else "there are none here"
            raise ConfigError(f"{key}.{name}", f"unknown key; {allowed}{nearest(name, parameters)}")
        annotation = parameters[name].annotation
        if annotation is inspect.Parameter.empty:
            return value
        try:
            return TypeAdapter(annotation, config={"arbitrary_types_allowed": True}).validate_python(value, strict=True)
        except ValidationError as error:
            choices = [c for c in get_args(annotation) if isinstance(c, str)]
            if choices and isinstance(value, str):
                said = f"{value!r} given; it can be {listing(choices)}{nearest(value, choices)}"
            else:
                said = refusal(error.errors())
            raise ConfigError(f"{key}.{name}", said) from None
