"""A person's own method or regularizer tried once, before a run's folder is made: what it gives must fit the run."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from depositum.algorithms import differing_parameters
from depositum.engines import Simulator
from depositum.errors import ConfigError
from depositum.problem.compatibility import attribute_errors, describe
from depositum.regularizers import Regularizer


@contextmanager
def _blamed(key: str, what: str) -> Iterator[None]:
    """As of any code of a person's own, but for a lack of memory, for which fewer seeds at once are the remedy."""
    try:
        with attribute_errors(key, what):
            yield
    except ConfigError as error:
        if isinstance(error.__cause__, torch.OutOfMemoryError):
            raise error.__cause__ from None
        raise


def try_method(simulator: Simulator) -> None:
    """The start, and every kind of step that the first two periods have; the simulator is to be started anew."""
    buffers = {name: buffer.clone() for name, buffer in simulator.oracle.buffers.items()}
    try:
        _try(simulator, "algorithm.name", repr(simulator.algorithm.name))
    finally:
        simulator.oracle.buffers = buffers


def _try(simulator: Simulator, key: str, name: str) -> None:
    columns = ", ".join(map(repr, differing_parameters(simulator.algorithms)))
    hint = f" with one value per row for {columns} (if a plain number is needed, add it to scalar_parameters)"
    fails = f"fails{hint if columns else ''}"
    with _blamed(key, f"init of {name} {fails}"):
        simulator.start()
    before = _variables(simulator.state, f"init of {name}")
    if before["x"].shape != (shape := (simulator.oracle.rows, simulator.problem.layout.size)):
        raise ConfigError(key, f"init of {name} gave models x of shape {list(before['x'].shape)}, not {list(shape)}")
    with _blamed(key, f"kind of {name} {fails}"):
        kinds = dict.fromkeys(simulator.algorithm.kind(t, simulator.period) for t in range(2 * simulator.period))
    for kind in kinds:
        with _blamed(key, f"a step of {name} ({kind!r}) {fails}"):
            state = simulator.iteration.advanced(simulator.state, kind)
        after = _variables(state, f"a step of {name} ({kind!r})")
        for variable, value in before.items():
            if variable not in after or describe(after[variable]) != describe(value):
                there = describe(after[variable]) if variable in after else "not there"
                said = f"after a step of {name} ({kind!r}), {variable} is {there}; before it was {describe(value)}"
                raise ConfigError(key, said)


def try_regularizer(regularizer: Regularizer, rows: Tensor) -> None:
    """Its value and its prox at two rows `[2, d]`, with one step for both and with one for each."""
    key = "problem.regularizer"
    small = 1e-3 / max(1.0, regularizer.rho)
    with _blamed(key, f"the value of {regularizer} fails on {describe(rows)}"):
        value = regularizer.value(rows)
    _check_shape(key, f"the value of {regularizer}", value, [len(rows)])
    for tau in (small, rows.new_full((len(rows), 1), small)):
        with _blamed(key, f"the prox of {regularizer} fails on {describe(rows)}"):
            prox = regularizer.prox(rows, tau)
        _check_shape(key, f"the prox of {regularizer}", prox, list(rows.shape))


def _check_shape(key: str, what: str, value: object, shape: list[int]) -> None:
    if not isinstance(value, Tensor) or list(value.shape) != shape:
        raise ConfigError(key, f"{what} is {describe(value)}; it must have shape {shape}")


def _variables(state: Any, what: str) -> Mapping[str, Tensor]:
    """The tensors of a state, by name."""
    if not (isinstance(state, tuple) and hasattr(state, "_asdict") and {"t", "x"} <= {*state._asdict()}):
        given = f"gave a {type(state).__name__}"
        raise ConfigError("algorithm.name", f"{what} {given}; it must be a state: a NamedTuple with t, x and its own")
    return {name: value for name, value in state._asdict().items() if isinstance(value, Tensor)}
