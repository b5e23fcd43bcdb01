"""Regularizers h of the objective φ = f + βh, for sparsity, low rank or constraints.

A configuration names one for the complete row, `"l1"` or `{ mcp = { lam = 1.0, theta = 5.0 } }`, or for some of the
parameters, `{ l1 = {}, on = "*.weight", scale = 2.0 }`, or gives a list of such tables for a sum over disjoint groups
of parameters.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from depositum.errors import ConfigError, RegularizerError, listing, nearest, renamed_keys, short_repr
from depositum.registry import Registry, Spec
from depositum.regularizers.groups import Group, Groups
from depositum.regularizers.indicators import Box, L1Ball, L2Ball, Nonnegative, Simplex
from depositum.regularizers.nonconvex import MCP, SCAD
from depositum.regularizers.regularizer import Regularizer
from depositum.regularizers.separable import L1, ElasticNet, SquaredL2, Zero
from depositum.regularizers.structured import GroupLasso, L2Norm, NuclearNorm

__all__ = [
    "L1",
    "MCP",
    "REGULARIZERS",
    "SCAD",
    "Box",
    "ElasticNet",
    "Group",
    "GroupLasso",
    "Groups",
    "L1Ball",
    "L2Ball",
    "L2Norm",
    "Nonnegative",
    "NuclearNorm",
    "Regularizer",
    "Simplex",
    "SquaredL2",
    "Zero",
    "build",
]

#: Regularizers by name; user-defined ones are added with `@REGULARIZERS.register(name)`.
REGULARIZERS: Registry[Regularizer] = Registry("regularizer")

_NAMES: dict[str, type[Regularizer]] = {
    "zero": Zero,
    "none": Zero,
    "l1": L1,
    "l2": L2Norm,
    "squared-l2": SquaredL2,
    "elastic-net": ElasticNet,
    "mcp": MCP,
    "scad": SCAD,
    "box": Box,
    "nonnegative": Nonnegative,
    "l2-ball": L2Ball,
    "l1-ball": L1Ball,
    "simplex": Simplex,
    "group-lasso": GroupLasso,
    "nuclear": NuclearNorm,
}
for _name, _class in _NAMES.items():
    REGULARIZERS.register(_name)(_class)

#: The keys that a table may have besides the name of a regularizer.
_OPTIONS = ("on", "scale")


def build(spec: Spec | Sequence[Spec] | Regularizer) -> Regularizer:
    """Build the regularizer that the user specified; an instance is returned as it is.

    >>> build({"mcp": {"theta": 3.0}})
    MCP(lam=1.0, theta=3.0)
    >>> build([{"l1": {}, "on": "*.weight"}, {"squared-l2": {}, "on": "*.bias", "scale": 0.5}]).separable
    True
    >>> build({"mcp": {"theta": -3.0}})
    Traceback (most recent call last):
    depositum.errors.RegularizerError: regularizer.mcp.theta: -3.0 given; MCP needs a finite theta > 0
    """
    if isinstance(spec, Regularizer):
        return spec
    if isinstance(spec, str | Mapping):
        return _build_one(spec, "regularizer")
    if not isinstance(spec, Sequence) or not spec:
        raise ConfigError(
            "regularizer",
            f"{short_repr(spec)} given; it must be a name, a table {{ name = {{ … }} }} or a list of tables",
        )
    parts = [_build_one(part, f"regularizer[{i}]") for i, part in enumerate(spec)]
    if len(parts) == 1:
        return parts[0]
    for i, part in enumerate(parts):
        if not (isinstance(part, Group) and part.patterns is not None):
            raise RegularizerError(
                f"regularizer[{i}].on",
                'missing; each regularizer of a list needs the parameters it acts on: add on = "…"',
            )
    return Groups(parts)


def with_defaults(spec: Spec | Sequence[Spec]) -> Spec | list[Spec]:
    """The user's specification with default arguments filled in.

    >>> with_defaults([{"mcp": {}, "on": "*.weight"}])
    [{'mcp': {'lam': 1.0, 'theta': 5.0}, 'on': '*.weight'}]
    """
    if not isinstance(spec, str | Mapping):
        return [_one_with_defaults(part) for part in spec]
    return _one_with_defaults(spec)


def _one_with_defaults(spec: Spec) -> Spec:
    options = {} if isinstance(spec, str) else {k: spec[k] for k in _OPTIONS if k in spec}
    if not options:
        return REGULARIZERS.with_defaults(spec)
    complete = REGULARIZERS.with_defaults({k: v for k, v in spec.items() if k not in options})  # type: ignore[union-attr]
    return {**({complete: {}} if isinstance(complete, str) else complete), **options}


def _build_one(spec: Spec, key: str) -> Regularizer:
    """Build one name or table, including the options."""
    options: dict[str, Any] = {}
    if isinstance(spec, Mapping):
        options = {k: spec[k] for k in _OPTIONS if k in spec}
        spec = {k: v for k, v in spec.items() if k not in options}
        _check_options(spec, options, key)
    h = REGULARIZERS.parse(spec, key).make()
    if not options:
        return h
    with renamed_keys(lambda option: f"{key}.{option}"):
        return Group(h, options.get("on"), options.get("scale", 1.0))


def _check_options(named: Mapping[str, Any], options: Mapping[str, Any], key: str) -> None:
    """Reject unknown keys besides the name, and values of `on` and `scale` of the wrong type."""
    names = [k for k in named if k in REGULARIZERS]
    if len(names) > 1:
        raise ConfigError(key, f"{listing(names)} given in one table; write a list of tables, each with an `on`")
    for unknown in [k for k in named if names and k not in names]:
        allowed = f"besides {names[0]!r} it can be {listing(_OPTIONS)}"
        raise ConfigError(f"{key}.{unknown}", f"unknown key; {allowed}{nearest(unknown, _OPTIONS)}")
    on, scale = options.get("on", "*"), options.get("scale", 1.0)
    patterns = [on] if isinstance(on, str) else on
    if not (isinstance(patterns, list | tuple) and patterns and all(isinstance(p, str) for p in patterns)):
        raise ConfigError(
            f"{key}.on", f"{short_repr(on)} given; it must be a pattern of parameter names or a list of patterns"
        )
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        raise ConfigError(f"{key}.scale", f"{short_repr(scale)} given; it must be a number > 0")
