"""One method on the rows of several runs that differ in its numbers: α, γ, …

A step multiplies rows `[rows, d]` by numbers, so that it does the same, row by row, for a column `[rows, 1]` that holds
each row's own. Methods of one class then make one method, whose differing numbers are columns.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields
from typing import Any, get_args

import torch
from torch import Tensor

from depositum.algorithms.base import Algorithm
from depositum.algorithms.dproxsgt import CDProxSGT
from depositum.algorithms.schedules import Schedule, Stepsize, as_schedule

#: Numbers that a step needs on the host: top-k keeps as many entries of every row.
_ON_THE_HOST: dict[type[Algorithm], tuple[str, ...]] = {CDProxSGT: ("keep",)}


@dataclass(frozen=True)
class Constants(Schedule):
    """Stepsizes that do not change with t, one per row, `[rows, 1]`."""

    column: Tensor

    def at(self, t: Tensor) -> Tensor:
        return self.column

    @property
    def largest(self) -> float:
        return float(self.column.max())


@dataclass(frozen=True)
class Stepsizes(Schedule):
    """The schedules of several runs side by side: at each t a column `[rows, 1]`.

    Parameters
    ----------
    schedules
        Those that there are.
    places
        Which of them each row has, `[rows]`, on the device.
    dtype
        Of the column: that of the models, which products with it would else be promoted from.
    """

    schedules: tuple[Schedule, ...]
    places: Tensor
    dtype: torch.dtype

    def at(self, t: Tensor) -> Tensor:
        """The stepsizes at iteration t, `[rows, 1]`."""
        values = torch.stack([schedule.at(t) for schedule in self.schedules])
        return values[self.places].to(self.dtype)[:, None]

    @property
    def largest(self) -> float:
        return max(schedule.largest for schedule in self.schedules)


def numbers(method: type[Algorithm]) -> list[str]:
    """The hyper-parameters of a method that can be columns; of a person's own method nothing is known, and none can.

    >>> from depositum.algorithms import Depositum
    >>> numbers(Depositum)
    ['alpha', 'gamma']
    """
    if not method.__module__.startswith("depositum."):
        return []
    named = [field.name for field in fields(method) if float in (field.type, *get_args(field.type))]  # type: ignore[arg-type]
    return [name for name in named if name not in _ON_THE_HOST.get(method, ())]


def kinds(method: Algorithm) -> dict[str, Any]:
    """A method's hyper-parameters with a word for each number that can be a column: methods with equal ones make one.

    >>> from depositum.algorithms import Depositum
    >>> kinds(Depositum(alpha=0.1)) == kinds(Depositum(alpha=0.2, gamma=0.9))
    True
    >>> kinds(Depositum()) == kinds(Depositum(momentum="nesterov"))
    False
    """
    columns = numbers(type(method))
    values = {field.name: getattr(method, field.name) for field in fields(method)}  # type: ignore[arg-type]
    return {k: "number" if k in columns and _varies(v) else v for k, v in values.items()}


def combined(methods: Sequence[Algorithm], clients: int, device: torch.device, dtype: torch.dtype) -> Algorithm:
    """One method for the rows of all trials, from each trial's own; the first itself where they are all equal.

    They must be of equal `kinds`. The one made of them is for `init` and `step` alone: what a method is asked on the
    host (its checks, its stepsize) is each one's own.

    Parameters
    ----------
    clients
        Rows of one trial.
    """
    first = methods[0]
    if all(method == first for method in methods):
        return first
    one = copy(first)
    for field in fields(first):  # type: ignore[arg-type]
        values = [getattr(method, field.name) for method in methods]
        if any(value != values[0] for value in values):
            column: Any
            if any(isinstance(value, Mapping | Schedule) for value in values):
                column = _stepsizes(list(map(as_schedule, values)), clients, device, dtype)
            else:
                column = torch.tensor(values, dtype=dtype, device=device).repeat_interleave(clients)[:, None]
                column = Constants(column) if field.type == Stepsize else column
            object.__setattr__(one, field.name, column)
    return one


def _stepsizes(schedules: Sequence[Schedule], clients: int, device: torch.device, dtype: torch.dtype) -> Stepsizes:
    different = [schedule for i, schedule in enumerate(schedules) if schedule not in schedules[:i]]
    places = torch.tensor([different.index(schedule) for schedule in schedules], device=device)
    return Stepsizes(tuple(different), places.repeat_interleave(clients), dtype)


def _varies(value: Any) -> bool:
    """Whether a value is a number, or the schedule of one, and no other choice (a word, or none)."""
    return isinstance(value, int | float | Mapping | Schedule)
