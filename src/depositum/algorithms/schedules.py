"""Stepsize schedules: `alpha = 0.05`, or `alpha = { cosine = { start = 0.1, end = 0.0, steps = 500 } }`.

A schedule is evaluated on the device, from the iteration as a tensor, so that one compiled step serves all t.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from depositum.algorithms.hyperparameters import AUTO, check_positive
from depositum.algorithms.interface import Tensor
from depositum.errors import ConfigError, describe_exception, is_number, renamed_keys, short_repr
from depositum.registry import Registry
from depositum.validation import Description

SCHEDULES: "Registry[Schedule]" = Registry("schedule")


class Schedule(ABC):
    """A stepsize as a function of the iteration."""

    @abstractmethod
    def at(self, t: Tensor) -> Tensor:
        """Return the stepsize at iteration t, a 0-dimensional float64 tensor."""

    @property
    @abstractmethod
    def largest(self) -> float:
        """The largest value over all iterations."""


#: A stepsize as the user gives it: a number, a schedule as in a configuration, a `Schedule`, or a function of t.
Stepsize = (
    float
    | Annotated[
        Mapping[str, Any] | Schedule | Callable[[Any], Any], Description("a schedule { power | step | cosine = { … } }")
    ]
)

#: The name under which a run folder stores a function of t, and the iterations whose values it stores.
IN_MEMORY, STORED_AT = "in-memory", (0, 1, 10, 100, 1000, 10_000)
#: The iterations for which the values of a function of t are checked.
CHECKED_ITERATIONS = 100_000

#: A stepsize that may also be `"auto"`, to be chosen by tuning.
TunableStepsize = Stepsize | Literal["auto"]


@SCHEDULES.register("constant")
@dataclass(frozen=True)
class Constant(Schedule):
    """The same value at every t."""

    value: float

    def __post_init__(self) -> None:
        check_positive("value", self.value)

    def at(self, t: Tensor) -> Tensor:
        import torch

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
        check_positive("start", self.start)
        check_positive("power", self.power)
        check_positive("offset", self.offset)

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
        check_positive("start", self.start)
        check_positive("factor", self.factor)
        check_positive("every", self.every)
        if self.factor > 1:
            raise ConfigError("factor", f"{short_repr(self.factor)} given; it must be at most 1")

    def at(self, t: Tensor) -> Tensor:
        return self.start * self.factor ** (t // self.every).double()

    @property
    def largest(self) -> float:
        return self.start


@SCHEDULES.register("cosine")
@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine from `start` to `end` over `steps` iterations, then `end`."""

    start: float
    steps: int
    end: float = 0.0

    def __post_init__(self) -> None:
        check_positive("start", self.start)
        check_positive("steps", self.steps)
        if not (is_number(self.end) and 0 <= self.end <= self.start):
            raise ConfigError("end", f"{short_repr(self.end)} given; it must lie in [0, start]")

    def at(self, t: Tensor) -> Tensor:
        progress = (t.double() / self.steps).clamp(max=1.0)
        return self.end + 0.5 * (self.start - self.end) * (1 + (math.pi * progress).cos())

    @property
    def largest(self) -> float:
        return self.start


@dataclass(frozen=True)
class StepsizeFunction(Schedule):
    """A user-defined function of t, which is a float64 tensor: `lambda t: 0.1 / (1 + t / 100)`.

    It must be written with arithmetic and torch's functions. One that needs t as a Python number (`math.sqrt(t)`,
    `if t < 100`) cannot be part of a compiled step, and is refused.

    >>> import torch
    >>> float(StepsizeFunction(lambda t: 0.5 / (1 + t)).at(torch.tensor(3)))
    0.125
    """

    function: Callable[[Any], Any]
    _largest: float = field(default=0.0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        import torch

        t = torch.arange(CHECKED_ITERATIONS, dtype=torch.float64)
        try:
            values = torch.vmap(lambda t: self.function(t) + 0 * t)(t)
        except Exception as error:
            reason = describe_exception(error)
            raise ConfigError(
                "alpha",
                f"the function fails on a tensor t ({reason[:60]}…); write it with torch's functions, as in lambda t: "
                "0.1 / (1 + t).sqrt(), or use a schedule: {'cosine': {'start': 0.1, 'steps': 500}}, 'power' or 'step'",
            ) from error
        if values.shape != t.shape:
            raise ConfigError(
                "alpha", f"the function returns shape {list(values.shape[1:])}; it must return one number"
            )
        wrong = ~(values.isfinite() & (values >= 0))
        if wrong.any():
            first = int(wrong.nonzero()[0])
            raise ConfigError("alpha", f"the function gives {values[first]:g} at t = {first}; it must be a number ≥ 0")
        if not values[0] > 0:
            raise ConfigError("alpha", "the function gives 0 at t = 0; it must begin with a number > 0")
        object.__setattr__(self, "_largest", float(values.max()))

    def at(self, t: Tensor) -> Tensor:
        value: Tensor = self.function(t.double()) + 0 * t.double()
        return value

    @property
    def largest(self) -> float:
        """The largest value over the first 100,000 iterations."""
        return self._largest


@dataclass(frozen=True)
class StoredFunction(Schedule):
    """A function of t as a run folder stores it: some of its values, by which it can be compared, not evaluated."""

    stored: Mapping[str, Any]

    def __post_init__(self) -> None:
        values = self.stored.get("values") if isinstance(self.stored, Mapping) else None
        if not isinstance(values, list) or len(values) != len(STORED_AT) or not all(map(is_number, values)):
            raise ConfigError("alpha", f"{short_repr(self.stored)} given; it is not what a run folder stores")

    def at(self, t: Tensor) -> Tensor:
        raise ConfigError("alpha", "was given in Python as a function of t, which a configuration does not hold")

    @property
    def largest(self) -> float:
        return float(max(self.stored["values"]))


def stored_stepsize(value: object) -> Any:
    """A stepsize as a configuration stores it; anything that is not a schedule as it is.

    >>> stored_stepsize(Cosine(0.1, 20))
    {'cosine': {'start': 0.1, 'steps': 20, 'end': 0.0}}
    >>> stored_stepsize(StepsizeFunction(lambda t: 0.1 / (1 + t)))
    {'in-memory': {'values': [0.1, 0.05, 0.00909090909, 0.00099009901, 9.99000999e-05, 9.9990001e-06]}}
    """
    if isinstance(value, StepsizeFunction):
        import torch

        values = [float(value.at(torch.tensor(t))) for t in STORED_AT]
        return {IN_MEMORY: {"values": [float(f"{one:.9g}") for one in values]}}
    if isinstance(value, Constant):
        return value.value
    name = next((name for name in SCHEDULES if SCHEDULES[name] is type(value)), None)
    return value if name is None else {name: asdict(value)}  # type: ignore[call-overload]


def check_stepsize(method: object, key: str = "alpha") -> None:
    """Check a stepsize of a method, when it is made; a function of t becomes a schedule, so that it is checked once."""
    value = getattr(method, key)
    schedule = as_schedule(value, key)
    if callable(value):
        object.__setattr__(method, key, schedule)


def as_schedule(alpha: TunableStepsize, key: str = "alpha") -> Schedule:
    """Return the schedule for a number, a function of t, or a schedule as written in a configuration.

    >>> import torch
    >>> float(as_schedule({"power": {"start": 0.4, "power": 0.5}}).at(torch.tensor(3)))
    0.2
    """
    if isinstance(alpha, Schedule):
        return alpha
    if isinstance(alpha, Mapping):
        if IN_MEMORY in alpha:
            with renamed_keys(lambda _: key):
                return StoredFunction(alpha[IN_MEMORY])
        return SCHEDULES.parse(alpha, key).make()
    if callable(alpha):
        with renamed_keys(lambda _: key):
            return StepsizeFunction(alpha)
    if isinstance(alpha, str) and alpha == AUTO:
        raise ConfigError(key, "'auto' given, but a number is needed here: `depositum tune` finds one")
    check_positive(key, alpha)
    return Constant(alpha)
