"""Stepsizes that change with t: `alpha = 0.05`, or `alpha = { cosine = { start = 0.1, end = 0.0, steps = 500 } }`.

A schedule is evaluated on the device, from the iteration as a tensor, so that one compiled step serves all t.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from depositum.errors import ConfigError, is_number
from depositum.registry import Registry
from depositum.validation import Description

SCHEDULES: "Registry[Schedule]" = Registry("schedule")


class Schedule(ABC):
    """A stepsize as a function of the iteration."""

    @abstractmethod
    def at(self, t: Tensor) -> Tensor:
        """The stepsize at iteration t, a float64 tensor of no dimension."""

    @property
    @abstractmethod
    def largest(self) -> float:
        """The largest value it ever takes."""


#: What a person may give as a stepsize: a number, a schedule as a configuration writes it, or a schedule itself.
Stepsize = float | Annotated[Mapping[str, Any] | Schedule, Description("a schedule { power | step | cosine = { … } }")]


def _positive(key: str, value: float) -> None:
    if not (is_number(value) and math.isfinite(value) and value > 0):
        raise ConfigError(key, f"{value!r} given; it must be a number > 0")


@SCHEDULES.register("constant")
@dataclass(frozen=True)
class Constant(Schedule):
    """The same value at every t."""

    value: float

    def __post_init__(self) -> None:
        _positive("constant.value", self.value)

    def at(self, t: Tensor) -> Tensor:
        return torch.full((), self.value, dtype=torch.float64, device=t.device)

    @property
    def largest(self) -> float:
        return self.value


@SCHEDULES.register("power")
@dataclass(frozen=True)
class Power(Schedule):
    """`start · (1 + t/offset)^(-power)`: 1/√t with power 0.5, the cube root of DEEPSTORM with power 1/3."""

    start: float
    power: float = 0.5
    offset: float = 1.0

    def __post_init__(self) -> None:
        _positive("power.start", self.start)
        _positive("power.power", self.power)
        _positive("power.offset", self.offset)

    def at(self, t: Tensor) -> Tensor:
        return self.start * (1 + t.double() / self.offset) ** -self.power

    @property
    def largest(self) -> float:
        return self.start


@SCHEDULES.register("step")
@dataclass(frozen=True)
class Step(Schedule):
    """`start`, multiplied by `factor` after every `every` iterations."""

    start: float
    factor: float
    every: int

    def __post_init__(self) -> None:
        _positive("step.start", self.start)
        _positive("step.factor", self.factor)
        _positive("step.every", self.every)
        if self.factor > 1:
            raise ConfigError("step.factor", f"{self.factor!r} given; it must be at most 1")

    def at(self, t: Tensor) -> Tensor:
        return self.start * self.factor ** (t // self.every).double()

    @property
    def largest(self) -> float:
        return self.start


@SCHEDULES.register("cosine")
@dataclass(frozen=True)
class Cosine(Schedule):
    """From `start` to `end` along half a cosine over `steps` iterations, then `end`."""

    start: float
    steps: int
    end: float = 0.0

    def __post_init__(self) -> None:
        _positive("cosine.start", self.start)
        _positive("cosine.steps", self.steps)
        if not (is_number(self.end) and 0 <= self.end <= self.start):
            raise ConfigError("cosine.end", f"{self.end!r} given; it must lie in [0, start]")

    def at(self, t: Tensor) -> Tensor:
        done = (t.double() / self.steps).clamp(max=1.0)
        return self.end + 0.5 * (self.start - self.end) * (1 + torch.cos(torch.pi * done))

    @property
    def largest(self) -> float:
        return self.start


def as_schedule(alpha: Stepsize, key: str = "algorithm.alpha") -> Schedule:
    """A schedule from a number or from what a configuration says.

    >>> float(as_schedule({"power": {"start": 0.4, "power": 0.5}}).at(torch.tensor(3)))
    0.2
    """
    if isinstance(alpha, Schedule):
        return alpha
    if isinstance(alpha, Mapping):
        choice = SCHEDULES.parse(alpha, key)
        try:
            return choice.make()
        except ConfigError as error:  # of a schedule, which does not know whose it is
            raise ConfigError(f"{key}.{error.key}", error.problem) from None
    _positive(key, alpha)
    return Constant(alpha)
