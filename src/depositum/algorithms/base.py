"""What an algorithm is, and the two doors it has to the world: `oracle` to data, `mix` to other clients.

An algorithm is a frozen dataclass of hyper-parameters with two pure functions on rows: `init` makes its state and
`step` makes the next one. It knows nothing of devices, graphs, processes, seeds or batches. A state is a NamedTuple
of tensors with one row per client, and at least the fields

- `t`: the iteration, an int64 tensor of no dimension (whatever changes with t is computed from it, on the device);
- `x`: the models, `[rows, d]`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from torch import Tensor

from depositum.errors import ConfigError
from depositum.registry import Registry


class Oracle(Protocol):
    """The problem seen from the rows (see `depositum.problem.Oracle`)."""

    def sample(self, size: Any = None) -> Any: ...

    def grad(self, x: Tensor, batch: Any) -> Tensor: ...

    def full_grad(self, x: Tensor) -> Tensor: ...

    def prox(self, z: Tensor, step: float | Tensor) -> Tensor: ...

    def normal(self, like: Tensor) -> Tensor: ...


class Mix(Protocol):
    """The paper's W^t: W in an exchange, the identity otherwise."""

    #: λ = ‖W − J‖₂, and the second largest and the smallest eigenvalue of W
    lam: float
    lam2: float
    lam_min: float

    @property
    def degree(self) -> Tensor:
        """Neighbours of each row, `[rows, 1]`."""
        ...

    def __call__(self, z: Tensor, payload: float | None = None) -> Tensor:
        """Mix rows `[rows, d]` with W^t.

        `payload` is what a client really sends to a neighbour for it, in bytes, where that is not its row of z (a
        compressed difference, say).
        """
        ...

    def average(self, z: Tensor) -> Tensor:
        """The exact mean over all clients, in every row: start-up and servers."""
        ...

    def neighbours(self, z: Tensor) -> Tensor:
        """The unweighted sum over each row's neighbours."""
        ...


class State(Protocol):
    """What every state has; the rest is an algorithm's own."""

    @property
    def t(self) -> Tensor: ...

    @property
    def x(self) -> Tensor: ...

    def _asdict(self) -> dict[str, Any]: ...

    @property
    def _replace(self) -> Callable[..., Any]: ...


@dataclass(frozen=True)
class About:
    """What a method says of itself: the columns of the paper's complexity table, and where it comes from.

    Complexities are written as the paper's table writes them, or "" where it (and we) say nothing.
    """

    title: str
    citation: str
    #: Whether its analysis assumes mean-squared smoothness, and bounded gradient heterogeneity; None: not known.
    mean_squared_smoothness: bool | None = None
    bounded_heterogeneity: bool | None = None
    batch: str = ""
    communication: str = ""
    gradients: str = ""
    mega_batch: bool | None = None
    linear_speedup: bool | None = None
    #: Iterations per communication phase, and mixing operations per phase, as the table writes them (`"2K"`).
    interval: str = "1"
    mixing: str = ""
    #: What a person should know before using it: departures of released code, limits.
    notes: str = ""


class Algorithm(ABC):
    """Base of all methods: hyper-parameters, `init`, `step`, and what the method declares of itself."""

    #: The name a configuration gives it.
    name: ClassVar[str]
    about: ClassVar[About]
    #: The regularizers it can handle: none ("smooth"), convex ones, or weakly convex ones too.
    handles: ClassVar[Literal["smooth", "convex", "weakly convex"]] = "weakly convex"
    #: Whether clients talk to a server instead of neighbours: it then uses `mix.average` alone, and has no topology.
    server: ClassVar[bool] = False
    #: The hyper-parameter that its largest prox step hangs on, and how that step comes about, for messages.
    prox_key: ClassVar[str] = "alpha"
    prox_formula: ClassVar[str] = "α"
    #: The state's variable that estimates the gradient, for the gradient-estimation error.
    estimate: ClassVar[str] = "nu"

    @abstractmethod
    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> State:
        """The state at t = 0 from the common initial models `[rows, d]`; `mix` is W here."""

    @abstractmethod
    def step(self, s: Any, oracle: Oracle, mix: Mix, kind: str) -> State:
        """The state at t + 1."""

    @abstractmethod
    def vectors(self) -> int:
        """Vectors that a client sends in one phase, to each neighbour or to the server."""

    @property
    def periods(self) -> Sequence[int] | None:
        """The periods T0 it supports; None: any."""
        return None

    def kind(self, t: int, period: int) -> str:
        """Which of its few step shapes iteration t has; a pure function on the host."""
        return "exchange" if t % period == 0 else "local"

    def communicates(self, kind: str) -> bool:
        """Whether `mix` is W in steps of this kind (and not the identity)."""
        return kind != "local"

    def largest_prox_step(self, period: int) -> float:
        """The largest step it ever passes to `oracle.prox`."""
        return 0.0

    def stepsize(self, t: int) -> float | None:
        """The stepsize α at iteration t that G^α is measured with; None if it has none of its own."""
        return None

    def check(self, period: int, *, composite: bool, prox_modulus: float) -> None:
        """Refuse, before any work, a period or a regularizer that the method cannot have.

        Parameters
        ----------
        period
            T0.
        composite
            Whether there is an h: β > 0 and h ≠ 0.
        prox_modulus
            βρ, the weak-convexity modulus of βh; 0 for a convex one.
        """
        if period < 1:
            raise ConfigError("run.period", f"{period} given; T0 must be a whole number ≥ 1")
        if self.periods is not None and period not in self.periods:
            allowed = ", ".join(map(str, self.periods))
            raise ConfigError("run.period", f"{period} given, but {self.name!r} supports only {allowed}")
        if composite and self.handles == "smooth":
            raise ConfigError(
                "problem.regularizer",
                f"{self.name!r} is for smooth problems: it has no prox step, so it cannot take account of h; "
                "take regularizer = \"zero\" or beta = 0, or a composite method such as 'depositum'",
            )
        if prox_modulus > 0 and self.handles == "convex":
            raise ConfigError(
                "problem.regularizer",
                f"{self.name!r} needs a convex h: the steps of its prox grow beyond 1/(βρ) = {1 / prox_modulus:g}, "
                "where the prox of a weakly convex one is not single-valued",
            )
        step = self.largest_prox_step(period)
        if step * prox_modulus >= 1:
            product = f"{self.prox_formula}βρ" if len(self.prox_formula) == 1 else f"({self.prox_formula})·βρ"
            raise ConfigError(
                f"algorithm.{self.prox_key}",
                f"{product} = {step:g}·{prox_modulus:g} = {step * prox_modulus:g}, but the prox is single-valued only "
                f"below 1, for prox steps < {1 / prox_modulus:g}; change {self.prox_key}, or take a smaller beta",
            )


class RoundBased(Algorithm):
    """A method whose iterations come in rounds: `period` local steps, the last of which ends with the exchange."""

    def kind(self, t: int, period: int) -> str:
        return "exchange" if (t + 1) % period == 0 else "local"


ALGORITHMS: Registry[Algorithm] = Registry("algorithm")


def algorithm(name: str, **hyperparameters: Any) -> Algorithm:
    """Build any method by the name a configuration gives it.

    >>> algorithm("depositum", alpha=0.1).alpha
    0.1
    >>> algorithm("depositun")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    depositum.errors.ConfigError: algorithm.name: 'depositun' is no algorithm; it can be ... did you mean 'depositum'?
    """
    if name not in ALGORITHMS:
        ALGORITHMS.parse(name, "algorithm.name")
    try:
        return ALGORITHMS.parse({name: hyperparameters}, "algorithm").make()
    except ConfigError as error:
        # In a configuration the hyper-parameters stand beside the name, not under it.
        raise type(error)(error.key.replace(f"algorithm.{name}", "algorithm"), error.problem) from None
