"""Hyper-parameters with one value per row: the methods of several trials merged into one that acts on all rows.

A step multiplies rows `[rows, d]` by numbers (α, γ, …). With a column `[rows, 1]` in place of a number it does the same
for every row with that row's value. Trials whose methods differ only in such numbers can therefore share one step.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, get_args

from depositum.algorithms.hyperparameters import parameter_types
from depositum.algorithms.interface import Algorithm, Tensor
from depositum.algorithms.schedules import Schedule, Stepsize, TunableStepsize, as_schedule

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class RowConstants(Schedule):
    """Constant stepsizes, one per row, `[rows, 1]`."""

    column: Tensor

    def at(self, t: Tensor) -> Tensor:
        return self.column

    @property
    def largest(self) -> float:
        return float(self.column.max())


@dataclass(frozen=True)
class RowSchedules(Schedule):
    """A schedule per row: at each t a column of stepsizes `[rows, 1]`.

    Parameters
    ----------
    schedules
        The different schedules.
    indices
        The index into `schedules` of each row, `[rows]`, on the device.
    dtype
        Of the column; the dtype of the models, so that products with it are not promoted.
    """

    schedules: tuple[Schedule, ...]
    indices: Tensor
    dtype: "torch.dtype"

    def at(self, t: Tensor) -> Tensor:
        """Return the stepsizes at iteration t, `[rows, 1]`."""
        import torch

        values = torch.stack([schedule.at(t) for schedule in self.schedules])
        return values[self.indices].to(self.dtype)[:, None]

    @property
    def largest(self) -> float:
        return max(schedule.largest for schedule in self.schedules)


def row_parameters(method: type[Algorithm]) -> list[str]:
    """Return the hyper-parameters of a method that may have one value per row.

    These are the ones of type float, or float and others, except for the `scalar_parameters` of the method.

    >>> from depositum.algorithms import CDProxSGT, Depositum
    >>> row_parameters(Depositum)
    ['alpha', 'gamma']
    >>> row_parameters(CDProxSGT), CDProxSGT.scalar_parameters
    (['alpha', 'gamma_x', 'gamma_y'], ('keep',))
    """
    types = parameter_types(method).items()
    numeric = [name for name, annotation in types if float in (annotation, *get_args(annotation))]
    return [name for name in numeric if name not in method.scalar_parameters]


def merge_key(method: Algorithm) -> dict[str, Any]:
    """Return what two methods of one class must have in common to be merged by `merge_methods`.

    This is every attribute, with "per row" in place of values that may differ between rows.

    >>> from depositum.algorithms import Depositum
    >>> merge_key(Depositum(alpha=0.1)) == merge_key(Depositum(alpha=0.2, gamma=0.9))
    True
    >>> merge_key(Depositum()) == merge_key(Depositum(momentum="nesterov"))
    False
    """
    names = row_parameters(type(method))
    # Attributes that are not fields: values that a user-defined method derives from its hyper-parameters.
    derived = getattr(method, "__dict__", {})
    values = derived | {field.name: getattr(method, field.name) for field in fields(method)}  # type: ignore[arg-type]
    return {k: "per row" if k in names and _is_numeric(v) else v for k, v in values.items()}


def merge_methods(
    methods: Sequence[Algorithm], clients: int, device: "torch.device", dtype: "torch.dtype"
) -> Algorithm:
    """Merge the methods of all trials into one that acts on all rows; the first method itself if all are equal.

    The methods must have equal `merge_key`s. The result is for `init` and `step` only: anything evaluated on the host
    (checks, stepsizes for reports) is asked of the method of each trial.

    Parameters
    ----------
    methods
        One method per trial.
    clients
        Rows per trial.
    """
    import torch

    names = differing_parameters(methods)
    if not names:
        return methods[0]
    merged = copy(methods[0])
    types = parameter_types(type(merged))
    for name in names:
        values = [getattr(method, name) for method in methods]
        column: Any
        if any(isinstance(value, Mapping | Schedule) for value in values):
            column = _row_schedules(list(map(as_schedule, values)), clients, device, dtype)
        else:
            column = torch.tensor(values, dtype=dtype, device=device).repeat_interleave(clients)[:, None]
            column = RowConstants(column) if types[name] in (Stepsize, TunableStepsize) else column
        object.__setattr__(merged, name, column)
    return merged


def differing_parameters(methods: Sequence[Algorithm]) -> list[str]:
    """Return the hyper-parameters that are not equal in all methods."""
    first = methods[0]
    names = [field.name for field in fields(first)]  # type: ignore[arg-type]
    return [name for name in names if any(getattr(method, name) != getattr(first, name) for method in methods)]


def _row_schedules(
    schedules: Sequence[Schedule], clients: int, device: "torch.device", dtype: "torch.dtype"
) -> RowSchedules:
    import torch

    distinct = [schedule for i, schedule in enumerate(schedules) if schedule not in schedules[:i]]
    indices = torch.tensor([distinct.index(schedule) for schedule in schedules], device=device)
    return RowSchedules(tuple(distinct), indices.repeat_interleave(clients), dtype)


def _is_numeric(value: Any) -> bool:
    """Return whether a value is a number or a schedule, as opposed to another choice (a name, or None)."""
    return isinstance(value, int | float | Mapping | Schedule)
