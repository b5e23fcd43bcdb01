"""Components selected by name in a configuration: `"ring"` or `{ ring = { hops = 2 } }`.

Topologies, regularizers, partitions, datasets, models, algorithms and schedules all share this grammar, so that names
and values are checked in the same way everywhere, and before any work is done.
"""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from typing import Any, Generic, ParamSpec, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError

from depositum.errors import ConfigError, listing, nearest, renamed_keys, short_repr, with_article
from depositum.validation import describe_errors

T = TypeVar("T")
A = TypeVar("A")
P = ParamSpec("P")

#: What the user writes: a name, or a table with the name as its only key.
Spec = str | Mapping[str, Any]


@dataclass(frozen=True)
class Choice(Generic[T]):
    """A validated choice: the name, its factory, and the arguments that the user gave."""

    name: str
    factory: Callable[..., T]
    arguments: dict[str, Any]
    key: str = ""
    """The argument or the configuration key that the choice was given for."""
    parameters: Collection[str] = ()
    """The arguments that the user may give."""

    def make(self, *positional: Any, **extra: Any) -> T:
        """Call the factory with the arguments that the package supplies, followed by the user's.

        A factory's error about an argument of the user names it `hops`; the user of the choice wrote
        `topology.ring.hops`.
        """
        with renamed_keys(self._path):
            return self.factory(*positional, **extra, **self.arguments)

    def _path(self, argument: str) -> str:
        known = argument.partition(".")[0].partition("[")[0] in self.parameters
        return f"{self.key}.{self.name}.{argument}" if known else argument


def _top_package(factory: Callable[..., Any] | str) -> str:
    """The top-level package that defines a factory, given as an object or as an import path."""
    module = factory if isinstance(factory, str) else factory.__module__
    return module.partition(".")[0]


class Registry(Generic[T]):
    """Named factories of one kind.

    Parameters
    ----------
    what
        What is registered, for error messages: `"topology"`.
    supplied
        Number of leading positional parameters of each factory that the package itself fills in (such as the number of
        clients); the user sets the remaining ones.
    listed_by
        The command that lists all names, for error messages where they are many.
    besides
        Other registries whose names the user may give in the same place, for error messages.

    >>> shapes = Registry[str]("shape")
    >>> @shapes.register("box")
    ... def box(width: float = 1.0) -> str:
    ...     return f"a box of {width}"
    >>> shapes.parse({"box": {"width": 2.0}}, "shape").make()
    'a box of 2.0'
    >>> shapes.parse("bax", "shape")
    Traceback (most recent call last):
    depositum.errors.ConfigError: shape: 'bax' is not a shape; it can be 'box'; did you mean 'box'?
    """

    def __init__(
        self, what: str, supplied: int = 0, listed_by: str = "", besides: "Sequence[Registry[Any]]" = ()
    ) -> None:
        self.what = what
        self.listed_by = listed_by
        self.besides = besides
        self.supplied = supplied
        #: A string is the import path of a factory that has not been needed yet.
        self._factories: dict[str, Callable[..., T] | str] = {}

    def register(self, name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Decorator that registers a factory, a function or a class, under `name`."""

        def add(factory: Callable[P, T]) -> Callable[P, T]:
            existing = self._factories.get(name)
            if existing is not None and _top_package(existing) == __package__ != _top_package(factory):
                raise ConfigError(name, f"the package already defines this {self.what}; choose another name")
            self._factories[name] = factory
            return factory

        return add

    def register_path(self, name: str, path: str) -> None:
        """Register a factory by its import path, `"package.module:name"`; the module is imported when first needed.

        This is how a part of the package offers what a part above it defines, without importing it.
        """
        self._factories[name] = path

    def __iter__(self) -> Iterator[str]:
        return iter(self._factories)

    def __getitem__(self, name: str) -> Callable[..., T]:
        factory = self._factories[name]
        if isinstance(factory, str):
            module, _, attribute = factory.partition(":")
            imported: Callable[..., T] = getattr(import_module(module), attribute)
            self._factories[name] = factory = imported
        return factory

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._factories

    def parameters(self, name: str) -> dict[str, inspect.Parameter]:
        """The parameters of `name` that the user may set, in order."""
        # Annotations are strings in a module that postpones them; here they must be types.
        parameters = list(inspect.signature(self[name], eval_str=True).parameters.items())
        return {k: p for k, p in parameters[self.supplied :] if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}

    def attribute(self, spec: object, name: str, default: A) -> A:
        """An attribute that the factory chosen by `spec` declares about itself, or `default` if it declares none.

        General code asks for such properties (`needs_tokenizer`, `path_arguments`, …) instead of comparing names.
        """
        chosen = next(iter(spec), None) if isinstance(spec, Mapping) and len(spec) == 1 else spec
        if not isinstance(chosen, str) or chosen not in self:
            return default
        declared: A = getattr(self[chosen], name, default)
        return declared

    def parse(self, spec: Spec, key: str) -> Choice[T]:
        """Validate the user's choice: its name, and the names and types of its arguments.

        A table's value is a table of arguments, or the first argument itself: `{ dirichlet = 0.5 }`.
        """
        name, value = self._split(spec, key)
        if name not in self._factories:
            choices = list(chain(self, *self.besides))
            names = listing(choices, self.listed_by)
            raise ConfigError(
                key, f"{short_repr(name)} is not {with_article(self.what)}; it can be {names}{nearest(name, choices)}"
            )
        parameters = self.parameters(name)
        if not isinstance(value, Mapping):
            if not parameters:
                raise ConfigError(f"{key}.{name}", f"{short_repr(value)} given, but {name!r} takes no arguments")
            value = {next(iter(parameters)): value}
        arguments = {k: self._check(f"{key}.{name}", k, v, parameters) for k, v in value.items()}
        for k, parameter in parameters.items():
            if parameter.default is inspect.Parameter.empty and k not in arguments:
                raise ConfigError(f"{key}.{name}.{k}", f"missing; write {{ {name} = {{ {k} = … }} }}")
        return Choice(name, self[name], arguments, key, tuple(parameters))

    def with_defaults(self, spec: Spec) -> Spec:
        """Return a validated choice with its default arguments filled in, except those whose default is None.

        A choice that is not registered here (a file, user-defined code) is returned unchanged.

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
        problem = f"{short_repr(spec)} given; it must be a name or a table {{ name = {{ … }} }} with one name"
        raise ConfigError(key, problem + near)

    def _check(self, key: str, name: str, value: Any, parameters: Mapping[str, inspect.Parameter]) -> Any:
        if name not in parameters:
            allowed = f"it can be {listing(parameters)}" if parameters else "no arguments are allowed"
            raise ConfigError(f"{key}.{name}", f"unknown key; {allowed}{nearest(name, parameters)}")
        annotation = parameters[name].annotation
        if annotation is inspect.Parameter.empty:
            return value
        try:
            return TypeAdapter(annotation, config={"arbitrary_types_allowed": True}).validate_python(value, strict=True)
        except ValidationError as error:
            choices = [c for c in get_args(annotation) if isinstance(c, str)]
            if choices and isinstance(value, str):
                problem = f"{short_repr(value)} given; it can be {listing(choices)}{nearest(value, choices)}"
            else:
                problem = describe_errors(error.errors())
            raise ConfigError(f"{key}.{name}", problem) from None
