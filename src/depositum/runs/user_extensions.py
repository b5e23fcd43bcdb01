"""User-defined methods and regularizers: registered by the names in a configuration, and tried before a run begins."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from depositum.algorithms import ALGORITHMS, Algorithm, differing_parameters
from depositum.engines import Simulator
from depositum.errors import ConfigError, short_repr
from depositum.problem.compatibility import attribute_errors, describe
from depositum.regularizers import REGULARIZERS, Regularizer
from depositum.user_code import import_user_object

# Registering


def register_extensions(table: Mapping[str, Any], base: Path) -> None:
    """Register what the table of a configuration names as `"package.module:Class"`."""
    algorithm, problem, override = (table.get(section) for section in ("algorithm", "problem", "override"))
    if isinstance(algorithm, dict) and isinstance(algorithm.get("name"), str):
        register_method(algorithm["name"], base)
    for name in override if isinstance(override, dict) else ():
        register_method(name, base, f"override.{name}")
    if isinstance(problem, dict):
        for name in user_defined_regularizers(problem.get("regularizer")):
            _register_regularizer(name, base)


def register_method(name: str, base: Path, key: str = "algorithm.name") -> None:
    """Register a user-defined method by `"package.module:Class"`; any other name is left to the registry."""
    if ":" not in name:
        return
    kind = import_user_object(name, key, "method", base)
    fits = isinstance(kind, type) and issubclass(kind, Algorithm) and is_dataclass(kind)
    if not fits:
        raise ConfigError(key, f"{short_repr(name)} is not a method: it must be a dataclass that extends Algorithm")
    _check_complete(name, kind, key, ("name", "about"))
    ALGORITHMS.register(name)(kind)


def _register_regularizer(name: str, base: Path) -> None:
    key = "problem.regularizer"
    kind = import_user_object(name, key, "regularizer", base)
    if not (isinstance(kind, type) and issubclass(kind, Regularizer)):
        raise ConfigError(key, f"{short_repr(name)} is not a regularizer: it must be a class that extends Regularizer")
    _check_complete(name, kind, key)
    REGULARIZERS.register(name)(kind)


def _check_complete(name: str, kind: type, key: str, attributes: Sequence[str] = ()) -> None:
    """Refuse a class that does not define what every class of its kind must have."""
    missing = [*sorted(getattr(kind, "__abstractmethods__", ())), *(a for a in attributes if not hasattr(kind, a))]
    if missing:
        raise ConfigError(key, f"{name!r} does not define {', '.join(missing)}")


def user_defined_regularizers(spec: Any) -> Iterator[str]:
    """The names of user-defined classes in the choice of a regularizer: a name, a table, or a list of tables."""
    if isinstance(spec, list):
        for part in spec:
            yield from user_defined_regularizers(part)
    else:
        names = [spec] if isinstance(spec, str) else spec if isinstance(spec, dict) else []
        yield from (name for name in names if ":" in name)


# Trying, before the run's folder is created


@contextmanager
def _attribute_errors(key: str, what: str) -> Iterator[None]:
    """As for any code of the user, except for a lack of memory, for which there is a remedy."""
    try:
        with attribute_errors(key, what):
            yield
    except ConfigError as error:
        if isinstance(error.__cause__, torch.OutOfMemoryError):
            raise error.__cause__ from None
        raise


def try_method(simulator: Simulator) -> None:
    """Run the start, and every kind of step of the first two periods; the simulator must be started anew."""
    buffers = {name: buffer.clone() for name, buffer in simulator.oracle.buffers.items()}
    try:
        _try_steps(simulator, "algorithm.name", repr(simulator.algorithm.name))
    finally:
        simulator.oracle.buffers = buffers


def _try_steps(simulator: Simulator, key: str, name: str) -> None:
    columns = ", ".join(map(repr, differing_parameters(simulator.algorithms)))
    hint = f" with one value per row for {columns} (if a plain number is needed, add it to scalar_parameters)"
    fails = f"fails{hint if columns else ''}"
    with _attribute_errors(key, f"init of {name} {fails}"):
        simulator.start()
    before = _variables(simulator.state, f"init of {name}")
    if before["x"].shape != (shape := (simulator.oracle.rows, simulator.problem.layout.size)):
        raise ConfigError(key, f"init of {name} gave models x of shape {list(before['x'].shape)}, not {list(shape)}")
    with _attribute_errors(key, f"kind of {name} {fails}"):
        kinds = dict.fromkeys(simulator.algorithm.kind(t, simulator.period) for t in range(2 * simulator.period))
    for kind in kinds:
        with _attribute_errors(key, f"a step of {name} ({kind!r}) {fails}"):
            state = simulator.iteration.advanced(simulator.state, kind)
        after = _variables(state, f"a step of {name} ({kind!r})")
        for variable, value in before.items():
            if variable not in after or describe(after[variable]) != describe(value):
                found = describe(after[variable]) if variable in after else "missing"
                change = f"{variable} is {found}; before it was {describe(value)}"
                raise ConfigError(key, f"after a step of {name} ({kind!r}), {change}")


def try_regularizer(regularizer: Regularizer, rows: Tensor) -> None:
    """Evaluate its value and its prox at two rows `[2, d]`, with one step for both and with one for each."""
    key = "problem.regularizer"
    small = 1e-3 / max(1.0, regularizer.rho)
    with _attribute_errors(key, f"the value of {regularizer} fails on {describe(rows)}"):
        value = regularizer.value(rows)
    _check_shape(key, f"the value of {regularizer}", value, [len(rows)])
    for tau in (small, rows.new_full((len(rows), 1), small)):
        with _attribute_errors(key, f"the prox of {regularizer} fails on {describe(rows)}"):
            prox = regularizer.prox(rows, tau)
        _check_shape(key, f"the prox of {regularizer}", prox, list(rows.shape))


def _check_shape(key: str, what: str, value: object, shape: list[int]) -> None:
    if not isinstance(value, Tensor) or list(value.shape) != shape:
        raise ConfigError(key, f"{what} is {describe(value)}; it must have shape {shape}")


def _variables(state: Any, what: str) -> Mapping[str, Tensor]:
    """The tensors of a state, by name."""
    if not (isinstance(state, tuple) and hasattr(state, "_asdict") and {"t", "x"} <= {*state._asdict()}):
        given = f"gave a {type(state).__name__}"
        raise ConfigError("algorithm.name", f"{what} {given}; it must be a NamedTuple with t, x and its own variables")
    return {name: value for name, value in state._asdict().items() if isinstance(value, Tensor)}
